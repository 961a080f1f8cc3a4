/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Follows the program's changes to its address space, and the programs that it starts.
 */
#include "guest.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "decode.h"
#include "isa.h"
#include "../time/files.h"
#include "../time/hold.h"
#include "../seed.h"
#include "../symbols.h"
#include "../session.h"
#include "../time/sync.h"

enum { MAX_ARGS = 1 << 16, MAX_SHEBANGS = 4 };

/* The kernel's name for shared memory without a file, which users know as anonymous memory. */
#define SHARED_ANONYMOUS "/dev/zero (deleted)"

void memgauge_illegal_instruction(uint64_t address);

static uint64_t guest_base;
static uint64_t (*host_maps)[2];
static size_t host_map_count;
static char qemu_path[PATH_MAX];
static __thread uint64_t sys_arg[6];

/* QEMU function: the program's access rights to the page at `address`, in bits of PROT_*. The
 * host's mappings have less information, since QEMU maps code as readable, never as executable. */
int page_get_flags(uint64_t address);

/* ---- address space ---- */

static void report_map(uint32_t kind, uint64_t start, uint64_t end, uint64_t offset, uint32_t prot,
                       const char *path)
{
    uint32_t path_bytes = path ? strlen(path) : 0;
    uint32_t padded = (path_bytes + 7) & ~7u;
    char name[PATH_MAX + 8] = "";
    if (path)
        memcpy(name, path, path_bytes);
    struct mg_map m = {
        .record = { kind, sizeof m + padded }, .start = start, .end = end,
        .file_offset = offset, .prot = prot, .path_bytes = path_bytes,
    };
    mg_catalogue(&m, sizeof m, name, padded);
    if (kind == MG_REC_MAP && prot & PROT_EXEC && path_bytes)
        mg_symbols_map(start, end, offset, path);
}

typedef void (*map_visitor)(uint64_t start, uint64_t end, uint64_t offset, const char *perms,
                            const char *path);

/* The kernel writes a line break in a path as \012 and escapes nothing else. */
static void unescape(char *path)
{
    char *to = path;
    for (const char *at = path; *at; to++) {
        bool escaped = strncmp(at, "\\012", 4) == 0;
        *to = escaped ? '\n' : *at;
        at += escaped ? 4 : 1;
    }
    *to = 0;
}

static void for_each_host_map(map_visitor visit)
{
    FILE *f = fopen("/proc/self/maps", "re");
    char *line = NULL;
    size_t room = 0;
    while (f && getline(&line, &room, f) > 0) {
        unsigned long long start, end, offset;
        char perms[8];
        int name = 0;
        if (sscanf(line, "%llx-%llx %7s %llx %*s %*s %n", &start, &end, perms, &offset, &name) < 4)
            continue;
        line[strcspn(line, "\n")] = 0;
        unescape(line + name);
        visit(start, end, offset, perms, line + name);
    }
    free(line);
    if (f)
        fclose(f);
}

static void remember_host_map(uint64_t start, uint64_t end, uint64_t offset, const char *perms,
                              const char *path)
{
    (void)offset, (void)perms, (void)path;
    host_maps = realloc(host_maps, (host_map_count + 1) * sizeof *host_maps);
    host_maps[host_map_count][0] = start;
    host_maps[host_map_count++][1] = end;
}

static bool known_to_host(uint64_t start, uint64_t end)
{
    for (size_t i = 0; i < host_map_count; i++)
        if (start < host_maps[i][1] && host_maps[i][0] < end)
            return true;
    return false;
}

static void report_host_map(uint64_t start, uint64_t end, uint64_t offset, const char *perms,
                            const char *path)
{
    if (perms[0] != 'r' || start < guest_base)
        return;
    uint64_t at = start - guest_base, to = end - guest_base;
    if (path[0] != '/' || strcmp(path, SHARED_ANONYMOUS) == 0) {
        report_map(MG_REC_MAP, at, to, 0, PROT_READ | PROT_WRITE, "");
        return;
    }
    /* One mapping of the host may contain both code and data. */
    while (at < to) {
        uint64_t first = at;
        int prot = page_get_flags(at) & (PROT_READ | PROT_WRITE | PROT_EXEC);
        do
            at += MG_PAGE;
        while (at < to && (page_get_flags(at) & PROT_EXEC) == (prot & PROT_EXEC));
        report_map(MG_REC_MAP, first, at < to ? at : to, offset, prot, path);
        offset += at - first;
    }
}

