//! One line of progress on standard error, when that is a terminal.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A line that can be there or not.
pub(super) struct Progress(Option<ProgressBar>);

impl Progress {
    /// A line, if it is wanted and anybody can see it.
    pub(super) fn start(wanted: bool) -> Self {
        let bar = (wanted && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed} {msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        Self(bar)
    }

    /// Whether there is a line.
    pub(super) fn is_shown(&self) -> bool {
        self.0.is_some()
    }

    /// Says how things stand.
    pub(super) fn show(&self, status: String) {
        if let Some(bar) = &self.0 {
            bar.set_message(status);
        }
    }

    /// Takes the line away, so that something else can be printed.
    pub(super) fn clear(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
