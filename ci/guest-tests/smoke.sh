#!/bin/sh
# What the guest is: shows that the harness works and what the tests beside this one stand on.
#
#   smoke.sh RELEASE LEVELS DAMON      RELEASE: start of `uname -r`; LEVELS: 4 or 5; DAMON: yes or no
# shellcheck source=ci/guest-tests/lib.sh
. /tests/lib.sh

release=$1 levels=$2 damon=$3

is "the kernel's release starts with $release" "$(uname -r | cut -c "1-${#release}")" "$release"
is "the kernel carries BTF" "$(present /sys/kernel/btf/vmlinux)" yes
# The kernel drops the flag when it runs with 4 levels.
is "levels of page tables" "$(grep -qw la57 /proc/cpuinfo && echo 5 || echo 4)" "$levels"
is "DAMON's sysfs" "$(present /sys/kernel/mm/damon/admin)" "$damon"
is "page_idle bitmap" "$(present /sys/kernel/mm/page_idle/bitmap)" no
is "cgroup v2" "$(present /sys/fs/cgroup/cgroup.controllers)" yes
is "debugfs" "$(present /sys/kernel/debug/tracing)" yes
is "tracefs" "$(present /sys/kernel/tracing/events)" yes
is "mappings are read without printing them" \
	"$(isotherm doctor 2>/dev/null | grep -q 'mappings as the kernel keeps them' && echo yes || echo no)" yes
is "isotherm starts" "$(isotherm --version >/dev/null 2>&1 && echo yes || echo no)" yes
printf 'processors: %s, memory: %s kB, huge pages: %s\n' "$(nproc)" \
	"$(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo)" \
	"$(cat /sys/kernel/mm/transparent_hugepage/enabled)"
summary
