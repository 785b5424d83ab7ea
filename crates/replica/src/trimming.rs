//! Trims the log of a cluster: a new base replaces the batches before a position.
//!
//! The steps, each of which may be the last one of a call that is killed:
//! 1. The member's state is archived in `base-<member>-<n>/`; only files that are not there yet are
//!    sent.
//! 2. The archive is restored into the member's folder and verified, as a new member would do it.
//! 3. `bases/<n>` is stored, only if there is none: from then on the batches before its position
//!    are not part of the log.
//! 4. Those batches are removed, the oldest first, so that the rest has no gaps.
//! 5. Archives of older bases are removed; those of the two newest bases stay.
//!
//! Invariant: nothing is removed that is not replaced by a base of step 3. The next call does what
//! is left of steps 4 and 5.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use plimsoll::order::{Order, OrderError};
use plimsoll::{Db, Glsn, Moment, Options};
use plimsoll_archive::{Bucket, Folders, RestoreReport};
use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::os::OsDisk;

use crate::bases::{self, Base, Numbered};
use crate::bucket_order;
use crate::cluster::{BASE, Place};
use crate::error::{Error, Result};
use crate::membership::{CHECK, membership};
use crate::opening::{check_id, remove_folder};
use crate::positions::find_first;

/// The batches that a trim keeps by default.
pub const KEEP_BATCHES: u64 = 1000;

/// The memory for verifying a base.
const MEMORY_BYTES: u64 = 32 << 20;

/// An archive keeps only the moments of this time, besides the newest.
const KEEP_MOMENTS: Duration = Duration::from_secs(24 * 3600);

/// How many bases a call looks back for what an earlier one has left.
const LOOK_BACK: u64 = 16;

/// Batches that are removed at a time, by this many threads.
const WINDOW: u64 = 64;
const THREADS: usize = 8;

/// How often a call begins again because another one was faster.
const TRIES: u32 = 4;

/// The result of trimming a log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrimReport {
    /// The number of the base that this call stored; `None` if the log was short enough.
    pub base: Option<u64>,
    /// The newest GLSN of the newest base.
    pub base_glsn: Glsn,
    /// The first position of the log that members may need. Batches before it are removed.
    pub first: u64,
    /// The last position of the log that this member had applied.
    pub last: u64,
    /// Batches that this call removed.
    pub removed: u64,
    /// Bytes that were sent.
    pub bytes_sent: u64,
    /// Bytes of the base that were read back and verified.
    pub bytes_verified: u64,
}

/// Trims the log of the cluster of which `db` is an open member, down to `keep` batches (at least
/// 1). First archives the state of this member as a new base, and restores it from the bucket into
/// the member's folder, as a new member would, which verifies every byte. Only then removes the
/// batches before, and the archives of bases older than the previous one. Members that have not
/// applied a removed batch restore the base when they are opened again.
///
/// Commits of all members go on meanwhile. Needs free disk space for another copy of the store, and
/// 32 MiB besides the store's budget.
///
/// If this fails or is interrupted, no batch is lost; repeat it.
///
/// # Errors
/// [`Error::NotAMember`]. [`Error::Archive`] and [`Error::Damaged`]: the new base cannot be read
/// back; nothing was removed. The store, the disk, the bucket.
///
/// # Examples
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = |name: &str| dir.path().join(name);
/// # let url = format!("file://{}", path("bucket").display());
/// use plimsoll::{Db, Options};
///
/// let options = Options::new().memory_bytes(16 << 20);
/// # Db::open(path("store"), options.clone())?.close()?;
/// plimsoll_replica::create(&url, path("store"), options.clone())?;
/// let db = plimsoll_replica::open_member(path("store"), options)?;
/// for number in 0..10 {
///     db.put(&db.keyspace("default")?, "key", format!("{number}"))?;
/// }
/// let report = plimsoll_replica::trim(&db, 5)?;
/// assert_eq!(report.last - report.first + 1, 5);
/// # Ok(())
/// # }
/// ```
pub fn trim(db: &Db, keep: u64) -> Result<TrimReport> {
    // Two calls for one member would share an archive and a folder.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let path = db.folder()?;
    // If the cluster was moved, the member goes on in the other bucket.
    db.sync()?;
    let member = membership(&path)?.ok_or_else(|| Error::NotAMember { path: path.clone() })?;
    let place = Place::find(&member.url, Folders::Existing)?;
    check_id(&place, &path, member.id)?;
    let mut tries = 0;
    loop {
        tries += 1;
        match make_base(db, &path, &place, keep) {
            // Another member has stored a base with this number, or trimmed the log.
            Ok(Made::Overtaken) if tries < TRIES => {}
            Ok(Made::Overtaken) => {
                let what = format!("{}: other members trim the log, too; try again", place.url);
                return Err(OrderError::Unavailable(what).into());
            }
            Ok(Made::Report(report)) => return remove(&place, db, *report),
            Err(error) => return Err(error),
        }
    }
}

