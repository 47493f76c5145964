#!/usr/bin/env bash
# Pages: references without a lock and the lock of a table in every interleaving (loom), all `unsafe` code for undefined
# behaviour under both borrow models (Miri), and the build for a kernel. About two minutes. Miri needs a nightly toolchain
# with the miri component.
set -euo pipefail
# shellcheck source=ci/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$root"
target=${CARGO_TARGET_DIR:-target}

printf 'loom: crates/page/tests/loom.rs\n'
RUSTFLAGS='--cfg loom -C debug-assertions' CARGO_TARGET_DIR=$target/loom CARGO_INCREMENTAL=0 \
	cargo test --locked --release -p isotherm-page --test loom

if bare_target x86_64-unknown-none; then
	cargo build --locked -p isotherm-page --target x86_64-unknown-none
fi

nightly miri rust-src || exit 0
for model in '' -Zmiri-tree-borrows; do
	CARGO_TARGET_DIR=$target/miri CARGO_INCREMENTAL=0 MIRIFLAGS="-Zmiri-disable-isolation $model" \
		cargo +nightly miri test --locked -p isotherm-page --lib --test handles --test split
done
