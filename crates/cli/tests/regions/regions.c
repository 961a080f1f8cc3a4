/* Regions of interest with counts that are known. See ../regions.rs. */
#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "memgauge_region.h"

/* Three instructions and a load a turn. */
#define TURNS "1: mov (%rdi), %rax\n dec %rsi\n jnz 1b\n"

/* leaf(place, turns): the turns and a return.
 * other(place, turns): the same.
 * deep(levels): five instructions, a load and a store a level; three and a load at last.
 * tail(place, turns): goes on to leaf by a jump.
 * marked(place, turns): a region of the no-op, the turns, a lea and the end's jump. */
__asm__(".text\n"
        ".globl leaf\n .type leaf, @function\n"
        "leaf: " TURNS " ret\n .size leaf, .-leaf\n"
        ".globl other\n .type other, @function\n"
        "other: " TURNS " ret\n .size other, .-other\n"
        ".globl deep\n .type deep, @function\n"
        "deep: test %rdi, %rdi\n jz 1f\n dec %rdi\n call deep\n 1: ret\n .size deep, .-deep\n"
        ".globl tail\n .type tail, @function\n"
        "tail: nop\n jmp leaf\n .size tail, .-tail\n"
        ".globl marked\n .type marked, @function\n"
        "marked: mov %rdi, %r8\n lea name(%rip), %rdi\n"
        " .byte 0xeb, 0, 0x0f, 0x1f, 0x87, 1, 0, 0x47, 0x4d\n"
        " 1: mov (%r8), %rax\n dec %rsi\n jnz 1b\n"
        " lea name(%rip), %rdi\n"
        " .byte 0xeb, 0, 0x0f, 0x1f, 0x87, 2, 0, 0x47, 0x4d\n ret\n .size marked, .-marked\n"
        ".section .rodata\n name: .asciz \"marked\"\n .text\n");

void leaf(volatile long *place, long turns);
void other(volatile long *place, long turns);
void deep(long levels);
void tail(volatile long *place, long turns);
void marked(volatile long *place, long turns);

static volatile long place;
static volatile int jumps = 1;
static jmp_buf home;

__attribute__((noinline)) void jumper(int levels)
{
    if (levels == 0 && jumps)
        longjmp(home, 1);
    if (levels)
        jumper(levels - 1);
    place++;
}

__attribute__((noinline)) static int compare(long a, long b)
{
    return a < b ? -1 : a > b;
}

/* Sorts by halves, recursively: something of every kind for the second witness. */
__attribute__((noinline)) void sorts(long *numbers, long *room, long count)
{
    if (count < 2)
        return;
    long half = count / 2, a = 0, b = half;
    sorts(numbers, room, half);
    sorts(numbers + half, room, count - half);
    for (long i = 0; i < count; i++) {
        int first = b == count || (a < half && compare(numbers[a], numbers[b]) <= 0);
        room[i] = first ? numbers[a++] : numbers[b++];
    }
    for (long i = 0; i < count; i++)
        numbers[i] = room[i];
}

static void *in_thread(void *turns)
{
    leaf(&place, (long)turns);
    return NULL;
}

static void threads(long turns)
{
    pthread_t thread[2];
    memgauge_region_begin("main");
    for (int i = 0; i < 2; i++)
        pthread_create(&thread[i], NULL, in_thread, (void *)turns);
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    memgauge_region_end("main");
}

static void forks(long turns)
{
    memgauge_region_begin("fork");
    pid_t child = fork();
    if (child == 0) {
        leaf(&place, turns);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    memgauge_region_end("fork");
}

__attribute__((noinline)) static void header(long turns)
{
    memgauge_value("turns", turns);
    memgauge_region_begin("once");
    leaf(&place, turns);
    memgauge_region_end("once");
    memgauge_value("turns", 2 * turns);
    memgauge_region_begin("twice");
    leaf(&place, 2 * turns);
    memgauge_region_end("twice");
    memgauge_region_end("never begun");
}

/* Of two functions that take alike long one is called inside. */
static void halves(long turns)
{
    for (uint64_t i = 0; i < 20; i++) {
        memgauge_region_begin("half");
        leaf(&place, turns);
        memgauge_value("turn", i);
        memgauge_region_end("half");
        other(&place, turns);
    }
}

static void *leaves_it_open(void *turns)
{
    memgauge_region_begin("open");
    leaf(&place, (long)turns);
    return NULL;
}

/* One region ends with its thread, another with its process. A mark is begun and never
 * written, as by a process that is killed meanwhile. Then a region as long as both. */
static void ends(long turns)
{
    pthread_t thread;
    pthread_create(&thread, NULL, leaves_it_open, (void *)turns);
    pthread_join(thread, NULL);
    if (fork() == 0) {
        memgauge_region_begin("open");
        leaf(&place, turns);
        _exit(0);
    }
    wait(NULL);
    if (memgauge_marks_)
        __atomic_fetch_add(&memgauge_marks_->begun, 1, __ATOMIC_RELAXED);
    memgauge_region_begin("closed");
    leaf(&place, 2 * turns);
    memgauge_region_end("closed");
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    long n = argc > 2 ? atol(argv[2]) : 0;
    if (strcmp(what, "marked") == 0) {
        marked(&place, n);
        leaf(&place, 77 * n);
        marked(&place, n);
    } else if (strcmp(what, "functions") == 0) {
        leaf(&place, n);
        deep(n);
        tail(&place, n);
    } else if (strcmp(what, "jump") == 0) {
        if (setjmp(home) == 0)
            jumper(10);
        leaf(&place, n);
    } else if (strcmp(what, "sort") == 0) {
        long *numbers = calloc(2 * n, sizeof *numbers);
        for (long i = 0; i < n; i++)
            numbers[i] = i * 7919 % n;
        sorts(numbers, numbers + n, n);
        for (long i = 0; i < n; i++)
            if (numbers[i] != i)
                return 1;
    } else if (strcmp(what, "threads") == 0) {
        threads(n);
    } else if (strcmp(what, "forks") == 0) {
        forks(n);
    } else if (strcmp(what, "halves") == 0) {
        halves(n);
    } else if (strcmp(what, "ends") == 0) {
        ends(n);
    } else if (strcmp(what, "header") == 0) {
        header(n);
    }
    return 0;
}
