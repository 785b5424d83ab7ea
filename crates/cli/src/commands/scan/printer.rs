//! Prints a key and its value for each kind of reader.

use std::io::Read;

use plimsoll::ValueReader;
use serde_json::{Map, Value};

use crate::args::Scan;
use crate::bytes::{preview, push_field, put_json, show_key};
use crate::exit::Failure;
use crate::output::{Output, Reader, Style};
use crate::values::{PIECE_BYTES, beginning, write_field, write_json_member};

/// Prints pairs; reuses one line buffer.
#[derive(Default)]
pub(super) struct Printer {
    keys_only: bool,
    null: bool,
    hex: bool,
    width: usize,
    line: Vec<u8>,
}

impl Printer {
    pub(super) fn new(args: &Scan, output: &Output) -> Self {
        Self {
            keys_only: args.keys_only,
            null: args.null,
            hex: args.keys.hex,
            width: output.width(),
            line: Vec::new(),
        }
    }

    /// Prints a pair whose value is in memory. If only keys are wanted, the value is ignored.
    pub(super) fn print(
        &mut self,
        key: &[u8],
        value: &[u8],
        output: &mut Output,
    ) -> Result<(), Failure> {
        if self.null {
            output.raw(key)?;
            return output.raw(b"\0");
        }
        if value.len() > PIECE_BYTES && !self.keys_only && output.reader() != Reader::People {
            return self.print_large(key, &|| Ok(value), output);
        }
        match output.reader() {
            Reader::People => output.line(&self.shown(key)),
            Reader::Json => {
                let mut object = self.object(key);
                if !self.keys_only {
                    put_json(&mut object, "value", value);
                }
                output.json(&object)
            }
            Reader::Pipe => {
                self.begin_line(key);
                if !self.keys_only {
                    push_field(&mut self.line, value);
                }
                self.line.push(b'\n');
                output.raw(&self.line)
            }
        }
    }

    /// Prints a pair whose value is read in pieces.
    pub(super) fn print_large<R: Read>(
        &mut self,
        key: &[u8],
        open: &dyn Fn() -> Result<R, Failure>,
        output: &mut Output,
    ) -> Result<(), Failure> {
        if output.reader() == Reader::Json {
            output.open_object(&self.object(key))?;
            write_json_member(open, output)?;
            return output.raw(b"}\n");
        }
        self.begin_line(key);
        output.raw(&self.line)?;
        write_field(open()?, output)?;
        output.raw(b"\n")
    }

    /// Prints a pair on one line of a terminal.
    pub(super) fn print_for_people(
        &self,
        key: &[u8],
        value: ValueReader,
        output: &mut Output,
    ) -> Result<(), Failure> {
        let key = self.shown(key);
        let left = self.width.saturating_sub(key.chars().count() + 2).max(24);
        let bytes = value.len();
        // A character takes at most four bytes.
        let head = beginning(value, left * 4)?;
        let key = output.paint(Style::Strong, &key);
        output.line(&format!("{key}  {}", preview(&head, bytes, left)))
    }

    fn shown(&self, key: &[u8]) -> String {
        show_key(key, self.hex)
    }

    fn object(&self, key: &[u8]) -> Map<String, Value> {
        let mut object = Map::new();
        match self.hex {
            true => drop(object.insert("key_hex".to_owned(), hex::encode(key).into())),
            false => put_json(&mut object, "key", key),
        }
        object
    }

    fn begin_line(&mut self, key: &[u8]) {
        self.line.clear();
        self.line.extend_from_slice(self.shown(key).as_bytes());
        if !self.keys_only {
            self.line.push(b'\t');
        }
    }
}
