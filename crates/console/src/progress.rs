//! Progress of long work: a line on standard error, only on a terminal, removed at the end.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A rotating sign with a message.
pub fn spinner(shown: bool) -> ProgressBar {
    let target = match shown {
        true => ProgressDrawTarget::stderr_with_hz(10),
        false => ProgressDrawTarget::hidden(),
    };
    let style =
        ProgressStyle::with_template("{spinner} {msg}").expect("SANITY: a constant template");
    ProgressBar::with_draw_target(None, target).with_style(style)
}
