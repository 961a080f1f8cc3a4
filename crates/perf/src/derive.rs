//! The data address of a timer sample, from registers and code. Pure.
//!
//! At an interrupt the registers are those with which the instruction at the sampled
//! address is about to run. So there are three ways to an address, tried in this order:
//!
//! * **exact**: that instruction has an operand in memory. Its address follows
//!   from the registers, and it will access it.
//! * **previous**: the previous instruction has one and did not overwrite the registers
//!   that make it up. At the head of a loop, that is the instruction before the jump
//!   back. The access has just happened, if control came that way.
//! * **next**: the first operand within the next few instructions whose registers
//!   nothing in between writes. It will be accessed, unless a fault comes first.
//!
//! A PEBS record has the registers after the instruction that it is of. Only that one's
//! operand counts, and only if it did not overwrite the registers that make it up. Such
//! records have no data address before Haswell, but for latencies.
//!
//! An operand relative to FS or GS has no address: samples lack these bases.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess, Register,
    UsedMemory,
};
use memgauge_trace::{AccessKind, Derivation};

/// Bytes of code looked at before the sampled address.
pub const BEFORE: u64 = 96;
/// Bytes of code looked at after it.
pub const AFTER: u64 = 192;
/// The longest instruction (Intel SDM volume 2, 2.3.11).
const LONGEST: usize = 15;
/// Instructions looked ahead.
const AHEAD: usize = 8;

/// How to compute a sample's data address from its registers.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Recipe {
    /// How it was found.
    pub derivation: Derivation,
    /// Kind of access to the operand.
    pub kind: AccessKind,
    /// Bytes of the operand; 0 unknown.
    pub size_bytes: u16,
    /// Address of the instruction whose operand it is.
    pub instruction: u64,
    memory: UsedMemory,
}

/// Why there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoRecipe {
    /// The code could not be read or decoded.
    NoCode,
    /// Neither the instruction nor its neighbours access memory.
    NoOperand,
    /// The registers were overwritten, or are not in samples.
    NoRegisters,
    /// Relative to FS or GS: the kernel puts their bases into no sample, and only
    /// stopping the thread would tell them.
    NoBase,
}

/// How far the instruction at a sample's address is, with the sample's registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Moment {
    /// It is about to run, as at an interrupt.
    Begins,
    /// It is the sample's own and has run: a PEBS record with the exact address.
    Ran,
    /// It follows the sample's own: a PEBS record with the address behind it.
    Follows,
}

/// The recipe for samples at `ip`, whose code around it begins at `start`.
///
/// # Errors
/// Why there is none.
pub fn recipe(code: &[u8], start: u64, ip: u64) -> Result<Recipe, NoRecipe> {
    recipe_at(Moment::Begins, code, start, ip)
}

/// The same, of samples at another moment.
///
/// # Errors
/// Why there is none.
pub fn recipe_at(moment: Moment, code: &[u8], start: u64, ip: u64) -> Result<Recipe, NoRecipe> {
    let mut code = CodeReader::new(code, start);
    let ran = match moment {
        Moment::Begins => return code.about_to_run(ip),
        Moment::Ran => (Derivation::Exact, code.decode(ip)),
        Moment::Follows => (Derivation::Previous, code.just_ran(ip)),
    };
    let (derivation, Some(ran)) = ran else {
        return Err(NoRecipe::NoCode);
    };
    let mut reason = NoRecipe::NoOperand;
    let memory = code.operand_left(&ran, &mut reason).ok_or(reason)?;
    Ok(made(derivation, ran.ip(), &memory))
}

impl Recipe {
    /// The address, of registers by the kernel's number.
    pub fn address(&self, register: impl Fn(u32) -> Option<u64>) -> Option<u64> {
        self.memory.virtual_address(0, |r, _, _| match r {
            Register::CS | Register::DS | Register::ES | Register::SS => Some(0),
            r => register(number(r.full_register())?),
        })
    }
}

/// `enum perf_event_x86_regs` of the general registers.
fn number(register: Register) -> Option<u32> {
    const ORDER: [Register; 24] = [
        Register::RAX,
        Register::RBX,
        Register::RCX,
        Register::RDX,
        Register::RSI,
        Register::RDI,
        Register::RBP,
        Register::RSP,
        Register::RIP,
        Register::None,
        Register::None,
        Register::None,
        Register::None,
        Register::None,
        Register::None,
        Register::None,
        Register::R8,
        Register::R9,
        Register::R10,
        Register::R11,
        Register::R12,
        Register::R13,
        Register::R14,
        Register::R15,
    ];
    let found = ORDER
        .iter()
        .position(|&r| r == register && r != Register::None);
    found.map(|n| n as u32)
}

