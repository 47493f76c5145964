// SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0-only
//
// Lists the mappings (VMAs) of another process as numbers, for a fraction of what `/proc/PID/maps` takes, which prints each, and of
// each the path of its file. In place of the path stands what it was made from, so that user space, which has asked for it once or
// seen it in a list that was printed, knows it again.
//
// It is run on demand, writes to nothing but `shared`, and takes no lock, as walk.bpf.c: every access is a
// bpf_probe_read_kernel(). The VMAs are in a maple tree (from Linux 6.1 on), which is descended anew for each leaf.
//
// Why what was freed meanwhile does not count: a VMA counts only if it says of itself what the tree says, its own first and last
// address, and that it is of this mm; and the number of them that the kernel counts must be the same before and after a run, and that of
// what a single run found. Where anything differs user space reads the printed list instead.

#include "helpers.h"

enum { MAX_VMAS = 512, NODE_WORDS = 32, VMA_WORDS = 32, MAX_LEVELS = 12 };

enum status { OK = 0, MORE = 1, GONE = 2, CHANGED = 3 };

// Of a pointer to a node of a maple tree (include/linux/maple_tree.h).
enum { LEAF = 1, INNER = 2, INNER_WITH_GAPS = 3 };
enum { TYPE_SHIFT = 3, TYPE_MASK = 15, NODE_MASK = 255, LARGEST_VALUE = 4096 };
// Words of a node: where its pivots and slots begin, and the end that is noted where not all are in use.
enum { PIVOTS = 1, SLOTS = 16, SLOTS_WITH_GAPS = 10, LAST = 15, LAST_WITH_GAPS = 9, END = 31, END_WITH_GAPS = 30 };

// Run arguments, copied in and out by BPF_PROG_RUN.
struct args {
	u64 from;     // in: the lowest address; out: where to go on, if there is more
	u64 mm;	      // out: address of the mm, to notice an exec between runs
	u64 total_vm; // out: pages mapped
	u64 brk[2];   // out: where the heap begins and ends
	u64 stack;    // out: where the stack began
	u64 changes;  // out: another number whenever what is mapped was changed, or might have been
	s32 pidfd;    // of the process, open in the caller
	u32 most;     // in: VMAs to list in this run; 0: none, nor what comes of them
	u32 count;    // out: how many were
	u32 mapped;   // out: how many the process has
	u32 status;   // out: enum status
	u32 pad;
};

// Where the running kernel keeps the fields that are read: bytes from the start of their structs.
struct offsets {
	PROCESS_OFFSETS;
	u32 mm_mt;
	u32 mt_root;
	u32 mm_map_count;
	u32 mm_total_vm;
	u32 mm_start_brk;
	u32 mm_brk;
	u32 mm_start_stack;
	u32 mm_lock_seq; // 0: the kernel has none
	// Of a VMA in words: it is read as a whole.
	u32 vma_start;
	u32 vma_end;
	u32 vma_mm;
	u32 vma_flags;
	u32 vma_pgoff;
	u32 vma_file;
	u32 vma_ops;
	u32 vma_private_data;
	u32 vma_anon_name; // 0: the kernel has none
	u32 file_mnt;
	u32 file_dentry;
	u32 mount_mnt;
	u32 mount_mnt_ns;
	u32 mount_id;
	u32 dentry_hash_len;
	u32 dentry_pprev;
	u32 inode_i_ino;
	u32 anon_name_alone; // not 0: also the VMA of a file may have a name of the program's
	u32 vma_size;	     // bytes of a VMA up to the last of these fields
	u32 pad;
};

enum { HAS_FILE = 1, NAMED = 2, HIDDEN = 4 };

struct vma {
	u64 start;
	u64 end;
	u64 pgoff;
	u32 flags; // as the kernel's, the lower half
	u32 what;  // HAS_FILE; NAMED: by the program; HIDDEN: its file is on a mount that nobody can see
	// What its name is made from: the mount's number, directory entry and the hash of its name, inode, and in the highest bit
	// whether that was deleted; of one without a file the operations and data of those that the kernel makes itself.
	u64 name[4];
};

