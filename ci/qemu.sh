#!/usr/bin/env bash
# Runs one test of ci/guest-tests on a stock Debian kernel under QEMU.
#
#   ci/qemu.sh [OPTION]... SUITE TEST [ARG...]
#
#   SUITE             whose cloud kernel to boot: bookworm (6.1), trixie (6.12), sid
#   TEST              file name in ci/guest-tests; ARG... are handed to it
#   --cpu MODEL       default max; `max,la57=off` boots with 4 levels of page tables instead of 5
#   --smp N           processors, default 2
#   --memory SIZE     default 3G
#   --nodes N         NUMA nodes, default 1: memory and processors are shared out among them
#   --timeout SECONDS ends a guest that hangs, default 600
#   --append WORDS    more words for the kernel's command line. `pti=on` wherever DAMON in the kernel is tested
#                     under tcg: it clears Accessed bits without a TLB flush and counts on old translations
#                     falling out of the TLB, which QEMU's never does until CR3 is written; with page table
#                     isolation that is at every system call and interrupt
#   --accel NAME      default tcg, which needs no KVM; a guest's processor is then 10 to 20 times slower
#   --isotherm FILE   a static isotherm to test; default: built here, in target/guest
#   --log DIR         where the kernel's console and the test's output are kept,
#                     default target/guest/log/SUITE-TEST
#
# The test's output is this script's output, its exit status this script's exit status. 124: timed out;
# 125: the guest could not be started or ended without telling a status, and the console's end is shown.
set -euo pipefail
# shellcheck source=ci/lib.sh
. "$(dirname "$0")/lib.sh"

cpu=max smp=2 memory=3G nodes=1 timeout=600 append='' accel=tcg isotherm='' log=''
while [ $# -gt 0 ]; do
	case $1 in
	--cpu | --smp | --memory | --nodes | --timeout | --append | --accel | --isotherm | --log)
		[ $# -ge 2 ] || die "$1 needs a value"
		printf -v "${1#--}" '%s' "$2"
		shift 2
		;;
	-h | --help)
		sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"
		exit
		;;
	-*) die "unknown option $1; see ci/qemu.sh --help" ;;
	*) break ;;
	esac
done
[ $# -ge 2 ] || die "usage: ci/qemu.sh [OPTION]... SUITE TEST [ARG...]"
suite=$1 test=$2
shift 2

need qemu-system-x86_64 qemu-system-x86
[ "$(uname -m)" = x86_64 ] || die "guests are x86-64 and so must be the machine that builds isotherm for them"
[ -n "$isotherm" ] || isotherm=$("$root/ci/guest-binary.sh")
kernel=$("$root/ci/kernel.sh" "$suite")

log=${log:-$root/target/guest/log/$suite-${test%.sh}}
rm -rf "$log"
mkdir -p "$log"
initramfs=$log/initramfs.cpio
"$root/ci/initramfs.sh" "$kernel/busybox" "$isotherm" "$initramfs" "$test" "$@"

numa=() topology=$smp
if [ "$nodes" -gt 1 ]; then
	# A socket each, since a processor's node is named by that.
	topology=$smp,sockets=$smp
	mib=$(numfmt --from=iec --to-unit=1048576 "$memory")
	for ((node = 0; node < nodes; node++)); do
		numa+=(-object "memory-backend-ram,id=memory$node,size=$((mib / nodes))M" -numa "node,nodeid=$node,memdev=memory$node")
	done
	for ((cpu_index = 0; cpu_index < smp; cpu_index++)); do
		numa+=(-numa "cpu,node-id=$((cpu_index % nodes)),socket-id=$cpu_index")
	done
fi

# panic=-1 with -no-reboot: a kernel that panics ends QEMU at once instead of hanging until the time-out.
# no_timer_check: at boot the kernel counts timer interrupts for a moment and panics when there are too few, which
# on a busy host there are.
status=0
timeout --foreground "$timeout" qemu-system-x86_64 \
	-nodefaults -no-user-config -no-reboot -display none -nic none \
	-accel "$accel" -cpu "$cpu" -smp "$topology" -m "$memory" "${numa[@]}" \
	-kernel "$kernel/vmlinuz" -initrd "$initramfs" \
	-append "console=ttyS0 panic=-1 no_timer_check quiet loglevel=4 $append" \
	-chardev "file,id=console,path=$log/console" -serial chardev:console \
	-chardev stdio,id=result,signal=off -serial chardev:result \
	</dev/null > >(tee "$log/output" | grep --line-buffered -av '^ISOTHERM-EXIT ') || status=$?
wait
rm -f "$initramfs"

if [ "$status" = 124 ]; then
	say "the guest was ended after $timeout s; its console's last lines ($log/console):"
	tail -n 20 "$log/console"
	exit 124
fi
told=$(sed -n 's/^ISOTHERM-EXIT \([0-9][0-9]*\)$/\1/p' "$log/output" | tail -n 1)
if [ -z "$told" ]; then
	say "the guest told no exit status (QEMU's: $status); its console's last lines ($log/console):"
	tail -n 20 "$log/console"
	exit 125
fi
exit "$told"
