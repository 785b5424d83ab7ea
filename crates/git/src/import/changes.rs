//! The files that each commit changed, read from one `git diff-tree --stdin` process.
//!
//! A request is two lines: the commit and its base, then `;`. Git echoes a line that names no
//! object and flushes its output, so the `;` marks the end of the answer. Without the mark, only
//! the next answer would show that this one is complete.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout};

use crate::error::Result;
use crate::object_id::ObjectId;
use crate::process::{Input, Process};
use crate::repository::Repository;

/// Maximum number of unanswered requests. At 133 bytes each they fit into the smallest pipe that
/// the system creates (4 KiB).
pub(crate) const REQUESTS_MAX: usize = 24;
/// Number of answers after which the process is replaced, because git keeps every commit that it
/// has read in memory.
const ANSWERS_MAX: u64 = 50_000;
/// Longer paths are truncated, which bounds the length of a line. They are too long for keys
/// anyway.
const PATH_BYTES_MAX: u64 = 64 * 1024;

/// A file that differs between two commits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) path: Vec<u8>,
    pub(crate) before: Option<File>,
    pub(crate) after: Option<File>,
}

/// A file at one commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct File {
    pub(crate) id: ObjectId,
    pub(crate) submodule: bool,
}

/// A piece of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// The answer begins; changes follow.
    Start,
    Change(Change),
    /// The answer is complete.
    End,
    /// Git exited, because a tree is missing.
    Died,
}

/// The git process, if it is running.
#[derive(Debug)]
pub(crate) struct Changes<'r> {
    repository: &'r Repository,
    open: Option<Open>,
    answers: u64,
}

#[derive(Debug)]
struct Open {
    process: Process,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl<'r> Changes<'r> {
    pub(crate) fn new(repository: &'r Repository) -> Self {
        Self { repository, open: None, answers: 0 }
    }

    /// Whether to replace the process once all answers are read.
    pub(crate) fn worn_out(&self) -> bool {
        self.answers >= ANSWERS_MAX
    }

    /// Ends the process and returns the end of its stderr. The next request starts another process.
    pub(crate) fn restart(&mut self) -> String {
        self.answers = 0;
        let Some(Open { process, input, output }) = self.open.take() else { return String::new() };
        // Closing its pipes ends the process, if it still runs.
        drop((input, output));
        process.last_words()
    }

    /// Requests the changes from `base` to `target`: two commits or two trees.
    pub(crate) fn ask(&mut self, base: &ObjectId, target: &ObjectId, kind: Compared) -> Result<()> {
        if self.open.is_none() {
            self.open = Some(Open::start(self.repository)?);
        }
        let open = self.open.as_mut().expect("opened above");
        let request = match kind {
            Compared::Commits => format!("{target} {base}\n;\n"),
            Compared::Trees => format!("{base} {target}\n;\n"),
        };
        // If the process has ended, reading its answer reports it.
        let _ = open.input.write_all(request.as_bytes());
        Ok(())
    }

    /// Reads the next piece of the answer to the oldest request.
    pub(crate) fn next(&mut self) -> Result<Piece> {
        let open = self.open.as_mut().expect("an answer is read after a request");
        let piece = read_piece(&mut open.output)
            .map_err(|error| open.process.broken(&error.to_string()))?;
        self.answers += u64::from(piece == Piece::End);
        Ok(piece)
    }
}

/// The kind of objects in a request.
#[derive(Clone, Copy)]
pub(crate) enum Compared {
    Commits,
    Trees,
}

impl Open {
    fn start(repository: &Repository) -> Result<Self> {
        let arguments = [
            "diff-tree",
            "--stdin",
            "--raw",
            "-r",
            "-z",
            "--no-abbrev",
            "--no-renames",
            "--always",
            "--ignore-submodules=none",
        ];
        let mut process = repository.git().start(&arguments, Input::Ours)?;
        let (input, output) = (process.take_input(), process.take_output());
        Ok(Self { process, input, output: BufReader::with_capacity(64 * 1024, output) })
    }
}

fn read_piece(output: &mut impl BufRead) -> io::Result<Piece> {
    let Some(&first) = output.fill_buf()?.first() else { return Ok(Piece::Died) };
    match first {
        b':' => read_change(output),
        b';' => {
            read_to(output, b'\n')?;
            Ok(Piece::End)
        }
        _ => read_start(output),
    }
}

/// An answer starts with the commit's id and a zero byte, or with the ids of two trees and a line
/// break.
fn read_start(output: &mut impl BufRead) -> io::Result<Piece> {
    let mut byte = [0];
    for _ in 0..256 {
        output.read_exact(&mut byte)?;
        if matches!(byte[0], 0 | b'\n') {
            return Ok(Piece::Start);
        }
    }
    Err(not_understood(b"a line without end"))
}

/// Parses `:100644 100644 <name> <name> M`, zero byte, path, zero byte.
fn read_change(output: &mut impl BufRead) -> io::Result<Piece> {
    let facts = read_to(output, 0)?;
    let path = read_to(output, 0)?;
    let (before, after) = parse_facts(&facts).ok_or_else(|| not_understood(&facts))?;
    Ok(Piece::Change(Change { path, before, after }))
}

fn parse_facts(facts: &[u8]) -> Option<(Option<File>, Option<File>)> {
    let mut words = std::str::from_utf8(facts).ok()?.strip_prefix(':')?.split(' ');
    let (mode_before, mode_after) = (words.next()?, words.next()?);
    let (before, after) = (words.next()?, words.next()?);
    Some((file(mode_before, before)?, file(mode_after, after)?))
}

/// Outer `None`: malformed; inner `None`: the file does not exist.
fn file(mode: &str, id: &str) -> Option<Option<File>> {
    let id = ObjectId::parse(id.as_bytes())?;
    Some((mode != "000000").then_some(File { id, submodule: mode == "160000" }))
}

/// Reads up to and including `end`; returns the bytes before it, truncated at the longest path.
fn read_to(output: &mut impl BufRead, end: u8) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    io::Read::take(&mut *output, PATH_BYTES_MAX).read_until(end, &mut bytes)?;
    if bytes.last() == Some(&end) {
        bytes.pop();
        return Ok(bytes);
    }
    if bytes.len() as u64 == PATH_BYTES_MAX {
        output.skip_until(end)?;
        return Ok(bytes);
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

fn not_understood(bytes: &[u8]) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not understood: {}", bytes.escape_ascii()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(mut output: &[u8]) -> Vec<Piece> {
        let mut pieces = Vec::new();
        loop {
            pieces.push(read_piece(&mut output).unwrap());
            if pieces.last() == Some(&Piece::Died) {
                return pieces;
            }
        }
    }

