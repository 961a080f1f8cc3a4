//! Checks for `memgauge doctor`: whether programs can be emulated on this machine.

use std::path::Path;

use memgauge_host::checks::{Check, fact, verdict};
use memgauge_host::sys::process::free_bytes;

use crate::engine::launch::Emulator;
use crate::engine::session::SHARED_MEMORY_BYTES;
use crate::model::geometry;

/// Caches of this machine, from which the model of it is made.
pub fn caches() -> Check {
    let machine = geometry::host();
    let caches = [
        ("L1D", machine.l1d),
        ("L2", machine.l2),
        ("LLC", machine.llc),
    ];
    let described =
        caches.map(|(name, c)| format!("{name} {} KiB {}-way", c.size_bytes / 1024, c.ways));
    fact("caches", described.join(", "))
}

/// Tries the emulator, and the room for the memory that it shares with memgauge.
pub fn checks() -> Vec<Check> {
    vec![emulator(), shared_memory()]
}

fn emulator() -> Check {
    let tried = Emulator::find().and_then(|e| e.try_out().map(|()| e));
    match tried {
        Ok(e) => verdict(
            "emulator",
            true,
            match e.pinned {
                true => format!("memgauge's engine (QEMU {})", e.version),
                false => format!(
                    "memgauge's engine (QEMU {}), built from later sources than the pinned ones",
                    e.version
                ),
            },
            "",
        ),
        Err(e) => Check {
            name: "emulator",
            ok: Some(false),
            found: "cannot record".to_owned(),
            fix: Some(e.to_string()),
        },
    }
}

fn shared_memory() -> Check {
    let free = free_bytes(Path::new("/dev/shm")).unwrap_or(0);
    let found = format!("{} MiB free in /dev/shm", free >> 20);
    verdict(
        "shared memory",
        free >= SHARED_MEMORY_BYTES,
        found,
        "mount a larger /dev/shm (a slower TMPDIR is used instead)",
    )
}
