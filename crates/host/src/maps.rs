//! Mappings of a process, from `/proc/PID/maps`.

use std::fs::read;

/// A line of `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapsLine {
    /// First address.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// True if code may execute there.
    pub executable: bool,
    /// False for guard regions, which have no permissions.
    pub accessible: bool,
    /// Offset of the first byte in the file.
    pub file_offset: u64,
    /// Path, or a name such as `[heap]`. Empty for anonymous memory.
    pub path: String,
}

/// All mappings of a process by address. Empty if it has ended or cannot be read.
pub fn of_process(pid: u32) -> Vec<MapsLine> {
    parse(&read(format!("/proc/{pid}/maps")).unwrap_or_default())
}

/// Parses the well-formed lines. Invalid UTF-8 in a path becomes replacement characters.
pub fn parse(maps: &[u8]) -> Vec<MapsLine> {
    let lines = maps.split(|&byte| byte == b'\n');
    lines
        .filter_map(|line| parse_line(&String::from_utf8_lossy(line)))
        .collect()
}

/// ```text
/// 7f0a1000-7f0a3000 r-xp 00002000 fe:00 1234       /usr/lib/a b.so
/// start    end      rights offset device inode     path, to the end of the line
/// ```
fn parse_line(line: &str) -> Option<MapsLine> {
    let mut rest = line;
    let mut field = || {
        let (field, behind) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = behind;
        field
    };
    let (range, rights, offset) = (field(), field(), field());
    let (_device, _inode) = (field(), field());
    let (start, end) = range.split_once('-')?;
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    Some(MapsLine {
        start: hex(start)?,
        end: hex(end)?,
        executable: rights.as_bytes().get(2) == Some(&b'x'),
        accessible: !rights.starts_with("---"),
        file_offset: hex(offset)?,
        path: unescaped(rest.trim_start_matches(' ')),
    })
}

/// Decodes a path. The kernel writes a line break in a path as `\012` and escapes nothing else
/// (`seq_path` in Linux' fs/proc/task_mmu.c). A path that contains these four characters is
/// therefore decoded wrongly.
fn unescaped(path: &str) -> String {
    path.replace("\\012", "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps_are_taken_apart() {
        let maps = b"\
7f0a1000-7f0a3000 r-xp 00002000 fe:00 1234                       /usr/lib/a b.so
7f0a3000-7f0a4000 ---p 00000000 00:00 0
nonsense
7f0a4000-7f0a5000 rw-p 00000000 fe:00 12                         /tmp/of\\012two  lines
7f0a5000-7f0a6000 rw-p 00000000 fe:00 12                         /tmp/no\xfftext
7f0a6000-7f0a7000 rw-p 00000000 00:00 0                          [heap]
";
        let lines = parse(maps);
        let paths: Vec<&str> = lines.iter().map(|line| line.path.as_str()).collect();
        let expected = [
            "/usr/lib/a b.so",
            "",
            "/tmp/of\ntwo  lines",
            "/tmp/no\u{fffd}text",
            "[heap]",
        ];
        assert_eq!(paths, expected);
        let first = &lines[0];
        let found = (first.start, first.end, first.file_offset);
        assert_eq!(found, (0x7f0a_1000, 0x7f0a_3000, 0x2000));
        assert!(first.executable && first.accessible);
        assert!(!lines[1].accessible && !lines[1].executable);
    }

    #[test]
    fn a_file_whose_name_has_a_new_line_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("two\nlines");
        std::fs::copy("/bin/sleep", &path).expect("it can be copied");
        let mut child = std::process::Command::new(&path)
            .arg("100")
            .spawn()
            .expect("it runs");
        let named = path.to_str().expect("text");
        let mut lines = Vec::new();
        // The program maps its file some moments after its start.
        for _ in 0..1000 {
            lines = of_process(child.id());
            if lines.iter().any(|line| line.path == named) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        child.kill().and_then(|()| child.wait()).expect("it ends");
        assert!(lines.iter().any(|line| line.path == named), "{lines:?}");
    }
}
