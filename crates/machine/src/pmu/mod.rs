//! The modelled PMU: counters, samples and counter series.
//!
//! All events are counted all the time. The number of counters is not limited. A [`SampleSpec`]
//! makes an event overflow each time it has occurred `period` times. An interval produces a
//! [`Tick`] of all counters at each multiple of its length in virtual time.
//!
//! By default delivery is ideal: the overflow record names the access that caused it, no record is
//! lost, and sampling costs the program nothing (`sampling`). Any other [`Delivery`] goes through a
//! courier. It costs time, loses events, and changes the program's own counts. Series are not
//! affected.

mod courier;
mod delivery;
mod sampling;
mod series;

pub(crate) use courier::{Courier, CourierCore};
pub use delivery::{Delivered, Delivery, Interrupt, Pipeline, Precise, Tagged};
pub use sampling::SampledOverflow;
pub(crate) use sampling::{SampledAccess, Sampler};
pub(crate) use series::CounterSeries;
pub use series::Tick;

use memgauge_trace::{EventId, catalogue};

use crate::events;

/// An event to sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleSpec {
    /// A catalogued event.
    pub event: EventId,
    /// Events (in the event's unit) between two overflows, not 0.
    pub period: u64,
}

/// Settings of the PMU other than counting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PmuConfig {
    /// Events to sample.
    pub samples: Vec<SampleSpec>,
    /// Length of the intervals of a series in virtual nanoseconds, not 0.
    pub interval_ns: Option<u64>,
    /// Delivery of overflow records.
    pub delivery: Delivery,
}

impl PmuConfig {
    /// Returns the field that the model cannot represent, and the reason.
    pub(crate) fn check(&self) -> Result<(), (String, String)> {
        for (at, spec) in self.samples.iter().enumerate() {
            if usize::from(spec.event.0) >= catalogue::COUNT {
                let why = format!("`{}` is not a catalogued event", spec.event.0);
                return Err((format!("samples[{at}].event"), why));
            }
            let tagged = matches!(self.delivery, Delivery::Tagged(_));
            if tagged && !events::is_memory(spec.event) {
                let why = "happens at no access, so no operation can be tagged for it";
                return Err((format!("samples[{at}].event"), why.to_owned()));
            }
            if spec.period == 0 {
                return Err((
                    format!("samples[{at}].period"),
                    "`0` is not positive".to_owned(),
                ));
            }
        }
        if self.interval_ns == Some(0) {
            return Err(("interval_ns".to_owned(), "`0` is not positive".to_owned()));
        }
        self.delivery.check()
    }
}
