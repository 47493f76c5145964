#!/usr/bin/env bash
# Makes the initramfs of a test guest: busybox, a static isotherm, the tests of ci/guest-tests and the programs in C
# that they need.
#
#   ci/initramfs.sh BUSYBOX ISOTHERM OUT TEST [ARG...]
#
# The guest runs /tests/TEST ARG... and powers off (ci/guest-init). Needs no root.
set -euo pipefail
# shellcheck source=ci/lib.sh
. "$(dirname "$0")/lib.sh"

[ $# -ge 4 ] || die "usage: ci/initramfs.sh BUSYBOX ISOTHERM OUT TEST [ARG...]"
busybox=$1 isotherm=$2 out=$3 test=$4
shift 4
[ -f "$root/ci/guest-tests/$test" ] ||
	die "no test ci/guest-tests/$test; there are: $(cd "$root/ci/guest-tests" && echo *)"

tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
# Other users may look into the root as well.
chmod 755 "$tree"
mkdir -p "$tree"/{bin,dev,proc,sys,tmp,root,etc}
install -m 755 "$busybox" "$tree/bin/busybox"
ln -s busybox "$tree/bin/sh"
install -m 755 "$root/ci/guest-init" "$tree/init"
cp -r "$root/ci/guest-tests" "$tree/tests"
# Of the kernel's, beside its busybox.
[ ! -d "$(dirname "$busybox")/modules" ] || cp -r "$(dirname "$busybox")/modules" "$tree/modules"
# Symbols make up most of the binary and none of the test.
if command -v strip >/dev/null 2>&1; then
	strip -o "$tree/bin/isotherm" "$isotherm"
else
	cp "$isotherm" "$tree/bin/isotherm"
fi
chmod 755 "$tree/bin/isotherm"
need cc gcc
for source in "$root"/ci/guest-tests/*.c; do
	cc -static -O2 -Wall -Wextra -Werror -o "$tree/bin/$(basename "$source" .c)" "$source"
done
# One argument a line, so that none needs quoting in the guest.
printf '%s\n' sh "/tests/$test" "$@" >"$tree/etc/test"

# Only read by the kernel at boot: root's ownership counts there, and so does the format, newc.
(cd "$tree" && find . | "$tree/bin/busybox" cpio -o -H newc -R 0:0 2>/dev/null) >"$out"
