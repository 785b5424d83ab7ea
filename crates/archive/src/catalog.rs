//! The contents of an archive, from the entries of its manifest.

use std::collections::BTreeMap;

use crate::bucket::Bucket;
use crate::error::{Damage, Result};
use crate::manifest::{Base, Blob, End, Entry, Manifest, Piece, read_json};
use crate::object::ObjectRef;

/// The archived log, the blob files that its records name, and the bases.
#[derive(Clone, Debug, Default)]
pub(crate) struct Catalog {
    /// The pieces of each segment, in order.
    pub(crate) segments: BTreeMap<u64, Vec<Piece>>,
    /// Blob files by id.
    pub(crate) blobs: BTreeMap<u64, Blob>,
    /// Oldest first.
    pub(crate) bases: Vec<Base>,
    /// The objects of pieces that later pieces replaced, since this list was last emptied. Empty
    /// after the archive was read.
    pub(crate) replaced: Vec<ObjectRef>,
}

impl Catalog {
    pub(crate) fn of(entries: impl IntoIterator<Item = Entry>) -> Self {
        let mut catalog = Self::default();
        catalog.extend(entries);
        catalog.replaced.clear();
        catalog
    }

    /// The catalog of a manifest and its lists. Adds unusable lists to `damage`; their entries are
    /// missing from the catalog.
    pub(crate) fn read(
        bucket: &dyn Bucket,
        manifest: &Manifest,
        damage: &mut Vec<Damage>,
    ) -> Result<Self> {
        let mut catalog = Self::default();
        for list in &manifest.lists {
            match read_json::<Vec<Entry>>(bucket, list)? {
                Ok(entries) => catalog.extend(entries),
                Err(what) => damage.push(Damage { object: list.name.clone(), what }),
            }
        }
        catalog.extend(manifest.entries.iter().cloned());
        catalog.replaced.clear();
        Ok(catalog)
    }

    pub(crate) fn extend(&mut self, entries: impl IntoIterator<Item = Entry>) {
        entries.into_iter().for_each(|entry| self.add(entry));
    }

    pub(crate) fn add(&mut self, entry: Entry) {
        match entry {
            Entry::Piece(piece) => {
                // The piece replaces later segments that it reaches: the store lost an empty
                // segment, and continued in the one before it.
                let is_over = |first: &u64| *first > piece.segment && *first <= piece.end.glsn;
                let over: Vec<u64> =
                    self.segments.keys().rev().copied().take_while(is_over).collect();
                let over = over.into_iter().filter_map(|first| self.segments.remove(&first));
                self.replaced.extend(over.flatten().map(|piece| piece.object));
                let pieces = self.segments.entry(piece.segment).or_default();
                if piece.from == 0 {
                    self.replaced.extend(pieces.drain(..).map(|piece| piece.object));
                }
                pieces.push(piece);
            }
            Entry::Blob(blob) => {
                self.blobs.insert(blob.id, blob);
            }
            Entry::Base(base) => self.bases.push(base),
        }
    }

    /// The entries of which this catalog consists.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry> {
        let pieces = self.pieces().cloned().map(Entry::Piece);
        let blobs = self.blobs.values().cloned().map(Entry::Blob);
        pieces.chain(blobs).chain(self.bases.iter().cloned().map(Entry::Base))
    }

    pub(crate) fn entry_count(&self) -> usize {
        self.pieces().count() + self.blobs.len() + self.bases.len()
    }

    /// All pieces, in the order of the log.
    pub(crate) fn pieces(&self) -> impl DoubleEndedIterator<Item = &Piece> {
        self.segments.values().flatten()
    }

    /// The objects of pieces and blob files, and the lists of bases.
    pub(crate) fn objects(&self) -> impl Iterator<Item = &ObjectRef> {
        let pieces = self.pieces().map(|piece| &piece.object);
        let blobs = self.blobs.values().map(|blob| &blob.object);
        pieces.chain(blobs).chain(self.bases.iter().map(|base| &base.list))
    }

    /// The last piece of the newest segment.
    pub(crate) fn last(&self) -> Option<&Piece> {
        self.pieces().next_back()
    }

    /// Bytes of the log after a position.
    pub(crate) fn log_bytes_after(&self, glsn: u64) -> u64 {
        let after = self.pieces().filter(|piece| piece.end.glsn > glsn);
        after.map(|piece| piece.to - piece.from).sum()
    }

    /// The consecutive pieces from the start of a segment, up to the first gap or the first piece
    /// that `is_good` rejects.
    pub(crate) fn run_from<'a>(
        &'a self,
        segment: u64,
        is_good: impl Fn(&Piece) -> bool + 'a,
    ) -> impl Iterator<Item = &'a Piece> {
        let mut before: Option<&Piece> = None;
        self.segments.range(segment..).flat_map(|(_, pieces)| pieces).take_while(move |piece| {
            let follows = match before {
                None => piece.segment == segment && piece.from == 0,
                Some(before) if before.segment == piece.segment => {
                    piece.from <= before.to && piece.first == before.end.glsn + 1
                }
                Some(before) => {
                    piece.from == 0 && before.is_before(piece.segment, piece.previous_end)
                }
            };
            before = Some(piece);
            follows && is_good(piece)
        })
    }

    /// The blob files that the records of these pieces name.
    pub(crate) fn blobs_of<'a>(
        &'a self,
        pieces: &[&Piece],
    ) -> impl Iterator<Item = &'a Blob> + use<'a> {
        // The last piece of a segment determines its end.
        let ends: BTreeMap<u64, u64> =
            pieces.iter().map(|piece| (piece.segment, piece.end.glsn)).collect();
        self.blobs
            .values()
            .filter(move |blob| ends.get(&blob.segment).is_some_and(|end| blob.glsn <= *end))
    }

    /// The last archived position.
    pub(crate) fn end(&self) -> End {
        self.last().map_or_else(End::default, |piece| piece.end)
    }
}
