// SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0-only
//
// Reads what the kernel keeps of page frames: their `struct page`. /proc/kpageflags shows the same to root only.
//
// `layout` says how a `struct page` looks in the running kernel, and which ones belong to the stack of the thread that
// runs the program; from those user space finds, and proves, where the array of all of them is mapped (vmemmap).
// `frames` reads the first bytes of the `struct page` of each frame in a list. Both are BPF_PROG_TYPE_SYSCALL and change
// nothing; every access is a bpf_probe_read_kernel(), which returns an error where memory is not there.

#include "helpers.h"

enum { MAX_FRAMES = 4096, MAX_STACK = 8, WORDS = 8 };

struct page { void *mapping; u32 page_type; } CORE;
struct vm_struct { struct page **pages; u32 nr_pages; } CORE;
struct task_struct { void *stack; struct vm_struct *stack_vm_area; } CORE;

// The numbers are the running kernel's.
enum pageflags { PG_lru, PG_head, PG_reserved, PG_mlocked, PG_unevictable };
enum pagetype { PGTY_hugetlb };

enum { EXISTS = 2, TYPE_SIZE = 1, VALUE_EXISTS = 0, VALUE = 1 };
#define NUMBER(type, name) __builtin_preserve_enum_value(*(typeof(enum type) *)name, VALUE)
#define HAS_NUMBER(type, name) __builtin_preserve_enum_value(*(typeof(enum type) *)name, VALUE_EXISTS)
#define NONE ((u32)-1)
#define BIT_OF(name) (HAS_NUMBER(pageflags, name) ? (u32)NUMBER(pageflags, name) : NONE)
#define OFFSET_OF(field) \
	(__builtin_preserve_field_info(((struct page *)0)->field, EXISTS) ? \
		 (u32)(u64)__builtin_preserve_access_index(&((struct page *)0)->field) : NONE)

// All out. NONE where the running kernel has no such thing.
struct layout {
	u64 stack;	      // address of the calling thread's kernel stack
	u64 page[MAX_STACK];  // the `struct page` of its pages, in order
	u32 pages;	      // how many
	u32 page_size;	      // of a `struct page`, bytes
	u32 mapping;	      // offsets in it
	u32 page_type;
	u32 lru;	      // bit numbers in its flags
	u32 head;
	u32 reserved;
	u32 mlocked;
	u32 unevictable;
	u32 hugetlb;	      // highest byte of page_type
};

struct frames {
	u64 vmemmap;   // where the `struct page` of frame 0 is, or would be
	u32 page_size; // of a `struct page`, bytes
	u32 count;     // frames in shared.pfn
};

struct shared {
	u64 pfn[MAX_FRAMES];
	// The first bytes of the `struct page`, and whether they could be read: 1 or 0.
	u64 page[MAX_FRAMES][WORDS];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct shared);
} shared SEC(".maps");

struct run {
	u64 vmemmap;
	u32 page_size;
	struct shared *shared;
};

static __noinline long visit(u32 index, void *ctx)
{
	struct run *run = ctx;
	u64 *page, pfn;

	if (index >= MAX_FRAMES || !run->shared)
		return 1;
	pfn = run->shared->pfn[index];
	page = run->shared->page[index];
	page[WORDS - 1] = !bpf_probe_read_kernel(page, 8 * (WORDS - 1), (void *)(run->vmemmap + pfn * run->page_size));
	return 0;
}

// The sections only have to be ones that loaders can parse; the programs are loaded as BPF_PROG_TYPE_SYSCALL.
SEC("raw_tp/frames")
int frames(struct frames *args)
{
	struct run run = { .vmemmap = args->vmemmap, .page_size = args->page_size };
	u32 zero = 0;

	run.shared = bpf_map_lookup_elem(&shared, &zero);
	if (run.shared)
		bpf_loop(args->count, visit, &run, 0);
	return 0;
}

SEC("raw_tp/layout")
int layout(struct layout *out)
{
	struct task_struct *self = (void *)bpf_get_current_task();
	struct vm_struct *area = 0;
	struct page **pages = 0, *page;
	void *stack = 0;
	u32 count = 0;
	int i;

	out->page_size = __builtin_preserve_type_info(*(struct page *)0, TYPE_SIZE);
	out->mapping = OFFSET_OF(mapping);
	out->page_type = OFFSET_OF(page_type);
	out->lru = BIT_OF(PG_lru);
	out->head = BIT_OF(PG_head);
	out->reserved = BIT_OF(PG_reserved);
	out->mlocked = BIT_OF(PG_mlocked);
	out->unevictable = BIT_OF(PG_unevictable);
	out->hugetlb = HAS_NUMBER(pagetype, PGTY_hugetlb) ? (u32)NUMBER(pagetype, PGTY_hugetlb) : NONE;

	out->pages = 0;
	// Only kernels that map stacks page by page (CONFIG_VMAP_STACK) keep a list of their pages.
	if (!__builtin_preserve_field_info(self->stack_vm_area, EXISTS))
		return 0;
	if (READ(stack, &self->stack) || READ(area, &self->stack_vm_area) || !area)
		return 0;
	if (READ(pages, &area->pages) || READ(count, &area->nr_pages))
		return 0;
	out->stack = (u64)stack;
#pragma clang loop unroll(full)
	for (i = 0; i < MAX_STACK; i++) {
		if (i == out->pages && i < count && !READ(page, pages + i)) {
			out->page[i] = (u64)page;
			out->pages = i + 1;
		}
	}
	return 0;
}

LICENCE;
