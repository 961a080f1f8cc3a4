//! Follows types through the code of a function.
//!
//! Debug information says in which register a variable is, but a value has none while it is on
//! its way: the pointer that `mov rax, [rbx + 16]` loads, a copy, the start of an array plus an
//! index. The module starts from the variables at each instruction and follows moves, additions,
//! loads and calls through the blocks of the function until nothing changes. Where two paths
//! meet, only what both agree on is kept.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use iced_x86::{
    ConditionCode, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory,
    Mnemonic, OpAccess, OpKind, Register, UsedMemory,
};
use memgauge_analyze::{DataAccess, NoType};

use super::debug_info::{DebugInfo, FunctionInfo, ValueLocation, VariableLocation};
use super::definitions::{Type, TypeRef};

/// Maximum number of passes over a function until the values at its blocks must agree. Values that
/// still change then are unknown.
const MAX_PASSES: usize = 8;
/// Maximum number of values on the stack that are followed.
const MAX_SLOTS: usize = 256;
/// Maximum distance between the store that initialises a variable and the beginning of its scope.
const MAX_BYTES_TO_SCOPE: u64 = 32;
/// Registers that a call may change: rax, rcx, rdx, rsi, rdi and r8 to r11.
const CLOBBERED: [usize; 9] = [0, 1, 2, 6, 7, 8, 9, 10, 11];
/// Smaller constants are no addresses (`vm.mmap_min_addr`).
const LOWEST_ADDRESS: i64 = 0x10000;
const RSP: usize = 4;
const REGISTERS: usize = 16;

/// Numbers of general registers here, by DWARF's numbers.
const BY_DWARF_NUMBER: [usize; REGISTERS] = [0, 2, 1, 3, 6, 7, 5, 4, 8, 9, 10, 11, 12, 13, 14, 15];

/// A pointer to `void`, or to a type that is only declared.
const UNTYPED: Value = Value::Untyped {
    origin: 0,
    offset: 0,
    stepped: false,
    is_void: true,
};

/// Type of a value, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Value {
    #[default]
    Unknown,
    /// Zero, which any pointer may be.
    Null,
    /// A number like `Unknown`, plus a constant that is not zero. Compilers add the offset of an
    /// array in a structure to an index.
    Number(i64),
    /// The value that the instruction at `origin` loaded or the call there returned, plus an offset. A copy
    /// gets its type when a variable gives one to the other copy.
    Untyped {
        origin: u64,
        offset: i64,
        stepped: bool,
        is_void: bool,
    },
    /// The address of an object of a type, plus an offset. `stepped`: of an element of an array
    /// of them.
    Pointer {
        to: TypeRef,
        offset: i64,
        stepped: bool,
    },
    /// The canonical frame address plus an offset.
    Stack(i64),
    /// A fixed address. `stepped`: plus an unknown index.
    Address { at: u64, stepped: bool },
}

/// Values of registers and of 8-byte slots on the stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct FlowState {
    registers: [Value; REGISTERS],
    slots: BTreeMap<i64, Value>,
}

/// An instruction and what it does.
struct FlowStep {
    instruction: Instruction,
    /// Its operand in memory.
    memory: Option<UsedMemory>,
    /// General registers that it writes.
    written: Vec<usize>,
}

/// Where a variable with a name in the symbol table begins.
pub(super) type SymbolAt<'a> = dyn FnMut(u64) -> Option<(String, u64)> + 'a;

/// Type of the data that each instruction of a function accesses.
pub(super) type AccessTypes = HashMap<u64, Result<DataAccess, NoType>>;

/// Finds the accesses of a function. `code` has the bytes of each of its ranges.
pub(super) fn accesses(
    debug: &mut DebugInfo,
    info: &FunctionInfo,
    code: &[(Range<u64>, Vec<u8>)],
    thread_pointer: Option<u64>,
    symbol_at: &mut SymbolAt,
) -> AccessTypes {
    let mut flow = DataFlow {
        debug,
        info,
        steps: decode(code),
        variables: Vec::new(),
        thread_pointer,
    };
    flow.variables = flow.variables_in_registers();
    let starts = flow.solve();
    let mut found = AccessTypes::new();
    for (block, state) in flow.blocks().into_iter().zip(starts) {
        let mut state = state.unwrap_or_default();
        for at in block {
            flow.add_variables(at, &mut state);
            if let Some(memory) = flow.steps[at].memory {
                let address = flow.steps[at].instruction.ip();
                found.insert(address, flow.access(at, &memory, &state, symbol_at));
            }
            flow.execute(at, &mut state);
        }
    }
    found
}

fn decode(code: &[(Range<u64>, Vec<u8>)]) -> Vec<FlowStep> {
    let mut factory = InstructionInfoFactory::new();
    let mut steps = Vec::new();
    for (range, bytes) in code {
        let decoder = Decoder::with_ip(64, bytes, range.start, DecoderOptions::NONE);
        for instruction in decoder {
            let info = factory.info(&instruction);
            let accesses = |memory: &&UsedMemory| {
                !matches!(memory.access(), OpAccess::None | OpAccess::NoMemAccess)
            };
            let is_stack = |memory: &&UsedMemory| memory.base().full_register() == Register::RSP;
            let used = info.used_memory();
            let off_stack = used.iter().filter(accesses).find(|m| !is_stack(m));
            let memory = off_stack.or_else(|| used.iter().find(accesses)).copied();
            let memory = memory.or_else(|| prefetched(&instruction));
            let written = info.used_registers().iter().filter(|used| {
                !matches!(
                    used.access(),
                    OpAccess::None | OpAccess::Read | OpAccess::CondRead
                )
            });
            let written = written
                .filter_map(|used| general(used.register()))
                .collect();
            steps.push(FlowStep {
                instruction,
                memory,
                written,
            });
        }
    }
    steps
}