    fn id(digit: u8) -> ObjectId {
        ObjectId::parse(&[digit; 40]).unwrap()
    }

    #[test]
    fn answers_end_at_their_marks() {
        let (zero, one, two) = ("0".repeat(40), "1".repeat(40), "2".repeat(40));
        let output = format!(
            "{one}\0:000000 100644 {zero} {one} A\0a b\nc\0:100644 160000 {one} {two} \
             T\0m\0;\n{one} {two}\n:100644 000000 {two} {zero} D\0d\0;\n"
        );
        let file = |digit, submodule| Some(File { id: id(digit), submodule });
        let change =
            |path: &str, before, after| Piece::Change(Change { path: path.into(), before, after });
        let expected = [
            Piece::Start,
            change("a b\nc", None, file(b'1', false)),
            change("m", file(b'1', false), file(b'2', true)),
            Piece::End,
            Piece::Start,
            change("d", file(b'2', false), None),
            Piece::End,
            Piece::Died,
        ];
        assert_eq!(pieces(output.as_bytes()), expected);
    }

    #[test]
    fn malformed_and_truncated_lines_are_errors() {
        for mut wrong in [&b":100644 x\0path\0"[..], b":100644", &[b'x'; 300]] {
            assert!(read_piece(&mut wrong).is_err());
        }
    }

    #[test]
    fn overlong_path_is_truncated() {
        let long = [
            b":000000 100644 ",
            &[b'0'; 40][..],
            b" ",
            &[b'1'; 40],
            b" A\0",
            &[b'p'; 100_000],
            b"\0;\n",
        ]
        .concat();
        let read = pieces(&long);
        assert!(
            matches!(&read[0], Piece::Change(change) if change.path.len() as u64 == PATH_BYTES_MAX)
        );
        assert_eq!(read[1], Piece::End);
    }
}
