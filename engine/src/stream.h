/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The data that the engine and the recorder share: files in a directory that both map. The
 * recorder's copy of these definitions is crates/emulate/src/engine/wire.rs. Both sides assert sizes and
 * offsets.
 *
 *   DIR/control     one page, created by the recorder
 *   DIR/e00000000…  entries of processes and threads, in order of creation
 *
 * The entry of a process is a header page and a growing *catalogue*: every translated block of
 * code, every mapping, and the path of the program. The entry of a thread is a header page and a
 * ring of blocks of 64-bit *words*, which describe the execution of the thread. Each run of
 * accesses takes one word:
 *
 *   63 62      47 46            0
 *   +-+----------+---------------+
 *   |s| id       | address       |
 *   +-+----------+---------------+
 *
 * A *run* is a sequence of accesses of a block whose addresses differ from the first one's by
 * constants of less than a line. The address is that of the first access. The first run of a block
 * has the block's id and stands for an execution of the block. A block without accesses has a word
 * with the address MG_NO_ACCESS. Further runs of a block have MG_FURTHER_LOADS, or
 * MG_FURTHER_STORES if one of the accesses stores.
 *
 * s is set for a run that lies in two lines, and for a run apart: non-temporal stores, which do not use
 * the caches, or a prefetch, which is no access. The recorder also accepts a second word for the other
 * line, with the address of the run's last access and MG_OTHER_LINE_LOADS or _STORES. The engine no
 * longer writes such words, because they need a branch (emit.c).
 *
 * Ids from MG_MARKS on, with s set, are marks:
 *
 *   MG_MARK_BLOCK | number   a block begins; all its runs are sent as further ones
 *   MG_MARK_PIECE | kind size insn   a piece of a varying access; the next word is its address, as
 *                            for a further run
 *   MG_MARK_REPEAT | count   last word of a block with a single rep instruction: this many more
 *                            iterations, all in the same lines, each an element further, or back
 *                            with MG_REPEAT_DOWN. Valid until the next block begins
 *   MG_MARK_SYNC | number    the thread lets others continue, or has waited (sync.c). Two marks
 *                            follow: MG_MARK_SYNC_KIND with a kind and a key, MG_MARK_SYNC_NS with
 *                            a time or a number of bytes
 *   MG_MARK_REGION | kind number   a region of interest begins or ends (region.c), or a value:
 *                            MG_MARK_VALUE_HIGH and _LOW follow with 32 bits each
 *   MG_MARK_ALLOCATED | line an allocation function has returned (heap.c; its line in the session's
 *                            file). Four MG_MARK_FIELD follow: address, bytes, path of the call or
 *                            0, number of the event
 *   MG_MARK_PYTHON | code    the thread's current frame of CPython has changed (python.c): the number
 *                            of its code, or 0 for frames without code. Two MG_MARK_FIELD follow: the
 *                            addresses of the frame and of its caller
 *   MG_MARK_FILE_WAIT | use  the thread has waited for a file (files.c): MG_FILE_READ, _WRITE or _SYNC.
 *                            Two MG_MARK_FIELD follow: nanoseconds, and the path of the thread's
 *                            calls or 0
 *   MG_MARK_FREED | line     a function frees memory. Two MG_MARK_FIELD follow: address, and number
 *                            of the event among all allocations and frees of the process
 *
 * If only some cache sets are simulated (mg_control.sets), the ring has other words. A run that
 * touches one of their lines takes three:
 *
 *   63 62      47 46            0
 *   +-+----------+---------------+
 *   |s| run      | address       |   s: the run lies in two lines
 *   +-+----------+---------------+
 *   | executed since the last    |   as in mg_ring.ran
 *   | such word                  |
 *   +----------------------------+
 *   | flags       | block (32)   |   MG_KEPT_STORES, _PIECE, _APART
 *   +----------------------------+
 *
 * One word with the sums of executed code follows MG_MARK_SUM and MG_MARK_PEEK | begins. The latter
 * marks the begin and end of a full pass, in which the runs of all lines are sent, so that the
 * recorder sees how evenly the sets are used. The executions of each block are counted behind the
 * ring (MG_COUNTS_AT). An access of a rep instruction and a piece of a varying access are blocks of
 * their own without instructions (MG_CODE_PIECE) and have a code in place of a run (sets.c).
 */
