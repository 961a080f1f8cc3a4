/* References to pages at a fixed rate, with a known distribution.
 *
 * references MODE PAGES RATE
 *
 * MODE is uniform, zipf (exponent 0.8), scan (cyclic) or phases (6 s with an eighth of the pages, then
 * 6 s with the others). A phase has a fixed number of references, so it lasts longer where pages must be
 * waited for. Prints `ready` and then, four times a second, the number of references so far.
 */
#define _GNU_SOURCE
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, AT_ONCE = 16 };
static const double PHASE_S = 6, EXPONENT = 0.8;

static uint64_t state = 0x9e3779b97f4a7c15ull;

/* xorshift64 (Marsaglia 2003). */
static uint64_t random_word(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + 1e-9 * now.tv_nsec;
}

/* Smallest index whose cumulated weight is not below a random one. */
static long zipf(const double *cumulated, long pages)
{
	double wanted = (random_word() >> 11) * 0x1p-53 * cumulated[pages - 1];
	long low = 0, high = pages - 1;

	while (low < high) {
		long middle = (low + high) / 2;

		if (cumulated[middle] < wanted)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

int main(int count, char **arguments)
{
	if (count != 4)
		return 2;
	char mode = arguments[1][0];
	long pages = atol(arguments[2]), small = pages / 8, next = 0;
	double rate = atof(arguments[3]), sum = 0;
	double *cumulated = malloc(pages * sizeof(*cumulated));
	uint32_t *order = malloc(pages * sizeof(*order));
	char *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	madvise(memory, pages * PAGE, MADV_NOHUGEPAGE);
	for (long page = 0; page < pages; page++) {
		/* Half of each page is random, so that it does not compress to nothing. */
		for (int word = 0; word < PAGE / 16; word++)
			((uint64_t *)(memory + page * PAGE))[word] = random_word();
		cumulated[page] = sum += pow(page + 1, -EXPONENT);
		order[page] = page;
	}
	/* Frequently used pages are not neighbours (Fisher and Yates). */
	for (long page = pages - 1; page > 0; page--) {
		long other = random_word() % (page + 1);
		uint32_t moved = order[page];

		order[page] = order[other];
		order[other] = moved;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("ready %d\n", getpid());
	double start = seconds(), last = start;
	for (long done = 0;; done += AT_ONCE) {
		double now = seconds();
		int is_small = (long)(done / (PHASE_S * rate)) % 2 == 0;

		for (int turn = 0; turn < AT_ONCE; turn++) {
			long page;

			if (mode == 's')
				page = next = (next + 1) % pages;
			else if (mode == 'z')
				page = order[zipf(cumulated, pages)];
			else if (mode == 'u')
				page = random_word() % pages;
			else if (is_small)
				page = random_word() % small;
			else
				page = small + random_word() % (pages - small);
			((volatile uint64_t *)(memory + page * PAGE))[turn]++;
		}
		/* A target that could not keep up does not catch up later. */
		double ahead = start + done / rate - now;
		if (ahead > 0.0005)
			usleep(ahead * 1e6);
		else if (ahead < -0.1)
			start -= ahead;
		if (now - last >= 0.25) {
			printf("%.3f %ld\n", now, done);
			last = now;
		}
	}
}
