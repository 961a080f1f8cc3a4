//! Registers that the instructions of a block read and write.

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register, RflagsBits, UsedRegister,
};

/// A set of registers, one bit each: the general registers, the vector registers, then one for all
/// others that hold data (x87, MMX, masks), and one for the flags. The stack pointer is left out:
/// calls, returns, push and pop change it by constants.
pub(crate) type Registers = u64;

const VECTOR: u32 = 16;
const OTHER: Registers = 1 << 48;
const FLAGS: Registers = 1 << 49;

/// Data flow through an instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InstructionFlow {
    /// Registers that it reads, including those of addresses.
    pub(crate) reads: Registers,
    /// Registers that it writes.
    pub(crate) writes: Registers,
    /// The part of `writes` whose earlier values it replaces in any case.
    pub(crate) replaces: Registers,
    /// Registers of the addresses of its operands in memory.
    pub(crate) addresses: Registers,
    /// Registers whose values it may store.
    pub(crate) stored: Registers,
    /// True if later loads begin after it, and it after earlier ones: locked instructions, fences,
    /// and those that are not known.
    pub(crate) is_ordered: bool,
    /// True for a branch that may be taken or not.
    pub(crate) is_conditional: bool,
    /// Hash of its encoding. Equal instructions compute the same from equal registers.
    pub(crate) hash: u32,
}

/// Decodes the instructions of a block at `vaddr`. An instruction that is not known is the last one.
pub(crate) fn decode(code: &[u8], vaddr: u64) -> Box<[InstructionFlow]> {
    let mut decoder = Decoder::with_ip(64, code, vaddr, DecoderOptions::NONE);
    let mut factory = InstructionInfoFactory::new();
    let mut flows = Vec::new();
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        let start = decoder.position();
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() {
            flows.push(InstructionFlow {
                is_ordered: true,
                ..InstructionFlow::default()
            });
            break;
        }
        flows.push(InstructionFlow {
            hash: hash_of(&code[start..decoder.position()]),
            ..flow_of(&instruction, &mut factory)
        });
    }
    flows.into()
}