struct run {
	u64 from;
	u64 root;
	u64 mm;
	u64 node;     // the one that was read last, its type in the lower bits
	u64 min, max; // the addresses it is of
	u64 low, high; // those of the slot of a leaf
	u64 file;     // the one that the last VMA had
	u64 name[4];
	u32 end;      // its last slot
	u32 slot;     // the one on the way
	u32 most;
	u32 count;
	u32 torn;
	u32 whole;
	u32 hidden;   // that file is
	u32 pad;
};

struct shared {
	struct vma vma[MAX_VMAS];
	u64 words[NODE_WORDS];
	u64 of_vma[VMA_WORDS];
	struct offsets offset;
	struct run run;
	struct group group;
} shared;

#include "process.h"

static __always_inline u64 word(u32 index)
{
	return shared.words[index & (NODE_WORDS - 1)];
}

static __always_inline u64 of_vma(u32 index)
{
	return shared.of_vma[index & (VMA_WORDS - 1)];
}

// The last slot in use of the node that was read last, as the kernel finds it; more than there are: it is no node.
__noinline int find_end(void)
{
	struct run *run = &shared.run;
	u64 pivot;

	if ((run->node >> TYPE_SHIFT & TYPE_MASK) == INNER_WITH_GAPS) {
		run->end = word(END_WITH_GAPS) & 255;
		return run->end <= LAST_WITH_GAPS;
	}
	pivot = word(PIVOTS + LAST - 1);
	run->end = !pivot ? word(END) & 255 : pivot == run->max ? LAST - 1 : LAST;
	return run->end <= LAST;
}

// Looks for the slot of `run->from` in an inner node. (A loop of the language the verifier would follow turn by turn.)
static __noinline long visit_pivot(u32 index, void *unused)
{
	struct run *run = &shared.run;
	u64 pivot = word(PIVOTS + index);

	run->slot = index;
	if (index >= run->end)
		return 1;
	if (pivot >= run->from) {
		run->max = pivot;
		return 1;
	}
	run->min = pivot + 1;
	run->slot = index + 1;
	return 0;
}

// A level down, on the way to the leaf of `run->from`.
static __noinline long visit_level(u32 index, void *unused)
{
	struct run *run = &shared.run;
	u32 type = run->node >> TYPE_SHIFT & TYPE_MASK;

	if (run->node <= LARGEST_VALUE || type < LEAF || type > INNER_WITH_GAPS ||
	    bpf_probe_read_kernel(shared.words, sizeof(shared.words), (void *)(run->node & ~(u64)NODE_MASK)) ||
	    !find_end()) {
		run->torn = 1;
		return 1;
	}
	if (type == LEAF)
		return 1;
	run->slot = 0;
	bpf_loop(LAST, visit_pivot, 0, 0);
	run->node = word((type == INNER_WITH_GAPS ? SLOTS_WITH_GAPS : SLOTS) + run->slot);
	return 0;
}

// What the name of a file is made from.
__noinline int name_file(u64 file)
{
	struct offsets *offset = &shared.offset;
	struct run *run = &shared.run;
	u64 mount = word_at(file + offset->file_mnt), dentry = word_at(file + offset->file_dentry);
	u64 inode = word_at(file + offset->file_f_inode), space;

	run->file = 0;
	if (!mount || !dentry || !inode)
		return -1;
	mount -= offset->mount_mnt;
	// The kernel's own mounts are in no namespace, but have an error there: of memory that is shared without a file, and of the
	// layers below an overlay, whose names are not those that are printed.
	space = word_at(mount + offset->mount_mnt_ns);
	run->hidden = !space || space >= -4095ull;
	run->name[0] = word_at(mount + offset->mount_id);
	run->name[1] = dentry;
	run->name[2] = word_at(dentry + offset->dentry_hash_len);
	run->name[3] = word_at(inode + offset->inode_i_ino) | (u64)!word_at(dentry + offset->dentry_pprev) << 63;
	run->file = file;
	return 0;
}