/// Operand of a prefetch of data, which accesses none.
fn prefetched(instruction: &Instruction) -> Option<UsedMemory> {
    let is_prefetch = matches!(
        instruction.mnemonic(),
        Mnemonic::Prefetch
            | Mnemonic::Prefetchnta
            | Mnemonic::Prefetcht0
            | Mnemonic::Prefetcht1
            | Mnemonic::Prefetcht2
            | Mnemonic::Prefetchw
            | Mnemonic::Prefetchwt1
    );
    // The displacement of an address relative to the instruction includes that.
    let base = match instruction.is_ip_rel_memory_operand() {
        true => Register::None,
        false => instruction.memory_base(),
    };
    is_prefetch.then(|| {
        UsedMemory::new(
            instruction.memory_segment(),
            base,
            instruction.memory_index(),
            instruction.memory_index_scale(),
            instruction.memory_displacement64(),
            instruction.memory_size(),
            OpAccess::NoMemAccess,
        )
    })
}

fn is_thread_local(memory: &UsedMemory) -> bool {
    matches!(memory.segment(), Register::FS | Register::GS)
}

/// Number of a general register, or of the one that it is a part of.
fn general(register: Register) -> Option<usize> {
    let full = register.full_register();
    full.is_gpr64().then(|| full.number())
}

struct DataFlow<'a> {
    debug: &'a mut DebugInfo,
    info: &'a FunctionInfo,
    steps: Vec<FlowStep>,
    /// Registers that contain variables before each instruction, and the values of the variables.
    variables: Vec<Vec<(usize, Value)>>,
    /// Address of `fs:0`. `None` if it is not known where this file's thread-local variables are.
    thread_pointer: Option<u64>,
}

