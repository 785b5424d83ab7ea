//! Moves a cluster to another bucket while its members commit.
//!
//! The steps, each of which may be the last one of a call that is killed:
//! 1. `move.json` reserves the new bucket for this move.
//! 2. The base records of the old bucket are copied. The state of a member is archived in the new
//!    bucket and verified, as by a trim, and stored as its newest base.
//! 3. The batches that follow are copied, byte by byte, until few are left.
//! 4. A fence ends the log in the old bucket, and names the new one. Members ask for the next base
//!    after each object that they have stored or read. So once the fence is stored, they
//!    acknowledge no commit in the old bucket.
//! 5. A second record states the last position of the log in the old bucket. A batch that is stored
//!    there later does not count.
//! 6. The batches up to that position are copied.
//! 7. `cluster.json` is stored in the new bucket: the cluster is there.
//!
//! Once the fence is stored, any member can do the rest. Each does when it meets the fence
//! ([`follow`]), so that no commit waits for the call that began the move.
//!
//! Invariants: the ids, the positions, the GLSNs and the objects of the batches are the same in
//! both buckets. Nothing is removed from the old one.

use std::io::Read;
use std::ops::RangeInclusive;
use std::path::Path;
use std::thread;

use plimsoll::order::OrderError;
use plimsoll::{Db, Glsn, OrderBatch};
use plimsoll_archive::{Folders, Put};
use plimsoll_disk::clock::{Clock, SystemClock};
use serde::{Deserialize, Serialize};

use crate::bases::{self, Base, Moved, Numbered, begin_of, line_of};
use crate::batch_object::{Body, decode};
use crate::blobs::{self, Failure, PUT_BACK};
use crate::bucket_order::{BucketOrder, LOG, OBJECT_BYTES_MAX, name_of};
use crate::cluster::{Place, hex128};
use crate::error::{Error, Result};
use crate::membership::membership;
use crate::opening::check_id;
use crate::positions::find_end;
use crate::probe::probe;
use crate::sealed_json;
use crate::trimming::{Verified, archive_name, archived, remove_archive};

/// The object that reserves a bucket for a move.
pub(crate) const MOVE: &str = "move.json";

/// Its title.
const TITLE: &str = "move";

/// The longest one.
const MOVE_BYTES_MAX: u64 = 64 << 10;

/// Batches that are copied at a time, by this many threads.
const WINDOW: u64 = 64;
const THREADS: usize = 8;

/// How often the batches that were stored meanwhile are copied before the log is ended.
const PASSES: u32 = 8;

/// How often a call begins again because another call was faster.
const TRIES: u32 = 4;

/// How many moves are followed. A bucket is used for one move only, so there are no more.
const MOVES_MAX: u32 = 1000;

/// The result of a move.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MoveReport {
    /// The URL of the new bucket, or the absolute path of its folder.
    pub url: String,
    /// The URL of the old bucket, or the absolute path of its folder.
    pub from: String,
    /// The newest GLSN of the base in the new bucket.
    pub base_glsn: Glsn,
    /// The last position that the log had in the old bucket.
    pub last: u64,
    /// Batches that were copied.
    pub copied: u64,
    /// Bytes of the base that were sent.
    pub bytes_sent: u64,
    /// Bytes of the base that were read back and verified.
    pub bytes_verified: u64,
}

/// The contents of `move.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Incoming {
    /// The id of the cluster.
    #[serde(with = "hex128")]
    id: u128,
    /// The old bucket.
    from: String,
    /// The newest base record there. The new bucket has copies of the records up to this one.
    bases: u64,
    /// The line of the log.
    line: u64,
}

