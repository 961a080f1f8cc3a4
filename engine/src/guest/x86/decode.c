/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Finds the memory accesses of each instruction of a block, and the addresses that follow from each
 * other.
 *
 * Every general register holds a symbolic value: a symbol plus a constant. A block starts with one
 * symbol for each register. Instructions that add constants or copy registers keep the symbol. All
 * others that write a register give it a new one. Two accesses with the same base and index
 * symbols, scale and segment differ by a known constant. If consecutive accesses lie within less
 * than a line, they form a run, and only the first needs a callback. Symbol 0 is the number zero,
 * for absolute addresses and those relative to the instruction pointer.
 */
#include "../decode.h"

#include <stdio.h>
#include <string.h>

#include <Zydis/Zydis.h>

enum { RSP = 4, RBP = 5, REGS = 16 };

struct value {
    uint32_t symbol;
    int64_t add;
};

struct key {
    uint32_t base, index;
    uint8_t scale, segment;
};

static bool same_key(const struct key *a, const struct key *b)
{
    return a->base == b->base && a->index == b->index && a->scale == b->scale &&
           a->segment == b->segment;
}

static ZydisDecoder decoder;
static struct value reg[REGS];
static uint32_t next_symbol;

/* The current run, which the next access may extend. */
static struct {
    bool open;
    bool non_temporal;
    struct key key;
    int64_t first, low, end; /* constant parts of the addresses */
} current;

/* An instruction being decoded. */
struct insn {
    const ZydisDecodedInstruction *z;
    const ZydisDecodedOperand *ops;
    uint64_t vaddr;
    uint16_t offset;
};

static struct value fresh(void)
{
    return (struct value){ next_symbol++, 0 };
}

static struct value constant(int64_t value)
{
    return (struct value){ 0, value };
}

void mg_decode_init(void)
{
    ZydisDecoderInit(&decoder, ZYDIS_MACHINE_MODE_LONG_64, ZYDIS_STACK_WIDTH_64);
}

void mg_decode_begin(struct mg_decoded *block)
{
    block->insns = block->accesses = block->runs = block->hooks = block->flags = 0;
    block->undecoded = 0;
    block->bytes = block->ends = 0;
    block->switches_stack = block->loads_stack = false;
    block->loops = false;
    current.open = false;
    next_symbol = 1;
    for (int i = 0; i < REGS; i++)
        reg[i] = fresh();
}

/* Number of the 64-bit register holding `r`, or -1. */
static int gpr(ZydisRegister r)
{
    ZydisRegister whole = ZydisRegisterGetLargestEnclosing(ZYDIS_MACHINE_MODE_LONG_64, r);
    if (whole < ZYDIS_REGISTER_RAX || whole > ZYDIS_REGISTER_R15)
        return -1;
    return whole - ZYDIS_REGISTER_RAX;
}

static bool is_gpr64(ZydisRegister r)
{
    return r >= ZYDIS_REGISTER_RAX && r <= ZYDIS_REGISTER_R15;
}

/* Base, index and constant part of a memory operand. */
struct place {
    struct key key;
    int64_t add;
};

static struct place place_of(const struct insn *in, const ZydisDecodedOperandMem *m)
{
    struct place p = { .key = { 0, 0, 0, 0 }, .add = m->disp.value };
    if (m->base == ZYDIS_REGISTER_RIP) {
        p.add += in->vaddr + in->z->length;
    } else if (is_gpr64(m->base)) {
        struct value v = reg[gpr(m->base)];
        p.key.base = v.symbol;
        p.add += v.add;
    } else if (m->base != ZYDIS_REGISTER_NONE) {
        p.key.base = next_symbol++; /* 32-bit addressing: unrelated to any other access */
    }
    if (is_gpr64(m->index)) {
        struct value v = reg[gpr(m->index)];
        p.key.index = v.symbol;
        p.key.scale = v.symbol ? m->scale : 0;
        p.add += v.add * m->scale;
    } else if (m->index != ZYDIS_REGISTER_NONE) {
        p.key.index = next_symbol++;
    }
    if (m->segment == ZYDIS_REGISTER_FS || m->segment == ZYDIS_REGISTER_GS)
        p.key.segment = m->segment;
    return p;
}

