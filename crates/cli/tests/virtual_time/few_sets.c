/* Reads a buffer as large as a first level of 32 KiB with 8 ways, pass by pass. In four of its 64 sets
 * one more line is read in each pass, so that all nine lines of those sets miss each time. */
#include <stdalign.h>
#include <stdint.h>

enum { LINE = 64, LINES = 512, PASSES = 1500 };

alignas(4096) static volatile uint64_t buffer[(LINES + 64) * LINE / 8];

int main(void)
{
    uint64_t sum = 0;
    for (int pass = 0; pass < PASSES; pass++) {
        for (int i = 0; i < LINES * LINE / 8; i++)
            sum += buffer[i];
        for (int set = 6; set < 64; set += 17)
            sum += buffer[(LINES + set) * LINE / 8];
    }
    return sum != 0;
}
