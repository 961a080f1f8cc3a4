//! Memory traffic as resctrl monitors it, for machines whose controllers do not tell.

use std::fs;
use std::path::PathBuf;

/// Where resctrl is mounted, if it is.
const ROOT: &str = "/sys/fs/resctrl";

/// Counters of everybody's memory traffic, reads and writes together.
pub(super) struct Mbm {
    files: Vec<PathBuf>,
    last: u64,
}

impl Mbm {
    /// The counters of this machine; `None` where resctrl is not mounted or monitors
    /// none.
    pub(super) fn start() -> Option<Mbm> {
        Mbm::below(ROOT.into())
    }

    fn below(root: PathBuf) -> Option<Mbm> {
        let domains = fs::read_dir(root.join("mon_data")).ok()?;
        let files = domains.filter_map(|entry| {
            let file = entry.ok()?.path().join("mbm_total_bytes");
            file.exists().then_some(file)
        });
        let files: Vec<PathBuf> = files.collect();
        let mut mbm = Mbm { files, last: 0 };
        mbm.last = mbm.total()?;
        Some(mbm)
    }

    /// All domains' bytes; `None` where one does not tell.
    fn total(&self) -> Option<u64> {
        let number = |file: &PathBuf| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
        let all: Option<Vec<u64>> = self.files.iter().map(number).collect();
        all.filter(|all| !all.is_empty())
            .map(|all| all.iter().sum())
    }

    /// Bytes since the last time. A reading that fails (`Unavailable`) is made up
    /// for by the next.
    pub(super) fn take(&mut self) -> u64 {
        let now = self.total().unwrap_or(self.last);
        let gained = now.saturating_sub(self.last);
        self.last = now;
        gained
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_are_added_up_and_only_gains_count() {
        let dir = tempfile::tempdir().unwrap();
        let write = |domain: &str, text: &str| {
            let folder = dir.path().join("mon_data").join(domain);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("mbm_total_bytes"), text).unwrap();
        };
        assert!(Mbm::below(dir.path().into()).is_none());
        write("mon_L3_00", "1000\n");
        write("mon_L3_01", "500\n");
        let mut mbm = Mbm::below(dir.path().into()).unwrap();
        write("mon_L3_00", "1600\n");
        assert_eq!(mbm.take(), 600);
        write("mon_L3_01", "Unavailable\n");
        assert_eq!(mbm.take(), 0);
        write("mon_L3_01", "540\n");
        assert_eq!((mbm.take(), mbm.take()), (40, 0));
    }
}
