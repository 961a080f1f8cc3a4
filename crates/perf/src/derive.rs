//! Derives the data address of a sample from its registers and the code around it. Pure.
//!
//! At an interrupt, the instruction at the sampled address is about to execute with the sampled
//! registers. The module tries three ways to an address, in this order:
//!
//! * **exact**: the instruction has an operand in memory. The registers give its address, and
//!   the instruction will access it.
//! * **previous**: the previous instruction has an operand in memory and did not overwrite the
//!   registers of its address. At the head of a loop, the previous instruction is the one before
//!   the jump back. The access has just happened if control came that way.
//! * **next**: one of the next few instructions has an operand in memory, and no instruction in
//!   between writes the registers of its address. The access will happen unless a fault comes
//!   first. A branch back to the head of the loop counts as taken; in the last iteration it is
//!   not.
//!
//! A PEBS record has the registers after its instruction was executed. Only the operand of that
//! instruction counts, and only if the instruction did not overwrite the registers of its
//! address. Before Haswell, only PEBS records with latencies contain a data address.
//!
//! An operand relative to FS or GS has no address: samples lack the bases of these segments.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, OpAccess, Register,
    UsedMemory,
};
use memgauge_trace::{AccessKind, Derivation};

/// Number of bytes of code before the sampled address that are decoded.
pub const BYTES_BEFORE: u64 = 96;
/// Number of bytes of code after the sampled address that are decoded.
pub const BYTES_AFTER: u64 = 192;
/// Length of the longest instruction (Intel SDM volume 2, 2.3.11).
const MAX_INSTRUCTION_BYTES: usize = 15;
/// Number of instructions after the sampled one that are searched for an operand.
const MAX_LOOKAHEAD: usize = 8;

/// How to compute a sample's data address from its registers.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Recipe {
    /// How the operand was found.
    pub derivation: Derivation,
    /// Kind of access to the operand.
    pub kind: AccessKind,
    /// Size of the operand in bytes; 0 if unknown.
    pub size_bytes: u16,
    /// Address of the instruction with this operand.
    pub instruction: u64,
    memory: UsedMemory,
}

/// Why a data address cannot be derived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NoRecipe {
    /// The code could not be read or decoded.
    NoCode,
    /// Neither the instruction nor its neighbours access memory.
    NoOperand,
    /// The registers were overwritten, or samples do not contain them.
    NoRegisters,
    /// The operand is relative to FS or GS. Samples lack these bases, and reading them would need
    /// to stop the thread.
    NoBase,
}

/// Meaning of the sampled address, relative to the instruction that the sample belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpPosition {
    /// The instruction there is about to execute, as at an interrupt.
    AboutToExecute,
    /// The instruction there has been executed: a PEBS record with the exact address.
    Executed,
    /// The instruction before it has been executed: a PEBS record with the address after it.
    AfterExecuted,
}

/// Returns how to compute the data address of interrupt samples at `ip`. `code` begins at
/// address `start`.
///
/// # Errors
/// Returns why there is no address.
pub fn recipe(code: &[u8], start: u64, ip: u64) -> Result<Recipe, NoRecipe> {
    recipe_at(IpPosition::AboutToExecute, code, start, ip)
}

/// As [`recipe`], for samples at another position.
///
/// # Errors
/// Returns why there is no address.
pub fn recipe_at(
    position: IpPosition,
    code: &[u8],
    start: u64,
    ip: u64,
) -> Result<Recipe, NoRecipe> {
    let mut code = CodeWindow::new(code, start);
    let executed = match position {
        IpPosition::AboutToExecute => return code.recipe_before_execution(ip),
        IpPosition::Executed => (Derivation::Exact, code.decode(ip)),
        IpPosition::AfterExecuted => (Derivation::Previous, code.executed_before(ip)),
    };
    let (derivation, Some(executed)) = executed else {
        return Err(NoRecipe::NoCode);
    };
    let mut reason = NoRecipe::NoOperand;
    let memory = code.intact_operand(&executed, &mut reason).ok_or(reason)?;
    Ok(new_recipe(derivation, executed.ip(), &memory))
}

