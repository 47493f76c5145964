# shellcheck shell=bash
# Shared by the scripts beside it; sourced, never run.

# shellcheck disable=SC2034  # the scripts that source this use it
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

say() { printf '%s\n' "$*"; }

die() {
	printf 'error: %s\n' "$*" >&2
	exit 1
}

# need COMMAND PACKAGE: stop with the remedy when a command is missing.
need() {
	command -v "$1" >/dev/null 2>&1 ||
		die "$1 is not installed; on Debian: apt-get install $2"
}

# For scripts of several steps, which go on after one that failed: a heading; why something is left out; and a command that
# must succeed, or `failed` is 1 at the end.
heading() { printf '\n### %s\n' "$1"; }
skip() { printf 'skipped: %s\n' "$1"; }
# shellcheck disable=SC2034  # the scripts that source this use it
failed=0
must() { "$@" || failed=1; }

# nightly COMPONENT...: whether the nightly toolchain has them. With CI=true in the environment, what is missing is installed.
# Otherwise it says how.
nightly() {
	local component missing=''
	for component in "$@"; do
		rustup +nightly component list 2>/dev/null | grep -Eq "^$component(-.*)? \(installed\)" || missing+=" $component"
	done
	[ -n "$missing" ] || return 0
	if [ "${CI:-}" != true ]; then
		skip "the nightly toolchain lacks$missing: rustup toolchain install nightly --component $(
			IFS=,
			printf '%s' "$*"
		)"
		return 1
	fi
	{
		rustup toolchain list | grep -q '^nightly' ||
			rustup toolchain install nightly --no-self-update --profile minimal
	} && rustup component add --toolchain nightly "$@"
}

# bare_target TARGET: whether rustup has the target, or can add it.
bare_target() {
	rustup target list --installed 2>/dev/null | grep -qx "$1" || rustup target add "$1" >/dev/null 2>&1 || {
		skip "rustup cannot add the target $1"
		return 1
	}
}
