//! The list of segments: which exist, which were trimmed, and how a missing file is interpreted.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use plimsoll_disk::vfs::File;
use plimsoll_disk::worker::Bell;
use plimsoll_memory::budget::{Kind, Lease};
use plimsoll_memory::pool::LoadError;

use crate::error::LogError;
use crate::file_log::env::{Env, lock};
use crate::file_log::files::names::FileName;
use crate::file_log::segments::offset_table::OffsetTable;
use crate::file_log::segments::segment::{SEGMENT_LEASE_BYTES, Segment};
use crate::file_log::segments::table_writer::SortScratch;
use crate::format::offset_table::TableHeader;
use crate::glsn::Glsn;

/// The log's segments, oldest first; the last one is active.
#[derive(Debug)]
pub(crate) struct Segments {
    pub(crate) env: Arc<Env>,
    list: RwLock<Vec<Arc<Segment>>>,
    room: Mutex<Room>,
    first: AtomicU64,
    /// Held while segments are freed.
    pub(crate) trimming: Mutex<Trimming>,
    /// Held while this process checks which segments another process has trimmed. A backup takes it
    /// while it holds `trimming`.
    noticing: Mutex<()>,
    /// Held while an offset table is written.
    pub(crate) rebuilding: Mutex<SortScratch>,
    /// The segment that waits to be sealed. `bell` is notified when there is one.
    pub(crate) sealing: Mutex<Option<Sealing>>,
    pub(crate) bell: Arc<Bell>,
}

/// The segment that is being freed.
#[derive(Debug, Default)]
pub(crate) struct Trimming {
    /// The first GLSN of the segment that is no longer in the list, and that of the next one, until
    /// its file is durably removed.
    pub(crate) unremoved: Option<(Glsn, Glsn)>,
}

/// A segment that waits to be sealed.
#[derive(Clone, Debug)]
pub(crate) struct Sealing {
    pub(crate) segment: Arc<Segment>,
    /// Its table in memory.
    pub(crate) table: Arc<OffsetTable>,
    pub(crate) header: TableHeader,
    /// The segment's file.
    pub(crate) file: Arc<dyn File>,
}

/// Reserved memory for segment descriptions: for those in the list, and for one more while the
/// budget allows it, so that a new segment seldom fails for lack of memory.
#[derive(Debug)]
struct Room {
    lease: Lease,
    ahead: bool,
}

impl Segments {
    /// The segments of `list`, which is not empty.
    pub(crate) fn new(list: Vec<Arc<Segment>>, env: &Arc<Env>) -> Result<Self, LogError> {
        let budget = &env.options.budget;
        let lease = budget.lease(Kind::Metadata, (list.len() as u64 + 1) * SEGMENT_LEASE_BYTES)?;
        let room = Mutex::new(Room { lease, ahead: true });
        let first = list.first().map_or(Glsn::FIRST, |segment| segment.first());
        Ok(Self {
            env: Arc::clone(env),
            list: RwLock::new(list),
            room,
            first: AtomicU64::new(first.0),
            trimming: Mutex::default(),
            noticing: Mutex::new(()),
            rebuilding: Mutex::new(SortScratch::new(budget)?),
            sealing: Mutex::new(None),
            bell: Arc::default(),
        })
    }

    /// The first GLSN that is not trimmed.
    pub(crate) fn first(&self) -> Glsn {
        Glsn(self.first.load(Ordering::Acquire))
    }

    /// Marks everything below `first` as trimmed.
    pub(crate) fn set_first(&self, first: Glsn) {
        // Release: pairs with the Acquire in `first`.
        self.first.store(first.0, Ordering::Release);
    }

    /// The segment that contains entry `glsn`.
    pub(crate) fn find(&self, glsn: Glsn) -> Option<Arc<Segment>> {
        let list = self.read();
        let behind = list.partition_point(|segment| segment.first() <= glsn);
        list.get(behind.checked_sub(1)?).map(Arc::clone)
    }

    /// All segments at this time.
    pub(crate) fn all(&self) -> Vec<Arc<Segment>> {
        self.read().clone()
    }