#ifndef MG_STREAM_H
#define MG_STREAM_H

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define MG_MAGIC 0x3147474du /* "MGG1", little endian */
#define MG_WIRE_VERSION 33u
#define MG_PAGE 4096u

#define MG_BLOCK_WORDS 32768u
/* Maximum number of words of a block of code: 512 instructions with two runs each in two lines, and
 * the pieces of varying accesses. */
#define MG_BLOCK_SLACK 4096u
#define MG_BLOCK_BYTES (8ull * MG_BLOCK_WORDS)
#define MG_BLOCKS 8u
#define MG_CATALOGUE_BYTES (1ull << 30)

#define MG_ID_SHIFT 47
#define MG_SEVERAL (1ull << 63)
#define MG_FURTHER_LOADS 0u
#define MG_FURTHER_STORES 1u
#define MG_OTHER_LINE_LOADS 2u
#define MG_OTHER_LINE_STORES 3u
#define MG_FIRST_BLOCK 4u      /* number of the first block */
#define MG_MARKS 0xff00u       /* blocks from this number on have no id */
#define MG_MARK_BLOCK (MG_SEVERAL | 0xff01ull << MG_ID_SHIFT)
#define MG_MARK_PIECE (MG_SEVERAL | 0xff02ull << MG_ID_SHIFT)
#define MG_MARK_SYNC (MG_SEVERAL | 0xff03ull << MG_ID_SHIFT)
#define MG_MARK_SYNC_KIND (MG_SEVERAL | 0xff04ull << MG_ID_SHIFT)
#define MG_MARK_SYNC_NS (MG_SEVERAL | 0xff05ull << MG_ID_SHIFT)
#define MG_MARK_SUM (MG_SEVERAL | 0xff06ull << MG_ID_SHIFT)
#define MG_MARK_PEEK (MG_SEVERAL | 0xff07ull << MG_ID_SHIFT)
#define MG_MARK_REPEAT (MG_SEVERAL | 0xff08ull << MG_ID_SHIFT)
#define MG_REPEAT_DOWN (1ull << 40)
#define MG_MARK_REGION (MG_SEVERAL | 0xff10ull << MG_ID_SHIFT)
#define MG_MARK_VALUE_HIGH (MG_SEVERAL | 0xff11ull << MG_ID_SHIFT)
#define MG_MARK_VALUE_LOW (MG_SEVERAL | 0xff12ull << MG_ID_SHIFT)
#define MG_MARK_ALLOCATED (MG_SEVERAL | 0xff13ull << MG_ID_SHIFT)
#define MG_MARK_FIELD (MG_SEVERAL | 0xff14ull << MG_ID_SHIFT)
#define MG_MARK_FREED (MG_SEVERAL | 0xff15ull << MG_ID_SHIFT)
#define MG_MARK_PYTHON (MG_SEVERAL | 0xff16ull << MG_ID_SHIFT)
#define MG_MARK_FILE_WAIT (MG_SEVERAL | 0xff17ull << MG_ID_SHIFT)
#define MG_FIELD ((1ull << MG_ID_SHIFT) - 1)
#define MG_OPEN_CALL_BYTES 16  /* struct open_call of heap.c */
#define MG_PATH_CALLS 12       /* innermost calls of an allocation or a wait */
#define MG_REGION_KIND_SHIFT 40
#define MG_REGION_NAME 256     /* size of a region's name, with the NUL */
#define MG_SYNC_KIND_SHIFT 40
#define MG_SYNC_KEY ((1ull << MG_SYNC_KIND_SHIFT) - 1)
#define MG_SYNC_NS ((1ull << MG_ID_SHIFT) - 1)
#define MG_PIECE_LOAD (1ull << 32)
#define MG_PIECE_STORE (1ull << 33)
#define MG_PIECE_SIZE_SHIFT 16
/* In the last page of the user half, which Linux never maps. */
#define MG_NO_ACCESS 0x7ffffffff000ull
#define MG_LINE_BYTES 64u