/// The outcome of an attempt.
enum Made {
    Report(Box<TrimReport>),
    Overtaken,
}

/// The first position after a base that has everything up to `position`: the newest `keep` batches
/// stay, at least one, which shows where the base ends.
fn first_after(position: u64, keep: u64) -> u64 {
    (position + 1).saturating_sub(keep.max(1))
}

/// Steps 1 to 3.
fn make_base(db: &Db, path: &Path, place: &Place, keep: u64) -> Result<Made> {
    db.sync()?;
    let Some(at) = db.order_place() else {
        return Err(Error::NotAMember { path: path.to_owned() });
    };
    // Only durable commits are archived, and the place may be ahead of them.
    db.sync()?;
    let newest = place.newest_base()?;
    place.check_no_fence(newest.as_ref())?;
    let order = place.order()?;
    let (first, new_first) = (order.first()?, first_after(at.position, keep));
    let mut report = TrimReport {
        base: None,
        base_glsn: newest.as_ref().map_or(place.identity()?.base(), |it| Glsn(it.base.glsn)),
        first,
        last: at.position,
        removed: 0,
        bytes_sent: 0,
        bytes_verified: 0,
    };
    if new_first <= first {
        return Ok(Made::Report(Box::new(report)));
    }
    // Members begin with this batch, and the last one contains what the base has.
    for position in [new_first, at.position] {
        match order.read(position) {
            Ok(Some(batch)) if position != at.position || batch.ends_with(&at.hash) => {}
            // The bucket was set back, and others have used the position again.
            Ok(_) => return Err(place.lost(position)),
            Err(OrderError::Trimmed { .. }) => return Ok(Made::Overtaken),
            Err(error) => return Err(error.into()),
        }
    }
    let number = newest.as_ref().map_or(0, |it| it.number) + 1;
    let mut archive = archive_for(place, newest.as_ref(), number, at.replica)?;
    let fresh = archive_name(at.replica, number);
    let mut made = archived(db, path, place, &archive, at.glsn);
    if made.is_err() && place.newest_base()? != newest {
        // Another member has removed that archive.
        return Ok(Made::Overtaken);
    }
    if made.is_err() && archive != fresh {
        // The archive of an earlier base is damaged.
        made = archived(db, path, place, &fresh, at.glsn);
        archive = fresh;
    }
    let verified = made?;
    report.bytes_sent = verified.sent;
    let base = Base {
        first: new_first,
        position: at.position,
        glsn: verified.glsn.0,
        archive,
        bytes: verified.bytes,
        created_micros: SystemClock::new().wall_micros(),
        replica: at.replica,
        healed: None,
        moved: None,
    };
    place.make_folders(&[bases::FOLDER])?;
    // Another member may have made the folder, and been killed.
    place.sync_root()?;
    let stored = bases::store(&*place.bucket, &Numbered { number, base });
    if !stored.map_err(|failure| place.refused(failure))? {
        return Ok(Made::Overtaken);
    }
    (report.base, report.base_glsn, report.first) = (Some(number), verified.glsn, new_first);
    report.bytes_verified = verified.bytes;
    Ok(Made::Report(Box::new(report)))
}

/// Steps 1 and 2, for a base that needs everything up to a GLSN.
pub(crate) fn archived(
    db: &Db,
    path: &Path,
    place: &Place,
    archive: &str,
    least: Glsn,
) -> Result<Verified> {
    let pushed = place.archive(archive)?.keep(KEEP_MOMENTS).push(db)?;
    let verified = verify(place, archive, path)?;
    match pushed.glsn.min(verified.glsn) {
        end if end < least => {
            Err(unverified(place, archive, &format!("it ends with GLSN {end}, before {least}")))
        }
        _ => Ok(Verified { sent: pushed.bytes, ..verified }),
    }
}

/// The folder of the archive of the next base: that of one of the two newest bases if this member
/// made it, so that only what is new is sent. No call removes that before a base with the next
/// number is stored, and this call fails then.
fn archive_for(
    place: &Place,
    newest: Option<&Numbered>,
    number: u64,
    replica: u16,
) -> Result<String> {
    let previous = match newest {
        Some(newest) if newest.number > 1 => read(place, newest.number - 1)?,
        _ => None,
    };
    let own =
        [newest, previous.as_ref()].into_iter().flatten().find(|it| it.base.replica == replica);
    let own = own.filter(|it| !it.base.is_fence());
    Ok(own.map_or_else(|| archive_name(replica, number), |it| it.base.archive.clone()))
}

