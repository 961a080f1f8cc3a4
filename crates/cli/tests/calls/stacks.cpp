/* Ways to leave functions and stacks other than by returning. Each way ends in `touch`,
 * which reads so many lines that nothing read before. Functions are not inlined. */
#include <alloca.h>
#include <csetjmp>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define CALLED __attribute__((noipa))

static volatile char *memory;
static long taken;

CALLED static void touch(long lines)
{
    /* Steps that are longer than a page, so that nothing comes along. */
    for (long i = 0; i < lines; i++, taken += 4160)
        (void)memory[taken];
}

static std::jmp_buf back;

CALLED static void leave(int deeper)
{
    if (deeper)
        leave(deeper - 1);
    std::longjmp(back, 1);
}

CALLED static void jumps()
{
    for (volatile int i = 0; i < 200; i++) {
        if (!setjmp(back))
            leave(3);
        touch(10);
    }
}

CALLED static void raise_it(int deeper)
{
    if (deeper)
        raise_it(deeper - 1);
    throw 1;
}

CALLED static void throws()
{
    for (int i = 0; i < 200; i++) {
        try {
            raise_it(3);
        } catch (int) {
            touch(15);
        }
    }
}

static ucontext_t outer, one, two;

CALLED static void inner_one() { touch(20); swapcontext(&one, &two); }
CALLED static void coroutine_one() { for (int i = 0; i < 100; i++) inner_one(); }
CALLED static void inner_two() { touch(25); swapcontext(&two, &one); }
CALLED static void coroutine_two() { for (int i = 0; i < 100; i++) inner_two(); }

CALLED static void coroutines()
{
    /* Side by side, as an allocator of small stacks would put them. */
    char *stacks = (char *)std::malloc(2 << 16);
    ucontext_t *contexts[] = { &one, &two };
    for (int i = 0; i < 2; i++) {
        getcontext(contexts[i]);
        contexts[i]->uc_stack.ss_sp = stacks + (i << 16);
        contexts[i]->uc_stack.ss_size = 1 << 16;
        contexts[i]->uc_link = &outer;
        makecontext(contexts[i], i ? coroutine_two : coroutine_one, 0);
    }
    swapcontext(&outer, &one);
    touch(500);
}

CALLED static void handler(int) { touch(30); }

CALLED static void signals()
{
    /* Above, in the same stack: further from the calls than a handler's frame is. */
    stack_t stack = {};
    stack.ss_sp = std::malloc(1 << 16);
    stack.ss_size = 1 << 16;
    sigaltstack(&stack, nullptr);
    struct sigaction action = {};
    action.sa_handler = handler;
    action.sa_flags = SA_ONSTACK;
    sigaction(SIGUSR1, &action, nullptr);
    for (int i = 0; i < 100; i++) {
        std::raise(SIGUSR1);
        touch(35);
    }
}

CALLED static void fill(char *bytes, long n) { std::memset(bytes, 1, n); touch(20); }

CALLED static void rooms()
{
    for (long n = 1; n <= 100; n++) {
        char room[n * 100]; /* given back at the end of each turn */
        fill(room, n * 100);
    }
    touch(1000);
}

CALLED static void child() { touch(3000); }

CALLED static void forks()
{
    if (!fork()) {
        child();
        _exit(0);
    }
    wait(nullptr);
}

int main()
{
    memory = (volatile char *)mmap(nullptr, 1 << 30, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    jumps();
    throws();
    coroutines();
    signals();
    rooms();
    forks();
}
