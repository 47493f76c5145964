#!/usr/bin/env bash
# The memory manager's crates where ordinary tests do not reach: builds for kernels, loom's models, random operations for longer,
# ThreadSanitizer, and Miri. One script for all crates, as a build serves all of them.
#
#   ci/memory.sh [STEP...]     without one: bare, loom, and Miri's: miri, frames, tables
#
# random, tsan, models, deep, trees, spaces and arm64 take minutes each and run only if named; ci/long.sh does. Each step ends with
# the processor time it took. With CI=true it installs what rustup can; only what it cannot is skipped.
set -uo pipefail
# shellcheck source=ci/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$root" || exit
export CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0
target=${CARGO_TARGET_DIR:-target}
modelled=(-p isotherm-page -p isotherm-frames -p isotherm-rcu -p isotherm-maple -p isotherm-mm -p isotherm-pagetable)

bare() {
	local bare
	for bare in x86_64-unknown-none aarch64-unknown-none; do
		heading "build for $bare"
		bare_target "$bare" || continue
		# Apart, or a build of something else would wait for this one, or this for that.
		CARGO_TARGET_DIR=$target/bare must cargo build --locked --quiet "${modelled[@]}" -p isotherm-balloon --target "$bare"
	done
	# Dev builds keep more on the stack than what is promised.
	heading "stack of optimised operations of the range tree"
	must cargo test --locked --release -p isotherm-maple --test stack
}

# Optimised, as there are many runs, and with the assertions. Optimising across crates takes longer than it saves.
loom() {
	heading "models under loom"
	RUSTFLAGS='--cfg loom' CARGO_TARGET_DIR=$target/loom CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true \
		CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_DEBUG=0 \
		must cargo test --locked --release "${modelled[@]}" --test loom
}

# The page tables' naive model for longer than a test takes; of all formats in turn.
random() {
	heading "random operations on page tables"
	must cargo run --locked --quiet --release -p isotherm-pagetable --features host --example random -- --operations 400000
}

# ThreadSanitizer sees what Miri is too slow for: thousands of rounds of threads on the same pages, zones, tables and trees. The
# balloon has no threads: what it shares with a device it shares with no other CPU.
tsan() {
	heading "ThreadSanitizer"
	local host=x86_64-unknown-linux-gnu
	if [ "$(uname -m)" != x86_64 ]; then
		skip "this machine is no x86-64"
		return
	fi
	# The sources of std, which is built anew.
	nightly rust-src || return
	# It knows no fences, so what needs them is left to loom: crossbeam's epochs are nothing but.
	RUSTFLAGS=-Zsanitizer=thread CARGO_TARGET_DIR=$target/tsan \
		must cargo +nightly test --locked -Zbuild-std --target "$host" -p isotherm-page -p isotherm-frames -p isotherm-rcu \
		-p isotherm-maple -p isotherm-mm -p isotherm-pagetable --test threads --test small --test stress -- --skip epochs
}

# interpret NAME FLAGS CARGO-TEST-ARGUMENT...: tests under Miri.
interpret() {
	local flags="-Zmiri-disable-isolation $2"
	heading "Miri: $1"
	shift 2
	MIRIFLAGS=$flags CARGO_TARGET_DIR=$target/miri must cargo +nightly miri test --locked "$@"
}

# What Miri executes of the page tables: every `unsafe` block of the crate.
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
# Not executed: the prefetch instructions, which Miri does not know. Tests of thousands of entries are ignored there. The order of
# memory is loom's affair; here it would only take time. Data races are the same in both borrow models.
tables=(-p isotherm-pagetable)
no_order=-Zmiri-disable-weak-memory-emulation
tree_borrows=-Zmiri-tree-borrows

# `unsafe` of all crates but the address spaces, which `spaces` runs; under the other borrow model by `models` and `trees`.
#
# Nothing may leak but what crossbeam-epoch leaves behind when its threads end, on purpose; its lists are not meant for Stacked
# Borrows either. Of the range tree `small` runs, which executes each `unsafe` block; the other tests take the same paths a
# thousand times, and compare with a naive twin at each. So do the allocator's model tests.
# The balloon's guest memory is never freed by the tests, and virtio-drivers makes pointers of addresses.
models_of() {
	interpret "pages ${1:-Stacked Borrows}" "$1" -p isotherm-page --lib --test handles --test split --test threads
	interpret "RCU ${1:-Stacked Borrows}" "$1" -p isotherm-rcu --tests -- --skip callbacks_wait --skip epochs
	interpret "range tree ${1:-Stacked Borrows}" "$1" -p isotherm-maple --test small
}

frames_of() {
	interpret "frames ${1:-Stacked Borrows}" "$1" -p isotherm-frames --lib --test zone --test stress
	interpret "balloon ${1:-Stacked Borrows}" "$1 -Zmiri-ignore-leaks -Zmiri-permissive-provenance" -p isotherm-balloon --lib --tests
}

models() {
	heading "Miri"
	nightly miri rust-src || return
	local -x PROPTEST_CASES=2
	models_of "$tree_borrows"
	frames_of "$tree_borrows"
}

miri() {
	heading "Miri"
	nightly miri rust-src || return
	local -x PROPTEST_CASES=2
	models_of ''
	interpret "crossbeam-epoch" "$tree_borrows -Zmiri-ignore-leaks -Zmiri-permissive-provenance" -p isotherm-rcu --test threads -- epochs
}

frames() {
	heading "Miri"
	nightly miri rust-src || return
	local -x PROPTEST_CASES=2
	frames_of ''
}

tables() {
	heading "Miri"
	nightly miri rust-src || return
	local -x PROPTEST_CASES=2
	interpret "page tables" "$no_order" "${tables[@]}" --test basics --test small --test sound
}

# Minutes.
deep() {
	heading "Miri"
	nightly miri rust-src || return
	interpret "page tables" "$no_order" "${tables[@]}" --test contpte --test threads --test random --test split
}

trees() {
	heading "Miri"
	nightly miri rust-src || return
	interpret "page tables $tree_borrows" "$no_order $tree_borrows" "${tables[@]}" --test basics --test small --test contpte --test sound
}

spaces() {
	heading "Miri"
	nightly miri rust-src || return
	local -x PROPTEST_CASES=2
	interpret "address spaces" "$tree_borrows" -p isotherm-mm --lib --test threads -- shared:: faults_
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
		must cargo test --release -p isotherm-pagetable --target aarch64-unknown-linux-gnu --tests
}

# spent: hundredths of a second that this script's children have used.
spent() {
	local stat
	stat=$(<"/proc/$$/stat")
	# shellcheck disable=SC2086  # fields, counted from the one behind the name
	set -- ${stat##*) }
	printf '%s' $((${14} + ${15}))
}

if [ $# = 0 ]; then set -- bare loom miri frames tables; fi
for step in "$@"; do
	before=$(spent)
	case $step in
	bare) bare ;;
	loom) loom ;;
	random) random ;;
	tsan) tsan ;;
	miri) miri ;;
	frames) frames ;;
	tables) tables ;;
	models) models ;;
	deep) deep ;;
	trees) trees ;;
	spaces) spaces ;;
	arm64) arm64 ;;
	*)
		printf 'no such step: %s (bare, loom, miri, frames, tables, random, tsan, models, deep, trees, spaces, arm64)\n' "$step" >&2
		exit 2
		;;
	esac
	printf '%s: %s s of processor time\n' "$step" $((($(spent) - before) / 100))
done
exit "$failed"
