/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Records which frame of CPython (3.9 to 3.13) each thread executes.
 *
 * The interpreter keeps the current frame in its thread state. A call from Python to Python changes
 * it inside of one call of _PyEval_EvalFrameDefault since CPython 3.11, so the engine compares it
 * at the start of each block of that function and wherever the function returns to. A change puts
 * a mark with the number of the frame's code into the ring, in order with the thread's accesses.
 * The line needs no mark: the interpreter loads each instruction from the code, and the recorder
 * sees the addresses of loads.
 *
 * Names and line tables are read when a frame becomes current, and compared with those of the last
 * frame with code at that address. Code objects that die cannot pass their names on.
 *
 * Structures are found by offset: the version follows from the functions that the interpreter
 * exports. The first frame must have a code object with names, or nothing is recorded: builds with
 * other structures exist (debug builds, without the global lock).
 */
#include "qemu/osdep.h"
#include "qemu/qemu-plugin.h"
#include "exec/page-protection.h"
#include "hw/core/cpu.h"

#include <pthread.h>

#include "emit.h"
#include "guest/registers.h"
#include "python.h"
#include "session.h"
#include "symbols.h"
#include "time/sync.h"

/* Offsets in structures of CPython, as a release build has them on x86-64. */
struct layout {
    uint8_t minor;
    uint16_t frame_of_thread; /* PyThreadState: the current frame, or the cframe that has it */
    int16_t frame_of_cframe;  /* -1: there is none */
    uint16_t code_of_frame, previous_of_frame;
    uint16_t first_line, file_name, name, line_table; /* PyCodeObject */
    uint16_t instructions; /* of 3.11 on: the bytes themselves, otherwise a bytes object */
    uint16_t ascii, compact; /* sizes of headers of strings */
    uint16_t owner_of_frame; /* 0: all frames have code; otherwise OWNED_BY_C marks others */
};

static const struct layout layouts[] = {
    { 9, 24, -1, 32, 24, 40, 104, 112, 120, 48, 48, 72, 0 },
    { 10, 24, -1, 32, 24, 40, 104, 112, 120, 48, 48, 72, 0 },
    { 11, 56, 8, 32, 48, 72, 112, 128, 136, 184, 48, 72, 0 },
    { 12, 56, 0, 0, 8, 68, 112, 128, 136, 192, 40, 56, 70 },
    { 13, 72, -1, 0, 8, 68, 112, 128, 136, 200, 40, 56, 70 },
};

enum { TYPE = 8, SIZE = 16, HEADER = 16, TYPE_NAME = 24, BYTES = 32, TEXT_LENGTH = 16,
       TEXT_STATE = 32, OWNED_BY_C = 3 };
enum { MOST_FILE_NAME = 1024, MOST_NAME = 512, MOST_TABLE = 1 << 17, MOST_CODES = 1 << 20,
       MOST_OUTER = 256 };

/* Functions that a version has and earlier ones lack. */
static const char *const added[] = {
    "PyFrame_GetCode", "PyModule_AddObjectRef", "PyFrame_GetLasti", "PyUnstable_Code_New",
    "Py_GetConstant", "PyConfig_Get",
};
static const char evaluates[] = "_PyEval_EvalFrameDefault";