pub(crate) fn archive_name(replica: u16, number: u64) -> String {
    format!("{BASE}-{replica}-{number}")
}

fn read(place: &Place, number: u64) -> Result<Option<Numbered>> {
    bases::read(&*place.bucket, number).map_err(|failure| place.refused(failure))
}

fn unverified(place: &Place, archive: &str, what: &str) -> Error {
    let what = format!(
        "the new base cannot be read back: {what}; nothing was removed from the log. Check the \
         storage of the bucket, delete this folder, and trim again"
    );
    Error::Damaged { place: format!("{}: {archive}", place.url), what }
}

/// An archive that was read back.
pub(crate) struct Verified {
    pub(crate) sent: u64,
    pub(crate) glsn: Glsn,
    pub(crate) bytes: u64,
}

/// Restores an archive into the member's folder, which verifies it, and removes the copy.
fn verify(place: &Place, archive: &str, member: &Path) -> Result<Verified> {
    let dest = member.join(CHECK);
    let (disk, failed) = (OsDisk::new(), |error| Error::file(&dest)(error));
    remove_folder(&disk, &dest).map_err(failed)?;
    let options = Options::new().memory_bytes(MEMORY_BYTES).warm(false);
    let restored = place.archive(archive)?.restore(&dest, options, Moment::Newest);
    let removed = remove_folder(&disk, &dest);
    removed.map_err(failed)?;
    let restored = match restored {
        Err(plimsoll_archive::Error::Damaged { damage }) => {
            let mut report = RestoreReport::default();
            report.damage = damage;
            report
        }
        restored => restored?,
    };
    let damage = restored.damage.iter().map(|it| format!("{}: {}", it.object, it.what));
    let problems: Vec<_> = damage.chain(restored.problems.iter().cloned()).collect();
    match restored.is_whole && problems.is_empty() {
        true => Ok(Verified { sent: 0, glsn: restored.glsn, bytes: restored.bytes }),
        false => Err(unverified(place, archive, &problems.join("; "))),
    }
}

/// Steps 4 and 5.
fn remove(place: &Place, db: &Db, mut report: TrimReport) -> Result<TrimReport> {
    let Some(newest) = place.newest_base()? else { return Ok(report) };
    if bases::line_of(newest.base.first) != bases::line_of(report.last) {
        // The cluster is being healed, or was healed: the heal removes what it has replaced.
        return Ok(report);
    }
    // Another member may have stored it without syncing its name yet.
    let synced =
        place.bucket.sync(bases::FOLDER).map_err(|error| place.failed(bases::FOLDER, error));
    synced.and_then(|()| place.sync_root())?;
    report.removed = remove_batches(place, newest.base.first)?;
    report.first = report.first.max(newest.base.first);
    remove_archives(place, &newest, db.order_place().map_or(0, |at| at.replica))?;
    Ok(report)
}

/// The first position before `end` that still has a batch; `end` if none has.
fn first_there(place: &Place, end: u64) -> Result<u64> {
    let exists = |position| {
        let name = bucket_order::name_of(position);
        place.bucket.exists(&name).map_err(|error| place.failed(&name, error))
    };
    if end <= 1 || !exists(end - 1)? { Ok(end) } else { find_first(end - 1, exists) }
}

/// Removes the batches before a position, the oldest first; returns how many.
fn remove_batches(place: &Place, end: u64) -> Result<u64> {
    let first = first_there(place, end)?;
    // A call that was killed may have left gaps in the batches that it removed at that moment.
    let mut from = first.saturating_sub(WINDOW).max(1);
    while first < end && from < end {
        let to = (from + WINDOW).min(end);
        remove_window(place, from..to)?;
        from = to;
    }
    Ok(end - first)
}

fn remove_window(place: &Place, positions: Range<u64>) -> Result<()> {
    let positions: Vec<u64> = positions.collect();
    let remove = |positions: &[u64]| -> Result<()> {
        positions.iter().try_for_each(|position| {
            let name = bucket_order::name_of(*position);
            place.bucket.delete(&name).map_err(|error| place.failed(&name, error))
        })
    };
    if place.is_folder()? {
        return remove(&positions);
    }
    let remove = &remove;
    thread::scope(|scope| {
        let parts = positions.chunks(positions.len().div_ceil(THREADS).max(1));
        let threads: Vec<_> = parts.map(|part| scope.spawn(move || remove(part))).collect();
        let stopped = || Err(place.failed("a batch", std::io::Error::other("a thread panicked")));
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| stopped()))
    })
}

