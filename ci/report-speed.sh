#!/usr/bin/env bash
# Measures how fast recordings are read: makes one of 18 million regions, and one whose snapshots have up to a million, runs each
# report on them several times, and prints the median and the longest time, and the most memory. The bars: under 2 s and 200 MB
# each, of the first. Takes a few minutes and 4 GB below $TMPDIR.
#
#   ci/report-speed.sh [ISOTHERM]     default: target/release/isotherm
#
# RUNS=5 is how often each runs, REGIONS=18000000 how large the first is, WIDE=3000000 the second (0: leave it out).
set -euo pipefail
# shellcheck source=ci/lib.sh
. "$(dirname "$0")/lib.sh"
need python3 python3
isotherm=$(realpath "${1:-$root/target/release/isotherm}")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
write() {
	(cd "$root" && cargo run -q --release -p isotherm-record --example synthetic -- write "$@")
}
say "recordings: $(write "$scratch/long.rec" "${REGIONS:-18000000}")"
if [ "${WIDE:-3000000}" -gt 0 ]; then
	say "            $(write "$scratch/wide.rec" "${WIDE:-3000000}" --wide)"
fi
cd "$scratch"
python3 - "$isotherm" "${RUNS:-5}" <<'PYTHON'
import os, subprocess, sys, time

isotherm, runs = sys.argv[1], int(sys.argv[2])
reports = {
    "summary": ["report", "summary"],
    "heatmap": ["report", "heatmap"],
    "wss": ["report", "wss"],
    "access": ["report", "access"],
    "access --time": ["report", "access", "--time", "10s.."],
    "raw": ["report", "raw"],
    "html": ["report", "html", "-o", "page.html"],
    "convert to Parquet": ["convert"],
}
late = 0
for name in ("long.rec", "wide.rec"):
    if not os.path.exists(name):
        continue
    print(f"{name:28} {'median':>8} {'longest':>8} {'memory':>9}")
    for report, arguments in reports.items():
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
        marks = " above 2 s" * (median > 2) + " above 200 MB" * (most > 200e6)
        late += name == "long.rec" and bool(marks)
        print(f"  {report:26} {median:6.2f} s {times[-1]:6.2f} s {most / 1e6:6.0f} MB{marks}", flush=True)
sys.exit(1 if late else 0)
PYTHON
