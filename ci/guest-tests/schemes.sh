#!/bin/sh
# Schemes act on a live process, with zram as swap: the seeds' prcl on a program that builds 256 MiB and then uses a tenth of it.
# What the schemes say they did is held against what smaps, vmstat and the log say.
# shellcheck source=ci/guest-tests/lib.sh
. /tests/lib.sh

# Intervals four times the defaults, since a guest's processor is emulated; the ages of prcl with them.
attrs="--backend pte --sample 20ms --aggr 400ms --overhead 20%"
pattern="--set total=256M --set offset=100M --set spot=25M --set rate=20Hz --set phase=150s"
# KEY: kilobytes of the process as a whole.
kb() { sed -n "s/^$1: *\([0-9]*\) kB/\1/p" "/proc/$pid/smaps_rollup"; }
vmstat() { sed -n "s/^$1 //p" /proc/vmstat; }
# member NAME: the sum of such a member over the log's lines.
sum() { sed "s/.*\"$1\":\([0-9]*\).*/\1/" /tmp/log | awk '{ n += $1 } END { printf "%.0f\n", n }'; }

# shellcheck disable=SC2086  # options, split on purpose
isotherm workload hotspot $pattern >/tmp/workload 2>&1 &
workload=$!
for _ in $(seq 300); do
	pid=$(pidof isotherm | tr ' ' '\n' | tail -n 1)
	[ "$(kb Rss)" -lt 250000 ] 2>/dev/null || break
	sleep 0.2
done
before=$(kb Rss)
echo "resident before: $before kB"

# Without swap it is said before anything is done.
# shellcheck disable=SC2086  # options, split on purpose
isotherm scheme apply prcl --pid "$pid" $attrs --duration 2s >/tmp/out 2>/tmp/errors
is "status without swap" $? 0
is "it is said that there is none" "$(grep -c 'there is no swap: anonymous memory stays' /tmp/errors)" 1
is "a quota is added, and told" "$(grep -c 'gets a quota of 512 MiB' /tmp/errors)" 1

swap_in_zram 512M
is "swap" "$(grep -c zram0 /proc/swaps)" 1

cat >/tmp/prcl.toml <<'TOML'
[[scheme]]
name = "prcl"
action = "pageout"
min_size = "4K"
max_access = "5%"
min_age = "2s"
quota.size = "32M/s"
TOML
before=$(kb Rss)
swapped_in=$(vmstat pswpin)
# shellcheck disable=SC2086
isotherm scheme apply /tmp/prcl.toml --pid "$pid" $attrs --duration 40s --stats-every 10s --log /tmp/log -o /tmp/run.rec \
	>/tmp/out 2>/tmp/errors
is "status" $? 0
cat /tmp/errors
tail -n 5 /tmp/out
after=$(kb Rss)
swapped_in=$(($(vmstat pswpin) - swapped_in))
applied=$(sum applied)
echo "resident $before kB before, $after kB after; applied $applied bytes; $swapped_in pages swapped in"
fell=$(((before - after) * 100 / before))
if [ $fell -ge 85 ]; then ok "resident set fell by $fell %"; else not_ok "resident set fell by $fell % only"; fi
# What went, and what came back again.
went=$(((before - after) * 1024 + swapped_in * 4096))
off=$(awk "BEGIN { d = $applied - $went; if (d < 0) d = -d; printf \"%.0f\", d * 1000 / $went }")
if [ "$off" -le 10 ]; then ok "applied is what went, to $off permil"; else not_ok "applied $applied, went $went"; fi

# Windows of a second each: in each no more than the quota. Under it all is done at once, so that pauses part them.
sed 's/.*"time_ns":\([0-9]*\).*"tried":\([0-9]*\).*/\1 \2/' /tmp/log | awk '
	$1 - last > 300000000 { bytes = 0 }
	{ bytes += $2; last = $1; if (bytes > most) most = bytes }
	END { printf "%.0f\n", most }' >/tmp/most
if [ "$(cat /tmp/most)" -le 33554432 ]; then ok "most in a window: $(cat /tmp/most)"; else not_ok "quota exceeded: $(cat /tmp/most)"; fi
isotherm report info -i /tmp/run.rec >/dev/null
is "status of reading the recording" $? 0

# It goes on, its memory whole.
is "the workload lives" "$(kill -0 $workload && echo yes)" yes
kill $workload
wait $workload 2>/dev/null
summary
