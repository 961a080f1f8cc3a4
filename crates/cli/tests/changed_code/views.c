/* Code that changes without a store to the address at which it is executed. Each line should
 * end with 12345. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE 8192
#define EXECUTE (PROT_READ | PROT_EXEC)
#define WRITE (PROT_READ | PROT_WRITE)

static const unsigned char gives[6] = { 0xb8, 0, 0, 0, 0, 0xc3 }; /* mov $0, %eax; ret */
static int file, spare, through[2];
static unsigned char *code, *view;
static sigjmp_buf back;

static int new_file(void)
{
    char name[] = "/tmp/codeXXXXXX";
    int fd = mkstemp(name);
    unlink(name);
    return fd;
}

static int call(void)
{
    return ((int (*)(void))code)();
}

static unsigned char *map(int protection, int flags, int fd)
{
    void *at = mmap(0, SIZE, protection, flags, fd, 0);
    if (at == MAP_FAILED)
        abort();
    return at;
}

static void by_view(unsigned char value) { view[1] = value; }

static void by_pwrite(unsigned char value) { pwrite(file, &value, 1, 1); }

static void by_write(unsigned char value)
{
    lseek(file, 1, SEEK_SET);
    write(file, &value, 1);
}

static void by_pwritev(unsigned char value)
{
    struct iovec one = { &value, 1 };
    pwritev(file, &one, 1, 1);
}

static void by_copy(unsigned char value)
{
    loff_t from = 0, to = 1;
    pwrite(spare, &value, 1, 0);
    syscall(SYS_copy_file_range, spare, &from, file, &to, 1, 0);
}

static void by_sendfile(unsigned char value)
{
    off_t from = 0;
    pwrite(spare, &value, 1, 0);
    lseek(file, 1, SEEK_SET);
    sendfile(file, spare, &from, 1);
}

static void by_splice(unsigned char value)
{
    loff_t to = 1;
    write(through[1], &value, 1);
    splice(through[0], 0, file, &to, 1, 0);
}

static void by_truncation(unsigned char value)
{
    ftruncate(file, 0);
    ftruncate(file, SIZE);
    pwrite(file, gives, sizeof gives, 0);
    pwrite(file, &value, 1, 1);
}

static void by_child(unsigned char value)
{
    if (!fork()) {
        view[1] = value;
        _exit(0);
    }
    wait(0);
}

static void *thread(void *value)
{
    view[1] = (long)value;
    return 0;
}

static void by_thread(unsigned char value)
{
    pthread_t other;
    pthread_create(&other, 0, thread, (void *)(long)value);
    pthread_join(other, 0);
}

static void check(const char *how, void (*change)(unsigned char))
{
    int sum = 0;
    for (int i = 1; i <= 5; i++) {
        change(i);
        sum = sum * 10 + call();
    }
    printf("%s: %d\n", how, sum);
}

/* Blocks that lead straight to one another, in a loop of their own. */
static void check_loop(void)
{
    /* 1: call 2f; dec %edi; jnz 1b; ret; 2: mov $0, %eax; ret */
    static const unsigned char loop[] = { 0xe8, 5, 0, 0, 0, 0xff, 0xcf, 0x75, 0xf7, 0xc3,
                                          0xb8, 0, 0, 0, 0, 0xc3 };
    int sum = 0;
    memcpy(view + 64, loop, sizeof loop);
    for (int i = 1; i <= 5; i++) {
        view[64 + 11] = i;
        sum = sum * 10 + ((int (*)(int))(code + 64))(100);
    }
    printf("loop: %d\n", sum);
}

static volatile int stopped;

static void *stop(void *at)
{
    while (!stopped)
        sched_yield();
    *(volatile unsigned char *)at = 0xc3;
    return 0;
}

/* A loop that only the other view ends. */
static void check_endless(void)
{
    /* mov $1, (%rdi); 1: nop; jmp 1b */
    static const unsigned char endless[] = { 0xc6, 0x07, 1, 0x90, 0xeb, 0xfd };
    pthread_t other;
    memcpy(view + 128, endless, sizeof endless);
    pthread_create(&other, 0, stop, view + 128 + 3);
    ((void (*)(volatile int *))(code + 128))(&stopped);
    pthread_join(other, 0);
    printf("endless: 12345\n");
}

static void refuse(int signal) { siglongjmp(back, signal); }

/* The file ends before the code. */
static void check_end(void)
{
    volatile int sum = 0;
    signal(SIGBUS, refuse);
    call();
    ftruncate(file, 0);
    int signal = sigsetjmp(back, 1);
    if (!signal)
        sum = call();
    ftruncate(file, SIZE);
    pwrite(file, gives, sizeof gives, 0);
    printf("end: %d\n", signal == SIGBUS && call() == 0 && !sum ? 12345 : signal);
}

int main(void)
{
    alarm(60); /* where no change is noticed, a loop below is endless */
    pipe(through);
    file = new_file();
    spare = new_file();
    ftruncate(file, SIZE);
    pwrite(file, gives, sizeof gives, 0);

    code = map(EXECUTE, MAP_SHARED, file);
    view = map(WRITE, MAP_SHARED, file);
    check("view", by_view);
    check("thread", by_thread);
    check("child", by_child);
    check("pwrite", by_pwrite);
    check("write", by_write);
    check("pwritev", by_pwritev);
    check("copy_file_range", by_copy);
    check("sendfile", by_sendfile);
    check("splice", by_splice);
    check("ftruncate", by_truncation);
    check_loop();
    check_endless();
    check_end();

    code = map(EXECUTE, MAP_PRIVATE, file);
    check("private pwrite", by_pwrite);
    check("private view", by_view);

    /* Writable where it is executed, too. */
    code = map(WRITE | PROT_EXEC, MAP_SHARED, file);
    check("both, by view", by_view);
    unsigned char *kept = view;
    view = code;
    check("both, in place", by_view);
    check("both, by child", by_child);
    view = kept;

    code = view = map(WRITE | PROT_EXEC, MAP_SHARED | MAP_ANONYMOUS, -1);
    memcpy(code, gives, sizeof gives);
    check("anonymous, by child", by_child);
    view = mremap(code, 0, SIZE, MREMAP_MAYMOVE);
    check("anonymous, by mremap", by_view);
    code = mremap(code, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, map(PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1));
    check("moved", by_view);
    mprotect(code, SIZE, EXECUTE);
    check("protected", by_view);

    int shared = shmget(IPC_PRIVATE, SIZE, 0700);
    code = shmat(shared, 0, SHM_EXEC);
    view = shmat(shared, 0, 0);
    shmctl(shared, IPC_RMID, 0);
    memcpy(view, gives, sizeof gives);
    check("System V", by_view);
    return 0;
}
