//! Failures: differences between the store and the model.

use std::fmt;

/// A failure, and its place in the workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The store's answer and the expected one.
    pub message: String,
    /// Number of the operation, from 0, and its text; `None` outside any.
    pub at: Option<(usize, String)>,
}

/// Result of a run.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure outside any operation.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), at: None }
    }

    /// Adds the operation at which it happened.
    pub fn at(mut self, number: usize, op: impl fmt::Display) -> Self {
        self.at.get_or_insert_with(|| (number, op.to_string()));
        self
    }

    /// Adds where it happened.
    pub fn within(self, place: &str) -> Self {
        Self { message: format!("{place}: {}", self.message), ..self }
    }

    /// The kind of failure: its message without numbers and names, to recognize the same failure in
    /// a shortened run.
    pub fn sort(&self) -> String {
        let words = self.message.split_whitespace();
        let plain = |word: &&str| {
            word.chars().all(|letter| letter.is_alphabetic() || ",:;'()`".contains(letter))
        };
        words.filter(plain).take(12).collect::<Vec<_>>().join(" ")
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.at {
            Some((number, op)) => write!(f, "operation {number} ({op}): {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

/// Fails unless two answers are the same.
pub(crate) fn same<T: PartialEq + fmt::Debug>(
    what: impl fmt::Display,
    store: &T,
    model: &T,
) -> Outcome {
    if store == model {
        return Ok(());
    }
    let show = |value: &T| {
        let mut text = format!("{value:?}");
        if let Some((end, _)) = text.char_indices().nth(2000) {
            text.truncate(end);
            text.push('…');
        }
        text
    };
    Err(Failure::new(format!("{what}: the store says {}, the model {}", show(store), show(model))))
}

/// Fails with a message unless the condition holds.
pub(crate) fn ensure(holds: bool, message: impl FnOnce() -> String) -> Outcome {
    if holds { Ok(()) } else { Err(Failure::new(message())) }
}
