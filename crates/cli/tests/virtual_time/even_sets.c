/* Reads lines of 1 MiB at random: all sets miss alike. */
#include <stdint.h>

enum { WORDS = 1 << 17, READS = 1500000 };

static volatile uint64_t words[WORDS];

int main(void)
{
    uint64_t x = 88172645463325252u, sum = 0;
    for (int i = 0; i < READS; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        sum += words[x % WORDS];
    }
    return sum != 0;
}
