#!/usr/bin/env bash
# RCU, the range tree and the address spaces on top of it: loom's models, Miri with both borrow models, ThreadSanitizer, and the builds for
# kernels. The comparisons with naive models and all other tests are ordinary ones, which `ci/test.sh` runs.
# `ci/rcu.sh [STEP...]`; without steps all but `spaces`, which ci/long.sh runs. With CI=true it installs what rustup can; only what it cannot is skipped.
set -uo pipefail
# shellcheck source=ci/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$root" || exit
export CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0
packages=(-p isotherm-rcu -p isotherm-maple -p isotherm-mm)
target=${CARGO_TARGET_DIR:-target}

bare() {
	local bare
	for bare in x86_64-unknown-none aarch64-unknown-none; do
		heading "build for $bare"
		bare_target "$bare" || continue
		must cargo build --locked --quiet "${packages[@]}" --target "$bare"
	done
	# Dev builds keep more on the stack than what is promised.
	heading "stack of optimised operations of the range tree"
	must cargo test --locked --release -p isotherm-maple --test stack
}

loom() {
	heading "models under loom"
	# Optimised, as there are many runs, and with the assertions.
	RUSTFLAGS='--cfg loom' CARGO_TARGET_DIR="$target/loom" CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true \
		must cargo test --locked --release "${packages[@]}" --test loom
}

# All unsafe code of ours runs under both borrow models, and nothing may leak. crossbeam-epoch leaks what its threads leave
# behind at exit, on purpose, and its lists are not meant for Stacked Borrows: its tests run apart, under Tree Borrows and with
# leaks. Of the range tree `small` runs, which executes each `unsafe` block; the other tests take the same paths a thousand
# times, and compare with a naive twin at each.
miri() {
	heading "Miri"
	nightly miri rust-src || return
	local -x CARGO_TARGET_DIR=$target/miri PROPTEST_CASES=2
	local isolation=-Zmiri-disable-isolation model
	for model in -Zmiri-tree-borrows ''; do
		heading "Miri: ${model:-Stacked Borrows}"
		MIRIFLAGS="$isolation $model" must cargo +nightly miri test --locked -p isotherm-rcu --tests -- \
			--skip callbacks_wait --skip epochs
		MIRIFLAGS="$isolation $model" must cargo +nightly miri test --locked -p isotherm-maple --test small
	done
	heading "Miri: crossbeam-epoch"
	MIRIFLAGS="$isolation -Zmiri-tree-borrows -Zmiri-ignore-leaks -Zmiri-permissive-provenance" \
		must cargo +nightly miri test --locked -p isotherm-rcu --test threads -- epochs
}

# Minutes.
spaces() {
	heading "Miri: address spaces"
	nightly miri rust-src || return
	MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-tree-borrows" CARGO_TARGET_DIR=$target/miri PROPTEST_CASES=2 \
		must cargo +nightly miri test --locked -p isotherm-mm --lib --test threads -- shared:: faults_
}

tsan() {
	heading "ThreadSanitizer"
	local host=x86_64-unknown-linux-gnu
	if [ "$(uname -m)" != x86_64 ]; then
		skip "this machine is no x86-64"
		return
	fi
	nightly rust-src || return
	# ThreadSanitizer knows no fences, so what needs them is left to loom: crossbeam's epochs are nothing but.
	RUSTFLAGS=-Zsanitizer=thread CARGO_TARGET_DIR="$target/tsan" \
		must cargo +nightly test --locked -Zbuild-std --target "$host" "${packages[@]}" --test threads -- --skip epochs
}

if [ $# = 0 ]; then set -- bare loom tsan miri; fi
for step in "$@"; do
	case $step in
	bare) bare ;;
	loom) loom ;;
	miri) miri ;;
	spaces) spaces ;;
	tsan) tsan ;;
	*)
		printf 'no such step: %s (bare, loom, tsan, miri, spaces)\n' "$step" >&2
		exit 2
		;;
	esac
done
exit "$failed"
