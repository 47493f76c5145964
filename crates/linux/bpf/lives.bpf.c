// SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0-only
//
// Counts processes that come and go: those that targets, and their children in turn, start, and those of them that ended
// before user space had seen them. Two programs, run by the kernel whenever a process or thread is made or ends; nothing but
// `shared`, which user space has mapped, is written to.
//
// Of each pid four bits are kept. A process that is made is TRACKED if the one that made it is; user space marks its targets as
// TRACKED and SEEN, by the same atomic operations, and learns of each whether it has ENDED, and so was counted, just before. What
// a pid meant before is forgotten when it is given out anew, so that a mark that came too late does no harm.

#include "helpers.h"

// Pids are smaller (PID_MAX_LIMIT on 64 bits).
enum { MAX_PIDS = 1 << 22, PIDS_A_WORD = 16 };

enum { TRACKED = 1, SEEN = 2, ENDED = 4, ALL = 15 };

// Where the running kernel keeps the fields that are read: bytes from the start of their structs.
struct offsets {
	u32 task_pid;
	u32 task_tgid;
	u32 task_mm;
	u32 task_signal;
	u32 signal_live;
	u32 pad;
};

struct shared {
	u64 forked;	// processes made by what is TRACKED
	u64 unseen;	// of what is TRACKED, those that ended without being SEEN
	u64 everything; // in: not 0: whoever makes a process counts
	struct offsets offset;
	u64 state[MAX_PIDS / PIDS_A_WORD];
} shared;

static __always_inline u64 *word_of(u32 pid)
{
	return &shared.state[(pid & (MAX_PIDS - 1)) / PIDS_A_WORD];
}

static __always_inline u32 shift_of(u32 pid)
{
	return (pid % PIDS_A_WORD) * 4;
}

// Arguments of the tracepoint: the parent, the child. The current process is the one that makes it.
SEC("raw_tp/sched_process_fork")
int born(u64 *ctx)
{
	struct offsets *offset = &shared.offset;
	u64 child = ctx[1], mm = 0;
	u32 pid = 0, tgid = 0, parent = bpf_get_current_pid_tgid() >> 32, counts;

	// A thread has the number of its process beside its own.
	if (READ(pid, child + offset->task_pid) || READ(tgid, child + offset->task_tgid) || pid != tgid)
		return 0;
	counts = *word_of(parent) >> shift_of(parent) & TRACKED;
	// Kernel threads have no memory of their own.
	if (shared.everything)
		counts = !READ(mm, child + offset->task_mm) && mm;
	__sync_fetch_and_and(word_of(pid), ~((u64)ALL << shift_of(pid)));
	if (counts) {
		__sync_fetch_and_or(word_of(pid), (u64)TRACKED << shift_of(pid));
		__sync_fetch_and_add(&shared.forked, 1);
	}
	return 0;
}

// Arguments of the tracepoint: the thread that ends. It comes for every thread, after the count of those that live was lowered.
SEC("raw_tp/sched_process_exit")
int ended(u64 *ctx)
{
	struct offsets *offset = &shared.offset;
	u64 task = ctx[0], signal = 0, before;
	u32 pid = 0, live = 1;

	if (READ(signal, task + offset->task_signal) || !signal || READ(live, signal + offset->signal_live) || live)
		return 0;
	if (READ(pid, task + offset->task_tgid))
		return 0;
	// Of the last two threads of a process, ending together, both may find none alive: the first sets the bit.
	before = __sync_fetch_and_or(word_of(pid), (u64)ENDED << shift_of(pid));
	if ((before >> shift_of(pid) & ALL) == TRACKED)
		__sync_fetch_and_add(&shared.unseen, 1);
	return 0;
}

LICENCE;
