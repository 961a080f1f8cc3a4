//! NUMA nodes of this machine, with their CPUs and memory.

use std::fs::read_to_string;
use std::path::Path;

/// The kernel's description of the nodes.
const NODES_FOLDER: &str = "/sys/devices/system/node";

/// A NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumaNode {
    /// The kernel's number.
    pub id: u32,
    /// Nearest CPUs.
    pub cpus: Vec<u32>,
    /// Memory in bytes. 0 for a node that has only CPUs.
    pub memory_bytes: u64,
    /// Free memory in bytes when it was read.
    pub free_bytes: u64,
}

/// All nodes by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumaNodes(Vec<NumaNode>);

impl NumaNodes {
    /// Nodes of this machine. A kernel without NUMA support counts as one node without facts.
    pub fn read() -> NumaNodes {
        NumaNodes::read_from(Path::new(NODES_FOLDER))
    }

    /// Nodes described by a folder of the kernel's layout.
    pub fn read_from(folder: &Path) -> NumaNodes {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let ids = entries.filter_map(|entry| {
            let name = entry.file_name();
            name.to_str()?.strip_prefix("node")?.parse().ok()
        });
        let mut nodes: Vec<NumaNode> = ids.map(|id| read_node(folder, id)).collect();
        nodes.sort_by_key(|node| node.id);
        if nodes.is_empty() {
            nodes.push(NumaNode::default());
        }
        NumaNodes(nodes)
    }

    /// All nodes.
    pub fn all(&self) -> &[NumaNode] {
        &self.0
    }

    /// Nodes with memory.
    pub fn with_memory(&self) -> impl Iterator<Item = &NumaNode> {
        let only = self.0.len() == 1;
        self.0.iter().filter(move |n| only || n.memory_bytes > 0)
    }

    /// Nearest node of a CPU, or `None` for an unknown CPU.
    pub fn nearest_to_cpu(&self, cpu: u32) -> Option<u32> {
        let found = self.0.iter().find(|node| node.cpus.contains(&cpu));
        found.map(|node| node.id)
    }
}

fn read_node(folder: &Path, id: u32) -> NumaNode {
    let text = |file: &str| {
        let path = folder.join(format!("node{id}")).join(file);
        read_to_string(path).unwrap_or_default()
    };
    let memory = text("meminfo");
    NumaNode {
        id,
        cpus: parse_cpu_list(text("cpulist").trim()),
        memory_bytes: kib_after_key(&memory, "MemTotal:") << 10,
        free_bytes: kib_after_key(&memory, "MemFree:") << 10,
    }
}

/// Parses a list of the kernel's form `0-3,8`.
fn parse_cpu_list(text: &str) -> Vec<u32> {
    let ranges = text.split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse().ok()?)
    });
    ranges.flatten().collect()
}

/// Number after a key in lines of the form `NumaNode 0 MemTotal:  1024 kB`.
fn kib_after_key(text: &str, key: &str) -> u64 {
    let value = text
        .lines()
        .find_map(|line| line.split_once(key)?.1.split_whitespace().next());
    value.and_then(|v| v.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder like that of a machine with these nodes: CPUs, total memory and free memory in KiB.
    fn described(nodes: &[(u32, &str, u64, u64)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (id, cpus, total, free) in nodes {
            let place = folder.path().join(format!("node{id}"));
            std::fs::create_dir(&place).unwrap();
            std::fs::write(place.join("cpulist"), format!("{cpus}\n")).unwrap();
            let memory = format!(
                "Node {id} MemTotal:       {total} kB\nNode {id} MemFree:        {free} kB\n"
            );
            std::fs::write(place.join("meminfo"), memory).unwrap();
        }
        // The kernel's folder holds other entries, too.
        std::fs::write(folder.path().join("online"), "0-1\n").unwrap();
        folder
    }

    #[test]
    fn nodes_have_the_processors_and_memory_that_the_kernel_tells() {
        let folder = described(&[
            (10, "1,3", 2048, 512),
            (2, "0,2,4-6", 1024, 1000),
            (3, "", 64, 0),
        ]);
        let nodes = NumaNodes::read_from(folder.path());
        let ids: Vec<u32> = nodes.all().iter().map(|n| n.id).collect();
        assert_eq!(ids, [2, 3, 10]);
        assert_eq!(nodes.all()[0].cpus, [0, 2, 4, 5, 6]);
        assert_eq!(nodes.all()[2].memory_bytes, 2 << 20);
        assert_eq!(nodes.all()[2].free_bytes, 512 << 10);
        let of: Vec<Option<u32>> = (0..8).map(|cpu| nodes.nearest_to_cpu(cpu)).collect();
        let expected = [2, 10, 2, 10, 2, 2, 2].map(Some);
        assert_eq!(of[..7], expected);
        assert_eq!(of[7], None);
    }

    #[test]
    fn a_kernel_without_nodes_has_one() {
        let folder = tempfile::tempdir().unwrap();
        let nodes = NumaNodes::read_from(folder.path());
        assert_eq!(nodes.with_memory().count(), 1);
        let without = described(&[(0, "0", 1024, 1), (1, "1", 0, 0)]);
        let nodes = NumaNodes::read_from(without.path());
        assert_eq!(
            nodes.with_memory().count(),
            1,
            "processors alone hold no pages"
        );
        assert!(NumaNodes::read().with_memory().count() >= 1);
    }
}
