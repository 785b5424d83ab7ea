//! Frees whole segments from the front, and blob files that no record names.
//!
//! Invariant: a segment's name is durably removed before the next segment is touched and before any
//! blob file is removed, so that neither a crash nor a failed removal leaves a hole. Blob files are
//! removed last; if that is prevented, a sweep removes them.

use plimsoll_disk::borders::{Border, hit};
use plimsoll_memory::budget::Kind;
use plimsoll_memory::buffer::Buffer;
use plimsoll_memory::page::PAGE_BYTES;

use crate::blob::BlobId;
use crate::error::LogError;
use crate::file_log::append::end_segment_from;
use crate::file_log::env::lock;
use crate::file_log::files::names::FileName;
use crate::file_log::open_log::OpenLog;
use crate::file_log::segments::list::Trimming;
use crate::file_log::shared::turn::with_order;
use crate::format::offset_table::NamedBlob;
use crate::glsn::Glsn;

impl OpenLog {
    /// Frees whole segments below `until`.
    pub(crate) fn trim_below(
        &self,
        until: Glsn,
        keep: &dyn Fn(BlobId) -> bool,
        note: &mut dyn FnMut() -> Result<(), LogError>,
    ) -> Result<Glsn, LogError> {
        let mut trimming = lock(&self.segments.trimming);
        self.durability.check_own()?;
        self.remove_segment(&mut trimming)?;
        self.end_segment_for_blobs(until, keep)?;
        let mut is_noted = false;
        loop {
            let Some(segment) = self.segments.read().first().cloned() else { break };
            let Some(sealed) = segment.sealed().filter(|sealed| sealed.next <= until) else {
                break;
            };
            // The next segment must have its name; otherwise a crash would leave no segment.
            if self.durability.writer()?.unnamed == Some(sealed.next) {
                self.durability.sync_to_end()?;
            }
            if sealed.next > self.durability.group.durable().next() {
                break;
            }
            let count = self.segments.with_table(&segment, |table| Ok(table.blob_count()))?;
            let mut blobs =
                Buffer::with_capacity(&self.env.options.budget, Kind::Staging, count as usize)?;
            for index in 0..count {
                let blob = self.segments.with_table(&segment, |table| table.blob(index))?.blob.id;
                if !keep(blob) {
                    blobs.push(blob);
                }
            }
            if !is_noted {
                note()?;
                is_noted = true;
            }
            self.durability.check_own()?;
            self.segments.cancel_sealing(segment.first());
            self.segments.set_first(sealed.next);
            self.segments.pop_front();
            trimming.unremoved = Some((segment.first(), sealed.next));
            self.remove_segment(&mut trimming)?;
            for blob in blobs.iter() {
                self.blobs.remove(*blob)?;
            }
        }
        Ok(self.segments.first())
    }

    /// Durably removes the file of the segment that was taken off the list, and its table. If this
    /// fails, the next trim or sweep does it first.
    fn remove_segment(&self, trimming: &mut Trimming) -> Result<(), LogError> {
        let Some((first, next)) = trimming.unremoved else { return Ok(()) };
        self.segments.remove_name(FileName::Segment(first))?;
        if let Some(members) = self.env.members() {
            members.marks.set_log_first(next);
        }
        self.env.options.disk.sync_dir(&self.env.options.dir)?;
        trimming.unremoved = None;
        self.segments.remove_name(FileName::Table(first))
    }

    /// Ends the active segment if that lets this trim or a later one free as many bytes of blob
    /// files as a segment has. Records of large values are small, so the segment would otherwise
    /// take very many of them.
    fn end_segment_for_blobs(
        &self,
        until: Glsn,
        keep: &dyn Fn(BlobId) -> bool,
    ) -> Result<(), LogError> {
        let enough = u64::from(self.env.options.segment_size());
        let named = {
            let tail = self.tail.read();
            if tail.blobs.bytes() < enough {
                return Ok(());
            }
            let mut named = Buffer::with_capacity(
                &self.env.options.budget,
                Kind::Staging,
                tail.blobs.list().len(),
            )?;
            tail.blobs.list().iter().for_each(|blob| named.push(*blob));
            named
        };
        let is_free = |named: &&NamedBlob| named.record_first < until && !keep(named.blob.id);
        let free_pages: u64 =
            named.iter().filter(is_free).map(|named| u64::from(named.blob.pages)).sum();
        if free_pages * PAGE_BYTES as u64 >= enough {
            hit(Border::SegmentEndedForBlobs);
            with_order(self, |order| end_segment_from(self, order, 0))?;
        }
        Ok(())
    }

    /// Removes blob files that no record names, and offset tables without a segment.
    pub(crate) fn sweep(&self, keep: &dyn Fn(BlobId) -> bool) -> Result<u64, LogError> {
        let mut trimming = lock(&self.segments.trimming);
        self.durability.check_own()?;
        self.remove_segment(&mut trimming)?;
        let unpinned = self.unpinned()?;
        let mut candidates = Buffer::with_capacity(&self.env.options.budget, Kind::Staging, 0)?;
        for name in self.env.options.disk.names(&self.env.options.dir)? {
            match FileName::parse(&name) {
                Some(FileName::Blob(id)) if id < unpinned && self.may_be_swept(id, keep) => {
                    candidates.reserve(1)?;
                    candidates.push(id);
                }
                Some(FileName::Table(first)) if first < self.segments.first() => {
                    self.segments.remove_name(FileName::Table(first))?;
                }
                _ => {}
            }
        }
        candidates.sort_unstable();
        self.remove_unnamed(&candidates)
    }

