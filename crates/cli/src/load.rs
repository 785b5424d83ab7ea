//! Reads rows of keys and values from files of the user's, a row at a time.
//!
//! Law: a row is bounded by [`ROW_BYTES_MAX`], so a quote that is never closed costs an error and no memory.

pub(crate) mod delimited;
pub(crate) mod input;
pub(crate) mod json_lines;
mod records;

use clap::ValueEnum;

/// The longest row, in bytes.
pub(crate) const ROW_BYTES_MAX: usize = 4 << 20;

/// How rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Fields separated by commas, quoted where needed
    Csv,
    /// Fields separated by tabs, never quoted
    Tsv,
    /// One JSON object a line
    #[value(alias = "ndjson")]
    Jsonl,
}

/// What is wrong with a row.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// The line, counted from 1; 0 if it is no line's fault.
    pub(crate) line: u64,
    /// What is wrong there.
    pub(crate) message: String,
}

impl Problem {
    fn new(line: u64, message: impl Into<String>) -> Self {
        Self { line, message: message.into() }
    }

    fn unreadable(error: &std::io::Error) -> Self {
        Self::new(0, format!("cannot be read: {error}"))
    }

    fn too_long(line: u64, hint: &str) -> Self {
        Self::new(line, format!("a row of more than {}{hint}", crate::size::show_size(ROW_BYTES_MAX as u64)))
    }
}

/// A source of rows.
pub(crate) trait Rows {
    /// Puts the next row's key and value into the buffers, in place of what they held, and returns the line that it begins on; `None`
    /// at the end. After a problem there is no next row.
    fn next(&mut self, key: &mut Vec<u8>, value: &mut Vec<u8>) -> Result<Option<u64>, Problem>;
}
