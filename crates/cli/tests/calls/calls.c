/* A function that takes nearly all the time, reached on two ways: through three calls of
 * itself, and directly with half as much to do. That is up to a quarter less than all words,
 * by chance, so that no timer keeps step with the turns. With an argument, a forked child does
 * the same. Functions are not inlined, and calls return, so that the ways are the same with
 * optimisation. */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef TURNS
#define TURNS 1000
#endif
#define CALLED __attribute__((noipa))

enum { WORDS = 1 << 15 };

long words[WORDS];
volatile long sink;
static unsigned limit;

CALLED static long work(int part)
{
    long sum = 0;
    for (unsigned i = 0; i < limit / part; i++)
        sum += words[i];
    return sum;
}

CALLED static long deep(int calls)
{
    volatile char room[500];
    room[calls] = 1;
    long sum = calls ? deep(calls - 1) : work(1);
    return sum + room[calls];
}

CALLED static long direct(void)
{
    long sum = work(2);
    __asm__ volatile("" : "+r"(sum));
    return sum;
}

int main(int count, char **arguments)
{
    (void)arguments;
    int child = count > 1 ? fork() : -1;
    unsigned random = 1;
    for (int turn = 0; turn < TURNS; turn++) {
        random = random * 1664525 + 1013904223;
        limit = WORDS - (random >> 19);
        sink += deep(3);
        sink += direct();
    }
    if (child > 0)
        waitpid(child, NULL, 0);
    return EXIT_SUCCESS;
}
