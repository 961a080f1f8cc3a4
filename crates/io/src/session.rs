//! Accounting from start to end.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use memgauge_host::sys::scheduling::LargeShare;
use memgauge_trace::{DeviceId, Owner};

use super::layout::{self, Account, OwnerFacts, Rate};
use super::names::cgroup_path;
use super::programs::{Programs, Setup};
use crate::Result;

/// Owner and device of an account.
pub type Key = (Owner, DeviceId);

const NOT_RUN: &str = "requests or packets that the kernel did not show to a BPF program, \
because one was already running on that processor";

/// Something that could not be accounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Name, for programs.
    pub name: &'static str,
    /// Meaning of the count.
    pub meaning: &'static str,
    /// How many.
    pub count: u64,
}

/// Running accounts. Everything is unloaded when it is dropped.
pub struct Session {
    programs: Programs,
    /// Accounts of owners that have ended, taken out of the kernel's table.
    closed: BTreeMap<Key, Account>,
    /// Facts noted about owners that ended.
    ended: BTreeMap<Owner, OwnerFacts>,
    /// Whether the two above are dropped once they were told.
    forget_ended: bool,
    /// Accounts that were told for the last time, and facts of their owners.
    dropped: BTreeMap<Key, Account>,
    told: BTreeMap<Owner, OwnerFacts>,
    /// Owners found gone at the last look; closed at the next one.
    gone: BTreeSet<Owner>,
    /// Control groups that stand for processes without an account, by id: an owner
    /// without a process, and a name.
    groups: BTreeMap<u64, (Owner, String)>,
}

impl Session {
    /// Loads the programs; from now on everything is accounted.
    ///
    /// # Errors
    /// Without rights, on a kernel that refuses what cannot be done without.
    pub fn start(setup: Setup) -> Result<Session> {
        // The kernel checks the programs on this thread, which takes half a second alone.
        let share = LargeShare::begin();
        let programs = Programs::load(setup)?;
        drop(share);
        Ok(Session {
            programs,
            closed: BTreeMap::new(),
            ended: BTreeMap::new(),
            forget_ended: setup.forget_ended,
            dropped: BTreeMap::new(),
            told: BTreeMap::new(),
            gone: BTreeSet::new(),
            groups: BTreeMap::new(),
        })
    }

    /// Limits of the accounting on this machine, in words.
    pub fn missing(&self) -> Vec<&'static str> {
        self.programs.missing()
    }

    /// All accounts since the start; with `forget_ended` those of ended processes once more
    /// after they were taken out of the kernel's table, and then no longer.
    ///
    /// # Errors
    /// When the kernel's tables cannot be read.
    pub fn accounts(&mut self) -> Result<BTreeMap<Key, Account>> {
        self.programs.settle()?;
        let live = self.programs.accounts()?;
        let mut all = self.closed.clone();
        for (key, account) in &live {
            let sum = all.entry(*key).or_default();
            *sum = sum.plus(*account);
        }
        for ((group, device), account) in self.programs.folded()? {
            all.insert((self.group(group), device), account);
        }
        if self.forget_ended {
            self.dropped = std::mem::take(&mut self.closed);
            self.told = std::mem::take(&mut self.ended);
        }
        if live.len() > self.programs.room() / 2 {
            self.make_room(&live)?;
        }
        Ok(all)
    }

    /// What the next [`accounts`](Session::accounts) will lack of the last ones.
    pub(crate) fn dropped(&self) -> &BTreeMap<Key, Account> {
        &self.dropped
    }

    /// The owner that stands for the processes of a control group that have no account.
    fn group(&mut self, id: u64) -> Owner {
        // No process has the id 0, and 0 as a whole is a device's.
        let next = Owner(self.groups.len() as u64 + 1);
        let known = self.groups.entry(id).or_insert_with(|| {
            let of = match id {
                0 => String::new(),
                id => format!(" of {}", cgroup_path(id).unwrap_or_else(|| id.to_string())),
            };
            (next, format!("other processes{of}"))
        });
        known.0
    }

    fn facts_of_group(&self, owner: Owner) -> Option<OwnerFacts> {
        let mut groups = self.groups.iter();
        let (id, (_, name)) = groups.find(|(_, known)| known.0 == owner)?;
        Some(OwnerFacts {
            command: name.clone(),
            cgroup: *id,
            ..OwnerFacts::default()
        })
    }

    /// Moves accounts of processes that had ended by the previous look out of the
    /// kernel's table. Otherwise a machine with many short processes would fill it.
    fn make_room(&mut self, live: &[(Key, Account)]) -> Result<()> {
        let gone: BTreeSet<Owner> = live
            .iter()
            .map(|(key, _)| key.0)
            .filter(|&o| is_gone(o))
            .collect();
        for (key, _) in live {
            if gone.contains(&key.0) && self.gone.contains(&key.0) {
                let account = self.programs.close(*key)?;
                let sum = self.closed.entry(*key).or_default();
                *sum = sum.plus(account);
            }
        }
        for owner in gone.intersection(&self.gone) {
            // Without an entry it was never noted, as the table was full.
            if let Some(facts) = self.programs.facts(*owner)? {
                self.ended.insert(*owner, facts);
                self.programs.forget(*owner)?;
            }
        }
        self.gone = gone;
        Ok(())
    }

    /// Facts about an owner that has an account.
    ///
    /// # Errors
    /// When the kernel's tables cannot be read.
    pub fn facts(&self, owner: Owner) -> Result<OwnerFacts> {
        if let Some(facts) = self.facts_of_group(owner) {
            return Ok(facts);
        }
        let noted = match self.ended.get(&owner).or_else(|| self.told.get(&owner)) {
            Some(facts) => Some(facts.clone()),
            None => self.programs.facts(owner)?,
        };
        let mut facts = noted.unwrap_or_else(|| OwnerFacts {
            pid: owner.pid(),
            process: owner.pid().0,
            ..OwnerFacts::default()
        });
        if facts.command.is_empty() {
            facts.command = current_name(owner).unwrap_or_default();
        }
        Ok(facts)
    }

    /// Keeps rates in a map that is a file in this folder, as long as the session lives.
    ///
    /// # Errors
    /// When the folder is not in a BPF file system.
    pub fn pin(&mut self, folder: &Path) -> Result<()> {
        self.programs.pin(folder)
    }

    /// Whether rates are kept in a map.
    pub fn is_pinned(&self) -> bool {
        self.programs.is_pinned()
    }

    /// Writes a process's rate to the map.
    ///
    /// # Errors
    /// When the map cannot be written.
    pub(crate) fn publish(&self, rate: &Rate) -> Result<()> {
        self.programs.publish(rate)
    }

    /// Losses greater than 0.
    ///
    /// # Errors
    /// When the kernel's tables cannot be read.
    pub fn losses(&self) -> Result<Vec<Loss>> {
        let counts = self.programs.losses()?;
        let missed = [(("not_run", NOT_RUN), self.programs.runs_missed())];
        let losses = layout::LOSSES.iter().copied().zip(counts).chain(missed);
        let losses = losses.filter(|(_, count)| *count > 0);
        Ok(losses
            .map(|((name, meaning), count)| Loss {
                name,
                meaning,
                count,
            })
            .collect())
    }
}

fn process(owner: Owner) -> PathBuf {
    Path::new("/proc").join(owner.pid().0.to_string())
}

fn is_gone(owner: Owner) -> bool {
    !process(owner).exists()
}

fn current_name(owner: Owner) -> Option<String> {
    let name = std::fs::read_to_string(process(owner).join("comm")).ok()?;
    Some(name.trim_end().to_owned())
}