static void report_loaded_map(uint64_t start, uint64_t end, uint64_t offset, const char *perms,
                              const char *path)
{
    bool session = strncmp(path, mg_session_dir, strlen(mg_session_dir)) == 0;
    if (!known_to_host(start, end) && !session)
        report_host_map(start, end, offset, perms, path);
}

/* Host addresses that now_mapped() looks for. */
static __thread uint64_t sought_start, sought_end;

static void report_sought_map(uint64_t start, uint64_t end, uint64_t offset, const char *perms,
                              const char *path)
{
    uint64_t from = start > sought_start ? start : sought_start;
    uint64_t to = end < sought_end ? end : sought_end;
    if (from < to)
        report_host_map(from, to, offset + (from - start), perms, path);
}

/* Memory for which the system call named no file. */
static void now_mapped(uint64_t start, uint64_t bytes)
{
    sought_start = start + guest_base;
    sought_end = sought_start + bytes;
    for_each_host_map(report_sought_map);
}

/* Path of the program under the emulator, or NULL if unknown. It is one of QEMU's own arguments, in
 * the order used by the recorder and follow(): EMULATOR -0 NAME -plugin FILE PROGRAM… */
static char *own_program(void)
{
    static char words[4 * PATH_MAX];
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t bytes = fd < 0 ? -1 : read(fd, words, sizeof words - 1);
    if (fd >= 0)
        close(fd);
    char *at = words, *end = words + (bytes > 0 ? bytes : 0);
    for (int before = 5; before > 0 && at < end; before--)
        at += strlen(at) + 1;
    return at < end ? at : NULL;
}

/* The thread-local variables of the program begin this many bytes before the thread pointer; 0 if it
 * has none. Those of libraries lie before them. */
static char tls_path[PATH_MAX];
static uint64_t tls_to_thread_pointer;

static bool read_at(int fd, void *to, size_t bytes, uint64_t at)
{
    return pread(fd, to, bytes, at) == (ssize_t)bytes;
}

static void find_thread_local(const char *program)
{
    Elf64_Ehdr e;
    Elf64_Phdr p;
    int fd = program && realpath(program, tls_path) ? open(tls_path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    bool is_elf = read_at(fd, &e, sizeof e, 0) && memcmp(e.e_ident, ELFMAG, SELFMAG) == 0 &&
                  e.e_ident[EI_CLASS] == ELFCLASS64 && e.e_phentsize == sizeof p;
    for (unsigned n = 0; is_elf && n < e.e_phnum; n++) {
        if (!read_at(fd, &p, sizeof p, e.e_phoff + n * sizeof p) || p.p_type != PT_TLS)
            continue;
        uint64_t align = p.p_align && !(p.p_align & (p.p_align - 1)) ? p.p_align : 1;
        uint64_t first = -p.p_vaddr & (align - 1);
        tls_to_thread_pointer = ((p.p_memsz - first + align - 1) & -align) + first;
        break;
    }
    close(fd);
}

/* Reports where a thread has the program's thread-local variables. */
static void report_thread_local(uint64_t thread_pointer)
{
    if (!tls_to_thread_pointer || thread_pointer < tls_to_thread_pointer)
        return;
    uint64_t start = thread_pointer - tls_to_thread_pointer;
    report_map(MG_REC_MAP, start, thread_pointer, MG_THREAD_LOCAL, PROT_READ | PROT_WRITE, tls_path);
    mg_put_sync(MG_SYNC_MAPPED, 0, mg_catalogue_bytes());
}

/* ps, pgrep and the program itself see its own name instead of the emulator's. A script has the
 * name of its interpreter. */
static void take_name(const char *program)
{
    const char *slash = strrchr(program, '/');
    prctl(PR_SET_NAME, slash ? slash + 1 : program);
}

void mg_guest_loaded(uint64_t base)
{
    char *program = own_program();
    guest_base = base;
    for_each_host_map(report_loaded_map);
    report_map(MG_REC_PROGRAM, 0, 0, 0, 0, program);
    find_thread_local(program);
    if (program)
        take_name(program);
}

static uint64_t whole_pages(uint64_t bytes)
{
    return (bytes + MG_PAGE - 1) & ~(uint64_t)(MG_PAGE - 1);
}

static void mapped(uint64_t start, int64_t fd)
{
    char link[64], path[PATH_MAX] = "";
    if (fd >= 0 && !(sys_arg[3] & MAP_ANONYMOUS)) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", (int)fd);
        ssize_t n = readlink(link, path, sizeof path - 1);
        path[n > 0 ? n : 0] = 0;
    }
    report_map(MG_REC_MAP, start, start + whole_pages(sys_arg[1]), path[0] ? sys_arg[5] : 0,
               sys_arg[2], path);
}

