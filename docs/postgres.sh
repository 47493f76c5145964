#!/usr/bin/env bash
# Records PostgreSQL under pgbench for a minute as postgres.rec and draws postgres-buffers.png, a picture of the
# README: the shared buffers, once, with the accesses of all backends. As root on Debian: apt-get install postgresql.
#
#   docs/postgres.sh [ISOTHERM] [DIRECTORY]     default: target/release/isotherm, the current directory
#
# BIN=DIR in the environment names the programs' directory, PORT=N takes another port. The server is one of its own,
# reached by a socket only, and is ended afterwards.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
isotherm=${1:-$here/../target/release/isotherm}
out=${2:-.}
port=${PORT:-7392}
bin=${BIN:-$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -n 1)}
scratch=$(mktemp -d)
chown postgres "$scratch"
as_postgres() { runuser -u postgres -- env -C "$scratch" "$@"; }
ended() {
	as_postgres "$bin/pg_ctl" -D "$scratch/data" -m fast stop >>"$scratch/log" 2>&1 || true
	rm -rf "$scratch"
}
trap ended EXIT
bench() { as_postgres "$bin/pgbench" -h "$scratch" -p "$port" "$@" postgres >>"$scratch/log" 2>&1; }

as_postgres "$bin/initdb" -D "$scratch/data" -A trust >"$scratch/log" 2>&1
as_postgres "$bin/pg_ctl" -D "$scratch/data" -w start \
	-o "-p $port -c shared_buffers=512MB -c listen_addresses='' -k $scratch" >>"$scratch/log" 2>&1
printf 'fill 3 million rows\n'
bench -i -s 30 -q

"$isotherm" record -o "$out/postgres.rec" --pid "$(head -n 1 "$scratch/data/postmaster.pid")" --duration 60s &
recording=$!
from=$SECONDS
at() { printf '%2d s  %s\n' $((SECONDS - from)) "$*"; }

sleep 5
at 'read random rows, 2 clients'
bench -S -c 2 -T 20
at 'nothing'
sleep 10
at 'read and write random rows, 2 clients'
bench -c 2 -T 20
at 'nothing'
wait "$recording"

"$isotherm" report heatmap -i "$out/postgres.rec" --object zero -o "$out/postgres-buffers.png"
"$isotherm" report access -i "$out/postgres.rec" --by object --time 20s..21s
