// SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0-only
//
// Reads the page tables of another process: single entries, or whole tables. And how long processes have run: one that
// did not run accessed no memory, which is all there is to know of it for the price of a few reads. And a list of all
// processes, whose children they are and whether they ran: by /proc each takes a hundred times as long.
//
// The program is run on demand (BPF_PROG_TYPE_SYSCALL through BPF_PROG_RUN), attached to nothing. User space puts
// its requests into the mmapped `shared`, runs the program once, and reads raw entries from there.
// Nothing is written to kernel memory and no lock is taken: every access is a bpf_probe_read_kernel(), which
// returns an error where memory is not there.
//
// How it is kept cheap to load: the verifier follows each path through a program, and each again wherever a function is
// inlined or called with other knowledge. A function that is not static it checks once, for any arguments. It forgets
// what is written to a map. So functions here take and return numbers, and what they have in common lies in `shared`.
//
// How a process is found: see process.h.
//
// Why a freed page table never counts: after an entry (or a whole table) is read, the one above it is read again. Only
// if that is unchanged was the table still linked when it was read. The entries further up, which neighbouring
// addresses share, are read again before the program moves on to another GiB, and at the end. If one of those that
// were followed changed, or the process died or called exec meanwhile, user space drops the whole run.

#include "helpers.h"

enum { MAX_ADDRS = 4096, MAX_TABLES = 256, ENTRIES = 512, TABLE_SIZE = 4096 };
enum { MAX_PROCESSES = 256, MAX_THREADS = 64 };
// A list of processes takes the place of tables, which are not kept from one run to the next.
enum { LISTED_WORDS = 4, MAX_LISTED = MAX_TABLES * ENTRIES / LISTED_WORDS };

enum status { OK = 0, GONE = 2, CHANGED = 3 };

// Run arguments, copied in and out by BPF_PROG_RUN.
struct args {
	u64 page_offset; // where physical address 0 is mapped
	u64 phys_mask;	 // bits of an entry that are the physical address
	u64 pgd;	 // in: 0, or a table to walk instead of the process's (only to prove page_offset); out: the one walked
	u64 mm;		 // out: address of the mm, to notice an exec between runs
	s32 pidfd;	 // of the process, open in the caller; -1: the caller itself
	u32 levels;	 // 4 or 5
	u32 addrs;	 // addresses in shared.addr
	u32 requests;	 // requests in shared.request
	u32 status;	 // out: enum status
	u32 processes;	 // processes in shared.process
	u32 list;		 // in: not 0: list all processes into shared.table; out: how many
	u32 own;		 // of a list: the caller's number; out: the one it has there
};

// Where the running kernel keeps the fields that are read: bytes from the start of their structs.
struct offsets {
	PROCESS_OFFSETS;
	u32 mm_pgd;
	u32 mm_users;
	u32 task_on_cpu;
	u32 task_se;
	u32 entity_runtime;
	u32 task_nvcsw;
	u32 task_nivcsw;
	u32 signal_nr_threads;
	u32 signal_runtime;
	u32 task_tasks;
	u32 task_tgid;
	u32 task_real_parent;
	u32 task_group_leader;
	u32 task_comm;
	u32 mm_total_vm;
};

struct slot {
	u64 entry; // raw
	u32 level; // 1: PTE, 2: PMD leaf, 3: PUD leaf; 16 + n: nothing present at level n; 0: could not be read
	u32 pad;
};

// A page table to copy: the one of level `want` that maps `addr` (1: of 2 MiB, 2: of 1 GiB, ...).
struct request {
	u64 addr;
	u64 entry; // out: the leaf met instead, raw
	u32 want;
	u32 found; // out: 32 + want: copied to shared.table; else as slot.level
};

// A process of which to tell how long it has run.
struct process {
	s32 pidfd;
	u32 known; // out: 1 if it can be told, 2 if one of its threads runs now, or they are too many to be gone through
	u64 ran;   // out: CPU time of all its threads, those that ended too, ns, and how often each was switched from: another
		   // number whenever one of them ran, also where all of a short run passed for time that a hypervisor took
};

