#!/usr/bin/env bash
# README's Python on Parquet, as printed there, run on a recording of a program and compared with what the reports say of the
# same recording. Needs Python with venv, and PyPI for DuckDB, pandas and pyarrow. As root.
#
#   ci/readme-python.sh [ISOTHERM]     default: target/debug/isotherm, built when it is missing
set -euo pipefail
# shellcheck source=ci/lib.sh
. "$(dirname "$0")/lib.sh"
need python3 python3
isotherm=${1:-$root/target/debug/isotherm}
[ -x "$isotherm" ] || (cd "$root" && cargo build --locked -p isotherm --bin isotherm)
isotherm=$(realpath "$isotherm")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"

python3 -m venv venv || die 'python3 lacks venv; on Debian: apt-get install python3-venv'
if ! venv/bin/pip install --quiet --disable-pip-version-check duckdb pandas pyarrow; then
	skip 'DuckDB, pandas and pyarrow cannot be installed from PyPI'
	exit 0
fi

# 8 of 32 MiB in use.
cat >program.py <<'PYTHON'
import time
array = bytearray(32 << 20)
end = time.time() + 6
while time.time() < end:
    for at in range(0, 8 << 20, 4096):
        array[at] = 1
    time.sleep(0.01)
PYTHON
"$isotherm" record --quiet -o redis.rec -- python3 program.py
"$isotherm" convert --quiet redis.rec redis.parquet
"$isotherm" report wss -i redis.rec --json >wss.json
"$isotherm" report wss -i redis.rec --damo --json >damo.json
"$isotherm" report raw -i redis.rec --json >raw.jsonl

cat >check.py <<'PYTHON'
import json, re, sys

blocks = re.findall(r"^```python\n(.*?)^```", open(sys.argv[1]).read(), re.M | re.S)
queries = [block for block in blocks if "duckdb" in block]
frames = [block for block in blocks if "pandas" in block]
assert len(queries) == len(frames) == 1, f"README has {len(queries)} and {len(frames)} of them"

print(queries[0])
exec(queries[0], {})


def rows(query):
    names = {}
    exec(query.replace(".show()", ".fetchall()").replace("duckdb.sql", "rows = duckdb.sql"), names)
    return names["rows"]


first = rows(queries[0])
hz = first[0][1]
# The greatest rate of each mapping in any snapshot. A region counts for the mapping that has most of it.
maps, greatest = {}, {}
for line in open("raw.jsonl"):
    item = json.loads(line)
    if item["type"] == "mappings":
        maps[item["target"]] = item["maps"]
    if item["type"] == "region" and item["rate_hz"]:
        shared = lambda m: min(m["end"], item["end"]) - max(m["start"], item["start"])
        most = max(maps.get(item["target"], []), key=shared, default=None)
        name = (most["name"] or "[anon]") if most and shared(most) > 0 else None
        greatest[name] = max(item["rate_hz"], greatest.get(name, 0))
assert len(first) == min(5, len(greatest)) > 1, (first, greatest)
for name, rate, _ in first:
    # What is rounded in a file is rounded alike for both.
    assert abs(rate - greatest[name]) <= 1e-3 * rate, (name, rate, greatest)
assert abs(hz - max(greatest.values())) <= 1e-3 * hz, (first, greatest)
assert " LIMIT 5" in queries[0]
mb = sum(row[2] for row in rows(queries[0].replace(" LIMIT 5", "")))
mean = json.load(open("wss.json"))["mean"] / 1e6
assert mean / 1.05 < mb < mean * 1.05, f"{mb} MB, where the report has {mean}"

print(frames[0])
names = {}
exec(frames[0], names)
regions = names["regions"]
mean = names["used"].groupby(regions.snapshot).sum().mean()
reported = json.load(open("damo.json"))
assert abs(mean - reported["mean"]) < 0.1 * reported["mean"], (mean, reported["mean"])
unknown = names["unknown"].groupby(regions.snapshot).sum()
highest = max(p["value"] for p in reported["unknown_bytes"])
assert unknown.max() >= 0.9 * highest, (unknown.max(), highest)
PYTHON
venv/bin/python check.py "$root/README.md"
say 'README says in Python what the reports say'
