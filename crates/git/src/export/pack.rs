//! Writes packs. The objects of a pack are collected in a temporary file; then `git index-pack`
//! adds them to a repository.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::ZlibEncoder;

use crate::error::{Error, Result};
use crate::object::{Format, Hasher, Kind};
use crate::object_id::ObjectId;
use crate::process::{Git, Input};

/// A pack is full once it has this many objects, or this many bytes.
const OBJECTS_MAX: usize = 32_768;
const BYTES_MAX: u64 = 256 << 20;

/// Maximum number of deltas between an object and one that is stored whole.
const DELTAS_MAX: u8 = 40;

const HEADER_BYTES: u64 = 12;
const OFFSET_DELTA: u8 = 6;

/// A pack that is being written.
#[derive(Debug)]
pub(crate) struct Pack {
    format: Format,
    file: BufWriter<File>,
    /// The offset of the next object.
    end: u64,
    places: HashMap<ObjectId, Place>,
    objects: u32,
}

/// The offset of an object, and the number of deltas that it depends on.
#[derive(Clone, Copy, Debug)]
struct Place {
    offset: u64,
    deltas: u8,
}

/// A part of an object that is stored as a delta.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// A range of the base.
    Copy { offset: usize, bytes: usize },
    /// A range of the object itself.
    Insert { offset: usize, bytes: usize },
}

impl Pack {
    /// An empty pack; its temporary file is in `folder`.
    pub(crate) fn new(format: Format, folder: &Path) -> Result<Self> {
        let file = tempfile::tempfile_in(folder).map_err(|error| cannot_write(&error))?;
        let mut pack = Self {
            format,
            file: BufWriter::with_capacity(64 * 1024, file),
            end: HEADER_BYTES,
            places: HashMap::new(),
            objects: 0,
        };
        pack.file.write_all(&[0; HEADER_BYTES as usize]).map_err(|error| cannot_write(&error))?;
        Ok(pack)
    }

    pub(crate) fn has(&self, id: &ObjectId) -> bool {
        self.places.contains_key(id)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.places.len() >= OBJECTS_MAX || self.end >= BYTES_MAX
    }

    /// Adds a whole object.
    pub(crate) fn add(&mut self, kind: Kind, id: ObjectId, bytes: &[u8]) -> Result<()> {
        self.write(kind as u8, bytes.len() as u64, &[], bytes)
            .map_err(|error| cannot_write(&error))
            .map(|offset| self.done(id, Place { offset, deltas: 0 }))
    }

    /// Adds a tree. If the pack has `base` and the delta is small, stores it as a delta.
    pub(crate) fn add_tree(
        &mut self,
        id: ObjectId,
        bytes: &[u8],
        base: Option<(&ObjectId, usize)>,
        parts: &[Part],
    ) -> Result<()> {
        let known = base.and_then(|(base, length)| Some((self.places.get(base)?, length)));
        let known = known.filter(|(place, _)| place.deltas < DELTAS_MAX);
        if let Some((&place, base_bytes)) = known {
            let delta = delta(base_bytes, bytes, parts);
            if delta.len() < bytes.len() / 2 {
                let distance = distance(self.end - place.offset);
                let offset = self
                    .write(OFFSET_DELTA, delta.len() as u64, &distance, &delta)
                    .map_err(|error| cannot_write(&error))?;
                self.done(id, Place { offset, deltas: place.deltas + 1 });
                return Ok(());
            }
        }
        self.add(Kind::Tree, id, bytes)
    }

    /// Adds a blob of `bytes` bytes from a reader. Returns its id.
    pub(crate) fn add_blob(&mut self, bytes: u64, from: &mut impl Read) -> Result<ObjectId> {
        let offset = self.end;
        let mut hasher = Hasher::of_object(self.format, Kind::Blob, bytes);
        let header = header(Kind::Blob as u8, bytes);
        self.file.write_all(&header).map_err(|error| cannot_write(&error))?;
        self.end += header.len() as u64;
        let mut to =
            ZlibEncoder::new(Counted { file: &mut self.file, end: &mut self.end }, level());
        let mut piece = vec![0; 64 * 1024];
        let mut left = bytes;
        while left > 0 {
            let wanted = piece.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let read = from.read(&mut piece[..wanted]).map_err(|error| cannot_read(&error))?;
            if read == 0 {
                return Err(cannot_read(&io::Error::from(io::ErrorKind::UnexpectedEof)));
            }
            hasher.update(&piece[..read]);
            to.write_all(&piece[..read]).map_err(|error| cannot_write(&error))?;
            left -= read as u64;
        }
        to.finish().map_err(|error| cannot_write(&error))?;
        let id = hasher.id();
        self.done(id, Place { offset, deltas: 0 });
        Ok(id)
    }

    fn done(&mut self, id: ObjectId, place: Place) {
        self.objects += 1;
        self.places.insert(id, place);
    }

    /// Writes an object; returns where it begins.
    fn write(&mut self, kind: u8, bytes: u64, base: &[u8], content: &[u8]) -> io::Result<u64> {
        let offset = self.end;
        let header = header(kind, bytes);
        for part in [&header[..], base] {
            self.file.write_all(part)?;
            self.end += part.len() as u64;
        }
        let mut to =
            ZlibEncoder::new(Counted { file: &mut self.file, end: &mut self.end }, level());
        to.write_all(content)?;
        to.finish()?;
        Ok(offset)
    }