/// Moves the cluster of which `db` is an open member to the bucket `url`, which must be empty.
/// Archives the state of this member there and verifies it, copies the batches that follow, and
/// then ends the log in the old bucket. Commits of all members go on meanwhile; they wait only
/// while the last batches are copied.
///
/// A member that is open goes on in the new bucket by itself, and one that is closed when it is
/// opened, as long as the old bucket can be read. Every member must reach `url` under this name.
/// Positions and GLSNs go on. Nothing is removed from the old bucket; delete it when
/// [`membership`](crate::membership()) of every member names the new one.
///
/// Needs free disk space for another copy of the store, and 32 MiB besides the store's budget. If
/// this fails or is interrupted, no commit is lost; repeat it with the same `url`.
///
/// # Errors
/// [`Error::NotAMember`]. [`Error::ClusterExists`], [`Error::NotEmpty`]: `url` is in use.
/// [`Error::Unfit`], [`Error::Unsafe`]: it cannot order commits. [`Error::Moved`]: the cluster was
/// moved to another bucket meanwhile. The store, the disk, the buckets.
///
/// # Examples
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = |name: &str| dir.path().join(name);
/// # let url = |name: &str| format!("file://{}", path(name).display());
/// use plimsoll::{Db, Options};
///
/// let options = Options::new().memory_bytes(16 << 20);
/// # Db::open(path("store"), options.clone())?.close()?;
/// plimsoll_replica::create(&url("old"), path("store"), options.clone())?;
/// let db = plimsoll_replica::open_member(path("store"), options)?;
/// plimsoll_replica::move_cluster(&db, &url("new"))?;
/// db.put(&db.keyspace("default")?, "key", "value")?;
/// let member = plimsoll_replica::membership(path("store"))?.expect("it is a member");
/// assert!(member.url.ends_with("new"));
/// # Ok(())
/// # }
/// ```
pub fn move_cluster(db: &Db, url: &str) -> Result<MoveReport> {
    let path = db.folder()?;
    // It may still have to follow an earlier move.
    db.sync()?;
    let member = membership(&path)?.ok_or_else(|| Error::NotAMember { path: path.clone() })?;
    let from = Place::find(&member.url, Folders::Existing)?;
    check_id(&from, &path, member.id)?;
    let to = Place::find(url, Folders::Create)?;
    if to.url == from.url {
        return Err(Error::ClusterExists { place: to.url });
    }
    let passage = Passage { from: &from, to: &to };
    let mut report = MoveReport {
        url: to.url.clone(),
        from: from.url.clone(),
        base_glsn: Glsn::NONE,
        last: 0,
        copied: 0,
        bytes_sent: 0,
        bytes_verified: 0,
    };
    match from.moved()? {
        Some(moved) if moved.url == to.url => {}
        Some(moved) => return Err(Error::Moved { place: from.url, url: moved.url }),
        None => {
            to.check()?;
            passage.begin(db, &path, member.id, &mut report)?;
        }
    }
    (report.last, report.copied) = passage.finish(member.id, report.copied)?;
    report.base_glsn = to.newest_base()?.map_or(Glsn::NONE, |it| Glsn(it.base.glsn));
    // This member goes on there.
    db.sync()?;
    Ok(report)
}

/// The bucket in which the log of a cluster goes on that was moved from `place`; `None` if it was
/// not moved. Finishes the move if that is not done.
///
/// # Errors
/// [`Error::Unsafe`]; the buckets.
pub(crate) fn follow(place: &Place, id: u128) -> Result<Option<Place>> {
    let mut found: Option<Place> = None;
    for _ in 0..MOVES_MAX {
        let from = found.as_ref().unwrap_or(place);
        let Some(moved) = from.moved()? else { return Ok(found) };
        let to = Place::find(&moved.url, Folders::Existing)?;
        to.check()?;
        Passage { from, to: &to }.finish(id, 0)?;
        found = Some(to);
    }
    Err(endless(place))
}

/// As [`follow`], but changes nothing.
pub(crate) fn current(place: Place) -> Result<Place> {
    let mut at = place;
    for _ in 0..MOVES_MAX {
        let Some(moved) = at.moved()? else { return Ok(at) };
        at = Place::find(&moved.url, Folders::Existing)?;
    }
    Err(endless(&at))
}

