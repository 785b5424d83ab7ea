//! The bytes of an object: a header, its contents compressed with zstd, and a checksum of both.
//!
//! An object's name ends with the hash of its contents, so an object under the wrong name is
//! refused, and the checksum finds every changed bit. Both are XXH3 with 128 bits: they find
//! damage, not forgery.

use std::io::{self, BufReader, Read};

use plimsoll_disk::checksum::Running;
use serde::{Deserialize, Serialize};
use zstd::stream::read::{Decoder, Encoder as ZstdEncoder};

use crate::bucket::Bucket;
use crate::error::{Error, MISSING, Result};

const MAGIC: &[u8; 8] = b"PLIMARCH";
const FORMAT: u32 = 1;
const CODEC_ZSTD: u32 = 1;
const HEADER_BYTES: usize = 24;
const SUM_BYTES: usize = 16;
const LEVEL: i32 = 3;

/// Bytes that are read at a time.
const PIECE_BYTES: usize = 64 << 10;

/// Digits of a hash.
const HASH_DIGITS: usize = 32;

/// A reference to an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ObjectRef {
    /// Its name, which ends with the hash of its contents.
    pub(crate) name: String,
    /// The length of its contents.
    pub(crate) length: u64,
}

impl ObjectRef {
    /// The object with these contents; `name` is its name without the hash.
    pub(crate) fn of(name: &str, contents: &mut dyn Read) -> io::Result<Self> {
        let (mut sum, mut length, mut piece) = (Running::new(0), 0, vec![0; PIECE_BYTES]);
        loop {
            match contents.read(&mut piece) {
                Ok(0) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
                Ok(n) => {
                    sum.take(&piece[..n]);
                    length += n as u64;
                }
            }
        }
        Ok(Self { name: format!("{name}-{:032x}", sum.sum128()), length })
    }

    fn hash(&self) -> Option<u128> {
        let digits = self.name.len().checked_sub(HASH_DIGITS)?;
        u128::from_str_radix(self.name.get(digits..)?, 16).ok()
    }
}

/// Encodes contents as an object.
pub(crate) struct Encoder<R: Read> {
    header: io::Cursor<[u8; HEADER_BYTES]>,
    body: ZstdEncoder<'static, BufReader<Checked<R>>>,
    sum: Running,
    end: Option<io::Cursor<[u8; SUM_BYTES]>>,
    /// Bytes of the object so far.
    pub(crate) bytes: u64,
}

impl<R: Read> Encoder<R> {
    pub(crate) fn new(object: &ObjectRef, contents: R) -> io::Result<Self> {
        let mut header = [0; HEADER_BYTES];
        header[..8].copy_from_slice(MAGIC);
        header[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        header[12..16].copy_from_slice(&CODEC_ZSTD.to_le_bytes());
        header[16..].copy_from_slice(&object.length.to_le_bytes());
        let checked = Checked { contents, sum: Running::new(0), hash: object.hash() };
        let body = ZstdEncoder::new(checked, LEVEL)?;
        let (header, sum) = (io::Cursor::new(header), Running::new(0));
        Ok(Self { header, body, sum, end: None, bytes: 0 })
    }
}

impl<R: Read> Read for Encoder<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut n = self.header.read(into)?;
        if n == 0 && self.end.is_none() {
            n = self.body.read(into)?;
        }
        if n > 0 {
            self.sum.take(&into[..n]);
        } else if !into.is_empty() {
            let sum = self.sum.sum128().to_le_bytes();
            n = self.end.get_or_insert_with(|| io::Cursor::new(sum)).read(into)?;
        }
        self.bytes += n as u64;
        Ok(n)
    }
}

/// Contents whose hash was computed by an earlier read. Reading them again fails at the end if they
/// have changed.
struct Checked<R> {
    contents: R,
    sum: Running,
    hash: Option<u128>,
}

impl<R: Read> Read for Checked<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = self.contents.read(into)?;
        self.sum.take(&into[..n]);
        if n == 0 && !into.is_empty() && self.hash != Some(self.sum.sum128()) {
            return Err(io::Error::other("the file was changed while it was archived; try again"));
        }
        Ok(n)
    }
}

