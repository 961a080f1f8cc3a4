/* Forks below three functions: parent and child both return through all of them, and the
 * child reads memory in each. Built and run by calls.rs. */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 1 << 20 };
static volatile char *memory;
static volatile long sink;

__attribute__((noinline)) static void touch(void)
{
    for (long at = 0; at < BYTES; at += 64)
        sink += memory[at];
}

__attribute__((noinline)) static pid_t inner(void)
{
    pid_t child = fork();
    if (child == 0)
        touch();
    sink++;
    return child;
}

__attribute__((noinline)) static pid_t middle(void)
{
    pid_t child = inner();
    if (child == 0)
        touch();
    sink++;
    return child;
}

__attribute__((noinline)) static pid_t outer(void)
{
    pid_t child = middle();
    if (child == 0)
        touch();
    sink++;
    return child;
}

int main(void)
{
    memory = malloc(BYTES);
    if (outer() == 0)
        _exit(0);
    wait(NULL);
    return 0;
}