/* Kinds of MG_MARK_SYNC. The key of EXIT and JOIN_THREAD is the number of a thread, that of
 * JOIN_PROCESS the number of a process. RELEASE, both ACQUIREs and the marks of pipes share one kind
 * of keys. Marks of pipes have a number of bytes in place of the time. */
enum mg_sync_kind {
    MG_SYNC_RELEASE = 1,  /* threads that wait for the key may continue after the time */
    MG_SYNC_ACQUIRE,      /* has waited for the key */
    MG_SYNC_ACQUIRE_END,  /* has waited until no writer of the key is left */
    MG_SYNC_SLEEP,        /* has slept for the time; key 1: it requested more (hold.c) */
    MG_SYNC_START,        /* starts a thread or a process, whose entry has this number */
    MG_SYNC_EXIT,         /* the thread ends; with time 1, its process */
    MG_SYNC_JOIN_THREAD,  /* has waited for the thread to end, if it did */
    MG_SYNC_JOIN_PROCESS, /* has waited for the process to end */
    MG_SYNC_REPEAT,       /* the last release of the key repeats with this period */
    MG_SYNC_WAIT,         /* begins to sleep; the time is MG_SYNC_NS of the host's clock, the
                           * key is that of the signals that may end the sleep */
    MG_SYNC_DUE,          /* follows WAIT: the timer of the key expires after the time */
    MG_SYNC_INTERRUPTED,  /* a signal ended the sleep; it took the time by the host's clock */
    MG_SYNC_GIVE,         /* a release: writes this many bytes to a pipe */
    MG_SYNC_SHORT,        /* has written this many bytes less than announced */
    MG_SYNC_ROOM,         /* has waited for room and written to a pipe of this capacity */
    MG_SYNC_TAKE,         /* has waited for bytes and read them: MG_TAKEN_SHIFT */
    MG_SYNC_NOT_STARTED,  /* the start whose number is in place of the time has failed */
    MG_SYNC_ARRIVE,       /* begins to wait for the key, as at a barrier */
    MG_SYNC_GATHER,       /* lets all threads continue that have arrived, and may have waited */
    MG_SYNC_HOLD,         /* the process is a writer of the key from now on */
    MG_SYNC_LEAVE,        /* a release: it is no longer a writer of the key */
    MG_SYNC_OUTSIDE,      /* the wait that the next marks describe took this long, if no
                           * thread of the session ended it */
    MG_SYNC_READY,        /* has waited until the key was ready; the time is the number of the
                           * process at the other end, or 0. MG_SYNC_NOBODY: no process */
    MG_SYNC_MAPPED,       /* has mapped or unmapped memory; the time is the size of the
                           * catalogue including that record */
};
#define MG_SYNC_NOBODY MG_SYNC_KEY
/* Number of bytes read from a pipe, and below this bit the number left in it. Both are limited. */
#define MG_TAKEN_SHIFT 23
#define MG_TAKEN_BYTES ((1ull << MG_TAKEN_SHIFT) - 1)
/* Key of signals to a group of processes, which may include all of them. */
#define MG_SYNC_GROUP 0u

/* Kinds of MG_MARK_REGION, also used in the program's own marks. */
enum mg_region_kind { MG_REGION_BEGIN = 1, MG_REGION_END, MG_REGION_VALUE };

