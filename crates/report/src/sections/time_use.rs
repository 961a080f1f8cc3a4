//! Cycles by use.

use memgauge_analyze::{Summary, TimeUse};

use super::provenance;
use crate::style::{Role, Style};
use crate::units;

/// Width of a bar for all cycles.
const BAR: f64 = 40.0;

pub(super) fn time_use(summary: &Summary, style: &Style) -> String {
    if summary.time.is_empty() {
        return String::new();
    }
    let mut text = style.heading("Where the time goes", &provenance(summary));
    let block = if style.unicode { "█" } else { "#" };
    for part in summary.time.iter().filter(|part| part.cycles > 0) {
        let bar = block.repeat((part.share * BAR).round() as usize);
        let cycles = units::count(part.cycles);
        text += &format!(
            "  {:>7}  {cycles:>6} cycles  {:<24}  {}\n",
            units::share(part.share),
            words(part.on),
            style.paint(Role::Quiet, &bar),
        );
    }
    text
}

pub(super) fn words(on: TimeUse) -> &'static str {
    match on {
        TimeUse::Work => "work",
        TimeUse::L2 => "waiting for L2",
        TimeUse::Llc => "waiting for the LLC",
        TimeUse::Dram => "waiting for DRAM",
        TimeUse::Queue => "queued at DRAM",
        TimeUse::Tlb => "translating addresses",
        TimeUse::Stores => "waiting for stores",
        TimeUse::Sharing => "waiting for other cores",
    }
}