    /// Adds the objects to a repository.
    pub(crate) fn finish(mut self, git: &Git) -> Result<()> {
        if self.objects == 0 {
            return Ok(());
        }
        let header = [&b"PACK\0\0\0\x02"[..], &self.objects.to_be_bytes()].concat();
        let started = (|| {
            self.file.seek(SeekFrom::Start(0))?;
            self.file.write_all(&header)?;
            self.file.seek(SeekFrom::Start(0))
        })();
        started.map_err(|error| cannot_write(&error))?;
        let mut file = self.file.into_inner().map_err(|error| cannot_write(error.error()))?;
        let mut process = git.start(&["index-pack", "--stdin"], Input::Ours)?;
        let (mut input, mut output) = (process.take_input(), process.take_output());
        let mut hasher = Hasher::new(self.format);
        let mut piece = vec![0; 64 * 1024];
        loop {
            let read = file.read(&mut piece).map_err(|error| cannot_write(&error))?;
            if read == 0 {
                break;
            }
            hasher.update(&piece[..read]);
            // If the process has ended, its exit code reports it.
            if input.write_all(&piece[..read]).is_err() {
                break;
            }
        }
        let _ = input.write_all(&hasher.finish());
        drop(input);
        let _ = output.read_to_end(&mut Vec::new());
        process.finish()
    }
}

fn level() -> Compression {
    Compression::new(4)
}

/// Counts the bytes that are written to the file.
struct Counted<'f> {
    file: &'f mut BufWriter<File>,
    end: &'f mut u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        *self.end += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn cannot_write(error: &io::Error) -> Error {
    Error::git(format!("cannot write a pack for git: {error}"))
}

fn cannot_read(error: &io::Error) -> Error {
    Error::git(format!("cannot read a value of the store: {error}"))
}

/// The header of an object: its kind and its length.
fn header(kind: u8, bytes: u64) -> Vec<u8> {
    let mut header = vec![kind << 4 | (bytes & 15) as u8];
    let mut rest = bytes >> 4;
    while rest > 0 {
        *header.last_mut().expect("it has a byte") |= 0x80;
        header.push((rest & 0x7f) as u8);
        rest >>= 7;
    }
    header
}

/// The distance between an object and its base.
fn distance(bytes: u64) -> Vec<u8> {
    let mut digits = vec![(bytes & 0x7f) as u8];
    let mut rest = bytes >> 7;
    while rest > 0 {
        rest -= 1;
        digits.push(0x80 | (rest & 0x7f) as u8);
        rest >>= 7;
    }
    digits.reverse();
    digits
}

fn delta(base_bytes: usize, bytes: &[u8], parts: &[Part]) -> Vec<u8> {
    let mut delta = Vec::new();
    for length in [base_bytes, bytes.len()] {
        let mut rest = length;
        while rest > 0x7f {
            delta.push(0x80 | (rest & 0x7f) as u8);
            rest >>= 7;
        }
        delta.push(rest as u8);
    }
    for part in parts {
        match *part {
            Part::Copy { mut offset, mut bytes } => {
                while bytes > 0 {
                    let copied = bytes.min(0xffff);
                    copy(&mut delta, offset, copied);
                    offset += copied;
                    bytes -= copied;
                }
            }
            Part::Insert { offset, bytes: length } => {
                for piece in bytes[offset..offset + length].chunks(127) {
                    delta.push(piece.len() as u8);
                    delta.extend_from_slice(piece);
                }
            }
        }
    }
    delta
}

fn copy(delta: &mut Vec<u8>, offset: usize, bytes: usize) {
    let at = delta.len();
    delta.push(0x80);
    let digits = (offset as u32).to_le_bytes().into_iter().chain((bytes as u16).to_le_bytes());
    for (bit, digit) in digits.enumerate() {
        if digit != 0 {
            delta[at] |= 1 << bit;
            delta.push(digit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_encoded_as_git_does() {
        assert_eq!(header(3, 15), [0x3f]);
        assert_eq!(header(2, 16), [0xa0, 1]);
        assert_eq!(header(1, 1 << 20), [0x90, 0x80, 0x80, 0x04]);
        assert_eq!(distance(127), [127]);
        assert_eq!(distance(128), [0x80, 0]);
        assert_eq!(distance(16512), [0x80, 0x80, 0]);
    }

    #[test]
    fn delta_copies_and_inserts() {
        let parts = [Part::Copy { offset: 256, bytes: 3 }, Part::Insert { offset: 3, bytes: 2 }];
        assert_eq!(
            delta(300, b"abcde", &parts),
            [0x80 | 44, 2, 5, 0x80 | 2 | 16, 1, 3, 2, b'd', b'e']
        );
        let long = Part::Copy { offset: 0, bytes: 0x1_0000 };
        assert_eq!(
            delta(0, b"", &[long])[2..],
            [0x80 | 16 | 32, 255, 255, 0x80 | 1 | 2 | 16, 255, 255, 1]
        );
    }
}
