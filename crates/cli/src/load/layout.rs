//! The row layout of a file.

use super::Rows;
use super::ahead::Opened;
use super::delimited::{Delimited, Lines};
use super::input::Input;
use super::json_lines::JsonLines;

/// The format of rows, and which columns or fields are key and value.
pub(crate) enum Layout {
    /// Delimited records. By default the key is the first column and the value is the rest of the
    /// row.
    Delimited {
        /// Delimiters and quoting.
        lines: Lines,
        /// The key's column.
        key: Option<String>,
        /// The value's column.
        value: Option<String>,
    },
    /// One JSON object per line.
    JsonLines {
        /// The key's field.
        key: String,
        /// The value's field; by default the rest of the object.
        value: Option<String>,
        /// Maximum row size in bytes.
        row_bytes_max: usize,
    },
}

impl Layout {
    /// Opens a file, and reads its header if it has one.
    pub(crate) fn open(self, input: Input) -> Opened {
        let name = input.name.clone();
        let reader = input.open_text()?;
        let rows: Box<dyn Rows + Send> = match self {
            Self::Delimited { lines, key, value } => {
                let rows = Delimited::open(reader, lines, key.as_deref(), value.as_deref());
                Box::new(rows.map_err(|problem| problem.in_file(&name))?)
            }
            Self::JsonLines { key, value, row_bytes_max } => {
                Box::new(JsonLines::new(reader, &key, value.as_deref(), row_bytes_max))
            }
        };
        Ok(rows)
    }
}