fn endless(place: &Place) -> Error {
    let what = format!("its moves lead to each other without end; {PUT_BACK}");
    Error::Damaged { place: format!("{}: {}", place.url, bases::FOLDER), what }
}

/// A move from one bucket to another.
struct Passage<'a> {
    from: &'a Place,
    to: &'a Place,
}

/// The outcome of a try of steps 2 to 4.
enum Tried {
    Fenced,
    Overtaken,
}

impl Passage<'_> {
    /// Steps 1 to 4.
    fn begin(&self, db: &Db, path: &Path, id: u128, report: &mut MoveReport) -> Result<()> {
        let incoming = self.reserve(id)?;
        self.copy_bases(incoming.bases)?;
        for _ in 0..TRIES {
            match self.try_to_fence(db, path, &incoming, report)? {
                Tried::Fenced => return Ok(()),
                Tried::Overtaken => {}
            }
        }
        let what = format!("{}: others trim or move this cluster, too; try again", self.from.url);
        Err(OrderError::Unavailable(what).into())
    }

    /// Step 1.
    fn reserve(&self, id: u128) -> Result<Incoming> {
        let (from, to) = (self.from, self.to);
        let newest = from.newest_base()?;
        let own = Incoming {
            id,
            from: from.url.clone(),
            bases: newest.as_ref().map_or(0, |it| it.number),
            line: line_of(newest.map_or(1, |it| it.base.first)),
        };
        let found = match incoming(to)? {
            Some(found) => found,
            None => {
                if to.find_identity()?.is_some() {
                    return Err(Error::ClusterExists { place: to.url.clone() });
                }
                to.check_new()?;
                probe(&*to.bucket, &to.url)?;
                let text = sealed_json::encode(TITLE, &own)
                    .map_err(|error| to.failed(MOVE, error.into()))?;
                match to.bucket.put_new(MOVE, &mut &text[..]) {
                    Ok(Put::New) => own.clone(),
                    Ok(Put::Exists) => incoming(to)?.unwrap_or_else(|| own.clone()),
                    Err(error) => return Err(to.failed(MOVE, error)),
                }
            }
        };
        if (found.id, &found.from) != (id, &own.from) {
            return Err(Error::NotEmpty { place: to.url.clone(), object: MOVE.to_owned() });
        }
        if found.line != own.line {
            let what = "the cluster was healed after this move was begun; move it to another place";
            let place = format!("{}: {MOVE}", to.url);
            return Err(Error::Damaged { place, what: what.to_owned() });
        }
        to.make_folders(&["tmp", blobs::FOLDER, LOG, bases::FOLDER])?;
        to.sync_root()?;
        Ok(found)
    }

    /// The first half of step 2.
    fn copy_bases(&self, last: u64) -> Result<()> {
        let (from, to) = (self.from, self.to);
        for number in 1..=last {
            let read = bases::read(&*from.bucket, number).map_err(|it| from.refused(it))?;
            let Some(record) = read else {
                let what = format!("it is missing; {PUT_BACK}");
                return Err(from.refused(Failure::Damaged(bases::name_of(number), what)));
            };
            if !bases::store(&*to.bucket, &record).map_err(|it| to.refused(it))? {
                let object = bases::name_of(number);
                return Err(Error::NotEmpty { place: to.url.clone(), object });
            }
        }
        Ok(())
    }

    /// The second half of step 2, and steps 3 and 4.
    fn try_to_fence(
        &self,
        db: &Db,
        path: &Path,
        incoming: &Incoming,
        report: &mut MoveReport,
    ) -> Result<Tried> {
        let (from, to) = (self.from, self.to);
        let (order, copy) = (from.order()?, to.order()?);
        let own = to.newest_base()?.filter(|it| it.number > incoming.bases);
        let has_rest = own.is_some() && copy.end()? + 1 >= order.first()?;
        if !has_rest {
            let number = own.map_or(incoming.bases, |it| it.number) + 1;
            match self.make_base(db, path, &order, number, report)? {
                Tried::Fenced => {}
                Tried::Overtaken => return Ok(Tried::Overtaken),
            }
        }
        let mut end = copy.end()?;
        for _ in 0..PASSES {
            let (first, last) = (order.first()?, order.end()?);
            if end + 1 < first {
                return Ok(Tried::Overtaken);
            }
            // A call that was killed may have left gaps in the batches that it copied last.
            let begin = end.saturating_sub(WINDOW).max(copy.first()?);
            let Some(copied) = self.copy(begin..=last, first)? else {
                return Ok(Tried::Overtaken);
            };
            report.copied += copied;
            let behind = last.saturating_sub(end);
            end = end.max(last);
            if behind < WINDOW {
                break;
            }
        }
        self.fence(end)
    }

    /// Archives the state of the member in the new bucket, and stores it as the newest base.
    fn make_base(
        &self,
        db: &Db,
        path: &Path,
        order: &BucketOrder,
        number: u64,
        report: &mut MoveReport,
    ) -> Result<Tried> {
        let to = self.to;
        db.sync()?;
        let Some(at) = db.order_place() else {
            return Err(Error::NotAMember { path: path.to_owned() });
        };
        // Only durable commits are archived, and the place may be ahead of them.
        db.sync()?;
        // The first batch that a base leaves is always there.
        let Some(copied) = self.copy(at.position..=at.position, order.first()?)? else {
            return Ok(Tried::Overtaken);
        };
        report.copied += copied;
        let archive = archive_name(at.replica, number);
        let made = || archived(db, path, to, &archive, at.glsn);
        let verified: Verified = match made() {
            // That of a call that was killed.
            Err(Error::Damaged { .. } | Error::Archive(_)) => {
                remove_archive(to, &archive)?;
                made()?
            }
            made => made?,
        };
        report.bytes_sent += verified.sent;
        report.bytes_verified = verified.bytes;
        let base = Base {
            first: at.position,
            position: at.position,
            glsn: verified.glsn.0,
            archive,
            bytes: verified.bytes,
            created_micros: SystemClock::new().wall_micros(),
            replica: at.replica,
            healed: None,
            moved: None,
        };
        let stored = bases::store(&*to.bucket, &Numbered { number, base });
        Ok(if stored.map_err(|it| to.refused(it))? { Tried::Fenced } else { Tried::Overtaken })
    }

    /// Step 4: ends the log in the old bucket, unless a trim has removed batches after `end`, the
    /// last one that was copied.
    fn fence(&self, end: u64) -> Result<Tried> {
        let from = self.from;
        let newest = from.newest_base()?;
        if let Some(moved) = newest.as_ref().and_then(|it| it.base.moved.as_ref()) {
            return match moved.url == self.to.url {
                true => Ok(Tried::Fenced),
                false => Err(from.ended(moved)),
            };
        }
        from.check_no_fence(newest.as_ref())?;
        let (number, first) = newest.map_or((0, 1), |it| (it.number, it.base.first));
        if end + 1 < first || line_of(end) != line_of(first) {
            return Ok(Tried::Overtaken);
        }
        from.make_folders(&[bases::FOLDER])?;
        from.sync_root()?;
        let moved = Moved { url: self.to.url.clone(), last: None };
        Ok(match self.store_end(number + 1, begin_of(line_of(end) + 1), moved)? {
            true => Tried::Fenced,
            false => Tried::Overtaken,
        })
    }

    /// Stores a record of the old bucket that ends the log there before `first`. False if there is
    /// another record with this number.
    fn store_end(&self, number: u64, first: u64, moved: Moved) -> Result<bool> {
        let base = Base::fence(first, SystemClock::new().wall_micros());
        let base = Base { moved: Some(moved), ..base };
        let stored = bases::store(&*self.from.bucket, &Numbered { number, base });
        stored.map_err(|failure| self.from.refused(failure))
    }

    /// Steps 5 to 7, unless they are done. Returns the last position of the log in the old bucket,
    /// and the number of copied batches.
    fn finish(&self, id: u128, mut copied: u64) -> Result<(u64, u64)> {
        let (from, to) = (self.from, self.to);
        let last = from.moved()?.and_then(|moved| moved.last);
        if let Some(found) = to.find_identity()? {
            return match found.id == id {
                true => Ok((last.unwrap_or(0), copied)),
                false => Err(Error::ClusterExists { place: to.url.clone() }),
            };
        }
        // Another member may have stored the fence without syncing its name yet.
        let synced = from.bucket.sync(bases::FOLDER).and_then(|()| from.bucket.sync(LOG));
        synced.map_err(|error| from.failed(bases::FOLDER, error))?;
        from.sync_root()?;
        // Not into a folder that is not mounted.
        if to.newest_base()?.is_none() {
            return Err(Error::NotACluster { place: to.url.clone() });
        }
        let copy = to.order()?;
        let (end, first) = (copy.end()?, copy.first()?);
        let last = self.last(end)?;
        let begin = end.saturating_sub(WINDOW).max(first);
        // Everything before the first position was copied before the fence was stored.
        match self.copy(begin..=last, self.first()?)? {
            Some(more) => copied += more,
            None => return Err(from.lost(last)),
        }
        // Another member may have copied a batch without syncing its name yet.
        to.bucket.sync(LOG).map_err(|error| to.failed(LOG, error))?;
        to.identify(&from.identity()?)?;
        // What is left of it does not matter.
        let _ = to.bucket.delete(MOVE);
        Ok((last, copied))
    }

    /// The first position of the log in the old bucket when it was ended.
    fn first(&self) -> Result<u64> {
        let from = self.from;
        let newest = from.newest_base()?.map_or(0, |it| it.number);
        for number in (1..=newest).rev() {
            let read = bases::read(&*from.bucket, number).map_err(|it| from.refused(it))?;
            if let Some(Numbered { base, .. }) = read.filter(|it| it.base.moved.is_none()) {
                return Ok(base.first);
            }
        }
        Ok(1)
    }

    /// Step 5: the last position of the log in the old bucket. `end` is there, or before it.
    fn last(&self, end: u64) -> Result<u64> {
        let from = self.from;
        for _ in 0..TRIES {
            let Some(Numbered { number, base }) = from.newest_base()? else { break };
            let Some(moved) = base.moved else { break };
            if let Some(last) = moved.last {
                return Ok(last);
            }
            let exists = |position: u64| {
                let name = name_of(position);
                let exists = || from.bucket.exists(&name).map_err(|it| from.failed(&name, it));
                Ok::<_, Error>(position <= end || exists()?)
            };
            let last = Some(find_end(end, exists)?);
            self.store_end(number + 1, base.first, Moved { last, ..moved })?;
        }
        let what = format!("the end of its log is not recorded; {PUT_BACK}");
        Err(Error::Damaged { place: format!("{}: {}", from.url, bases::FOLDER), what })
    }

    /// Copies batches, and the blobs that they name; returns how many were not there. `None` if a
    /// trim has removed one. The positions before `first` need not be there.
    fn copy(&self, positions: RangeInclusive<u64>, first: u64) -> Result<Option<u64>> {
        let (mut copied, mut from) = (0, (*positions.start()).max(first));
        while from <= *positions.end() {
            let last = (from + WINDOW - 1).min(*positions.end());
            match self.copy_window((from..=last).collect())? {
                Some(more) => copied += more,
                None => return Ok(None),
            }
            from = last + 1;
        }
        Ok(Some(copied))
    }

    fn copy_window(&self, positions: Vec<u64>) -> Result<Option<u64>> {
        let copy = |positions: &[u64]| -> Result<Option<u64>> {
            let mut copied = 0;
            for position in positions {
                match self.copy_batch(*position)? {
                    Some(is_new) => copied += u64::from(is_new),
                    None => return Ok(None),
                }
            }
            Ok(Some(copied))
        };
        let copy = &copy;
        thread::scope(|scope| {
            let parts = positions.chunks(positions.len().div_ceil(THREADS).max(1));
            let threads: Vec<_> = parts.map(|part| scope.spawn(move || copy(part))).collect();
            let stopped =
                || Err(self.to.failed("a batch", std::io::Error::other("a thread panicked")));
            let mut all = Some(0);
            for thread in threads {
                let part = thread.join().unwrap_or_else(|_| stopped())?;
                all = all.zip(part).map(|(all, part)| all + part);
            }
            Ok(all)
        })
    }

    /// Copies a batch; returns whether it was not there. `None` if the old bucket has none.
    fn copy_batch(&self, position: u64) -> Result<Option<bool>> {
        let (from, to, name) = (self.from, self.to, name_of(position));
        let Some(object) = fetch(from, &name, OBJECT_BYTES_MAX)? else { return Ok(None) };
        let damaged =
            |what: String| Error::Damaged { place: format!("{}: {name}", from.url), what };
        let batch = match decode(&object, position).map_err(damaged)? {
            Body::Inline(batch) => batch.to_vec(),
            Body::Blob(hash, length) => {
                copy_blob(from, to, &hash)?;
                fetch(to, &blobs::name_of(&hash), length)?.unwrap_or_default()
            }
        };
        let batch = OrderBatch::read(batch, &mut |_, _, _| {});
        let batch = batch.map_err(|error| damaged(format!("{error}; {PUT_BACK}")))?;
        for hash in &batch.blobs {
            copy_blob(from, to, hash)?;
        }
        let put = to.bucket.put_new(&name, &mut &object[..]);
        match put.map_err(|error| to.failed(&name, error))? {
            Put::New => Ok(Some(true)),
            Put::Exists if fetch(to, &name, OBJECT_BYTES_MAX)? == Some(object) => Ok(Some(false)),
            Put::Exists => {
                let what = "it is another batch than in the old bucket; move the cluster to \
                            another place";
                let place = format!("{}: {name}", to.url);
                Err(Error::Damaged { place, what: what.to_owned() })
            }
        }
    }
}

