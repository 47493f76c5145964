#!/usr/bin/env bash
# virtio-balloon: the driver without std, and both sides for undefined behaviour (Miri). About three minutes, of which
# building is half.
# Miri needs a nightly toolchain with the miri component.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}

if rustup target list --installed 2>/dev/null | grep -qx x86_64-unknown-none ||
	rustup target add x86_64-unknown-none >/dev/null 2>&1; then
	cargo build --locked -p isotherm-balloon --target x86_64-unknown-none
else
	printf 'skipped: build without std: no x86_64-unknown-none (rustup target add x86_64-unknown-none)\n'
fi

if ! cargo +nightly miri --version >/dev/null 2>&1; then
	printf 'skipped: Miri: no nightly toolchain with the miri component (rustup component add --toolchain nightly miri)\n'
	exit 0
fi
# Guest memory is never freed by the tests; virtio-drivers makes pointers of addresses.
CARGO_TARGET_DIR=$target/miri CARGO_INCREMENTAL=0 \
	MIRIFLAGS='-Zmiri-ignore-leaks -Zmiri-permissive-provenance' \
	cargo +nightly miri test --locked -p isotherm-balloon --lib --tests
