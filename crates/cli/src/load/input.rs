//! The file that rows come from, or stdin, with a count of the bytes read.
//!
//! Invariant: finding the file never blocks. Opening may block: a named pipe opens once it has a
//! writer.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::exit::Failure;
use crate::interrupt::Interrupt;

use super::{Format, compressed};

/// The longest time between two checks for a signal.
const SIGNAL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The byte order mark, which some programs write at the start of a file to mark UTF-8 text.
pub(crate) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A buffered file.
pub(crate) type Reader = BufReader<Box<dyn Read + Send>>;

/// The source of rows.
pub(crate) struct Input {
    path: PathBuf,
    /// Bytes read so far.
    pub(crate) bytes_read: Arc<AtomicU64>,
    /// Size of the file, if known.
    pub(crate) total_bytes: Option<u64>,
    /// Its name in messages.
    pub(crate) name: String,
}

impl Input {
    /// Finds a file, or stdin for `-`.
    pub(crate) fn find(path: &Path) -> Result<Self, Failure> {
        let (total_bytes, name) = match is_stdin(path) {
            true => (None, "stdin".to_owned()),
            false => (file_bytes(path)?, path.display().to_string()),
        };
        Ok(Self { path: path.to_owned(), bytes_read: Arc::default(), total_bytes, name })
    }

    /// Opens it.
    pub(crate) fn open(self) -> Result<Reader, Failure> {
        let source: Box<dyn Read + Send> = match is_stdin(&self.path) {
            true => Box::new(io::stdin()),
            false => Box::new(open_file(&self.path)?),
        };
        Ok(self.count(source))
    }

    /// Opens text: skips the byte order mark, rejects a compressed file.
    pub(crate) fn open_text(self) -> Result<Reader, Failure> {
        let name = self.name.clone();
        let mut reader = self.open()?;
        let beginning = beginning(&mut reader);
        compressed::refuse(&name, &beginning)?;
        let text =
            io::Cursor::new(beginning.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&beginning).to_vec());
        // Chain the rest of the reader's buffer.
        Ok(BufReader::with_capacity(64 * 1024, Box::new(text.chain(reader))))
    }

    /// Opens it without waiting for the writer of a named pipe. After a signal, reads report the
    /// end of the file.
    pub(crate) fn open_until(self, interrupt: &Interrupt) -> Result<Reader, Failure> {
        let file = match is_stdin(&self.path) {
            // Do not use `io::stdin()`, because `poll` cannot see the bytes in its buffer.
            true => io::stdin()
                .as_fd()
                .try_clone_to_owned()
                .map(File::from)
                .map_err(|error| no_stdin(&error))?,
            false => open_at_once(&self.path)?,
        };
        let source = Box::new(UntilInterrupted { file, came: interrupt.flag() });
        Ok(self.count(source))
    }

    fn count(self, source: Box<dyn Read + Send>) -> Reader {
        let counted: Box<dyn Read + Send> =
            Box::new(Counted { source, bytes_read: self.bytes_read });
        BufReader::with_capacity(64 * 1024, counted)
    }
}

/// Reads as far as a byte order mark or the magic bytes of a compressed file may extend, because a
/// pipe may deliver them in pieces and a first row may be shorter.
fn beginning(reader: &mut impl Read) -> Vec<u8> {
    let mut beginning = Vec::new();
    let is_incomplete = |read: &[u8]| {
        let mut known = compressed::magics().chain([BYTE_ORDER_MARK]);
        known.any(|known| known.len() > read.len() && known.starts_with(read))
    };
    let mut byte = [0];
    // Reading rows returns the same error again and reports it.
    while is_incomplete(&beginning) && reader.read_exact(&mut byte).is_ok() {
        beginning.extend_from_slice(&byte);
    }
    beginning
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

/// The length of a file; `None` if it is a pipe or a device.
fn file_bytes(path: &Path) -> Result<Option<u64>, Failure> {
    let metadata = path.metadata().map_err(|error| refused(path, &error))?;
    if metadata.is_dir() {
        return Err(Failure::usage(format!("{}: a folder; give a file", path.display())));
    }
    Ok(metadata.is_file().then_some(metadata.len()))
}

#[allow(clippy::disallowed_methods, reason = "the user's own file, not the store's")]
fn open_file(path: &Path) -> Result<File, Failure> {
    File::open(path).map_err(|error| refused(path, &error))
}

/// Opens a file, or a named pipe even if it has no writer yet.
#[allow(clippy::disallowed_methods, reason = "the user's own file, not the store's")]
fn open_at_once(path: &Path) -> Result<File, Failure> {
    let flags = OFlags::NONBLOCK.bits() as i32;
    File::options().read(true).custom_flags(flags).open(path).map_err(|error| refused(path, &error))
}

fn no_stdin(error: &io::Error) -> Failure {
    Failure::system(format!("stdin: {error}"))
}

fn refused(path: &Path, error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::NotFound => {
            Failure::usage(format!("{}: there is no such file", path.display()))
        }
        _ => Failure::system(format!("{}: {error}", path.display())),
    }
}

/// Infers the format from a file's name.
pub(crate) fn format_of(path: &Path) -> Result<Format, Failure> {
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
    match extension.as_deref() {
        Some("csv") => Ok(Format::Csv),
        Some("tsv" | "tab") => Ok(Format::Tsv),
        Some("jsonl" | "ndjson") => Ok(Format::Jsonl),
        _ => compressed::refuse_by_name(path).and(Err(Failure::usage(format!(
            "{}: cannot infer the format from the name; give --format csv, --format tsv or \
             --format jsonl",
            path.display()
        )))),
    }
}

/// A terminal or pipe that may block, read until a signal.
struct UntilInterrupted {
    file: File,
    came: Arc<AtomicBool>,
}

impl Read for UntilInterrupted {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            // Relaxed: as in `Interrupt`.
            if self.came.load(Ordering::Relaxed) {
                return Ok(0);
            }
            // A signal ends the wait, unless it arrived just before.
            match poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&SIGNAL_INTERVAL)) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(errno) => return Err(errno.into()),
            }
            match self.file.read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }
}

struct Counted {
    source: Box<dyn Read + Send>,
    bytes_read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let bytes = self.source.read(into)?;
        // Relaxed: only displayed.
        self.bytes_read.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginning_is_read_only_as_far_as_a_mark_may_extend() {
        // Returns one byte per read.
        let read = |text: &'static [u8]| {
            let mut pieces =
                text.chunks(1).fold(Box::new(io::empty()) as Box<dyn Read>, |before, piece| {
                    Box::new(before.chain(piece))
                });
            beginning(&mut pieces)
        };
        assert_eq!(read(b"\xef\xbb\xbfa,b"), BYTE_ORDER_MARK);
        assert_eq!(read(b"\x1f\x8b\x08"), b"\x1f\x8b");
        assert_eq!(read(b"\xfd7zXZ\0\0"), b"\xfd7zXZ\0");
        // Other data is not waited for.
        assert_eq!(read(b"a\n"), b"a");
        assert_eq!((read(b"\xefa\n"), read(b"")), (b"\xefa".to_vec(), Vec::new()));
    }
}