static void add_access(struct mg_decoded *b, const struct insn *in, uint16_t run,
                       int64_t delta, unsigned size, unsigned kind)
{
    b->access[b->accesses++] = (struct mg_access){
        .delta = delta, .offset = in->offset, .insn = b->insns,
        .run = run, .size = size, .kind = kind,
    };
}

static void add_hook(struct mg_decoded *b, uint16_t run, unsigned size, unsigned kind)
{
    b->hook[b->hooks++] = (struct mg_hook){
        .insn = b->insns, .run = run, .size = size, .varying = run == MG_RUN_VARYING,
        /* A read-modify-write reads once. QEMU shows the address of a prefetch as a read. */
        .kind = kind & (MG_LOAD | MG_PREFETCH) ? MG_LOAD : MG_STORE,
    };
}

/* Bytes that QEMU loads for an operand of `bytes`: for some vector instructions, the full width of
 * the register. */
static unsigned bytes_loaded(const ZydisDecodedInstruction *z, unsigned bytes)
{
    switch (z->mnemonic) {
    case ZYDIS_MNEMONIC_VCVTDQ2PD:
        return bytes == 16 ? 2 * bytes : bytes;
    case ZYDIS_MNEMONIC_VINSERTF128:
    case ZYDIS_MNEMONIC_VINSERTI128:
        return 2 * bytes;
    case ZYDIS_MNEMONIC_VPSLLW:
    case ZYDIS_MNEMONIC_VPSLLD:
    case ZYDIS_MNEMONIC_VPSLLQ:
    case ZYDIS_MNEMONIC_VPSRLW:
    case ZYDIS_MNEMONIC_VPSRLD:
    case ZYDIS_MNEMONIC_VPSRLQ:
    case ZYDIS_MNEMONIC_VPSRAW:
    case ZYDIS_MNEMONIC_VPSRAD:
        return z->avx.vector_length / 8 > bytes ? z->avx.vector_length / 8 : bytes;
    default:
        return bytes;
    }
}

static bool repeats(const ZydisDecodedInstruction *z)
{
    return z->attributes &
           (ZYDIS_ATTRIB_HAS_REP | ZYDIS_ATTRIB_HAS_REPE | ZYDIS_ATTRIB_HAS_REPNE);
}

/* True if QEMU may perform the access in a helper function. Helpers invoke the callbacks of the
 * last instruction with any, so such an instruction needs one of its own even if its address
 * follows from another. */
static bool is_atomic(const ZydisDecodedInstruction *z)
{
    return (z->attributes & ZYDIS_ATTRIB_HAS_LOCK) || z->mnemonic == ZYDIS_MNEMONIC_XCHG;
}

/* Adds the access at `add` to the current run if possible. */
static bool join(struct mg_decoded *b, const struct key *key, int64_t add, unsigned size,
                 unsigned kind)
{
    if (!current.open || !same_key(&current.key, key) ||
        current.non_temporal != ((kind & MG_NON_TEMPORAL) != 0))
        return false;
    int64_t low = add < current.low ? add : current.low;
    int64_t end = add + size > current.end ? add + size : current.end;
    if (end - low > MG_LINE_BYTES)
        return false;
    current.low = low;
    current.end = end;
    struct mg_run *run = &b->run[b->runs - 1];
    run->down = current.first - low;
    run->up = end - current.first - 1;
    run->stores |= (kind & MG_STORE) != 0;
    return true;
}

/* An access whose address is the same function of registers in each execution. */
static void simple_access(struct mg_decoded *b, const struct insn *in, struct place p,
                          unsigned size, unsigned kind)
{
    /* Registers change between iterations of a rep instruction, and with a count of zero there is
     * no access. */
    bool own = repeats(in->z) || is_atomic(in->z) || kind == MG_PREFETCH;
    if (own || !join(b, &p.key, p.add, size, kind)) {
        b->run[b->runs++] = (struct mg_run){
            .up = size - 1, .stores = (kind & MG_STORE) != 0,
            .apart = (kind & (MG_NON_TEMPORAL | MG_PREFETCH)) != 0, .first = b->accesses,
        };
        current.open = !own;
        current.non_temporal = (kind & MG_NON_TEMPORAL) != 0;
        current.key = p.key;
        current.first = current.low = p.add;
        current.end = p.add + size;
        add_hook(b, b->runs - 1, bytes_loaded(in->z, size), kind);
    }
    add_access(b, in, b->runs - 1, p.add - current.first, size, kind);
}