impl DataFlow<'_> {
    fn variables_in_registers(&mut self) -> Vec<Vec<(usize, Value)>> {
        let mut variables = vec![Vec::new(); self.steps.len()];
        let steps = self.steps.iter().enumerate();
        let mut by_address: Vec<(u64, usize)> = steps
            .map(|(at, step)| (step.instruction.ip(), at))
            .collect();
        by_address.sort_unstable();
        for location in &self.info.locations {
            let first = by_address.partition_point(|(ip, _)| *ip < location.range.start);
            let end = by_address.partition_point(|(ip, _)| *ip < location.range.end);
            let within = by_address.get(first..end).unwrap_or_default();
            if within.is_empty() {
                continue;
            }
            if let Some(variable) = self.variable_in_register(location) {
                for (_, at) in within {
                    variables[*at].push(variable);
                }
            }
        }
        variables
    }

    /// Number of the register that contains the variable or its address, and the register's value.
    fn variable_in_register(&mut self, location: &VariableLocation) -> Option<(usize, Value)> {
        let (of, part) = (location.of, location.part);
        let (register, value) = match location.place {
            ValueLocation::Register(register) => (register, self.pointer(of, part, 0)),
            ValueLocation::Value { register, offset } => {
                (register, self.pointer(of, part, offset.wrapping_neg()))
            }
            ValueLocation::Memory { register, offset } => {
                let (to, stepped) = self.debug.element(of);
                let offset = offset.wrapping_neg();
                let value = Value::Pointer {
                    to,
                    offset,
                    stepped,
                };
                (register, value)
            }
            ValueLocation::Frame(_) | ValueLocation::Address(_) => return None,
        };
        let register = *BY_DWARF_NUMBER.get(usize::from(register))?;
        Some((register, value))
    }

    /// Ranges of instructions that are entered at the first and left after the last one.
    fn blocks(&self) -> Vec<Range<usize>> {
        let by_address = self.by_address();
        let mut is_first = vec![false; self.steps.len() + 1];
        is_first[0] = true;
        is_first[self.steps.len()] = true;
        for (at, step) in self.steps.iter().enumerate() {
            let flow = step.instruction.flow_control();
            if !matches!(
                flow,
                FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall
            ) {
                is_first[at + 1] = true;
            }
            if step.instruction.is_jcc_short_or_near() || step.instruction.is_jmp_short_or_near() {
                let target = step.instruction.near_branch_target();
                if let Some(&target) = by_address.get(&target) {
                    is_first[target] = true;
                }
            }
            let next = self.steps.get(at + 1);
            if next.is_some_and(|next| next.instruction.ip() != step.instruction.next_ip()) {
                is_first[at + 1] = true;
            }
        }
        let firsts: Vec<usize> = (0..is_first.len()).filter(|&at| is_first[at]).collect();
        firsts.windows(2).map(|pair| pair[0]..pair[1]).collect()
    }

    fn by_address(&self) -> HashMap<u64, usize> {
        let steps = self.steps.iter().enumerate();
        steps
            .map(|(at, step)| (step.instruction.ip(), at))
            .collect()
    }

    /// State at the start of each block. `None` if no known path leads there.
    fn solve(&mut self) -> Vec<Option<FlowState>> {
        let blocks = self.blocks();
        let by_address = self.by_address();
        let by_first: HashMap<usize, usize> = blocks
            .iter()
            .enumerate()
            .map(|(n, block)| (block.start, n))
            .collect();
        let mut starts: Vec<Option<FlowState>> = vec![None; blocks.len()];
        let entry = self
            .info
            .code
            .first()
            .and_then(|code| by_address.get(&code.start));
        let Some(entry) = entry.and_then(|at| by_first.get(at)) else {
            return starts;
        };
        let mut first = FlowState::default();
        // The return address is below the canonical frame address.
        first.registers[RSP] = Value::Stack(-8);
        starts[*entry] = Some(first);
        let mut is_due = vec![true; blocks.len()];
        for pass in 0.. {
            let mut changed = false;
            for (number, block) in blocks.iter().enumerate() {
                if !std::mem::take(&mut is_due[number]) {
                    continue;
                }
                let Some(mut state) = starts[number].clone() else {
                    continue;
                };
                for at in block.clone() {
                    self.add_variables(at, &mut state);
                    self.execute(at, &mut state);
                }
                for next in self.successors(block, &by_address) {
                    let Some(&next) = by_first.get(&next) else {
                        continue;
                    };
                    let met = match &starts[next] {
                        None => state.clone(),
                        // Give up on what has not settled.
                        Some(_) if pass >= MAX_PASSES => FlowState::default(),
                        Some(known) => self.meet(known, &state),
                    };
                    if starts[next].as_ref() != Some(&met) {
                        starts[next] = Some(met);
                        is_due[next] = true;
                        changed = true;
                    }
                }
            }
            if !changed {
                break;
            }
        }
        starts
    }

    /// First instructions of the blocks that follow a block.
    fn successors(&self, block: &Range<usize>, by_address: &HashMap<u64, usize>) -> Vec<usize> {
        let Some(last) = block.end.checked_sub(1).and_then(|at| self.steps.get(at)) else {
            return Vec::new();
        };
        let last = &last.instruction;
        let mut next = Vec::new();
        if last.is_jcc_short_or_near() || last.is_jmp_short_or_near() {
            next.extend(by_address.get(&last.near_branch_target()));
        }
        let goes_on = matches!(
            last.flow_control(),
            FlowControl::Next
                | FlowControl::ConditionalBranch
                | FlowControl::Call
                | FlowControl::IndirectCall
        );
        if goes_on {
            next.extend(by_address.get(&last.next_ip()));
        }
        next
    }

    fn meet(&mut self, a: &FlowState, b: &FlowState) -> FlowState {
        let mut met = FlowState::default();
        for n in 0..REGISTERS {
            met.registers[n] = self.meet_values(a.registers[n], b.registers[n]);
        }
        for (&slot, &value) in &a.slots {
            if let Some(&other) = b.slots.get(&slot) {
                let value = self.meet_values(value, other);
                if value != Value::Unknown {
                    met.slots.insert(slot, value);
                }
            }
        }
        met
    }

    /// Address of an element of the array that contains both addresses at the same offset in an element.
    fn same_array(&mut self, first: u64, second: u64) -> Value {
        let code = self.steps.first().map_or(0, |step| step.instruction.ip());
        let Some((of, _)) = self.debug.variable_at(code, first, None) else {
            return Value::Unknown;
        };
        let (element, is_array) = self.debug.element(of);
        let bytes = self.debug.bytes(element);
        match is_array && bytes > 0 && (second - first).is_multiple_of(bytes) {
            true => Value::Address {
                at: first,
                stepped: true,
            },
            false => Value::Unknown,
        }
    }

    fn meet_values(&mut self, a: Value, b: Value) -> Value {
        match (a, b) {
            (a, b) if a == b => a,
            (Value::Null, other @ (Value::Pointer { .. } | Value::Untyped { .. }))
            | (other @ (Value::Pointer { .. } | Value::Untyped { .. }), Value::Null) => other,
            (
                Value::Pointer { to, offset, .. },
                Value::Pointer {
                    to: other_to,
                    offset: other,
                    ..
                },
            ) if to == other_to => {
                let bytes = self.debug.signed_bytes(to);
                match bytes > 0 && offset.wrapping_sub(other) % bytes == 0 {
                    true => Value::Pointer {
                        to,
                        offset: offset.rem_euclid(bytes),
                        stepped: true,
                    },
                    false => Value::Unknown,
                }
            }
            (Value::Address { at, .. }, Value::Address { at: other, .. }) if at == other => {
                Value::Address { at, stepped: true }
            }
            (Value::Address { at, .. }, Value::Address { at: other, .. }) => {
                self.same_array(at.min(other), at.max(other))
            }
            _ => Value::Unknown,
        }
    }

    /// Puts variables into the registers that contain them before an instruction.
    fn add_variables(&mut self, at: usize, state: &mut FlowState) {
        for n in 0..self.variables[at].len() {
            let (register, value) = self.variables[at][n];
            let known = state.registers[register];
            if known == value {
                continue;
            }
            let (rank, known_rank) = (self.rank(value), self.rank(known));
            if rank > known_rank || rank == known_rank && !matches!(known, Value::Stack(_)) {
                if let Value::Untyped { origin, offset, .. } = known {
                    give_type(state, (origin, offset), value);
                }
                state.registers[register] = value;
            }
        }
    }

    /// The value of a pointer variable plus an offset.
    fn pointer(&mut self, of: TypeRef, part: u64, offset: i64) -> Value {
        let Some(scalar) = self.debug.scalar_at(of, part) else {
            return Value::Unknown;
        };
        match *self.debug.type_at(scalar) {
            Type::Pointer { to: None } => UNTYPED,
            Type::Pointer { to: Some(to) } => {
                let elements = self.debug.erased_elements(of, part);
                let (to, is_array) = self.debug.element(elements.unwrap_or(to));
                let is_array = is_array || elements.is_some();
                if matches!(*self.debug.type_at(to), Type::Unknown) {
                    return UNTYPED;
                }
                let bytes = self.debug.signed_bytes(to);
                let stepped = is_array || offset != 0 && bytes > 0 && offset % bytes == 0;
                Value::Pointer {
                    to,
                    offset,
                    stepped,
                }
            }
            _ => Value::Unknown,
        }
    }

    /// How specific a value is. If two types describe the same object, the larger one is more specific.
    fn rank(&mut self, value: Value) -> (u8, u64) {
        match value {
            Value::Unknown | Value::Null => (0, 0),
            Value::Number(_) | Value::Untyped { is_void: false, .. } => (0, 1),
            Value::Untyped { .. } => (1, 0),
            Value::Pointer { to, .. } => match &*self.debug.type_at(to) {
                Type::Record(record) if !record.members.is_empty() => (4, record.bytes),
                Type::Scalar { bytes: 0..2, .. } => (2, 0),
                Type::Unknown => (1, 0),
                _ => (3, 0),
            },
            Value::Address { .. } => (5, 0),
            Value::Stack(_) => (6, 0),
        }
    }

    /// Value of the address that an operand has.
    fn address(&mut self, memory: &UsedMemory, state: &FlowState) -> Value {
        self.indexed_address(memory, state).0
    }

    /// The same without the constant part of an index into a variable, and this part: with `i - 1` as
    /// an index, the address is not in the variable.
    fn indexed_address(&mut self, memory: &UsedMemory, state: &FlowState) -> (Value, i64) {
        let value_of = |register| general(register).map_or(Value::Null, |n| state.registers[n]);
        let (base, index) = (value_of(memory.base()), value_of(memory.index()));
        let by = match memory.scale() == 1 && is_number(base) && !is_number(index) {
            true => constant(base),
            false => scaled(index, memory.scale()),
        };
        match self.address_without_index(memory, state) {
            variable @ (Value::Address { .. } | Value::Stack(_)) => (variable, by),
            other => (shifted(other, by, false), 0),
        }
    }

    fn address_without_index(&mut self, memory: &UsedMemory, state: &FlowState) -> Value {
        if memory.base() == Register::RIP || memory.base() == Register::EIP {
            let at = memory.displacement();
            return Value::Address { at, stepped: false };
        }
        let index = general(memory.index());
        let displacement = memory.displacement() as i64;
        if is_thread_local(memory) {
            let is_constant = memory.base() == Register::None && memory.index() == Register::None;
            return match self.thread_pointer {
                // A register is an index, or with a library's variable its whole distance.
                Some(at) if is_constant || displacement < 0 => Value::Address {
                    at: at.wrapping_add_signed(displacement),
                    stepped: !is_constant,
                },
                _ => Value::Unknown,
            };
        }
        let Some(base) = general(memory.base()) else {
            return match (index, memory.index()) {
                // A table of a program with fixed addresses.
                (index, Register::None) | (index @ Some(_), _) if displacement > 0 => {
                    let at = displacement as u64;
                    let stepped = index.is_some();
                    Value::Address { at, stepped }
                }
                _ => Value::Unknown,
            };
        };
        let (base, index_value) = (
            state.registers[base],
            index.map(|index| state.registers[index]),
        );
        let is_vector = memory.index() != Register::None && index.is_none();
        match (base, index_value) {
            (base, None) => shifted(base, displacement, is_vector),
            (base, Some(index))
                if memory.scale() == 1 && is_number(base) && index != Value::Unknown =>
            {
                shifted(index, displacement, true)
            }
            (base, Some(_)) => shifted(base, displacement, true),
        }
    }

    /// Type of the data at an instruction's operand.
    fn access(
        &mut self,
        at: usize,
        memory: &UsedMemory,
        state: &FlowState,
        symbol_at: &mut SymbolAt,
    ) -> Result<DataAccess, NoType> {
        let ip = self.steps[at].instruction.ip();
        let (address, by) = self.indexed_address(memory, state);
        let (to, offset, stepped) = match address {
            Value::Unknown if is_thread_local(memory) => return Err(NoType::ThreadLocal),
            // A field of the thread's control block, which the C library defines.
            Value::Address { at, .. }
                if Some(at) >= self.thread_pointer && is_thread_local(memory) =>
            {
                return Err(NoType::ThreadLocal);
            }
            Value::Pointer {
                to,
                offset,
                stepped,
            } => (to, offset, stepped),
            Value::Address { at, stepped } => {
                let symbol = symbol_at(at);
                let symbol = symbol.as_ref().map(|(name, start)| (name.as_str(), *start));
                let found = self.debug.variable_at(ip, at, symbol);
                let (of, start) = found.ok_or(NoType::UnknownVariable)?;
                let (to, is_array) = self.debug.element(of);
                let offset = (at.wrapping_sub(start) as i64).wrapping_add(by);
                (to, offset, stepped || is_array)
            }
            Value::Stack(offset) => {
                let (of, within) = self.on_stack(ip, offset, state).ok_or(NoType::Stack)?;
                let (to, _) = self.debug.element(of);
                (to, within.wrapping_add(by), true)
            }
            Value::Untyped { is_void: true, .. } => return Err(NoType::VoidPointer),
            Value::Untyped { .. } => return Err(NoType::NoVariable),
            Value::Unknown | Value::Null | Value::Number(_) => return Err(NoType::NoVariable),
        };
        self.data_access(to, offset, stepped)
    }

    fn data_access(
        &mut self,
        to: TypeRef,
        offset: i64,
        stepped: bool,
    ) -> Result<DataAccess, NoType> {
        let bytes = self.debug.signed_bytes(to);
        if matches!(
            *self.debug.type_at(to),
            Type::Unknown | Type::Function { .. }
        ) || bytes == 0
        {
            return Err(NoType::VoidPointer);
        }
        let is_record = matches!(*self.debug.type_at(to), Type::Record(_));
        let flat = self.debug.flat(to);
        let offset = match offset {
            0.. if offset < bytes || flat.is_open_at(offset as u64) => offset as u64,
            _ if stepped || !is_record => offset.rem_euclid(bytes) as u64,
            _ => return Err(NoType::OutsideType),
        };
        let member = flat.member_at(offset);
        let listed = member.and_then(|member| flat.data_type.members.get(member));
        let is_in_array = listed.is_some_and(|member| member.name.contains("[]"));
        Ok(DataAccess {
            member,
            offset: (!(stepped && is_in_array)).then_some(offset),
            of: std::rc::Rc::clone(&flat.data_type),
        })
    }

    /// Type of a variable on the stack that a store initialises just before its scope begins.
    fn declared_next(&mut self, at: usize, memory: &UsedMemory, state: &FlowState) -> Value {
        let ip = self.steps[at].instruction.ip();
        let Value::Stack(slot) = self.address(memory, state) else {
            return Value::Unknown;
        };
        let starts = self
            .info
            .locations
            .iter()
            .map(|location| location.range.start);
        let next = starts
            .filter(|start| (ip..=ip + MAX_BYTES_TO_SCOPE).contains(start))
            .min();
        let found = next.and_then(|start| self.on_stack(start, slot, state));
        found.map_or(Value::Unknown, |(of, within)| {
            u64::try_from(within).map_or(Value::Unknown, |within| self.pointer(of, within, 0))
        })
    }

    /// The variable on the stack at an offset from the canonical frame address, and the offset in
    /// it. If there are several, the smallest.
    fn on_stack(&mut self, ip: u64, at: i64, state: &FlowState) -> Option<(TypeRef, i64)> {
        let mut best: Option<(u64, TypeRef, i64)> = None;
        for location in self.info.locations.iter().filter(|l| l.range.contains(&ip)) {
            let start = match location.place {
                ValueLocation::Frame(offset) => offset,
                ValueLocation::Memory { register, offset } => {
                    let register = BY_DWARF_NUMBER.get(usize::from(register));
                    match register.map(|&register| state.registers[register]) {
                        Some(Value::Stack(base)) => base.wrapping_add(offset),
                        _ => continue,
                    }
                }
                _ => continue,
            };
            let within = at.wrapping_sub(start);
            let bytes = self.debug.bytes(location.of);
            let holds = within >= 0 && (within as u64) < bytes.saturating_sub(location.part);
            if holds && best.is_none_or(|(known, _, _)| bytes < known) {
                best = Some((
                    bytes,
                    location.of,
                    within.wrapping_add(location.part as i64),
                ));
            }
        }
        best.map(|(_, of, within)| (of, within))
    }

    /// Value that a load of 8 bytes yields.
    fn loaded(&mut self, at: usize, memory: &UsedMemory, state: &FlowState) -> Value {
        let value = self.known_load(at, memory, state);
        self.originating(value, at)
    }

    /// A value without a type is that of the instruction.
    fn originating(&self, value: Value, at: usize) -> Value {
        let of_this = |is_void| Value::Untyped {
            origin: self.steps[at].instruction.ip(),
            offset: 0,
            stepped: false,
            is_void,
        };
        match value {
            Value::Unknown => of_this(false),
            Value::Untyped { origin: 0, .. } => of_this(true),
            known => known,
        }
    }

    fn known_load(&mut self, at: usize, memory: &UsedMemory, state: &FlowState) -> Value {
        match self.address(memory, state) {
            // The block at the thread pointer begins with its own address.
            Value::Address { at, stepped } if Some(at) == self.thread_pointer => {
                return Value::Address { at, stepped };
            }
            Value::Stack(slot) if state.slots.contains_key(&slot) => return state.slots[&slot],
            _ => {}
        }
        self.declared(at, memory, state)
    }

    /// Value that the declared type of the data at an operand gives.
    fn declared(&mut self, at: usize, memory: &UsedMemory, state: &FlowState) -> Value {
        let ip = self.steps[at].instruction.ip();
        let (address, by) = self.indexed_address(memory, state);
        let (of, offset) = match address {
            Value::Stack(slot) => match self.on_stack(ip, slot, state) {
                Some((of, within)) => (of, within),
                None => return Value::Unknown,
            },
            Value::Pointer {
                to,
                offset,
                stepped,
            } => {
                let bytes = self.debug.signed_bytes(to);
                match stepped && bytes > 0 {
                    true if self.debug.flat(to).is_open_at(offset.max(0) as u64) => (to, offset),
                    true => (to, offset.rem_euclid(bytes)),
                    false => (to, offset),
                }
            }
            Value::Address { at, .. } => match self.debug.variable_at(ip, at, None) {
                Some((of, start)) => (of, (at.wrapping_sub(start) as i64).wrapping_add(by)),
                None => return Value::Unknown,
            },
            _ => return Value::Unknown,
        };
        match u64::try_from(offset) {
            Ok(offset) => self.pointer(of, offset, 0),
            Err(_) => Value::Unknown,
        }
    }

    /// Value of an operand that is a register or a constant.
    fn operand(&mut self, at: usize, number: u32, state: &FlowState) -> Value {
        let instruction = self.steps[at].instruction;
        match instruction.op_kind(number) {
            OpKind::Register => {
                let register = instruction.op_register(number);
                match general(register) {
                    Some(register_number) if register.is_gpr64() => {
                        state.registers[register_number]
                    }
                    _ => Value::Unknown,
                }
            }
            OpKind::Memory => match self.steps[at].memory {
                Some(memory) if memory.memory_size().size() == 8 => self.loaded(at, &memory, state),
                _ => Value::Unknown,
            },
            kind if is_immediate(kind) => match instruction.immediate(number) {
                0 => Value::Null,
                value if value as i64 >= LOWEST_ADDRESS => Value::Address {
                    at: value,
                    stepped: false,
                },
                _ => Value::Unknown,
            },
            _ => Value::Unknown,
        }
    }

    /// Changes the state as an instruction does.
    fn execute(&mut self, at: usize, state: &mut FlowState) {
        let instruction = self.steps[at].instruction;
        match instruction.mnemonic() {
            Mnemonic::Call => return self.call(&instruction, at, state),
            Mnemonic::Push => {
                let value = self.operand(at, 0, state);
                state.registers[RSP] = shifted(state.registers[RSP], -8, false);
                if let Value::Stack(slot) = state.registers[RSP] {
                    set_slot(state, slot, value, 8);
                }
                return;
            }
            Mnemonic::Pop => {
                let value = match state.registers[RSP] {
                    Value::Stack(slot) => state.slots.get(&slot).copied().unwrap_or_default(),
                    _ => Value::Unknown,
                };
                let stack = shifted(state.registers[RSP], 8, false);
                self.forget_written(at, state);
                if let Some(register) = target(&instruction) {
                    state.registers[register] = value;
                }
                state.registers[RSP] = stack;
                return;
            }
            Mnemonic::Leave => {
                let frame = state.registers[5];
                self.forget_written(at, state);
                state.registers[RSP] = shifted(frame, 8, false);
                return;
            }
            _ => {}
        }
        if instruction.op0_kind() == OpKind::Memory {
            self.store(at, state);
        }
        let Some(register) = target(&instruction) else {
            return self.forget_written(at, state);
        };
        let old = state.registers[register];
        let is_wide = instruction.op0_register().is_gpr64();
        let value = match instruction.mnemonic() {
            Mnemonic::Mov if is_wide => self.operand(at, 1, state),
            // A 32-bit move of a constant clears the upper half.
            Mnemonic::Mov if is_immediate(instruction.op1_kind()) => self.operand(at, 1, state),
            Mnemonic::Lea if is_wide => self.effective_address(&instruction, state),
            Mnemonic::Xor if instruction.op0_register() == instruction.op1_register() => {
                Value::Null
            }
            Mnemonic::Add if is_wide => match immediate(&instruction) {
                Some(by) => self.advanced(old, by),
                None => sum(old, self.operand(at, 1, state)),
            },
            Mnemonic::Sub if is_wide => match immediate(&instruction) {
                Some(by) => self.advanced(old, by.wrapping_neg()),
                None => match (old, self.operand(at, 1, state)) {
                    (old, by) if is_number(by) && by != Value::Null => {
                        indexed(old, constant(by).wrapping_neg())
                    }
                    _ => Value::Unknown,
                },
            },
            Mnemonic::Shl if is_wide => match immediate(&instruction) {
                Some(by @ 0..64) => number(constant(old).wrapping_shl(by as u32)),
                _ => Value::Unknown,
            },
            Mnemonic::Imul if is_wide && instruction.op_count() == 3 => {
                let factor = instruction.immediate(2) as i64;
                number(constant(self.operand(at, 1, state)).wrapping_mul(factor))
            }
            Mnemonic::Inc if is_wide => self.advanced(old, 1),
            Mnemonic::Dec if is_wide => self.advanced(old, -1),
            // Pointers with flags in their lowest bits.
            Mnemonic::And if is_wide => match immediate(&instruction) {
                Some(-4096..=-2) if !matches!(old, Value::Stack(_)) => old,
                _ => Value::Unknown,
            },
            // The only instructions with a condition and such an operand are conditional moves.
            _ if is_wide && instruction.condition_code() != ConditionCode::None => {
                let other = self.operand(at, 1, state);
                self.meet_values(old, other)
            }
            _ => Value::Unknown,
        };
        self.forget_written(at, state);
        state.registers[register] = value;
    }

    /// A pointer plus a number. Steps by whole elements stay at the start of one.
    fn advanced(&mut self, value: Value, by: i64) -> Value {
        if let Value::Pointer {
            to,
            offset,
            stepped,
        } = value
        {
            let bytes = self.debug.signed_bytes(to);
            if bytes > 0 && by % bytes == 0 {
                return Value::Pointer {
                    to,
                    offset,
                    stepped: true,
                };
            }
            let offset = offset.wrapping_add(by);
            return Value::Pointer {
                to,
                offset,
                stepped,
            };
        }
        shifted(value, by, false)
    }

    fn effective_address(&mut self, instruction: &Instruction, state: &FlowState) -> Value {
        let displacement = instruction.memory_displacement64();
        if instruction.is_ip_rel_memory_operand() {
            return Value::Address {
                at: displacement,
                stepped: false,
            };
        }
        let value_of = |register| general(register).map(|number| state.registers[number]);
        let displacement = displacement as i64;
        let base = value_of(instruction.memory_base());
        let index = value_of(instruction.memory_index());
        match (base, index) {
            (Some(base), None) => self.advanced(base, displacement),
            (Some(base), Some(index)) if instruction.memory_index_scale() == 1 => {
                shifted(sum(base, index), displacement, false)
            }
            (Some(base), Some(index)) => {
                let by = scaled(index, instruction.memory_index_scale());
                shifted(indexed(base, by), displacement, false)
            }
            (None, Some(index)) if instruction.memory_index_scale() == 1 => {
                shifted(index, displacement, false)
            }
            (None, Some(_)) if displacement >= LOWEST_ADDRESS => Value::Address {
                at: displacement as u64,
                stepped: true,
            },
            (None, Some(index)) => {
                let by = scaled(index, instruction.memory_index_scale());
                number(by.wrapping_add(displacement))
            }
            _ => Value::Unknown,
        }
    }

    fn store(&mut self, at: usize, state: &mut FlowState) {
        let Some(memory) = self.steps[at].memory else {
            return;
        };
        let is_move = self.steps[at].instruction.mnemonic() == Mnemonic::Mov;
        let bytes = memory.memory_size().size();
        let value = match is_move && bytes == 8 {
            true => self.stored(at, &memory, state),
            false => Value::Unknown,
        };
        if let Value::Stack(slot) = self.address(&memory, state) {
            set_slot(state, slot, value, bytes as i64);
        }
    }

    /// The value that a move stores. A register without a type gets that of the pointer that it is
    /// stored in, such as fresh memory that becomes an element of an array.
    fn stored(&mut self, at: usize, memory: &UsedMemory, state: &mut FlowState) -> Value {
        let value = self.operand(at, 1, state);
        let is_on_stack = matches!(self.address(memory, state), Value::Stack(_));
        let source = general(self.steps[at].instruction.op1_register());
        let (Some(source), true) = (
            source,
            matches!(value, Value::Untyped { .. }) || is_on_stack && value == Value::Unknown,
        ) else {
            return value;
        };
        let declared = match self.declared(at, memory, state) {
            Value::Unknown => self.declared_next(at, memory, state),
            known => known,
        };
        if !matches!(declared, Value::Pointer { .. }) || self.rank(declared) <= self.rank(value) {
            return value;
        }
        if let Value::Untyped { origin, offset, .. } = value {
            give_type(state, (origin, offset), declared);
        }
        state.registers[source] = declared;
        declared
    }

    fn call(&mut self, instruction: &Instruction, at: usize, state: &mut FlowState) {
        let returned = self.info.returned.get(&instruction.next_ip()).copied();
        let returned = returned.or_else(|| self.returned_by_pointer(at, state));
        for register in CLOBBERED {
            state.registers[register] = Value::Unknown;
        }
        let value = returned.map_or(Value::Unknown, |of| self.pointer(of, 0, 0));
        state.registers[0] = self.originating(value, at);
    }

    /// Type that a call through a pointer in memory returns.
    fn returned_by_pointer(&mut self, at: usize, state: &FlowState) -> Option<TypeRef> {
        let memory = self.steps[at].memory?;
        if self.steps[at].instruction.op0_kind() != OpKind::Memory {
            return None;
        }
        match self.loaded(at, &memory, state) {
            Value::Pointer { to, offset: 0, .. } => match *self.debug.type_at(to) {
                Type::Function { returns } => returns,
                _ => None,
            },
            _ => None,
        }
    }

    fn forget_written(&self, at: usize, state: &mut FlowState) {
        for &register in &self.steps[at].written {
            state.registers[register] = Value::Unknown;
        }
    }
}