// The threads of a process that were gone through.
struct threads {
	u64 signal;
	u64 node;
	u64 ran;
	u32 gone_through;
	u32 running; // one is on a processor
};

// The kernel's list of all processes, in the order in which they were born: a ring, begun at the caller.
struct list {
	u64 node; // the next one's
	u64 first;
	u32 count;
	u32 whole;
};

// What the addresses of one GiB have in common: the way down to their PMD table.
struct run {
	u64 page_offset;
	u64 phys_mask;
	u64 pgd;
	u64 gib;	  // which GiB, plus one; 0: none yet
	u64 pmd_table;	  // 0: the way ends above
	u64 end_entry;
	u64 at[6];	  // entries on the way: where they are, if reached
	u64 seen[6];	  // and what they were
	u32 levels;
	u32 end_level;	  // where the way ends, if it does: as slot.level
	u32 followed;	  // a bit a level: entries on the way that point to a table that was read
	u32 torn;	  // a table of the way down went away
};

struct shared {
	u64 addr[MAX_ADDRS];
	struct slot slot[MAX_ADDRS];
	u64 table[MAX_TABLES][ENTRIES];
	struct request request[MAX_TABLES];
	struct process process[MAX_PROCESSES];
	struct offsets offset;
	struct run run;
	struct group group;
	struct threads threads;
	struct list list;
} shared;

enum { PRESENT = 1, ACCESSED = 1 << 5, HUGE = 1 << 7 };

// The Accessed bit of an upper entry may be set by the processor meanwhile.
static __always_inline int unchanged(u64 at, u64 seen)
{
	u64 entry = 0;

	return !READ(entry, at) && !((entry ^ seen) & ~(u64)ACCESSED);
}

// Were the tables on the way down linked until now? If not, nothing that was found by it counts.
__noinline int leave_gib(void)
{
	struct run *run = &shared.run;
	int level;

#pragma clang loop unroll(full)
	for (level = 5; level >= 3; level--) {
		if (run->followed & (1 << level) && !unchanged(run->at[level], run->seen[level]))
			run->torn = 1;
	}
	return 0;
}

__noinline int enter_gib(u64 addr)
{
	struct run *run = &shared.run;
	u64 table = run->pgd, entry = 0, at;
	int level;

	run->gib = (addr >> 30) + 1;
	run->pmd_table = 0;
	run->end_level = 0;
	run->end_entry = 0;
	run->followed = 0;
	run->at[5] = run->at[4] = run->at[3] = 0;
#pragma clang loop unroll(full)
	for (level = 5; level >= 3; level--) {
		if (level > run->levels)
			continue;
		at = table + ((addr >> (12 + 9 * (level - 1))) & 511) * 8;
		if (READ(entry, at))
			return 0;
		run->at[level] = at;
		run->seen[level] = entry;
		if (!(entry & PRESENT)) {
			run->end_level = 16 + level;
			return 0;
		}
		if (level == 3 && (entry & HUGE)) {
			run->end_level = level;
			run->end_entry = entry;
			return 0;
		}
		run->followed |= 1 << level;
		table = run->page_offset + (entry & run->phys_mask);
	}
	run->pmd_table = table;
	return 0;
}

static __always_inline void to_gib_of(u64 addr)
{
	if (shared.run.gib == (addr >> 30) + 1)
		return;
	leave_gib();
	enter_gib(addr);
}

// A PTE with PROT_NONE (NUMA hinting) has PRESENT clear; so has a PMD under invalidation. Both read as absent.
__noinline int lookup(u32 index)
{
	struct run *run = &shared.run;
	struct slot *slot;
	u64 addr, at, pmd = 0, pte = 0;

	if (index >= MAX_ADDRS)
		return 0;
	addr = shared.addr[index];
	slot = &shared.slot[index];
	slot->level = 0;
	slot->entry = 0;
	to_gib_of(addr);
	if (!run->pmd_table) {
		slot->level = run->end_level;
		slot->entry = run->end_entry;
		return 0;
	}
	at = run->pmd_table + ((addr >> 21) & 511) * 8;
	if (READ(pmd, at))
		return 0;
	if (!(pmd & PRESENT)) {
		slot->level = 16 + 2;
		return 0;
	}
	if (pmd & HUGE) {
		slot->level = 2;
		slot->entry = pmd;
		return 0;
	}
	if (READ(pte, run->page_offset + (pmd & run->phys_mask) + ((addr >> 12) & 511) * 8))
		return 0;
	// Was the table still linked when its entry was read? The leaf itself may change at any time.
	if (!unchanged(at, pmd))
		return 0;
	slot->level = pte & PRESENT ? 1 : 16 + 1;
	slot->entry = pte;
	return 0;
}

