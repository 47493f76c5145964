#!/usr/bin/env bash
# The page tables where ordinary tests do not reach: loom's models, Miri with both borrow models, ThreadSanitizer, random
# operations for longer, arm64 in qemu-user, and the build for a kernel. `ci/pagetable.sh [STEP...]`.
# What takes minutes and finds what the rest found, arm64 and the second borrow model, runs only if named (ci/long.sh does).
set -uo pipefail
# shellcheck source=ci/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$root" || exit
export CARGO_TERM_COLOR=never
package=isotherm-pagetable
target=${CARGO_TARGET_DIR:-target}

bare() {
	heading "build for x86_64-unknown-none"
	bare_target x86_64-unknown-none || return
	must cargo build --quiet -p "$package" --target x86_64-unknown-none
}

loom() {
	heading "models under loom"
	RUSTFLAGS="--cfg loom -C debug-assertions" CARGO_TARGET_DIR="$target/loom" must cargo test --release -p "$package" --test loom
}

# What Miri executes: every `unsafe` block of the crate, under both borrow models.
#
# | unsafe | executed by |
# |---|---|
# | walks, with and without a lock, at 4 and 5 levels; locks; tables that come | all |
# | tables that go, retired while they are walked through | small: a_lookup_while_tables_come_and_go; threads |
# | the child's new tables, written without a lock; tables that a failure leaves | basics: lives; small: failures |
# | copies for write faults, of a page and of a folio; reuse | basics: lives, a_copy_without_memory |
# | the copy of a pinned page | basics: a_pinned_page; small: failures |
# | split; collapse by copying and in place | small: huge_leaves |
# | two locks at once (remap) | small: moves_between_tables |
# | all locks of a folio, which is split | split |
# | a child's tables, linked when they are whole, and locked | basics: lives; beside a walk, loom |
# | fold and unfold | contpte; basics: a_life_on_arm64 |
# | all of it by several threads | threads |
# | all of it in some order, compared with the naive model | random: short runs |
# | sequences of safe calls that are refused | sound |
# | the host machine's memory | all |
#
# Not executed: the prefetch instructions, which Miri does not know. Tests of thousands of entries are ignored there.
# Data races are the same in both models, so what is there for their sake runs in one.
interpreted=(--test basics --test small --test contpte --test sound)
once=(--test threads --test random --test split)

# interpret NAME FLAGS TEST...: the order of memory is loom's affair; here it would only take time.
interpret() {
	local flags="-Zmiri-disable-isolation -Zmiri-disable-weak-memory-emulation $2"
	heading "Miri: $1"
	shift 2
	MIRIFLAGS=$flags CARGO_TARGET_DIR="$target/miri" must cargo +nightly miri test -p "$package" "$@"
}

miri() {
	heading "Miri"
	nightly miri rust-src || return
	interpret "Stacked Borrows" "" "${interpreted[@]}" "${once[@]}"
}

trees() {
	heading "Miri"
	nightly miri rust-src || return
	interpret "Tree Borrows" "-Zmiri-tree-borrows" "${interpreted[@]}"
}

# ThreadSanitizer sees what Miri is too slow for: thousands of rounds of threads on the same tables.
tsan() {
	heading "ThreadSanitizer"
	local host=x86_64-unknown-linux-gnu
	if [ "$(uname -m)" != x86_64 ]; then
		skip "this machine is no x86-64"
		return
	fi
	# The sources of std, which is built anew.
	nightly rust-src || return
	RUSTFLAGS=-Zsanitizer=thread CARGO_TARGET_DIR="$target/tsan" \
		must cargo +nightly test -Zbuild-std --target "$host" -p "$package" --test threads --test small
}

# The naive model for longer than a test takes; of all formats in turn.
random() {
	heading "random operations"
	must cargo run --quiet --release -p "$package" --features host --example random -- --operations 400000
}

arm64() {
	heading "arm64 in qemu-user"
	local tool
	for tool in aarch64-linux-gnu-gcc qemu-aarch64; do
		if ! command -v "$tool" >/dev/null 2>&1; then
			skip "no $tool: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
			return
		fi
	done
	bare_target aarch64-unknown-linux-gnu || return
	# Emulated, the runs are fewer: what differs here is the order in which memory is seen, not the model.
	PROPTEST_CASES=6 PHASES=100 CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
		CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu" \
		must cargo test --release -p "$package" --target aarch64-unknown-linux-gnu --tests
}

if [ $# = 0 ]; then set -- bare loom random tsan miri; fi
for step in "$@"; do
	case $step in
	bare) bare ;;
	loom) loom ;;
	miri) miri ;;
	trees) trees ;;
	tsan) tsan ;;
	random) random ;;
	arm64) arm64 ;;
	*)
		printf 'no such step: %s (bare, loom, random, tsan, miri, trees, arm64)\n' "$step" >&2
		exit 2
		;;
	esac
done
exit "$failed"
