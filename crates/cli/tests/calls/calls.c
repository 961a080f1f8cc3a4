/* A function that takes nearly all the time, reached on two ways: through three calls of
 * itself, and directly. Frames are kept: it is compiled without optimisation. */
#include <stdlib.h>

enum { WORDS = 1 << 15, TURNS = 1000 };

static long words[WORDS];
volatile long sink;

static long work(int part)
{
    long sum = 0;
    for (int i = 0; i < WORDS / part; i++)
        sum += words[i];
    return sum;
}

static long deep(int calls)
{
    return calls ? deep(calls - 1) + 1 : work(1);
}

static long direct(void)
{
    return work(2);
}

int main(void)
{
    for (int turn = 0; turn < TURNS; turn++) {
        sink += deep(3);
        sink += direct();
    }
    return EXIT_SUCCESS;
}
