//! What each commit changed, from one `git diff-tree --stdin`.
//!
//! A request is a line with a commit and the commit to compare it with, and behind it a line that is no name: git echoes such a line
//! and flushes, which marks the end of the answer. Without the mark an answer could only be told from the next one's beginning.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout};

use crate::exit::Failure;
use crate::git::object_id::ObjectId;
use crate::git::process::{Input, Process};
use crate::git::repository::Repository;

/// The most requests ahead of the answers: 133 bytes each, they fit into the smallest pipe that the system makes (4 KiB).
pub(super) const REQUESTS_MAX: usize = 24;
/// After that many answers git's process is replaced: it keeps every commit that it has seen.
const ANSWERS_MAX: u64 = 50_000;
/// Longer paths than this are no keys anyway, and are cut; so a line of the answer is bounded.
const PATH_BYTES_MAX: u64 = 64 * 1024;

/// A file that differs.
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
pub(super) enum Piece {
    /// The comparison succeeded; changes follow.
    Start,
    Change(Change),
    /// The answer is complete.
    End,
    /// Git has died, of a folder that is missing.
    Died,
}

/// The process.
#[derive(Debug)]
pub(super) struct Changes<'r> {
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
    pub(super) fn new(repository: &'r Repository) -> Self {
        Self { repository, open: None, answers: 0 }
    }

    /// Whether the process should be let go once all answers are read.
    pub(super) fn worn_out(&self) -> bool {
        self.answers >= ANSWERS_MAX
    }

    /// Lets the process go; returns its last words. The next request starts another.
    pub(super) fn restart(&mut self) -> String {
        self.answers = 0;
        let Some(Open { process, input, output }) = self.open.take() else { return String::new() };
        // With its pipes closed it ends, if it has not yet.
        drop((input, output));
        process.last_words()
    }

    /// Asks what changed from `base` to `target`, both commits or both trees.
    pub(super) fn ask(&mut self, base: &ObjectId, target: &ObjectId, kind: Compared) -> Result<(), Failure> {
        if self.open.is_none() {
            self.open = Some(Open::start(self.repository)?);
        }
        let open = self.open.as_mut().expect("opened above");
        let request = match kind {
            Compared::Commits => format!("{target} {base}\n;\n"),
            Compared::Trees => format!("{base} {target}\n;\n"),
        };
        // A process that died is noticed where its answer is read.
        let _ = open.input.write_all(request.as_bytes());
        Ok(())
    }

    /// The next piece of the answer to the oldest request.
    pub(super) fn next(&mut self) -> Result<Piece, Failure> {
        let open = self.open.as_mut().expect("an answer is read after a request");
        let piece = read_piece(&mut open.output).map_err(|error| open.process.broken(&error.to_string()))?;
        self.answers += u64::from(piece == Piece::End);
        Ok(piece)
    }
}

/// What a request names.
#[derive(Clone, Copy)]
pub(super) enum Compared {
    Commits,
    Trees,
}

impl Open {
    fn start(repository: &Repository) -> Result<Self, Failure> {
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

/// Before the changes stands the commit's name and a zero byte, or two trees' names and a line break.
fn read_start(output: &mut impl BufRead) -> io::Result<Piece> {
    let mut byte = [0];
    for _ in 0..256 {
        output.read_exact(&mut byte)?;
        if matches!(byte[0], 0 | b'\n') {
            return Ok(Piece::Start);
        }
    }
    Err(not_understood(b"a line without an end"))
}

/// `:100644 100644 <name> <name> M`, zero byte, path, zero byte.
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

/// Outer `None`: not understood; inner `None`: no file there.
fn file(mode: &str, id: &str) -> Option<Option<File>> {
    let id = ObjectId::parse(id.as_bytes())?;
    Some((mode != "000000").then_some(File { id, submodule: mode == "160000" }))
}

/// What stands before `end`; the rest of what is too long is thrown away.
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
    io::Error::new(io::ErrorKind::InvalidData, format!("not understood: {}", crate::bytes::show_bytes(bytes)))
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
    fn answers_are_read_up_to_their_marks() {
        let (zero, one, two) = ("0".repeat(40), "1".repeat(40), "2".repeat(40));
        let output = format!(
            "{one}\0:000000 100644 {zero} {one} A\0a b\nc\0:100644 160000 {one} {two} T\0m\0;\n{one} {two}\n:100644 000000 {two} {zero} D\0d\0;\n"
        );
        let file = |digit, submodule| Some(File { id: id(digit), submodule });
        let change = |path: &str, before, after| Piece::Change(Change { path: path.into(), before, after });
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
    fn nonsense_and_a_torn_line_are_errors() {
        for mut wrong in [&b":100644 x\0path\0"[..], b":100644", &[b'x'; 300]] {
            assert!(read_piece(&mut wrong).is_err());
        }
    }

    #[test]
    fn a_path_beyond_any_key_is_cut_and_the_next_line_is_whole() {
        let long =
            [b":000000 100644 ", &[b'0'; 40][..], b" ", &[b'1'; 40], b" A\0", &[b'p'; 100_000], b"\0;\n"].concat();
        let read = pieces(&long);
        assert!(matches!(&read[0], Piece::Change(change) if change.path.len() as u64 == PATH_BYTES_MAX));
        assert_eq!(read[1], Piece::End);
    }
}
