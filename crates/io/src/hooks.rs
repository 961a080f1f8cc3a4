//! Kernel hooks of the BPF programs, and what is missing without them.
//!
//! Kernels differ. If a hook is missing, another program may stand in for it. Otherwise a sentence
//! in the recording says what is not accounted. The kernel's type information (BTF) lists
//! tracepoints and functions by name. It is searched as text, which takes a millisecond for its
//! five megabytes.

use std::collections::BTreeMap;
use std::path::Path;

/// A program and its hook.
pub(super) struct Hook {
    pub(super) program: &'static str,
    /// Name in BTF, with `MODULE/` in front if a module can have it. `None` for hooks that every
    /// kernel has.
    pub(super) target: Option<&'static str>,
    /// The program that this one stands in for.
    pub(super) instead_of: Option<&'static str>,
    /// Loss of accuracy when this program stands in for the other.
    pub(super) drawback: Option<&'static str>,
    /// Loss without this program and without the one it stands in for.
    pub(super) without: &'static str,
    /// Accounting is impossible without it.
    pub(super) required: bool,
    /// Attach it when the first UDP socket appears, because its hook also runs for all other
    /// sockets.
    pub(super) deferred: bool,
}

const fn hook(program: &'static str, target: &'static str, without: &'static str) -> Hook {
    Hook {
        program,
        target: Some(target),
        instead_of: None,
        drawback: None,
        without,
        required: false,
        deferred: false,
    }
}

const fn always_available(program: &'static str, without: &'static str) -> Hook {
    Hook {
        program,
        target: None,
        instead_of: None,
        drawback: None,
        without,
        required: false,
        deferred: false,
    }
}

impl Hook {
    const fn required(mut self) -> Hook {
        self.required = true;
        self
    }

    const fn deferred(mut self) -> Hook {
        self.deferred = true;
        self
    }

    const fn instead_of(mut self, program: &'static str) -> Hook {
        self.instead_of = Some(program);
        self
    }

    const fn with_drawback(mut self, drawback: &'static str) -> Hook {
        self.drawback = Some(drawback);
        self
    }
}

const ONE_WRITER: &str =
    "bytes that several processes send through one socket go to the last known one";
const SENT: &str = "packets sent are not accounted";
const DATAGRAMS: &str = "datagrams received are not attributed";

/// Every program, with the kernel version that introduced its hook where it matters.
pub(super) const HOOKS: &[Hook] = &[
    hook(
        "request_queued",
        "btf_trace_block_bio_queue",
        "disks are not accounted",
    )
    .required(),
    // 5.18
    hook(
        "folio_dirtied",
        "btf_trace_writeback_dirty_folio",
        "buffered writes are attributed to the process that writes them back",
    ),
    hook(
        "ext4_delayed_write",
        "ext4/btf_trace_ext4_da_write_end",
        "an ext4 page that is already dirty stays with its first writer",
    ),
    hook(
        "ext4_write",
        "ext4/btf_trace_ext4_write_end",
        "an ext4 page that is already dirty stays with its first writer",
    ),
    hook(
        "iomap_write",
        "iomap/btf_trace_iomap_iter",
        "an xfs page that is already dirty stays with its first writer",
    ),
    always_available("packet_arrived", "packets received are not accounted"),
    hook("packet_queued", "btf_trace_net_dev_queue", SENT),
    // Kernels without CONFIG_KALLSYMS_ALL
    hook("packet_queued_unaware", "btf_trace_net_dev_queue", SENT)
        .instead_of("packet_queued")
        .with_drawback("datagrams held back for a neighbour's address may go to another process"),
    hook(
        "stream_read",
        "btf_trace_tcp_rcv_space_adjust",
        "bytes received over TCP go to the process that sends on the socket",
    ),
    // 6.16
    hook("stream_write", "btf_trace_tcp_sendmsg_locked", ONE_WRITER),
    hook("stream_write_entry", "tcp_sendmsg_locked", ONE_WRITER).instead_of("stream_write"),
    // 6.3
    hook("datagram_read", "btf_trace_sock_recv_length", DATAGRAMS).deferred(),
    hook("datagram_read_ipv4", "udp_recvmsg", DATAGRAMS).instead_of("datagram_read"),
    hook("datagram_read_ipv6", "udpv6_recvmsg", DATAGRAMS).instead_of("datagram_read"),
    hook(
        "datagram_dropped",
        "btf_trace_udp_fail_queue_rcv_skb",
        "datagrams dropped by full sockets are accounted late",
    ),
    hook(
        "stream_ended",
        "btf_trace_tcp_destroy_sock",
        "the last packets of a TCP connection are not attributed",
    ),
    always_available("bound_ipv4", "handshakes of listeners are not attributed"),
    always_available("bound_ipv6", "handshakes of listeners are not attributed"),
    always_available(
        "released",
        "the last packets of a UDP socket are not attributed",
    ),
    always_available(
        "seed",
        "handshakes of a listener older than this run go to the first process that uses one \
         of its connections",
    ),
    always_available(
        "read_slots",
        "bytes of an open TCP connection are accounted only when it ends",
    ),
    always_available(
        "read_out",
        "bytes of an open UDP socket, and of a TCP connection beyond some 8000, are accounted \
         only when it ends",
    ),
];