static void varying_access(struct mg_decoded *b, const struct insn *in, unsigned bytes,
                           unsigned kind)
{
    b->flags |= MG_CODE_VARYING;
    current.open = false;
    add_access(b, in, MG_RUN_VARYING, bytes, 0, kind);
    add_hook(b, MG_RUN_VARYING, 0, kind);
}

/* Prefetches of data. Must be instructions for which QEMU calls mg_emit_prefetch. */
static bool is_prefetch(const ZydisDecodedInstruction *z)
{
    switch (z->mnemonic) {
    case ZYDIS_MNEMONIC_PREFETCH:
    case ZYDIS_MNEMONIC_PREFETCHNTA:
    case ZYDIS_MNEMONIC_PREFETCHT0:
    case ZYDIS_MNEMONIC_PREFETCHT1:
    case ZYDIS_MNEMONIC_PREFETCHT2:
    case ZYDIS_MNEMONIC_PREFETCHW:
    case ZYDIS_MNEMONIC_PREFETCHWT1:
        return true;
    default:
        return false;
    }
}

/* Operands that look like memory but are not accessed. */
static bool touches_nothing(const ZydisDecodedInstruction *z)
{
    switch (z->meta.category) {
    case ZYDIS_CATEGORY_PREFETCH:
    case ZYDIS_CATEGORY_PREFETCHWT1:
    case ZYDIS_CATEGORY_NOP:
    case ZYDIS_CATEGORY_WIDENOP:
    case ZYDIS_CATEGORY_CLFLUSHOPT:
    case ZYDIS_CATEGORY_CLWB:
        return true;
    default:
        return z->mnemonic == ZYDIS_MNEMONIC_CLFLUSH || z->mnemonic == ZYDIS_MNEMONIC_LEA ||
               z->mnemonic == ZYDIS_MNEMONIC_INVLPG || z->mnemonic == ZYDIS_MNEMONIC_CLDEMOTE ||
               z->mnemonic == ZYDIS_MNEMONIC_NOP;
    }
}

/* Stores that bypass the caches and are combined to whole lines. */
static bool is_non_temporal(const ZydisDecodedInstruction *z)
{
    switch (z->mnemonic) {
    case ZYDIS_MNEMONIC_MOVNTI:
    case ZYDIS_MNEMONIC_MOVNTQ:
    case ZYDIS_MNEMONIC_MOVNTDQ:
    case ZYDIS_MNEMONIC_MOVNTPS:
    case ZYDIS_MNEMONIC_MOVNTPD:
    case ZYDIS_MNEMONIC_MOVNTSS:
    case ZYDIS_MNEMONIC_MOVNTSD:
    case ZYDIS_MNEMONIC_VMOVNTDQ:
    case ZYDIS_MNEMONIC_VMOVNTPS:
    case ZYDIS_MNEMONIC_VMOVNTPD:
    case ZYDIS_MNEMONIC_MASKMOVQ:
    case ZYDIS_MNEMONIC_MASKMOVDQU:
    case ZYDIS_MNEMONIC_VMASKMOVDQU:
        return true;
    default:
        return false;
    }
}

static unsigned kind_of(const ZydisDecodedOperand *op)
{
    bool r = op->actions & ZYDIS_OPERAND_ACTION_MASK_READ;
    bool w = op->actions & ZYDIS_OPERAND_ACTION_MASK_WRITE;
    return (r ? MG_LOAD : 0) | (w ? MG_STORE : 0);
}

static bool is_memory(const ZydisDecodedOperand *op)
{
    return op->type == ZYDIS_OPERAND_TYPE_MEMORY && op->mem.type != ZYDIS_MEMOP_TYPE_AGEN;
}

/* True if the number or location of accesses depends on more than the operand's registers: masks,
 * addresses of single elements, state components, or pieces of different sizes. */
