#!/bin/sh
# Records one pattern with one backend, and compares what it calls hot with what was hot.
#
#   hot-bytes.sh BACKEND
#
# The pattern, for each size of pages: 16 MB accessed 100 times a second inside 256 MB that lie idle. It is
# the same on every kernel and for every backend, hence so are the hot bytes. All times are those of a guest
# that runs 10 to 20 times slower than its host: intervals four times the defaults, and a ceiling for the
# monitor's CPU time that would be 1 to 2 % on the host.
# shellcheck source=ci/guest-tests/lib.sh
. /tests/lib.sh

backend=$1
attrs="--backend $backend --sample 20ms --aggr 400ms --overhead 20%"
# Our own monitor is judged from the phase's fifth second on: how fast it finds the spot is the lab's to measure, on
# a machine that gives it its time. DAMON in the kernel is only driven by us: how
# long it takes to narrow down from ten regions is chance (0.5 to 3.8 s in six runs) and not ours
# to vouch for, so there the windows count from the first that is right, in a phase twice as long. From then on
# its random splits still cost what chance will (0.957 to 0.999 in eight runs); a mistake of ours in driving it,
# addresses, units, windows, would cost far more than the rest up to the bound.
case $backend in
kernel) phase=30s judged=f1_once_converged least=0.85 settle= ;;
*) phase=20s judged=f1 least=0.95 settle="--settle 4s" ;;
esac
pattern="--set total=256M --set offset=100M --set spot=16M --set rate=100Hz --set phase=$phase"
spot=16777216

# Huge pages that were split, but for those that the kernel, from 6.12 on, splits by itself whenever it shrinks its caches: mostly
# zeroes, as all memory that is only read here, and so underused.
splits() { awk '$1 == "thp_split_page" { n += $2 } $1 == "thp_underused_split_page" { n -= $2 } END { print n + 0 }' /proc/vmstat; }
# number NAME: the first such member of a JSON text, one member a line, from standard input.
number() { sed -n "s/^ *\"$1\": \\(-\\{0,1\\}[0-9.][0-9.e+-]*\\),\\{0,1\\}\$/\\1/p" | head -n 1; }
# holds EXPRESSION: of numbers, which may have fractions.
holds() { [ -n "$(awk "BEGIN { if ($1) print 1 }")" ]; }
# is_near BYTES: within 10 % of the spot's size.
is_near() { holds "${1:-0} >= 0.9 * $spot && ${1:-0} <= 1.1 * $spot"; }

# near WHAT BYTES: within 10 % of the spot's size.
near() {
	if is_near "$2"; then
		ok "$1: ${2:-none} bytes, $spot are"
	else
		not_ok "$1: ${2:-none} bytes, $spot are"
	fi
}

# Newer kernels may have a DAMON of their own running from the boot on. It must be left alone, and the
# remedy that is named must be one.
running=/sys/module/damon_stat/parameters/enabled
if [ "$backend" = kernel ] && [ "$(cat $running 2>/dev/null)" = Y ]; then
	# shellcheck disable=SC2086  # options, split on purpose
	isotherm record --quiet $attrs -o /tmp/refused.rec -- sleep 3 2>/tmp/errors
	is "status of record while damon_stat runs" $? 1
	is "the message names it" "$(grep -c damon_stat /tmp/errors)" 1
	is "damon_stat goes on" "$(cat $running)" Y
	echo N >$running
fi

splits_before=$(splits)

# again WHAT: says that it is measured once more. A host that takes the processors away for whole seconds spoils a
# measurement and not the next. (So would a mistake that shows now and then only: look for these lines.)
again() { printf 'once more: %s\n' "$1"; }

# accuracy PAGES: sets status, f1, working_set.
accuracy() {
	status=0
	# shellcheck disable=SC2086  # options, split on purpose
	isotherm lab accuracy hotspot --pages "$1" $pattern $attrs $settle --json >/tmp/accuracy 2>/tmp/errors || status=$?
	f1=$(number "$judged" </tmp/accuracy)
	working_set=$(sed -n '/"inside": {/,/}/p' /tmp/accuracy | number p50)
}

