#!/usr/bin/env bash
# Measures whether `isotherm report diff` knows noise: recordings of one program differ in nothing, those of a program whose
# hot set grew by a tenth do. As root. With the defaults 63 recordings of 15 s are made.
#
#   ci/diff-noise.sh [ISOTHERM] [DIRECTORY]     default: target/release/isotherm, a scratch directory that is removed
#
# In a DIRECTORY of one's own what was recorded before is used again, so that the quiet minutes of a machine can be used one
# after the other: with STOP_AFTER=200 it ends with status 75 after so many seconds, and goes on when it is started again.
#
# SECONDS_EACH=15 is the length of a recording, RUNS=10 how many comparisons each. PROGRAMS names what is recorded:
#   hotspot   the built-in pattern
#   python    Python with an SQLite database in memory
#   array     Python that writes one page after the other of an array
#   compiler  a C compiler started again and again, compared with itself only: each of its processes has memory of its own
#   sort      Python that sorts new lists, compared with itself only: what of the allocator's pieces it has differs
# One's own: PROGRAMS=mine SMALL='command' LARGE='command with a hot set larger by a tenth'. Without LARGE it is compared with
# itself only. Comparisons that are unclear count neither as a difference nor as none; they are counted by themselves.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
isotherm=$(realpath "${1:-$here/../target/release/isotherm}")
runs=${RUNS:-10}
each=${SECONDS_EACH:-15}
programs=${PROGRAMS:-hotspot python array}
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
        # None of the others: a few queries in a hundred over all rows touch most pages within a second, and the working set of
        # a second is then nearly all of the table, whatever is hot.
        i = random.randrange(int(rows * hot))
        db.execute("select v from t where id = ?", (i,)).fetchone()
PYTHON

cat >array.py <<'PYTHON'
import sys, time
data = bytearray(int(sys.argv[1]) << 10)
open("ready", "w").close()
end = time.time() + 600
while time.time() < end:
    for at in range(0, len(data), 4096):
        data[at] = 1
PYTHON

cat >lists.py <<'PYTHON'
import random
open("ready", "w").close()
while True:
    sorted(random.random() for _ in range(300_000))
PYTHON

for ((i = 0; i < 3000; i++)); do
	echo "int f$i(int a, int b) { int s = 0; for (int i = 0; i < a; i++) { s += b * i ^ $i; if (s & 1) s -= a; } return s; }"
done >large.c

# started COMMAND...: runs it, and records it when it says that it is ready, or after two seconds.
started() {
	local file=$1 pid
	shift
	rm -f ready
	"$@" >program.log 2>&1 &
	pid=$!
	for _ in 1 2 3 4 5 6 7 8 9 10; do
		[ -e ready ] || sleep 0.2
	done
	"$isotherm" record -q -d "${each}s" -o "$file" --pid "$pid"
	kill "$pid"
	wait "$pid" || true
}

# recording PROGRAM FILE SIZE: of the program with a hot set of that size, small or large, unless it is there.
recording() {
	local size
	[ ! -s "$2" ] || return 0
	if [ "$SECONDS" -ge "${STOP_AFTER:-1000000}" ]; then
		printf 'stopped before %s\n' "$2"
		exit 75
	fi
	case $1 in
	python)
		[ "$3" = small ] && size=0.5 || size=0.55
		started "$2" python3 rows.py "$size"
		;;
	array)
		[ "$3" = small ] && size=40960 || size=45056
		started "$2" python3 array.py "$size"
		;;
	compiler) started "$2" bash -c 'touch ready; while :; do cc -O1 -c large.c -o /dev/null; done' ;;
	sort) started "$2" python3 lists.py ;;
	hotspot)
		[ "$3" = small ] && size=64M || size=72088K
		"$isotherm" record -q -d "${each}s" -o "$2" -- "$isotherm" workload hotspot \
			--set total=256M --set spot="$size" --set offset=100M --set rate=100Hz --set phase="${each}s" >workload.log 2>&1
		;;
	*)
		[ "$3" = small ] && size=${SMALL:?the command to record} || size=$LARGE
		started "$2" bash -c "exec $size"
		;;
	esac
}

# compared A B: prints the verdict; returns 0: the same, 1: different, 3: unclear.
compared() {
	local status=0
	"$isotherm" report diff --exit-code "$1" "$2" >diff.txt 2>&1 || status=$?
	[ "$status" != 2 ] || { cat diff.txt; exit 1; }
	printf '%s and %s: %s\n' "$1" "$2" "$(tail -n 1 diff.txt)"
	return "$status"
}

failed=0
for program in $programs; do
	recording "$program" "$program-small-0.rec" small
	wrong=0 unclear=0 found=0 grown=0
	for ((i = 1; i <= runs; i++)); do
		recording "$program" "$program-small-$i.rec" small
		status=0
		compared "$program-small-$((i - 1)).rec" "$program-small-$i.rec" || status=$?
		[ "$status" != 1 ] || wrong=$((wrong + 1))
		[ "$status" != 3 ] || unclear=$((unclear + 1))
		case $program in
		hotspot | python | array) ;;
		compiler | sort) continue ;;
		*) [ -n "${LARGE:-}" ] || continue ;;
		esac
		grown=$((grown + 1))
		recording "$program" "$program-large-$i.rec" large
		status=0
		compared "$program-small-$i.rec" "$program-large-$i.rec" || status=$?
		# Any difference is not enough: the working set has to have grown.
		if [ "$status" = 1 ] && grep -q 'grew by' diff.txt; then found=$((found + 1)); fi
	done
	printf '%s: of %d comparisons with itself %d differ and %d are unclear; with a hot set larger by a tenth %d of %d are found\n' \
		"$program" "$runs" "$wrong" "$unclear" "$found" "$grown"
	[ "$wrong" = 0 ] && [ $((10 * found)) -ge $((9 * grown)) ] || failed=1
done
exit "$failed"
