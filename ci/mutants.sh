#!/usr/bin/env bash
# 100,000 changed files of each format: no reader panics, or takes more than 512 MB (crates/record/tests/mutants.rs).
#
#   ci/mutants.sh [NUMBER [FORMAT]]     for example: ci/mutants.sh 1000000 parquet
set -euo pipefail
# shellcheck source=ci/lib.sh
. "$(dirname "$0")/lib.sh"
need cargo 'cargo, or see https://rustup.rs'

cd "$root"
ISOTHERM_MUTANTS=${1:-100000} cargo test --locked --release -p isotherm-record --test mutants -- ${2:+"$2"}
