// Copies and fills by repeated string instructions: random sizes, places, directions and overlaps, at
// pages that a signal handler makes accessible. Checks each result and the registers at each fault.
//
// PREFIX is 0x67 (addresses of 32 bits) or 0x3e, which does nothing. SEED draws the operations.
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { PAGE = 4096, PAGES = 6, BYTES = PAGES * PAGE, LONG_BYTES = 1 << 20 };
#define AREA ((uint8_t *)0x10000000)
#define LONG_AREA ((uint8_t *)0x20000000)

static uint64_t expected[BYTES / 8];
static struct { uintptr_t to, from; uint64_t times; int64_t step; int loads; } now;
static unsigned faults;

static unsigned below(unsigned end)
{
    static uint64_t state = SEED;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % end;
}

static void repeat(void)
{
    void *to = (void *)now.to, *from = (void *)now.from;
    uint64_t times = now.times, value = 0x0123456789abcdef * (now.times + 1);
#define WITH(name, ...) \
    if (now.step < 0) \
        asm volatile("std; .byte " PREFIX "; rep " name "; cld" : __VA_ARGS__ : "a"(value) : "memory"); \
    else \
        asm volatile(".byte " PREFIX "; rep " name : __VA_ARGS__ : "a"(value) : "memory")
#define MOVS(name) WITH(name, "+D"(to), "+S"(from), "+c"(times))
#define STOS(name) WITH(name, "+D"(to), "+c"(times))
    switch (llabs(now.step) + now.loads * 8) {
    case 1: STOS("stosb"); break;
    case 2: STOS("stosw"); break;
    case 4: STOS("stosl"); break;
    case 8: STOS("stosq"); break;
    case 9: MOVS("movsb"); break;
    case 10: MOVS("movsw"); break;
    case 12: MOVS("movsl"); break;
    default: MOVS("movsq"); break;
    }
    if (times || (uintptr_t)to != now.to + now.step * now.times)
        _Exit(2);
    if (now.loads && (uintptr_t)from != now.from + now.step * now.times)
        _Exit(3);
}

// The same on `expected`, byte by byte.
static void expect(void)
{
    uint8_t *all = (uint8_t *)expected, element[8];
    uint64_t value = 0x0123456789abcdef * (now.times + 1);
    unsigned bytes = llabs(now.step);
    for (uint64_t i = 0; i < now.times; i++) {
        for (unsigned b = 0; b < bytes; b++)
            element[b] = now.loads ? all[now.from + i * now.step + b - (uintptr_t)AREA] : value >> 8 * b;
        for (unsigned b = 0; b < bytes; b++)
            all[now.to + i * now.step + b - (uintptr_t)AREA] = element[b];
    }
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    greg_t *g = ((ucontext_t *)context)->uc_mcontext.gregs;
    uintptr_t at = (uintptr_t)info->si_addr, to = g[REG_RDI], from = g[REG_RSI];
    uint64_t done = now.times - g[REG_RCX];
    unsigned bytes = llabs(now.step);
    if (to != now.to + done * now.step || (now.loads && from != now.from + done * now.step))
        _Exit(4);
    if (at - to >= bytes && !(now.loads && at - from < bytes))
        _Exit(5);
    faults++;
    if (mprotect((void *)(at & -PAGE), PAGE, PROT_READ | PROT_WRITE))
        _Exit(6);
}

// Addresses of `times` elements from `start` on, upwards or downwards.
static uintptr_t first(uintptr_t start)
{
    return now.step > 0 ? start : start - (now.times - 1) * now.step;
}

int main(void)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };
    sigaction(SIGSEGV, &action, NULL);
    if (mmap(AREA, BYTES, PROT_READ | PROT_WRITE, flags, -1, 0) != AREA ||
        mmap(LONG_AREA, LONG_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0) != LONG_AREA)
        return 7;
    for (unsigned turn = 0; turn < 400; turn++) {
        unsigned bytes = 1 << below(4), most = below(4) ? 3 * PAGE / bytes : 9;
        now.step = below(2) ? (int)bytes : -(int)bytes;
        now.loads = below(3) > 0;
        now.times = below(most);
        unsigned room = BYTES - now.times * bytes;
        uintptr_t to = below(room), from = below(2) ? below(room) : to;
        if (from == to) { // overlaps, often within an element or a line
            from += below(2) ? below(24) : below(3 * 64);
            from = from > room ? room : from;
            if (below(2)) {
                uintptr_t other = from;
                from = to, to = other;
            }
        }
        now.to = first((uintptr_t)AREA + to);
        now.from = first((uintptr_t)AREA + from);
        for (unsigned i = 0; i < BYTES / 8; i++)
            expected[i] = ((volatile uint64_t *)AREA)[i] = i * 0x9e3779b97f4a7c15 + turn;
        for (unsigned i = below(3); i > 0; i--)
            mprotect(AREA + below(PAGES) * PAGE, PAGE, below(2) ? PROT_NONE : PROT_READ);
        repeat();
        mprotect(AREA, BYTES, PROT_READ | PROT_WRITE);
        expect();
        for (unsigned i = 0; i < BYTES / 8; i++)
            if (((volatile uint64_t *)AREA)[i] != expected[i])
                return 8;
    }
    // More elements than QEMU repeats within a block.
    for (unsigned turn = 0; turn < 4; turn++) {
        now.step = turn % 2 ? -1 : 1;
        now.loads = turn / 2;
        now.times = 150000 + turn;
        now.to = first((uintptr_t)LONG_AREA + 77);
        now.from = first((uintptr_t)LONG_AREA + LONG_BYTES / 2 + 5 * turn);
        repeat();
    }
    return faults < 100 ? 9 : 0;
}
