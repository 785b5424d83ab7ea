//! Standard output for three kinds of reader: people at a terminal, a pipe, and a program that
//! asked for JSON.
//!
//! Invariant: colour goes to a terminal only, or anywhere with `--color always`. A pipe gets rows
//! as tab-separated lines and a single value or number as it is, regardless of colour. A summary
//! (`stat`, the result of an import) has the same text for a pipe as for people.

use std::io::{self, BufWriter, IsTerminal, Stdout, Write};

use clap::ValueEnum;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::tcgetwinsize;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::exit::Failure;

/// The kind of reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reader {
    /// A terminal.
    People,
    /// A pipe or a file.
    Pipe,
    /// A program that asked for JSON.
    Json,
}

/// When to use colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Colour {
    Auto,
    Always,
    Never,
}

/// Text styles on a terminal.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Style {
    Strong,
    Faint,
    Good,
    Bad,
    Changed,
}

impl Style {
    fn code(self) -> &'static str {
        match self {
            Self::Strong => "1",
            Self::Faint => "2",
            Self::Good => "32",
            Self::Bad => "31",
            Self::Changed => "33",
        }
    }
}

/// One line of a summary: its name, its text for people, and its JSON value.
pub(crate) struct Fact {
    name: String,
    shown: String,
    value: Value,
    verbatim: bool,
}

impl Fact {
    /// `name` is in words; JSON replaces the spaces with underscores.
    pub(crate) fn new(
        name: impl Into<String>,
        shown: impl Into<String>,
        value: impl Into<Value>,
    ) -> Self {
        Self { name: name.into(), shown: shown.into(), value: value.into(), verbatim: false }
    }

    /// JSON uses the name unchanged, because it comes from the user.
    pub(crate) fn verbatim(self) -> Self {
        Self { verbatim: true, ..self }
    }

    fn json_name(&self) -> String {
        if self.verbatim {
            self.name.clone()
        } else {
            self.name.replace([' ', '-'], "_").to_lowercase()
        }
    }

    /// An amount of bytes.
    pub(crate) fn bytes(name: impl Into<String>, bytes: u64) -> Self {
        Self::new(name, crate::size::show_size(bytes), bytes)
    }

    /// A count.
    pub(crate) fn count(name: impl Into<String>, count: u64) -> Self {
        Self::new(name, crate::size::show_count(count), count)
    }
}

/// Facts under a heading.
pub(crate) struct Section {
    name: &'static str,
    facts: Vec<Fact>,
    lead: Option<&'static str>,
}

impl Section {
    /// Facts under a heading. JSON uses `name` with underscores, and merges sections of the same
    /// name into one object.
    pub(crate) fn new(name: &'static str, facts: Vec<Fact>) -> Self {
        Self { name, facts, lead: None }
    }

    /// Prints a line for people before the heading, about this section and those after it.
    pub(crate) fn with_lead(self, lead: &'static str) -> Self {
        Self { lead: Some(lead), ..self }
    }
}

/// Standard output.
pub(crate) struct Output {
    writer: BufWriter<Stdout>,
    reader: Reader,
    terminal: bool,
    colour: bool,
    printed: bool,
    outlives_reader: bool,
}

impl Output {
    /// Detects the kind of stdout.
    pub(crate) fn new(json: bool, colour: Colour) -> Self {
        let terminal = io::stdout().is_terminal();
        let reader = match (json, terminal || colour == Colour::Always) {
            (true, _) => Reader::Json,
            (false, true) => Reader::People,
            (false, false) => Reader::Pipe,
        };
        let colour = match colour {
            Colour::Always => true,
            Colour::Never => false,
            Colour::Auto => {
                terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
            }
        };
        let writer = BufWriter::with_capacity(64 * 1024, io::stdout());
        Self {
            writer,
            reader,
            terminal,
            colour: colour && !json,
            printed: false,
            outlives_reader: false,
        }
    }

    /// The kind of reader.
    pub(crate) fn reader(&self) -> Reader {
        self.reader
    }

    /// The kind of reader for output that is never coloured: a value or a single number.
    pub(crate) fn plain_reader(&self) -> Reader {
        if self.reader == Reader::People && !self.terminal { Reader::Pipe } else { self.reader }
    }

    /// Columns of the terminal; 100 if unknown. With a pager on stdout, stderr or stdin is still
    /// the terminal.
    pub(crate) fn width(&self) -> usize {
        let width = tcgetwinsize(io::stdout()).or_else(|_| tcgetwinsize(io::stderr()));
        let width =
            width.or_else(|_| tcgetwinsize(io::stdin())).map(|size| usize::from(size.ws_col));
        width.ok().filter(|&columns| columns > 0).map_or(100, |columns| columns.max(40))
    }

    /// Applies a style to the text if colour is on.
    pub(crate) fn paint(&self, style: Style, text: &str) -> String {
        if self.colour { format!("\x1b[{}m{text}\x1b[0m", style.code()) } else { text.to_owned() }
    }

    /// Whether anything was printed so far.
    pub(crate) fn has_printed(&self) -> bool {
        self.printed
    }

