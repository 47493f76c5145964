#!/bin/sh
# Linux' side of `isotherm lab fork`, as root on a stock kernel, which is not locked down: memory in folios of every
# order is laid out and looked at, with the debug file system mounted and without.
#
#   lab-fork.sh SPLITS      SPLITS: whether huge pages can be split to an order (Linux 6.10): yes or no
# shellcheck source=ci/guest-tests/lib.sh
. /tests/lib.sh

splits=$1
measured=4
[ "$splits" = yes ] || measured=3

# look WHERE: measures, and looks at what became of Linux' four layouts.
look() {
	mounts=$(cat /proc/self/mountinfo)
	isotherm lab fork --size 12 --runs 2 --json >report 2>told
	is "status, debugfs $1" "$?" 0
	is "layouts that Linux forked, debugfs $1" "$(grep -c '"skipped": null' report)" "$measured"
	is "layouts whose folios were seen, debugfs $1" "$(grep -c '"of_order": [01]' report)" "$measured"
	is "debugfs $1 as before" "$([ "$mounts" = "$(cat /proc/self/mountinfo)" ] && echo yes || echo no)" yes
	grep 'skipped: ' told
}

look mounted
umount /sys/kernel/debug
look "not mounted"
summary