/// The registers a recipe may need, as `sample_regs_user` wants them: all general
/// ones.
pub const REGISTERS: u64 = 0x00ff_01ff;

fn made(derivation: Derivation, instruction: u64, memory: &UsedMemory) -> Recipe {
    let size = memory.memory_size().size();
    Recipe {
        derivation,
        kind: kind(memory.access()),
        size_bytes: u16::try_from(size).unwrap_or(0),
        instruction,
        memory: *memory,
    }
}

fn kind(access: OpAccess) -> AccessKind {
    match access {
        OpAccess::Read | OpAccess::CondRead => AccessKind::Load,
        OpAccess::Write | OpAccess::CondWrite => AccessKind::Store,
        OpAccess::ReadWrite | OpAccess::ReadCondWrite => AccessKind::Modify,
        _ => AccessKind::Unknown,
    }
}

fn parts(memory: &UsedMemory) -> impl Iterator<Item = Register> {
    let parts = [memory.base(), memory.index()];
    parts
        .into_iter()
        .filter(|r| *r != Register::None)
        .map(|r| r.full_register())
}

/// Whether samples have all that makes up the address.
fn is_computable(memory: &UsedMemory) -> bool {
    let flat = !matches!(memory.segment(), Register::FS | Register::GS);
    flat && memory.vsib_size() == 0 && parts(memory).all(|r| number(r).is_some())
}

fn why_not(memory: &UsedMemory) -> NoRecipe {
    match memory.segment() {
        Register::FS | Register::GS => NoRecipe::NoBase,
        _ => NoRecipe::NoRegisters,
    }
}

struct CodeReader<'a> {
    code: &'a [u8],
    start: u64,
    info: InstructionInfoFactory,
}

