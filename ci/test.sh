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
trap 'rm -f "$log"' EXIT

# --show-output makes a passing test's output visible, in blocks under "successes:"; of it just the
# lines that tell of a skip are wanted. sed -u passes each line on as it comes, while what is not the
# last of a pipe may keep lines back until they fill a block: mawk, Debian's awk, does when it reads.
status=0
cargo test --locked --no-fail-fast "$@" -- --show-output 2>&1 | tee "$log" |
	sed -u '/^successes:$/,/^\(failures:\|test result:\)/ { /^\(failures:\|test result:\)/!d; }' ||
	status=$?

skipped=$(grep -a '^skipped: ' "$log" | sort | uniq -c || true)
if [ -n "$skipped" ]; then
	say "Skipped here (how often, why):"
	say "$skipped"
	[ "$(id -u)" = 0 ] || say "More of the live tests run as root: sudo -E ci/test.sh"
fi
exit "$status"