/// The general register that an instruction's first operand is, if it writes it.
fn target(instruction: &Instruction) -> Option<usize> {
    let is_register = instruction.op_count() > 0 && instruction.op0_kind() == OpKind::Register;
    let reads_only = matches!(
        instruction.mnemonic(),
        Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Bt | Mnemonic::Push
    );
    (is_register && !reads_only)
        .then(|| general(instruction.op0_register()))
        .flatten()
}

fn immediate(instruction: &Instruction) -> Option<i64> {
    is_immediate(instruction.op1_kind()).then(|| instruction.immediate(1) as i64)
}

fn is_immediate(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Immediate8
            | OpKind::Immediate16
            | OpKind::Immediate32
            | OpKind::Immediate64
            | OpKind::Immediate8to16
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32to64
    )
}

/// Gives the type of a value to all copies of it. The value is `offset` behind what the
/// instruction at `origin` yielded.
fn give_type(state: &mut FlowState, (origin, offset): (u64, i64), value: Value) {
    let copies = state.registers.iter_mut().chain(state.slots.values_mut());
    for copy in copies {
        if let Value::Untyped {
            origin: of_copy,
            offset: at,
            stepped,
            ..
        } = *copy
            && of_copy == origin
            && origin != 0
        {
            *copy = shifted(value, at.wrapping_sub(offset), stepped);
        }
    }
}

