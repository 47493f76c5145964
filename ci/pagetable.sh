#!/usr/bin/env bash
# The page tables where ordinary tests do not reach: loom's models, Miri with both borrow models, arm64 in qemu-user,
# and the build for a kernel. `ci/pagetable.sh [STEP...]`; without steps all. Takes less than four minutes.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
export CARGO_TERM_COLOR=never
package=isotherm-pagetable
target=${CARGO_TARGET_DIR:-target}
failed=0

say() { printf '\n### %s\n' "$1"; }
skip() { printf 'skipped: %s\n' "$1"; }
must() { "$@" || failed=1; }

bare() {
	say "build for x86_64-unknown-none"
	if ! rustup target add x86_64-unknown-none >/dev/null 2>&1; then
		skip "rustup cannot add the target x86_64-unknown-none"
		return
	fi
	must cargo build --quiet -p "$package" --target x86_64-unknown-none
}

loom() {
	say "models under loom"
	RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="$target/loom" must cargo test --release -p "$package" --test loom
}

# interpret NAME FLAGS TEST...: a table has 512 entries, so each of these tests takes half a minute or more.
interpret() {
	local name=$1 flags=$2
	shift 2
	say "Miri: $name"
	# The order of memory is loom's affair; here it would only take time.
	MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-disable-weak-memory-emulation $flags" CARGO_TARGET_DIR="$target/miri" \
		must cargo +nightly miri test -p "$package" --test basics -- "$@"
}

miri() {
	if ! cargo +nightly miri --version >/dev/null 2>&1; then
		say "Miri"
		skip "no nightly with Miri: rustup toolchain install nightly --component miri,rust-src"
		return
	fi
	interpret "Stacked Borrows" "" a_life_on_arm64
	interpret "Tree Borrows" "-Zmiri-tree-borrows" a_copy
}

arm64() {
	say "arm64 in qemu-user"
	local tool
	for tool in aarch64-linux-gnu-gcc qemu-aarch64; do
		if ! command -v "$tool" >/dev/null 2>&1; then
			skip "no $tool: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
			return
		fi
	done
	if ! rustup target add aarch64-unknown-linux-gnu >/dev/null 2>&1; then
		skip "rustup cannot add the target aarch64-unknown-linux-gnu"
		return
	fi
	# Emulated, the random runs are fewer: what differs here is the order in which memory is seen, not the model.
	PROPTEST_CASES=6 CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
		CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu" \
		must cargo test --release -p "$package" --target aarch64-unknown-linux-gnu --tests
}

if [ $# = 0 ]; then set -- bare loom miri arm64; fi
for step in "$@"; do
	case $step in
	bare) bare ;;
	loom) loom ;;
	miri) miri ;;
	arm64) arm64 ;;
	*)
		printf 'no such step: %s (bare, loom, miri, arm64)\n' "$step" >&2
		exit 2
		;;
	esac
done
exit "$failed"