__noinline int fetch(u32 index)
{
	struct run *run = &shared.run;
	struct request *request;
	u64 addr, table, at = 0, pmd = 0;
	u32 want;

	if (index >= MAX_TABLES)
		return 0;
	request = &shared.request[index];
	addr = request->addr;
	want = request->want;
	request->found = 0;
	request->entry = 0;
	to_gib_of(addr);
	if (want > 2) {
		// The table that holds the entry on the way; the root may be one of a pair of pages.
		table = (want == 3 ? run->at[3] : want == 4 ? run->at[4] : run->at[5]) & ~(u64)(TABLE_SIZE - 1);
	} else {
		table = run->pmd_table;
	}
	if (!table) {
		request->found = run->end_level;
		request->entry = run->end_entry;
		return 0;
	}
	if (want == 1) {
		at = table + ((addr >> 21) & 511) * 8;
		if (READ(pmd, at))
			return 0;
		if (!(pmd & PRESENT)) {
			request->found = 16 + 2;
			return 0;
		}
		if (pmd & HUGE) {
			request->found = 2;
			request->entry = pmd;
			return 0;
		}
		table = run->page_offset + (pmd & run->phys_mask);
	}
	if (bpf_probe_read_kernel(shared.table[index], TABLE_SIZE, (void *)table))
		return 0;
	if (want != 1 || unchanged(at, pmd))
		request->found = 32 + want;
	return 0;
}

static __noinline long visit_addr(u32 index, void *unused)
{
	lookup(index);
	return 0;
}

static __noinline long visit_request(u32 index, void *unused)
{
	fetch(index);
	return 0;
}

#include "process.h"

static __noinline long visit_thread(u32 index, void *unused)
{
	struct offsets *offset = &shared.offset;
	struct threads *threads = &shared.threads;
	u64 task = threads->node - offset->task_thread_node;

	if (!threads->node || threads->node == threads->signal + offset->signal_thread_head)
		return 1;
	if (word_at(task + offset->task_signal) != threads->signal)
		return 1;
	// What is on a processor now is accounted for at its next tick.
	threads->running |= (u32)word_at(task + offset->task_on_cpu);
	threads->ran += word_at(task + offset->task_se + offset->entity_runtime);
	threads->ran += word_at(task + offset->task_nvcsw) + word_at(task + offset->task_nivcsw);
	threads->gone_through++;
	threads->node = word_at(threads->node);
	return 0;
}

// Of a process that shares its memory with another one (vfork, vhost) it cannot be told.
static __noinline long visit_process(u32 index, void *unused)
{
	struct offsets *offset = &shared.offset;
	struct threads *threads = &shared.threads;
	struct process *process;
	u64 task, mm;
	u32 nr_threads, users;

	if (index >= MAX_PROCESSES)
		return 1;
	process = &shared.process[index];
	process->known = 0;
	task = task_of(process->pidfd);
	threads->signal = word_at(task + offset->task_signal);
	mm = word_at(task + offset->task_mm);
	if (!task || !threads->signal || !mm)
		return 0;
	nr_threads = word_at(threads->signal + offset->signal_nr_threads);
	users = word_at(mm + offset->mm_users);
	if (!nr_threads || !users || users > nr_threads)
		return 0;
	if (nr_threads > MAX_THREADS) {
		process->ran = 0;
		process->known = 2;
		return 0;
	}
	threads->gone_through = threads->running = 0;
	threads->ran = word_at(threads->signal + offset->signal_runtime);
	threads->node = word_at(threads->signal + offset->signal_thread_head);
	bpf_loop(MAX_THREADS, visit_thread, 0, 0);
	process->ran = threads->ran;
	if (threads->gone_through == nr_threads)
		process->known = threads->running ? 2 : 1;
	return 0;
}

