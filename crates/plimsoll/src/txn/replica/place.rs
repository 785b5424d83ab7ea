//! Where a replica stands in the order, and the file that records it.
//!
//! The file is replaced as a whole. Invariant: it is never ahead of the log's durable end, so that
//! the log of a replica that was killed has everything up to the recorded place. From there the
//! replica reads the order again, and skips the records that its log has.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_disk::codec::Reader;
use plimsoll_disk::vfs::{Caching, Disk, FileId, Open};
use plimsoll_log::glsn::Glsn;

use crate::order::{PLACE_DRAFT, PLACE_FILE};
use crate::txn::replica::batch::Hash;
use crate::types::error::{Error, Result};

const MAGIC: [u8; 8] = *b"PLIMRPLC";
const VERSION: u32 = 2;
const FILE_BYTES: usize = 8 + 4 + 16 + 8 + 32 + 8 + 8 + 2 + 2 + 16 + 32;

/// A place in the order: behind the batch at `position`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) order_id: u128,
    pub(crate) position: u64,
    /// The hash of the batch there.
    pub(crate) hash: Hash,
    /// The GLSN of the last entry up to and including that batch, which may have none.
    pub(crate) glsn: Glsn,
    /// The chain hash of the log there; 0 if it is not known.
    pub(crate) chain: u64,
    /// The number of this replica; 0 before it has one.
    pub(crate) replica: u16,
    /// The highest number of any replica.
    pub(crate) replicas: u16,
}

/// The contents of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Contents {
    place: Place,
    /// The identity of the file, so that a copy of it is recognized; `None` if the disk has none.
    file: Option<FileId>,
}

impl Contents {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FILE_BYTES);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        let (place, file) = (&self.place, self.file.unwrap_or_default());
        out.extend_from_slice(&place.order_id.to_le_bytes());
        out.extend_from_slice(&place.position.to_le_bytes());
        out.extend_from_slice(&place.hash);
        out.extend_from_slice(&place.glsn.0.to_le_bytes());
        out.extend_from_slice(&place.chain.to_le_bytes());
        out.extend_from_slice(&place.replica.to_le_bytes());
        out.extend_from_slice(&place.replicas.to_le_bytes());
        out.extend_from_slice(&file.inode.to_le_bytes());
        out.extend_from_slice(&file.born_nanos.to_le_bytes());
        let hash = blake3::hash(&out);
        out.extend_from_slice(hash.as_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Option<Result<Self>> {
        let body = bytes.len().checked_sub(32).map(|len| &bytes[..len])?;
        let mut reader = Reader::new(body);
        reader.take(8).filter(|magic| *magic == MAGIC)?;
        // Check the version first: another version may have another checksum.
        let version = reader.u32()?;
        if version != VERSION {
            return Some(Err(Error::format(format!(
                "the file `{PLACE_FILE}` has format version {version}, but this build of Plimsoll \
                 reads only version {VERSION}; use a newer one"
            ))));
        }
        if *blake3::hash(body).as_bytes() != bytes[body.len()..] {
            return None;
        }
        let place = Place {
            order_id: reader.u128()?,
            position: reader.u64()?,
            hash: reader.take(32)?.try_into().ok()?,
            glsn: Glsn(reader.u64()?),
            chain: reader.u64()?,
            replica: reader.u16()?,
            replicas: reader.u16()?,
        };
        let file = FileId { inode: reader.u64()?, born_nanos: reader.u64()? };
        Some(Ok(Self { place, file: (file != FileId::default()).then_some(file) }))
    }
}

/// The file of a place.
#[derive(Debug)]
pub(crate) struct PlaceFile {
    disk: Arc<dyn Disk>,
    store: PathBuf,
}

impl PlaceFile {
    pub(crate) fn new(disk: &Arc<dyn Disk>, store: &Path) -> Self {
        Self { disk: Arc::clone(disk), store: store.to_owned() }
    }

    fn path(&self) -> PathBuf {
        self.store.join(PLACE_FILE)
    }

    /// Whether the store is a replica.
    pub(crate) fn exists(&self) -> Result<bool> {
        Ok(self.disk.entry(&self.path())?.is_some())
    }

    /// The recorded place; `None` if the store is not a replica yet. If the file is a copy, because
    /// the whole folder was copied, the place has no replica number, because the original has that
    /// number.
    ///
    /// # Errors
    /// The disk, or damage.
    pub(crate) fn read(&self) -> Result<Option<Place>> {
        let file = match self.disk.open(&self.path(), Open::Read, Caching::Buffered) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut bytes = vec![0; (file.len()? as usize).min(2 * FILE_BYTES)];
        file.read_exact_at(&mut bytes, 0)?;
        let damaged = || {
            let what = format!(
                "{}: the place of this replica in its order is damaged; remove the file, and the \
                 next opening reads the order from its beginning",
                self.path().display()
            );
            Error::corrupt(what).in_file(|| PLACE_FILE.to_owned())
        };
        let Contents { mut place, file: original } =
            Contents::decode(&bytes).ok_or_else(damaged)??;
        if let (Some(original), Some(file)) = (original, file.id()?)
            && file.is_other(original)
        {
            place.replica = 0;
        }
        Ok(Some(place))
    }

    /// Replaces the file, durably.
    ///
    /// # Errors
    /// The disk; the file is as before.
    pub(crate) fn write(&self, place: &Place) -> Result<()> {
        let (path, draft) = (self.path(), self.store.join(PLACE_DRAFT));
        match self.disk.remove(&draft) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let file = self.disk.open(&draft, Open::CreateNew, Caching::Buffered)?;
        let contents = Contents { place: *place, file: file.id()? };
        file.write_at(&contents.encode(), 0)?;
        file.sync()?;
        self.disk.rename(&draft, &path)?;
        Ok(self.disk.sync_dir(&self.store)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_round_trips_and_damage_is_detected() {
        let place = Place {
            order_id: 3,
            position: 9,
            hash: [4; 32],
            glsn: Glsn(17),
            chain: 5,
            replica: 2,
            replicas: 6,
        };
        for file in [None, Some(FileId { inode: 8, born_nanos: 9 })] {
            let contents = Contents { place, file };
            let bytes = contents.encode();
            assert_eq!(bytes.len(), FILE_BYTES);
            assert_eq!(Contents::decode(&bytes).unwrap().unwrap(), contents);
            for at in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[at] ^= 1;
                match Contents::decode(&changed) {
                    None => assert!(!(8..12).contains(&at), "{at}"),
                    // It is reported as that of another version, whose checksum is not known.
                    Some(read) => assert!((8..12).contains(&at) && read.is_err(), "{at}"),
                }
            }
        }
    }
}
