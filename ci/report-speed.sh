#!/usr/bin/env bash
# Measures how fast recordings are read: makes one of 18 million regions, runs each report on it several times, and prints the
# median and the longest time, and the most memory. The bars: under 2 s and 200 MB, of those that the status is of. Takes some
# minutes, and gigabytes below $TMPDIR: one report writes all regions as text.
#
#   ci/report-speed.sh [ISOTHERM]     default: target/release/isotherm
#
# RUNS=5 is how often each runs, REGIONS=18000000 how large the recording is.
set -euo pipefail
# shellcheck source=ci/lib.sh
. "$(dirname "$0")/lib.sh"
need python3 python3
isotherm=$(realpath "${1:-$root/target/release/isotherm}")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
made=$(cd "$root" && cargo run -q --release -p isotherm-record --example synthetic -- \
	write "$scratch/long.rec" "${REGIONS:-18000000}")
say "recording: $made"
cd "$scratch"
python3 - "$isotherm" "${RUNS:-5}" <<'PYTHON'
import os, subprocess, sys, time

isotherm, runs = sys.argv[1], int(sys.argv[2])
name, late = "long.rec", 0
# Its arguments, and whether there is a bar.
reports = {
    "heatmap": (["report", "heatmap"], True),
    "wss": (["report", "wss"], True),
    "access": (["report", "access"], True),
    "access --time": (["report", "access", "--time", "10s.."], True),
    "raw": (["report", "raw"], True),
    "convert to Parquet": (["convert"], True),
    "summary": (["report", "summary"], False),
    "html": (["report", "html", "-o", "page.html"], False),
}
print(f"{'':20} {'median':>8} {'longest':>8} {'memory':>9}")
for report, (arguments, has_bar) in reports.items():
    times, most = [], 0
    for _ in range(runs):
        whole = [isotherm, *arguments]
        whole += [name, "all.parquet"] if arguments[0] == "convert" else ["-i", name]
        for left in ("page.html", "all.parquet", "all.parquet.old"):
            if os.path.exists(left):
                os.remove(left)
        with open("output", "wb") as output:
            start = time.monotonic()
            child = subprocess.Popen(whole, stdout=output, stderr=subprocess.DEVNULL)
            _, status, used = os.wait4(child.pid, 0)
            times.append(time.monotonic() - start)
        if status != 0:
            sys.exit(f"error: {' '.join(whole)}: status {status}")
        most = max(most, used.ru_maxrss * 1024)
    times.sort()
    median = times[len(times) // 2]
    marks = (" above 2 s" * (median > 2) + " above 200 MB" * (most > 200e6)) * has_bar
    late += bool(marks)
    print(f"{report:20} {median:6.2f} s {times[-1]:6.2f} s {most / 1e6:6.0f} MB{marks}", flush=True)
sys.exit(1 if late else 0)
PYTHON