/// A value plus a constant, and with `stepped` an unknown index.
fn shifted(value: Value, by: i64, indexed: bool) -> Value {
    match value {
        Value::Pointer {
            to,
            offset,
            stepped,
        } => Value::Pointer {
            to,
            offset: offset.wrapping_add(by),
            stepped: stepped || indexed,
        },
        Value::Address { at, stepped } => Value::Address {
            at: at.wrapping_add_signed(by),
            stepped: stepped || indexed,
        },
        Value::Stack(offset) => Value::Stack(offset.wrapping_add(by)),
        Value::Untyped {
            origin,
            offset,
            stepped,
            is_void,
        } => Value::Untyped {
            origin,
            offset: offset.wrapping_add(by),
            stepped: stepped || indexed,
            is_void,
        },
        Value::Null | Value::Unknown => number(by),
        Value::Number(known) => number(known.wrapping_add(by)),
    }
}

/// An unknown number plus a constant.
fn number(constant: i64) -> Value {
    match constant {
        0 => Value::Unknown,
        constant => Value::Number(constant),
    }
}

/// True for values that are no addresses as far as is known.
fn is_number(value: Value) -> bool {
    matches!(
        value,
        Value::Unknown | Value::Null | Value::Number(_) | Value::Untyped { is_void: false, .. }
    )
}

