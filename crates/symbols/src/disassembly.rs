//! Disassembles functions.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Formatter, GasFormatter, Instruction as Decoded,
};
use memgauge_analyze::{BranchTarget, CodeStep, ControlFlow, Instruction};

use crate::image::{Image, demangle};

/// Maximum size of a function. Longer ones are generated code that nobody reads.
const MAX_BYTES: u64 = 1 << 20;
/// `e_machine` of an ELF file for x86-64, and its offset in the file.
const EM_X86_64: u16 = 62;
const E_MACHINE: u64 = 18;

/// Instructions of the function at `range`. `shift` is the difference between its addresses and
/// their offsets in the file.
///
/// # Errors
/// Returns the reason if the code cannot be read.
pub(crate) fn of_function(
    path: &Path,
    range: Range<u64>,
    shift: u64,
) -> Result<Vec<Instruction>, String> {
    let code = read_code(path, &range, shift)?;
    let decoder = Decoder::with_ip(64, &code, range.start, DecoderOptions::NONE);
    let mut formatter = GasFormatter::new();
    let options = formatter.options_mut();
    options.set_uppercase_hex(false);
    options.set_branch_leading_zeros(false);
    options.set_space_after_operand_separator(true);
    let instructions = decoder.into_iter().map(|instruction| {
        let mut text = String::new();
        formatter.format(&instruction, &mut text);
        Instruction {
            offset: instruction.ip().wrapping_sub(shift),
            address: instruction.ip(),
            text,
        }
    });
    Ok(instructions.collect())
}

/// Instructions of the function at `range` with their branches.
///
/// # Errors
/// Returns the reason if the code cannot be read.
pub(crate) fn control_flow(
    path: &Path,
    range: Range<u64>,
    shift: u64,
    image: &Image,
) -> Result<Vec<CodeStep>, String> {
    let code = read_code(path, &range, shift)?;
    let decoder = Decoder::with_ip(64, &code, range.start, DecoderOptions::NONE);
    let steps = decoder.into_iter().map(|instruction| CodeStep {
        offset: instruction.ip().wrapping_sub(shift),
        flow: flow_of(&instruction, &range, shift, image),
    });
    Ok(steps.collect())
}

fn flow_of(instruction: &Decoded, range: &Range<u64>, shift: u64, image: &Image) -> ControlFlow {
    let direct = || {
        let address = instruction.near_branch_target();
        BranchTarget::Offset(address.wrapping_sub(shift))
    };
    // Rust calls functions of other files through their slots, without a PLT entry.
    let through_slot = || {
        let is_relative = instruction.is_ip_rel_memory_operand();
        let slot = is_relative.then(|| instruction.ip_rel_memory_address())?;
        image.import_in_slot(slot)
    };
    let import = |name: &str| BranchTarget::Import(demangle(name));
    match instruction.flow_control() {
        FlowControl::Next => ControlFlow::Next,
        FlowControl::Call if instruction.is_call_near() => ControlFlow::Call(direct()),
        FlowControl::IndirectCall => match through_slot() {
            Some(name) => ControlFlow::Call(import(name)),
            None => ControlFlow::Branch,
        },
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch
            if !range.contains(&instruction.near_branch_target()) =>
        {
            ControlFlow::TailCall(direct())
        }
        FlowControl::IndirectBranch => match through_slot() {
            Some(name) => ControlFlow::TailCall(import(name)),
            None => ControlFlow::Branch,
        },
        _ => ControlFlow::Branch,
    }
}

/// Bytes of the function at `range`.
fn read_code(path: &Path, range: &Range<u64>, shift: u64) -> Result<Vec<u8>, String> {
    let failed = |e: std::io::Error| format!("failed to read {}: {e}", path.display());
    let file = File::open(path).map_err(failed)?;
    let mut machine = [0; 2];
    file.read_exact_at(&mut machine, E_MACHINE)
        .map_err(failed)?;
    if u16::from_le_bytes(machine) != EM_X86_64 {
        return Err("only code of x86-64 is disassembled".to_owned());
    }
    let bytes = range.end - range.start;
    if bytes > MAX_BYTES {
        return Err(format!("the function has {bytes} bytes"));
    }
    let mut code = vec![0; bytes as usize];
    file.read_exact_at(&mut code, range.start.wrapping_sub(shift))
        .map_err(failed)?;
    Ok(code)
}