/// Programs to load. Each omitted program has a sentence about what is missing without it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct HookChoice {
    pub(super) load: Vec<&'static str>,
    pub(super) missing: BTreeMap<&'static str, &'static str>,
}

/// Chooses programs by the hooks that the kernel `has`. Programs in `refused` failed to load.
pub(super) fn choose(has: &dyn Fn(&str) -> bool, refused: &[String]) -> HookChoice {
    let available = |hook: &Hook| {
        !refused.iter().any(|program| program == hook.program) && hook.target.is_none_or(has)
    };
    let mut choice = HookChoice::default();
    for hook in HOOKS {
        let is_replaced = hook.instead_of.is_some_and(|p| choice.load.contains(&p));
        if is_replaced {
            continue;
        }
        if available(hook) {
            choice.load.push(hook.program);
        } else {
            choice.missing.insert(hook.program, hook.without);
        }
    }
    resolve_stand_ins(&mut choice);
    choice
}

/// Nothing is missing if a stand-in replaces a program, except the drawback of the stand-in.
fn resolve_stand_ins(choice: &mut HookChoice) {
    for hook in HOOKS {
        if let Some(first) = hook.instead_of
            && choice.load.contains(&hook.program)
        {
            choice.missing.remove(first);
            if let Some(drawback) = hook.drawback {
                choice.missing.insert(hook.program, drawback);
            }
        }
    }
}

/// The kernel's type information as searchable text.
pub(super) struct KernelTypes {
    texts: BTreeMap<&'static str, Vec<u8>>,
}

impl KernelTypes {
    /// Reads the type information of the kernel and of its file-system modules in `dir`, usually
    /// `/sys/kernel/btf`.
    pub(super) fn read(dir: &Path) -> std::io::Result<KernelTypes> {
        let mut texts = BTreeMap::from([("vmlinux", std::fs::read(dir.join("vmlinux"))?)]);
        for module in ["ext4", "iomap"] {
            if let Ok(text) = std::fs::read(dir.join(module)) {
                texts.insert(module, text);
            }
        }
        Ok(KernelTypes { texts })
    }

    /// Returns true if a tracepoint or function of this name exists.
    pub(super) fn has(&self, target: &str) -> bool {
        let (module, name) = target.split_once('/').unwrap_or(("vmlinux", target));
        let mut places = vec!["vmlinux"];
        places.extend((module != "vmlinux").then_some(module));
        let texts = places.iter().filter_map(|place| self.texts.get(place));
        texts.into_iter().any(|text| contains(text, name))
    }
}

/// Returns true if the string table contains exactly this string.
fn contains(text: &[u8], name: &str) -> bool {
    let mut wanted = vec![0];
    wanted.extend(name.as_bytes());
    wanted.push(0);
    memchr::memmem::find(text, &wanted).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(lacks: &[&str], refused: &[&str], loads: &[&str], missing: &[&str]) {
        let refused: Vec<String> = refused.iter().map(|&p| p.to_owned()).collect();
        let choice = choose(&|target| !lacks.contains(&target), &refused);
        for program in loads {
            assert!(choice.load.contains(program), "{program} of {choice:?}");
        }
        let found: Vec<&str> = choice.missing.keys().copied().collect();
        assert_eq!(found, missing);
    }

    #[test]
    fn a_recent_kernel_needs_no_stand_in() {
        check(&[], &[], &["stream_write", "datagram_read"], &[]);
        let choice = choose(&|_| true, &[]);
        assert!(!choice.load.contains(&"stream_write_entry"));
        assert_eq!(choice.load.len(), HOOKS.len() - 4);
    }

    #[test]
    fn an_older_kernel_is_served_by_stand_ins() {
        check(
            &["btf_trace_tcp_sendmsg_locked", "btf_trace_sock_recv_length"],
            &[],
            &[
                "stream_write_entry",
                "datagram_read_ipv4",
                "datagram_read_ipv6",
            ],
            &[],
        );
    }

    #[test]
    fn hooks_without_a_program_are_named() {
        check(
            &["btf_trace_tcp_sendmsg_locked"],
            &["stream_write_entry"],
            &["stream_read"],
            &["stream_write", "stream_write_entry"],
        );
    }

    #[test]
    fn a_name_is_found_only_whole() {
        let kernel = KernelTypes {
            texts: BTreeMap::from([
                ("vmlinux", b"\0btf_trace_one_more\0tcp\0".to_vec()),
                ("ext4", b"\0btf_trace_ext4\0".to_vec()),
            ]),
        };
        assert!(kernel.has("tcp") && kernel.has("ext4/btf_trace_ext4"));
        assert!(!kernel.has("btf_trace_one") && !kernel.has("btf_trace_ext4"));
    }
}
