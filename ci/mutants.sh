#!/usr/bin/env bash
# 100,000 changed files of each format: no reader panics, or takes more than 512 MB (crates/record/tests/mutants.rs).
#
#   ci/mutants.sh [NUMBER [FORMAT]]     for example: ci/mutants.sh 1000000 parquet
set -euo pipefail
# shellcheck source=ci/lib.sh
. "$(dirname "$0")/lib.sh"
need cargo 'cargo, or see https://rustup.rs'

cd "$root"
# Of the whole workspace, so that it is the build that ci/test.sh makes: an optimised one takes longer than it saves here.
# Readers allocate buffers for each file; memory that goes back to the system each time would be most of the work.
export MALLOC_MMAP_THRESHOLD_=1073741824 MALLOC_TRIM_THRESHOLD_=1073741824
ISOTHERM_MUTANTS=${1:-100000} cargo test --locked --workspace --test mutants -- ${2:+"$2"}
