//! Sends metrics to a collector at regular intervals.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::metrics::{Families, Family, MetricDefinition};

/// Sends a set of metrics. The error is a message.
pub type SendMetrics = dyn Fn(&[Family]) -> Result<(), String> + Send;

/// Called with the result of sending.
pub type ReportOutcome = dyn Fn(&Result<(), String>) + Send;

/// Where and how often metrics are sent.
pub struct Push {
    /// Interval.
    pub every: Duration,
    /// Sends the metrics.
    pub send: Box<SendMetrics>,
    /// Called for the first error after a success, and the first success after an error.
    pub report: Box<ReportOutcome>,
}

/// Number of attempts by outcome.
#[derive(Debug, Default)]
pub(crate) struct Pushes {
    pub(crate) accepted: AtomicU64,
    pub(crate) failed: AtomicU64,
}

/// Sends metrics until it is dropped, and once more then.
pub(crate) struct Pusher(Option<(Sender<()>, JoinHandle<()>)>);

impl Pusher {
    /// Starts to send. `count` is called with the result of each attempt.
    pub(crate) fn start(
        push: Push,
        metrics: impl Fn() -> Vec<Family> + Send + 'static,
        count: impl Fn(&Result<(), String>) + Send + 'static,
    ) -> std::io::Result<Pusher> {
        let (stop_sender, stop_receiver) = channel::<()>();
        let thread = Builder::new().name("push".to_owned()).spawn(move || {
            let (mut continues, mut has_failed) = (true, false);
            let mut due = Instant::now() + push.every;
            while continues {
                let wait = due.saturating_duration_since(Instant::now());
                continues = stop_receiver.recv_timeout(wait) == Err(RecvTimeoutError::Timeout);
                due += push.every;
                let sent = (push.send)(&metrics());
                count(&sent);
                if has_failed != sent.is_err() {
                    has_failed = sent.is_err();
                    (push.report)(&sent);
                }
            }
        })?;
        Ok(Pusher(Some((stop_sender, thread))))
    }
}

impl Pushes {
    pub(crate) fn count(&self, sent: &Result<(), String>) {
        let of = match sent {
            Ok(()) => &self.accepted,
            Err(_) => &self.failed,
        };
        of.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds the metrics of pushes.
    pub(crate) fn add_metrics(&self, families: &mut Families) {
        let outcomes = [("taken", &self.accepted), ("failed", &self.failed)];
        let outcomes = outcomes.map(|(outcome, count)| {
            let label = vec![("outcome", outcome.to_owned())];
            (label, count.load(Ordering::Relaxed))
        });
        let help = "Times that metrics were sent to the collector, by outcome.";
        families.add(MetricDefinition::counter("memgauge_pushes", help), outcomes);
    }
}

impl Drop for Pusher {
    fn drop(&mut self) {
        if let Some((stop_sender, thread)) = self.0.take() {
            drop(stop_sender);
            let _ = thread.join();
        }
    }
}
