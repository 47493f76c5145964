#!/bin/sh
# Memory in motion, as our monitor and the kernel's own DAMON see it: both judged by the bytes accessed within a second.
#
#   beside-damon.sh [PATTERN...]
#
# Takes some ten minutes, so it is no part of .ci/run. Attributes and ceiling as in hot-bytes.sh, for both.
# shellcheck source=ci/guest-tests/lib.sh
. /tests/lib.sh

[ $# -gt 0 ] || set -- front sweep zipf
number() { sed -n "s/^ *\"$1\": \\(-\\{0,1\\}[0-9.][0-9.e+-]*\\),\\{0,1\\}\$/\\1/p" | head -n 1; }
second() { sed -n '/"second": {/,/}/p' "$2" | number "$1"; }

# Where a DAMON of the kernel's runs from the boot on, there can be no other.
running=/sys/module/damon_stat/parameters/enabled
[ "$(cat $running 2>/dev/null)" = Y ] && echo N >$running

printf '%-8s %-4s %-7s %10s %12s\n' pattern page backend 'F1 of 1 s' 'wss / true'
for pattern in "$@"; do
	for pages in 4k thp; do
		pte=''
		for backend in pte kernel; do
			if isotherm lab accuracy "$pattern" --pages $pages --scale-time 0.5 --backend $backend --sample 20ms \
				--aggr 400ms --overhead 20% --json >/tmp/accuracy 2>/tmp/errors; then
				f1=$(second f1 /tmp/accuracy)
				printf '%-8s %-4s %-7s %10s %12s\n' "$pattern" $pages $backend "$f1" "$(second ratio /tmp/accuracy)"
			else
				f1=''
				not_ok "$pattern, $pages pages, $backend"
				cat /tmp/errors
			fi
			[ $backend = pte ] && pte=$f1
		done
		if [ -n "$(awk "BEGIN { if (${pte:-0} > ${f1:-0}) print 1 }")" ]; then
			ok "$pattern, $pages pages: above DAMON"
		else
			not_ok "$pattern, $pages pages: not above DAMON"
		fi
	done
done
summary