static bool varies(const struct insn *in, unsigned operands)
{
    const ZydisDecodedInstruction *z = in->z;
    unsigned reads = 0, writes = 0;
    for (unsigned i = 0; i < operands; i++) {
        const ZydisDecodedOperand *op = &in->ops[i];
        if (!is_memory(op))
            continue;
        unsigned bytes = op->size / 8;
        bool even = bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8 || bytes == 16 ||
                    bytes == 32 || bytes == 64;
        bool conditional = op->actions & (ZYDIS_OPERAND_ACTION_CONDREAD |
                                          ZYDIS_OPERAND_ACTION_CONDWRITE);
        if (!even || op->mem.type != ZYDIS_MEMOP_TYPE_MEM)
            return true;
        /* QEMU's conditional moves, shifts and exchanges access memory unconditionally */
        bool always = repeats(z) || z->mnemonic == ZYDIS_MNEMONIC_CMPXCHG ||
                      z->mnemonic == ZYDIS_MNEMONIC_SHLD || z->mnemonic == ZYDIS_MNEMONIC_SHRD ||
                      z->meta.category == ZYDIS_CATEGORY_CMOV;
        if (conditional && !always)
            return true;
        reads += (kind_of(op) & MG_LOAD) != 0;
        writes += (kind_of(op) & MG_STORE) != 0;
    }
    if (reads > 1 || writes > 1)
        return true;
    switch (z->mnemonic) {
    case ZYDIS_MNEMONIC_BT:
    case ZYDIS_MNEMONIC_BTS:
    case ZYDIS_MNEMONIC_BTR:
    case ZYDIS_MNEMONIC_BTC: /* a register operand changes the address */
        return in->ops[1].type == ZYDIS_OPERAND_TYPE_REGISTER;
    case ZYDIS_MNEMONIC_MASKMOVQ: /* a mask selects bytes or elements */
    case ZYDIS_MNEMONIC_MASKMOVDQU:
    case ZYDIS_MNEMONIC_VMASKMOVDQU:
    case ZYDIS_MNEMONIC_VMASKMOVPS:
    case ZYDIS_MNEMONIC_VMASKMOVPD:
    case ZYDIS_MNEMONIC_VPMASKMOVD:
    case ZYDIS_MNEMONIC_VPMASKMOVQ:
    case ZYDIS_MNEMONIC_ENTER:
    case ZYDIS_MNEMONIC_CMPXCHG8B:
    case ZYDIS_MNEMONIC_CMPXCHG16B:
    case ZYDIS_MNEMONIC_XLAT:
        return true;
    default:
        return false;
    }
}

/* Offset of a stack access from the stack pointer before the instruction. Returns false if `op` is
 * not the implicit stack operand. */
static bool stack_place(const struct insn *in, const ZydisDecodedOperand *op, struct place *p)
{
    if (op->visibility != ZYDIS_OPERAND_VISIBILITY_HIDDEN ||
        (op->mem.base != ZYDIS_REGISTER_RSP && op->mem.base != ZYDIS_REGISTER_RBP))
        return false;
    struct value sp = in->z->mnemonic == ZYDIS_MNEMONIC_LEAVE ? reg[RBP] : reg[RSP];
    int64_t bytes = op->size / 8;
    p->key = (struct key){ sp.symbol, 0, 0, 0 };
    p->add = sp.add - ((kind_of(op) & MG_STORE) ? bytes : 0);
    return true;
}

static void memory_operands(struct mg_decoded *b, const struct insn *in)
{
    unsigned n = in->z->operand_count;
    if (is_prefetch(in->z)) {
        for (unsigned i = 0; i < n; i++)
            if (in->ops[i].type == ZYDIS_OPERAND_TYPE_MEMORY)
                simple_access(b, in, place_of(in, &in->ops[i].mem), 1, MG_PREFETCH);
        return;
    }
    if (touches_nothing(in->z))
        return;
    unsigned non_temporal = is_non_temporal(in->z) ? MG_NON_TEMPORAL : 0;
    if (varies(in, n)) {
        unsigned kind = 0, bytes = 0;
        for (unsigned i = 0; i < n; i++) {
            if (is_memory(&in->ops[i])) {
                kind |= kind_of(&in->ops[i]);
                unsigned size = in->ops[i].mem.type == ZYDIS_MEMOP_TYPE_MEM
                                    ? in->ops[i].size / 8 : in->ops[i].element_size / 8;
                bytes = size > bytes ? size : bytes;
            }
        }
        if (kind)
            varying_access(b, in, bytes, kind | non_temporal);
        return;
    }
    for (int store = 0; store <= 1; store++) { /* reads come before writes */
        for (unsigned i = 0; i < n; i++) {
            const ZydisDecodedOperand *op = &in->ops[i];
            if (!is_memory(op) || !kind_of(op) || (kind_of(op) == MG_STORE) != store)
                continue;
            struct place p;
            if (!stack_place(in, op, &p)) {
                /* pop writes relative to the incremented stack pointer */
                bool after = in->z->mnemonic == ZYDIS_MNEMONIC_POP;
                p = place_of(in, &op->mem);
                if (after && op->mem.base == ZYDIS_REGISTER_RSP)
                    p.add += op->size / 8;
            }
            simple_access(b, in, p, op->size / 8, kind_of(op) | non_temporal);
        }
    }
}

