//! The progress bar on stderr: shown on a terminal only, and removed before other messages.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar that is removed on drop.
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Counts things; without a total it shows the count alone. `what` is their plural name.
    pub(crate) fn of_items(total: Option<u64>, what: &str) -> Self {
        let unit = format!("{{human_pos}}/{{human_len}} {what}");
        Self::with(total, &unit, &format!("{{human_pos}} {what}"))
    }

    /// Counts bytes.
    pub(crate) fn of_bytes(total: Option<u64>) -> Self {
        Self::with(total, "{binary_bytes}/{binary_total_bytes}", "{binary_bytes}")
    }

    fn with(total: Option<u64>, known: &str, unknown: &str) -> Self {
        let template = match total {
            Some(_) => format!("{{elapsed}} [{{bar:32}}] {known}, {{eta}} left  {{wide_msg}}"),
            None => format!("{{elapsed}} {unknown}  {{wide_msg}}"),
        };
        let style =
            ProgressStyle::with_template(&template).expect("the templates above are well formed");
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr_with_hz(10));
        bar.set_style(style.progress_chars("=> "));
        Self { bar }
    }

    /// Whether the bar is visible; if not, its text need not be computed.
    pub(crate) fn visible(&self) -> bool {
        !self.bar.is_hidden()
    }

    /// Sets the position.
    pub(crate) fn set(&self, position: u64) {
        self.bar.set_position(position);
    }

    /// Sets the position and the total.
    pub(crate) fn set_of(&self, position: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(position);
    }

    /// Sets the text next to the bar.
    pub(crate) fn say(&self, words: String) {
        if self.visible() {
            self.bar.set_message(words);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