static void remapped(uint64_t to)
{
    if (!(sys_arg[3] & MREMAP_DONTUNMAP))
        report_map(MG_REC_UNMAP, sys_arg[0], sys_arg[0] + sys_arg[1], 0, 0, NULL);
    now_mapped(to, whole_pages(sys_arg[2]));
}

static void attached(uint64_t start, int id)
{
    struct shmid_ds segment;
    if (shmctl(id, IPC_STAT, &segment) == 0)
        now_mapped(start, whole_pages(segment.shm_segsz));
}

/* Arguments of madvise, for the visitor. */
static __thread uint64_t advised_start, advised_end;
static __thread bool wants_huge_pages;

static void report_advised_map(uint64_t start, uint64_t end, uint64_t offset, const char *perms,
                               const char *path)
{
    (void)offset, (void)perms;
    uint64_t from = advised_start + guest_base, to = advised_end + guest_base;
    from = from < start ? start : from;
    to = to > end ? end : to;
    if (from < to && path[0] != '/')
        report_map(MG_REC_ADVISED, from - guest_base, to - guest_base, 0, wants_huge_pages, NULL);
}

/* Only anonymous memory gets huge pages. */
static void advised(uint64_t start, uint64_t bytes, int advice)
{
    if (advice != MADV_HUGEPAGE && advice != MADV_NOHUGEPAGE)
        return;
    advised_start = start;
    advised_end = start + whole_pages(bytes);
    wants_huge_pages = advice == MADV_HUGEPAGE;
    for_each_host_map(report_advised_map);
    mg_put_sync(MG_SYNC_MAPPED, 0, mg_catalogue_bytes());
}

/* ---- warnings for the user ---- */

/* Called after a wait for a child. If the child crashed, QEMU may be the cause. */
static void waited(int64_t pid, uint64_t status_at)
{
    int status;
    if (pid <= 0 || !status_at || !mg_guest_read(&status, status_at, sizeof status) ||
        !WIFSIGNALED(status))
        return;
    int signal = WTERMSIG(status);
    if (signal == SIGSEGV || signal == SIGBUS || signal == SIGILL)
        report_map(MG_REC_CRASHED, pid, signal, 0, 0, NULL);
}

/* True if a clone comes from AddressSanitizer's leak detector: a process in the same memory that
 * stops the other threads with ptrace. The engine does not support this. */
static bool seeks_leaks(uint64_t flags)
{
    return flags & CLONE_VM && flags & CLONE_UNTRACED && !(flags & (CLONE_THREAD | CLONE_VFORK));
}

/* ---- what the engine refuses ---- */

static void unsupported(const char *feature)
{
    report_map(MG_REC_UNSUPPORTED, 0, 0, 0, 0, feature);
}

/* System calls that a program may depend on. Other unsupported calls also fail, but mostly on old
 * kernels as well, so programs are prepared for that. */
