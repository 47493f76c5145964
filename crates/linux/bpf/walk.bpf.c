// SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0-only
//
// Reads the page tables of another process: single entries (`walk`), or whole tables (`tables`).
//
// The programs are run on demand (BPF_PROG_TYPE_SYSCALL through BPF_PROG_RUN), attached to nothing. User space puts
// its requests into the mmapped array `shared`, runs a program once, and reads raw entries from the same array.
// Nothing is written to kernel memory and no lock is taken: every access is a bpf_probe_read_kernel(), which
// returns an error where memory is not there.
//
// How a process is found: user space holds a pidfd. Its file points to a `struct pid`, which the pidfd keeps
// alive; from it the current thread-group leader (right also after an exec by another thread), its mm, its pgd are
// read anew on every run. `task->thread_pid == pid` proves that the pointer chased is what it is taken for.
//
// Why a freed page table never counts: after an entry (or a whole table) is read, the one above it is read again. Only
// if that is unchanged was the table still linked when it was read. The entries further up, which neighbouring
// addresses share, are read again before the program moves on to another GiB, and at the end. If one of those that
// were followed changed, or the process died or called exec meanwhile, user space drops the whole run.

#include "helpers.h"

enum { PIDTYPE_TGID = 1, MAX_ADDRS = 4096, MAX_TABLES = 256, ENTRIES = 512, TABLE_SIZE = 4096 };

// Just the fields that are read; offsets are relocated against the running kernel's BTF.
struct hlist_node { struct hlist_node *next; } CORE;
struct hlist_head { struct hlist_node *first; } CORE;
struct inode { void *i_private; } CORE;
struct file { void *private_data; struct inode *f_inode; } CORE;
struct fdtable { u32 max_fds; struct file **fd; } CORE;
struct files_struct { struct fdtable *fdt; } CORE;
struct pid { struct hlist_head tasks[4]; } CORE;
struct mm_struct { void *pgd; } CORE;
struct list_head { struct list_head *next; } CORE;
struct signal_struct { struct list_head thread_head; } CORE;
struct task_struct {
	struct mm_struct *mm;
	struct signal_struct *signal;
	struct list_head thread_node;
	struct files_struct *files;
	struct pid *thread_pid;
	struct hlist_node pid_links[4];
} CORE;

enum status { OK = 0, NO_PIDFD = 1, GONE = 2, CHANGED = 3, NO_MAP = 4 };

// Run arguments, copied in and out by BPF_PROG_RUN.
struct args {
	u64 page_offset; // where physical address 0 is mapped
	u64 phys_mask;	 // bits of an entry that are the physical address
	u64 pgd;	 // in: 0, or a table to walk instead of the process's (only to prove page_offset); out: the one walked
	u64 mm;		 // out: address of the mm, to notice an exec between runs
	s32 pidfd;	 // of the process, open in the caller; -1: the caller itself
	u32 levels;	 // 4 or 5
	u32 count;	 // addresses in shared.addr, or requests in shared.request
	u32 status;	 // out: enum status
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

struct shared {
	u64 addr[MAX_ADDRS];
	struct slot slot[MAX_ADDRS];
	u64 table[MAX_TABLES][ENTRIES];
	struct request request[MAX_TABLES];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct shared);
} shared SEC(".maps");

// What the addresses of one GiB have in common: the way down to their PMD table.
struct run {
	u64 page_offset;
	u64 phys_mask;
	u64 pgd;
	struct shared *shared;
	u32 levels;
	u32 torn;	  // a table of the way down went away
	u64 gib;	  // which GiB, plus one; 0: none yet
	u64 pmd_table;	  // 0: the way ends above
	u32 end_level;	  // where it ends, if it does: as slot.level
	u64 end_entry;
	u64 at[6];	  // entries on the way: where they are, if reached
	u64 seen[6];	  // and what they were
	u32 followed;	  // a bit a level: entries on the way that point to a table that was read
};

enum { PRESENT = 1, ACCESSED = 1 << 5, HUGE = 1 << 7 };

// The Accessed bit of an upper entry may be set by the processor meanwhile.
static __always_inline int unchanged(u64 at, u64 seen)
{
	u64 entry = 0;

	return !READ(entry, (void *)at) && !((entry ^ seen) & ~(u64)ACCESSED);
}

// Were the tables on the way down linked until now? If not, nothing that was found by it counts.
static __always_inline void leave_gib(struct run *run)
{
	int level;

#pragma clang loop unroll(full)
	for (level = 5; level >= 3; level--) {
		if (run->followed & (1 << level) && !unchanged(run->at[level], run->seen[level]))
			run->torn = 1;
	}
}

