//! Where a replica stands in the order, and the file that records it.
//!
//! The file is replaced as a whole. Invariant: it is never ahead of the log's durable end, so that
//! the log of a replica that was killed has everything up to the recorded place. From there the
//! replica reads the order again, and skips the records that its log has.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_disk::codec::Reader;
use plimsoll_disk::vfs::{Caching, Disk, Open};
use plimsoll_log::glsn::Glsn;

use crate::order::{PLACE_DRAFT, PLACE_FILE};
use crate::txn::replica::batch::Hash;
use crate::types::error::{Error, Result};

const MAGIC: [u8; 8] = *b"PLIMRPLC";
const VERSION: u32 = 1;
const FILE_BYTES: usize = 8 + 4 + 16 + 8 + 32 + 8 + 8 + 2 + 2 + 32;

/// A place in the order: behind the batch at `position`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) order_id: u128,
    pub(crate) position: u64,
    /// The hash of the batch there.
    pub(crate) hash: Hash,
    /// The last entry of that batch, or of one before it.
    pub(crate) glsn: Glsn,
    /// The chain hash of the log there; 0 if it is not known.
    pub(crate) chain: u64,
    /// The number of this replica; 0 before it has one.
    pub(crate) replica: u16,
    /// The highest number of any replica.
    pub(crate) replicas: u16,
}

impl Place {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FILE_BYTES);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.order_id.to_le_bytes());
        out.extend_from_slice(&self.position.to_le_bytes());
        out.extend_from_slice(&self.hash);
        out.extend_from_slice(&self.glsn.0.to_le_bytes());
        out.extend_from_slice(&self.chain.to_le_bytes());
        out.extend_from_slice(&self.replica.to_le_bytes());
        out.extend_from_slice(&self.replicas.to_le_bytes());
        let hash = blake3::hash(&out);
        out.extend_from_slice(hash.as_bytes());
        out
    }

    fn decode(bytes: &[u8]) -> Option<Result<Self>> {
        let body = bytes.len().checked_sub(32).map(|len| &bytes[..len])?;
        if *blake3::hash(body).as_bytes() != bytes[body.len()..] {
            return None;
        }
        let mut reader = Reader::new(body);
        reader.take(8).filter(|magic| *magic == MAGIC)?;
        let version = reader.u32()?;
        if version != VERSION {
            return Some(Err(Error::format(format!(
                "the file `{PLACE_FILE}` has format version {version}, but this build of Plimsoll \
                 reads only version {VERSION}; use a newer one"
            ))));
        }
        Some(Ok(Self {
            order_id: reader.u128()?,
            position: reader.u64()?,
            hash: reader.take(32)?.try_into().ok()?,
            glsn: Glsn(reader.u64()?),
            chain: reader.u64()?,
            replica: reader.u16()?,
            replicas: reader.u16()?,
        }))
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

    /// The recorded place; `None` if the store is not a replica yet.
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
        Place::decode(&bytes).ok_or_else(damaged)?.map(Some)
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
        file.write_at(&place.encode(), 0)?;
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
        let bytes = place.encode();
        assert_eq!(bytes.len(), FILE_BYTES);
        assert_eq!(Place::decode(&bytes).unwrap().unwrap(), place);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(Place::decode(&changed).is_none(), "{at}");
        }
    }
}
