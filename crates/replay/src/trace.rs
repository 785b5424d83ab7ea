//! A trace file: its format, and the requests in it.

use std::path::{Path, PathBuf};

use crate::cachebench;
use crate::delimited::Delimited;
use crate::error::Result;
use crate::oracle::Oracle;
use crate::request::Requests;
use crate::source;

/// The format of a trace file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum TraceFormat {
    /// Records of 24 bytes
    #[cfg_attr(feature = "clap", value(alias = "oracleGeneral", alias = "oraclegeneral"))]
    Oracle,
    /// One request a line
    Csv,
    /// A configuration
    Cachebench,
}

impl TraceFormat {
    /// The format that a file's name suggests, if any.
    pub fn of_name(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_string_lossy().to_ascii_lowercase();
        let name = name.trim_end_matches(".zst");
        match name.rsplit_once('.')?.1 {
            "csv" => Some(Self::Csv),
            "json" => Some(Self::Cachebench),
            "oraclegeneral" | "bin" => Some(Self::Oracle),
            _ => None,
        }
    }
}

/// A trace file.
#[derive(Clone, Debug)]
pub struct TraceFile {
    path: PathBuf,
    format: TraceFormat,
}

/// An open trace.
#[non_exhaustive]
pub struct Opened {
    /// The requests, starting with the first.
    pub requests: Box<dyn Requests>,
    /// The cache size, if the file is a configuration that sets one.
    pub memory_bytes: Option<u64>,
    /// Parts of the file that a replay ignores, one sentence each.
    pub remarks: Vec<String>,
}

impl TraceFile {
    /// The file at `path`; `-` is stdin.
    pub fn new(path: &Path, format: TraceFormat) -> Self {
        Self { path: path.to_owned(), format }
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The format.
    pub fn format(&self) -> TraceFormat {
        self.format
    }

    /// Whether the file can be opened more than once; a pipe cannot.
    pub fn can_be_read_again(&self) -> bool {
        source::can_be_read_again(&self.path)
    }

    /// Opens the file.
    pub fn open(&self) -> Result<Opened> {
        Ok(match self.format {
            TraceFormat::Oracle => {
                let requests = Box::new(Oracle::new(&self.path, source::open(&self.path)?));
                Opened { requests, memory_bytes: None, remarks: Vec::new() }
            }
            TraceFormat::Csv => {
                let mut remarks = Vec::new();
                let requests =
                    Box::new(Delimited::open(&self.path, source::open(&self.path)?, &mut remarks)?);
                Opened { requests, memory_bytes: None, remarks }
            }
            TraceFormat::Cachebench => {
                let mut remarks = Vec::new();
                let (requests, memory_bytes) = cachebench::open(&self.path, &mut remarks)?;
                Opened { requests, memory_bytes, remarks }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_is_inferred_from_the_name() {
        let of = |name: &str| TraceFormat::of_name(Path::new(name));
        assert_eq!(of("a/b.oracleGeneral.zst"), Some(TraceFormat::Oracle));
        assert_eq!(of("b.oracleGeneral"), Some(TraceFormat::Oracle));
        assert_eq!(of("b.CSV"), Some(TraceFormat::Csv));
        assert_eq!(of("b.json"), Some(TraceFormat::Cachebench));
        assert_eq!(of("b.txt"), None);
    }
}