    /// Removes the files in `blobs`, which are in ascending order, that no record names.
    pub(crate) fn sweep_listed(
        &self,
        blobs: &[BlobId],
        keep: &dyn Fn(BlobId) -> bool,
    ) -> Result<u64, LogError> {
        let mut trimming = lock(&self.segments.trimming);
        self.durability.check_own()?;
        self.remove_segment(&mut trimming)?;
        let unpinned = self.unpinned()?;
        let mut candidates =
            Buffer::with_capacity(&self.env.options.budget, Kind::Staging, blobs.len())?;
        blobs
            .iter()
            .filter(|id| **id < unpinned && self.may_be_swept(**id, keep))
            .for_each(|id| candidates.push(*id));
        self.remove_unnamed(&candidates)
    }

    /// An id below which no other member is writing a blob file, and no record that is unknown here
    /// names one. Reads the highest assigned id first, then the pins, then the records, so that a
    /// file that is begun or named meanwhile is not treated as a leftover. Runs under the turn, so
    /// that no record of a member that has ended reappears.
    fn unpinned(&self) -> Result<BlobId, LogError> {
        let Some(members) = self.env.members() else { return Ok(BlobId(u64::MAX)) };
        let mark = members.blob_ids.last_blob_id();
        let pin = members.blob_ids.oldest_blob_pin()?;
        with_order(self, |_| Ok(()))?;
        Ok(BlobId(pin.min(mark + 1)))
    }

    fn may_be_swept(&self, id: BlobId, keep: &dyn Fn(BlobId) -> bool) -> bool {
        !keep(id)
            && !self.blobs.registry.is_unnamed(id)
            && id.number() <= self.blobs.registry.last_id()
    }

    /// Removes the files of `candidates`, which are sorted, that no record names. Returns how many
    /// it removed. A file that cannot be removed does not stop the others; the first such error is
    /// returned at the end.
    fn remove_unnamed(&self, candidates: &[BlobId]) -> Result<u64, LogError> {
        let mut named = Buffer::zeroed(&self.env.options.budget, Kind::Staging, candidates.len())?;
        if !candidates.is_empty() {
            self.for_each_named_blob(&mut |id| {
                if let Ok(at) = candidates.binary_search(&id) {
                    named[at] = 1;
                }
            })?;
        }
        let (mut removed, mut failed) = (0, None);
        for (id, _) in candidates.iter().zip(named.iter()).filter(|(_, named)| **named == 0) {
            match self.blobs.remove(*id) {
                Ok(was_there) => removed += u64::from(was_there),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(removed), Err)
    }

    /// Whether another process may be writing a blob file now. This is so if the log is open
    /// read-only or shared, the file has no valid trailer, and no record names it.
    pub(crate) fn may_be_in_writing(&self, id: BlobId) -> bool {
        let mut is_named = false;
        self.env.may_be_trimmed_elsewhere()
            && self.blobs.read_trailer(id).is_err()
            && self.for_each_named_blob(&mut |named| is_named |= named == id).is_ok()
            && !is_named
    }

    /// Calls `each` with each blob file that a record names. The tail decides which segment is
    /// active: the list contains the next segment slightly earlier, and the previous one is not
    /// sealed until the tail switches.
    pub(crate) fn for_each_named_blob(&self, each: &mut dyn FnMut(BlobId)) -> Result<(), LogError> {
        let mut from = Glsn::NONE;
        loop {
            let active = self.tail.read().first;
            for segment in self
                .segments
                .all()
                .iter()
                .filter(|segment| (from..active).contains(&segment.first()))
            {
                let count = self.segments.with_table(segment, |table| Ok(table.blob_count()))?;
                for index in 0..count {
                    each(self.segments.with_table(segment, |table| table.blob(index))?.blob.id);
                }
            }
            let tail = self.tail.read();
            if tail.first == active {
                tail.blobs.list().iter().for_each(|named| each(named.blob.id));
                return Ok(());
            }
            // The active segment was sealed meanwhile, so read its table too.
            from = active;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::{Arc, Weak};

    use plimsoll_disk::clock::SystemClock;
    use plimsoll_disk::lying::LyingDisk;
    use plimsoll_disk::vfs::Disk;
    use plimsoll_memory::budget::{Backing, Budget};
    use plimsoll_memory::pool::Pool;

    use crate::draft::{Draft, DraftEntry};
    use crate::file_log::FileLog;
    use crate::file_log::options::FileLogOptions;
    use crate::file_log::tail::segment_source::new_segment;
    use crate::format::segment_header::SegmentHeader;
    use crate::glsn::StreamId;

    #[test]
    fn a_sweep_while_the_next_segment_begins_keeps_the_blob_files_of_the_active_one() {
        let disk: Arc<dyn Disk> = Arc::new(LyingDisk::new(1));
        let budget = Budget::new(16 << 20, Backing::Heap).unwrap();
        let pool = Pool::new(&budget, 1 << 20).unwrap();
        let options = FileLogOptions::new(
            disk,
            Arc::new(SystemClock::new()),
            PathBuf::from("/log"),
            pool,
            budget,
        );
        let (log, _) = FileLog::open(options).unwrap();
        let mut writer = log.create_blob().unwrap();
        writer.write(b"large").unwrap();
        let blob = writer.finish().unwrap();
        let entries = [DraftEntry { stream: StreamId(0), parts: &[b"small"] }];
        let named = log.submit(&Draft { blobs: &[blob], ..Draft::of(&entries) }, None).unwrap();
        log.wait_durable(named.last).unwrap();
        // The next segment is in the list, and is not active yet.
        let active = log.log.tail.read().segment.header;
        let next = SegmentHeader { first: named.last.next(), ..active };
        log.log.segments.push(new_segment(next, &log.log.env, Weak::new()));
        assert_eq!(log.sweep_blobs(&|_| false).unwrap(), 0);
        assert_eq!(log.open_blob(blob.id).unwrap().pages, blob.pages);
    }
}
