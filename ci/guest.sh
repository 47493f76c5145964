#!/usr/bin/env bash
# Builds the bare-metal guest, tests it, boots it under QEMU, has its processors walk page tables, and watches from
# outside what it gives back: on microvm with private memory and 4 levels, on q35 with a memfd and 5. Then the same page
# tables and user programs on arm64. Ends with the overcommit experiment in small.
#
#   ci/guest.sh [--quick|--arm64]     --quick: fewer rounds, no overcommit; --arm64: nothing but arm64
set -euo pipefail
# shellcheck source=ci/lib.sh
. "$(dirname "$0")/lib.sh"
need cargo 'cargo, or see https://rustup.rs'
need qemu-system-aarch64 qemu-system-arm

rounds=1000 overcommit=yes x86_64=yes
case ${1:-} in
'') ;;
--quick) rounds=100 overcommit=no ;;
--arm64) overcommit=no x86_64=no ;;
*) die "unknown option $1; there are --quick and --arm64" ;;
esac
[ "$x86_64" = no ] || need qemu-system-x86_64 qemu-system-x86

cd "$root"
# checked TARGET: whether the guest can be built for it; then it is looked at.
checked() {
	bare_target "$1" || return
	# Where a condition calls this, nothing else would end the script.
	cargo clippy --manifest-path guest/Cargo.toml --target-dir target/guest-program --release --target "$1" -- \
		-D warnings || die "clippy has complaints about the guest for $1"
}

# The guest is a workspace of its own, so that what looks at the other crates does not see it.
cargo fmt --manifest-path guest/Cargo.toml --check
cargo test --manifest-path guest/Cargo.toml --target-dir target/guest-program --lib

if [ "$x86_64" = yes ] && checked x86_64-unknown-none; then
	guest=$(cargo xtask guest --build)
	export ISOTHERM_GUEST=$guest

	say '== the guest from outside'
	# One at a time: each is two processors.
	cargo test --locked -p isotherm-qemu -p xtask -- --include-ignored --test-threads 1 --skip arm64
	cargo test --locked -p isotherm --test overcommit -- --include-ignored

	say '== microvm, private memory'
	cargo xtask guest --guest "$guest" --rounds "$rounds"
	say '== q35, memfd, 5 levels'
	cargo xtask guest --guest "$guest" --machine q35 --backing memfd --five-levels --rounds 50
fi

if checked aarch64-unknown-none; then
	say '== arm64, virt'
	ISOTHERM_GUEST_ARM64=$(cargo xtask guest --machine virt --build)
	export ISOTHERM_GUEST_ARM64
	cargo test --locked -p isotherm-qemu --test paging --test processes -- --include-ignored --test-threads 1 arm64
fi

if [ "$overcommit" = yes ]; then
	say '== overcommit'
	cargo run --locked --quiet -p isotherm -- lab overcommit --scale 20 --only fit --guests 5
fi
