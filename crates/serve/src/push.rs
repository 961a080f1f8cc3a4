//! Metrics sent to a collector, again and again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use crate::metrics::{Families, Family, Kind};

/// Sends a set of metrics. An error says in words why it was not taken.
pub type SendMetrics = dyn Fn(&[Family]) -> Result<(), String> + Send;

/// Told how sending went.
pub type Tell = dyn Fn(&Result<(), String>) + Send;

/// Where metrics are sent to, and how often.
pub struct Push {
    /// Between two times.
    pub every: Duration,
    /// Sends them.
    pub send: Box<SendMetrics>,
    /// Told the first error after a success, and the first success after an error.
    pub tell: Box<Tell>,
}

/// How often metrics were taken, and how often not.
#[derive(Debug, Default)]
pub(crate) struct Pushes {
    pub(crate) taken: AtomicU64,
    pub(crate) failed: AtomicU64,
}

/// Sends until it is dropped, and once more then.
pub(crate) struct Pusher(Option<(Sender<()>, JoinHandle<()>)>);

impl Pusher {
    /// `count` is told of each attempt.
    pub(crate) fn start(
        push: Push,
        metrics: impl Fn() -> Vec<Family> + Send + 'static,
        count: impl Fn(&Result<(), String>) + Send + 'static,
    ) -> std::io::Result<Pusher> {
        let (over, ended) = channel::<()>();
        let thread = Builder::new().name("push".to_owned()).spawn(move || {
            let (mut goes_on, mut failing) = (true, false);
            let mut due = Instant::now() + push.every;
            while goes_on {
                let wait = due.saturating_duration_since(Instant::now());
                goes_on = ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout);
                due += push.every;
                let sent = (push.send)(&metrics());
                count(&sent);
                if failing != sent.is_err() {
                    failing = sent.is_err();
                    (push.tell)(&sent);
                }
            }
        })?;
        Ok(Pusher(Some((over, thread))))
    }
}

impl Pushes {
    pub(crate) fn count(&self, sent: &Result<(), String>) {
        let of = match sent {
            Ok(()) => &self.taken,
            Err(_) => &self.failed,
        };
        of.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds its metrics.
    pub(crate) fn add_to(&self, families: &mut Families) {
        let outcomes = [("taken", &self.taken), ("failed", &self.failed)];
        let outcomes = outcomes.map(|(outcome, count)| {
            let label = vec![("outcome", outcome.to_owned())];
            (label, count.load(Ordering::Relaxed))
        });
        let help = "Times that metrics were sent to the collector, by outcome.";
        families.add(("memgauge_pushes", Kind::Counter), help, outcomes);
    }
}

impl Drop for Pusher {
    fn drop(&mut self) {
        if let Some((over, thread)) = self.0.take() {
            drop(over);
            let _ = thread.join();
        }
    }
}
