#!/bin/sh
# What schemes do to memory of several kinds, in a guest of two NUMA nodes: huge pages are split, memory moves between nodes,
# goes to swap, and what is locked or of hugetlbfs stays. The kernel's own files say so, and contents are whole in the end.
# shellcheck source=ci/guest-tests/lib.sh
. /tests/lib.sh

# Intervals four times the defaults, since a guest's processor is emulated.
attrs="--backend pte --sample 20ms --aggr 400ms --overhead 0"
# of KIND KEY: kilobytes of the mappings of such memory in smaps.
of() {
	sed -n "s/^$1 //p" /tmp/kinds >/tmp/range
	read -r from to </tmp/range
	awk -v from="${from#0x}" -v to="${to#0x}" -v key="$2:" '
		# Addresses of one length compare as texts.
		$1 ~ /^[0-9a-f]+-[0-9a-f]+$/ { split($1, range, "-"); inside = range[1] < to && from < range[2] }
		inside && $1 == key { n += $2 }
		END { print n + 0 }' "/proc/$pid/smaps"
}
# on NODE: pages of the process on a node.
on() { sed -n "s/.* N$1=\([0-9]*\).*/\1/p" "/proc/$pid/numa_maps" | awk '{ n += $1 } END { print n + 0 }'; }
# elsewhere NODE: pages of the small and the huge memory on the other node; of huge pages each page.
elsewhere() {
	grep -E '^(small|huge) ' /tmp/kinds | while read -r _ from to; do
		awk -v from="${from#0x}" -v to="${to#0x}" -v node="N$((1 - $1))=" '
			# As texts: some addresses look like numbers.
			from "" <= $1 "" && $1 "" < to "" { for (i = 2; i <= NF; i++) if (index($i, node) == 1) print substr($i, length(node) + 1) }
			' "/proc/$pid/numa_maps"
	done | awk '{ n += $1 } END { print n + 0 }'
}
# sum NAME: the sum of such a member over the log's lines.
sum() { sed -n "s/.*\"$1\":\([0-9]*\).*/\1/p" /tmp/log | awk '{ n += $1 } END { printf "%.0f\n", n }'; }
# scheme SECONDS ACTION [LINE...]: has it act for so long, on memory that is unknown as well.
scheme() {
	seconds=$1 action=$2
	shift 2
	rm -f /tmp/log
	{
		printf '[[scheme]]\nname = "it"\naction = "%s"\nmin_size = "4K"\nunknown = true\n' "$action"
		[ $# = 0 ] || printf '%s\n' "$@"
	} >/tmp/scheme.toml
	# shellcheck disable=SC2086  # options, split on purpose
	isotherm scheme apply /tmp/scheme.toml --pid "$pid" $attrs --duration "${seconds}s" --quiet --log /tmp/log >/tmp/out 2>/tmp/errors
	is "status, $action" $? 0
	cat /tmp/errors
	tail -n 3 /tmp/out
}
# least WHAT GOT LEAST
least() { if [ "$2" -ge "$3" ]; then ok "$1: $2"; else not_ok "$1: $2, less than $3"; fi; }
# most WHAT GOT MOST
most() { if [ "$2" -le "$3" ]; then ok "$1: $2"; else not_ok "$1: $2, more than $3"; fi; }

is "NUMA nodes" "$(find /sys/devices/system/node -maxdepth 1 -name 'node[0-9]*' | wc -l)" 2
swap_in_zram 256M
echo 8 >/proc/sys/vm/nr_hugepages
# Or it would make huge pages again of what is split.
echo 4000000000 >/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs

kinds 400 >/tmp/kinds &
pid=$!
for _ in $(seq 300); do
	! grep -q ready /tmp/kinds || break
	sleep 0.2
done
cat /tmp/kinds
is "kB of huge pages" "$(of huge AnonHugePages)" 16384

# To where there is little of it; large folios whole.
if [ "$(on 0)" -gt "$(on 1)" ]; then to=1; else to=0; fi
before=$(on $to)
# A process may be on either node while it touches its memory, so some may be there already.
waits=$(elsewhere $to)
least "pages that wait on the other node" "$waits" 2048
scheme 12 migrate_cold "nodes = [$to]"
moved=$(($(on $to) - before))
least "pages that moved to node $to, of $waits" $moved $((waits - 96))
most "pages that are still on the other node" "$(elsewhere $to)" 96
off=$(($(sum applied) / 4096 - moved))
# Its stack and the like may grow meanwhile.
most "pages that were said to have moved and did not" "${off#-}" 40
is "kB of huge pages, moved" "$(of huge AnonHugePages)" 16384

scheme 12 nohugepage
split=$((16384 - $(of huge AnonHugePages)))
least "kB of huge pages, split" $split 8192
is "bytes that were said to have been split" "$(sum applied)" $((split * 1024))

hugetlb=$(of hugetlb Private_Hugetlb)
scheme 60 pageout 'quota.size = "256M/s"'
least "kB of small pages in swap" "$(of small Swap)" 15000
least "kB of what were huge pages in swap" "$(of huge Swap)" 8192
is "kB of locked memory" "$(of locked Rss) $(of locked Swap)" "8192 0"
is "kB of hugetlbfs" "$(of hugetlb Private_Hugetlb)" "$hugetlb"
least "bytes told to be locked" "$(sum locked)" 8388608
least "bytes told to be of hugetlbfs" "$(sum hugetlb)" 8388608

kill $pid
wait $pid
is "contents are whole" $? 0
summary
