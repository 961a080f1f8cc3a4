//! Reads the code around a sampled address, from the file it was mapped from, else from the
//! memory of the process, and keeps how to derive data addresses from it.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::sys::perf::read_memory;
use memgauge_perf::derive::{BYTES_AFTER, BYTES_BEFORE, IpPosition, NoRecipe, Recipe, recipe_at};

/// An executable mapping.
#[derive(Clone, Debug)]
struct CodeMapping {
    start: u64,
    end: u64,
    file_offset: u64,
    path: String,
}

/// Recipes for data addresses by process and instruction, and the code they are made from.
#[derive(Default)]
pub(crate) struct CodeReader {
    mappings: HashMap<u32, Vec<CodeMapping>>,
    files: HashMap<String, Option<File>>,
    recipes: HashMap<(u32, u64, IpPosition), Result<Recipe, NoRecipe>>,
}

/// Maximum number of recipes that are kept. All are dropped when it is reached.
const MAX_RECIPES: usize = 1 << 20;

impl CodeReader {
    /// Adds an executable mapping, which replaces those that it overlaps.
    pub(crate) fn add_mapping(
        &mut self,
        pid: u32,
        start: u64,
        bytes: u64,
        file_offset: u64,
        path: &str,
    ) {
        let end = start.saturating_add(bytes);
        let mappings = self.mappings.entry(pid).or_default();
        let count_before = mappings.len();
        mappings.retain(|mapping| mapping.end <= start || mapping.start >= end);
        if mappings.len() < count_before {
            self.recipes.retain(|key, _| key.0 != pid);
        }
        mappings.push(CodeMapping {
            start,
            end,
            file_offset,
            path: path.to_owned(),
        });
    }

    /// Forgets the code of a process that has called `exec` or has ended.
    pub(crate) fn forget_process(&mut self, pid: u32) {
        self.mappings.remove(&pid);
        self.recipes.retain(|key, _| key.0 != pid);
    }

    /// Copies the parent's mappings to a new process.
    pub(crate) fn fork(&mut self, pid: u32, parent_pid: u32) {
        if pid == parent_pid {
            return;
        }
        if let Some(mappings) = self.mappings.get(&parent_pid) {
            let mappings = mappings.clone();
            self.mappings.insert(pid, mappings);
        }
    }

    /// Returns how to derive the data address of samples at this address.
    pub(crate) fn recipe(
        &mut self,
        pid: u32,
        ip: u64,
        position: IpPosition,
    ) -> Result<Recipe, NoRecipe> {
        if let Some(known) = self.recipes.get(&(pid, ip, position)) {
            return *known;
        }
        let recipe = match self.read_code_around(pid, ip) {
            Some((code, start)) => recipe_at(position, &code, start, ip),
            None => Err(NoRecipe::NoCode),
        };
        if self.recipes.len() >= MAX_RECIPES {
            self.recipes.clear();
        }
        self.recipes.insert((pid, ip, position), recipe);
        recipe
    }

    /// Forgets the recipes for an address, after mappings have been read again.
    pub(crate) fn forget_recipes(&mut self, pid: u32, ip: u64) {
        self.recipes.retain(|key, _| (key.0, key.1) != (pid, ip));
    }

    /// Returns the code around an address, and the address where it starts.
    fn read_code_around(&mut self, pid: u32, ip: u64) -> Option<(Vec<u8>, u64)> {
        let mapping = self
            .mappings
            .get(&pid)?
            .iter()
            .find(|mapping| (mapping.start..mapping.end).contains(&ip))?;
        let start = ip.saturating_sub(BYTES_BEFORE).max(mapping.start);
        let end = ip.saturating_add(BYTES_AFTER).min(mapping.end);
        let mut code = vec![0u8; (end - start) as usize];
        let offset = mapping.file_offset + (start - mapping.start);
        let n = match self.files.get(&mapping.path) {
            Some(file) => read_file(file.as_ref(), &mut code, offset),
            None => {
                let file = open_regular_file(&mapping.path);
                let n = read_file(file.as_ref(), &mut code, offset);
                self.files.insert(mapping.path.clone(), file);
                n
            }
        };
        let n = n.or_else(|| read_memory(pid, start, &mut code).ok())?;
        code.truncate(n);
        Some((code, start))
    }
}

fn open_regular_file(path: &str) -> Option<File> {
    if !path.starts_with('/') {
        return None;
    }
    let file = File::open(path).ok()?;
    file.metadata().ok()?.is_file().then_some(file)
}

fn read_file(file: Option<&File>, into: &mut [u8], offset: u64) -> Option<usize> {
    file?.read_at(into, offset).ok().filter(|n| *n > 0)
}
