// SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0-only
//
// How a process is found: user space holds a pidfd. Its file points to a `struct pid`, which the pidfd keeps
// alive; from it the current thread-group leader (right also after an exec by another thread) and its mm are
// read anew on every run. `task->thread_pid == pid` proves that the pointer chased is what it is taken for.
//
// To be included where `shared.offset` is known, with the fields that are read here.

enum { PIDTYPE_TGID = 1 };

// Of `struct hlist_head` and `struct hlist_node`, which have one and two pointers.
enum { HEAD_SIZE = 8, NODE_SIZE = 16 };

// The leader of the thread group that `pid` names, or 0; `pid` may be any kernel pointer.
__noinline u64 leader_of(u64 pid)
{
	struct offsets *offset = &shared.offset;
	u64 node = 0, task, proof = 0;

	if (!pid || READ(node, pid + offset->pid_tasks + PIDTYPE_TGID * HEAD_SIZE) || !node)
		return 0;
	task = node - offset->task_pid_links - PIDTYPE_TGID * NODE_SIZE;
	if (READ(proof, task + offset->task_thread_pid) || proof != pid)
		return 0;
	return task;
}

// The open file of the calling process, or 0.
__noinline u64 file_of(u32 fd)
{
	struct offsets *offset = &shared.offset;
	u64 files = 0, table = 0, fds = 0, file = 0;
	u32 max = 0;

	if (READ(files, bpf_get_current_task() + offset->task_files) || READ(table, files + offset->files_fdt))
		return 0;
	if (READ(max, table + offset->fdtable_max_fds) || fd >= max || READ(fds, table + offset->fdtable_fd))
		return 0;
	READ(file, fds + (u64)fd * 8);
	return file;
}

__noinline u64 task_of(s32 pidfd)
{
	struct offsets *offset = &shared.offset;
	u64 file, task, inode = 0, pid = 0;

	if (pidfd < 0)
		return bpf_get_current_task();
	file = file_of(pidfd);
	if (!file)
		return 0;
	// Until 6.8 a pidfd is an anonymous inode with the pid as private data; from 6.9 on it is an inode of pidfs.
	READ(pid, file + offset->file_private_data);
	task = leader_of(pid);
	if (task)
		return task;
	pid = 0;
	if (!READ(inode, file + offset->file_f_inode) && inode)
		READ(pid, inode + offset->inode_i_private);
	return leader_of(pid);
}

// A leader that ended before its threads, or that one of them replaces by calling exec, has no mm any more: then one of
// its first few threads has. `task->signal == signal` proves that it is one.
__noinline u64 mm_of(s32 pidfd)
{
	struct offsets *offset = &shared.offset;
	u64 task = task_of(pidfd), signal = 0, proof = 0, node = 0, mm = 0;
	int i;

	if (!task || READ(mm, task + offset->task_mm) || mm)
		return mm;
	if (READ(signal, task + offset->task_signal) || !signal || READ(node, signal + offset->signal_thread_head))
		return 0;
#pragma clang loop unroll(full)
	for (i = 0; i < 4; i++) {
		if (!node || node == signal + offset->signal_thread_head)
			return 0;
		task = node - offset->task_thread_node;
		if (READ(proof, task + offset->task_signal) || proof != signal || READ(mm, task + offset->task_mm))
			return 0;
		if (mm)
			return mm;
		READ(node, node);
	}
	return 0;
}