/// Copies a blob from one bucket to another, unless it is there.
pub(crate) fn copy_blob(from: &Place, to: &Place, hash: &[u8; 32]) -> Result<()> {
    let name = blobs::name_of(hash);
    if to.bucket.exists(&name).map_err(|error| to.failed(&name, error))? {
        return Ok(());
    }
    let found = from.bucket.get(&name).map_err(|error| from.failed(&name, error))?;
    let Some(mut object) = found else {
        return Err(from.refused(Failure::Damaged(name, format!("it is missing; {PUT_BACK}"))));
    };
    blobs::put(&*to.bucket, hash, &mut object.reader).map_err(|failure| to.refused(failure))
}

/// The bytes of an object, at most `most` and one more.
fn fetch(place: &Place, name: &str, most: u64) -> Result<Option<Vec<u8>>> {
    let failed = |error| place.failed(name, error);
    let Some(object) = place.bucket.get(name).map_err(failed)? else { return Ok(None) };
    let mut bytes = Vec::new();
    object.reader.take(most + 1).read_to_end(&mut bytes).map_err(failed)?;
    Ok(Some(bytes))
}

/// The move for which a bucket is reserved; `None` if it is not.
fn incoming(place: &Place) -> Result<Option<Incoming>> {
    let Some(text) = fetch(place, MOVE, MOVE_BYTES_MAX)? else { return Ok(None) };
    match sealed_json::decode(TITLE, &text) {
        Ok(incoming) => Ok(Some(incoming)),
        Err(sealed_json::Unusable::Format(format)) => {
            Err(place.refused(Failure::Newer(MOVE.to_owned(), format)))
        }
        Err(sealed_json::Unusable::Damaged(what)) => {
            let what = format!("{what}; move the cluster to another place");
            Err(place.refused(Failure::Damaged(MOVE.to_owned(), what)))
        }
    }
}
