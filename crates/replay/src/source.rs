//! The bytes of a trace: a file or stdin, decompressed if it is compressed.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use crate::error::{Error, Result};

/// Whether a file can be read again from its beginning, i.e. it is not a pipe.
pub(crate) fn can_be_read_again(path: &Path) -> bool {
    // Opening a missing file reports the error.
    !is_stdin(path) && std::fs::metadata(path).map_or(true, |found| found.is_file())
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Opens a file, or stdin for `-`. Compression is detected by the first bytes, not by the name.
#[allow(clippy::disallowed_methods, reason = "the trace is the user's file")]
pub(crate) fn open(path: &Path) -> Result<Box<dyn Read>> {
    const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
    let io = |source| Error::Io { path: path.to_owned(), source };
    let mut file: Box<dyn Read> = if is_stdin(path) {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(path).map_err(io)?)
    };
    let mut start = Vec::new();
    file.by_ref().take(4).read_to_end(&mut start).map_err(io)?;
    let compressed = start == ZSTD_MAGIC;
    let whole = io::Cursor::new(start).chain(file);
    if compressed {
        return Ok(Box::new(BufReader::with_capacity(
            1 << 16,
            zstd::Decoder::new(whole).map_err(io)?,
        )));
    }
    Ok(Box::new(BufReader::with_capacity(1 << 16, whole)))
}