impl Recipe {
    /// Computes the address. `register` returns the value of a register by the kernel's number.
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

/// All general registers, as a mask for `sample_regs_user`: a recipe may need any of them.
pub const REGISTERS: u64 = 0x00ff_01ff;

fn new_recipe(derivation: Derivation, instruction: u64, memory: &UsedMemory) -> Recipe {
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

fn address_registers(memory: &UsedMemory) -> impl Iterator<Item = Register> {
    let registers = [memory.base(), memory.index()];
    registers
        .into_iter()
        .filter(|r| *r != Register::None)
        .map(|r| r.full_register())
}

/// True if samples contain every register of the address.
fn is_computable(memory: &UsedMemory) -> bool {
    let flat = !matches!(memory.segment(), Register::FS | Register::GS);
    flat && memory.vsib_size() == 0 && address_registers(memory).all(|r| number(r).is_some())
}

fn missing_part(memory: &UsedMemory) -> NoRecipe {
    match memory.segment() {
        Register::FS | Register::GS => NoRecipe::NoBase,
        _ => NoRecipe::NoRegisters,
    }
}

struct CodeWindow<'a> {
    code: &'a [u8],
    start: u64,
    info: InstructionInfoFactory,
}

impl<'a> CodeWindow<'a> {
    fn new(code: &'a [u8], start: u64) -> CodeWindow<'a> {
        CodeWindow {
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

    fn recipe_before_execution(&mut self, ip: u64) -> Result<Recipe, NoRecipe> {
        let at = self.decode(ip).ok_or(NoRecipe::NoCode)?;
        let mut reason = NoRecipe::NoOperand;
        if let Some(memory) = self.operand(&at) {
            match is_computable(&memory) {
                true => return Ok(new_recipe(Derivation::Exact, ip, &memory)),
                false => reason = missing_part(&memory),
            }
        }
        if let Some(previous) = self.previous(ip)
            && let Some(memory) = self.intact_operand(&previous, &mut reason)
        {
            return Ok(new_recipe(Derivation::Previous, previous.ip(), &memory));
        }
        let (instruction, memory) = self.next_operand(&at).ok_or(reason)?;
        Ok(new_recipe(Derivation::Next, instruction, &memory))
    }

    /// The operand in memory. If there are several, the one that is not on the stack.
    fn operand(&mut self, instruction: &Instruction) -> Option<UsedMemory> {
        let accesses = |m: &&UsedMemory| kind(m.access()) != AccessKind::Unknown;
        let used = self.info.info(instruction).used_memory();
        let on_stack = |m: &&UsedMemory| m.base().full_register() == Register::RSP;
        let off_stack = used.iter().filter(accesses).find(|m| !on_stack(m));
        off_stack.or_else(|| used.iter().find(accesses)).copied()
    }

    fn written_registers(&mut self, instruction: &Instruction) -> Vec<Register> {
        let used = self.info.info(instruction).used_registers();
        let written = used.iter().filter(|r| {
            !matches!(
                r.access(),
                OpAccess::Read | OpAccess::CondRead | OpAccess::None
            )
        });
        written.map(|r| r.register().full_register()).collect()
    }

    /// The operand of an executed instruction, if the instruction left the registers of its
    /// address intact.
    fn intact_operand(
        &mut self,
        executed: &Instruction,
        reason: &mut NoRecipe,
    ) -> Option<UsedMemory> {
        let memory = self.operand(executed)?;
        let written = self.written_registers(executed);
        let intact = address_registers(&memory).all(|r| !written.contains(&r));
        if intact && is_computable(&memory) {
            return Some(memory);
        }
        *reason = missing_part(&memory);
        None
    }

    /// The instruction that was executed before the one at `ip`. At the head of a loop it is the
    /// one before the jump back, else the one at the lower address.
    fn previous(&self, ip: u64) -> Option<Instruction> {
        let end = self.jump_back_to(ip).unwrap_or(ip);
        let previous = self.preceding_in_code(end)?;
        matches!(previous.flow_control(), FlowControl::Next).then_some(previous)
    }

    /// The instruction of a precise sample whose address is that of the next instruction. It
    /// accessed memory, so at the head of a loop a candidate without an operand is ruled out.
    fn executed_before(&mut self, ip: u64) -> Option<Instruction> {
        let previous = self.previous(ip);
        match previous.filter(|executed| self.operand(executed).is_some()) {
            Some(executed) => Some(executed),
            None => self.preceding_in_code(ip),
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
            let continues = matches!(
                instruction.flow_control(),
                FlowControl::Next | FlowControl::ConditionalBranch | FlowControl::Call
            );
            if !continues {
                return None;
            }
            at = instruction.next_ip();
        }
        None
    }

    /// The instruction that ends at this address. Instructions do not mark their start, but
    /// decoders that begin at different addresses soon agree. Decode from every address before
    /// `end` and take the start that most of them find.
    fn preceding_in_code(&self, end: u64) -> Option<Instruction> {
        let mut votes = [0u32; MAX_INSTRUCTION_BYTES + 1];
        let first = self.start.max(end.saturating_sub(BYTES_BEFORE));
        for from in first..end {
            if let Some(last) = self.last_start(from, end) {
                votes[(end - last) as usize] += 1;
            }
        }
        let best = (1..=MAX_INSTRUCTION_BYTES).max_by_key(|&length| votes[length])?;
        (votes[best] > 0)
            .then(|| self.decode(end - best as u64))
            .flatten()
    }

    /// Decodes from `from` on. Returns the start of the instruction that ends at `end`.
    fn last_start(&self, from: u64, end: u64) -> Option<u64> {
        let mut at = from;
        loop {
            let next = self.decode(at)?.next_ip();
            match next.cmp(&end) {
                std::cmp::Ordering::Less => at = next,
                std::cmp::Ordering::Equal => {
                    return (end - at <= MAX_INSTRUCTION_BYTES as u64).then_some(at);
                }
                std::cmp::Ordering::Greater => return None,
            }
        }
    }

    /// The first operand after this instruction, with the address of its instruction. `None` if
    /// an instruction in between writes the registers of its address.
    ///
    /// Follows one branch back, since loops usually continue. In a loop that chases pointers, the
    /// load at the head uses the register that it has just written, so its next address is known.
    fn next_operand(&mut self, first: &Instruction) -> Option<(u64, UsedMemory)> {
        let mut written = Vec::new();
        let mut at = *first;
        let mut branched_back = false;
        for _ in 0..MAX_LOOKAHEAD {
            let next_ip = match at.flow_control() {
                FlowControl::Next => at.next_ip(),
                FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
                    if !branched_back && at.near_branch_target() <= first.ip() =>
                {
                    branched_back = true;
                    at.near_branch_target()
                }
                _ => return None,
            };
            written.extend(self.written_registers(&at));
            at = self.decode(next_ip)?;
            if let Some(memory) = self.operand(&at) {
                let intact = address_registers(&memory).all(|r| !written.contains(&r));
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

    fn check_executed(position: IpPosition, code: &[u8], expected: Result<u64, NoRecipe>) {
        let ip = match position {
            IpPosition::AfterExecuted => BASE + code.len() as u64 - 1,
            _ => BASE,
        };
        let seen = recipe_at(position, code, BASE, ip).map(|r| r.address(value).unwrap());
        assert_eq!(seen, expected, "{code:x?} {position:?}");
    }

    #[test]
    fn only_its_own_operand_counts_for_an_executed_instruction() {
        for position in [IpPosition::Executed, IpPosition::AfterExecuted] {
            // mov rax, [rbx + 8]; nop: rbx 0x2000
            check_executed(position, &[0x48, 0x8b, 0x43, 0x08, NOP], Ok(0x2008));
            // mov rbx, [rbx]; nop: the address is overwritten
            let overwritten = [0x48, 0x8b, 0x1b, NOP];
            check_executed(position, &overwritten, Err(NoRecipe::NoRegisters));
            // add rax, 1; nop: nothing in memory, and what follows does not count
            let neither = [0x48, 0x83, 0xc0, 0x01, NOP];
            check_executed(position, &neither, Err(NoRecipe::NoOperand));
        }
    }

    #[test]
    fn precise_sample_after_the_head_of_a_loop_belongs_to_the_load() {
        // mov rax, [rbx]; 1: dec ecx; jnz 1b
        let code = [0x48, 0x8b, 0x03, 0xff, 0xc9, 0x75, 0xfc];
        let seen = recipe_at(IpPosition::AfterExecuted, &code, BASE, BASE + 3);
        assert_eq!(seen.unwrap().address(value), Some(0x2000));
    }

    const NOP: u8 = 0x90;

    // Encodings by GNU as 2.40, of the instruction in the comment.
    #[test]
    fn operand_of_the_sampled_instruction_is_exact() {
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
    fn previous_operand_is_used_if_its_registers_are_intact() {
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
    fn next_operand_is_used_unless_its_registers_are_written_before() {
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
    fn instruction_before_the_jump_back_was_executed_before_the_head_of_a_loop() {
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
    fn behind_the_load_of_a_pointer_chase_the_loops_head_uses_what_it_loaded() {
        // head: mov rdx, [rdi + rdx*8]; sub eax, 1; jne head: rdi 0x6000, rdx 0x4000
        let chase = [0x48, 0x8b, 0x14, 0xd7, 0x83, 0xe8, 0x01, 0x75, 0xf7];
        let code = [&[NOP; 16][..], &chase, &[NOP; 16]].concat();
        let address = 0x6000 + 8 * 0x4000;
        let load = |derivation| Ok((derivation, AccessKind::Load, 8, address));
        check(&code, 16, load(Derivation::Exact));
        check(&code, 20, load(Derivation::Next));
        check(&code, 23, load(Derivation::Next));
        // `inc rdx` comes between the branch's target and the load, so the register does not have
        // its final value yet.
        let changed = [
            0x48, 0xff, 0xc2, 0x48, 0x8b, 0x14, 0xd7, 0x83, 0xe8, 0x01, 0x75, 0xf4,
        ];
        let code = [&[NOP; 16][..], &changed, &[NOP; 16]].concat();
        check(&code, 23, Err(NoRecipe::NoRegisters));
        // a loop without an operand is followed once only
        let empty = [0x83, 0xe8, 0x01, 0x75, 0xfb];
        let code = [&[NOP; 16][..], &empty, &[NOP; 16]].concat();
        check(&code, 16, Err(NoRecipe::NoOperand));
        // a branch forward is not followed: jne over a byte to mov rax, [rbx]
        let forward = [0x75, 0x01, NOP, 0x48, 0x8b, 0x03];
        let code = [&[NOP; 16][..], &forward, &[NOP; 16]].concat();
        check(&code, 16, Err(NoRecipe::NoOperand));
    }

    #[test]
    fn operands_without_a_computable_address_have_no_recipe() {
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
    fn random_code_does_not_panic() {
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
