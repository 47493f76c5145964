#!/usr/bin/env bash
# Runs the guest tests on the kernels Isotherm promises to work on: Debian 12's (6.1, no DAMON) and
# Debian 13's (6.12, DAMON), stock, with 4 and 5 levels of page tables. Prints what each guest said.
#
#   ci/qemu-tests.sh [sid]     also on sid's kernel
set -uo pipefail
# shellcheck source=ci/lib.sh
. "$(dirname "$0")/lib.sh"

isotherm=$("$root/ci/guest-binary.sh") || die "no static isotherm, so there is nothing to test"
rm -rf "$root/target/guest/log"
passed=0
failed=0

# guest NAME OPTION... SUITE TEST [ARG...]: one boot.
guest() {
	local name=$1 status=0 from=$SECONDS
	shift
	say "== $name"
	"$root/ci/qemu.sh" --isotherm "$isotherm" --log "$root/target/guest/log/${name// /-}" "$@" || status=$?
	if [ "$status" = 0 ]; then
		passed=$((passed + 1))
		say "== $name: passed, $((SECONDS - from)) s"
	else
		failed=$((failed + 1))
		say "== $name: FAILED with status $status, $((SECONDS - from)) s"
	fi
}

guest "6.1 5 levels smoke" bookworm smoke.sh 6.1 5 no
guest "6.1 4 levels smoke" --cpu max,la57=off bookworm smoke.sh 6.1 4 no
guest "6.12 5 levels smoke" trixie smoke.sh 6.12 5 yes
guest "6.12 4 levels smoke" --cpu max,la57=off trixie smoke.sh 6.12 4 yes
guest "6.1 5 levels pte" bookworm hot-bytes.sh pte
guest "6.1 4 levels pte" --cpu max,la57=off bookworm hot-bytes.sh pte
guest "6.12 5 levels pte" trixie hot-bytes.sh pte
guest "6.12 4 levels pte" --cpu max,la57=off trixie hot-bytes.sh pte
guest "6.12 5 levels kernel" --append pti=on trixie hot-bytes.sh kernel
guest "6.1 fork" bookworm lab-fork.sh no
guest "6.12 fork" trixie lab-fork.sh yes
if [ "${1:-}" = sid ]; then
	guest "sid smoke" sid smoke.sh 7. 5 yes
	guest "sid pte" sid hot-bytes.sh pte
	guest "sid kernel" --append pti=on sid hot-bytes.sh kernel
	guest "sid fork" sid lab-fork.sh yes
fi

say "The same pattern on every kernel:"
sed -n 's/^hot bytes: /  /p' "$root"/target/guest/log/*/output
say "guests: $passed passed, $failed failed"
[ "$failed" = 0 ]
