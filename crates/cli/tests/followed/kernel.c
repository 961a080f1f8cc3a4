/* Children without an exit signal, memory of another process, and a stack that overflows. */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static char stack[65536];

static int child(void *argument)
{
    _exit(7);
}

static void start(int flags, int wait_options)
{
    int status = 0, pid = clone(child, stack + sizeof stack, flags, 0);
    int waited = waitpid(pid, &status, wait_options);
    printf("clone %d status %d\n", pid > 0 && waited == pid, WEXITSTATUS(status));
}

static void start_waitid(void)
{
    siginfo_t info;
    int pid = clone(child, stack + sizeof stack, CLONE_VM | CLONE_VFORK, 0);
    int result = waitid(P_PID, pid, &info, WEXITED | __WCLONE);
    printf("waitid %d %d\n", result, info.si_status);
}

static int copy(int pid, int is_write, void *here, void *there, int bytes)
{
    struct iovec local = { here, bytes }, remote = { there, bytes };
    return is_write ? process_vm_writev(pid, &local, 1, &remote, 1, 0)
                    : process_vm_readv(pid, &local, 1, &remote, 1, 0);
}

static void other_process(void)
{
    int secret = 42, got = 0, ready[2], pid;
    char byte;
    pipe(ready);
    if (!(pid = fork())) {
        secret = 43;
        write(ready[1], "x", 1);
        pause();
    }
    read(ready[0], &byte, 1);
    printf("read %d", copy(pid, 0, &got, &secret, 4));
    printf(" %d\n", got);
    got = 77;
    printf("write %d", copy(pid, 1, &got, &secret, 4));
    got = 0;
    copy(pid, 0, &got, &secret, 4);
    printf(" %d\n", got);
    kill(pid, SIGKILL);
    wait(0);
    printf("gone %d, nothing %ld\n", copy(pid, 0, &got, &secret, 4),
           process_vm_readv(getpid(), 0, 0, 0, 0, 0));
    printf("nowhere %d\n", copy(getpid(), 0, &got, (void *)16, 4));
}

/* Code is write-protected once it has been translated. */
static void own_code(void)
{
    unsigned char *code = mmap(0, 4096, 7, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), value;
    int sum = 0;
    memcpy(code, "\xb8\0\0\0\0\xc3", 6);
    for (value = 1; value <= 5; value++) {
        copy(getpid(), 1, &value, code + 1, 1);
        sum = sum * 10 + ((int (*)(void))code)();
    }
    for (value = 1; value <= 5; value++) {
        copy(getpid(), 0, code + 1, &value, 1);
        sum = sum * 10 + ((int (*)(void))code)();
    }
    printf("code %d\n", sum);
}

static void overflowed(int signal, siginfo_t *info, void *context)
{
    char text[32];
    write(1, text, snprintf(text, sizeof text, "overflow %d\n", info->si_code));
    _exit(0);
}

static int recurse(volatile char *above)
{
    volatile char frame[4096];
    frame[0] = above ? above[0] : 0;
    return recurse(frame) + frame[0];
}

int main(void)
{
    start(CLONE_VM | CLONE_VFORK, __WCLONE);
    start(CLONE_VM | CLONE_VFORK | SIGCHLD, 0);
    start(0, __WALL);
    start_waitid();
    other_process();
    own_code();
    fflush(stdout);
    stack_t other = { .ss_sp = malloc(65536), .ss_size = 65536 };
    struct sigaction action = { .sa_sigaction = overflowed, .sa_flags = SA_SIGINFO | SA_ONSTACK };
    sigaltstack(&other, 0);
    sigaction(SIGSEGV, &action, 0);
    return recurse(0);
}