enum mg_entry_kind { MG_PROCESS = 1, MG_THREAD = 2 };
#define MG_NO_ENTRY 0xffffffffu

/* A cache of the modelled machine. 0 ways if no machine is modelled. */
struct mg_cache {
    uint64_t bytes;
    uint32_t ways;
    uint32_t padding;
};
#define MG_CACHES 3 /* L1D, L2, last level */

struct mg_control {
    uint32_t magic;
    uint32_t version;
    uint32_t recorder_pid;
    _Atomic uint32_t entries;  /* number of claimed entry files */
    _Atomic uint32_t refused;  /* number of processes and threads without an entry */
    _Atomic uint32_t stop;     /* recorder: it has stopped reading */
    _Atomic uint64_t sequence; /* number of MG_MARK_SYNC marks so far */
    uint64_t sets;             /* recorder: classes of simulated lines; 0: all, as words */
    uint32_t models_time;      /* recorder: threads have clocks, so the ends of sleeps are held (hold.c) */
    _Atomic uint32_t holds;    /* recorder: the end of a sleep is or was lately held (hold.c) */
    _Atomic uint64_t worked_ns; /* recorder: host time in which some thread ran */
    uint64_t pid_space;        /* recorder: its PID namespace, by its number in /proc */
    _Atomic uint32_t apart;    /* number of processes and threads that may not write here */
    _Atomic uint32_t crowded;  /* recorder: many threads have not been read yet */
    _Atomic uint32_t seen;     /* recorder: number of entries that it has read */
    uint32_t padding;
    struct mg_cache caches[MG_CACHES]; /* recorder: the caches that CPUID shows (cpuid.c) */
    _Atomic uint64_t file_wait_ns; /* host time for which all waited for files (files.c) */
    _Atomic uint64_t file_write_wait_ns; /* the part of writes */
    _Atomic uint64_t file_sync_wait_ns;  /* the part of fsync and the like */
    _Atomic uint64_t file_waits_until_ns; /* end of the latest such wait on the host's clock */
};

/* How a call uses a file, in MG_MARK_FILE_WAIT. */
enum mg_file_use { MG_FILE_NONE, MG_FILE_READ, MG_FILE_WRITE, MG_FILE_SYNC };

/* A new thread waits while the recorder is this many entries behind. */
#define MG_MOST_UNSEEN 32

/* State of a thread, in the lowest bits of mg_ring.calls. The other bits count its system calls. A
 * thread that hands on is in a call after which another thread continues or begins: it starts a
 * thread, executes another program, or ends. */
enum mg_does { MG_RUNS, MG_CALLS, MG_SLEEPS, MG_HANDS_ON };
#define MG_DOES_BITS 2
#define MG_DEADLINE (1ull << 63)

struct mg_entry {
    uint32_t magic;
    uint32_t kind;
    uint32_t pid;
    uint32_t tid;
    uint32_t owner;            /* thread: its process; process: the one from which it was forked */
    uint32_t first_block;      /* process: number of the parent's blocks at the fork */
    _Atomic uint32_t ready;    /* all fields above are valid */
    _Atomic uint32_t finished; /* thread: it has ended regularly */
};

struct mg_process {
    struct mg_entry entry;
    _Atomic uint64_t used;     /* size of the catalogue */
    _Atomic uint32_t forks;    /* number of forks begun; children have this entry as owner */
    _Atomic uint32_t undecoded; /* number of instructions that the decoder does not know */
    uint64_t start_id;         /* number of its MG_SYNC_START; 0: none */
    uint64_t pid_space;        /* PID namespace of entry.pid; 0: unknown */
    _Atomic uint32_t without_room; /* number of instructions that run unrecorded */
};

enum mg_taken { MG_TAKEN = 1, MG_LEFT = 2 };

