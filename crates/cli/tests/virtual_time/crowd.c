/* Visits the first line of each of 3000 pages at random, and at each eighth visit a byte of the rest:
 * its sets have more lines than room, and the others are touched too often to be idle. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { PAGES = 3000, PAGE = 4096, VISITS = 1500000 };

static uint64_t state = 88172645463325252u;

static uint64_t next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

int main(void)
{
    uint8_t *memory = aligned_alloc(PAGE, (size_t)PAGES * PAGE);
    uint64_t sum = 0;
    for (long visit = 0; visit < VISITS; visit++) {
        uint8_t *page = memory + next() % PAGES * PAGE;
        sum += *(uint64_t *)page;
        ((uint64_t *)page)[1] = sum;
        if (visit % 8 == 0)
            sum += page[64 + next() % (PAGE - 96)];
    }
    printf("%llu\n", (unsigned long long)sum);
    return 0;
}
