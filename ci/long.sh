#!/usr/bin/env bash
# What takes longer than CI has: run before an issue is called resolved. As root; on two CPUs two hours or so.
#
#   ci/long.sh [STEP...]     STEP: random, tsan, models, deep, trees, spaces, arm64, stress, guests, bars; without one all
set -uo pipefail
# shellcheck source=ci/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$root" || exit

if [ $# = 0 ]; then set -- random tsan models deep trees spaces arm64 stress guests bars; fi
for step in "$@"; do
	case $step in
	# The page tables' naive model for longer; ThreadSanitizer; under Miri what CI has no time for of the page tables, second borrow
	# models, and address spaces; page tables on arm64's memory order (qemu-user).
	random | tsan | models | deep | trees | spaces | arm64) must ci/memory.sh "$step" ;;
	# Threads in one address space against naive models, on pages of their own and on the same pages, for half an hour each or
	# ISOTHERM_STRESS_MINUTES.
	stress) must cargo test --locked --release -p isotherm-mm --test stress --test serial -- --ignored --nocapture ;;
	# Each test on each of Debian's kernels, with 4 and with 5 levels of page tables.
	guests) must ci/qemu-tests.sh --all ;;
	# What the live screen costs, whether comparisons know noise, and a day's page in a browser: figures for people to judge, and
	# a failure where a script has a bar of its own. The machine should have nothing else to do.
	bars)
		must cargo build --locked --release -p isotherm
		must ci/top-cost.sh
		must ci/diff-noise.sh
		must ci/html-day.sh
		;;
	*)
		printf 'no such step: %s (random, tsan, models, deep, trees, spaces, arm64, stress, guests, bars)\n' "$step" >&2
		exit 2
		;;
	esac
done
exit "$failed"