// The VMA at this address, which the tree says lies from `run->low` to `run->high`.
__noinline int take_vma(u64 at)
{
	struct offsets *offset = &shared.offset;
	struct run *run = &shared.run;
	struct vma *vma;
	u64 file, named = 0;
	u32 index = run->count, size = offset->vma_size;

	if (index >= MAX_VMAS || size > sizeof(shared.of_vma))
		return -1;
	vma = &shared.vma[index];
	if (bpf_probe_read_kernel(shared.of_vma, size, (void *)at))
		return -1;
	vma->start = of_vma(offset->vma_start);
	vma->end = of_vma(offset->vma_end);
	if (of_vma(offset->vma_mm) != run->mm || vma->start != run->low || vma->end - 1 != run->high)
		return -1;
	vma->pgoff = of_vma(offset->vma_pgoff);
	vma->flags = of_vma(offset->vma_flags);
	file = of_vma(offset->vma_file);
	if (offset->vma_anon_name && (!file || offset->anon_name_alone))
		named = of_vma(offset->vma_anon_name);
	if (!file) {
		vma->name[0] = of_vma(offset->vma_ops);
		vma->name[1] = vma->name[0] ? of_vma(offset->vma_private_data) : 0;
		vma->name[2] = vma->name[3] = 0;
	} else {
		// The segments of a library follow one another.
		if (file != run->file && name_file(file))
			return -1;
		vma->name[0] = run->name[0];
		vma->name[1] = run->name[1];
		vma->name[2] = run->name[2];
		vma->name[3] = run->name[3];
	}
	vma->what = (file ? HAS_FILE : 0) | (named ? NAMED : 0) | (file && run->hidden ? HIDDEN : 0);
	run->count = index + 1;
	return 0;
}

static __noinline long visit_slot(u32 index, void *unused)
{
	struct run *run = &shared.run;
	u64 at;

	if (index > run->end)
		return 1;
	run->high = index < run->end ? word(PIVOTS + index) : run->max;
	at = word(SLOTS + index);
	if (at && run->high >= run->from) {
		// While a process is forked, what is no pointer may stand there.
		if (at <= LARGEST_VALUE || take_vma(at)) {
			run->torn = 1;
			return 1;
		}
		run->from = run->high + 1;
	}
	run->low = run->high + 1;
	return run->count >= run->most;
}

// The VMAs of the leaf of `run->from`.
static __noinline long visit_leaf(u32 index, void *unused)
{
	struct run *run = &shared.run;

	run->node = run->root;
	run->min = 0;
	run->max = ~0ull;
	bpf_loop(MAX_LEVELS, visit_level, 0, 0);
	if (run->torn || (run->node >> TYPE_SHIFT & TYPE_MASK) != LEAF) {
		run->torn = 1;
		return 1;
	}
	run->low = run->min;
	bpf_loop(LAST + 1, visit_slot, 0, 0);
	if (run->torn || run->count >= run->most)
		return 1;
	run->from = run->max + 1;
	run->whole = !run->from;
	return run->whole;
}

// The section only has to be one that loaders can parse; the program is loaded as BPF_PROG_TYPE_SYSCALL.
SEC("raw_tp/vmas")
int vmas(struct args *args)
{
	struct offsets *offset = &shared.offset;
	struct run *run = &shared.run;
	u64 mm = mm_of(args->pidfd);
	u32 before = word_at(mm + offset->mm_map_count);

	args->status = GONE;
	args->count = 0;
	if (!mm)
		return 0;
	run->mm = mm;
	run->root = word_at(mm + offset->mm_mt + offset->mt_root);
	run->from = args->from;
	run->most = args->most;
	run->file = 0;
	run->count = run->torn = run->whole = 0;
	args->total_vm = word_at(mm + offset->mm_total_vm);
	args->brk[0] = word_at(mm + offset->mm_start_brk);
	args->brk[1] = word_at(mm + offset->mm_brk);
	args->stack = word_at(mm + offset->mm_start_stack);
	args->changes = offset->mm_lock_seq ? (u32)word_at(mm + offset->mm_lock_seq) : 0;
	args->mm = mm;
	if (!args->most) {
		args->status = OK;
		return 0;
	}
	bpf_loop(MAX_VMAS, visit_leaf, 0, 0);
	if ((u32)word_at(mm + offset->mm_map_count) != before || mm_of(args->pidfd) != mm || run->torn) {
		args->status = CHANGED;
		return 0;
	}
	args->from = run->from;
	args->count = run->count;
	args->mapped = before;
	args->status = run->whole ? OK : MORE;
	return 0;
}

LICENCE;
