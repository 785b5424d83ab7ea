//! Compares each value above 1 KiB with its original checksum, wherever it is stored, because
//! pages and blocks that are individually valid may still be the wrong ones.
//!
//! Values in a commit's entry are checked as the entry is read; values in blob files are read once,
//! in pieces.

use std::collections::BTreeSet;
use std::ops::Range;

use plimsoll_log::blob::BlobId;
use plimsoll_log::error::LogError;
use plimsoll_log::file_log::repair::verify::Finding;
use plimsoll_log::glsn::{Glsn, StreamId};
use plimsoll_memory::budget::Kind;
use plimsoll_memory::chunk::Chunk;
use plimsoll_memory::page::{PAGE_BYTES, PAGE_PAYLOAD_BYTES};

use crate::api::admin::diagnose::{Found, LostPart, Scene};
use crate::engine::Engine;
use crate::index::runs::check;
use crate::txn::payload::{Payload, Writes};
use crate::types::damage::{Damage, DamagedKey};
use crate::types::error::{Error, Lift, Result, strip_advice};
use crate::types::version::{Stored, Version, running_value_sum, value_sum};

/// Maximum number of values reported.
const MAX_BAD: usize = 1000;

/// A value that differs from the one that was written.
pub(crate) struct BadValue {
    pub(crate) key: Vec<u8>,
    pub(crate) glsn: Glsn,
    pub(crate) stored: Stored<'static>,
    what: String,
}

impl BadValue {
    /// The pages of a blob file that are dropped with the value. Other values may share its first
    /// and its last page, so these two are left out if there are pages between them.
    pub(crate) fn pages(&self) -> Option<(BlobId, Range<u32>)> {
        let Stored::InBlob { blob, offset, len, .. } = self.stored.value() else { return None };
        let page = |offset: u64| u32::try_from(offset / PAGE_PAYLOAD_BYTES as u64).ok();
        let (first, last) = (page(offset)?, page(offset.saturating_add(len).saturating_sub(1))?);
        Some((blob, if last - first > 1 { first + 1..last } else { first..last.saturating_add(1) }))
    }

    pub(crate) fn describe(self, scene: &Scene<'_>) -> Found {
        let (file, offset, lost) = match self.pages() {
            Some((blob, pages)) => {
                let offset = u64::from(pages.start) * PAGE_BYTES as u64;
                (format!("log/{}", blob.file_name()), offset, LostPart::Value(blob, pages))
            }
            None => ("log".to_owned(), 0, LostPart::Records(self.glsn..self.glsn.next())),
        };
        let mut damage = Damage::new(file, offset, self.what);
        damage.glsns = Some(self.glsn..=self.glsn);
        let (keyspace, key) = scene.split(&self.key);
        damage.add_key(DamagedKey {
            keyspace,
            key,
            glsn: self.glsn,
            bytes: self.stored.value_bytes(),
        });
        damage.advise(scene.path);
        Found { damage, lost }
    }
}

/// Reads all values of a store, and finds those that differ from the written ones and that
/// `findings` does not cover.
pub(crate) fn find_bad_values(store: &Engine, findings: &[Finding]) -> Result<Vec<BadValue>> {
    let mut values = Values::new(store)?;
    values.check_log(findings)?;
    check::verify(
        &store.reader.index.runs,
        &mut |version| values.check_version(version),
        &mut |_, _| {},
        &mut |_| {},
    )?;
    values.finish()
}

/// Checks values and collects the bad ones.
pub(crate) struct Values<'a> {
    store: &'a Engine,
    bad: Vec<BadValue>,
    /// Blob files whose values were already checked through the commits that wrote them.
    checked: BTreeSet<BlobId>,
    /// Blob files whose damage is known already, or that are missing and were noted.
    damaged: BTreeSet<BlobId>,
    piece: Chunk,
    failure: Option<Error>,
}

impl<'a> Values<'a> {
    pub(crate) fn new(store: &'a Engine) -> Result<Self> {
        let piece = store.reader.budget.take(Kind::Staging)?;
        Ok(Self {
            store,
            bad: Vec::new(),
            checked: BTreeSet::new(),
            damaged: BTreeSet::new(),
            piece,
            failure: None,
        })
    }

    /// Checks the values of all commits in the log, except those already found damaged.
    pub(crate) fn check_log(&mut self, findings: &[Finding]) -> Result<()> {
        self.damaged.extend(
            findings.iter().filter_map(|finding| finding.blob.as_ref()).map(|blob| blob.id),
        );
        let behind = self.store.visible().next();
        let mut from = self.store.reader.log.bounds().first;
        let mut lost: Vec<(Glsn, Glsn)> = findings
            .iter()
            .filter(|finding| !finding.harmless && finding.blob.is_none())
            .filter_map(|finding| Some((finding.glsn?, finding.last.or(finding.glsn)?)))
            .collect();
        lost.sort_unstable();
        for (first, last) in lost.into_iter().chain([(behind, behind)]) {
            if from < first {
                self.check_entries(from, first.min(behind))?;
            }
            from = from.max(last.next());
        }
        Ok(())
    }