    /// Makes room for one more segment.
    pub(crate) fn reserve(&self) -> Result<(), LogError> {
        let mut room = lock(&self.room);
        if !room.ahead {
            room.lease.grow(SEGMENT_LEASE_BYTES)?;
            room.ahead = true;
        }
        Ok(())
    }

    /// Adds the new active segment; room for it must have been made.
    pub(crate) fn push(&self, segment: Arc<Segment>) {
        self.write().push(segment);
        let mut room = lock(&self.room);
        room.ahead = room.lease.grow(SEGMENT_LEASE_BYTES).is_ok();
    }

    /// Removes the first segment.
    pub(crate) fn pop_front(&self) -> Option<Arc<Segment>> {
        let mut list = self.write();
        let first = (list.len() > 1).then(|| list.remove(0));
        drop(list);
        if first.is_some() {
            lock(&self.room).lease.shrink(SEGMENT_LEASE_BYTES);
        }
        first
    }

    /// Finds out which segments another process has trimmed; called when a file is missing.
    /// Segments are trimmed from the front, so a missing segment after the first existing one was
    /// not trimmed.
    pub(crate) fn notice_trim(&self) {
        if !self.env.may_be_trimmed_elsewhere() {
            return;
        }
        let Ok(names) = self.env.options.disk.names(&self.env.options.dir) else { return };
        let segments = names.iter().filter_map(|name| match FileName::parse(name) {
            Some(FileName::Segment(first)) => Some(first),
            _ => None,
        });
        let Some(first) = segments.min() else { return };
        let _noticing = lock(&self.noticing);
        if first > self.first() {
            self.set_first(first);
            while self.read().first().is_some_and(|segment| segment.first() < first) {
                let Some(gone) = self.pop_front() else { break };
                // An open handle keeps the space of a removed file.
                self.env.files.forget(FileName::Segment(gone.first()));
                self.env.files.forget(FileName::Table(gone.first()));
            }
        }
    }

    /// Marks everything in segments that end at or below `until` as trimmed, because another
    /// process is removing their files or has done so.
    pub(crate) fn trimmed_below(&self, until: Glsn) {
        let _noticing = lock(&self.noticing);
        loop {
            let Some(first) = self.read().first().cloned() else { return };
            let Some(sealed) = first.sealed().filter(|sealed| sealed.next <= until) else { return };
            self.set_first(self.first().max(sealed.next));
            if self.pop_front().is_none() {
                return;
            }
            self.env.files.forget(FileName::Segment(first.first()));
            self.env.files.forget(FileName::Table(first.first()));
        }
    }

    /// Removes a file of the log, if it exists.
    pub(crate) fn remove_name(&self, name: FileName) -> Result<(), LogError> {
        self.env.files.forget(name);
        self.env.remove_file(name).map(drop)
    }

    /// Turns an error of the pool into one of the log about entry `glsn`.
    pub(crate) fn load_error(
        &self,
        error: LoadError,
        name: FileName,
        glsn: Glsn,
        offset: u64,
    ) -> LogError {
        if matches!(error, LoadError::Io { kind: io::ErrorKind::NotFound, .. }) {
            self.notice_trim();
        }
        let first = self.first();
        match error {
            LoadError::Io { kind: io::ErrorKind::NotFound, .. } if glsn < first => {
                LogError::Trimmed { asked: glsn, first }
            }
            LoadError::Io { kind: io::ErrorKind::NotFound, message, .. } => LogError::Corrupt {
                glsn,
                file: name.name(),
                offset: 0,
                what: format!("the file is missing: {message}"),
            },
            LoadError::Corrupt { message } => {
                LogError::Corrupt { glsn, file: name.name(), offset, what: message }
            }
            other => other.into(),
        }
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Vec<Arc<Segment>>> {
        self.list.read().expect("no code under this lock panics")
    }

    fn write(&self) -> RwLockWriteGuard<'_, Vec<Arc<Segment>>> {
        self.list.write().expect("no code under this lock panics")
    }
}
