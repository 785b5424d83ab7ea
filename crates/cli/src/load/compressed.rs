//! Detects compressed files and rejects them by name.

use std::path::Path;

use crate::exit::Failure;

/// A compression format.
struct Compression {
    name: &'static str,
    /// Magic bytes at the start of a file.
    magic: &'static [u8],
    /// File name extension.
    extension: &'static str,
    /// Program that decompresses it.
    program: &'static str,
}

const KNOWN: [Compression; 3] = [
    Compression { name: "gzip", magic: b"\x1f\x8b", extension: "gz", program: "zcat" },
    Compression { name: "zstd", magic: b"\x28\xb5\x2f\xfd", extension: "zst", program: "zstdcat" },
    Compression { name: "xz", magic: b"\xfd7zXZ\0", extension: "xz", program: "xzcat" },
];

/// The magic bytes of each format.
pub(super) fn magics() -> impl Iterator<Item = &'static [u8]> {
    KNOWN.iter().map(|known| known.magic)
}

/// Rejects data that begins with the magic bytes of a compressed file.
pub(super) fn refuse(file: &str, beginning: &[u8]) -> Result<(), Failure> {
    refuse_where(file, |known| beginning.starts_with(known.magic))
}

/// Rejects a file name with the extension of a compressed file.
pub(super) fn refuse_by_name(path: &Path) -> Result<(), Failure> {
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
    refuse_where(&path.display().to_string(), |known| extension.as_deref() == Some(known.extension))
}

fn refuse_where(file: &str, is_it: impl Fn(&Compression) -> bool) -> Result<(), Failure> {
    match KNOWN.iter().find(|known| is_it(known)) {
        Some(Compression { name, program, .. }) => Err(Failure::usage(format!(
            "{file}: this looks like {name}; give the rows on stdin: `{program} FILE | plimsoll \
             load STORE - --format FORMAT`"
        ))),
        None => Ok(()),
    }
}
