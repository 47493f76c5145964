#!/bin/sh
# Recording without root, by a program with the four capabilities that `isotherm doctor` advises: it splits no folio.
#
#   unprivileged.sh KIND...      kinds of folios, see folios.c: remap, and from Linux 6.8 on mthp
#
# Without root /proc/kpageflags cannot be read, which shows what folio a page is part of. MADV_COLD on a part of a large
# folio that is mapped page by page splits it. Root records the same first: what moves then is not for want of kpageflags.
# shellcheck source=ci/guest-tests/lib.sh
. /tests/lib.sh

sizes=/sys/kernel/mm/transparent_hugepage
# counters: all that moves when a folio is split, or when it is to be. Sizes below 2 MiB have counters of their own from
# 6.10 on, and vmstat's are for 2 MiB only.
counters() {
	sed -n '/^thp_\(split_page\|split_page_failed\|split_pmd\|deferred_split_page\) /p' /proc/vmstat
	for file in "$sizes"/hugepages-*/stats/split "$sizes"/hugepages-*/stats/split_failed \
		"$sizes"/hugepages-*/stats/split_deferred "$sizes"/hugepages-*/stats/nr_anon; do
		[ ! -e "$file" ] || echo "${file#"$sizes"/} $(cat "$file")"
	done
}

# made KIND: how many such folios were ever made.
made() {
	case $1 in
	mthp) cat "$sizes/hugepages-64kB/stats/anon_fault_alloc" ;;
	*) sed -n 's/^thp_fault_alloc //p' /proc/vmstat ;;
	esac
}
# pmd_mapped PID: kilobytes that the process maps by PMDs.
pmd_mapped() { sed -n 's/^AnonHugePages: *\([0-9]*\) kB/\1/p' "/proc/$1/smaps" | awk '{ n += $1 } END { print n + 0 }'; }

# The file system of / keeps no attributes, and so no capabilities of files.
cp /bin/isotherm /tmp/isotherm
setcap /tmp/isotherm
echo 'root:x:0:0::/root:/bin/sh' >/etc/passwd
echo 'nobody:x:65534:65534::/tmp:/bin/sh' >>/etc/passwd
chmod 755 /tmp
mkdir -m 777 /tmp/nobody
# as USER COMMAND
as() { su -s /bin/sh "$1" -c "cd /tmp/nobody && $2"; }

as nobody '/tmp/isotherm doctor' >/tmp/doctor
is "pte without root" "$(sed -n 's/^ *pte  *\([a-z]*\) .*/\1/p' /tmp/doctor)" yes
is "nobody reads kpageflags" "$(as nobody 'dd if=/proc/kpageflags count=1 2>/dev/null' | wc -c)" 0

# record USER KIND: records a program of nobody's with such folios; what was counted meanwhile must not have moved.
record() {
	name="$2 recorded by $1"
	made_before=$(made "$2")
	as nobody "exec folios $2 60 >/tmp/nobody/ready" &
	for _ in $(seq 300); do
		! grep -q ready /tmp/nobody/ready 2>/dev/null || break
		sleep 0.1
	done
	pid=$(pidof folios)
	is "folios of 32 MiB, $name" $(($(made "$2") - made_before)) "$([ "$2" = mthp ] && echo 512 || echo 16)"
	is "kB of them mapped by PMDs, $name" "$(pmd_mapped "$pid")" 0
	counters >/tmp/before
	# As eager as it can be: any of the pages may be cleared.
	as "$1" "/tmp/isotherm record --backend pte --sample 10ms --aggr 200ms --overhead 0 --min-regions 100 \
		--duration 10s -o $1-$2.rec --pid $pid" 2>/tmp/errors
	status=$?
	is "status of record, $name" $status 0
	[ $status = 0 ] || cat /tmp/errors
	counters >/tmp/after
	if cmp -s /tmp/before /tmp/after; then
		ok "nothing split, $name"
	else
		not_ok "something was split, $name:"
		diff /tmp/before /tmp/after | grep '^[-+][^-+]'
	fi
	kill "$pid"
	wait
	# It was at work, then: it cleared pages, among them small ones, which nothing keeps it from clearing.
	# The sentence may go over several lines.
	cleared=$(tr '\n' ' ' </tmp/errors | sed -n 's/.*cost of monitoring: .* \([0-9.]*\)\/s *pages *cleared.*/\1/p')
	is "pages were cleared (${cleared:-none} a second), $name" "$(awk "BEGIN { print (${cleared:-0} > 0) }")" 1
	[ -n "$cleared" ] || { cat /tmp/errors; isotherm report raw -i "/tmp/nobody/$1-$2.rec" | head -n 20; }
	rm /tmp/nobody/ready
}

# Nobody but the recorder changes what the counters count.
echo 1000000000 >"$sizes/khugepaged/scan_sleep_millisecs"
for kind in "$@"; do
	# What MADV_HUGEPAGE gives: folios of 64 KiB alone, or of 2 MiB alone.
	for file in "$sizes"/hugepages-*/enabled; do
		[ ! -e "$file" ] || echo never >"$file"
	done
	case $kind in
	mthp) echo madvise >"$sizes/hugepages-64kB/enabled" ;;
	*)
		echo madvise >"$sizes/enabled"
		[ ! -e "$sizes/hugepages-2048kB/enabled" ] || echo madvise >"$sizes/hugepages-2048kB/enabled"
		;;
	esac
	for user in root nobody; do
		record $user "$kind"
	done
done
summary
