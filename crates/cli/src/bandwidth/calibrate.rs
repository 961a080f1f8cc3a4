//! `memgauge calibrate`.

use memgauge_calibration::{MeasuredLosses, Settings};
use memgauge_console::outcome::{Exit, usage};
use memgauge_console::terminal;
use memgauge_emulate::geometry;
use memgauge_machine::Delivery;

use super::args::Calibrate;

/// Measures losses, prints them and stores them.
pub(crate) fn calibrate(args: &Calibrate) -> anyhow::Result<Exit> {
    if args.delivery.0 == Delivery::Ideal {
        return Err(usage(
            "failed to calibrate: ideal delivery loses nothing; name another with --delivery",
        ));
    }
    let losses = MeasuredLosses::measure(&Settings {
        machine: geometry::machine(&args.machine)?,
        delivery: args.delivery.0,
        delivery_name: args.delivery.name().to_owned(),
        event: args.event.event,
        periods: args.periods.clone(),
        repeat: args.repeat,
    })?;
    let path = match args.dry_run {
        true => None,
        false => Some(losses.calibration.store()?),
    };
    terminal::print(&match args.json {
        true => format!("{:#}\n", losses.json()),
        false => losses.text(path.as_deref()),
    })?;
    Ok(Exit::Success)
}
