# shellcheck shell=sh
# Shared by the guest tests; sourced by busybox's shell inside the guest.

passed=0
failed=0

# ok WHAT: counts a check that held.
ok() {
	passed=$((passed + 1))
	printf 'ok      %s\n' "$1"
}

# not_ok WHAT: counts one that did not.
not_ok() {
	failed=$((failed + 1))
	printf 'FAILED  %s\n' "$1"
}

# is WHAT GOT WANTED
is() {
	if [ "$2" = "$3" ]; then
		ok "$1: $2"
	else
		not_ok "$1: $2, not $3"
	fi
}

present() {
	if [ -e "$1" ]; then echo yes; else echo no; fi
}

# swap_in_zram SIZE
swap_in_zram() {
	for module in zsmalloc lz4_compress lz4hc_compress zstd_compress zram; do
		[ ! -e /modules/$module.ko ] || insmod /modules/$module.ko
	done
	echo "$1" >/sys/block/zram0/disksize
	mkswap /dev/zram0 >/dev/null && swapon /dev/zram0
}

# summary: ends the test.
summary() {
	printf '%s passed, %s failed\n' "$passed" "$failed"
	[ "$failed" = 0 ]
	exit
}
