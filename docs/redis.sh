#!/usr/bin/env bash
# Records a redis-server under redis-benchmark for a minute as redis.rec and draws redis-heatmap.png and
# redis-wss.png, the pictures of the README. As root on Debian: apt-get install redis-server redis-tools.
#
#   docs/redis.sh [ISOTHERM] [DIRECTORY]     default: target/release/isotherm, the current directory
#
# OVERHEAD=5% in the environment raises the ceiling, PORT=N takes another port. The server is one of its own, on
# the loopback interface, and is ended afterwards.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
isotherm=${1:-$here/../target/release/isotherm}
out=${2:-.}
port=${PORT:-7391}
scratch=$(mktemp -d)

redis-server --port "$port" --bind 127.0.0.1 --save '' --dir "$scratch" >"$scratch/log" &
server=$!
trap 'kill $server; wait $server || true; rm -rf "$scratch"' EXIT
until redis-cli -p "$port" ping >"$scratch/pong" 2>&1; do sleep 0.2; done

"$isotherm" record -o "$out/redis.rec" --pid "$server" --duration 60s --overhead "${OVERHEAD:-1%}" &
recording=$!
from=$SECONDS
at() { printf '%2d s  %s\n' $((SECONDS - from)) "$*"; }

# get KEYS SECONDS: GETs of random keys below KEYS.
get() {
	timeout "$2" redis-benchmark -p "$port" -c 4 -P 64 -q -n 2000000000 -t get -r "$1" >"$scratch/bench" || true
}

sleep 3
at 'fill 200 000 keys in order, 400 bytes each'
awk 'BEGIN { v = sprintf("%400s", ""); gsub(" ", "x", v)
	for (i = 0; i < 200000; i++) printf "SET key:%012d %s\r\n", i, v }' |
	redis-cli -p "$port" --pipe >"$scratch/fill"
sleep 5
at 'GET the first tenth of the keys'
get 20000 15
at 'nothing'
sleep 5
at 'GET all keys'
get 200000 15
at 'nothing'
wait "$recording"

"$isotherm" report heatmap -i "$out/redis.rec" -o "$out/redis-heatmap.png"
"$isotherm" report wss -i "$out/redis.rec" -o "$out/redis-wss.png"
