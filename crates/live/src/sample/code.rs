//! The code around a sampled address: from the file it was mapped from, else from
//! the memory of the process.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::sys::perf::read_memory;
use memgauge_perf::derive::{AFTER, BEFORE, Moment, NoRecipe, Recipe, recipe_at};

/// A mapping with code.
#[derive(Clone, Debug)]
struct Mapping {
    start: u64,
    end: u64,
    file_offset: u64,
    path: String,
}

/// Recipes by process and address, and what they are made from.
#[derive(Default)]
pub(crate) struct Code {
    mappings: HashMap<u32, Vec<Mapping>>,
    files: HashMap<String, Option<File>>,
    recipes: HashMap<(u32, u64, Moment), Result<Recipe, NoRecipe>>,
}

/// Recipes kept; further ones are made again each time.
const MOST_RECIPES: usize = 1 << 20;

impl Code {
    /// Executable code was mapped.
    pub(crate) fn mapped(
        &mut self,
        pid: u32,
        start: u64,
        bytes: u64,
        file_offset: u64,
        path: &str,
    ) {
        let end = start.saturating_add(bytes);
        let all = self.mappings.entry(pid).or_default();
        let before = all.len();
        all.retain(|m| m.end <= start || m.start >= end);
        if all.len() < before {
            self.recipes.retain(|key, _| key.0 != pid);
        }
        let path = path.to_owned();
        all.push(Mapping {
            start,
            end,
            file_offset,
            path,
        });
    }

    /// Another program began.
    pub(crate) fn replaced(&mut self, pid: u32) {
        self.mappings.remove(&pid);
        self.recipes.retain(|key, _| key.0 != pid);
    }

    /// A process was forked: it has its parent's code.
    pub(crate) fn forked(&mut self, pid: u32, parent: u32) {
        if let Some(mappings) = self.mappings.get(&parent).filter(|_| pid != parent) {
            let mappings = mappings.clone();
            self.mappings.insert(pid, mappings);
        }
    }

    /// The recipe for samples there.
    pub(crate) fn recipe(&mut self, pid: u32, ip: u64, moment: Moment) -> Result<Recipe, NoRecipe> {
        if let Some(known) = self.recipes.get(&(pid, ip, moment)) {
            return *known;
        }
        let made = match self.around(pid, ip) {
            Some((bytes, start)) => recipe_at(moment, &bytes, start, ip),
            None => Err(NoRecipe::NoCode),
        };
        if self.recipes.len() >= MOST_RECIPES {
            self.recipes.clear();
        }
        self.recipes.insert((pid, ip, moment), made);
        made
    }

    /// Forgets what was found out about an address, as the mappings were looked up anew.
    pub(crate) fn forget(&mut self, pid: u32, ip: u64) {
        self.recipes.retain(|key, _| (key.0, key.1) != (pid, ip));
    }

    fn around(&mut self, pid: u32, ip: u64) -> Option<(Vec<u8>, u64)> {
        let mapping = self
            .mappings
            .get(&pid)?
            .iter()
            .find(|m| (m.start..m.end).contains(&ip))?;
        let start = ip.saturating_sub(BEFORE).max(mapping.start);
        let end = ip.saturating_add(AFTER).min(mapping.end);
        let mut bytes = vec![0u8; (end - start) as usize];
        let offset = mapping.file_offset + (start - mapping.start);
        let n = match self.files.get(&mapping.path) {
            Some(file) => read_file(file.as_ref(), &mut bytes, offset),
            None => {
                let file = regular(&mapping.path);
                let n = read_file(file.as_ref(), &mut bytes, offset);
                self.files.insert(mapping.path.clone(), file);
                n
            }
        };
        let n = n.or_else(|| read_memory(pid, start, &mut bytes).ok())?;
        bytes.truncate(n);
        Some((bytes, start))
    }
}

fn regular(path: &str) -> Option<File> {
    let file = path
        .starts_with('/')
        .then(|| File::open(path).ok())
        .flatten()?;
    file.metadata().ok().filter(|m| m.is_file()).map(|_| file)
}

fn read_file(file: Option<&File>, into: &mut [u8], offset: u64) -> Option<usize> {
    file?.read_at(into, offset).ok().filter(|n| *n > 0)
}
