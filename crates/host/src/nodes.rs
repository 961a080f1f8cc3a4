//! The memory nodes of this machine: which processors and how much memory each has.

use std::fs::read_to_string;
use std::path::Path;

/// Where the kernel describes nodes.
const NODES: &str = "/sys/devices/system/node";

/// A node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// The kernel's number.
    pub id: u32,
    /// Processors that are near it.
    pub cpus: Vec<u32>,
    /// Memory in bytes; 0 for a node of processors alone.
    pub memory_bytes: u64,
    /// Of it free when it was looked at.
    pub free_bytes: u64,
}

/// All nodes, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nodes(Vec<Node>);

impl Nodes {
    /// Those of this machine. A kernel that knows no nodes counts as one without facts.
    pub fn of_this_machine() -> Nodes {
        Nodes::described_in(Path::new(NODES))
    }

    /// Those that a folder like the kernel's describes.
    pub fn described_in(folder: &Path) -> Nodes {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let ids = entries.filter_map(|entry| {
            let name = entry.file_name();
            name.to_str()?.strip_prefix("node")?.parse().ok()
        });
        let mut nodes: Vec<Node> = ids.map(|id| node(folder, id)).collect();
        nodes.sort_by_key(|node| node.id);
        if nodes.is_empty() {
            nodes.push(Node::default());
        }
        Nodes(nodes)
    }

    /// Each of them.
    pub fn all(&self) -> &[Node] {
        &self.0
    }

    /// Those with memory.
    pub fn with_memory(&self) -> impl Iterator<Item = &Node> {
        let only = self.0.len() == 1;
        self.0.iter().filter(move |n| only || n.memory_bytes > 0)
    }

    /// The node with memory that a processor is nearest to; `None` for an unknown one.
    pub fn of_cpu(&self, cpu: u32) -> Option<u32> {
        let found = self.0.iter().find(|node| node.cpus.contains(&cpu));
        found.map(|node| node.id)
    }
}

fn node(folder: &Path, id: u32) -> Node {
    let text = |file: &str| {
        let path = folder.join(format!("node{id}")).join(file);
        read_to_string(path).unwrap_or_default()
    };
    let memory = text("meminfo");
    Node {
        id,
        cpus: list(text("cpulist").trim()),
        memory_bytes: kibibytes(&memory, "MemTotal:") << 10,
        free_bytes: kibibytes(&memory, "MemFree:") << 10,
    }
}

/// A list of the kernel's: `0-3,8`.
fn list(text: &str) -> Vec<u32> {
    let ranges = text.split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse().ok()?)
    });
    ranges.flatten().collect()
}

/// The number behind a key in lines as `Node 0 MemTotal:  1024 kB`.
fn kibibytes(text: &str, key: &str) -> u64 {
    let value = text
        .lines()
        .find_map(|line| line.split_once(key)?.1.split_whitespace().next());
    value.and_then(|v| v.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder like that of a machine with these nodes: processors, and KiB in all and free.
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
        let nodes = Nodes::described_in(folder.path());
        let ids: Vec<u32> = nodes.all().iter().map(|n| n.id).collect();
        assert_eq!(ids, [2, 3, 10]);
        assert_eq!(nodes.all()[0].cpus, [0, 2, 4, 5, 6]);
        assert_eq!(nodes.all()[2].memory_bytes, 2 << 20);
        assert_eq!(nodes.all()[2].free_bytes, 512 << 10);
        let of: Vec<Option<u32>> = (0..8).map(|cpu| nodes.of_cpu(cpu)).collect();
        let expected = [2, 10, 2, 10, 2, 2, 2].map(Some);
        assert_eq!(of[..7], expected);
        assert_eq!(of[7], None);
    }

    #[test]
    fn a_kernel_without_nodes_has_one() {
        let folder = tempfile::tempdir().unwrap();
        let nodes = Nodes::described_in(folder.path());
        assert_eq!(nodes.with_memory().count(), 1);
        let without = described(&[(0, "0", 1024, 1), (1, "1", 0, 0)]);
        let nodes = Nodes::described_in(without.path());
        assert_eq!(
            nodes.with_memory().count(),
            1,
            "processors alone hold no pages"
        );
        assert!(Nodes::of_this_machine().with_memory().count() >= 1);
    }
}