struct mg_ring {
    struct mg_entry entry;
    uint64_t start_id;         /* number of its MG_SYNC_START; 0: none */
    _Atomic uint32_t taken;    /* recorder: MG_TAKEN once it reads the ring, MG_LEFT if it never
                                * will, 0 before */
    uint32_t number;           /* number of its entry */
    uint8_t pad0[16];
    /* Written by the thread at every access. The recorder reads w only if a block takes long to
     * fill. */
    uint64_t *w;               /* next word */
    uint64_t *end;             /* no block of code may begin at or after this word */
    uint64_t *data;            /* first word of the ring, in the thread's address space */
    uint64_t piece_next;       /* address of the next piece of a wide access */
    uint32_t piece_left;       /* number of missing pieces */
    _Atomic uint32_t dropped;  /* number of words without room, always 0 */
    uint32_t rep_block;        /* block of the current rep instruction alone */
    uint32_t rep_accesses;     /* number of accesses of the current iteration */
    uint64_t ran;              /* see MG_RAN; top bit: the thread must check its ring */
    uint32_t full;             /* it must, for room; ran is MG_ATTENTION too high */
    uint32_t narrowed;         /* the table has the simulated sets */
    /* written by the recorder */
    _Atomic uint32_t tail;     /* number of read blocks */
    _Atomic uint32_t waiting;  /* the thread sleeps on tail */
    _Atomic uint32_t let_go;   /* mg_ring.held once that sleep may end */
    _Atomic uint32_t begun;    /* 1: its MG_SYNC_START has been read */
    _Atomic uint64_t reached_ns; /* possible length of the held sleep by now */
    _Atomic uint64_t alone_ns; /* host time in which no other thread ran */
    uint8_t pad2[32];
    /* Written by the thread once per block, so that polling costs nothing. */
    uint32_t used[MG_BLOCKS];  /* number of words of each sealed block */
    _Atomic uint32_t head;     /* number of sealed blocks */
    /* Written at system calls. */
    _Atomic uint32_t calls;    /* see enum mg_does */
    _Atomic uint32_t held;     /* number of the sleep whose end is held (hold.c); 0: none */
    uint8_t pad3[4];
    _Atomic uint64_t asked_ns; /* its requested length */
    _Atomic uint64_t asks_ns;  /* maximum wait of the current call, or MG_DEADLINE and the time
                                * left on the host's clock; 0: unknown */
    _Atomic uint64_t marked;   /* number of its last MG_MARK_SYNC */
    /* For rep instructions and varying accesses if some sets are simulated (sets.c). */
    uint64_t rep_at;
    uint64_t rep_ran;
    uint64_t *rep_w;
    uint32_t piece_bytes;
    uint32_t piece_stores;
    uint32_t piece_lines;
    uint32_t peek;             /* number of remaining runs of a full pass */
    uint32_t peek_gap;         /* instructions from the end of a full pass to the next one */
    uint64_t since_peek;       /* instructions since the last full pass began or ended */
};

/* Behind the ring if some sets are simulated: for each class of lines the handling of a run that
 * begins in it, then the executions of each block. */
#define MG_RING_BYTES (MG_PAGE + 8ull * MG_BLOCKS * MG_BLOCK_WORDS)
#define MG_TABLE_AT MG_RING_BYTES
#define MG_CLASSES 64u
#define MG_HERE 1u         /* the line is simulated */
#define MG_NEXT 2u         /* the next line is */
#define MG_COUNTS_AT (MG_TABLE_AT + MG_PAGE)
#define MG_COUNTED (1u << 21) /* number of blocks that have a count */
#define MG_SETS_BYTES (MG_COUNTS_AT + 8ull * MG_COUNTED)
/* Offset in lines between consecutive address spaces in the last-level cache. Must equal the value in
 * crates/machine/src/cache/mod.rs. */
#define MG_SPACE_STEP 0x19e37u
#define MG_SPACES ((1u << 18) - 1)

/* Flags of a sent run: it stores; it is a line of an access that is a block of its own; it is apart
 * (non-temporal stores or a prefetch). */
