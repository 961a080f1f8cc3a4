//! Options that choose what to observe, shared by the commands that use live sources.

use clap::Args;
use memgauge_live::events;
use memgauge_live::target::{Target, cgroup, container};

use crate::quantities::task_id;

/// At most one of them.
#[derive(Clone, Debug, Default, Args)]
#[group(id = "target", multiple = false)]
pub struct Targets {
    /// Observe these running processes, with all their threads
    #[arg(short, long, value_name = "PIDS", value_delimiter = ',', value_parser = task_id)]
    pub pid: Vec<u32>,
    /// Observe these threads
    #[arg(short, long, value_name = "TIDS", value_delimiter = ',', value_parser = task_id)]
    pub tid: Vec<u32>,
    /// Observe all processes on all processors
    #[arg(short, long)]
    pub all: bool,
    /// Observe all processes on these processors (0-3,8)
    #[arg(short = 'C', long, value_name = "CPUS", value_parser = cpus)]
    pub cpu: Option<Cpus>,
    /// Observe this control group; the path starts below the root of the hierarchy
    #[arg(short = 'G', long, value_name = "CGROUP")]
    pub cgroup: Option<String>,
    /// Observe this container, by name or id (Docker, Podman, containerd)
    #[arg(long, value_name = "NAME|ID")]
    pub container: Option<String>,
}

/// Processors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cpus(Vec<u32>);

fn cpus(text: &str) -> Result<Cpus, String> {
    let list = events::cpu_list(text).filter(|list| !list.is_empty());
    list.map(Cpus)
        .ok_or_else(|| "expected processors, for example 0-3,8".to_owned())
}

impl Targets {
    /// The target that the options name, if any.
    ///
    /// # Errors
    /// There is no such control group or container.
    fn named(&self) -> anyhow::Result<Option<Target>> {
        Ok(Some(if !self.pid.is_empty() {
            Target::Processes(self.pid.clone())
        } else if !self.tid.is_empty() {
            Target::Threads(self.tid.clone())
        } else if let Some(cpus) = &self.cpu {
            Target::AllProcesses(Some(cpus.0.clone()))
        } else if self.all {
            Target::AllProcesses(None)
        } else if let Some(name) = &self.cgroup {
            Target::Cgroup(cgroup(name)?)
        } else if let Some(name) = &self.container {
            Target::Cgroup(container(name)?)
        } else {
            return Ok(None);
        }))
    }

    /// Whether they name other targets than processes; only counters can observe those.
    pub fn are_wide(&self) -> bool {
        let group = self.cgroup.is_some() || self.container.is_some();
        self.all || self.cpu.is_some() || group || !self.tid.is_empty()
    }

    /// Whether any target is named.
    pub fn are_any(&self) -> bool {
        self.are_wide() || !self.pid.is_empty()
    }

    /// The target, and a program whose end stops the run. Without named targets the
    /// command itself is the target.
    ///
    /// # Errors
    /// There is no such control group or container.
    pub fn with(&self, command: &[String]) -> anyhow::Result<(Target, Option<Vec<String>>)> {
        let command = command.to_vec();
        Ok(match self.named()? {
            None => (Target::Command(command), None),
            Some(target) => (target, (!command.is_empty()).then_some(command)),
        })
    }
}
