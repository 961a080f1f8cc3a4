/* What a mark costs: nanoseconds a pair of begin and end, and a value. bench/region runs it
 * with and without a recorder. */
#include <stdio.h>

#include "memgauge_region.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

int main(int argc, char **argv)
{
    long pairs = argc > 1 ? atol(argv[1]) : 100000000;
    double began = now();
    for (long i = 0; i < pairs; i++)
        __asm__ volatile("" ::: "memory");
    double empty = now() - began;
    began = now();
    for (long i = 0; i < pairs; i++) {
        memgauge_region_begin("bench");
        memgauge_region_end("bench");
    }
    double marked = now() - began;
    began = now();
    for (long i = 0; i < pairs; i++)
        memgauge_value("value", (uint64_t)i);
    double told = now() - began;
    printf("%.2f ns a pair of begin and end, %.2f ns a value (loop: %.2f ns)\n",
           (marked - empty) / (double)pairs, (told - empty) / (double)pairs,
           empty / (double)pairs);
    return 0;
}
