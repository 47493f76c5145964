#!/usr/bin/env bash
# Builds isotherm for a guest that has no shared libraries, and prints its path.
set -euo pipefail
# shellcheck source=ci/lib.sh
. "$(dirname "$0")/lib.sh"

triple=x86_64-unknown-linux-gnu
# A target directory of its own: other RUSTFLAGS would have the main one built anew each time. With a
# triple named, the flags do not reach build scripts and procedural macros, which cannot be static.
cd "$root"
RUSTFLAGS='-C target-feature=+crt-static' \
	cargo build --quiet --locked --release --target "$triple" --target-dir target/guest -p isotherm >&2
printf '%s\n' "$root/target/guest/$triple/release/isotherm"