// The list is not locked. Whoever leaves it keeps pointing to what followed, and its neighbours point past it: so each step
// counts only if the node that it leads to points back. Where it does not, the list ends without being whole. (One that left
// it between two steps, and whose memory became that of the youngest process, would lead there past all others.)
static __noinline long visit_task(u32 index, void *unused)
{
	struct offsets *offset = &shared.offset;
	struct list *list = &shared.list;
	u64 task = list->node - offset->task_tasks, next = word_at(list->node), signal, mm, ran;
	u32 nr_threads, users, on_cpu, row, column;

	if (word_at(next + 8) != list->node)
		return 1;
	mm = word_at(task + offset->task_mm);
	signal = word_at(task + offset->task_signal);
	nr_threads = word_at(signal + offset->signal_nr_threads);
	users = mm ? word_at(mm + offset->mm_users) : 0;
	on_cpu = word_at(task + offset->task_on_cpu);
	ran = word_at(signal + offset->signal_runtime) + word_at(task + offset->task_se + offset->entity_runtime);
	ran += word_at(task + offset->task_nvcsw) + word_at(task + offset->task_nivcsw);
	row = (index >> 7) & (MAX_TABLES - 1);
	column = (index & 127) * LISTED_WORDS;
	shared.table[row][column] = word_at(word_at(task + offset->task_real_parent) + offset->task_tgid) << 32 |
				    (u32)word_at(task + offset->task_tgid);
	shared.table[row][column + 1] = ran;
	// Of several threads only the first was asked, and of a process that shares its memory only this one.
	shared.table[row][column + 2] = (mm || nr_threads > 1 ? 1 : 0) | (on_cpu ? 2 : 0) | (nr_threads == 1 && users <= 1 ? 4 : 0) |
					(mm ? word_at(mm + offset->mm_total_vm) : 0) << 8;
	shared.table[row][column + 3] = word_at(task + offset->task_comm);
	list->count++;
	list->node = next;
	list->whole = next == list->first;
	return list->whole;
}

static __noinline void list_processes(struct args *args)
{
	struct offsets *offset = &shared.offset;
	struct list *list = &shared.list;
	u64 leader = word_at(bpf_get_current_task() + offset->task_group_leader);
	u32 own = args->own;

	args->own = bpf_get_current_pid_tgid() >> 32;
	args->list = 0;
	args->status = CHANGED;
	if (own != args->own || !leader)
		return;
	list->count = list->whole = 0;
	list->first = list->node = leader + offset->task_tasks;
	bpf_loop(MAX_LISTED, visit_task, 0, 0);
	args->list = list->count;
	if (list->whole)
		args->status = OK;
}

// The section only has to be one that loaders can parse; the program is loaded as BPF_PROG_TYPE_SYSCALL.
SEC("raw_tp/walk")
int walk(struct args *args)
{
	struct run *run = &shared.run;
	u64 mm, pgd;

	if (args->list) {
		list_processes(args);
		return 0;
	}
	if (args->processes) {
		bpf_loop(args->processes, visit_process, 0, 0);
		args->status = OK;
		return 0;
	}
	mm = mm_of(args->pidfd);
	pgd = word_at(mm + shared.offset.mm_pgd);
	if (!mm || !pgd) {
		args->status = GONE;
		return 0;
	}
	args->mm = mm;
	if (args->pgd)
		pgd = args->pgd;
	args->pgd = pgd;
	run->pgd = pgd;
	run->page_offset = args->page_offset;
	run->phys_mask = args->phys_mask;
	run->levels = args->levels;
	run->gib = 0;
	run->followed = 0;
	run->torn = 0;
	bpf_loop(args->addrs, visit_addr, 0, 0);
	bpf_loop(args->requests, visit_request, 0, 0);
	leave_gib();
	args->status = mm_of(args->pidfd) == mm && !run->torn ? OK : CHANGED;
	return 0;
}

LICENCE;