/// FNV-1a (Fowler, Noll and Vo).
fn hash_of(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, &byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

fn flow_of(instruction: &Instruction, factory: &mut InstructionInfoFactory) -> InstructionFlow {
    let info = factory.info(instruction);
    let mut flow = InstructionFlow {
        is_ordered: is_ordered(instruction),
        is_conditional: instruction.flow_control() == FlowControl::ConditionalBranch,
        ..InstructionFlow::default()
    };
    for used in info.used_registers() {
        add_register(&mut flow, used);
    }
    for memory in info.used_memory() {
        flow.addresses |= bit_of(memory.base()) | bit_of(memory.index());
    }
    if instruction.rflags_read() != RflagsBits::NONE {
        flow.reads |= FLAGS;
    }
    if instruction.rflags_modified() != RflagsBits::NONE {
        flow.writes |= FLAGS;
        flow.replaces |= FLAGS;
    }
    // A register may be both data and part of the address.
    let operands = (0..instruction.op_count())
        .filter(|&n| instruction.op_kind(n) == OpKind::Register && reads(info.op_access(n)))
        .map(|n| bit_of(instruction.op_register(n)));
    flow.stored = flow.reads & !flow.addresses | operands.fold(0, |all, one| all | one);
    flow
}

fn add_register(flow: &mut InstructionFlow, used: &UsedRegister) {
    let bit = bit_of(used.register());
    if reads(used.access()) {
        flow.reads |= bit;
    }
    match used.access() {
        OpAccess::Write => {
            flow.writes |= bit;
            // A part of 8 or 16 bits leaves the rest of a general register as it was.
            if used.register().size() > 2 {
                flow.replaces |= bit;
            } else {
                flow.reads |= bit;
            }
        }
        OpAccess::ReadWrite => {
            flow.writes |= bit;
            flow.replaces |= bit;
        }
        OpAccess::CondWrite | OpAccess::ReadCondWrite => {
            flow.writes |= bit;
            flow.reads |= bit;
        }
        _ => {}
    }
}

fn reads(access: OpAccess) -> bool {
    matches!(
        access,
        OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite
    )
}

/// Returns the bit of a register, or 0 for one without data.
fn bit_of(register: Register) -> Registers {
    let whole = register.full_register();
    if whole == Register::RSP
        || whole == Register::None
        || whole.is_ip()
        || whole.is_segment_register()
    {
        0
    } else if whole.is_gpr() {
        1 << (whole as u32 - Register::RAX as u32)
    } else if whole.is_vector_register() {
        1 << (VECTOR + whole.number() as u32)
    } else {
        OTHER
    }
}

fn is_ordered(instruction: &Instruction) -> bool {
    let exchanges = instruction.mnemonic() == Mnemonic::Xchg
        && (0..2).any(|n| instruction.op_kind(n) == OpKind::Memory);
    exchanges
        || instruction.has_lock_prefix()
        || matches!(
            instruction.mnemonic(),
            Mnemonic::Cpuid
                | Mnemonic::Lfence
                | Mnemonic::Mfence
                | Mnemonic::Rdtscp
                | Mnemonic::Serialize
                | Mnemonic::Syscall
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAX: Registers = 1;
    const RCX: Registers = 1 << 1;
    const RBX: Registers = 1 << 3;
    const RSI: Registers = 1 << 6;
    const XMM0: Registers = 1 << VECTOR;

    fn one(code: &[u8]) -> InstructionFlow {
        let flows = decode(code, 0x1000);
        assert_eq!(flows.len(), 1);
        flows[0]
    }

    #[test]
    fn a_load_replaces_its_register_and_needs_its_address() {
        // mov rax, [rbx + 8 * rcx]
        let flow = one(&[0x48, 0x8b, 0x04, 0xcb]);
        assert_eq!(flow.addresses, RBX | RCX);
        assert_eq!(
            (flow.reads, flow.writes, flow.replaces),
            (RBX | RCX, RAX, RAX)
        );
    }

    #[test]
    fn a_store_has_the_value_of_its_operand() {
        // mov [rbx], rax
        let flow = one(&[0x48, 0x89, 0x03]);
        assert_eq!((flow.addresses, flow.stored, flow.writes), (RBX, RAX, 0));
        // mov [rax], rax
        assert_eq!(one(&[0x48, 0x89, 0x00]).stored, RAX);
        // push rax
        assert_eq!(one(&[0x50]).stored, RAX);
        // movq [rsi], xmm0
        assert_eq!(one(&[0x66, 0x0f, 0xd6, 0x06]).stored, XMM0);
    }

    #[test]
    fn a_part_of_a_register_keeps_the_rest() {
        // mov al, [rsi]
        let flow = one(&[0x8a, 0x06]);
        assert_eq!(
            (flow.reads, flow.writes, flow.replaces),
            (RSI | RAX, RAX, 0)
        );
        // mov eax, [rsi] clears the rest.
        assert_eq!(one(&[0x8b, 0x06]).replaces, RAX);
        // cmovne rax, rcx
        let flow = one(&[0x48, 0x0f, 0x45, 0xc1]);
        assert_eq!((flow.reads, flow.replaces), (RAX | RCX | FLAGS, 0));
    }

    #[test]
    fn a_cleared_register_needs_nothing() {
        // xor eax, eax
        let flow = one(&[0x31, 0xc0]);
        assert_eq!((flow.reads, flow.replaces), (0, RAX | FLAGS));
        // pxor xmm0, xmm0
        assert_eq!(one(&[0x66, 0x0f, 0xef, 0xc0]).reads, 0);
    }

    #[test]
    fn locked_instructions_and_fences_are_ordered() {
        // lock add [rbx], rax; xchg [rbx], rax; lfence; mfence
        let ordered: [&[u8]; 4] = [
            &[0xf0, 0x48, 0x01, 0x03],
            &[0x48, 0x87, 0x03],
            &[0x0f, 0xae, 0xe8],
            &[0x0f, 0xae, 0xf0],
        ];
        assert!(ordered.iter().all(|code| one(code).is_ordered));
        // add [rbx], rax; xchg rax, rbx
        let others: [&[u8]; 2] = [&[0x48, 0x01, 0x03], &[0x48, 0x93]];
        assert!(others.iter().all(|code| !one(code).is_ordered));
    }

    #[test]
    fn an_unknown_instruction_ends_the_block() {
        let flows = decode(&[0x90, 0x06, 0x90], 0x1000);
        assert_eq!(flows.len(), 2);
        assert!(!flows[0].is_ordered && flows[1].is_ordered);
    }
}
