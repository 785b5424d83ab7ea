//! Heals a cluster whose bucket has lost objects: a new base from the members' copies, from which a
//! new line of the log goes on.
//!
//! The steps, each of which may be the last one of a call that is killed:
//! 1. The members are compared with each other and with the bucket. If nothing is wrong, the call
//!    ends. The member that has the most applies what it can from the log.
//! 2. Its state is archived, and the archive is restored and verified, as by a trim.
//! 3. The old line of the log is ended by a fence: `bases/<n>` without an archive. Members ask for
//!    the next base after each object that they have stored or read. So once the fence is stored,
//!    they acknowledge no commit in the old line, and reject its batches.
//! 4. The old line is listed once more; if members have committed since step 1, steps 1 and 2 are
//!    repeated for it.
//! 5. The first batch of the new line, which is after that of the fence, is stored at its first
//!    position, if that is free.
//! 6. `bases/<n + 1>` is stored: the new line counts. If another call was faster, this one begins
//!    again, and finds that nothing is wrong, or that its members have more.
//! 7. `cluster.json` is stored if it is missing. The objects that the base replaces are removed.
//!
//! Where commits may be lost and it is not certain that they are not, the call refuses, and removes
//! nothing.
//!
//! Invariants: positions of different lines differ, so that a late append to an old line changes
//! nothing in a new one. The base states where its history ends; a member with later commits of an
//! old line is refused (`rebase.rs`). Nothing is removed before step 7. No clock is involved.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use plimsoll::{Glsn, LogPosition, Options, OrderBatch};
use plimsoll_archive::{Folders, Put};
use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::os::OsDisk;
use plimsoll_disk::random::entropy;
use plimsoll_disk::vfs::Disk;

use crate::bases::{self, Base, Healed, Numbered, begin_of, line_of};
use crate::batch_object::{Body, encode};
use crate::bucket_order::{self, LOG};
use crate::cluster::{Identity, Place};
use crate::diagnosis::{Found, Problem, is_in, numbers};
use crate::error::{Error, Result};
use crate::membership::{self, Membership};
use crate::probe::probe;
use crate::sources::{Extra, Source, Sources};
use crate::trimming::{Verified, archive_name, archived, remove_archive, remove_archives};

/// How often a call begins again because another one was faster.
const TRIES: u32 = 4;

/// The number of a new line exceeds the highest known one by a random number up to this, so that a
/// line is hardly ever used twice after a bucket was set back or emptied.
const LINES_LEFT_OUT: u64 = 1 << 14;

/// How a cluster is healed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heal {
    /// The bucket, if it is not the one that the members name, or if it is empty.
    pub url: Option<String>,
    /// Whether commits may be given up that the bucket has, and no given member.
    pub accept_loss: bool,
}

/// The result of a heal.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HealReport {
    /// The URL of the bucket, or the absolute path of its folder.
    pub url: String,
    /// The id of the cluster.
    pub id: u128,
    /// What was wrong; empty if nothing was.
    pub problems: Vec<Problem>,
    /// The member that had the most.
    pub source: PathBuf,
    /// Its newest GLSN.
    pub newest: Glsn,
    /// The number of the base that was stored; `None` if the log needed none.
    pub base: Option<u64>,
    /// The first position of the log.
    pub first: u64,
    /// Batches that were removed.
    pub removed: u64,
    /// Bytes that were sent.
    pub bytes_sent: u64,
    /// Bytes of the base that were read back and verified.
    pub bytes_verified: u64,
}

