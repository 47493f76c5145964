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
