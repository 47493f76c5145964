// SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0-only
//
// Reads what the kernel keeps of page frames: their `struct page`. /proc/kpageflags shows the same to root only.
//
// The program reads the first bytes of the `struct page` of each frame in a list. Asked for the stack, it says instead
// which ones belong to the stack of the thread that runs it; from those user space finds, and proves, where the array of
// all of them is mapped (vmemmap). It is a BPF_PROG_TYPE_SYSCALL and changes nothing; every access is a
// bpf_probe_read_kernel(), which returns an error where memory is not there.

#include "helpers.h"

enum { MAX_FRAMES = 4096, MAX_STACK = 8, WORDS = 8 };

struct args {
	u64 vmemmap;   // where the `struct page` of frame 0 is, or would be; 0: to read the stack's pages instead
	u32 page_size; // of a `struct page`, bytes
	u32 count;     // frames in shared.pfn
};

// The stack of the calling thread.
struct stack {
	// In: where the running kernel keeps the fields that are read, bytes from the start of their structs.
	u32 task_stack;
	u32 task_stack_vm_area;
	u32 vm_struct_pages;
	u32 vm_struct_nr_pages;
	// Out.
	u64 addr;
	u64 pages; // how many
	u64 page[MAX_STACK]; // the `struct page` of each, in order
};

struct shared {
	u64 pfn[MAX_FRAMES];
	// The first bytes of the `struct page`, and whether they could be read: 1 or 0.
	u64 page[MAX_FRAMES][WORDS];
	struct stack stack;
} shared;

struct run {
	u64 vmemmap;
	u32 page_size;
};

static __noinline long visit(u32 index, void *ctx)
{
	struct run *run = ctx;
	u64 *page, pfn;

	if (index >= MAX_FRAMES)
		return 1;
	pfn = shared.pfn[index];
	page = shared.page[index];
	page[WORDS - 1] = !bpf_probe_read_kernel(page, 8 * (WORDS - 1), (void *)(run->vmemmap + pfn * run->page_size));
	return 0;
}

__noinline int read_stack(void)
{
	struct stack *stack = &shared.stack;
	u64 task = bpf_get_current_task(), area = 0, pages = 0;
	u32 count = 0;

	stack->pages = 0;
	if (READ(stack->addr, task + stack->task_stack) || READ(area, task + stack->task_stack_vm_area) || !area)
		return 0;
	if (READ(pages, area + stack->vm_struct_pages) || READ(count, area + stack->vm_struct_nr_pages))
		return 0;
	if (count > MAX_STACK)
		count = MAX_STACK;
	if (!bpf_probe_read_kernel(stack->page, count * 8, (void *)pages))
		stack->pages = count;
	return 0;
}

// The section only has to be one that loaders can parse; the program is loaded as BPF_PROG_TYPE_SYSCALL.
SEC("raw_tp/frames")
int frames(struct args *args)
{
	struct run run = { .vmemmap = args->vmemmap, .page_size = args->page_size };

	if (!run.vmemmap)
		return read_stack();
	bpf_loop(args->count, visit, &run, 0);
	return 0;
}

LICENCE;
