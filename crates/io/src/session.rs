//! A running accounting session.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use memgauge_host::sys::scheduling::CpuShareBoost;
use memgauge_trace::{DeviceId, Owner};

use super::layout::{self, Account, OwnerFacts, ProcessRate};
use super::names::cgroup_path;
use super::programs::{AccountingOptions, BpfPrograms};
use crate::Result;

/// Owner and device of an account.
pub type AccountKey = (Owner, DeviceId);

const NOT_RUN: &str = "requests or packets that the kernel did not show to a BPF program, \
because one was already running on that processor";

/// Bytes or facts that could not be accounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountingLoss {
    /// Name in JSON.
    pub name: &'static str,
    /// Meaning of the count.
    pub meaning: &'static str,
    /// Number of bytes, packets or processes, as `meaning` says.
    pub count: u64,
}

/// Accounts of a running session. Dropping it unloads the programs.
pub struct Session {
    programs: BpfPrograms,
    /// Accounts of ended owners that were removed from the kernel's table.
    closed: BTreeMap<AccountKey, Account>,
    /// Facts about ended owners.
    ended: BTreeMap<Owner, OwnerFacts>,
    /// Drop the two maps above once their contents were reported.
    forget_ended: bool,
    /// Accounts that the last [`accounts`](Session::accounts) returned for the last time, and facts
    /// about their owners.
    reported: BTreeMap<AccountKey, Account>,
    reported_facts: BTreeMap<Owner, OwnerFacts>,
    /// Owners that were found ended at the last reading. Their accounts are removed at the next
    /// one.
    ended_owners: BTreeSet<Owner>,
    /// Owner and name for the processes of a control group that have no account of their own, by
    /// the group's ID.
    cgroup_owners: BTreeMap<u64, (Owner, String)>,
}

impl Session {
    /// Loads the programs and starts to account.
    ///
    /// # Errors
    /// Missing capabilities, or a kernel without the required hooks.
    pub fn start(setup: AccountingOptions) -> Result<Session> {
        // The kernel verifies the programs on this thread, which takes half a second on an idle
        // machine.
        let boost = CpuShareBoost::start();
        let programs = BpfPrograms::load(setup)?;
        drop(boost);
        Ok(Session {
            programs,
            closed: BTreeMap::new(),
            ended: BTreeMap::new(),
            forget_ended: setup.forget_ended,
            reported: BTreeMap::new(),
            reported_facts: BTreeMap::new(),
            ended_owners: BTreeSet::new(),
            cgroup_owners: BTreeMap::new(),
        })
    }

    /// Parts that are not or less exactly accounted on this machine, in sentences.
    pub fn missing(&self) -> Vec<&'static str> {
        self.programs.missing()
    }

    /// All accounts since the start. With `forget_ended`, accounts of ended processes are returned
    /// once more after they were removed from the kernel's table, and then no longer.
    ///
    /// # Errors
    /// When the kernel's tables cannot be read.
    pub fn accounts(&mut self) -> Result<BTreeMap<AccountKey, Account>> {
        self.programs.charge_open_sockets()?;
        let live = self.programs.accounts()?;
        let mut all = self.closed.clone();
        for (key, account) in &live {
            let sum = all.entry(*key).or_default();
            *sum = sum.plus(*account);
        }
        for ((group, device), account) in self.programs.group_accounts()? {
            all.insert((self.group(group), device), account);
        }
        if self.forget_ended {
            self.reported = std::mem::take(&mut self.closed);
            self.reported_facts = std::mem::take(&mut self.ended);
        }
        if live.len() > self.programs.capacity() / 2 {
            self.remove_ended(&live)?;
        }
        Ok(all)
    }

    /// Accounts that the next [`accounts`](Session::accounts) no longer includes.
    pub(crate) fn reported(&self) -> &BTreeMap<AccountKey, Account> {
        &self.reported
    }

    /// Returns the owner for the processes of a control group that have no account.
    fn group(&mut self, id: u64) -> Owner {
        // No process has PID 0, and owner 0 stands for a device.
        let next = Owner(self.cgroup_owners.len() as u64 + 1);
        let known = self.cgroup_owners.entry(id).or_insert_with(|| {
            let of = match id {
                0 => String::new(),
                id => format!(" of {}", cgroup_path(id).unwrap_or_else(|| id.to_string())),
            };
            (next, format!("other processes{of}"))
        });
        known.0
    }

    fn facts_of_group(&self, owner: Owner) -> Option<OwnerFacts> {
        let mut cgroup_owners = self.cgroup_owners.iter();
        let (id, (_, name)) = cgroup_owners.find(|(_, known)| known.0 == owner)?;
        Some(OwnerFacts {
            command: name.clone(),
            cgroup: *id,
            ..OwnerFacts::default()
        })
    }

    /// Moves accounts of processes that had already ended at the previous reading out of the
    /// kernel's table. Otherwise many short processes would fill it.
    fn remove_ended(&mut self, live: &[(AccountKey, Account)]) -> Result<()> {
        let ended_owners: BTreeSet<Owner> = live
            .iter()
            .map(|(key, _)| key.0)
            .filter(|&o| has_ended(o))
            .collect();
        for (key, _) in live {
            if ended_owners.contains(&key.0) && self.ended_owners.contains(&key.0) {
                let account = self.programs.close(*key)?;
                let sum = self.closed.entry(*key).or_default();
                *sum = sum.plus(account);
            }
        }
        for owner in ended_owners.intersection(&self.ended_owners) {
            // Facts are missing if their table was full.
            if let Some(facts) = self.programs.facts(*owner)? {
                self.ended.insert(*owner, facts);
                self.programs.forget(*owner)?;
            }
        }
        self.ended_owners = ended_owners;
        Ok(())
    }

    /// Facts about the owner of an account.
    ///
    /// # Errors
    /// When the kernel's tables cannot be read.
    pub fn facts(&self, owner: Owner) -> Result<OwnerFacts> {
        if let Some(facts) = self.facts_of_group(owner) {
            return Ok(facts);
        }
        let noted = match self
            .ended
            .get(&owner)
            .or_else(|| self.reported_facts.get(&owner))
        {
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

    /// Keeps rates in a map that is pinned in this folder as long as the session lives.
    ///
    /// # Errors
    /// The folder is not in a BPF file system.
    pub fn pin(&mut self, folder: &Path) -> Result<()> {
        self.programs.pin(folder)
    }

    /// True if rates are kept in a pinned map.
    pub fn is_pinned(&self) -> bool {
        self.programs.is_pinned()
    }

    /// Writes a process's rates to the map.
    ///
    /// # Errors
    /// When the map cannot be written.
    pub(crate) fn publish(&self, rate: &ProcessRate) -> Result<()> {
        self.programs.publish(rate)
    }

    /// Losses with a count above 0.
    ///
    /// # Errors
    /// When the kernel's tables cannot be read.
    pub fn losses(&self) -> Result<Vec<AccountingLoss>> {
        let counts = self.programs.losses()?;
        let missed = [(("not_run", NOT_RUN), self.programs.runs_missed())];
        let losses = layout::LOSSES.iter().copied().zip(counts).chain(missed);
        let losses = losses.filter(|(_, count)| *count > 0);
        Ok(losses
            .map(|((name, meaning), count)| AccountingLoss {
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

fn has_ended(owner: Owner) -> bool {
    !process(owner).exists()
}

fn current_name(owner: Owner) -> Option<String> {
    let name = std::fs::read_to_string(process(owner).join("comm")).ok()?;
    Some(name.trim_end().to_owned())
}
