#!/usr/bin/env bash
# Measures whether `isotherm report diff` knows noise: recordings of one program differ in nothing, those of a program whose
# hot set grew by a tenth do. As root. Takes some ten minutes; the figures in crates/report/src/diff/mod.rs come from it.
#
#   ci/diff-noise.sh [ISOTHERM] [DIRECTORY]     default: target/release/isotherm, a scratch directory that is removed
#
# SECONDS_EACH=15 is the length of a recording, RUNS=10 how many comparisons each. With PROGRAM=python the program is Python
# with an SQLite database in memory instead of the pattern `hotspot`.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
isotherm=$(realpath "${1:-$here/../target/release/isotherm}")
runs=${RUNS:-10}
each=${SECONDS_EACH:-15}
program=${PROGRAM:-hotspot}
if [ $# -ge 2 ]; then
	mkdir -p "$2"
	cd "$2"
else
	scratch=$(mktemp -d)
	trap 'rm -rf "$scratch"' EXIT
	cd "$scratch"
fi

cat >rows.py <<'PYTHON'
import random, sqlite3, sys, time
rows, hot = 200_000, float(sys.argv[1])
random.seed(7)
db = sqlite3.connect(":memory:")
db.execute("create table t (id integer primary key, v text)")
db.executemany("insert into t values (?, ?)", ((i, "x" * 400) for i in range(rows)))
open("ready", "w").close()
end = time.time() + 600
while time.time() < end:
    for _ in range(1000):
        i = random.randrange(int(rows * hot) if random.random() < 0.95 else rows)
        db.execute("select v from t where id = ?", (i,)).fetchone()
PYTHON

# recording FILE SIZE: of the program with a hot set of that size, small or large.
recording() {
	local size pid
	if [ "$program" = python ]; then
		[ "$2" = small ] && size=0.5 || size=0.55
		rm -f ready
		python3 rows.py "$size" &
		pid=$!
		until [ -e ready ]; do sleep 0.2; done
		"$isotherm" record -q -d "${each}s" -o "$1" --pid "$pid"
		kill "$pid"
		wait "$pid" || true
	else
		[ "$2" = small ] && size=64M || size=72088K
		"$isotherm" record -q -d "${each}s" -o "$1" -- "$isotherm" workload hotspot \
			--set total=256M --set spot="$size" --set offset=100M --set rate=100Hz --set phase="${each}s" >workload.log 2>&1
	fi
}

# compared A B: prints the verdict; succeeds if there is a difference.
compared() {
	local status=0
	"$isotherm" report diff --exit-code "$1" "$2" >diff.txt 2>&1 || status=$?
	[ "$status" -le 1 ] || { cat diff.txt; exit 1; }
	printf '%s and %s: %s\n' "$1" "$2" "$(tail -n 1 diff.txt)"
	[ "$status" = 1 ]
}

recording small-0.rec small
wrong=0
missed=0
for ((i = 1; i <= runs; i++)); do
	recording "small-$i.rec" small
	recording "large-$i.rec" large
	if compared "small-$((i - 1)).rec" "small-$i.rec"; then wrong=$((wrong + 1)); fi
	if ! compared "small-$i.rec" "large-$i.rec"; then missed=$((missed + 1)); fi
done
printf '%s: of %d comparisons with itself %d differ; of %d with a hot set larger by a tenth %d are missed\n' \
	"$program" "$runs" "$wrong" "$runs" "$missed"
[ "$wrong" = 0 ] && [ "$missed" = 0 ]