static int64_t immediate(const ZydisDecodedOperand *op)
{
    return op->imm.value.s;
}

/* New value of the first operand for instructions with a known result. Returns false for all
 * others. */
static bool known_result(const struct insn *in, struct value *out)
{
    const ZydisDecodedOperand *dst = &in->ops[0], *src = &in->ops[1];
    if (dst->type != ZYDIS_OPERAND_TYPE_REGISTER || !is_gpr64(dst->reg.value))
        return false;
    struct value old = reg[gpr(dst->reg.value)];
    bool imm = in->z->operand_count > 1 && src->type == ZYDIS_OPERAND_TYPE_IMMEDIATE;
    switch (in->z->mnemonic) {
    case ZYDIS_MNEMONIC_MOV:
        if (imm)
            *out = constant(immediate(src));
        else if (src->type == ZYDIS_OPERAND_TYPE_REGISTER && is_gpr64(src->reg.value))
            *out = reg[gpr(src->reg.value)];
        else
            return false;
        return true;
    case ZYDIS_MNEMONIC_LEA: {
        struct place p = place_of(in, &src->mem);
        if (p.key.index || in->z->address_width != 64)
            return false;
        *out = (struct value){ p.key.base, p.add };
        return true;
    }
    case ZYDIS_MNEMONIC_ADD:
        *out = (struct value){ old.symbol, old.add + (imm ? immediate(src) : 0) };
        return imm;
    case ZYDIS_MNEMONIC_SUB:
        *out = (struct value){ old.symbol, old.add - (imm ? immediate(src) : 0) };
        return imm;
    case ZYDIS_MNEMONIC_INC:
    case ZYDIS_MNEMONIC_DEC:
        old.add += in->z->mnemonic == ZYDIS_MNEMONIC_INC ? 1 : -1;
        *out = old;
        return true;
    default:
        return false;
    }
}

/* Change of the stack pointer by implicit stack operands. */
static int64_t stack_change(const struct insn *in)
{
    int64_t change = 0;
    for (unsigned i = 0; i < in->z->operand_count; i++) {
        const ZydisDecodedOperand *op = &in->ops[i];
        if (!is_memory(op) || op->visibility != ZYDIS_OPERAND_VISIBILITY_HIDDEN ||
            op->mem.base != ZYDIS_REGISTER_RSP)
            continue;
        change += (kind_of(op) & MG_STORE) ? -(int64_t)(op->size / 8) : op->size / 8;
    }
    return change;
}

static bool moves_stack(const ZydisDecodedInstruction *z)
{
    switch (z->mnemonic) {
    case ZYDIS_MNEMONIC_PUSH:
    case ZYDIS_MNEMONIC_PUSHFQ:
    case ZYDIS_MNEMONIC_POP:
    case ZYDIS_MNEMONIC_POPFQ:
    case ZYDIS_MNEMONIC_CALL:
        return true;
    default:
        return false;
    }
}

/* True if the stack pointer gets a value that is not based on itself or the frame pointer: that of
 * another stack, of a distant frame, or an earlier one of its own. */
static bool switches_stack(const struct insn *in)
{
    const ZydisDecodedOperand *ops = in->ops;
    bool writes = false;
    for (unsigned i = 0; i < in->z->operand_count_visible; i++)
        writes |= ops[i].type == ZYDIS_OPERAND_TYPE_REGISTER && gpr(ops[i].reg.value) == RSP &&
                  (ops[i].actions & ZYDIS_OPERAND_ACTION_MASK_WRITE);
    if (!writes)
        return false;
    switch (in->z->mnemonic) {
    case ZYDIS_MNEMONIC_MOV:
        return ops[1].type != ZYDIS_OPERAND_TYPE_REGISTER || gpr(ops[1].reg.value) != RBP;
    case ZYDIS_MNEMONIC_LEA:
        return gpr(ops[1].mem.base) != RSP && gpr(ops[1].mem.base) != RBP;
    case ZYDIS_MNEMONIC_POP:
    case ZYDIS_MNEMONIC_XCHG:
        return true;
    default:
        return false;
    }
}

