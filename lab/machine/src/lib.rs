//! The modelled machine (`crates/machine`) for callers in C: `machine.h` is its twin.
//!
//! Cores and their shared cache. Addresses are physical, as the guest's processes and
//! its kernel share the caches.
use std::ffi::{CStr, c_char};

use memgauge_machine::DataSource;
use memgauge_machine::{AccessKind, CacheConfig, Config, CoreId, Machine, PmuConfig};

/// The machine.
pub struct LabMachine {
    machine: Machine,
    config: Config,
}

/// What one access did. `source` is 1 to 4 for L1D, L2, LLC and memory.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct LabOutcome {
    pub latency_cycles: u32,
    pub l1d_misses: u16,
    pub l2_misses: u16,
    pub llc_misses: u16,
    pub dtlb_misses: u16,
    pub walks: u16,
    pub source: u16,
}

/// What a device's access to one line did.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct LabDeviceOutcome {
    pub missed: u8,
    pub writebacks: u8,
}

/// A machine of this name, or null.
///
/// # Safety
/// `name` points to a string that ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lab_machine_new(name: *const c_char) -> *mut LabMachine {
    // SAFETY: the caller passes a string.
    let name = unsafe { CStr::from_ptr(name) };
    let config = name.to_str().ok().and_then(Config::preset);
    let made = config.and_then(|config| {
        let machine = Machine::new(config.clone(), PmuConfig::default()).ok()?;
        Some(LabMachine { machine, config })
    });
    made.map_or(std::ptr::null_mut(), |made| Box::into_raw(Box::new(made)))
}

/// The number of a new core, which the other calls take.
///
/// # Safety
/// `lab` comes from [`lab_machine_new`] and is used by one thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lab_machine_add_core(lab: *mut LabMachine) -> u32 {
    // SAFETY: the caller passes a machine of ours, from one thread.
    let lab = unsafe { &mut *lab };
    lab.machine.add_core(0).0
}

/// Size and ways of a level: 1 to 3 for L1D, L2 and LLC.
///
/// # Safety
/// `lab` comes from [`lab_machine_new`]; the other pointers can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lab_machine_level(
    lab: *const LabMachine,
    level: u32,
    bytes: *mut u64,
    ways: *mut u32,
) {
    // SAFETY: the caller passes a machine of ours.
    let config = unsafe { &(*lab).config };
    let cache: &CacheConfig = match level {
        1 => &config.l1d,
        2 => &config.l2,
        _ => &config.llc,
    };
    // SAFETY: the caller passes places to write to.
    unsafe {
        *bytes = cache.size_bytes;
        *ways = cache.ways;
    }
}

/// Whether there is a level between the first and the last, and not a stand-in for it.
///
/// # Safety
/// `lab` comes from [`lab_machine_new`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lab_machine_has_l2(lab: *const LabMachine) -> bool {
    // SAFETY: the caller passes a machine of ours.
    unsafe { &(*lab).config }.has_l2()
}

/// One access of a core: `store` is 0 for a load.
///
/// # Safety
/// `lab` comes from [`lab_machine_new`] and is used by one thread at a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lab_machine_access(
    lab: *mut LabMachine,
    core: u32,
    address: u64,
    size: u32,
    store: u32,
) -> LabOutcome {
    // SAFETY: the caller passes a machine of ours, from one thread.
    let lab = unsafe { &mut *lab };
    let (core, shared) = lab.machine.core_mut(CoreId(core));
    let kind = if store == 0 {
        AccessKind::Load
    } else {
        AccessKind::Store
    };
    let out = core.access(shared, address, size, kind);
    LabOutcome {
        latency_cycles: out.latency_cycles,
        l1d_misses: out.l1d_misses,
        l2_misses: out.l2_misses,
        llc_misses: out.llc_misses,
        dtlb_misses: out.dtlb_misses,
        walks: out.walks,
        source: match out.source {
            DataSource::L1d => 1,
            DataSource::L2 => 2,
            DataSource::Llc => 3,
            DataSource::Dram => 4,
            _ => 0,
        },
    }
}

/// Counts one instruction of a core, with its loads and stores.
///
/// # Safety
/// As for [`lab_machine_access`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lab_machine_retire(
    lab: *mut LabMachine,
    core: u32,
    loads: u32,
    stores: u32,
) {
    // SAFETY: the caller passes a machine of ours, from one thread.
    let lab = unsafe { &mut *lab };
    let (core, _) = lab.machine.core_mut(CoreId(core));
    core.retire(1, loads, stores, 0);
}

/// Cycles of the core since the start.
///
/// # Safety
/// `lab` comes from [`lab_machine_new`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lab_machine_cycles(lab: *const LabMachine, core: u32) -> u64 {
    // SAFETY: the caller passes a machine of ours.
    let lab = unsafe { &*lab };
    let counts = lab.machine.core(CoreId(core)).counts();
    counts.get(memgauge_trace::catalogue::CYCLES)
}

/// Bytes that a core read from memory and wrote to it since the start, by its own
/// accesses and because lines were taken from it.
///
/// # Safety
/// As for [`lab_machine_access`]; the other pointers can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lab_machine_traffic(
    lab: *mut LabMachine,
    core: u32,
    read: *mut u64,
    written: *mut u64,
) {
    // SAFETY: the caller passes a machine of ours, from one thread.
    let lab = unsafe { &mut *lab };
    // Lines that the shared cache lost meanwhile are written now.
    let counts = lab.machine.core_mut(CoreId(core)).0.counts();
    // SAFETY: the caller passes places to write to.
    unsafe {
        *read = counts.get(memgauge_trace::catalogue::DRAM_READ_BYTES);
        *written = counts.get(memgauge_trace::catalogue::DRAM_WRITE_BYTES);
    }
}

/// A device reads or writes the line that holds `address`; `store` is 0 for a read.
///
/// # Safety
/// As for [`lab_machine_access`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lab_machine_device(
    lab: *mut LabMachine,
    address: u64,
    store: u32,
) -> LabDeviceOutcome {
    // SAFETY: the caller passes a machine of ours, from one thread.
    let lab = unsafe { &mut *lab };
    let out = lab.machine.device_access(address, store != 0);
    LabDeviceOutcome {
        missed: u8::from(out.missed),
        writebacks: out.writebacks,
    }
}
