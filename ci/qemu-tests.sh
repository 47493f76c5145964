#!/usr/bin/env bash
# Runs the guest tests on the kernels Isotherm promises to work on: Debian 12's (6.1, no DAMON) and
# Debian 13's (6.12, DAMON), stock, with 4 and 5 levels of page tables, and sid's, the newest that Debian
# has. Prints what each guest said. If sid's packages cannot be had, its guests are skipped.
#
#   ci/qemu-tests.sh [--only SUITE] [--all]
#
# SUITE is bookworm, trixie or sid. Each test runs on the kernels on which it says most; with --all on each, and Debian 12's and
# 13's with both 4 and 5 levels. So the page-table walk and the fork lab run on the oldest and the newest, whose folios and fields
# differ most; DAMON's files on 13's, where they are of a release; folios without root where kernels have large ones.
set -uo pipefail
# shellcheck source=ci/lib.sh
. "$(dirname "$0")/lib.sh"

only='' all=''
while [ $# -gt 0 ]; do
	case $1 in
	--only)
		[ $# -gt 1 ] || die "--only takes a suite"
		only=$2
		shift
		;;
	--all) all=yes ;;
	*) die "unknown option $1; there are --only SUITE and --all" ;;
	esac
	shift
done
case $only in
'' | bookworm | trixie | sid) ;;
*) die "no guests are booted with '$only'; there are bookworm, trixie and sid" ;;
esac
wanted() { [ -z "$only" ] || [ "$only" = "$1" ]; }

isotherm=$("$root/ci/guest-binary.sh") || die "no static isotherm, so there is nothing to test"
log=$root/target/guest/log
rm -rf "$log"
mkdir -p "$log"
passed=0
failed=0

# died LOG: the guest's kernel did, whatever it ran.
died() { grep -qa 'Kernel panic' "$1/console"; }

# guest NAME OPTION... SUITE TEST [ARG...]: one boot.
guest() {
	local name=$1 status=0 from=$SECONDS boots=1
	shift
	local of=$log/${name// /-}
	say "== $name"
	"$root/ci/qemu.sh" --isotherm "$isotherm" --log "$of" "$@" || status=$?
	# Emulated processors now and then trip over a kernel that changes its own code, as it does while it boots and each time a
	# static key turns. A death that comes again and again is no accident.
	while [ "$status" = 125 ] && died "$of" && [ "$boots" -lt 3 ]; do
		say "== $name: the kernel died; once more"
		boots=$((boots + 1)) status=0
		"$root/ci/qemu.sh" --isotherm "$isotherm" --log "$of" "$@" || status=$?
	done
	if [ "$status" = 0 ]; then
		passed=$((passed + 1))
		say "== $name: passed, $((SECONDS - from)) s"
	else
		failed=$((failed + 1))
		say "== $name: FAILED with status $status, $((SECONDS - from)) s"
		# Whoever reads no more than what failed sees why.
		grep -aE 'Kernel panic|BUG:|Oops|RIP:|Out of memory|soft lockup|rcu.*stall' "$of/console" | head -n 6 |
			sed "s/^/FAILED $name, console: /"
		tail -n 4 "$of/output" | sed "s/^/FAILED $name, output: /"
	fi
}

if wanted bookworm; then
	guest "6.1 5 levels smoke" bookworm smoke.sh 6.1 5 no
	[ -z "$all" ] || guest "6.1 4 levels smoke" --cpu max,la57=off bookworm smoke.sh 6.1 4 no
	guest "6.1 5 levels pte" bookworm hot-bytes.sh pte
	[ -z "$all" ] || guest "6.1 4 levels pte" --cpu max,la57=off bookworm hot-bytes.sh pte
	[ -z "$all" ] || guest "6.1 unprivileged" bookworm unprivileged.sh remap
	guest "6.1 fork" bookworm lab-fork.sh no
fi
if wanted trixie; then
	[ -z "$all" ] || guest "6.12 5 levels smoke" trixie smoke.sh 6.12 5 yes
	guest "6.12 4 levels smoke" --cpu max,la57=off trixie smoke.sh 6.12 4 yes
	[ -z "$all" ] || guest "6.12 5 levels pte" trixie hot-bytes.sh pte
	[ -z "$all" ] || guest "6.12 4 levels pte" --cpu max,la57=off trixie hot-bytes.sh pte
	guest "6.12 5 levels kernel" --append pti=on trixie hot-bytes.sh kernel
	guest "6.12 unprivileged" trixie unprivileged.sh remap mthp
	[ -z "$all" ] || guest "6.12 fork" trixie lab-fork.sh yes
	guest "6.12 schemes" trixie schemes.sh
	guest "6.12 schemes by kinds of memory" --nodes 2 trixie schemes-kinds.sh
fi
if wanted sid; then
	# Fetched apart from booting it: what cannot be had is skipped, a kernel that does not boot is a failure.
	status=0
	sid=$("$root/ci/kernel.sh" sid 2>"$log/kernel") || status=$?
	case $status in
	0)
		# It moves on; what was fetched says which it is by now.
		release=$(sed -n 's/^linux-\(image\|binary\)-\([0-9]*\.[0-9]*\)\..*/\2/p' "$sid/packages")
		guest "sid smoke" sid smoke.sh "${release:-unknown}." 5 yes
		guest "sid pte" sid hot-bytes.sh pte
		[ -z "$all" ] || guest "sid kernel" --append pti=on sid hot-bytes.sh kernel
		guest "sid unprivileged" sid unprivileged.sh remap mthp
		guest "sid fork" sid lab-fork.sh yes
		;;
	69) say "skipped: sid, all of its guests: $(tail -n 1 "$log/kernel")" ;;
	*)
		cat "$log/kernel"
		say "== sid: FAILED: its kernel was fetched and cannot be used"
		failed=$((failed + 1))
		;;
	esac
fi

say "The same pattern on every kernel:"
sed -n 's/^hot bytes: /  /p' "$log"/*/output
say "guests: $passed passed, $failed failed"
[ "$failed" = 0 ]
