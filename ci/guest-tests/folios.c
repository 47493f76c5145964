// folios KIND SECONDS: a program of large folios that are mapped page by page, and of small pages.
//
//   KIND   mthp    folios of whatever sizes below 2 MiB the kernel is set to make where MADV_HUGEPAGE is given
//          remap   folios of 2 MiB whose mapping by a PMD is broken up into PTEs, by changing a page's protection
//
// 32 MiB of large folios and 32 MiB of small pages. Half of each is written to again and again, a word of each page;
// the other half lies idle. Prints `ready START END` once all is there, the range being that of the small pages that are
// accessed, and goes on for so many seconds.
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define HUGE_PAGE (2UL << 20)
#define PAGE 4096UL
#define SIZE (32UL << 20)

// Being ended is its proper end: a shell would tell of any other.
static void leave(int signal)
{
	(void)signal;
	_exit(0);
}

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

// Stores without a load: one that comes first is given the zero page, for which no folio is made.
static void touch(volatile char *from, size_t size)
{
	for (size_t at = 0; at < size; at += PAGE)
		from[at] = 1;
}

static char *area(int advice)
{
	char *at = mmap(NULL, SIZE + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED)
		fail("mmap");
	at = (char *)(((uintptr_t)at + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1));
	if (madvise(at, SIZE, advice) != 0)
		fail("madvise");
	touch(at, SIZE);
	return at;
}

int main(int argc, char **argv)
{
	const struct timespec pause = { .tv_nsec = 10 * 1000 * 1000 };
	time_t end;
	char *large, *small;

	if (argc != 3) {
		fprintf(stderr, "usage: folios mthp|remap SECONDS\n");
		return 2;
	}
	signal(SIGTERM, leave);
	large = area(MADV_HUGEPAGE);
	small = area(MADV_NOHUGEPAGE);
	// The page's protection differs from its neighbours' for a moment, which no PMD can express.
	for (size_t at = 0; strcmp(argv[1], "remap") == 0 && at < SIZE; at += HUGE_PAGE)
		if (mprotect(large + at, PAGE, PROT_READ) != 0 || mprotect(large + at, PAGE, PROT_READ | PROT_WRITE) != 0)
			fail("mprotect");
	touch(large, SIZE);
	printf("ready %lu %lu\n", (unsigned long)small, (unsigned long)small + SIZE / 2);
	fflush(stdout);
	end = time(NULL) + atoi(argv[2]);
	while (time(NULL) < end) {
		touch(large, SIZE / 2);
		touch(small, SIZE / 2);
		nanosleep(&pause, NULL);
	}
	return 0;
}
