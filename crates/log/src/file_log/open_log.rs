//! What all parts of an open file log share.
//!
//! The order of locks: `trim`, `order` (who appends), `writer` (who writes and syncs), the tail, the list of segments, a segment's table;
//! the syncer's and the sides' own locks are taken last and alone. The pool is never asked for a page while the tail is held: it
//! may have to look there for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use plimsoll_disk::vfs::DirLock;
use plimsoll_memory::budget::{Kind, Lease};

use crate::error::LogError;
use crate::file_log::append::Order;
use crate::file_log::blobs::registry::Sides;
use crate::file_log::durability::group_commit::Syncer;
use crate::file_log::durability::writer::Writer;
use crate::file_log::files::open_files::OpenFiles;
use crate::file_log::options::FileLogOptions;
use crate::file_log::segments::segment::{SEGMENT_LEASE_BYTES, Segment};
use crate::file_log::segments::table_writer::SortScratch;
use crate::file_log::tail::{End, TailLock};
use crate::format::segment_header::SegmentHeader;
use crate::glsn::{Bounds, Glsn};
use crate::log::Durability;

/// An open file log.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) options: FileLogOptions,
    pub(crate) id: u128,
    pub(crate) files: Arc<OpenFiles>,
    pub(crate) tail: Arc<TailLock>,
    pub(crate) segments: Segments,
    pub(crate) syncer: Syncer,
    pub(crate) sides: Sides,
    /// The GLSN that the next entry gets.
    pub(crate) next: AtomicU64,
    /// Held by whoever frees segments.
    pub(crate) trimming: Mutex<()>,
    /// Held by whoever makes an offset table again.
    pub(crate) rebuilding: Mutex<SortScratch>,
    /// `None` if the log is open to read only.
    pub(crate) writing: Option<Writing>,
    /// What the thread that syncs in the background waits for.
    pub(crate) background: crate::file_log::durability::flusher::Signal,
}

/// What it takes to append.
#[derive(Debug)]
pub(crate) struct Writing {
    pub(crate) order: Mutex<Order>,
    pub(crate) writer: Mutex<Writer>,
    pub(crate) group_bytes: Arc<AtomicU64>,
    /// Keeps other writers out; `None` once the log is closed.
    pub(crate) lock: Mutex<Option<Box<dyn DirLock>>>,
}

impl Core {
    /// What it takes to append, unless the log is open to read only.
    pub(crate) fn writing(&self) -> Result<&Writing, LogError> {
        self.writing.as_ref().ok_or(LogError::ReadOnly)
    }

    /// What the log holds.
    pub(crate) fn bounds(&self) -> Bounds {
        // Durable first: it never passes `next`.
        let durable = self.syncer.durable();
        Bounds { first: self.segments.first(), next: self.next(), durable }
    }

    /// The GLSN that the next entry gets.
    pub(crate) fn next(&self) -> Glsn {
        // Acquire: pairs with the Release of `submit`; what is below can be read.
        Glsn(self.next.load(Ordering::Acquire))
    }

    /// The last GLSN that readers may see.
    pub(crate) fn readable(&self) -> Glsn {
        match self.options.durability {
            Durability::Sync => self.syncer.durable(),
            Durability::Buffered => Glsn(self.next().0 - 1),
        }
    }

    /// Writes out everything that was appended, and syncs it.
    pub(crate) fn write_and_sync(&self) -> Result<End, LogError> {
        let mut writer = lock(&self.writing()?.writer);
        self.syncer.check()?;
        self.check_locks()?;
        let end = writer.write_out(&self.tail)?;
        writer.sync()?;
        Ok(end)
    }

    /// Refuses to make anything durable once the folder may be another writer's.
    pub(crate) fn check_locks(&self) -> Result<(), LogError> {
        if let Some(own) = lock(&self.writing()?.lock).as_ref() {
            own.check()?;
        }
        match self.options.outer_lock.as_ref().and_then(Weak::upgrade) {
            Some(outer) => Ok(outer.check()?),
            None => Ok(()),
        }
    }

    /// A description of a segment with its pages.
    pub(crate) fn segment(&self, header: SegmentHeader) -> Arc<Segment> {
        describe(&self.options, &self.files, Arc::downgrade(&self.tail), header)
    }
}

/// A description of a segment with its pages.
pub(crate) fn describe(
    options: &FileLogOptions,
    files: &Arc<OpenFiles>,
    tail: Weak<TailLock>,
    header: SegmentHeader,
) -> Arc<Segment> {
    Arc::new(Segment::new(header, options.caching, &options.pool, files, tail))
}

/// Takes a lock under which nothing panics.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no code under this lock panics")
}

/// The log's segments, oldest first; the last one is active.
#[derive(Debug)]
pub(crate) struct Segments {
    list: RwLock<Vec<Arc<Segment>>>,
    room: Mutex<Room>,
    first: AtomicU64,
}

/// Room in the budget for descriptions of segments: for one more than there are, so that turning to a new one does not depend on
/// what is free just then.
#[derive(Debug)]
struct Room {
    lease: Lease,
    ahead: bool,
}

impl Segments {
    /// The segments of `list`, which is not empty.
    pub(crate) fn new(list: Vec<Arc<Segment>>, options: &FileLogOptions) -> Result<Self, LogError> {
        let lease = options.budget.lease(Kind::Metadata, (list.len() as u64 + 1) * SEGMENT_LEASE_BYTES)?;
        let room = Mutex::new(Room { lease, ahead: true });
        let first = list.first().map_or(Glsn::FIRST, |segment| segment.first());
        Ok(Self { list: RwLock::new(list), room, first: AtomicU64::new(first.0) })
    }

    /// The first GLSN that is not trimmed.
    pub(crate) fn first(&self) -> Glsn {
        Glsn(self.first.load(Ordering::Acquire))
    }

    /// From now on everything below `first` is trimmed.
    pub(crate) fn set_first(&self, first: Glsn) {
        // Release: pairs with the Acquire in `first`.
        self.first.store(first.0, Ordering::Release);
    }

    /// The segment that entry `glsn` lies in.
    pub(crate) fn find(&self, glsn: Glsn) -> Option<Arc<Segment>> {
        let list = self.read();
        let behind = list.partition_point(|segment| segment.first() <= glsn);
        list.get(behind.checked_sub(1)?).map(Arc::clone)
    }

    /// All of them, as they are now.
    pub(crate) fn all(&self) -> Vec<Arc<Segment>> {
        self.read().clone()
    }

    /// Makes sure that there is room for one more.
    pub(crate) fn reserve(&self) -> Result<(), LogError> {
        let mut room = lock(&self.room);
        if !room.ahead {
            room.lease.grow(SEGMENT_LEASE_BYTES)?;
            room.ahead = true;
        }
        Ok(())
    }

    /// Adds the new active segment, for which room was made.
    pub(crate) fn push(&self, segment: Arc<Segment>) {
        self.write().push(segment);
        let mut room = lock(&self.room);
        room.ahead = room.lease.grow(SEGMENT_LEASE_BYTES).is_ok();
    }

    /// Takes the first one out.
    pub(crate) fn pop_front(&self) -> Option<Arc<Segment>> {
        let mut list = self.write();
        let first = (list.len() > 1).then(|| list.remove(0));
        drop(list);
        if first.is_some() {
            lock(&self.room).lease.shrink(SEGMENT_LEASE_BYTES);
        }
        first
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Vec<Arc<Segment>>> {
        self.list.read().expect("no code under this lock panics")
    }

    fn write(&self) -> RwLockWriteGuard<'_, Vec<Arc<Segment>>> {
        self.list.write().expect("no code under this lock panics")
    }
}
