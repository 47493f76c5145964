#!/usr/bin/env bash
# The tests: of every crate, and on live processes as far as this user and kernel allow. A live test
# that cannot run says so, and the reasons are listed at the end.
#
#   ci/test.sh [CARGO-TEST-OPTION...]     for example: ci/test.sh -p isotherm-damon
#
# As root all of them run that the kernel allows; with CI=true in the environment, one that could run
# as root and did not is a failure.
set -euo pipefail
# shellcheck source=ci/lib.sh
. "$(dirname "$0")/lib.sh"
need cargo 'cargo, or see https://rustup.rs'

cd "$root"
[ $# -gt 0 ] || set -- --workspace
log=$(mktemp)
beat=''
trap '[ -z "$beat" ] || kill "$beat" 2>/dev/null; rm -f "$log"' EXIT

# at_work: what runs below this script now: which crates are compiled, which tests run.
at_work() {
	local line pid parent rest below=" $$ " found='' stats
	stats=$(cat /proc/[0-9]*/stat 2>/dev/null) || true
	# Parents mostly have the lower numbers, but not in the order of names: a few passes find all generations.
	for _ in 1 2 3 4; do
		while IFS= read -r line; do
			pid=${line%% *} rest=${line##*) }
			rest=${rest#* } parent=${rest%% *}
			case $below in
			*" $pid "*) ;;
			*" $parent "*) below+="$pid " ;;
			esac
		done <<<"$stats"
	done
	for pid in $below; do
		line=$(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline") || continue
		case $line in
		*' --crate-name '*) line=${line#* --crate-name } found+=" ${line%% *}" ;;
		*/deps/*-????????????????*) line=${line%% *} line=${line##*/} found+=" the tests of ${line%-*}" ;;
		esac
	done
	printf '%s' "${found:- cargo}"
}

# A heartbeat: a large crate compiles, and a live test runs, for minutes without a line, and cargo shows its own progress on
# terminals alone.
every=${ISOTHERM_HEARTBEAT:-15}
(
	before=''
	while sleep "$every" >/dev/null 2>&1; do
		now=$(stat -c %s "$log" 2>/dev/null) || exit
		[ "$now" != "$before" ] || printf '... %s s, at work:%s\n' "$SECONDS" "$(at_work)"
		before=$now
	done
) &
beat=$!

# --show-output makes a passing test's output visible, in blocks under "successes:"; of it just the
# lines that tell of a skip are wanted. sed -u passes each line on as it comes, while what is not the
# last of a pipe may keep lines back until they fill a block: mawk, Debian's awk, does when it reads.
status=0
cargo test --locked --no-fail-fast "$@" -- --show-output 2>&1 | tee "$log" |
	sed -u '/^successes:$/,/^\(failures:\|test result:\)/ { /^\(failures:\|test result:\)/!d; }' ||
	status=$?
kill "$beat" 2>/dev/null || true
beat=''

skipped=$(grep -a '^skipped: ' "$log" | sort | uniq -c || true)
if [ -n "$skipped" ]; then
	say "Skipped here (how often, why):"
	say "$skipped"
	[ "$(id -u)" = 0 ] || say "More of the live tests run as root: sudo -E ci/test.sh"
fi
exit "$status"