#define MG_KEPT_STORES (1ull << 32)
#define MG_KEPT_PIECE (1ull << 33)
#define MG_KEPT_APART (1ull << 34)
/* Codes of a line of an access that is a block of its own, in place of a run. */
#define MG_PIECE_BEGINS 0u
#define MG_PIECE_SECOND_LINE 1u
#define MG_PIECE_FURTHER_LINE 2u
/* Sums of executed code: instructions, loads, stores, modifies, 16 bits each. */
#define MG_RAN_INSNS_SHIFT 48
#define MG_RAN(insns, loads, stores, modifies) \
    ((uint64_t)(insns) << MG_RAN_INSNS_SHIFT | (uint64_t)(loads) << 32 | (uint64_t)(stores) << 16 | (modifies))
#define MG_ATTENTION (1ull << 63)

enum mg_record_kind { MG_REC_CODE = 1, MG_REC_MAP = 2, MG_REC_UNMAP = 3, MG_REC_BRK = 4,
                      MG_REC_PROGRAM = 5, MG_REC_NOT_FOLLOWED = 6, MG_REC_LEAK_SEARCH = 7,
                      MG_REC_CRASHED = 8, MG_REC_UNSUPPORTED = 9, MG_REC_PATH = 10,
                      MG_REC_ALLOCATOR = 11, MG_REC_PYTHON = 12, MG_REC_ADVISED = 13,
                      MG_REC_REGION = 16 };

struct mg_record {
    uint32_t kind;
    uint32_t bytes;            /* size of the record, a multiple of 8 */
};

/* MG_REC_CODE: followed by `accesses` of struct mg_access in program order, then `bytes` bytes of
 * instructions, zero-padded. A record of MG_CODE_PIECE has no instructions. */
struct mg_code {
    struct mg_record record;
    uint64_t vaddr;
    uint32_t id;
    uint16_t insns;
    uint16_t accesses;
    uint16_t runs;
    uint16_t flags;
    uint16_t bytes;            /* size of its instructions */
    uint16_t ends;             /* enum mg_code_end of its last instruction, or MG_SWITCHES_STACK */
};
enum mg_code_end { MG_ENDS_CALL = 1, MG_ENDS_RETURN };
#define MG_SWITCHES_STACK 0x100u /* the stack pointer may be set to another stack */
#define MG_CODE_BEGINS_REP 1u  /* first instruction is a rep string instruction */
#define MG_CODE_ENDS_REP 2u    /* the last one is */
#define MG_CODE_VARYING 4u     /* has varying accesses */
#define MG_CODE_PIECE 8u       /* a single access, if some sets are simulated */

#define MG_RUN_VARYING 0xffffu
/* MG_NON_TEMPORAL is a flag beside MG_STORE. A prefetch names an address and accesses nothing. */
enum mg_access_kind { MG_LOAD = 1, MG_STORE = 2, MG_MODIFY = 3, MG_NON_TEMPORAL = 4,
                      MG_PREFETCH = 8 };

struct mg_access {
    int64_t delta;             /* from the run's first access; size of the operand if varying */
    uint16_t offset;           /* of the instruction from the block's first byte */
    uint16_t insn;             /* number of the instruction in the block */
    uint16_t run;
    uint8_t size;
    uint8_t kind;
};

/* MG_REC_MAP: followed by the path, NUL-padded. UNMAP and BRK
 * use start and end, PROGRAM the path, NOT_FOLLOWED a sentence as path. LEAK_SEARCH:
 * AddressSanitizer's, which failed; CRASHED: child `start` was killed by signal `end`;
 * UNSUPPORTED: the program used what path names, and the engine refused it;
 * REGION: number `start` is the region named by path; ALLOCATOR: a function of line `start` of
 * the session's file is there. ADVISED: anonymous memory from start to end is to have huge pages,
 * or not to have them if prot is 0. A MAP with this bit in its file offset has the thread-local
 * variables of one thread; the other bits are the offset in the file's TLS segment. Must equal
 * memgauge_trace::Module::THREAD_LOCAL. */