impl<'a> CodeReader<'a> {
    fn new(code: &'a [u8], start: u64) -> CodeReader<'a> {
        CodeReader {
            code,
            start,
            info: InstructionInfoFactory::new(),
        }
    }

    fn decode(&self, at: u64) -> Option<Instruction> {
        let offset = usize::try_from(at.checked_sub(self.start)?).ok()?;
        let bytes = self.code.get(offset..)?;
        let instruction = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
        (!instruction.is_invalid()).then_some(instruction)
    }

    fn about_to_run(&mut self, ip: u64) -> Result<Recipe, NoRecipe> {
        let at = self.decode(ip).ok_or(NoRecipe::NoCode)?;
        let mut reason = NoRecipe::NoOperand;
        if let Some(memory) = self.operand(&at) {
            match is_computable(&memory) {
                true => return Ok(made(Derivation::Exact, ip, &memory)),
                false => reason = why_not(&memory),
            }
        }
        if let Some(before) = self.before(ip)
            && let Some(memory) = self.operand_left(&before, &mut reason)
        {
            return Ok(made(Derivation::Previous, before.ip(), &memory));
        }
        let (instruction, memory) = self.ahead(&at).ok_or(reason)?;
        Ok(made(Derivation::Next, instruction, &memory))
    }

    /// The operand in memory; of several the one that is not the stack.
    fn operand(&mut self, instruction: &Instruction) -> Option<UsedMemory> {
        let accesses = |m: &&UsedMemory| kind(m.access()) != AccessKind::Unknown;
        let used = self.info.info(instruction).used_memory();
        let on_stack = |m: &&UsedMemory| m.base().full_register() == Register::RSP;
        let off_stack = used.iter().filter(accesses).find(|m| !on_stack(m));
        off_stack.or_else(|| used.iter().find(accesses)).copied()
    }

    fn writes(&mut self, instruction: &Instruction) -> Vec<Register> {
        let used = self.info.info(instruction).used_registers();
        let written = used.iter().filter(|r| {
            !matches!(
                r.access(),
                OpAccess::Read | OpAccess::CondRead | OpAccess::None
            )
        });
        written.map(|r| r.register().full_register()).collect()
    }

    /// The operand of an instruction that has run, if its registers are as they
    /// were.
    fn operand_left(&mut self, ran: &Instruction, reason: &mut NoRecipe) -> Option<UsedMemory> {
        let memory = self.operand(ran)?;
        let written = self.writes(ran);
        let intact = parts(&memory).all(|r| !written.contains(&r));
        if intact && is_computable(&memory) {
            return Some(memory);
        }
        *reason = why_not(&memory);
        None
    }

    /// The instruction that ran before the one at `ip`. At the head of a loop it is the
    /// one before the jump back, else the one at the lower address.
    fn before(&self, ip: u64) -> Option<Instruction> {
        let place = self.jump_back_to(ip).unwrap_or(ip);
        let before = self.standing_before(place)?;
        matches!(before.flow_control(), FlowControl::Next).then_some(before)
    }

    /// The instruction of a precise sample that names the next one. It accessed memory, so
    /// at the head of a loop it is the one that does so.
    fn just_ran(&mut self, ip: u64) -> Option<Instruction> {
        let looped = self.before(ip);
        match looped.filter(|ran| self.operand(ran).is_some()) {
            Some(ran) => Some(ran),
            None => self.standing_before(ip),
        }
    }

    fn jump_back_to(&self, ip: u64) -> Option<u64> {
        let mut at = ip;
        while let Some(instruction) = self.decode(at) {
            let jumps = matches!(
                instruction.flow_control(),
                FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
            );
            if jumps && instruction.near_branch_target() == ip {
                return Some(at);
            }
            let goes_on = matches!(
                instruction.flow_control(),
                FlowControl::Next | FlowControl::ConditionalBranch | FlowControl::Call
            );
            if !goes_on {
                return None;
            }
            at = instruction.next_ip();
        }
        None
    }

    /// Instructions have no marks at their ends. Decoding from different places
    /// before soon falls into step; the start on which most agree wins.
    fn standing_before(&self, place: u64) -> Option<Instruction> {
        let mut votes = [0u32; LONGEST + 1];
        let first = self.start.max(place.saturating_sub(BEFORE));
        for from in first..place {
            if let Some(last) = self.last_before(from, place) {
                votes[(place - last) as usize] += 1;
            }
        }
        let best = (1..=LONGEST).max_by_key(|&length| votes[length])?;
        (votes[best] > 0)
            .then(|| self.decode(place - best as u64))
            .flatten()
    }

    /// Decoding from `from` on: the start of the instruction that ends at `place`.
    fn last_before(&self, from: u64, place: u64) -> Option<u64> {
        let mut at = from;
        loop {
            let next = self.decode(at)?.next_ip();
            match next.cmp(&place) {
                std::cmp::Ordering::Less => at = next,
                std::cmp::Ordering::Equal => return (place - at <= LONGEST as u64).then_some(at),
                std::cmp::Ordering::Greater => return None,
            }
        }
    }

    /// The first operand that lies ahead and whose registers stay as they are, and its
    /// instruction's address.
    fn ahead(&mut self, first: &Instruction) -> Option<(u64, UsedMemory)> {
        let mut written = Vec::new();
        let mut at = *first;
        for _ in 0..AHEAD {
            if !matches!(at.flow_control(), FlowControl::Next) {
                return None;
            }
            written.extend(self.writes(&at));
            at = self.decode(at.next_ip())?;
            if let Some(memory) = self.operand(&at) {
                let intact = parts(&memory).all(|r| !written.contains(&r));
                return (intact && is_computable(&memory)).then(|| (at.ip(), memory));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: u64 = 0x40_1000;

    /// A register's value is 0x1000 times its number plus one.
    fn value(number: u32) -> Option<u64> {
        Some(0x1000 * (u64::from(number) + 1))
    }

    fn check(
        code: &[u8],
        ip_offset: u64,
        expected: Result<(Derivation, AccessKind, u16, u64), NoRecipe>,
    ) {
        let seen = recipe(code, BASE, BASE + ip_offset).map(|r| {
            (
                r.derivation,
                r.kind,
                r.size_bytes,
                r.address(value).unwrap(),
            )
        });
        assert_eq!(seen, expected, "{code:x?} at {ip_offset}");
    }

    fn check_ran(moment: Moment, code: &[u8], expected: Result<u64, NoRecipe>) {
        let ip = match moment {
            Moment::Follows => BASE + code.len() as u64 - 1,
            _ => BASE,
        };
        let seen = recipe_at(moment, code, BASE, ip).map(|r| r.address(value).unwrap());
        assert_eq!(seen, expected, "{code:x?} {moment:?}");
    }

    #[test]
    fn of_a_done_instruction_only_its_own_operand_counts() {
        for moment in [Moment::Ran, Moment::Follows] {
            // mov rax, [rbx + 8]; nop: rbx 0x2000
            check_ran(moment, &[0x48, 0x8b, 0x43, 0x08, NOP], Ok(0x2008));
            // mov rbx, [rbx]; nop: the address is overwritten
            let overwritten = [0x48, 0x8b, 0x1b, NOP];
            check_ran(moment, &overwritten, Err(NoRecipe::NoRegisters));
            // add rax, 1; nop: nothing in memory, and what follows does not count
            let neither = [0x48, 0x83, 0xc0, 0x01, NOP];
            check_ran(moment, &neither, Err(NoRecipe::NoOperand));
        }
    }

    #[test]
    fn behind_a_precise_sample_at_a_loops_head_is_the_load() {
        // mov rax, [rbx]; 1: dec ecx; jnz 1b
        let code = [0x48, 0x8b, 0x03, 0xff, 0xc9, 0x75, 0xfc];
        let seen = recipe_at(Moment::Follows, &code, BASE, BASE + 3);
        assert_eq!(seen.unwrap().address(value), Some(0x2000));
    }

    const NOP: u8 = 0x90;

    // Encodings by GNU as 2.40, of the instruction in the comment.
    #[test]
    fn the_sampled_instructions_own_operand_is_exact() {
        let exact = |kind, size, address| Ok((Derivation::Exact, kind, size, address));
        // mov rax, [rbx + rcx*8 + 0x10]: rbx 0x2000, rcx 0x3000
        check(
            &[0x48, 0x8b, 0x44, 0xcb, 0x10],
            0,
            exact(AccessKind::Load, 8, 0x2000 + 0x18000 + 0x10),
        );
        // mov [r9], eax: r9 0x12000
        check(&[0x41, 0x89, 0x01], 0, exact(AccessKind::Store, 4, 0x12000));
        // add qword ptr [rdi], 1
        check(
            &[0x48, 0x83, 0x07, 0x01],
            0,
            exact(AccessKind::Modify, 8, 0x6000),
        );
        // mov al, [rip + 0x100]
        check(
            &[0x8a, 0x05, 0, 1, 0, 0],
            0,
            exact(AccessKind::Load, 1, BASE + 6 + 0x100),
        );
        // push rbp: below rsp 0x8000
        check(&[0x55], 0, exact(AccessKind::Store, 8, 0x7ff8));
    }

    #[test]
    fn the_instruction_before_serves_where_its_registers_are_intact() {
        let previous = |address| Ok((Derivation::Previous, AccessKind::Load, 8, address));
        let code = |load: &[u8]| [&[NOP; 16][..], load, &[NOP; 40]].concat();
        // mov rax, [rbx]
        check(&code(&[0x48, 0x8b, 0x03]), 19, previous(0x2000));
        // mov rbx, [rbx] overwrites its own base
        check(&code(&[0x48, 0x8b, 0x1b]), 19, Err(NoRecipe::NoRegisters));
        // mov ebx, [rcx + rbx]: half of a register is a register
        check(&code(&[0x8b, 0x1c, 0x19]), 19, Err(NoRecipe::NoRegisters));
    }

    #[test]
    fn what_lies_ahead_serves_until_something_writes_its_registers() {
        let code =
            |between: &[u8]| [&[NOP; 16][..], between, &[0x48, 0x8b, 0x03], &[NOP; 40]].concat();
        let next = Ok((Derivation::Next, AccessKind::Load, 8, 0x2000));
        check(&code(&[NOP; 3]), 16, next);
        // inc rbx before mov rax, [rbx]
        check(&code(&[0x48, 0xff, 0xc3]), 16, Err(NoRecipe::NoOperand));
        // jmp away
        check(&code(&[0xeb, 0x40]), 16, Err(NoRecipe::NoOperand));
    }

    #[test]
    fn at_a_loops_head_the_instruction_before_the_jump_back_ran_last() {
        // mov rdx, [rsi]; head: inc rcx; nop; mov rax, [rbx]; jne head
        let body = [0x48, 0xff, 0xc1, NOP, 0x48, 0x8b, 0x03, 0x75, 0xf7];
        let code = [&[NOP; 16][..], &[0x48, 0x8b, 0x16], &body, &[NOP; 16]].concat();
        check(
            &code,
            19,
            Ok((Derivation::Previous, AccessKind::Load, 8, 0x2000)),
        );
    }

    #[test]
    fn operands_without_an_address_are_refused() {
        // mov rax, fs:[0x28], then nothing
        let code = [
            &[0x64, 0x48, 0x8b, 0x04, 0x25, 0x28, 0, 0, 0],
            &[NOP; 40][..],
        ]
        .concat();
        check(&code, 0, Err(NoRecipe::NoBase));
        // lea rax, [rbx] accesses nothing
        let code = [&[0x48, 0x8d, 0x03], &[NOP; 40][..]].concat();
        check(&code, 0, Err(NoRecipe::NoOperand));
        check(&[], 0, Err(NoRecipe::NoCode));
        check(&[0x0f, 0xff], 0, Err(NoRecipe::NoCode));
    }

    #[test]
    fn no_code_makes_the_decoder_panic() {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut code = [0u8; 288];
        for _ in 0..3000 {
            for byte in &mut code {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                *byte = state as u8;
            }
            if let Ok(recipe) = recipe(&code, u64::MAX - 300, u64::MAX - 200) {
                recipe.address(value);
            }
        }
    }
}
