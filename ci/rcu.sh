#!/usr/bin/env bash
# RCU and the range tree on top of it where ordinary tests do not reach: loom's models, Miri with both borrow models,
# ThreadSanitizer, and the builds for kernels. `ci/rcu.sh [STEP...]`; without steps all.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
export CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0
packages=(-p isotherm-rcu -p isotherm-maple)
target=${CARGO_TARGET_DIR:-target}
failed=0

say() { printf '\n### %s\n' "$1"; }
skip() { printf 'skipped: %s\n' "$1"; }
must() { "$@" || failed=1; }

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
	RUSTFLAGS='--cfg loom' CARGO_TARGET_DIR="$target/loom" \
		must cargo test --locked --release "${packages[@]}" --test loom
}

# All unsafe code of ours runs under both borrow models. crossbeam-epoch leaks what its threads leave behind at exit, on purpose, and
# its lists are not meant for Stacked Borrows, so its test runs under Tree Borrows alone. What takes the
# same paths a thousand times is left to ordinary builds.
slow=(--skip callbacks_wait --skip a_tree_is --skip a_tree_that_is_built --skip a_store_spans --skip splits_at --skip gaps_join
	--skip a_store_without_memory)
miri() {
	if ! cargo +nightly miri --version >/dev/null 2>&1; then
		say "Miri"
		skip "no nightly with Miri: rustup toolchain install nightly --component miri,rust-src"
		return
	fi
	export CARGO_TARGET_DIR="$target/miri" PROPTEST_CASES=2
	say "Miri: Tree Borrows"
	MIRIFLAGS='-Zmiri-disable-isolation -Zmiri-tree-borrows -Zmiri-ignore-leaks -Zmiri-permissive-provenance' \
		must cargo +nightly miri test --locked "${packages[@]}" --tests -- "${slow[@]}"
	say "Miri: Stacked Borrows"
	MIRIFLAGS=-Zmiri-disable-isolation \
		must cargo +nightly miri test --locked "${packages[@]}" --tests -- "${slow[@]}" --skip epochs --skip waiting_for_oneself
}

tsan() {
	say "ThreadSanitizer"
	local host=x86_64-unknown-linux-gnu
	if [ "$(uname -m)" != x86_64 ]; then
		skip "this machine is no x86-64"
		return
	fi
	if ! rustup +nightly component list 2>/dev/null | grep -q '^rust-src (installed)'; then
		skip "no nightly with the sources of std, which is built anew: rustup component add --toolchain nightly rust-src"
		return
	fi
	# ThreadSanitizer knows no fences, so what needs them is left to loom: crossbeam's epochs are nothing but.
	RUSTFLAGS=-Zsanitizer=thread CARGO_TARGET_DIR="$target/tsan" \
		must cargo +nightly test -Zbuild-std --target "$host" "${packages[@]}" --test threads -- --skip epochs
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
