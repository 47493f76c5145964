// SPDX-License-Identifier: (MIT OR Apache-2.0) OR GPL-2.0-only
//
// How a process is found: user space holds a pidfd. Its file points to a `struct pid`, which the pidfd keeps
// alive; from it the current thread-group leader (right also after an exec by another thread) and its mm are
// read anew on every run. `task->thread_pid == pid` proves that the pointer chased is what it is taken for.
//
// To be included where `shared.offset` is known, with the fields that are read here, and `shared.group`.

enum { PIDTYPE_TGID = 1 };

// Of `struct hlist_head` and `struct hlist_node`, which have one and two pointers.
enum { HEAD_SIZE = 8, NODE_SIZE = 16 };

// The word at a kernel address, or 0 where there is no memory: so pointers can be followed one after the other, and whether the way came
// to an end is asked once. Not for what may be 0 and is believed then, such as an entry of a page table.
__noinline u64 word_at(u64 at)
{
	u64 word = 0;

	READ(word, at);
	return word;
}

// The leader of the thread group that `pid` names, or 0; `pid` may be any kernel pointer.
__noinline u64 leader_of(u64 pid)
{
	struct offsets *offset = &shared.offset;
	u64 node = word_at(pid + offset->pid_tasks + PIDTYPE_TGID * HEAD_SIZE), task;

	if (!pid || !node)
		return 0;
	task = node - offset->task_pid_links - PIDTYPE_TGID * NODE_SIZE;
	return word_at(task + offset->task_thread_pid) == pid ? task : 0;
}

// The open file of the calling process, or 0.
__noinline u64 file_of(u32 fd)
{
	struct offsets *offset = &shared.offset;
	u64 table = word_at(word_at(bpf_get_current_task() + offset->task_files) + offset->files_fdt);

	if (fd >= (u32)word_at(table + offset->fdtable_max_fds))
		return 0;
	return word_at(word_at(table + offset->fdtable_fd) + (u64)fd * 8);
}

__noinline u64 task_of(s32 pidfd)
{
	struct offsets *offset = &shared.offset;
	u64 file, task;

	if (pidfd < 0)
		return bpf_get_current_task();
	file = file_of(pidfd);
	if (!file)
		return 0;
	// Until 6.8 a pidfd is an anonymous inode with the pid as private data; from 6.9 on it is an inode of pidfs.
	task = leader_of(word_at(file + offset->file_private_data));
	return task ? task : leader_of(word_at(word_at(file + offset->file_f_inode) + offset->inode_i_private));
}

static __noinline long find_mm(u32 index, void *unused)
{
	struct offsets *offset = &shared.offset;
	struct group *group = &shared.group;
	u64 task = group->node - offset->task_thread_node;

	if (!group->node || group->node == group->signal + offset->signal_thread_head)
		return 1;
	// `task->signal == signal` proves that it is a thread of it.
	if (word_at(task + offset->task_signal) != group->signal)
		return 1;
	group->mm = word_at(task + offset->task_mm);
	group->node = word_at(group->node);
	return group->mm != 0;
}

// A leader that ended before its threads, or that one of them replaces by calling exec, has no mm any more: then one of
// its first few threads has.
__noinline u64 mm_of(s32 pidfd)
{
	struct offsets *offset = &shared.offset;
	struct group *group = &shared.group;
	u64 task = task_of(pidfd), mm = word_at(task + offset->task_mm);

	if (!task || mm)
		return mm;
	group->mm = 0;
	group->signal = word_at(task + offset->task_signal);
	group->node = word_at(group->signal + offset->signal_thread_head);
	bpf_loop(4, find_mm, 0, 0);
	return group->mm;
}