/// True for numbers that may not even be a pointer without a type.
fn is_plain(value: Value) -> bool {
    matches!(value, Value::Unknown | Value::Number(_))
}

/// The known part of a number.
fn constant(value: Value) -> i64 {
    match value {
        Value::Number(constant) => constant,
        Value::Untyped {
            offset,
            is_void: false,
            ..
        } => offset,
        _ => 0,
    }
}

/// The known part of an index in bytes.
fn scaled(index: Value, scale: u32) -> i64 {
    constant(index).wrapping_mul(i64::from(scale))
}

/// A value plus an index with a known part. Variables are found by their address without an index.
fn indexed(value: Value, by: i64) -> Value {
    match value {
        Value::Address { .. } | Value::Stack(_) => shifted(value, 0, true),
        value => shifted(value, by, true),
    }
}

/// A pointer plus an index, whichever of them is the pointer.
fn sum(a: Value, b: Value) -> Value {
    let is_pointer = |value| {
        matches!(
            value,
            Value::Pointer { .. } | Value::Address { .. } | Value::Untyped { is_void: true, .. }
        )
    };
    match (is_pointer(a), is_pointer(b)) {
        // A large constant may look like an address.
        (true, true) if matches!((a, b), (Value::Pointer { .. }, Value::Address { .. })) => {
            shifted(a, 0, true)
        }
        (true, false) => indexed(a, constant(b)),
        (false, true) => indexed(b, constant(a)),
        _ => match (a, b) {
            (Value::Untyped { .. }, by) | (by, Value::Untyped { .. }) if is_plain(by) => {
                let value = if is_plain(a) { b } else { a };
                indexed(value, constant(by))
            }
            (Value::Stack(_), by) if is_plain(by) => a,
            (by, Value::Stack(_)) if is_plain(by) => b,
            (a, b) if is_plain(a) && is_plain(b) => number(constant(a).wrapping_add(constant(b))),
            _ => Value::Unknown,
        },
    }
}

/// Stores a value on the stack, over what was there.
fn set_slot(state: &mut FlowState, slot: i64, value: Value, bytes: i64) {
    let covered: Vec<i64> = state
        .slots
        .range(slot.saturating_sub(7)..slot.saturating_add(bytes))
        .map(|(&at, _)| at)
        .collect();
    for at in covered {
        state.slots.remove(&at);
    }
    if value != Value::Unknown && state.slots.len() < MAX_SLOTS {
        state.slots.insert(slot, value);
    }
}