for pages in 4k thp; do
	accuracy $pages
	if [ $status = 0 ] && ! { holds "${f1:-0} >= $least" && is_near "$working_set"; }; then
		again "$pages pages, $judged ${f1:-none}, working set ${working_set:-none}"
		accuracy $pages
	fi
	is "status of lab accuracy, $pages pages" $status 0
	[ $status = 0 ] || cat /tmp/errors
	if holds "${f1:-0} >= $least"; then
		ok "$judged of hot bytes, $pages pages: $f1"
	else
		not_ok "$judged of hot bytes, $pages pages: ${f1:-none}, less than $least"
	fi
	near "working set by lab accuracy, $pages pages" "$working_set"
done

# recording: records, and sets status, working_set; middle, all and right.
#
# Byte by byte over the middle third of the phase: hot is what was seen accessed in a twentieth of the samples or
# more; the rest has less than a thousandth. (It would be nearly all of them on a machine of one's own. Here the
# host takes the processors away for longer than the workload's pauses, and accesses come in bursts.) Both clocks
# are CLOCK_MONOTONIC.
recording() {
	status=0
	# shellcheck disable=SC2086
	isotherm record --quiet $attrs -o /tmp/hot.rec -- isotherm workload hotspot $pattern --truth /tmp/truth || status=$?
	isotherm report wss -i /tmp/hot.rec --json >/tmp/wss || status=$?
	working_set=$(grep -A 1 '"percent": 50,' /tmp/wss | number value)
	began=$(number started_ns </tmp/wss)
	middle=$(sed -n 's/^{"kind":"phase",.*"start_ns":\([0-9]*\),"end_ns":\([0-9]*\),"complete".*/\1 \2/p' /tmp/truth |
		awk -v began="${began:-0}" '{
			third = ($2 - $1) / 3
			printf "%.1fs..%.1fs", ($1 + third - began) / 1e9, ($2 - third - began) / 1e9
		}')
	isotherm report access -i /tmp/hot.rec --time "$middle" --json >/tmp/access || status=$?
	from=$(sed -n 's/^{"kind":"area",.*"name":"space","start":\([0-9]*\),.*/\1/p' /tmp/truth | head -n 1)
	sed -n 's/^ *"\(start\|end\|rate_share\)": \([0-9][0-9.e-]*\),$/\1 \2/p' /tmp/access |
		awk -v first="${from:-0}" -v size="$spot" '
		BEGIN { first += 100 * 1048576; last = first + size }
		$1 == "start" { start = $2 }
		$1 == "end" { end = $2 }
		$1 == "rate_share" && $2 >= 0.05 {
			all += end - start
			low = start > first ? start : first
			high = end < last ? end : last
			if (high > low) right += high - low
		}
		END { printf "%.0f %.0f\n", all, right }' >/tmp/hot
	read -r all right </tmp/hot
}

recording
if [ $status = 0 ] && ! { is_near "$working_set" && is_near "$all" && is_near "$right"; }; then
	again "working set ${working_set:-none}, hot in $middle $all, of these in the spot $right"
	recording
fi
is "status of record and its reports" $status 0
near "working set by report wss" "$working_set"
near "hot in $middle by report access" "$all"
near "of these in the spot" "$right"

split=$(($(splits) - splits_before))
is "huge pages split" $split 0
# Who did is seen from what else was done since the guest was booted.
[ $split = 0 ] || grep -E '^(thp_.*(split|migration|failed)|pageoutrun|kswapd_|slabs_scanned|compact_|pgmigrate)[^ ]* [1-9]' /proc/vmstat
kdamonds=/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds
if [ -e $kdamonds ]; then
	is "kdamonds left behind" "$(cat $kdamonds)" 0
fi
printf 'hot bytes: %s, %s: %s recorded, %s of them right, %s true\n' "$(uname -r)" "$backend" "$all" "$right" $spot
summary
