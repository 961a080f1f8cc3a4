/* The same code in memory that others may write (shared) or that none may (private). */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
int main(int argc, char **argv)
{
    /* 1: call 2f; dec %edi; jnz 1b; ret; 2: mov (%rsi), %eax; mov %eax, 8(%rsi); ret */
    static const unsigned char loop[] = { 0xe8, 5, 0, 0, 0, 0xff, 0xcf, 0x75, 0xf7, 0xc3,
                                          0x8b, 0x06, 0x89, 0x46, 0x08, 0xc3 };
    static long data[4096];
    int sharing = argv[1][0] == 's' ? MAP_SHARED : MAP_PRIVATE;
    void *code = mmap(0, 4096, 7, sharing | MAP_ANONYMOUS, -1, 0);
    memcpy(code, loop, sizeof loop);
    ((void (*)(int, void *))code)(atoi(argv[2]), data);
    return 0;
}
