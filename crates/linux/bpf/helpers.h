// SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0-only
//
// What the programs have in common: the few definitions of the BPF headers that they need, so that clang suffices to
// build them. All helpers are of Linux 5.17 or older.

typedef unsigned char u8;
typedef unsigned int u32;
typedef int s32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define __always_inline inline __attribute__((always_inline))
#define __noinline __attribute__((noinline))

static u64 (*bpf_get_current_task)(void) = (void *)35;
static u64 (*bpf_get_current_pid_tgid)(void) = (void *)14;
static long (*bpf_probe_read_kernel)(void *dst, u32 size, const void *src) = (void *)113;
static long (*bpf_loop)(u32 n, void *callback, void *ctx, u64 flags) = (void *)181;

#define READ(dst, src) bpf_probe_read_kernel(&(dst), sizeof(dst), (const void *)(src))

// bpf_probe_read_kernel and bpf_loop are for GPL-compatible programs only.
#define LICENCE char LICENSE[] SEC("license") = "Dual MIT/GPL"

// The fields by which process.h finds a process, at the beginning of a `struct offsets`.
#define PROCESS_OFFSETS                                                                                     \
	u32 task_mm, task_signal, task_thread_node, task_files, task_thread_pid, task_pid_links;            \
	u32 signal_thread_head, pid_tasks, files_fdt, fdtable_max_fds, fdtable_fd, file_private_data;       \
	u32 file_f_inode, inode_i_private

// Where process.h goes through threads, in a `struct shared`: of what is on the stack the verifier follows each turn of a loop.
struct group {
	u64 signal;
	u64 node; // the next one's
	u64 mm;	  // of the last one
};
