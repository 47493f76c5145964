#!/usr/bin/env bash
# Fetches a stock Debian cloud kernel, its modules for zram, and the suite's static busybox, for a guest.
#
#   ci/kernel.sh [--refresh] SUITE        SUITE: bookworm, trixie, sid, ...
#
# Prints the directory that holds `vmlinuz`, `modules`, `busybox` and `packages` (their names and versions). The
# suite need not be the machine's own: apt runs with lists, cache and state of its own under .ci/cache
# (or $ISOTHERM_CI_CACHE), on the machine's package sources with the suite's name replaced. Nothing is
# installed and the machine's apt is not touched. What was fetched before is used again unless
# --refresh is given. Status 69: the packages cannot be had, for the sources do not answer.
set -euo pipefail
# shellcheck source=ci/lib.sh
. "$(dirname "$0")/lib.sh"

refresh=0
if [ "${1:-}" = --refresh ]; then
	refresh=1
	shift
fi
[ $# -eq 1 ] || die "usage: ci/kernel.sh [--refresh] SUITE"
suite=$1
case $suite in
'' | *[!a-z]*) die "'$suite' is no name of a Debian suite; try bookworm, trixie or sid" ;;
esac
dir=${ISOTHERM_CI_CACHE:-$root/.ci/cache}/kernel/$suite
if [ "$refresh" = 0 ] && [ -e "$dir/packages" ] && [ -d "$dir/modules" ]; then
	printf '%s\n' "$dir"
	exit
fi

need apt-get apt
need dpkg dpkg
need xz xz-utils
own=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
[ -n "$own" ] || die "/etc/os-release names no VERSION_CODENAME, so the suite in apt's sources is unknown"

rm -rf "$dir"
mkdir -p "$dir"/apt/{lists/partial,cache/archives/partial,parts} "$dir"/{deb,root}
: >"$dir/apt/status"

# The keyring is named when it lies where Debian puts it, since a machine's own sources may name it
# too and apt then trusts no other.
option='[arch=amd64]'
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[ -r "$keyring" ] && option="[arch=amd64 signed-by=$keyring]"

# sid has neither updates nor security suites: of the machine's sources only the main one is kept.
# shellcheck disable=SC2016  # apt expands these
apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' | sort -u |
	while read -r uri release; do
		case $release in
		"$own") printf 'deb %s %s %s main\n' "$option" "$uri" "$suite" ;;
		"$own"-updates | "$own"-security)
			[ "$suite" = sid ] ||
				printf 'deb %s %s %s main\n' "$option" "$uri" "$suite${release#"$own"}"
			;;
		esac
	done >"$dir/apt/sources.list"
[ -s "$dir/apt/sources.list" ] || die "apt has no source for $own to derive one for $suite from"

# Read after the machine's own configuration, so that a proxy set there still counts while its hooks
# and additional indexes do not.
cat >"$dir/apt/apt.conf" <<CONF
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear Acquire::IndexTargets::deb::DEP-11;
Acquire::Languages "none";
Acquire::Retries "3";
APT::Architecture "amd64";
APT::Sandbox::User "root";
Dir::Etc::sourcelist "$dir/apt/sources.list";
Dir::Etc::sourceparts "$dir/apt/parts";
Dir::Etc::preferencesparts "$dir/apt/parts";
Dir::State "$dir/apt";
Dir::State::lists "$dir/apt/lists";
Dir::State::status "$dir/apt/status";
Dir::Cache "$dir/apt/cache";
CONF

apt() { "$@" -c "$dir/apt/apt.conf"; }
unavailable() {
	printf 'error: %s\n' "$*" >&2
	exit 69
}

# Without the mode, sources that do not answer are a warning.
apt apt-get -q -o APT::Update::Error-Mode=any update >&2 ||
	unavailable "the package sources of $suite do not answer"
# depends PACKAGE PATTERN: the packages PACKAGE depends on whose names match.
depends() {
	apt apt-cache depends --important "$1" | sed -n "s/^ *Depends: \\($2\\)\$/\\1/p"
}
package=$(depends linux-image-cloud-amd64 'linux-image-[0-9].*' | head -n 1)
[ -n "$package" ] || die "$suite has no linux-image-cloud-amd64 that depends on a kernel"
# From 7.x on the image is in a package of its own that linux-image-* depends on.
image=$(depends "$package" 'linux-binary-.*')
(cd "$dir/deb" && apt apt-get -q download "${image:-$package}" busybox-static >&2) ||
	unavailable "${image:-$package} or busybox-static of $suite cannot be downloaded"
for deb in "$dir"/deb/*.deb; do
	dpkg -x "$deb" "$dir/root"
done
# take NAME PATTERN: moves the one file whose path matches out of the unpacked packages.
take() {
	local found
	found=$(find "$dir/root" -type f -path "$2" | head -n 1)
	[ -n "$found" ] || die "no $1 in the packages of $suite: $(cd "$dir/deb" && echo *)"
	mv "$found" "$dir/$1"
}
# /boot/vmlinuz-RELEASE, or from 7.x on /usr/lib/modules/RELEASE/vmlinuz.
take vmlinuz '*/vmlinuz*'
take busybox '*bin/busybox'
# zram is a module, and so is what it is made of, in part; uncompressed, as busybox's insmod takes them. What is not there is
# built in, or not used by this kernel's zram.
mkdir "$dir/modules"
for module in zsmalloc lz4_compress lz4hc_compress zstd_compress zram; do
	found=$(find "$dir/root" -type f -name "$module.ko*" | head -n 1)
	case $found in
	*.xz) xz -dc "$found" >"$dir/modules/$module.ko" ;;
	*.zst) zstd -qdc "$found" >"$dir/modules/$module.ko" ;;
	*.ko) cp "$found" "$dir/modules/$module.ko" ;;
	esac
done
(cd "$dir/deb" && printf '%s\n' *.deb) >"$dir/packages.new"
rm -rf "$dir/apt" "$dir/deb" "$dir/root"
# Last, so that an interrupted run is seen as one.
mv "$dir/packages.new" "$dir/packages"
printf '%s\n' "$dir"
