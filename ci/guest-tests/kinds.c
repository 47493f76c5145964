// kinds SECONDS [KIND...]: a program with memory of several kinds, of all or of those named, all of it idle once it is there:
//
//   small    16 MiB of private small pages
//   huge     16 MiB in huge pages, if the kernel has any
//   locked   8 MiB that are locked
//   hugetlb  8 MiB of hugetlbfs; /proc/sys/vm/nr_hugepages must allow it
//
// Prints a line `KIND START END` for each, then `ready`. After so many seconds, or at SIGTERM, it looks whether all holds what was
// written: status 0 if so.
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define HUGE_PAGE (2UL << 20)

static volatile sig_atomic_t asked;

static void ask(int signal)
{
	(void)signal;
	asked = 1;
}

struct area {
	const char *name;
	size_t size;
	int flags, advice, locks;
	uint64_t *at;
};

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static uint64_t content(const uint64_t *at)
{
	return (uint64_t)(uintptr_t)at * 0x9e3779b97f4a7c15UL;
}

static int wanted(const struct area *area, int argc, char **argv)
{
	for (int i = 2; i < argc; i++)
		if (strcmp(argv[i], area->name) == 0)
			return 1;
	return argc == 2;
}

static void make(struct area *area)
{
	size_t slack = area->flags & MAP_HUGETLB ? 0 : HUGE_PAGE;
	char *at = mmap(NULL, area->size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | area->flags, -1, 0);

	if (at == MAP_FAILED)
		fail(area->name);
	at = (char *)(((uintptr_t)at + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1));
	area->at = (uint64_t *)at;
	if (area->advice && madvise(at, area->size, area->advice) != 0)
		fail("madvise");
	if (area->locks && mlock(at, area->size) != 0)
		fail("mlock");
	for (uint64_t *word = area->at; word < area->at + area->size / 8; word++)
		*word = content(word);
	printf("%s %#lx %#lx\n", area->name, (unsigned long)at, (unsigned long)(at + area->size));
}

int main(int argc, char **argv)
{
	struct area areas[] = {
		{ "small", 16UL << 20, 0, MADV_NOHUGEPAGE, 0, NULL },
		{ "huge", 16UL << 20, 0, MADV_HUGEPAGE, 0, NULL },
		{ "locked", 8UL << 20, 0, MADV_NOHUGEPAGE, 1, NULL },
		{ "hugetlb", 8UL << 20, MAP_HUGETLB, 0, 0, NULL },
	};
	const size_t count = sizeof(areas) / sizeof(areas[0]);
	const struct timespec pause = { .tv_nsec = 100 * 1000 * 1000 };
	time_t end;

	if (argc < 2)
		return 2;
	signal(SIGTERM, ask);
	for (size_t i = 0; i < count; i++)
		if (wanted(&areas[i], argc, argv))
			make(&areas[i]);
	puts("ready");
	fflush(stdout);
	end = time(NULL) + atoi(argv[1]);
	while (!asked && time(NULL) < end)
		nanosleep(&pause, NULL);
	for (size_t i = 0; i < count; i++)
		for (uint64_t *word = areas[i].at; areas[i].at && word < areas[i].at + areas[i].size / 8; word++)
			if (*word != content(word)) {
				printf("%s is wrong at %p\n", areas[i].name, (void *)word);
				return 1;
			}
	return 0;
}
