#!/usr/bin/env bash
# Pages: references without a lock and the lock of a table in every interleaving (loom), all `unsafe` code for undefined
# behaviour under both borrow models (Miri), and the build for a kernel. About two minutes. Miri needs a nightly toolchain
# with the miri component.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}

printf 'loom: crates/page/tests/loom.rs\n'
RUSTFLAGS='--cfg loom -C debug-assertions' CARGO_TARGET_DIR=$target/loom CARGO_INCREMENTAL=0 \
	cargo test --locked --release -p isotherm-page --test loom

if rustup target list --installed 2>/dev/null | grep -qx x86_64-unknown-none ||
	rustup target add x86_64-unknown-none >/dev/null 2>&1; then
	cargo build --locked -p isotherm-page --target x86_64-unknown-none
else
	printf 'skipped: build without std: no x86_64-unknown-none (rustup target add x86_64-unknown-none)\n'
fi

if ! cargo +nightly miri --version >/dev/null 2>&1; then
	printf 'skipped: Miri: no nightly toolchain with the miri component (rustup component add --toolchain nightly miri)\n'
	exit 0
fi
for model in '' -Zmiri-tree-borrows; do
	CARGO_TARGET_DIR=$target/miri CARGO_INCREMENTAL=0 MIRIFLAGS="-Zmiri-disable-isolation $model" \
		cargo +nightly miri test --locked -p isotherm-page --lib --test handles
done
