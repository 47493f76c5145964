#!/usr/bin/env bash
# Measures what `isotherm top` takes at its defaults, in pseudo-terminals of 80 x 24 and 200 x 60: shares of a CPU that
# monitoring and the screen took, bytes sent, snapshots lost. The bars: at most 1 % each, no snapshot lost. As root.
#
#   ci/top-cost.sh [ISOTHERM [CASE...]]     default: target/release/isotherm, all cases
#
# all: every process of the machine; pid: one, of 1 GiB with 64 MiB in use; entered: the same, its heatmap on the screen.
# `SECONDS_EACH=60` is how long each runs. The first five seconds, in which it starts, are part of the first figures and
# not of the second. PID=1234 watches that process instead of one of its own.
set -euo pipefail
# shellcheck source=ci/lib.sh
. "$(dirname "$0")/lib.sh"
need python3 python3
isotherm=$(realpath "${1:-$root/target/release/isotherm}")
[ $# -eq 0 ] || shift
[ $# -ne 0 ] || set -- all pid entered
exec python3 - "$isotherm" "${SECONDS_EACH:-60}" "${PID:-}" "$@" <<'PYTHON'
import fcntl, os, pty, re, select, struct, subprocess, sys, termios, time

isotherm, seconds, pid, cases = sys.argv[1], float(sys.argv[2]), sys.argv[3], sys.argv[4:]
START = 5.0
sizes = ((80, 24), (200, 60))


def threads(of):
    """CPU time of each thread, in seconds, by its name."""
    found = {}
    for task in os.listdir(f"/proc/{of}/task"):
        try:
            name = open(f"/proc/{of}/task/{task}/comm").read().strip()
            found[name] = found.get(name, 0) + int(open(f"/proc/{of}/task/{task}/schedstat").read().split()[0]) / 1e9
        except OSError:
            pass
    return found


def measured(case, size):
    arguments = ["--all"] if case == "all" else ["--pid", pid]
    child, master = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execv(isotherm, [isotherm, "top", *arguments])
    columns, lines = size
    resize = lambda lines: fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    resize(lines)
    sent, said = 0, b""

    def read_until(end):
        nonlocal sent, said
        while (left := end - time.monotonic()) > 0:
            if select.select([master], [], [], left)[0]:
                try:
                    piece = os.read(master, 1 << 16)
                except OSError:
                    sys.exit(f"it ended: {said.decode(errors='replace')}")
                sent += len(piece)
                said = (said + piece)[-(1 << 20):]

    begin = time.monotonic()
    read_until(begin + START - 2)
    if case == "entered":
        os.write(master, b"\r")
    read_until(begin + START)
    at_start, sent_at_start = threads(child), sent
    read_until(begin + seconds)
    at_end, wall, all_sent = threads(child), time.monotonic() - begin, sent
    # Another size has all of it drawn anew, in one piece.
    said = b""
    resize(lines + 1)
    read_until(time.monotonic() + 2)
    text = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", said).decode(errors="replace")
    snapshots = re.findall(r"snapshots (\d+), (\d+) (?:lost|LOST)", text)
    os.write(master, b"q")
    try:
        while os.read(master, 1 << 16):
            pass
    except OSError:
        # The other end is closed.
        pass
    os.waitpid(child, 0)
    os.close(master)
    screen = lambda by: by.get("isotherm-screen", 0)
    total = lambda by: sum(by.values())
    steady = wall - START
    shares = [(total(at_end) - screen(at_end)) / wall, screen(at_end) / wall]
    shares += [(total(at_end) - screen(at_end) - total(at_start) + screen(at_start)) / steady]
    shares += [(screen(at_end) - screen(at_start)) / steady]
    count, lost = snapshots[-1] if snapshots else ("?", "?")
    print("%-8s %9s %10.2f %7.2f %13.2f %7.2f %6.2f %10s %5s" % (
        case, f"{columns}x{lines}", *(100 * share for share in shares),
        (all_sent - sent_at_start) / steady / 1000, count, lost), flush=True)
    return shares[0] <= 0.01 and shares[1] <= 0.01 and lost == "0"


program = None
if not pid and set(cases) - {"all"}:
    command = [isotherm, "workload", "hotspot", "--set", "total=1G", "--set", "spot=64M", "--set", "phase=3600s"]
    program = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    pid = str(program.pid)
    time.sleep(3)
print("%-8s %9s %10s %7s %13s %7s %6s %10s %5s" % (
    "case", "terminal", "monitor %", "screen", "from 5 s on %", "screen", "kB/s", "snapshots", "lost"), flush=True)
try:
    met = [measured(case, size) for case in cases for size in sizes]
finally:
    if program:
        program.kill()
sys.exit(0 if all(met) else 1)
PYTHON
