//! A trace: what somebody asked a cache for, in order.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use crate::args::TraceFormat;
use crate::commands::replay::delimited::Delimited;
use crate::commands::replay::oracle::Oracle;

/// What is asked of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Operation {
    /// Find the value; if there is none, enter one.
    #[default]
    ReadThrough,
    /// Find the value and leave it at that.
    Find,
    /// Enter a value.
    Set,
    /// Remove the value.
    Delete,
}

/// One request of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) operation: Operation,
    pub(super) key: Vec<u8>,
    pub(super) value_bytes: u64,
}

/// Something is wrong with a trace.
#[derive(Debug)]
pub(super) enum Problem {
    /// The system could not read it.
    Io { path: PathBuf, error: io::Error },
    /// It is not what it should be: where, and what.
    Malformed { path: PathBuf, at: String, what: String },
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io { path, error } => write!(f, "{}: {error}", path.display()),
            Self::Malformed { path, at, what } => write!(f, "{}: {at}: {what}", path.display()),
        }
    }
}

/// Requests, one after the other.
pub(super) trait Trace {
    /// Reads the next one into `request`; `false` at the end.
    fn next(&mut self, request: &mut Request) -> Result<bool, Problem>;
}

/// The format that a file's name tells, if it does.
pub(super) fn format_of(path: &Path) -> Option<TraceFormat> {
    let name = path.file_name()?.to_string_lossy().to_ascii_lowercase();
    let name = name.trim_end_matches(".zst");
    match name.rsplit_once('.')?.1 {
        "csv" => Some(TraceFormat::Csv),
        "json" => Some(TraceFormat::Cachebench),
        "oraclegeneral" | "bin" => Some(TraceFormat::Oracle),
        _ => None,
    }
}

/// Whether what is read once can be read again from its beginning: not what comes through a pipe.
pub(super) fn can_be_read_again(path: &Path) -> bool {
    // What is not there is said by whoever opens it.
    !is_stdin(path) && std::fs::metadata(path).map_or(true, |found| found.is_file())
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Opens a file of requests, or stdin for `-`.
pub(super) fn open(path: &Path, format: TraceFormat) -> Result<Box<dyn Trace>, Problem> {
    let reader = open_bytes(path)?;
    Ok(match format {
        TraceFormat::Oracle => Box::new(Oracle::new(path, reader)),
        TraceFormat::Csv | TraceFormat::Cachebench => Box::new(Delimited::open(path, reader)?),
    })
}

/// The bytes of a file, decompressed if they are compressed: by their first bytes, whatever the name.
#[allow(clippy::disallowed_methods, reason = "the trace is the user's file")]
fn open_bytes(path: &Path) -> Result<Box<dyn Read>, Problem> {
    const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
    let io = |error| Problem::Io { path: path.to_owned(), error };
    let mut file: Box<dyn Read> =
        if is_stdin(path) { Box::new(io::stdin()) } else { Box::new(File::open(path).map_err(io)?) };
    let mut start = Vec::new();
    file.by_ref().take(4).read_to_end(&mut start).map_err(io)?;
    let compressed = start == ZSTD_MAGIC;
    let whole = io::Cursor::new(start).chain(file);
    if compressed {
        return Ok(Box::new(BufReader::with_capacity(1 << 16, zstd::Decoder::new(whole).map_err(io)?)));
    }
    Ok(Box::new(BufReader::with_capacity(1 << 16, whole)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_tells_the_format_with_and_without_compression() {
        let of = |name: &str| format_of(Path::new(name));
        assert_eq!(of("a/b.oracleGeneral.zst"), Some(TraceFormat::Oracle));
        assert_eq!(of("b.oracleGeneral"), Some(TraceFormat::Oracle));
        assert_eq!(of("b.CSV"), Some(TraceFormat::Csv));
        assert_eq!(of("b.json"), Some(TraceFormat::Cachebench));
        assert_eq!(of("b.txt"), None);
    }
}
