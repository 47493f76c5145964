"""Runs the two programs of ci/pair.sh in turns and compares them: compare.py times|count THERE HERE ROUNDS."""

import math
import os
import re
import statistics
import subprocess
import sys
import tempfile

CASES = ["x86-64 0 pte", "x86-64 9 pte", "x86-64 9 pmd", "arm64 0 pte", "arm64 4 pte", "arm64 9 pte", "arm64 9 pmd"]
MOST = 1.02
REPEAT = 4
# Rounds of two processes before two others go on: in which sets of the caches a process' pages lie is decided when it starts, and
# moves what goes from folio to folio by a tenth. Rounds of one pair of processes have that in common, so they count as one.
RESTART = 2


class Program:
    def __init__(self, path, cpu):
        self.process = subprocess.Popen(
            [path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=lambda: os.sched_setaffinity(0, {cpu})
        )
        self.names = self.process.stdout.readline().split()

    def end(self):
        self.process.stdin.close()
        self.process.wait()

    def times(self, case):
        self.process.stdin.write(f"{case} {REPEAT}\n")
        self.process.stdin.flush()
        return [float(word) for word in self.process.stdout.readline().split()]


def interval(values):
    """Where the true median is with 95 % confidence: between two order statistics."""
    values = sorted(values)
    count, below, rank = len(values), 0.0, 0
    while below + math.comb(count, rank) / 2**count <= 0.025:
        below += math.comb(count, rank) / 2**count
        rank += 1
    rank = max(rank - 1, 0)
    return values[rank], values[count - 1 - rank]


def timed(there, here, rounds):
    cpu = max(os.sched_getaffinity(0))
    paths = there, here
    slower = []
    print(f"{'':13} {'':8} {'there':>10} {'here':>10}  ratio  95 % interval of {rounds // RESTART} pairs of processes")
    for case in CASES:
        pairs = []
        for n in range(rounds):
            if n % RESTART == 0:
                there, here = (Program(path, cpu) for path in paths)
                names = there.names
                there.times(case), here.times(case)
            if n % 2 == 0:
                first = there.times(case)
                pairs.append((first, here.times(case)))
            else:
                second = here.times(case)
                pairs.append((there.times(case), second))
            if n % RESTART == RESTART - 1:
                there.end(), here.end()
        for at, name in enumerate(names):
            each = [new[at] / old[at] for old, new in pairs]
            ratios = [statistics.geometric_mean(each[n : n + RESTART]) for n in range(0, rounds, RESTART)]
            low, high = interval(ratios)
            old, new = (statistics.median(pair[side][at] for pair in pairs) for side in (0, 1))
            is_slower = low > MOST
            print(
                f"{case:13} {name:8} {old:10.2f} {new:10.2f}  {statistics.median(ratios):.3f}"
                f"  [{low:.3f} {high:.3f}] us{'  slower' if is_slower else ''}",
                flush=True,
            )
            if is_slower:
                slower.append(f"{case} {name}")
    return slower


def instructions(path, case):
    with tempfile.TemporaryDirectory() as folder:
        stripped, out = os.path.join(folder, "program"), os.path.join(folder, "out")
        # With lines known, callgrind would count what is inlined for each file by itself.
        subprocess.run(["objcopy", "--strip-debug", path, stripped], check=True)
        subprocess.run(
            ["valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={out}", stripped],
            input=f"{case} 2\n", text=True, check=True, stdout=subprocess.DEVNULL,
        )
        shown = subprocess.run(
            ["callgrind_annotate", "--inclusive=yes", "--threshold=100", out], text=True, check=True, stdout=subprocess.PIPE
        ).stdout
    found = re.findall(r"^ *([0-9,]+) .*::op_([a-z]+)", shown, re.MULTILINE)
    return {name: int(count.replace(",", "")) for count, name in found}


def counted(there, here):
    more = []
    print(f"{'':13} {'':8} {'there':>12} {'here':>12}  ratio")
    for case in CASES:
        old, new = instructions(there, case), instructions(here, case)
        for name in old:
            ratio = new[name] / old[name]
            print(f"{case:13} {name:8} {old[name]:12} {new[name]:12}  {ratio:.3f}{'  more' if ratio > MOST else ''}", flush=True)
            if ratio > MOST:
                more.append(f"{case} {name}")
    return more


how, there, here, rounds = sys.argv[1:]
# Of fewer than six values no interval has the true median in it with 95 % confidence.
if int(rounds) < 6 * RESTART or int(rounds) % RESTART:
    sys.exit(f"error: {rounds} rounds: give a multiple of {RESTART}, {6 * RESTART} or more")
worse = counted(there, here) if how == "count" else timed(there, here, int(rounds))
print(f"{len(worse)} above {MOST}{': ' if worse else ''}{', '.join(worse)}")
sys.exit(bool(worse))