/// Reads an object and passes its contents to `each` piece by piece. Returns the damage, if there
/// is any; the bytes that were passed must not be used then.
///
/// # Errors
/// Those of `each`; a newer format.
pub(crate) fn read(
    bucket: &dyn Bucket,
    object: &ObjectRef,
    each: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<Option<String>> {
    let unreadable = |error: io::Error| Ok(Some(format!("it cannot be read: {error}")));
    let found = match bucket.get(&object.name) {
        Ok(Some(found)) => found,
        Ok(None) => return Ok(Some(MISSING.to_owned())),
        Err(error) => return unreadable(error),
    };
    let damaged = |what: &str| Ok(Some(what.to_owned()));
    let (Some(body_bytes), Some(hash)) =
        (found.bytes.checked_sub((HEADER_BYTES + SUM_BYTES) as u64), object.hash())
    else {
        return damaged("it is too short, or its name has no hash");
    };
    let mut reader = found.reader;
    let mut header = [0; HEADER_BYTES];
    if let Err(error) = reader.read_exact(&mut header) {
        return unreadable(error);
    }
    let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("4 bytes"));
    if header[..8] != *MAGIC {
        return damaged("it has no header of an archive object");
    }
    let mut sum = Running::new(0);
    sum.take(&header);
    let mut body = Body { reader: reader.take(body_bytes), sum, failure: None };
    let decoded = decode(&mut body, each)?;
    // The checksum covers everything, so it is checked before any field is trusted.
    if let Err(error) = io::copy(&mut body, &mut io::sink()) {
        return unreadable(error);
    }
    let Body { reader, sum, failure } = body;
    if let Some(error) = failure {
        return unreadable(error);
    }
    let mut stored = [0; SUM_BYTES];
    if let Err(error) = reader.into_inner().read_exact(&mut stored) {
        return unreadable(error);
    }
    if u128::from_le_bytes(stored) != sum.sum128() {
        return damaged("its checksum does not match: it is damaged or truncated");
    }
    if word(8) > FORMAT || word(12) != CODEC_ZSTD {
        return Err(Error::Format { object: object.name.clone(), format: word(8) });
    }
    match decoded {
        Ok(contents) if contents == (hash, object.length) => Ok(None),
        Ok(_) => damaged("its contents do not match its name"),
        Err(error) => Ok(Some(format!("it cannot be decompressed: {error}"))),
    }
}

/// Decompresses a body; returns the hash and the length of its contents.
fn decode(
    body: &mut Body,
    each: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<io::Result<(u128, u64)>> {
    let mut decoder = match Decoder::new(body) {
        Ok(decoder) => decoder.single_frame(),
        Err(error) => return Ok(Err(error)),
    };
    let (mut sum, mut length, mut piece) = (Running::new(0), 0, vec![0; PIECE_BYTES]);
    loop {
        match decoder.read(&mut piece) {
            Ok(0) => return Ok(Ok((sum.sum128(), length))),
            Ok(n) => {
                sum.take(&piece[..n]);
                length += n as u64;
                each(&piece[..n])?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Ok(Err(error)),
        }
    }
}

/// The bytes of an object between its header and its checksum.
struct Body {
    reader: io::Take<Box<dyn Read + Send>>,
    sum: Running,
    /// A failure of the storage, which the decoder would otherwise report as damage.
    failure: Option<io::Error>,
}

impl Read for Body {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.reader.read(into) {
            Ok(n) => {
                self.sum.take(&into[..n]);
                Ok(n)
            }
            Err(error) => {
                let kind = error.kind();
                if kind != io::ErrorKind::Interrupted {
                    self.failure = Some(error);
                }
                Err(kind.into())
            }
        }
    }
}

/// Reads a small object whole.
///
/// # Errors
/// As for [`read`].
pub(crate) fn read_whole(
    bucket: &dyn Bucket,
    object: &ObjectRef,
) -> Result<std::result::Result<Vec<u8>, String>> {
    let mut bytes = Vec::new();
    let damage = read(bucket, object, &mut |piece| {
        bytes.extend_from_slice(piece);
        Ok(())
    })?;
    Ok(damage.map_or(Ok(bytes), Err))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_that_changed_after_they_were_hashed_are_no_object() {
        let object = ObjectRef::of("segments/1", &mut &b"contents"[..]).unwrap();
        for (contents, is_object) in [(&b"contents"[..], true), (b"contentz", false), (b"", false)]
        {
            let mut encoder = Encoder::new(&object, contents).unwrap();
            let read = encoder.read_to_end(&mut Vec::new());
            assert_eq!(read.is_ok(), is_object, "{contents:?}");
        }
    }
}