/// Heals the cluster of which the stores at `members` are members, after objects of its bucket were
/// deleted, damaged or set back. Compares the bucket with these members, of which no process may
/// have one open; the others may be open. If nothing is wrong, changes nothing. Otherwise archives
/// the state of the member that has the most as a new base, verifies it as [`trim`](crate::trim)
/// does, and begins a new line of the log there.
///
/// Members that are open fail with `Behind`, and go on when they are opened again. One that has
/// commits which the healed cluster lacks is refused then ([`Error::Ahead`]); nothing of it is
/// lost, and another heal with it keeps its commits, unless another member has committed since.
///
/// If this fails or is interrupted, nothing is lost; repeat it.
///
/// # Errors
/// [`Error::NotAMember`], [`Error::OtherCluster`], [`Error::EmptyBucket`], [`Error::Diverged`],
/// [`Error::WouldLose`], [`Error::NoMember`], [`Error::Unusable`]; errors of the stores, the disk
/// and the bucket.
///
/// # Examples
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = |name: &str| dir.path().join(name);
/// # let url = format!("file://{}", path("bucket").display());
/// use plimsoll::{Db, Options};
/// use plimsoll_replica::{Heal, heal, open_member};
///
/// let options = Options::new().memory_bytes(16 << 20);
/// # Db::open(path("store"), options.clone())?.close()?;
/// plimsoll_replica::create(&url, path("store"), options.clone())?;
/// std::fs::remove_dir_all(path("bucket/log"))?;
/// let report = heal(&[path("store")], &Heal::default(), options.clone())?;
/// assert_eq!(report.base, Some(2));
/// let db = open_member(path("store"), options)?;
/// db.put(&db.keyspace("default")?, "key", "value")?;
/// # Ok(())
/// # }
/// ```
pub fn heal(members: &[impl AsRef<Path>], how: &Heal, options: Options) -> Result<HealReport> {
    let members: Vec<&Path> = members.iter().map(AsRef::as_ref).collect();
    let (mut own, mut urls, mut folders) = (None, BTreeSet::new(), BTreeSet::new());
    for path in &members {
        let member = membership::membership(path)?;
        let member = member.ok_or_else(|| Error::NotAMember { path: path.to_path_buf() })?;
        if !folders.insert(OsDisk::new().resolve(path).map_err(Error::file(*path))?) {
            let what = "this member is given twice".to_owned();
            return Err(Error::Unusable { path: path.to_path_buf(), what });
        }
        urls.insert(member.url.clone());
        let first = own.get_or_insert_with(|| member.clone());
        if first.id != member.id {
            let (place, path) = (member.url, path.to_path_buf());
            return Err(Error::OtherCluster { place, path, found: first.id, own: member.id });
        }
    }
    let own = own.ok_or(Error::NoMember)?;
    let place = match &how.url {
        Some(url) => Place::find(url, Folders::Create)?,
        None => Place::find(&own.url, Folders::Existing)?,
    };
    // If that cannot be read, it may have been damaged.
    if let Ok(Some(moved)) = place.moved() {
        return Err(place.ended(&moved));
    }
    for url in urls.iter().filter(|url| **url != place.url) {
        check_lost(url, &place, own.id)?;
    }
    for _ in 0..TRIES {
        let sources = Sources::open(&members, &options)?;
        // Without a report, another call was faster.
        if let Some(report) = (Healing { place: &place, how, id: own.id }).run(sources)? {
            if urls.iter().any(|url| *url != place.url) {
                let moved = Membership { url: place.url.clone(), id: own.id };
                members.iter().try_for_each(|path| membership::write(path, &moved))?;
            }
            return Ok(report);
        }
    }
    let what = format!("{}: others heal or trim this cluster, too; try again", place.url);
    Err(plimsoll::order::OrderError::Unavailable(what).into())
}

/// Fails if the bucket from which a cluster would be moved can be read: members may commit there.
fn check_lost(url: &str, to: &Place, id: u128) -> Result<()> {
    let Ok(old) = Place::find(url, Folders::Existing) else { return Ok(()) };
    if matches!(old.moved(), Ok(Some(_))) {
        return Ok(());
    }
    let has_objects = || {
        let has = |folder| numbers(&old, folder).is_ok_and(|numbers| !numbers.is_empty());
        has(LOG) || has(bases::FOLDER)
    };
    let is_alive = match old.find_identity() {
        Ok(Some(found)) => found.id == id,
        // Members that are open need no `cluster.json`.
        Ok(None) | Err(Error::Damaged { .. } | Error::Format { .. }) => has_objects(),
        Err(_) => false,
    };
    match is_alive {
        false => Ok(()),
        true => {
            let what = format!(
                "the bucket of this cluster is at {url}, and can be read, so members may commit \
                 there; heal it there, or rename that folder or prefix before the cluster goes \
                 on at {}",
                to.url
            );
            Err(Error::Unusable { path: PathBuf::from(url), what })
        }
    }
}

/// A heal of one cluster.
struct Healing<'a> {
    place: &'a Place,
    how: &'a Heal,
    id: u128,
}

