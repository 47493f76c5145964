#!/usr/bin/env bash
# Makes the pictures of the book: records programs with known access patterns and draws them. As root, about two minutes.
#
#   docs/pictures.sh [ISOTHERM] [DIRECTORY]     default: target/release/isotherm, docs/pictures
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
isotherm=$(realpath "${1:-$here/../target/release/isotherm}")
out=${2:-$here/pictures}
mkdir -p "$out"
out=$(realpath "$out")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"

# recorded NAME [OPTION...] -- PATTERN [ARGUMENT...]: records the workload as NAME.rec.
recorded() {
	local name=$1 options=()
	shift
	while [ "$1" != -- ]; do
		options+=("$1")
		shift
	done
	shift
	printf '%s\n' "$name"
	"$isotherm" record -q --backend pte -o "$name.rec" "${options[@]}" -- "$isotherm" workload "$@" --truth truth.jsonl
}
size=(--width 1000 --height 300)

recorded heat -- hotspot --set total=256M --set spot=16M --set offset=32M --set step=80M --set spots=3 --set phase=4s
"$isotherm" report heatmap -i heat.rec "${size[@]}" --title 'A hot spot of 16 MiB in 256 MiB that moves twice' -o "$out/heat.png"
"$isotherm" report regions -i heat.rec "${size[@]}" --title 'The same: number of regions' -o "$out/regions.png"

recorded rates -- rates --set phase=8s
"$isotherm" report heatmap -i rates.rec "${size[@]}" --max-areas 1 --title 'Six areas at 200, 50, 20, 10, 1 and 0 Hz, then the other way round' \
	-o "$out/rates.png"

recorded unknown --overhead 0.3% -- hotspot --set total=1G --set spot=64M --set offset=256M --set phase=15s
"$isotherm" report heatmap -i unknown.rec "${size[@]}" --max-areas 1 --area mmap \
	--title '64 MiB in use of 1 GiB, at a third of the budget' -o "$out/unknown.png"

recorded wss -- stairs --set size=8M --set steps=6 --set phase=4s
"$isotherm" report wss -i wss.rec "${size[@]}" --title 'Working set of a program with six steps' -o "$out/wss.png"