static __always_inline void enter_gib(struct run *run, u64 addr)
{
	u64 table = run->pgd, entry = 0, at;
	int level, done = 0;

	leave_gib(run);
	run->gib = (addr >> 30) + 1;
	run->pmd_table = 0;
	run->end_level = 0;
	run->end_entry = 0;
	run->followed = 0;
#pragma clang loop unroll(full)
	for (level = 5; level >= 3; level--) {
		run->at[level] = 0;
		if (done || level > run->levels)
			continue;
		at = table + ((addr >> (12 + 9 * (level - 1))) & 511) * 8;
		if (READ(entry, (void *)at)) {
			done = 1;
			continue;
		}
		run->at[level] = at;
		run->seen[level] = entry;
		if (!(entry & PRESENT)) {
			run->end_level = 16 + level;
			done = 1;
		} else if (level == 3 && (entry & HUGE)) {
			run->end_level = level;
			run->end_entry = entry;
			done = 1;
		} else {
			run->followed |= 1 << level;
			table = run->page_offset + (entry & run->phys_mask);
		}
	}
	if (!done)
		run->pmd_table = table;
}

// A PTE with PROT_NONE (NUMA hinting) has PRESENT clear; so has a PMD under invalidation. Both read as absent.
static __always_inline void lookup(struct run *run, u64 addr, struct slot *slot)
{
	u64 at, pmd = 0, pte = 0;

	slot->level = 0;
	slot->entry = 0;
	if (run->gib != (addr >> 30) + 1)
		enter_gib(run, addr);
	if (!run->pmd_table) {
		slot->level = run->end_level;
		slot->entry = run->end_entry;
		return;
	}
	at = run->pmd_table + ((addr >> 21) & 511) * 8;
	if (READ(pmd, (void *)at))
		return;
	if (!(pmd & PRESENT)) {
		slot->level = 16 + 2;
		return;
	}
	if (pmd & HUGE) {
		slot->level = 2;
		slot->entry = pmd;
		return;
	}
	if (READ(pte, (void *)(run->page_offset + (pmd & run->phys_mask) + ((addr >> 12) & 511) * 8)))
		return;
	// Was the table still linked when its entry was read? The leaf itself may change at any time.
	if (!unchanged(at, pmd))
		return;
	slot->level = pte & PRESENT ? 1 : 16 + 1;
	slot->entry = pte;
}

static __noinline long visit(u32 index, void *ctx)
{
	struct run *run = ctx;
	struct slot slot = {};

	if (index >= MAX_ADDRS || !run->shared)
		return 1;
	lookup(run, run->shared->addr[index], &slot);
	run->shared->slot[index].entry = slot.entry;
	run->shared->slot[index].level = slot.level;
	return 0;
}

static __always_inline int copy_table(struct run *run, u32 index, u64 table)
{
	return bpf_probe_read_kernel(run->shared->table[index], TABLE_SIZE, (void *)table);
}

static __always_inline void fetch(struct run *run, u32 index, struct request *request)
{
	u64 addr = request->addr, table = 0, at, pmd = 0;
	u32 want = request->want;
	int level;

	request->found = 0;
	request->entry = 0;
	if (run->gib != (addr >> 30) + 1)
		enter_gib(run, addr);
	if (want >= 3) {
		// The table that holds the entry on the way; the root may be one of a pair of pages.
#pragma clang loop unroll(full)
		for (level = 5; level >= 3; level--) {
			if (level == want)
				table = run->at[level] & ~(u64)(TABLE_SIZE - 1);
		}
		if (!table)
			request->found = run->end_level;
		else if (!copy_table(run, index, table))
			request->found = 32 + want;
		return;
	}
	if (!run->pmd_table) {
		request->found = run->end_level;
		request->entry = run->end_entry;
		return;
	}
	if (want == 2) {
		if (!copy_table(run, index, run->pmd_table))
			request->found = 32 + 2;
		return;
	}
	at = run->pmd_table + ((addr >> 21) & 511) * 8;
	if (READ(pmd, (void *)at))
		return;
	if (!(pmd & PRESENT)) {
		request->found = 16 + 2;
		return;
	}
	if (pmd & HUGE) {
		request->found = 2;
		request->entry = pmd;
		return;
	}
	if (!copy_table(run, index, run->page_offset + (pmd & run->phys_mask)) && unchanged(at, pmd))
		request->found = 32 + 1;
}

