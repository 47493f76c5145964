#!/usr/bin/env bash
# Checks the scripts: shellcheck on all of them, and ci/test.sh with a stand-in for cargo.
set -uo pipefail
# shellcheck source=ci/lib.sh
. "$(dirname "$0")/lib.sh"
need shellcheck shellcheck

cd "$root" || exit
passed=0
failed=0

# check WHAT COMMAND...: counts whether the command succeeds.
check() {
	local what=$1
	shift
	if "$@"; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		say "FAILED: $what"
	fi
}

check shellcheck shellcheck -x .ci/run ci/*.sh ci/guest-init ci/guest-tests/*.sh docs/*.sh

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
# It compiles, tests, and says no next word before the last one has been seen: a script that keeps lines back
# makes it wait for longer than anyone would, and it says so.
cat >"$dir/cargo" <<'CARGO'
#!/usr/bin/env bash
seen() {
	for ((i = 0; i < 100; i++)); do
		[ -e "$SEEN/$1" ] && return
		sleep 0.1
	done
	printf 'nobody saw %s\n' "$1"
}
printf '   Compiling first v0.1.0\n' >&2
seen first
printf 'running 2 tests\ntest second ... ok\n'
seen second
seen heartbeat
printf 'test other ... %s\n\n' "$OTHER"
printf 'successes:\n\n---- second stdout ----\nskipped: no moon\nchatter\n\nsuccesses:\n    second\n\n'
[ "$OTHER" = ok ] || printf 'failures:\n\n---- other stdout ----\nassertion\n\nfailures:\n    other\n\n'
printf 'test result: %s. whatever\n' "$OTHER"
printf 'test last ... ok\n'
seen last
[ "$OTHER" = ok ] || exit 101
CARGO
chmod +x "$dir/cargo"

# tests OTHER: runs ci/test.sh, its output in $dir/out, its status in $dir/status.
tests() {
	rm -f "$dir"/{first,second,last,heartbeat}
	{
		PATH=$dir:$PATH SEEN=$dir OTHER=$1 ISOTHERM_HEARTBEAT=1 ci/test.sh -p any 2>&1
		printf '%s\n' $? >"$dir/status"
	} | while IFS= read -r line; do
		printf '%s\n' "$line"
		for word in first second last; do
			case $line in *" $word "*) : >"$dir/$word" ;; esac
		done
		case $line in '... '*' at work:'*) : >"$dir/heartbeat" ;; esac
	done >"$dir/out"
}
status_is() { [ "$(cat "$dir/status")" = "$1" ]; }
shows() { grep -qx -- "$1" "$dir/out"; }
hides() { ! grep -q -- "$1" "$dir/out"; }

tests ok
check "ci/test.sh shows each line as it comes" hides '^nobody saw'
check "ci/test.sh says what goes on when nothing is printed" shows '\.\.\. [0-9]* s, at work:.*'
check "ci/test.sh succeeds where cargo does" status_is 0
check "ci/test.sh hides what passing tests print" hides '^chatter'
check "ci/test.sh counts reasons for skipping" shows ' *1 skipped: no moon'
tests FAILED
check "ci/test.sh has the status of a cargo that fails" status_is 101
check "ci/test.sh shows what failing tests print" shows assertion
check "ci/test.sh hides the other tests' output also then" hides '^chatter'

say "$passed passed, $failed failed"
[ "$failed" = 0 ]