    fn check_entries(&mut self, from: Glsn, to: Glsn) -> Result<()> {
        let mut scan = match self.store.reader.log.scan(from..to, Some(StreamId::TRANSACTIONS)) {
            // Another process trimmed the log meanwhile.
            Err(LogError::Trimmed { .. }) => return Ok(()),
            scan => scan.lift()?,
        };
        while let Some(entry) = scan.next_entry() {
            match entry {
                Ok(entry) => {
                    let glsn = entry.meta.glsn;
                    let checked = Payload::decode(entry.payload)
                        .and_then(|payload| self.check_writes(glsn, &payload));
                    match checked {
                        Err(Error::Corrupt { message, .. }) => {
                            self.note(&[], glsn, Stored::Deleted, &message)
                        }
                        checked => checked?,
                    }
                }
                // Already reported as damage, or trimmed meanwhile.
                Err(LogError::Corrupt { .. } | LogError::Trimmed { .. }) => return Ok(()),
                Err(error) => return Err(Error::of_log(error)),
            }
        }
        Ok(())
    }

    fn check_writes(&mut self, glsn: Glsn, payload: &Payload<'_>) -> Result<()> {
        let Writes::Operations(operations) = &payload.writes else { return Ok(()) };
        let mut operations = operations.uncompared();
        while let Some((operation, value)) = operations.next_with_value()? {
            match operation.stored.value() {
                Stored::InLog { sum, .. } if value_sum(value) != sum => {
                    let what = "the value in the entry differs from the one that was written";
                    self.note(operation.key, glsn, operation.stored, what);
                }
                Stored::InBlob { blob, .. } => {
                    self.check_blob(operation.key, glsn, operation.stored)?;
                    self.checked.insert(blob);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks a version of the index whose value is stored in a blob file.
    pub(crate) fn check_version(&mut self, version: &Version<'_>) {
        if let Stored::InBlob { blob, .. } = version.stored.value()
            && self.failure.is_none()
            && !self.checked.contains(&blob)
            && let Err(error) = self.check_blob(version.key, version.glsn, version.stored)
        {
            self.failure = Some(error);
        }
    }

    fn check_blob(&mut self, key: &[u8], glsn: Glsn, stored: Stored<'_>) -> Result<()> {
        let (len, mut at, mut sum) = (stored.stored_bytes(), 0, running_value_sum());
        while at < len {
            let bytes = (len - at).min(self.piece.len() as u64) as usize;
            let piece = &mut self.piece[..bytes];
            match self.store.reader.load_stored(glsn, stored, at, piece) {
                Ok(_) => sum.take(piece),
                // A recovery has dropped the value: it is known to be lost.
                Err(Error::Dropped { .. }) => return Ok(()),
                Err(Error::Corrupt { message, .. }) => {
                    if let Stored::InBlob { blob, .. } = stored.value() {
                        if self.damaged.contains(&blob) {
                            return Ok(());
                        }
                        // If the file is missing, another process may have removed it. Only one of
                        // its values is noted, so that values of other files have room in the list.
                        if self.is_missing(blob)? {
                            self.damaged.insert(blob);
                        }
                    }
                    self.note(key, glsn, stored, &message);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
            at += bytes as u64;
        }
        if let Err(Error::Corrupt { message, .. }) = stored.check_sum(glsn, sum.sum()) {
            self.note(key, glsn, stored, &message);
        }
        Ok(())
    }

    fn is_missing(&self, blob: BlobId) -> Result<bool> {
        let path = self.store.path.join("log").join(blob.file_name());
        Ok(self.store.options.disk.entry(&path)?.is_none())
    }

    fn note(&mut self, key: &[u8], glsn: Glsn, stored: Stored<'_>, what: &str) {
        if self.bad.len() < MAX_BAD {
            let stored = stored.elsewhere().unwrap_or(Stored::Deleted);
            let what = strip_advice(what).to_owned();
            self.bad.push(BadValue { key: key.to_vec(), glsn, stored, what });
        }
    }

    /// The bad values found.
    pub(crate) fn finish(self) -> Result<Vec<BadValue>> {
        match self.failure {
            Some(error) => Err(error),
            None => Ok(self.bad),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::open::open;
    use crate::types::options::Options;

    /// Another process may have removed the file; then none of its values is bad.
    #[test]
    fn a_missing_blob_file_takes_one_entry_in_the_list_of_bad_values() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options::new().memory_bytes(16 << 20).background(false);
        let store = open(&dir.path().join("store"), options).unwrap();
        let mut values = Values::new(&store).unwrap();
        for blob in [900, 901] {
            for number in 0..2 * MAX_BAD as u64 {
                let (blob, offset) = (BlobId(blob), number * 2000);
                let stored = Stored::InBlob { blob, offset, len: 2000, sum: 0, packed: None };
                values.check_version(&Version { key: b"\0\0\0\x01row", glsn: Glsn(1), stored });
            }
        }
        assert_eq!(values.finish().unwrap().len(), 2);
    }
}