impl Healing<'_> {
    /// `None` if another call was faster.
    fn run(&self, sources: Sources) -> Result<Option<HealReport>> {
        let place = self.place;
        let mut found = Found::read(place, sources.db().id())?;
        self.check_identity(&found, sources.best())?;
        if found.problems.contains(&Problem::Empty) && self.how.url.is_none() {
            return Err(Error::EmptyBucket { place: place.url.clone() });
        }
        sources.compare(place, &mut found)?;
        let is_log_whole = found.problems.iter().all(Problem::is_of_name);
        let mut report = HealReport {
            url: place.url.clone(),
            id: self.id,
            problems: found.problems.clone(),
            source: sources.best().path.clone(),
            newest: sources.best().end.glsn,
            base: None,
            first: found.first(),
            removed: 0,
            bytes_sent: 0,
            bytes_verified: 0,
        };
        if is_log_whole {
            self.identify(&found, &sources)?;
            report.removed = self.finish(&found)?;
            return Ok(Some(report));
        }
        self.check_numbers(&sources, &found)?;
        let sources = sources.catch_up(place, &found)?;
        let _ = self.check_loss(&found, &sources, State::Unchanged)?;
        self.make_place(&found)?;
        let number = found.last_base + 1 + u64::from(found.fence.is_none());
        let archive = self.archive_name(sources.best(), number)?;
        let (mut end, mut base) = (sources.best().end, self.archive(&archive, &sources)?);
        let Some(fence) = self.fence(&found, &sources)? else { return Ok(None) };
        // What members have committed meanwhile.
        if !self.read_again(&mut found)? {
            return Ok(None);
        }
        let sources = sources.catch_up(place, &found)?;
        let is_sure = self.check_loss(&found, &sources, State::Fenced)?;
        if sources.best().end != end {
            (end, base) = (sources.best().end, self.archive(&archive, &sources)?);
        }
        let first = self.begin(fence.base.first, &found, &sources, end)?;
        let stored = Base {
            first,
            position: first,
            glsn: end.glsn.0,
            archive,
            bytes: base.bytes,
            created_micros: SystemClock::new().wall_micros(),
            replica: sources.best().at.replica,
            healed: Some(Healed {
                line: line_of(sources.best().at.position),
                glsn: end.glsn.0,
                chain: end.chain,
                is_sure,
                accepts_loss: self.how.accept_loss,
            }),
            moved: None,
        };
        let stored = Numbered { number: fence.number + 1, base: stored };
        let is_stored = bases::store(&*place.bucket, &stored);
        if !is_stored.map_err(|failure| place.refused(failure))? {
            return Ok(None);
        }
        self.identify(&found, &sources)?;
        (report.base, report.first, report.newest) = (Some(stored.number), first, end.glsn);
        (report.bytes_sent, report.bytes_verified) = (base.sent, base.bytes);
        // A member that stores the same value again would find it damaged.
        for name in &found.damaged_blobs {
            place.bucket.delete(name).map_err(|error| place.failed(name, error))?;
        }
        if !self.how.accept_loss {
            report.removed = self.remove(&stored)?;
        }
        Ok(Some(report))
    }

    fn check_identity(&self, found: &Found, best: &Source) -> Result<()> {
        match &found.identity {
            Some(identity) if identity.id != self.id => Err(Error::OtherCluster {
                place: self.place.url.clone(),
                path: best.path.clone(),
                found: identity.id,
                own: self.id,
            }),
            _ => Ok(()),
        }
    }

    /// Fails if the number of the next member, or that of the next line, is not known.
    fn check_numbers(&self, sources: &Sources, found: &Found) -> Result<()> {
        let unusable = |what: &str| {
            Err(Error::Unusable { path: sources.best().path.clone(), what: what.to_owned() })
        };
        if sources.replicas().max(found.replicas) == 0 {
            return unusable(
                "it has no place in the log of its cluster (the file REPLICA); give also a member \
                 that has one",
            );
        }
        match found.line.max(sources.line()) + 2 * LINES_LEFT_OUT < bases::LINES {
            true => Ok(()),
            false => unusable(
                "the log of its cluster has no more lines, because it was healed too often; make \
                 a new cluster of this member (`plimsoll cluster leave --offline`, then \
                 `plimsoll cluster create`)",
            ),
        }
    }

    /// Stores `cluster.json` if it is missing or damaged.
    fn identify(&self, found: &Found, sources: &Sources) -> Result<()> {
        if found.identity.is_some() {
            return Ok(());
        }
        let first = found.log.first().filter(|it| it.position == 1);
        self.place.identify_again(&Identity {
            id: self.id,
            log_id: sources.db().id(),
            created_micros: SystemClock::new().wall_micros(),
            base_glsn: first.map_or(sources.best().end.glsn, |it| it.before).0,
        })
    }

    /// Fails if the bucket has commits that the members lack, unless that is accepted. Returns
    /// whether no history but that of the members is possible.
    fn check_loss(&self, found: &Found, sources: &Sources, state: State) -> Result<bool> {
        sources.check_compared(found)?;
        let (best, extra) = (sources.best(), sources.extra(self.place, found)?);
        let Some(extra) = extra else { return Ok(!found.may_be_forked()) };
        if self.how.accept_loss {
            return Ok(false);
        }
        let path = best.path.display();
        let what = match extra {
            Extra::InBase { number, glsn } => format!(
                "base {number} has the commits up to GLSN {glsn}, and {path} ends with GLSN {}. \
                 If the base is whole, open this member first, which restores it",
                best.end.glsn
            ),
            Extra::After { first, last } => format!(
                "the log has commits at positions {first} to {last} which {path} lacks, and which \
                 it cannot apply: an object before them is missing, or their blobs are, or its \
                 folder is a copy, which applies nothing"
            ),
            Extra::Unreadable { position } => format!(
                "the batch at position {position} of the log cannot be read, and {path} may lack it"
            ),
            Extra::Forked { first, last } => {
                format!("the log has commits of another history at positions {first} to {last}")
            }
            Extra::Unknown { position } => format!(
                "the log up to position {position} cannot be compared with {path}, because the \
                 log of this member begins later; it may have commits of another history"
            ),
            Extra::Before { position, glsn } => format!(
                "the log goes on at position {position} after GLSN {glsn}, and {path} ends with \
                 GLSN {}",
                best.end.glsn
            ),
        };
        let state = match state {
            State::Unchanged => "nothing was changed",
            State::Fenced => {
                "nothing was removed, but no member can commit until a heal has succeeded"
            }
        };
        let what = format!("{what}; {state}");
        Err(Error::WouldLose { place: self.place.url.clone(), what })
    }

    /// Creates what an emptied bucket lacks, and tests a new one.
    fn make_place(&self, found: &Found) -> Result<()> {
        let place = self.place;
        if let Some(folder) = place.folder()? {
            let disk = OsDisk::new();
            let made = || {
                if self.how.url.is_some() && disk.entry(&folder)?.is_none() {
                    disk.create_dir(&folder)?;
                }
                Ok(())
            };
            made().map_err(Error::file(&folder))?;
        }
        place.check()?;
        place.make_folders(&["tmp", crate::blobs::FOLDER, LOG, bases::FOLDER])?;
        place.sync_root()?;
        match found.problems.contains(&Problem::Empty) {
            true => probe(&*place.bucket, &place.url),
            false => Ok(()),
        }
    }

    /// The folder of the archive. Only one call at a time has a member with a number.
    fn archive_name(&self, best: &Source, number: u64) -> Result<String> {
        let name = archive_name(best.at.replica, number);
        if best.at.replica > 0 {
            return Ok(name);
        }
        let random = entropy().map_err(|error| self.place.failed("a random number", error))?;
        Ok(format!("{name}-{random:032x}"))
    }

    /// Step 2. An archive of a call that was killed is continued, or made anew if it is damaged.
    fn archive(&self, name: &str, sources: &Sources) -> Result<Verified> {
        let (best, place) = (sources.best(), self.place);
        let archived = || archived(sources.db(), &best.path, place, name, best.end.glsn);
        match archived() {
            Err(
                Error::Damaged { .. }
                | Error::Archive(
                    plimsoll_archive::Error::Damaged { .. }
                    | plimsoll_archive::Error::NotEmpty { .. }
                    | plimsoll_archive::Error::OtherHistory { .. }
                    | plimsoll_archive::Error::OtherStore { .. },
                ),
            ) => {
                remove_archive(place, name)?;
                archived()
            }
            made => made,
        }
    }

    /// Step 3. `None` if another call was faster.
    fn fence(&self, found: &Found, sources: &Sources) -> Result<Option<Numbered>> {
        let place = self.place;
        let refused = |failure| place.refused(failure);
        let fence = match &found.fence {
            Some(fence) => fence.clone(),
            None => {
                let random = entropy().map_err(|error| place.failed("a random number", error))?;
                let line = found.line.max(sources.line()) + 1 + random as u64 % LINES_LEFT_OUT;
                let base = Base::fence(begin_of(line), SystemClock::new().wall_micros());
                Numbered { number: found.last_base + 1, base }
            }
        };
        // The numbers must be dense, and each record readable, so that the newest one is found.
        for number in &found.bad_bases {
            let filler = Numbered { number: *number, base: fence.base.clone() };
            bases::replace(&*place.bucket, &filler).map_err(refused)?;
        }
        if found.fence.is_none() && !bases::store(&*place.bucket, &fence).map_err(refused)? {
            return Ok(None);
        }
        place.bucket.sync(bases::FOLDER).map_err(|it| place.failed(bases::FOLDER, it))?;
        Ok(Some(fence))
    }

    /// Step 4: reads the log again if it has changed. False if another call was faster.
    fn read_again(&self, found: &mut Found) -> Result<bool> {
        let mut now = numbers(self.place, LOG)?;
        now.retain(|position| is_in(found.begins, *position));
        let known = found.log.iter().map(|it| it.position);
        let mut known: Vec<u64> = known.chain(found.unreadable.iter().copied()).collect();
        known.sort_unstable();
        // A batch that could not be read may have been put back.
        if now == known && found.unreadable.is_empty() {
            return Ok(true);
        }
        let read = Found::read(self.place, found.log_id)?;
        if read.begins != found.begins {
            return Ok(false);
        }
        (found.log, found.unreadable, found.beyond) = (read.log, read.unreadable, read.beyond);
        found.replicas = found.replicas.max(read.replicas);
        found.damaged_blobs = read.damaged_blobs;
        Ok(true)
    }

    /// Step 5: returns the first position of the new line. It is not that of the fence, because a
    /// member without a place that was opened meanwhile would go on there.
    fn begin(&self, first: u64, found: &Found, sources: &Sources, end: LogPosition) -> Result<u64> {
        let (place, best) = (self.place, sources.best());
        let nonce = entropy().map_err(|error| place.failed("a random number", error))?;
        let replicas = sources.replicas().max(found.replicas);
        for line in line_of(first) + 1.. {
            let position = begin_of(line);
            let end = (end.glsn, end.chain);
            let batch =
                OrderBatch::beginning(sources.db().id(), position, best.at.hash, end, replicas)?;
            let object = encode(nonce, position, Body::Inline(&batch));
            let name = bucket_order::name_of(position);
            let failed = |error| place.failed(&name, error);
            match place.bucket.put_new(&name, &mut &object[..]).map_err(failed)? {
                Put::New => return Ok(position),
                // That of another call, or of one that was killed.
                Put::Exists => {}
            }
        }
        Ok(first)
    }

    /// Does the rest of step 7 if the call that stored the newest base was killed before its end.
    fn finish(&self, found: &Found) -> Result<u64> {
        match &found.base {
            Some(base) if base.base.healed.is_some_and(|it| !it.accepts_loss) => self.remove(base),
            _ => Ok(0),
        }
    }

    /// Step 7: what the base replaces. The batches stay that an earlier heal has given up.
    fn remove(&self, stored: &Numbered) -> Result<u64> {
        let place = self.place;
        let mut kept = 0;
        for number in (1..stored.number).rev() {
            let read = bases::read(&*place.bucket, number).map_err(|it| place.refused(it))?;
            let base = read.map(|it| it.base);
            let base = base.filter(|it| it.healed.is_some_and(|healed| healed.accepts_loss));
            if let Some(base) = base {
                kept = line_of(base.first);
                break;
            }
        }
        let old: Vec<u64> = numbers(place, LOG)?;
        let is_old =
            |position: &&u64| (kept..line_of(stored.base.first)).contains(&line_of(**position));
        let mut removed = 0;
        for position in old.iter().filter(is_old) {
            let name = bucket_order::name_of(*position);
            place.bucket.delete(&name).map_err(|error| place.failed(&name, error))?;
            removed += 1;
        }
        remove_archives(place, stored, stored.base.replica)?;
        Ok(removed)
    }
}

/// The state of the cluster during a heal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unchanged,
    /// No member can commit.
    Fenced,
}
