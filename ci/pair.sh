#!/usr/bin/env bash
# Page tables of this tree beside those of another revision: both built in the same way, run in turns on one CPU, and every
# operation compared. Exit status 1 if one is slower here than there by more than 2 %.
#
#   ci/pair.sh REV [ROUNDS]      times, on a quiet machine: 30 rounds by default, half a minute
#   ci/pair.sh --count REV       instructions, by valgrind: repeatable on a busy machine, though they are no times
#
# A ratio is what this tree takes divided by what REV takes: the median of all pairs of processes, and the interval that the true
# median is in with 95 % confidence. In each round either side does all operations four times, and its least times count; who
# is first changes from round to round. `slower` is marked what is above 1.02 with the whole interval. REV is e8f2fa0 or later.
#
# Loops begin with a cache line in both: one that happens to lie across two is slower by up to a sixth, and any change elsewhere
# moves it. Each side is started anew every 2 rounds, with its memory elsewhere: what two processes did is one pair.
set -euo pipefail
# shellcheck source=ci/lib.sh
. "$(dirname "$0")/lib.sh"
need python3 python3
how='times'
if [ "${1:-}" = --count ]; then
	how=count
	shift
	need valgrind valgrind
fi
[ $# -ge 1 ] || {
	sed -n '2,/^set/{s/^# \{0,1\}//;/^set/!p}' "$0"
	exit 2
}
cd "$root"
rev=$(git rev-parse --verify --quiet "$1^{commit}") || die "no such revision: $1"
work=$(realpath -m "${CARGO_TARGET_DIR:-target}")/pair
mkdir -p "$work"

# program NAME TREE: builds what is timed against the page tables of a tree.
program() {
	local api=now
	[ -d "$2/crates/page" ] || api=e8f2fa0
	mkdir -p "$work/$1/src"
	cp "ci/pair/$api.rs" "$work/$1/src/main.rs"
	cp ci/pair/operations.rs "$work/$1/src/"
	cp "$2/Cargo.lock" "$work/$1/"
	cat >"$work/$1/Cargo.toml" <<-TOML
		[package]
		name = "pair-$1"
		edition = "2024"
		[workspace]
		[dependencies]
		isotherm-pagetable = { path = "$2/crates/pagetable", features = ["host"] }
		[profile.release]
		codegen-units = 1
	TOML
	RUSTFLAGS='-C llvm-args=-align-loops=64' CARGO_TARGET_DIR="$work/target" CARGO_INCREMENTAL=0 \
		cargo build --quiet --release --manifest-path "$work/$1/Cargo.toml"
}

there=$work/tree-$rev
if [ ! -d "$there" ]; then
	mkdir -p "$there.new"
	git archive "$rev" | tar -x -C "$there.new"
	mv "$there.new" "$there"
fi
program there "$there"
program here "$root"
exec python3 ci/pair/compare.py "$how" "$work/target/release/pair-there" "$work/target/release/pair-here" "${2:-30}"