static void register_effects(const struct insn *in)
{
    struct value result;
    bool known = in->z->operand_count > 0 && known_result(in, &result);
    bool stack = moves_stack(in->z);
    struct value sp = { reg[RSP].symbol, reg[RSP].add + (stack ? stack_change(in) : 0) };
    struct value frame = { reg[RBP].symbol, reg[RBP].add + 8 };
    for (unsigned i = 0; i < in->z->operand_count; i++) {
        const ZydisDecodedOperand *op = &in->ops[i];
        int r = op->type == ZYDIS_OPERAND_TYPE_REGISTER ? gpr(op->reg.value) : -1;
        if (r >= 0 && (op->actions & ZYDIS_OPERAND_ACTION_MASK_WRITE))
            reg[r] = fresh();
    }
    if (in->z->mnemonic == ZYDIS_MNEMONIC_LEAVE)
        reg[RSP] = frame;
    else if (stack && !(in->z->mnemonic == ZYDIS_MNEMONIC_POP &&
                        in->ops[0].type == ZYDIS_OPERAND_TYPE_REGISTER &&
                        gpr(in->ops[0].reg.value) == RSP))
        reg[RSP] = sp;
    if (known)
        reg[gpr(in->ops[0].reg.value)] = result;
    /* A rep instruction advances its pointers by an unknown count. Its registers are written
     * operands and have new symbols by now. */
}

static void forget_registers(void)
{
    for (int i = 0; i < REGS; i++)
        reg[i] = fresh();
}

void mg_decode_insn(struct mg_decoded *b, const uint8_t *code, size_t bytes, uint64_t vaddr,
                    uint16_t offset)
{
    ZydisDecodedInstruction z;
    ZydisDecodedOperand ops[ZYDIS_MAX_OPERAND_COUNT];
    if (b->insns >= MG_MAX_INSNS)
        return;
    ZyanStatus status = ZydisDecoderDecodeFull(&decoder, code, bytes, &z, ops);
    /* QEMU removes an instruction that extends into the next page from the end of a block, and
     * starts the next block with it. It still lists the bytes that it has read. */
    if (status == ZYDIS_STATUS_NO_MORE_DATA && b->insns > 0)
        return;
    if (!ZYAN_SUCCESS(status)) {
        b->undecoded++;
        forget_registers();
    } else {
        struct insn in = { &z, ops, vaddr, offset };
        b->bytes = offset + z.length;
        b->ends = z.meta.category == ZYDIS_CATEGORY_CALL ? MG_ENDS_CALL
                : z.meta.category == ZYDIS_CATEGORY_RET ? MG_ENDS_RETURN : 0;
        if (switches_stack(&in)) {
            b->switches_stack = true;
            b->loads_stack |= z.mnemonic != ZYDIS_MNEMONIC_MOV ||
                              ops[1].type == ZYDIS_OPERAND_TYPE_MEMORY;
        }
        if (repeats(&z)) {
            b->flags |= MG_CODE_ENDS_REP | (b->insns == 0 ? MG_CODE_BEGINS_REP : 0);
            b->loops = true;
        }
        unsigned hook = b->hooks;
        memory_operands(b, &in);
        for (unsigned i = hook; repeats(&z) && i < b->hooks; i++) {
            b->hook[i].begins_rep = i == hook;
            b->hook[i].follows_rep = i > hook;
        }
        register_effects(&in);
    }
    b->insns++;
}

bool mg_extension_of(const uint8_t *code, size_t bytes, char *text, size_t room)
{
    ZydisDecodedInstruction z;
    ZydisDecodedOperand ops[ZYDIS_MAX_OPERAND_COUNT];
    if (ZYAN_FAILED(ZydisDecoderDecodeFull(&decoder, code, bytes, &z, ops)))
        return false;
    const char *name = ZydisISASetGetString(z.meta.isa_set);
    /* ud2, hlt and the like are illegal anywhere. */
    if (!name || z.meta.isa_ext == ZYDIS_ISA_EXT_BASE)
        return false;
    if (strncmp(name, "AVX512", 6) == 0)
        snprintf(text, room, "AVX-512 (%s)", name);
    else
        snprintf(text, room, "%s instructions", name);
    return true;
}