/// Removes the archives of bases before the two newest, and those that calls of this member have
/// left which were killed.
pub(crate) fn remove_archives(place: &Place, newest: &Numbered, replica: u16) -> Result<()> {
    let (mut kept, mut old) = (BTreeSet::from([newest.base.archive.clone()]), BTreeSet::new());
    for number in newest.number.saturating_sub(LOOK_BACK).max(1)..newest.number {
        old.insert(archive_name(replica, number));
        if let Some(earlier) = read(place, number)? {
            let archives = if number + 1 == newest.number { &mut kept } else { &mut old };
            archives.insert(earlier.base.archive);
        }
    }
    if newest.number > 1 {
        old.insert(BASE.to_owned());
    }
    old.difference(&kept).try_for_each(|archive| remove_archive(place, archive))
}

pub(crate) fn remove_archive(place: &Place, archive: &str) -> Result<()> {
    if archive.is_empty() {
        // That of a fence.
        return Ok(());
    }
    let (bucket, _) = place.bucket_of(archive)?;
    remove_objects(&*bucket).map_err(|error| place.failed(archive, error))?;
    if let Some(folder) = place.folder()? {
        // Its maker may be writing to it still; the next call removes what is left.
        let _ = remove_folder(&OsDisk::new(), &folder.join(archive));
    }
    Ok(())
}

fn remove_objects(bucket: &dyn Bucket) -> std::io::Result<()> {
    // Without manifests it is no archive any more.
    for folder in ["manifests", "lists", "index", "segments", "blobs"] {
        for name in bucket.list(folder)? {
            bucket.delete(&name)?;
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the bucket of the test makes real folders")]
mod tests {
    use std::io::{self, Read};
    use std::path::PathBuf;
    use std::sync::Arc;

    use plimsoll_archive::{Object, Put, bucket_at};

    use super::*;
    use crate::{create, open_member};

    #[test]
    fn no_batch_is_trimmed_that_the_base_does_not_have() {
        for (position, keep, first) in [(9, 3, 7), (9, 1, 9), (9, 0, 9), (9, 9, 1), (9, 50, 0)] {
            assert_eq!(first_after(position, keep), first);
        }
        for (position, keep) in [(1, 0), (7, 0), (7, 1), (7, u64::MAX)] {
            assert!(first_after(position, keep) <= position, "{position} {keep}");
        }
    }

    /// A folder that is taken for a cloud.
    #[cfg(feature = "testing")]
    #[derive(Debug)]
    struct Cloudy(Arc<dyn Bucket>, PathBuf);

    #[cfg(feature = "testing")]
    impl Bucket for Cloudy {
        fn put_new(&self, name: &str, bytes: &mut dyn Read) -> io::Result<Put> {
            let folder = name.rsplit_once('/').map_or("", |(folder, _)| folder);
            std::fs::create_dir_all(self.1.join(folder))?;
            self.0.put_new(name, bytes)
        }
        fn get(&self, name: &str) -> io::Result<Option<Object>> {
            self.0.get(name)
        }
        fn list(&self, folder: &str) -> io::Result<Vec<String>> {
            self.0.list(folder)
        }
        fn delete(&self, name: &str) -> io::Result<()> {
            self.0.delete(name)
        }
    }

    #[cfg(feature = "testing")]
    #[test]
    fn in_a_cloud_no_member_believes_a_batch_before_the_base() {
        let dir = tempfile::tempdir().unwrap();
        let (store, bucket) = (dir.path().join("store"), dir.path().join("bucket"));
        let options = Options::new().memory_bytes(16 << 20).warm(false);
        Db::open(&store, options.clone()).unwrap().close().unwrap();
        create(bucket.to_str().unwrap(), &store, options.clone()).unwrap();
        crate::testing::wrap_buckets(Some(Arc::new(|bucket| {
            let folder = bucket.folder().unwrap().unwrap();
            Arc::new(Cloudy(bucket, folder))
        })));
        let db = open_member(&store, options).unwrap();
        for row in 0..100u32 {
            db.put(&db.keyspace("default").unwrap(), row.to_le_bytes(), "x").unwrap();
        }
        let place = Place::find(bucket.to_str().unwrap(), Folders::Existing).unwrap();
        let late = place.order().unwrap();
        assert!(late.read(5).unwrap().is_some());
        let trimmed = trim(&db, 3).unwrap();
        assert_eq!(trimmed.removed, trimmed.first - 1);
        let log = bucket_at(bucket.to_str().unwrap(), Folders::Existing).unwrap().list("log");
        assert_eq!(log.unwrap().len(), 3);
        // The names are free again.
        let is_trimmed = OrderError::Trimmed { first: trimmed.first };
        assert_eq!(late.read(5), Err(is_trimmed.clone()));
        assert_eq!(late.append(5, b"late"), Err(is_trimmed.clone()));
        assert_eq!(late.read(5), Err(is_trimmed));
        crate::testing::wrap_buckets(None);
    }
}