static void check_refused(int64_t num, int64_t ret)
{
    static const struct { int64_t num; const char *feature; } calls[] = {
        { 101, "ptrace" }, { 206, "asynchronous I/O (io_setup)" }, { 250, "keyrings (keyctl)" },
        { 317, "a seccomp filter" }, { 323, "userfaultfd" }, { 425, "io_uring" },
        { 444, "landlock" },
    };
    if (num == G_PRCTL && sys_arg[0] == PR_SET_SECCOMP)
        return unsupported("a seccomp filter");
    for (size_t i = 0; ret == -ENOSYS && i < sizeof calls / sizeof calls[0]; i++)
        if (calls[i].num == num)
            unsupported(calls[i].feature);
}

/* Called by QEMU (engine/qemu.patch) for an instruction that its processor lacks. */
void memgauge_illegal_instruction(uint64_t address)
{
    uint8_t code[15];
    char text[64];
    size_t bytes = sizeof code;
    if (!mg_guest_read(code, address, bytes)) /* may be at the end of its mapping */
        bytes = MG_PAGE - address % MG_PAGE;
    if (bytes <= sizeof code && mg_guest_read(code, address, bytes) &&
        mg_extension_of(code, bytes, text, sizeof text))
        unsupported(text);
}

static void after_syscall(qemu_plugin_id_t id, unsigned vcpu, int64_t num, int64_t ret)
{
    (void)id, (void)vcpu;
    bool failed = ret < 0 && ret > -4096;
    int saved = errno;
    mg_files_after(num, sys_arg);
    mg_sync_after(num, sys_arg, ret);
    if (failed && num == G_CLONE && seeks_leaks(sys_arg[0]))
        report_map(MG_REC_LEAK_SEARCH, 0, 0, 0, 0, NULL);
    if (failed)
        check_refused(num, ret);
    errno = saved;
    if (failed)
        return;
    if (num == G_MMAP) {
        mapped(ret, (int32_t)sys_arg[4]);
    } else if (num == G_MUNMAP) {
        report_map(MG_REC_UNMAP, sys_arg[0], sys_arg[0] + sys_arg[1], 0, 0, NULL);
    } else if (num == G_MREMAP) {
        remapped(ret);
    } else if (num == G_SHMAT) {
        attached(ret, (int)sys_arg[0]);
    } else if (num == G_BRK) {
        report_map(MG_REC_BRK, ret, ret, 0, PROT_READ | PROT_WRITE, NULL);
    } else if (num == G_MADVISE) {
        advised(sys_arg[0], sys_arg[1], (int)sys_arg[2]);
    } else if (num == G_WAIT4) {
        waited(ret, sys_arg[1]);
    } else if (num == G_ARCH_PRCTL && sys_arg[0] == G_SET_FS) {
        report_thread_local(sys_arg[1]);
    }
    if (num == G_MMAP || num == G_MUNMAP || num == G_MREMAP || num == G_SHMAT ||
        num == G_BRK)
        mg_put_sync(MG_SYNC_MAPPED, 0, mg_catalogue_bytes());
    errno = saved;
}

/* ---- programs started by exec ---- */

bool mg_guest_read(void *to, uint64_t from, size_t bytes)
{
    struct iovec l = { to, bytes }, r = { (void *)(from + guest_base), bytes };
    return process_vm_readv(getpid(), &l, 1, &r, 1, 0) == (ssize_t)bytes;
}

static char *guest_string(uint64_t from)
{
    size_t room = 0, used = 0;
    char *s = NULL;
    for (;;) {
        size_t to_page_end = MG_PAGE - (from + used) % MG_PAGE;
        char *grown = realloc(s, room = used + to_page_end);
        if (!grown || !mg_guest_read(grown + used, from + used, to_page_end)) {
            free(grown ? grown : s);
            return NULL;
        }
        s = grown;
        if (memchr(s + used, 0, to_page_end))
            return s;
        used += to_page_end;
        if (used > (2u << 20)) {
            free(s);
            return NULL;
        }
    }
}

/* Copies a NULL-terminated list of strings. Leaves `lead` free places in front. */
static char **guest_strings(uint64_t from, size_t lead, size_t *count)
{
    char **list = NULL;
    for (size_t n = 0; n < MAX_ARGS; n++) {
        uint64_t p = 0;
        if (from && !mg_guest_read(&p, from + 8 * n, 8))
            return NULL;
        list = realloc(list, (lead + n + 1) * sizeof *list);
        if (!p) {
            list[lead + n] = NULL;
            *count = n;
            return list;
        }
        if (!(list[lead + n] = guest_string(p)))
            return NULL;
    }
    return NULL;
}

