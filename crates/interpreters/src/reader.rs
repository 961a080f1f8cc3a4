//! The loaded BPF program.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;

use libbpf_rs::{MapCore as _, MapFlags, Object, ObjectBuilder};

use crate::cpython::Interpreter;
use crate::layout::interpreter;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/python.bpf.o"));

const BTF: &str = "/sys/kernel/btf/vmlinux";
/// Inode of the first PID namespace (`PROC_PID_INIT_INO`).
const FIRST_NAMESPACE: u64 = 0xeffffffc;

/// Reads frames at samples.
#[derive(Debug)]
pub struct FrameReader {
    object: Object,
    program: OwnedFd,
}

/// Records that the program could not write because a ring was full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LostRecords {
    /// Samples without frames.
    pub frames: u64,
    /// Code objects.
    pub code: u64,
}

impl FrameReader {
    /// Loads the program.
    ///
    /// # Errors
    /// The machine, the kernel or the permissions of this process do not allow it. The message says
    /// why.
    pub fn load() -> Result<FrameReader, String> {
        if !cfg!(target_arch = "x86_64") {
            return Err("memgauge knows only the interpreters of x86-64".to_owned());
        }
        if !fs::exists(BTF).unwrap_or(false) {
            return Err(format!(
                "the kernel has no `{BTF}`; it needs CONFIG_DEBUG_INFO_BTF"
            ));
        }
        // Messages of libbpf do not belong in the output.
        let previous = libbpf_rs::set_print(None);
        let loaded = ObjectBuilder::default()
            .name("memgauge_python")
            .and_then(|builder| builder.open_memory(OBJECT))
            .and_then(libbpf_rs::OpenObject::load);
        libbpf_rs::set_print(previous);
        let object = loaded.map_err(|e| match e.kind() {
            libbpf_rs::ErrorKind::PermissionDenied if !rustix::process::geteuid().is_root() => {
                "this user may not load BPF programs; run as root, or with CAP_BPF and CAP_PERFMON"
                    .to_owned()
            }
            _ => format!("the kernel refused the BPF program: {e}"),
        })?;
        let failed = |e: io::Error| format!("failed to set up the BPF program: {e}");
        let program = object.progs().find(|program| program.name() == "sample");
        let program = program.ok_or(io::ErrorKind::NotFound.into());
        let program = program.and_then(|program| program.as_fd().try_clone_to_owned());
        let program = program.map_err(failed)?;
        let reader = FrameReader { object, program };
        reader.set_namespace().map_err(failed)?;
        Ok(reader)
    }

    /// The program, to be attached to events.
    pub fn program(&self) -> &OwnedFd {
        &self.program
    }

    /// Lets samples on a CPU write their frames through this event.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn set_ring(&self, cpu: u32, event: &OwnedFd) -> io::Result<()> {
        let event = event.as_raw_fd() as u32;
        self.update(
            "rings",
            &cpu.to_ne_bytes(),
            &event.to_ne_bytes(),
            MapFlags::ANY,
        )
    }

    /// Reads frames in a process that has mapped the interpreter, with addresses at this distance
    /// from those in its file.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn add_process(&self, pid: u32, python: &Interpreter, bias: u64) -> io::Result<()> {
        let value = interpreter(python.runtime(bias), python.minor, &python.offsets);
        self.update("processes", &pid.to_ne_bytes(), &value, MapFlags::ANY)
    }

    /// Records that were lost so far.
    pub fn lost(&self) -> LostRecords {
        let values = self
            .map("lost")
            .and_then(|map| {
                map.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)
                    .map_err(io::Error::other)
            })
            .ok()
            .flatten();
        let mut lost = LostRecords::default();
        for value in values.unwrap_or_default() {
            let word = |at: usize| {
                let word = value.get(at..).and_then(|bytes| bytes.first_chunk::<8>());
                word.map_or(0, |word| u64::from_ne_bytes(*word))
            };
            lost.frames += word(0);
            lost.code += word(8);
        }
        lost
    }

    /// Tells the program how this process numbers others, if it is in an inner namespace.
    fn set_namespace(&self) -> io::Result<()> {
        let namespace = fs::metadata("/proc/self/ns/pid")?;
        if namespace.ino() == FIRST_NAMESPACE {
            return Ok(());
        }
        let mut value = [0; 16];
        value[..8].copy_from_slice(&namespace.dev().to_ne_bytes());
        value[8..].copy_from_slice(&namespace.ino().to_ne_bytes());
        self.update("settings", &0u32.to_ne_bytes(), &value, MapFlags::ANY)
    }

    fn update(&self, map: &str, key: &[u8], value: &[u8], flags: MapFlags) -> io::Result<()> {
        self.map(map)?
            .update(key, value, flags)
            .map_err(io::Error::other)
    }

    fn map(&self, name: &str) -> io::Result<libbpf_rs::Map<'_>> {
        let found = self.object.maps().find(|map| map.name() == name);
        found.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }
}
