//! Archives a Plimsoll store continuously, and restores it as of any archived moment.
//!
//! An archive is a folder (or another [`Bucket`]) of objects that never change: the segments and
//! blob files of the store's log, and now and then a *base*: the files of its index, for stores
//! whose log was trimmed and for fast restores. A numbered manifest names them all. Each pass
//! ([`Archive::push`]) sends new objects and ends with the next manifest. Stopping a pass at any
//! point does not change what the archive restores. `docs/reference/archive.md` specifies every
//! byte.
//!
//! A restore reads a base, or the beginning of the log, and the log up to the requested moment. It
//! verifies every byte, and names each object that is damaged.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! use plimsoll::{Db, Moment, Options};
//! use plimsoll_archive::Archive;
//!
//! let options = Options::new().memory_bytes(16 << 20);
//! let db = Db::open(dir.path().join("store"), options.clone())?;
//! let notes = db.keyspace("notes")?;
//! let first = db.put(&notes, "a", "one")?;
//! db.put(&notes, "a", "two")?;
//!
//! let mut archive = Archive::open(dir.path().join("archive").to_str().unwrap())?;
//! archive.push(&db)?;
//!
//! let restored = dir.path().join("restored");
//! archive.restore(&restored, options.clone(), Moment::Glsn(first))?;
//! let then = Db::open(&restored, options)?;
//! assert_eq!(then.newest(), first);
//! assert_eq!(then.get(&then.keyspace("notes")?, "a")?.unwrap(), b"one");
//! # Ok(())
//! # }
//! ```

mod bucket;
mod catalog;
#[cfg(feature = "cloud")]
mod cloud;
mod error;
mod folder;
mod follow;
mod manifest;
#[cfg(feature = "nats")]
mod nats;
mod object;
mod plan;
#[cfg(feature = "postgres")]
mod postgres;
mod prune;
mod push;
mod restore;
mod url;
mod verify;
mod view;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use plimsoll::{Db, Glsn, InvalidInput, LogHold, Moment, Options};
use plimsoll_disk::os::OsDisk;
use plimsoll_disk::vfs::Disk;

use crate::bucket::Call;

pub use bucket::{Bucket, Object, Put};
#[cfg(feature = "cloud")]
pub use cloud::Cloud;
pub use error::{Damage, Error, Result};
pub use folder::Folder;
pub use follow::Stop;
#[cfg(feature = "nats")]
pub use nats::Nats;
#[cfg(feature = "postgres")]
pub use postgres::Postgres;
pub use push::PushReport;
pub use restore::RestoreReport;
pub use url::{Folders, bucket_at, has_secret, url_of_folder};
pub use verify::{VerifyProgress, VerifyReport};

/// The index is archived again after this many bytes of log, or after as many bytes as the index
/// has, if that is more.
const BASE_BYTES: u64 = 256 << 20;

/// An archive of a store.
#[derive(Debug)]
pub struct Archive {
    bucket: Arc<dyn Bucket>,
    disk: Arc<dyn Disk>,
    place: String,
    policy: push::Policy,
    cancel: Arc<AtomicBool>,
    state: Option<push::State>,
    /// Keeps the store's log after the archived end until the next pass.
    hold: Option<LogHold>,
}

impl Archive {
    /// The archive at a place: a path, a URL `file:///path`, or, with the features `cloud`,
    /// `postgres` and `nats`, a URL such as `s3://bucket/prefix` (see `Cloud`),
    /// `postgres://user@host/database/schema` (see `Postgres`) or `nats://host,host,host/stream`
    /// (see `Nats`). This call reads and writes nothing.
    ///
    /// # Errors
    /// [`Error::Url`]: the URL has another scheme, or no path.
    pub fn open(url: &str) -> Result<Self> {
        if let Some(bucket) = url::remote_of(url, Folders::Create)? {
            return Ok(Self::of(bucket, url));
        }
        let disk: Arc<dyn Disk> = Arc::new(OsDisk::new());
        let path = url::path_of(url)?;
        Ok(Self::of(Arc::new(Folder::new(disk, path)), path))
    }

    /// The archive in a bucket. Messages name it `place`.
    pub fn of(bucket: Arc<dyn Bucket>, place: &str) -> Self {
        let (disk, place): (Arc<dyn Disk>, _) = (Arc::new(OsDisk::new()), place.to_owned());
        let cancel = Arc::default();
        let policy = push::Policy { base_bytes: BASE_BYTES, keep_micros: None };
        Self { bucket, disk, place, policy, cancel, state: None, hold: None }
    }

    /// Archives the index again after this many bytes of log (by default 256 MiB), or as many as
    /// the index has, if that is more. A restore replays at most about as much.
    #[must_use]
    pub fn base_every(self, bytes: u64) -> Self {
        Self { policy: push::Policy { base_bytes: bytes, ..self.policy }, ..self }
    }

    /// Keeps only the moments within this time before the newest commit; by default all are kept.
    /// Each pass drops the objects that only earlier moments need. The index is archived again at
    /// least this often, and moments are kept for up to about twice as long.
    #[must_use]
    pub fn keep(self, time: Duration) -> Self {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        Self { policy: push::Policy { keep_micros: Some(micros), ..self.policy }, ..self }
    }

