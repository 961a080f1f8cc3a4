//! Names of tracepoints, from the copy of the kernel's descriptions that perf stores.
//!
//! ```text
//! 17 08 44 "tracing" │ version NUL │ byte order 1 │ bytes of a long 1 │ page size 4
//! "header_page" NUL  │ length 8, text
//! "header_event" NUL │ length 8, text
//! number of events 4 │ length 8, text …                         ftrace's own
//! number of systems 4 │ name NUL │ number of events 4 │ length 8, text …
//! ```
//!
//! A text begins with the lines `name: sched_switch` and `ID: 316`.

use crate::record::FieldParser;

/// Passes the ID and name (`sched:sched_switch`) of each tracepoint to `each`, until the
/// descriptions end or are cut off.
pub(super) fn tracepoints(bytes: &[u8], each: &mut dyn FnMut(u64, String)) -> Option<()> {
    let mut f = FieldParser(bytes);
    (f.bytes(10)? == b"\x17\x08\x44tracing").then_some(())?;
    terminated(&mut f)?;
    f.bytes(6)?;
    for _ in ["header_page", "header_event"] {
        terminated(&mut f)?;
        counted(&mut f)?;
    }
    for _ in 0..f.u32()? {
        counted(&mut f)?;
    }
    for _ in 0..f.u32()? {
        let system = terminated(&mut f)?;
        for _ in 0..f.u32()? {
            let text = String::from_utf8_lossy(counted(&mut f)?);
            let field = |head: &str| text.lines().find_map(|line| line.strip_prefix(head));
            let id = field("ID: ").and_then(|id| id.trim().parse().ok());
            if let Some((name, id)) = field("name: ").zip(id) {
                each(id, format!("{}:{name}", String::from_utf8_lossy(system)));
            }
        }
    }
    Some(())
}

/// A text up to its NUL.
fn terminated<'a>(f: &mut FieldParser<'a>) -> Option<&'a [u8]> {
    let end = f.0.iter().position(|&byte| byte == 0)?;
    let text = f.bytes(end)?;
    f.bytes(1)?;
    Some(text)
}

/// A text after its length.
fn counted<'a>(f: &mut FieldParser<'a>) -> Option<&'a [u8]> {
    let bytes = usize::try_from(f.u64()?).ok()?;
    f.bytes(bytes)
}
