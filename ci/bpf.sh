#!/usr/bin/env bash
# Builds the BPF objects that are committed beside their sources (crates/linux/bpf/*.bpf.c).
#
#   ci/bpf.sh build     write the objects anew; commit them with the source
#   ci/bpf.sh check     build them elsewhere and compare with the committed ones; changes nothing
#
# Another compiler makes other instructions of the same source, so both want the one version of clang
# named here, Debian 12's, and the comparison is byte for byte. ISOTHERM_CLANG=clang-NN checks with
# another one that the sources compile; nothing can be compared then, and the script says so.
set -euo pipefail
# shellcheck source=ci/lib.sh
. "$(dirname "$0")/lib.sh"

pinned=14
sources=$root/crates/linux/bpf

mode=${1:-}
case $mode in
build | check) ;;
*) die "usage: ci/bpf.sh build|check" ;;
esac
clang=${ISOTHERM_CLANG:-clang-$pinned}
strip=llvm-strip-${clang##*-}
need "$clang" "clang-$pinned"
need "$strip" "llvm-${clang##*-}"
version=$("$clang" -dumpversion)
if [ "${version%%.*}" = "$pinned" ]; then comparable=yes; else comparable=no; fi
[ "$mode$comparable" != buildno ] ||
	die "$clang is clang $version; the committed objects are built with clang-$pinned"

# compile SOURCE OBJECT: the same bytes wherever the clone lies, so its directory is mapped away. BTF
# stays, the DWARF it was made from goes.
compile() {
	(cd "$(dirname "$1")" && "$clang" -O2 -g -target bpf -mcpu=v3 -Wall -Werror \
		-ffile-prefix-map="$PWD=." -c "$(basename "$1")" -o "$2")
	"$strip" --strip-debug "$2"
}

# instructions OBJECT: with relocations, and without the line that names the file.
instructions() {
	"llvm-objdump-$pinned" -d -r "$1" | tail -n +3
}

built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
failed=0
for source in "$sources"/*.bpf.c; do
	[ -e "$source" ] || die "no *.bpf.c in $sources"
	committed=${source%.c}.o
	name=${committed#"$root/"}
	compile "$source" "$built/object"
	if [ "$mode" = build ]; then
		install -m 644 "$built/object" "$committed"
		say "built    $name with clang $version"
	elif [ "$comparable" = no ]; then
		say "compiles ${source#"$root/"}; not compared with $name: clang $version here, clang $pinned made it"
	elif cmp -s "$built/object" "$committed"; then
		say "same     $name, rebuilt with clang $version"
	else
		failed=1
		say "DIFFERS  $name from what clang $version makes of its source; run ci/bpf.sh build and commit both"
		if diff <(instructions "$committed") <(instructions "$built/object") >"$built/diff"; then
			say "         the instructions are the same; BTF, line information or stripping is not"
		else
			head -n 20 "$built/diff"
		fi
	fi
done
exit "$failed"