    /// Lets another thread or a signal handler cancel a pass, a restore or a verification: once
    /// `flag` is set, it soon fails with [`plimsoll::Error::Cancelled`]. A restore that has all
    /// files fails once it has checked them; it leaves nothing.
    #[must_use]
    pub fn cancel_on(self, flag: Arc<AtomicBool>) -> Self {
        Self { cancel: flag, ..self }
    }

    /// Whether a folder holds an archive.
    pub fn is_at(path: &Path) -> bool {
        let entry = OsDisk::new().entry(&path.join(manifest::FOLDER));
        entry.is_ok_and(|entry| entry.is_some_and(|entry| entry.is_dir))
    }

    /// Makes one pass: afterwards everything that was durable at its beginning is in the archive.
    /// Creates the archive if there is none. The first pass of an archiver locks it.
    ///
    /// Until the next pass, or until the archiver is dropped, the store keeps its log after the
    /// archived end ([`Db::hold_log`]), so that no moment is missed in between. The log is not
    /// retained if the archiver only reads a store that another process has exclusively, or if it
    /// cannot write to the store's folder. If another process then frees a part of the log that is
    /// not archived yet, the next pass archives the index again, and the moments in between are
    /// lost.
    ///
    /// Besides the store's budget, of which it takes 64 KiB, a pass needs some MiB for compression,
    /// and about 500 bytes for each archived object.
    ///
    /// # Errors
    /// [`Error::OtherStore`], [`Error::OtherHistory`], [`Error::OtherArchiver`],
    /// [`Error::NotApart`]: this store must not be archived here. [`Error::Damaged`]: the newest
    /// manifest or a list cannot be read. The store, the storage. After an error, the archive is
    /// unchanged.
    pub fn push(&mut self, db: &Db) -> Result<PushReport> {
        let mut state = match self.state.take() {
            Some(state) if state.is_of(db.id()) => state,
            _ => {
                self.check_apart(db)?;
                push::State::load(&*self.bucket, &self.place, db.id())?
            }
        };
        // Hold the log before the pass, so that nothing is freed between this pass and the next
        // one.
        let archived = state.catalog.end().glsn;
        let end = db.log().bounds().durable;
        let archived = if archived == 0 { end } else { Glsn(archived) };
        self.hold = hold(db, archived.next())?;
        // A failure drops the state, so that the next pass reads the archive again.
        let call = self.call();
        let report = push::push(&call, &mut state, db, &self.policy)?;
        if let Some(keep) = self.policy.keep_micros {
            prune::prune(&call, &mut state, keep)?;
        }
        self.hold = hold(db, report.glsn.next())?;
        self.state = Some(state);
        Ok(report)
    }

    fn call(&self) -> Call<'_> {
        Call { bucket: &*self.bucket, place: &self.place, cancel: &self.cancel }
    }

    /// Fails if the archive's folder is in the store's, or contains it.
    fn check_apart(&self, db: &Db) -> Result<()> {
        let folder = self.bucket.folder().map_err(|error| Error::storage(&self.place, error))?;
        let Some(folder) = folder else { return Ok(()) };
        let store = db.folder()?;
        let is_inside = folder.starts_with(&store);
        match is_inside || store.starts_with(&folder) {
            true => Err(Error::NotApart { place: self.place.clone(), store, is_inside }),
            false => Ok(()),
        }
    }

    /// Makes passes until `stop`, one in each interval, and calls `each` after every pass.
    ///
    /// # Errors
    /// As for [`Archive::push`], and those of `each`. The first error ends it, for example a full
    /// disk of the archive; call it again.
    pub fn follow(
        &mut self,
        db: &Db,
        every: Duration,
        stop: &Stop,
        mut each: impl FnMut(&PushReport) -> Result<()>,
    ) -> Result<()> {
        loop {
            each(&self.push(db)?)?;
            if stop.wait(every) {
                return Ok(());
            }
        }
    }

    /// Makes a store at `dest`, which must not exist or be an empty folder. The store ends with the
    /// last record at or before a moment, and has as much of the history as the archive. Every byte
    /// is verified. If damaged objects are in the way, the store ends with the newest earlier
    /// moment that can be restored, and the report names these objects. The store appears at `dest`
    /// once it is complete.
    ///
    /// The restored store has the id of the archived one, and its log continues differently, so it
    /// needs its own archive, unless it was restored at [`Moment::Newest`].
    ///
    /// # Errors
    /// [`Error::NotArchived`], [`Error::NotAnArchive`], [`Error::Damaged`],
    /// [`Error::DestinationExists`]; the storage, the disk, the budget.
    pub fn restore(
        &self,
        dest: impl AsRef<Path>,
        options: Options,
        at: Moment,
    ) -> Result<RestoreReport> {
        restore::restore(&self.call(), &self.disk, dest.as_ref(), options, at)
    }

    /// Reads and checks every object that the newest manifest names, and the older manifests.
    ///
    /// # Errors
    /// [`Error::NotAnArchive`]; the storage. Damage is in the report.
    pub fn verify(&self, progress: &mut dyn FnMut(VerifyProgress)) -> Result<VerifyReport> {
        verify::verify(&self.call(), progress)
    }
}

/// Holds the log of a store from `from` on; `None` if this process cannot do so, because it has no
/// permission to write to the folder.
fn hold(db: &Db, from: Glsn) -> Result<Option<LogHold>> {
    match db.hold_log(from) {
        Err(plimsoll::Error::InvalidInput(InvalidInput::CannotHoldLog { .. })) => Ok(None),
        held => Ok(held.map(Some)?),
    }
}