static void not_followed(const char *path, const char *why)
{
    char text[PATH_MAX];
    int room = sizeof text - (int)strlen(why) - 3;
    snprintf(text, sizeof text, "%.*s: %s", room, path, why);
    report_map(MG_REC_NOT_FOLLOWED, 0, 0, 0, 0, text);
}

static bool privileged(int fd, const struct stat *st)
{
    char caps[64];
    bool changes_user = (st->st_mode & S_ISUID) && st->st_uid != geteuid();
    bool changes_group = (st->st_mode & S_ISGID) && st->st_gid != getegid();
    bool has_caps = geteuid() != 0 &&
                    fgetxattr(fd, "security.capability", caps, sizeof caps) > 0;
    return changes_user || changes_group || has_caps;
}

/* A pending exec: the program and its arguments. */
struct exec {
    char *path;
    char **args; /* with room for the emulator's own arguments in front */
    size_t lead, count;
    bool script;
};

enum { LEAD = 8 + 2 * MAX_SHEBANGS };

static void put_front(struct exec *e, const char *arg)
{
    e->args[--e->lead] = (char *)arg; /* execve does not write to it */
    e->count++;
}

/* `#!interpreter [argument]`: the interpreter runs with the script's path. */
static bool unwrap_script(struct exec *e, char *line)
{
    char *at = line + 2 + strspn(line + 2, " \t");
    char *end = at + strcspn(at, " \t\n");
    char *arg = end + strspn(end, " \t");
    char *arg_end = arg + strcspn(arg, "\n");
    while (arg_end > arg && strchr(" \t\r", arg_end[-1]))
        arg_end--;
    if (end == at)
        return false;
    char *interpreter = strndup(at, end - at);
    if (e->count)
        e->args[e->lead] = e->path; /* replaces argv[0] */
    else
        put_front(e, e->path);
    if (arg_end > arg)
        put_front(e, strndup(arg, arg_end - arg));
    put_front(e, interpreter);
    e->path = interpreter;
    e->script = true;
    return true;
}

/* Reason why the program at `e->path` cannot run under the emulator, or NULL. If the reason is
 * empty, let the kernel report the error. */
static const char *resolve_program(struct exec *e)
{
    for (int depth = 0; depth <= MAX_SHEBANGS; depth++) {
        char head[257] = "";
        struct stat st;
        int fd = open(e->path, O_RDONLY | O_CLOEXEC);
        if (fd < 0)
            return access(e->path, X_OK) == 0 ? "not readable" : "";
        ssize_t n = read(fd, head, 256);
        bool usable = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
                      faccessat(AT_FDCWD, e->path, X_OK, AT_EACCESS) == 0;
        bool raised = usable && privileged(fd, &st);
        close(fd);
        if (!usable || n < 20)
            return "";
        if (raised)
            return "set-uid or with capabilities";
        if (head[0] == '#' && head[1] == '!') {
            if (!unwrap_script(e, head))
                return "";
            continue;
        }
        const Elf64_Ehdr *elf = (const Elf64_Ehdr *)head;
        if (memcmp(head, ELFMAG, SELFMAG) != 0)
            return "";
        if (head[EI_CLASS] != ELFCLASS64 || elf->e_machine != MG_GUEST_MACHINE)
            return "not an " MG_GUEST_NAME " program";
        return NULL;
    }
    return "";
}

/* The emulator opens the program after exec, when a close-on-exec descriptor is gone. Use the
 * file's own path instead, or a copy of the descriptor that stays open. `room` receives the path.
 * NULL if no descriptor is available for the copy. */
