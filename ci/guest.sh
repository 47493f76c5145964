#!/usr/bin/env bash
# Builds the bare-metal guest, tests it, boots it under QEMU, has its processors walk page tables, and watches from
# outside what it gives back: on microvm with private memory and 4 levels, on q35 with a memfd and 5. Ends with the
# overcommit experiment in small.
#
#   ci/guest.sh [--quick]     --quick: fewer rounds, no overcommit
set -euo pipefail
# shellcheck source=ci/lib.sh
. "$(dirname "$0")/lib.sh"
need cargo 'cargo, or see https://rustup.rs'
need qemu-system-x86_64 qemu-system-x86

rounds=1000 overcommit=yes
case ${1:-} in
'') ;;
--quick) rounds=100 overcommit=no ;;
*) die "unknown option $1; the only one is --quick" ;;
esac

cd "$root"
target=x86_64-unknown-none
if ! rustc --print target-libdir --target "$target" >/dev/null 2>&1 ||
	[ ! -d "$(rustc --print target-libdir --target "$target")" ]; then
	if ! command -v rustup >/dev/null 2>&1 || ! rustup target add "$target"; then
		say "skipped: the libraries for $target are not here and rustup could not add them"
		exit 0
	fi
fi

# The guest is a workspace of its own, so that what looks at the other crates does not see it.
cargo fmt --manifest-path guest/Cargo.toml --check
cargo clippy --manifest-path guest/Cargo.toml --target-dir target/guest-program --release --target "$target" -- -D warnings
cargo test --manifest-path guest/Cargo.toml --target-dir target/guest-program --lib
guest=$(cargo xtask guest --build)
export ISOTHERM_GUEST=$guest

say '== the guest from outside'
# One at a time: each is two processors.
cargo test --locked -p isotherm-qemu -p xtask -- --include-ignored --test-threads 1
cargo test --locked -p isotherm --test overcommit -- --include-ignored

say '== microvm, private memory'
cargo xtask guest --guest "$guest" --rounds "$rounds"
say '== q35, memfd, 5 levels'
cargo xtask guest --guest "$guest" --machine q35 --backing memfd --five-levels --rounds 50
if [ "$overcommit" = yes ]; then
	say '== overcommit'
	cargo run --locked --quiet -p isotherm -- lab overcommit --scale 20 --only fit --guests 5
fi
