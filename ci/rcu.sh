#!/usr/bin/env bash
# RCU, the range tree and the address spaces on top of it: loom's models, Miri with both borrow models, ThreadSanitizer, and the builds for
# kernels. The comparisons with naive models and all other tests are ordinary ones, which `ci/test.sh` runs.
# `ci/rcu.sh [STEP...]`; without steps all. With CI=true it installs what rustup can; only what it cannot is skipped.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
export CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0
packages=(-p isotherm-rcu -p isotherm-maple -p isotherm-mm)
target=${CARGO_TARGET_DIR:-target}
failed=0

say() { printf '\n### %s\n' "$1"; }
skip() { printf 'skipped: %s\n' "$1"; }
must() { "$@" || failed=1; }

# nightly COMPONENT...: whether the nightly toolchain has them.
nightly() {
	local component missing=''
	for component in "$@"; do
		rustup +nightly component list 2>/dev/null | grep -Eq "^$component(-.*)? \(installed\)" || missing+=" $component"
	done
	[ -n "$missing" ] || return 0
	[ "${CI:-}" = true ] || return
	{
		rustup toolchain list | grep -q '^nightly' ||
			rustup toolchain install nightly --no-self-update --profile minimal
	} && rustup component add --toolchain nightly "$@"
}

bare() {
	local bare
	for bare in x86_64-unknown-none aarch64-unknown-none; do
		say "build for $bare"
		if ! rustup target add "$bare" >/dev/null 2>&1; then
			skip "rustup cannot add the target $bare"
			continue
		fi
		must cargo build --locked --quiet "${packages[@]}" --target "$bare"
	done
}

loom() {
	say "models under loom"
	# Optimised, as there are many runs, and with the assertions.
	RUSTFLAGS='--cfg loom' CARGO_TARGET_DIR="$target/loom" CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true \
		must cargo test --locked --release "${packages[@]}" --test loom
}

# All unsafe code of ours runs under both borrow models, and nothing may leak. crossbeam-epoch leaks what its threads leave
# behind at exit, on purpose, and its lists are not meant for Stacked Borrows: its tests run apart, under Tree Borrows and with
# leaks. What takes the same paths a thousand times is left to ordinary builds.
slow=(--skip callbacks_wait --skip a_tree_is --skip a_tree_that_is_built --skip a_store_spans --skip splits_at --skip gaps_join
	--skip a_store_without_memory)
miri() {
	if ! nightly miri rust-src; then
		say "Miri"
		skip "no nightly with Miri: rustup toolchain install nightly --component miri,rust-src"
		return
	fi
	local -x CARGO_TARGET_DIR=$target/miri PROPTEST_CASES=2
	# The range tree's tests do not end under it within minutes: its naive twin is checked too often for that.
	local packages=(-p isotherm-rcu)
	local isolation=-Zmiri-disable-isolation
	local epochs=(epochs)
	say "Miri: Tree Borrows"
	MIRIFLAGS="$isolation -Zmiri-tree-borrows" \
		must cargo +nightly miri test --locked "${packages[@]}" --tests -- "${slow[@]}" "${epochs[@]/#/--skip=}"
	say "Miri: Stacked Borrows"
	MIRIFLAGS=$isolation \
		must cargo +nightly miri test --locked "${packages[@]}" --tests -- "${slow[@]}" "${epochs[@]/#/--skip=}"
	say "Miri: address spaces"
	local flags
	for flags in "$isolation -Zmiri-tree-borrows" "$isolation"; do
		MIRIFLAGS=$flags must cargo +nightly miri test --locked -p isotherm-mm --test threads
	done
	say "Miri: crossbeam-epoch"
	MIRIFLAGS="$isolation -Zmiri-tree-borrows -Zmiri-ignore-leaks -Zmiri-permissive-provenance" \
		must cargo +nightly miri test --locked "${packages[@]}" --test threads -- "${epochs[@]}"
}

tsan() {
	say "ThreadSanitizer"
	local host=x86_64-unknown-linux-gnu
	if [ "$(uname -m)" != x86_64 ]; then
		skip "this machine is no x86-64"
		return
	fi
	if ! nightly rust-src; then
		skip "no nightly with the sources of std, which is built anew: rustup component add --toolchain nightly rust-src"
		return
	fi
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
	tsan) tsan ;;
	*)
		printf 'no such step: %s (bare, loom, tsan, miri)\n' "$step" >&2
		exit 2
		;;
	esac
done
exit "$failed"
