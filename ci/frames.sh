#!/usr/bin/env bash
# The allocator's protocols between CPUs: in every interleaving (loom), and for undefined behaviour and data races (Miri).
# About two minutes. Miri needs a nightly toolchain with the miri component.
set -euo pipefail
# shellcheck source=ci/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$root"
target=${CARGO_TARGET_DIR:-target}

printf 'loom: crates/frames/tests/loom.rs\n'
RUSTFLAGS='--cfg loom -C debug-assertions' CARGO_TARGET_DIR=$target/loom CARGO_INCREMENTAL=0 \
	cargo test --locked --release -p isotherm-frames --test loom

nightly miri rust-src || exit 0
# The model test is left to ordinary builds: it takes the same paths, a thousand times.
CARGO_TARGET_DIR=$target/miri CARGO_INCREMENTAL=0 MIRIFLAGS=-Zmiri-disable-isolation \
	cargo +nightly miri test --locked -p isotherm-frames --lib --test zone --test stress
