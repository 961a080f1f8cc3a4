//! Debian packages with the debug symbols of installed files.

use std::fs;
use std::path::Path;

/// Where dpkg lists the files of each package.
const LISTS: &str = "/var/lib/dpkg/info";

/// Returns the package with the debug symbols of a file. `None` if no package installed the file.
pub fn debug_package(path: &str) -> Option<String> {
    let owner = owner(Path::new(LISTS), path)?;
    // The C library's is older than the archive of automatic packages, and has another name.
    Some(match owner.as_str() {
        "libc6" => "libc6-dbg".to_owned(),
        owner => format!("{owner}-dbgsym"),
    })
}

/// Package that installed a file, from `PACKAGE.list` or `PACKAGE:ARCHITECTURE.list`.
fn owner(lists: &Path, path: &str) -> Option<String> {
    // Packages list `/lib/x` although `/lib` is a link to `/usr/lib`.
    let merged = path.strip_prefix("/usr");
    let is_it = |line: &str| line == path || Some(line) == merged;
    let mut files: Vec<_> = fs::read_dir(lists).ok()?.flatten().collect();
    files.sort_by_key(fs::DirEntry::file_name);
    files.iter().find_map(|file| {
        let name = file.file_name().into_string().ok()?;
        let name = name.strip_suffix(".list")?;
        let text = fs::read_to_string(file.path()).ok()?;
        let package = name.split(':').next().unwrap_or(name);
        text.lines().any(is_it).then(|| package.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_is_found_under_both_names_of_a_merged_folder() {
        let lists = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(lists.path().join(name), text).unwrap();
        write("zlib1g:amd64.list", "/.\n/lib\n/lib/libz.so.1.2.13\n");
        write("zlib1g:amd64.md5sums", "/usr/bin/zip\n");
        write("zip.list", "/usr/bin/zip\n");
        let owner = |path| owner(lists.path(), path);
        assert_eq!(owner("/usr/lib/libz.so.1.2.13").as_deref(), Some("zlib1g"));
        assert_eq!(owner("/lib/libz.so.1.2.13").as_deref(), Some("zlib1g"));
        assert_eq!(owner("/usr/bin/zip").as_deref(), Some("zip"));
        assert_eq!(owner("/usr/bin/zi"), None);
    }
}
