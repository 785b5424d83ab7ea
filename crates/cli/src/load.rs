//! Reads rows of keys and values from the user's files, one row at a time.
//!
//! Invariant: no row exceeds the user's limit, so an unclosed quote is an error and does not
//! exhaust memory.

pub(crate) mod ahead;
mod compressed;
pub(crate) mod delimited;
pub(crate) mod input;
pub(crate) mod json_lines;
pub(crate) mod layout;
mod records;

use clap::ValueEnum;

use crate::exit::Failure;

/// The format of a file of rows.
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

/// An error in a row.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Problem {
    /// The line, counted from 1; 0 if the error has no line.
    pub(crate) line: u64,
    /// Description of the error.
    pub(crate) message: String,
    /// Whether the error affects one row only, so that later rows can still be read.
    pub(crate) is_of_one_row: bool,
}

impl Problem {
    fn new(line: u64, message: impl Into<String>) -> Self {
        Self { line, message: message.into(), is_of_one_row: false }
    }

    /// An error of one row.
    pub(crate) fn of_row(line: u64, message: impl Into<String>) -> Self {
        Self { is_of_one_row: true, ..Self::new(line, message) }
    }

    fn unreadable(error: &std::io::Error) -> Self {
        Self::new(0, format!("cannot be read: {error}"))
    }

    fn too_long(line: u64, max_bytes: usize, hint: &str) -> Self {
        let max = crate::size::show_size(max_bytes as u64);
        Self::new(
            line,
            format!("the row is longer than {max}{hint}; raise the limit with --max-row"),
        )
    }
}

impl Problem {
    /// The error as reported to the user.
    pub(crate) fn in_file(&self, name: &str) -> Failure {
        match self.line {
            0 => Failure::usage(format!("{name}: {}", self.message)),
            line => Failure::usage(format!("{name}, line {line}: {}", self.message)),
        }
    }
}

/// A source of rows.
pub(crate) trait Rows {
    /// Replaces the contents of the buffers with the next row's key and value, and returns the
    /// row's first line; `None` at the end. After an error of one row, the next call reads the
    /// following row. After any other error there is no next row.
    fn next(&mut self, key: &mut Vec<u8>, value: &mut Vec<u8>) -> Result<Option<u64>, Problem>;
}
