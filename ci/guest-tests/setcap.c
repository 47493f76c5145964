// setcap FILE: gives the program the four capabilities that `isotherm doctor` advises, as setcap(8) would, which
// busybox lacks: cap_bpf,cap_perfmon,cap_sys_nice,cap_sys_ptrace+ep. The file system must keep attributes (tmpfs does).
#include <linux/capability.h>
#include <stdio.h>
#include <sys/xattr.h>

int main(int argc, char **argv)
{
	const int wanted[] = { CAP_BPF, CAP_PERFMON, CAP_SYS_NICE, CAP_SYS_PTRACE };
	struct vfs_cap_data data = { .magic_etc = VFS_CAP_REVISION_2 | VFS_CAP_FLAGS_EFFECTIVE };

	if (argc != 2) {
		fprintf(stderr, "usage: setcap FILE\n");
		return 2;
	}
	for (unsigned i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
		data.data[CAP_TO_INDEX(wanted[i])].permitted |= CAP_TO_MASK(wanted[i]);
	if (setxattr(argv[1], "security.capability", &data, XATTR_CAPS_SZ_2, 0) != 0) {
		perror(argv[1]);
		return 1;
	}
	return 0;
}
