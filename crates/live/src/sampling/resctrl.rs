//! Memory traffic as resctrl monitors it, for machines without readable memory controllers.

use std::fs;
use std::path::PathBuf;

/// Where resctrl is mounted.
const ROOT: &str = "/sys/fs/resctrl";

/// Counters of the whole machine's memory traffic, reads and writes together.
pub(super) struct ResctrlBandwidth {
    files: Vec<PathBuf>,
    last_bytes: u64,
}

impl ResctrlBandwidth {
    /// Opens the counters of this machine. Returns `None` if resctrl is not mounted or monitors
    /// no memory traffic.
    pub(super) fn open() -> Option<ResctrlBandwidth> {
        ResctrlBandwidth::open_at(ROOT.into())
    }

    fn open_at(root: PathBuf) -> Option<ResctrlBandwidth> {
        let domains = fs::read_dir(root.join("mon_data")).ok()?;
        let files = domains.filter_map(|entry| {
            let file = entry.ok()?.path().join("mbm_total_bytes");
            file.exists().then_some(file)
        });
        let mut counters = ResctrlBandwidth {
            files: files.collect(),
            last_bytes: 0,
        };
        counters.last_bytes = counters.total_bytes()?;
        Some(counters)
    }

    /// Bytes of all domains; `None` if one of them cannot be read.
    fn total_bytes(&self) -> Option<u64> {
        let number = |file: &PathBuf| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
        let by_domain: Option<Vec<u64>> = self.files.iter().map(number).collect();
        by_domain
            .filter(|domains| !domains.is_empty())
            .map(|domains| domains.iter().sum())
    }

    /// Returns the bytes since the previous call. If the counters cannot be read (the kernel
    /// reports `Unavailable`), the next call includes the missing bytes.
    pub(super) fn read_increment(&mut self) -> u64 {
        let bytes = self.total_bytes().unwrap_or(self.last_bytes);
        let increment = bytes.saturating_sub(self.last_bytes);
        self.last_bytes = bytes;
        increment
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn increments_of_all_domains_are_added_up() {
        let dir = tempfile::tempdir().unwrap();
        let write = |domain: &str, text: &str| {
            let folder = dir.path().join("mon_data").join(domain);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("mbm_total_bytes"), text).unwrap();
        };
        assert!(ResctrlBandwidth::open_at(dir.path().into()).is_none());
        write("mon_L3_00", "1000\n");
        write("mon_L3_01", "500\n");
        let mut counters = ResctrlBandwidth::open_at(dir.path().into()).unwrap();
        write("mon_L3_00", "1600\n");
        assert_eq!(counters.read_increment(), 600);
        write("mon_L3_01", "Unavailable\n");
        assert_eq!(counters.read_increment(), 0);
        write("mon_L3_01", "540\n");
        assert_eq!(
            (counters.read_increment(), counters.read_increment()),
            (40, 0)
        );
    }
}