    /// Whether the reader has closed its end of a pipe. Needed by a command that waits without
    /// writing.
    pub(crate) fn reader_has_left(&self) -> bool {
        let stdout = io::stdout();
        let mut stdout = [PollFd::new(&stdout, PollFlags::empty())];
        // If the poll fails, the next write reports it.
        let _ = poll(&mut stdout, Some(&Timespec::default()));
        stdout[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
    }

    /// From now on, output after the reader has closed the pipe is dropped, and the command
    /// continues.
    pub(crate) fn ignore_closed_pipe(&mut self) {
        self.outlives_reader = true;
    }

    /// Writes raw bytes.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.printed |= !bytes.is_empty();
        let written = self.writer.write_all(bytes);
        self.check(written)
    }

    fn check(&self, written: io::Result<()>) -> Result<(), Failure> {
        match written.map_err(|error| Failure::of_output(&error)) {
            Err(Failure::ReaderLeft) if self.outlives_reader => Ok(()),
            written => written,
        }
    }

    /// A line of text.
    pub(crate) fn line(&mut self, text: &str) -> Result<(), Failure> {
        self.raw(text.as_bytes())?;
        self.raw(b"\n")
    }

    /// Writes a JSON value on its own line.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        self.printed = true;
        serde_json::to_writer(&mut self.writer, value)
            .map_err(|error| Failure::of_output(&error.into()))?;
        self.raw(b"\n")
    }

    /// Writes a JSON object without its closing brace, because one more member follows.
    pub(crate) fn open_object(&mut self, object: &Map<String, Value>) -> Result<(), Failure> {
        let mut text = serde_json::to_string(object).expect("text and numbers are always JSON");
        text.pop();
        text.push(',');
        self.raw(text.as_bytes())
    }

    /// Writes a tab-separated line; fields are escaped.
    pub(crate) fn fields(&mut self, fields: &[&[u8]]) -> Result<(), Failure> {
        let mut line = Vec::new();
        for (place, field) in fields.iter().enumerate() {
            if place > 0 {
                line.push(b'\t');
            }
            crate::bytes::push_field(&mut line, field);
        }
        line.push(b'\n');
        self.raw(&line)
    }

    /// Like `fields`, with a key in the form of [`crate::bytes::show_key`].
    pub(crate) fn fields_with_key(
        &mut self,
        before: &[&[u8]],
        key: &str,
        after: &[&[u8]],
    ) -> Result<(), Failure> {
        let mut line = Vec::new();
        for field in before {
            crate::bytes::push_field(&mut line, field);
            line.push(b'\t');
        }
        line.extend_from_slice(key.as_bytes());
        for field in after {
            line.push(b'\t');
            crate::bytes::push_field(&mut line, field);
        }
        line.push(b'\n');
        self.raw(&line)
    }

    /// Writes a summary: one object for a program, text for people and pipes.
    pub(crate) fn facts(&mut self, facts: &[Fact]) -> Result<(), Failure> {
        match self.reader {
            Reader::Json => self.json(&object_of(facts)),
            Reader::Pipe | Reader::People => self.aligned(facts),
        }
    }

    /// Writes several summaries: under headings for people, omitting empty ones; as an object of
    /// objects for a program.
    pub(crate) fn sections(&mut self, sections: &[Section]) -> Result<(), Failure> {
        match self.reader {
            Reader::Json => self.json(&objects_of(sections)),
            Reader::Pipe | Reader::People => sections
                .iter()
                .filter(|section| !section.facts.is_empty())
                .try_for_each(|section| {
                    if let Some(lead) = section.lead {
                        self.line("")?;
                        self.line(lead)?;
                        self.line("")?;
                    }
                    let heading = self.paint(Style::Strong, section.name);
                    self.line(&heading)?;
                    self.aligned(&section.facts)
                }),
        }
    }

    fn aligned(&mut self, facts: &[Fact]) -> Result<(), Failure> {
        let width = facts.iter().map(|fact| fact.name.chars().count()).max().unwrap_or(0);
        facts.iter().try_for_each(|fact| {
            let name = self.paint(Style::Faint, &format!("{:<width$}", fact.name));
            self.line(&format!("  {name}  {}", fact.shown))
        })
    }

    /// Prints what a command has done and flushes it. If that fails, the error includes `done`,
    /// because the command must not be run again. A closed output does not change the outcome.
    pub(crate) fn report(
        &mut self,
        done: &str,
        print: impl FnOnce(&mut Self) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        match print(self).and_then(|()| self.flush()) {
            Err(Failure::ReaderLeft) => Ok(()),
            printed => printed.map_err(|failure| failure.advise(done)),
        }
    }

    /// Flushes the output.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        let flushed = self.writer.flush();
        self.check(flushed)
    }
}

fn object_of(facts: &[Fact]) -> Map<String, Value> {
    facts.iter().map(|fact| (fact.json_name(), fact.value.clone())).collect()
}

fn objects_of(sections: &[Section]) -> Map<String, Value> {
    let mut objects: Map<String, Value> = Map::new();
    for section in sections {
        let object =
            objects.entry(section.name.replace(' ', "_")).or_insert_with(|| Map::new().into());
        object
            .as_object_mut()
            .expect("only objects are inserted")
            .extend(object_of(&section.facts));
    }
    objects
}
