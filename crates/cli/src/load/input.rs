//! The file that rows come from, or stdin, with a count of what was read.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::exit::Failure;

use super::Format;

/// Where rows come from.
pub(crate) struct Input {
    /// The bytes.
    pub(crate) reader: BufReader<Box<dyn Read + Send>>,
    /// How many were read.
    pub(crate) bytes_read: Arc<AtomicU64>,
    /// How many there are, where that is known.
    pub(crate) total_bytes: Option<u64>,
    /// Its name in messages.
    pub(crate) name: String,
}

/// Opens a file, or stdin for `-`.
pub(crate) fn open(path: &Path) -> Result<Input, Failure> {
    let bytes_read = Arc::new(AtomicU64::new(0));
    let (source, total_bytes, name): (Box<dyn Read + Send>, _, _) = if path == Path::new("-") {
        (Box::new(io::stdin()), None, "stdin".to_owned())
    } else {
        let (file, bytes) = open_file(path)?;
        (Box::new(file), bytes, path.display().to_string())
    };
    let counted: Box<dyn Read + Send> = Box::new(Counted { source, bytes_read: Arc::clone(&bytes_read) });
    Ok(Input { reader: BufReader::with_capacity(64 * 1024, counted), bytes_read, total_bytes, name })
}

#[allow(clippy::disallowed_methods, reason = "the user's own file, not the store's")]
fn open_file(path: &Path) -> Result<(File, Option<u64>), Failure> {
    let refused = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Failure::usage(format!("{}: there is no such file", path.display())),
        _ => Failure::system(format!("{}: {error}", path.display())),
    };
    let file = File::open(path).map_err(refused)?;
    let metadata = file.metadata().map_err(refused)?;
    if metadata.is_dir() {
        return Err(Failure::usage(format!("{}: a folder; give a file", path.display())));
    }
    Ok((file, metadata.is_file().then_some(metadata.len())))
}

/// The format that a file's name tells.
pub(crate) fn format_of(path: &Path) -> Result<Format, Failure> {
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
    match extension.as_deref() {
        Some("csv") => Ok(Format::Csv),
        Some("tsv" | "tab") => Ok(Format::Tsv),
        Some("jsonl" | "ndjson") => Ok(Format::Jsonl),
        _ => Err(Failure::usage(format!(
            "{}: the name does not tell the format; say --format csv, --format tsv or --format jsonl",
            path.display()
        ))),
    }
}

struct Counted {
    source: Box<dyn Read + Send>,
    bytes_read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let bytes = self.source.read(into)?;
        // Relaxed: it is shown, no more.
        self.bytes_read.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(bytes)
    }
}