static char *lasting_path(char *path, char room[PATH_MAX])
{
    static const char of_descriptor[] = "/proc/self/fd/";
    char *end, *number = path + sizeof of_descriptor - 1;
    struct stat there, opened;
    if (strncmp(path, of_descriptor, sizeof of_descriptor - 1) != 0)
        return path;
    int fd = strtol(number, &end, 10);
    int flags = fcntl(fd, F_GETFD);
    if (end == number || *end || flags < 0 || !(flags & FD_CLOEXEC))
        return path;
    ssize_t n = readlink(path, room, PATH_MAX - 1);
    room[n > 0 ? n : 0] = 0;
    if (stat(room, &there) == 0 && fstat(fd, &opened) == 0 && there.st_dev == opened.st_dev &&
        there.st_ino == opened.st_ino)
        return room;
    int copy = fcntl(fd, F_DUPFD, 0);
    snprintf(room, PATH_MAX, "%s%d", of_descriptor, copy);
    return copy < 0 ? NULL : room;
}

static void follow(uint64_t path, uint64_t argv, uint64_t envp, int dirfd)
{
    struct exec e = { .path = guest_string(path), .lead = LEAD };
    size_t env_count;
    char option[PATH_MAX + 256], at_dir[PATH_MAX + 32], lasting[PATH_MAX];
    e.args = guest_strings(argv, LEAD, &e.count);
    char **env = guest_strings(envp, 0, &env_count);
    if (!e.path || !e.args || !env)
        return; /* the kernel returns EFAULT */
    if (strcmp(e.path, "/proc/self/exe") == 0 && own_program())
        e.path = own_program();
    if (dirfd >= 0 && e.path[0] != '/') {
        snprintf(at_dir, sizeof at_dir, "/proc/self/fd/%d%s%s", dirfd, e.path[0] ? "/" : "",
                 e.path);
        e.path = at_dir;
    }
    char *lasts = lasting_path(e.path, lasting);
    if (!lasts) {
        not_followed(e.path, "no descriptor is left to begin it by");
        return;
    }
    e.path = lasts;
    const char *why = resolve_program(&e);
    if (!why && !mg_session_is_in_reach())
        why = "after a change of user, root or mounts, from where the recording is out of reach";
    if (why) {
        if (why[0])
            not_followed(e.path, why);
        return;
    }
    char *arg0 = e.count ? e.args[e.lead] : e.path;
    snprintf(option, sizeof option, "memgauge,session=%s", mg_session_dir);
    mg_seed_option(option, sizeof option);
    if (e.count)
        e.args[e.lead] = e.path; /* QEMU parses argv[0] */
    else
        put_front(&e, e.path);
    put_front(&e, option);
    put_front(&e, "-plugin");
    put_front(&e, arg0);
    put_front(&e, "-0");
    put_front(&e, "memgauge-emulator");
    mg_sync_exec();
    mg_call_begin(MG_HANDS_ON, 0);
    execve(qemu_path, e.args + e.lead, env);
    mg_call_begin(MG_CALLS, 0);
    not_followed(e.path, "the emulator could not be started");
}

static void before_syscall(qemu_plugin_id_t id, unsigned vcpu, int64_t num, uint64_t a1,
                           uint64_t a2, uint64_t a3, uint64_t a4, uint64_t a5, uint64_t a6,
                           uint64_t a7, uint64_t a8)
{
    (void)id, (void)vcpu, (void)a7, (void)a8;
    uint64_t args[6] = { a1, a2, a3, a4, a5, a6 };
    int saved = errno;
    memcpy(sys_arg, args, sizeof args);
    if (num == G_CLONE && args[0] & CLONE_SETTLS)
        report_thread_local(args[G_CLONE_THREAD_POINTER]);
    mg_sync_before(num, args);
    if (num == G_EXECVE)
        follow(a1, a2, a3, -1);
    else if (num == G_EXECVEAT)
        follow(a2, a3, a4, (int32_t)a1);
    mg_files_before(num);
    errno = saved;
}

void mg_guest_install(qemu_plugin_id_t id)
{
    for_each_host_map(remember_host_map);
    ssize_t n = readlink("/proc/self/exe", qemu_path, sizeof qemu_path - 1);
    qemu_path[n > 0 ? n : 0] = 0;
    qemu_plugin_register_vcpu_syscall_cb(id, before_syscall);
    qemu_plugin_register_vcpu_syscall_ret_cb(id, after_syscall);
}
