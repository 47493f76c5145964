#!/usr/bin/env python3
"""How soon what many Python workers use is found, and how true what is told of them is.

  ci/workers.py [--isotherm FILE] [--workers 1,8,32,128] [--how fork,exec] [--seconds 20] [--runs 1]

Each worker touches every page of 4 MiB 20 times a second, and has 4 MiB that it filled once. `fork`: children of one parent that
never executed another program; `exec`: each an interpreter of its own. They run before `isotherm record --pid PARENT` begins. A worker
is found when at least half of its 4 MiB reads accessed. F1 is of all bytes of both arrays, in the snapshots from 5 s on: `F1` of what
was known, `F1 all` with what was unknown as idle. Default of --isotherm: target/release/isotherm. As root, on a machine that does
nothing else; by hand, after a change of the sampler.
"""

import argparse
import ctypes
import json
import mmap
import os
import signal
import subprocess
import sys
import tempfile
import time

HOT = COLD = 4 << 20
PAGE = 4096
# Seconds from which on what is told counts.
SETTLED = 5.0
PR_SET_PDEATHSIG = 1


def work(out):
    """A worker: tells where its memory is, then uses half of it until it is ended."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    # Ends with the parent, however that ends.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    own = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    hot, cold = mmap.mmap(-1, HOT, flags=own), mmap.mmap(-1, COLD, flags=own)
    # Huge pages would make it cheap to observe; small ones are what most interpreters have.
    for area in (hot, cold):
        area.madvise(mmap.MADV_NOHUGEPAGE)
        area[:] = b"\1" * len(area)
    where = [ctypes.addressof(ctypes.c_char.from_buffer(area)) for area in (hot, cold)]
    os.write(out, f"{os.getpid()} {where[0]} {where[1]}\n".encode())
    step = 1 / 20
    view, due = memoryview(hot), time.monotonic() + step * (os.getpid() % 16) / 16
    while True:
        bytes(view[::PAGE])
        due += step
        time.sleep(max(0.0, due - time.monotonic()))


def parent(count, how, out):
    """Starts the workers and waits to be ended; they end before it."""
    workers = []
    try:
        for _ in range(count):
            if how == "fork":
                pid = os.fork()
                if pid == 0:
                    work(out)
                workers.append(pid)
            else:
                args = [sys.executable, __file__, "--worker", str(out)]
                workers.append(os.posix_spawn(sys.executable, args, os.environ))
        signal.sigwait([signal.SIGTERM])
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGTERM)
        for pid in workers:
            os.waitpid(pid, 0)


def judge(raw, where):
    """Time until each worker was found, and the sums of F1, from the lines of `report raw --json`."""
    began, found = None, {}
    pids, sums = {}, {"true": 0, "false": 0, "missed": 0, "unknown": 0}
    # By snapshot and worker: bytes told accessed of both arrays, and unknown of the first.
    told = {}
    for line in raw:
        line = json.loads(line)
        if line["type"] == "header":
            began = line["started_ns"]
        elif line["type"] == "target":
            pids[line["id"]] = line["pid"]
        elif line["type"] == "region":
            workers = told.setdefault(line["end_ns"], {})
            pid = pids[line["target"]]
            if pid not in where:
                continue
            of = workers.setdefault(pid, {"hot": 0, "cold": 0, "known": 0})
            for name, start, size in (("hot", where[pid][0], HOT), ("cold", where[pid][1], COLD)):
                part = min(line["end"], start + size) - max(line["start"], start)
                if part <= 0 or line["rate_hz"] is None:
                    continue
                of["known"] += part if name == "hot" else 0
                of[name] += part if line["nr_accesses"] > 0 else 0
    for end_ns, workers in sorted(told.items()):
        at = (end_ns - began) / 1e9
        for pid in where:
            # One that is not observed yet is unknown.
            of = workers.get(pid, {"hot": 0, "cold": 0, "known": 0})
            if of["hot"] >= HOT / 2:
                found.setdefault(pid, at)
            if at >= SETTLED:
                sums["true"] += of["hot"]
                sums["false"] += of["cold"]
                sums["missed"] += of["known"] - of["hot"]
                sums["unknown"] += HOT - of["known"]
    return found, sums


def f1(true, false, missed):
    return 2 * true / (2 * true + false + missed) if true else 0.0


def measure(isotherm, count, how, seconds):
    read, write = os.pipe()
    os.set_inheritable(write, True)
    started = subprocess.Popen([sys.executable, __file__, "--parent", str(count), how, str(write)], pass_fds=[write])
    os.close(write)
    try:
        where = {}
        with os.fdopen(read) as lines:
            while len(where) < count:
                line = lines.readline()
                if not line:
                    raise SystemExit(f"{len(where)} of {count} workers started; the others say why above")
                pid, hot, cold = line.split()
                where[int(pid)] = (int(hot), int(cold))
            time.sleep(1)
            with tempfile.TemporaryDirectory() as scratch:
                record = os.path.join(scratch, "workers.rec")
                command = [isotherm, "record", "-q", "--pid", str(started.pid), "-d", f"{seconds}s", "-o", record]
                subprocess.run(command, check=True)
                info = json.loads(subprocess.run([isotherm, "report", "info", "-i", record, "--json"], check=True,
                                                 stdout=subprocess.PIPE).stdout)
                raw = subprocess.Popen([isotherm, "report", "raw", "-i", record, "--json"], stdout=subprocess.PIPE)
                found, sums = judge(raw.stdout, where)
                if raw.wait() != 0:
                    raise SystemExit("report raw failed")
    finally:
        started.terminate()
        started.wait()
    by = lambda second: sum(at <= second for at in found.values())
    last = f"{max(found.values()):.1f}" if len(found) == count else "-"
    hot = sums["true"] + sums["missed"] + sums["unknown"]
    print(f"{how:5} {count:7} {by(1):6} {by(2):6} {by(5):6} {by(10):6} {by(seconds + 1):6} "
          f"{last:>6} {f1(sums['true'], sums['false'], sums['missed']):6.3f} "
          f"{f1(sums['true'], sums['false'], sums['missed'] + sums['unknown']):6.3f} {100 * sums['unknown'] / max(hot, 1):7.1f}% "
          f"{100 * cpu_share(info):5.2f}%", flush=True)


def cpu_share(info):
    cost = info["provenance"]["cost"]
    return cost["cpu_ns"] / cost["wall_ns"]


def main():
    if "--worker" in sys.argv:
        return work(int(sys.argv[-1]))
    if "--parent" in sys.argv:
        # Before any worker is started, so that none is missed.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        return parent(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isotherm", default=os.path.join(root, "target/release/isotherm"))
    parser.add_argument("--workers", default="1,8,32,128")
    parser.add_argument("--how", default="fork,exec")
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--runs", type=int, default=1)
    options = parser.parse_args()
    print("how   workers  1 s    2 s    5 s   10 s    end   last     F1 F1 all unknown    CPU")
    for how in options.how.split(","):
        for count in map(int, options.workers.split(",")):
            for _ in range(options.runs):
                measure(options.isotherm, count, how, options.seconds)


if __name__ == "__main__":
    main()
