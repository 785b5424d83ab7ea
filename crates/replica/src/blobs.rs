//! Content that is too large for a batch, stored under its BLAKE3 hash as `blob/<hash>`.
//!
//! Invariant: content is stored only if it has the hash, and every reader fails at its end if it
//! does not.

use std::fmt::Write;
use std::io::{self, ErrorKind, Read};

use plimsoll_archive::{Bucket, Put};

/// The folder of the blobs.
pub(crate) const FOLDER: &str = "blob";

/// The remedy if an object of a bucket is changed or missing.
pub(crate) const PUT_BACK: &str =
    "put a copy of it back, or see docs/how-to/after-the-loss-of-a-bucket.md";

/// The damage of a blob whose contents have another hash.
pub(crate) const DAMAGED: &str = "its contents do not match its name: it is changed or truncated";

/// Bytes that are read at a time.
const PIECE_BYTES: usize = 64 << 10;

/// Why a blob was not stored.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The storage of an object failed.
    Io(String, io::Error),
    /// An object is damaged.
    Damaged(String, String),
    /// An object has a format that this version does not know.
    Newer(String, u64),
}

/// The object of a blob.
pub(crate) fn name_of(hash: &[u8; 32]) -> String {
    let mut name = format!("{FOLDER}/");
    for byte in hash {
        // Writing to a string never fails.
        let _ = write!(name, "{byte:02x}");
    }
    name
}

/// Stores content under its hash. If the bucket has it, the stored copy is read and checked.
pub(crate) fn put(
    bucket: &dyn Bucket,
    hash: &[u8; 32],
    bytes: &mut dyn Read,
) -> Result<(), Failure> {
    let name = name_of(hash);
    let mut checked = Verified::new(bytes, *hash, "the value".to_owned());
    match bucket.put_new(&name, &mut checked) {
        Ok(Put::New) => Ok(()),
        Ok(Put::Exists) => match check(bucket, &name, hash) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Failure::Damaged(
                name,
                format!("{DAMAGED}; delete this object, and commit again"),
            )),
            Err(error) => Err(Failure::Io(name, error)),
        },
        // Its answer may be lost. Only in a cloud is an object that can be read also durable; a
        // folder's name may not be.
        Err(error) => match check(bucket, &name, hash).and_then(|is_there| {
            bucket.sync(FOLDER)?;
            Ok(is_there)
        }) {
            Ok(true) => Ok(()),
            _ => Err(Failure::Io(name, error)),
        },
    }
}

/// Whether the object is there and has the hash.
pub(crate) fn check(bucket: &dyn Bucket, name: &str, hash: &[u8; 32]) -> io::Result<bool> {
    let Some(object) = bucket.get(name)? else { return Ok(false) };
    let mut reader = Verified::new(object.reader, *hash, name.to_owned());
    match io::copy(&mut reader, &mut io::sink()) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::InvalidData => Ok(false),
        Err(error) => Err(error),
    }
}

/// A reader of a blob that fails at the end if the contents do not have the hash. `place` is the
/// blob's name in the error.
pub(crate) fn verified(
    reader: Box<dyn Read + Send>,
    hash: [u8; 32],
    place: String,
) -> Box<dyn Read + Send> {
    Box::new(Verified::new(reader, hash, place))
}

struct Verified<R> {
    reader: R,
    hasher: blake3::Hasher,
    hash: [u8; 32],
    place: String,
}

impl<R: Read> Verified<R> {
    fn new(reader: R, hash: [u8; 32], place: String) -> Self {
        Self { reader, hasher: blake3::Hasher::new(), hash, place }
    }
}

impl<R: Read> Read for Verified<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = into.len().min(PIECE_BYTES);
        let n = self.reader.read(&mut into[..most])?;
        self.hasher.update(&into[..n]);
        if n == 0 && !into.is_empty() && *self.hasher.finalize().as_bytes() != self.hash {
            let what = format!("{}: {DAMAGED}", self.place);
            return Err(io::Error::new(ErrorKind::InvalidData, what));
        }
        Ok(n)
    }
}
