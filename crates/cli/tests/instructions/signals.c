/* Calls, jumps and returns through memory while a timer's signals interrupt them:
 * returns after argv[1] signals. */
#include <signal.h>
#include <stdlib.h>
#include <sys/time.h>

static volatile sig_atomic_t signals;
static void *target;

static void count(int signal)
{
    (void)signal;
    signals++;
}

static void call(void)
{
    __asm__ volatile("lea 2f(%%rip), %%rax\n mov %%rax, %0\n mov $1000, %%ecx\n"
                     "1: call *%0\n dec %%ecx\n jnz 1b\n jmp 3f\n"
                     "2: ret\n"
                     "3:"
                     : "=m"(target)
                     :
                     : "rax", "rcx", "memory", "cc");
}

static void jump(void)
{
    __asm__ volatile("lea 2f(%%rip), %%rax\n mov %%rax, %0\n mov $1000, %%ecx\n"
                     "1: jmp *%0\n"
                     "2: dec %%ecx\n jnz 1b"
                     : "=m"(target)
                     :
                     : "rax", "rcx", "memory", "cc");
}

int main(int argc, char **argv)
{
    long wanted = argc > 1 ? atol(argv[1]) : 0;
    struct sigaction action = {.sa_handler = count};
    struct itimerval timer = {{0, 500}, {0, 500}};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &timer, NULL);
    while (signals < wanted) {
        call();
        jump();
    }
    return 0;
}