struct range {
    uint64_t start, end;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct range eval, cold;      /* the interpreter's loop, and what the compiler put aside */
static unsigned versions;            /* bits of `added` */
static const struct layout *layout;  /* NULL: not known yet */
static bool is_unknown;              /* it is none of the layouts */
static uint64_t code_type, base;
static GHashTable *codes;            /* struct mg_python by the code's address */
static GHashTable *returns;          /* addresses to which the loop returns */
static uint64_t numbers;

/* Pages that have been read, to read them without asking the kernel. */
enum { PAGES = 512 };

static __thread struct {
    uint64_t state;  /* the thread state; 0: runs no Python */
    uint64_t cframe; /* the last one */
    uint64_t frame;  /* the current one as the recorder knows it */
    uint64_t page[PAGES];
} own;

/* ---- the program's memory ---- */

static bool is_page_readable(uint64_t page)
{
    uint64_t *known = &own.page[page % PAGES];
    char byte;
    if (!page)
        return false;
    if (*known == page)
        return true;
    if (!mg_guest_read(&byte, page * MG_PAGE, 1))
        return false;
    *known = page;
    return true;
}

static bool is_readable(uint64_t from, uint64_t bytes)
{
    if (from >> MG_ID_SHIFT || bytes > MOST_TABLE)
        return false;
    for (uint64_t page = from / MG_PAGE; page <= (from + bytes - 1) / MG_PAGE; page++)
        if (!is_page_readable(page))
            return false;
    return true;
}

static void *host(uint64_t address)
{
    return (void *)(uintptr_t)(address + base);
}

static uint64_t load(uint64_t address)
{
    return *(uint64_t *)host(address);
}

static uint64_t load_checked(uint64_t address)
{
    return is_readable(address, 8) ? load(address) : 0;
}

/* ---- names ---- */

static unsigned put_character(uint8_t *to, uint32_t c)
{
    if (c < 0x80) {
        to[0] = c;
        return 1;
    }
    unsigned more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    static const uint8_t lead[] = { 0, 0xc0, 0xe0, 0xf0 };
    to[0] = lead[more] | c >> 6 * more;
    for (unsigned i = 1; i <= more; i++)
        to[i] = 0x80 | (c >> 6 * (more - i) & 0x3f);
    return more + 1;
}

/* Copies a string as UTF-8, at most `most` bytes; returns their number, or -1 without a string. */
static int text(const struct layout *l, uint64_t object, uint8_t *to, unsigned most)
{
    if (!is_readable(object, l->compact))
        return -1;
    uint64_t length = load(object + TEXT_LENGTH);
    uint32_t state = *(uint32_t *)host(object + TEXT_STATE);
    unsigned kind = state >> 2 & 7, bytes = 0;
    bool is_compact = state & 1 << 5, is_ascii = state & 1 << 6;
    uint64_t from = object + (is_ascii ? l->ascii : l->compact);
    length = MIN(length, most);
    if (!is_compact || (kind != 1 && kind != 2 && kind != 4) ||
        (length && !is_readable(from, length * kind)))
        return -1;
    if (is_ascii) {
        memcpy(to, host(from), length);
        return length;
    }
    for (uint64_t i = 0; i < length && bytes + 4 <= most; i++) {
        const void *at = host(from + i * kind);
        uint32_t c = kind == 1 ? *(uint8_t *)at : kind == 2 ? *(uint16_t *)at : *(uint32_t *)at;
        bytes += put_character(to + bytes, c);
    }
    return bytes;
}

/* Description of code in the catalogue. */
struct record {
    struct mg_python head;
    uint8_t tail[MOST_FILE_NAME + MOST_NAME + MOST_TABLE];
};

static struct record scratch;

/* Reads a code object. The lock is held. */
static struct record *describe(const struct layout *l, uint64_t code)
{
    struct mg_python *h = &scratch.head;
    uint64_t instructions = code + l->instructions, units = load_checked(code + SIZE);
    if (l->minor < 11) {
        uint64_t bytes = load_checked(instructions);
        instructions = bytes + BYTES;
        units = load_checked(bytes + SIZE) / 2;
    }
    int file = text(l, load_checked(code + l->file_name), scratch.tail, MOST_FILE_NAME);
    int name = file < 0 ? -1
             : text(l, load_checked(code + l->name), scratch.tail + file, MOST_NAME);
    uint64_t table = load_checked(code + l->line_table);
    uint64_t bytes = MIN(load_checked(table + SIZE), MOST_TABLE);
    if (name < 0 || (bytes && !is_readable(table + BYTES, bytes)))
        return NULL;
    memcpy(scratch.tail + file + name, host(table + BYTES), bytes);
    uint64_t all = sizeof *h + file + name + bytes, padded = (all + 7) & ~7ull;
    memset((uint8_t *)&scratch + all, 0, padded - all);
    *h = (struct mg_python){
        .record = { MG_REC_PYTHON, padded }, .code = code, .instructions = instructions,
        .bytes = 2 * units, .first_line = *(int32_t *)host(code + l->first_line),
        .minor = l->minor, .file_bytes = file, .name_bytes = name, .table_bytes = bytes,
    };
    return &scratch;
}

/* Number of the code at an address, added to the catalogue if new; 0 if there is no room. */
static uint64_t number_of(uint64_t code)
{
    uint64_t number = 0;
    pthread_mutex_lock(&lock);
    struct record *now = describe(layout, code);
    struct mg_python *known = g_hash_table_lookup(codes, (void *)code);
    if (!now) {
        pthread_mutex_unlock(&lock);
        return 0;
    }
    now->head.number = known ? known->number : 0;
    if (known && known->record.bytes == now->head.record.bytes &&
        memcmp(known, now, known->record.bytes) == 0) {
        number = known->number;
    } else if (numbers < MOST_CODES) {
        now->head.number = number = ++numbers;
        if (mg_catalogue(now, now->head.record.bytes, NULL, 0))
            g_hash_table_insert(codes, (void *)code, g_memdup2(now, now->head.record.bytes));
        else
            number = 0;
    }
    pthread_mutex_unlock(&lock);
    return number;
}

/* ---- frames ---- */

static uint64_t current_frame(void)
{
    uint64_t cell = load(own.state + layout->frame_of_thread);
    if (layout->frame_of_cframe < 0)
        return cell;
    if (cell != own.cframe && !is_readable(cell, 32))
        return own.frame;
    own.cframe = cell;
    return load(cell + layout->frame_of_cframe);
}

/* The frame, or the next outer one that is not the interpreter's own. */
static uint64_t with_code(uint64_t frame)
{
    while (frame && layout->owner_of_frame && is_readable(frame, 80) &&
           *(uint8_t *)host(frame + layout->owner_of_frame) == OWNED_BY_C)
        frame = load(frame + layout->previous_of_frame);
    return frame;
}

static uint64_t caller_of(uint64_t frame)
{
    return with_code(load_checked(frame + layout->previous_of_frame));
}

/* Marks the current frame. 0: the thread executes none, as when the interpreter starts and ends. */
static void put_frame(uint64_t frame)
{
    uint64_t code = load_checked(frame + layout->code_of_frame), previous = caller_of(frame);
    bool is_code = is_readable(code, layout->instructions) && load(code + TYPE) == code_type;
    uint64_t word[] = {
        MG_MARK_PYTHON | (is_code ? number_of(code) : 0),
        MG_MARK_FIELD | (frame & MG_FIELD),
        MG_MARK_FIELD | (previous & MG_FIELD),
    };
    mg_put_marks(word, ARRAY_SIZE(word));
}

static void on_block(unsigned vcpu, void *unused)
{
    (void)vcpu, (void)unused;
    if (!own.state)
        return;
    uint64_t frame = current_frame();
    if (frame == own.frame)
        return;
    int saved = errno;
    uint64_t outer[MOST_OUTER], at = with_code(frame);
    unsigned frames = 0;
    /* The recorder knows no frames of a thread that has just been forked. */
    while (at && frames < (own.frame ? 1 : MOST_OUTER)) {
        outer[frames++] = at;
        at = caller_of(at);
    }
    own.frame = frame;
    if (!frames)
        put_frame(0);
    while (frames)
        put_frame(outer[--frames]);
    errno = saved;
}

static const struct layout *layout_of_version(void)
{
    unsigned at = 0;
    while (at < ARRAY_SIZE(added) && versions >> at & 1)
        at++;
    return at && at <= ARRAY_SIZE(layouts) ? &layouts[at - 1] : NULL;
}

/* Whether the frame that is about to be executed has this layout. */
static bool fits(const struct layout *l, uint64_t frame)
{
    uint64_t code = load_checked(frame + l->code_of_frame), type = load_checked(code + TYPE);
    char name[5] = "";
    return mg_guest_read(name, load_checked(type + TYPE_NAME), sizeof name) &&
           memcmp(name, "code", sizeof name) == 0 && describe(l, code) &&
           load_checked(frame + l->previous_of_frame) >> MG_ID_SHIFT == 0;
}

static void learn(uint64_t frame)
{
    const struct layout *l = layout_of_version();
    pthread_mutex_lock(&lock);
    if (!layout && !is_unknown) {
        if (l && fits(l, frame)) {
            code_type = load(load(frame + l->code_of_frame) + TYPE);
            layout = l;
        } else {
            is_unknown = true;
        }
    }
    pthread_mutex_unlock(&lock);
}

/* Watches the block at a return address. */
static void watch(uint64_t returns_to)
{
    pthread_mutex_lock(&lock);
    bool is_new = returns_to && g_hash_table_add(returns, (void *)returns_to);
    pthread_mutex_unlock(&lock);
    if (is_new) {
        mmap_lock();
        tb_invalidate_phys_range(returns_to, returns_to);
        mmap_unlock();
    }
}

/* The loop begins: its arguments are the thread state and a frame. */
static void on_entry(unsigned vcpu, void *unused)
{
    (void)vcpu, (void)unused;
    int saved = errno;
    uint64_t state = mg_reg(mg_reg_argument[0]);
    if (!layout && !is_unknown)
        learn(mg_reg(mg_reg_argument[1]));
    if (layout) {
        if (state != own.state)
            own.state = is_readable(state, 128) ? state : 0;
        watch(load_checked(mg_reg(MG_REG_SP)));
    }
    errno = saved;
}

static bool lies_in(const struct range *r, uint64_t vaddr)
{
    return vaddr >= r->start && vaddr < r->end;
}

void mg_python_translate(struct qemu_plugin_tb *tb, uint64_t vaddr)
{
    if (!eval.start || is_unknown)
        return;
    pthread_mutex_lock(&lock);
    bool is_return = g_hash_table_contains(returns, (void *)vaddr);
    pthread_mutex_unlock(&lock);
    if (vaddr == eval.start)
        qemu_plugin_register_vcpu_tb_exec_cb(tb, on_entry, QEMU_PLUGIN_CB_NO_REGS, NULL);
    else if (is_return || lies_in(&eval, vaddr) || lies_in(&cold, vaddr))
        qemu_plugin_register_vcpu_tb_exec_cb(tb, on_block, QEMU_PLUGIN_CB_NO_REGS, NULL);
}

/* ---- where the interpreter is ---- */

static bool is_wanted(const char *name)
{
    if (strncmp(name, evaluates, sizeof evaluates - 1) == 0)
        return true;
    for (unsigned n = 0; n < ARRAY_SIZE(added); n++)
        if (strcmp(name, added[n]) == 0)
            return true;
    return false;
}

static void found(const char *name, uint64_t vaddr, uint64_t bytes)
{
    struct range range = { vaddr, vaddr + bytes };
    if (strcmp(name, evaluates) == 0)
        eval = range;
    else if (strncmp(name, evaluates, sizeof evaluates - 1) == 0)
        cold = range;
    for (unsigned n = 0; n < ARRAY_SIZE(added); n++)
        if (strcmp(name, added[n]) == 0)
            versions |= 1u << n;
}

static void forget(uint64_t start, uint64_t end)
{
    if (eval.start >= start && eval.start < end)
        eval = cold = (struct range){ 0, 0 };
}

static void child_of_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    own.frame = 0;
}

void mg_python_loaded(uint64_t guest_base)
{
    base = guest_base;
}

void mg_python_install(void)
{
    if (mg_sets())
        return;
    codes = g_hash_table_new(NULL, NULL);
    returns = g_hash_table_new(NULL, NULL);
    pthread_atfork(NULL, NULL, child_of_fork);
    mg_symbols_ask((struct mg_symbol_user){ is_wanted, found, forget });
}