#define MG_THREAD_LOCAL (1ull << 62)
struct mg_map {
    struct mg_record record;
    uint64_t start;
    uint64_t end;
    uint64_t file_offset;
    uint32_t prot;
    uint32_t path_bytes;
};

static_assert(sizeof(struct mg_control) == 160, "wire");
static_assert(offsetof(struct mg_control, caches) == 80, "wire");
static_assert(offsetof(struct mg_control, file_wait_ns) == 128, "wire");
static_assert(sizeof(struct mg_cache) == 16, "wire");
/* Return addresses of the calls of a path, innermost first; 0 beyond the outermost. */
struct mg_path {
    struct mg_record record;
    uint64_t number;           /* from 1 on */
    uint64_t returns_to[MG_PATH_CALLS];
};

/* Code of CPython. The name of its file, its own name and its line table follow. */
struct mg_python {
    struct mg_record record;
    uint64_t number;           /* from 1 on */
    uint64_t code;             /* address of the code object */
    uint64_t instructions;     /* address of the first instruction */
    uint64_t bytes;            /* of all instructions */
    int32_t first_line;
    uint32_t minor;            /* version 3.minor, which determines the encoding of the table */
    uint32_t file_bytes;
    uint32_t name_bytes;
    uint32_t table_bytes;
    uint32_t padding;
};

static_assert(sizeof(struct mg_python) == 64, "wire");
static_assert(offsetof(struct mg_control, seen) == 72, "wire");
static_assert(offsetof(struct mg_control, apart) == 64, "wire");
static_assert(offsetof(struct mg_control, models_time) == 40, "wire");
static_assert(offsetof(struct mg_control, holds) == 44, "wire");
static_assert(offsetof(struct mg_control, worked_ns) == 48, "wire");
static_assert(sizeof(struct mg_entry) == 32, "wire");
static_assert(offsetof(struct mg_process, used) == 32, "wire");
static_assert(sizeof(struct mg_process) == 72, "wire");
static_assert(offsetof(struct mg_process, start_id) == 48, "wire");
static_assert(offsetof(struct mg_process, without_room) == 64, "wire");
static_assert(offsetof(struct mg_ring, start_id) == 32, "wire");
static_assert(offsetof(struct mg_ring, taken) == 40, "wire");
static_assert(offsetof(struct mg_ring, w) == 64, "wire");
static_assert(offsetof(struct mg_ring, dropped) == 100, "wire");
static_assert(offsetof(struct mg_ring, ran) == 112, "wire");
static_assert(offsetof(struct mg_ring, full) == 120, "wire");
static_assert(offsetof(struct mg_ring, tail) == 128, "wire");
static_assert(offsetof(struct mg_ring, used) == 192, "wire");
static_assert(offsetof(struct mg_ring, let_go) == 136, "wire");
static_assert(offsetof(struct mg_ring, begun) == 140, "wire");
static_assert(offsetof(struct mg_ring, reached_ns) == 144, "wire");
static_assert(offsetof(struct mg_ring, alone_ns) == 152, "wire");
static_assert(offsetof(struct mg_ring, head) == 224, "wire");
static_assert(offsetof(struct mg_ring, calls) == 228, "wire");
static_assert(offsetof(struct mg_ring, held) == 232, "wire");
static_assert(offsetof(struct mg_ring, asked_ns) == 240, "wire");
static_assert(offsetof(struct mg_ring, asks_ns) == 248, "wire");
static_assert(offsetof(struct mg_ring, marked) == 256, "wire");
static_assert(sizeof(struct mg_code) == 32, "wire");
static_assert(sizeof(struct mg_access) == 16, "wire");
static_assert(sizeof(struct mg_map) == 40, "wire");

#endif