static __noinline long visit_table(u32 index, void *ctx)
{
	struct run *run = ctx;

	if (index >= MAX_TABLES || !run->shared)
		return 1;
	fetch(run, index, &run->shared->request[index]);
	return 0;
}

// The leader of the thread group that `pid` names, or null; `pid` may be any kernel pointer.
static __always_inline struct task_struct *leader_of(struct pid *pid)
{
	struct hlist_node *node = 0;
	struct task_struct *task;
	struct pid *proof = 0;

	if (!pid || READ(node, &pid->tasks[PIDTYPE_TGID].first) || !node)
		return 0;
	task = (void *)node - __builtin_preserve_field_info(((struct task_struct *)0)->pid_links[PIDTYPE_TGID], 0);
	if (READ(proof, &task->thread_pid) || proof != pid)
		return 0;
	return task;
}

static __always_inline struct task_struct *task_of(s32 pidfd)
{
	struct task_struct *self = (void *)bpf_get_current_task(), *task;
	struct files_struct *files = 0;
	struct fdtable *table = 0;
	struct file **fds = 0, *file = 0;
	struct inode *inode = 0;
	struct pid *pid = 0;
	u32 max = 0;

	if (pidfd < 0)
		return self;
	if (READ(files, &self->files) || READ(table, &files->fdt) || READ(max, &table->max_fds) || pidfd >= max)
		return 0;
	if (READ(fds, &table->fd) || READ(file, fds + pidfd) || !file)
		return 0;
	// Until 6.8 a pidfd is an anonymous inode with the pid as private data; from 6.9 on it is an inode of pidfs.
	if (!READ(pid, &file->private_data) && (task = leader_of(pid)))
		return task;
	if (!READ(inode, &file->f_inode) && inode && !READ(pid, &inode->i_private) && (task = leader_of(pid)))
		return task;
	return 0;
}

// A leader that ended before its threads, or that one of them replaces by calling exec, has no mm any more: then one of
// its first few threads has. `task->signal == signal` proves that it is one.
static __noinline u64 mm_of(s32 pidfd)
{
	struct task_struct *task = task_of(pidfd);
	struct signal_struct *signal = 0, *proof;
	struct list_head *node = 0;
	u64 mm = 0;
	int i;

	if (!task || READ(mm, &task->mm) || mm)
		return mm;
	if (READ(signal, &task->signal) || !signal || READ(node, &signal->thread_head.next))
		return 0;
#pragma clang loop unroll(full)
	for (i = 0; i < 4; i++) {
		if (mm || !node || node == &signal->thread_head)
			continue;
		task = (void *)node - __builtin_preserve_field_info(((struct task_struct *)0)->thread_node, 0);
		proof = 0;
		if (READ(proof, &task->signal) || proof != signal)
			return 0;
		READ(mm, &task->mm);
		READ(node, &node->next);
	}
	return mm;
}

// Finds the address space; what to do in it is the caller's.
static __always_inline int begin(struct args *args, struct run *run)
{
	u64 mm;
	u32 zero = 0;

	run->shared = bpf_map_lookup_elem(&shared, &zero);
	if (!run->shared) {
		args->status = NO_MAP;
		return 0;
	}
	mm = mm_of(args->pidfd);
	if (!mm || READ(run->pgd, &((struct mm_struct *)mm)->pgd)) {
		args->status = GONE;
		return 0;
	}
	args->mm = mm;
	if (args->pgd)
		run->pgd = args->pgd;
	args->pgd = run->pgd;
	run->page_offset = args->page_offset;
	run->phys_mask = args->phys_mask;
	run->levels = args->levels;
	return 1;
}

static __always_inline void end(struct args *args, struct run *run)
{
	leave_gib(run);
	args->status = mm_of(args->pidfd) == args->mm && !run->torn ? OK : CHANGED;
}

// The sections only have to be ones that loaders can parse; the programs are loaded as BPF_PROG_TYPE_SYSCALL.
SEC("raw_tp/walk")
int walk(struct args *args)
{
	struct run run = {};

	if (begin(args, &run)) {
		bpf_loop(args->count, visit, &run, 0);
		end(args, &run);
	}
	return 0;
}

SEC("raw_tp/tables")
int tables(struct args *args)
{
	struct run run = {};

	if (begin(args, &run)) {
		bpf_loop(args->count, visit_table, &run, 0);
		end(args, &run);
	}
	return 0;
}

LICENCE;
