//! Contents of files, read from one `git cat-file --batch` process.
//!
//! Invariant: git answers each request once, in order. A request is sent as soon as it is known, so
//! that git unpacks ahead of the reader.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::{ChildStdin, ChildStdout};

use crate::error::{Error, Result};
use crate::object_id::ObjectId;
use crate::process::{Input, Process};
use crate::repository::Repository;

/// Maximum number of unanswered requests. At 65 bytes each they fit into the smallest pipe that the
/// system creates (4 KiB).
pub(crate) const REQUESTS_MAX: usize = 60;

/// A running process and the requests that it has not answered.
#[derive(Debug)]
pub(crate) struct Blobs<'r> {
    repository: &'r Repository,
    open: Open,
    asked: VecDeque<ObjectId>,
    /// Unread bytes of the current content, including the line break after it.
    left: u64,
}

#[derive(Debug)]
struct Open {
    process: Process,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// An answer to a request.
#[derive(Debug)]
pub(crate) enum Blob {
    /// The object exists; [`Blobs::content`] reads its bytes.
    Found { bytes: u64 },
    /// The repository does not hold the object.
    Missing,
    /// The object is damaged; holds git's message.
    Damaged(String),
}

impl<'r> Blobs<'r> {
    pub(crate) fn open(repository: &'r Repository) -> Result<Self> {
        Ok(Self { repository, open: Open::start(repository)?, asked: VecDeque::new(), left: 0 })
    }

    /// Number of unread answers.
    pub(crate) fn outstanding(&self) -> usize {
        self.asked.len()
    }

    /// Requests a blob.
    pub(crate) fn ask(&mut self, id: ObjectId) {
        self.asked.push_back(id);
        self.open.ask(&id);
    }

    /// Reads the answer to the oldest request.
    pub(crate) fn next(&mut self) -> Result<Blob> {
        self.skip_rest().map_err(|error| self.broken(&error))?;
        let id = self.asked.pop_front().expect("an answer is read once for each request");
        match read_header(&mut self.open.output) {
            Ok(Header::Found { id: found, bytes }) if found == id => {
                self.left = bytes + 1;
                Ok(Blob::Found { bytes })
            }
            Ok(Header::Missing(missing)) if missing == id => Ok(Blob::Missing),
            Ok(Header::End) => Ok(Blob::Damaged(self.restart()?)),
            Ok(_) => Err(self.broken(&"it answered a request that was not sent")),
            Err(error) => Err(self.broken(&error)),
        }
    }

    /// A reader of the unread bytes of the current content.
    pub(crate) fn content(&mut self) -> Content<'_> {
        Content { output: &mut self.open.output, left: &mut self.left }
    }

    fn skip_rest(&mut self) -> io::Result<()> {
        skip(&mut self.open.output, std::mem::take(&mut self.left))
    }

    /// Starts a new process, because git exits at a damaged object, and repeats the unanswered
    /// requests.
    fn restart(&mut self) -> Result<String> {
        let Open { process, input, output } =
            std::mem::replace(&mut self.open, Open::start(self.repository)?);
        for id in &self.asked {
            self.open.ask(id);
        }
        // Closing its pipes ends the process, if it still runs.
        drop((input, output));
        Ok(process.last_words())
    }

    fn broken(&self, why: &dyn std::fmt::Display) -> Error {
        self.open.process.broken(&why.to_string())
    }
}

impl Open {
    fn start(repository: &Repository) -> Result<Self> {
        let mut process = repository.contents_git().start(&["cat-file", "--batch"], Input::Ours)?;
        let (input, output) = (process.take_input(), process.take_output());
        Ok(Self { process, input, output: BufReader::with_capacity(64 * 1024, output) })
    }

    fn ask(&mut self, id: &ObjectId) {
        // If the process has ended, reading its answer reports it.
        let _ = self.input.write_all(format!("{id}\n").as_bytes());
    }
}

/// The bytes of one object.
pub(crate) struct Content<'b> {
    output: &'b mut BufReader<ChildStdout>,
    left: &'b mut u64,
}

impl Read for Content<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        // The last byte is the line break after the content.
        let wanted =
            into.len().min(usize::try_from(self.left.saturating_sub(1)).unwrap_or(usize::MAX));
        if wanted == 0 {
            return Ok(0);
        }
        let bytes = self.output.read(&mut into[..wanted])?;
        if bytes == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "git cat-file ended in the middle of an object",
            ));
        }
        *self.left -= bytes as u64;
        Ok(bytes)
    }
}

/// The line before an object in the output of `git cat-file --batch`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Header {
    Found {
        id: ObjectId,
        bytes: u64,
    },
    Missing(ObjectId),
    /// The end of the output.
    End,
}

pub(crate) fn read_header(output: &mut impl BufRead) -> io::Result<Header> {
    let mut line = Vec::new();
    // Longer than any header: 64 digits, a type and a length.
    output.take(256).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(Header::End);
    }
    parse_header(&line).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("not understood: {}", line.escape_ascii()),
        )
    })
}

/// Parses `<name> <type> <length>` or `<name> missing`.
fn parse_header(line: &[u8]) -> Option<Header> {
    let line = std::str::from_utf8(line).ok()?.strip_suffix('\n')?;
    let mut words = line.split(' ');
    let id = ObjectId::parse(words.next()?.as_bytes())?;
    match words.next()? {
        "missing" => Some(Header::Missing(id)),
        _ => Some(Header::Found { id, bytes: words.next()?.parse().ok()? }),
    }
}

/// Skips bytes.
pub(crate) fn skip(output: &mut impl Read, bytes: u64) -> io::Result<()> {
    let skipped = io::copy(&mut output.take(bytes), &mut io::sink())?;
    if skipped == bytes { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_parsed_and_malformed_ones_rejected() {
        let name = "a".repeat(40);
        let id = ObjectId::parse(name.as_bytes()).unwrap();
        let read = |text: String| read_header(&mut text.as_bytes());
        assert_eq!(read(format!("{name} blob 12\n")).unwrap(), Header::Found { id, bytes: 12 });
        assert_eq!(read(format!("{name} missing\n")).unwrap(), Header::Missing(id));
        assert_eq!(read(String::new()).unwrap(), Header::End);
        for wrong in [
            format!("{name} blob\n"),
            format!("{name} blob -1\n"),
            "x y z\n".to_owned(),
            format!("{name} blob 12"),
        ] {
            assert!(read(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
