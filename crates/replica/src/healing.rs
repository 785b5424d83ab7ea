//! Heals a cluster whose bucket has lost objects: a new base from the members' copies, from which a
//! new line of the log goes on.
//!
//! The steps, each of which may be the last one of a call that is killed:
//! 1. The members are compared with each other and with the bucket. If nothing is wrong, the call
//!    ends. The member that has the most applies what it can from the log.
//! 2. Its state is archived, and the archive is restored and verified, as by a trim.
//! 3. The old line of the log is ended by a fence: `bases/<n>` without an archive. Members ask for
//!    the next base after each object that they have stored or read; so no commit is acknowledged
//!    in the old line, and nothing of it is believed, once the fence is stored.
//! 4. The end of the old line is read once more; if members have committed since step 1, steps 1
//!    and 2 are repeated for it.
//! 5. The first batch of the new line is stored at its first position, if that is free.
//! 6. `bases/<n + 1>` is stored: the new line counts. If another call was faster, this one begins
//!    again, and finds that nothing is wrong, or that its members have more.
//! 7. `cluster.json` is stored if it is missing. What the base replaces is removed.
//!
//! Invariants: positions of different lines differ, so that a late append to an old line changes
//! nothing in a new one. The base states where its history ends; a member with later commits of an
//! old line is refused (`rebase.rs`). Nothing is removed before step 7. No clock is involved.

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

/// A new line of the log begins up to so many lines after the last known one, so that one of a
/// bucket that was set back is hardly used twice.
const LINES: u128 = 64;

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
/// [`Error::WouldLose`], [`Error::Unusable`]; the stores, the disk, the bucket.
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
    let mut own = None;
    for path in &members {
        let member = membership::membership(path)?;
        let member = member.ok_or_else(|| Error::NotAMember { path: path.to_path_buf() })?;
        let first = own.get_or_insert_with(|| member.clone());
        if first.id != member.id {
            let (place, path) = (member.url, path.to_path_buf());
            return Err(Error::OtherCluster { place, path, found: first.id, own: member.id });
        }
    }
    let Some(own) = own else {
        let what = "a heal needs at least one member".to_owned();
        return Err(Error::Unusable { path: PathBuf::new(), what });
    };
    let place = match &how.url {
        Some(url) => Place::find(url, Folders::Create)?,
        None => Place::find(&own.url, Folders::Existing)?,
    };
    for _ in 0..TRIES {
        let mut sources = Sources::open(&members, &options)?;
        // Otherwise another call was faster.
        let healing = Healing { place: &place, how, id: own.id };
        if let Some(report) = healing.run(&mut sources)? {
            drop(sources);
            if place.url != own.url {
                let moved = Membership { url: place.url.clone(), id: own.id };
                members.iter().try_for_each(|path| membership::write(path, &moved))?;
            }
            return Ok(report);
        }
    }
    let what = format!("{}: others heal or trim this cluster, too; try again", place.url);
    Err(plimsoll::order::OrderError::Unavailable(what).into())
}

/// A heal of one cluster.
struct Healing<'a> {
    place: &'a Place,
    how: &'a Heal,
    id: u128,
}

impl Healing<'_> {
    /// `None` if another call was faster.
    fn run(&self, sources: &mut Sources) -> Result<Option<HealReport>> {
        let place = self.place;
        let mut found = Found::read(place, sources.best().db.id())?;
        self.check_identity(&found)?;
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
            self.identify(&found, sources.best())?;
            return Ok(Some(report));
        }
        sources.catch_up(place, &found)?;
        self.check_loss(&found, sources.best())?;
        self.make_place(&found)?;
        let number = found.last_base + 1 + u64::from(found.fence.is_none());
        let archive = self.archive_name(sources.best(), number)?;
        let (mut end, mut base) = (sources.best().end, self.archive(&archive, sources.best())?);
        let Some(fence) = self.fence(&found, sources)? else { return Ok(None) };
        // What members have committed meanwhile.
        self.read_again(&mut found)?;
        sources.catch_up(place, &found)?;
        self.check_loss(&found, sources.best())?;
        if sources.best().end != end {
            (end, base) = (sources.best().end, self.archive(&archive, sources.best())?);
        }
        let first = self.begin(fence.base.first, &found, sources, end)?;
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
            }),
        };
        let stored = Numbered { number: fence.number + 1, base: stored };
        let is_stored = bases::store(&*place.bucket, &stored);
        if !is_stored.map_err(|failure| place.refused(failure))? {
            return Ok(None);
        }
        self.identify(&found, sources.best())?;
        (report.base, report.first, report.newest) = (Some(stored.number), first, end.glsn);
        (report.bytes_sent, report.bytes_verified) = (base.sent, base.bytes);
        if !self.how.accept_loss {
            report.removed = self.remove(&stored)?;
        }
        Ok(Some(report))
    }

    fn check_identity(&self, found: &Found) -> Result<()> {
        match &found.identity {
            Some(identity) if identity.id != self.id => Err(Error::OtherCluster {
                place: self.place.url.clone(),
                path: PathBuf::new(),
                found: identity.id,
                own: self.id,
            }),
            _ => Ok(()),
        }
    }

    /// Stores `cluster.json` if it is missing or damaged.
    fn identify(&self, found: &Found, best: &Source) -> Result<()> {
        if found.identity.is_some() {
            return Ok(());
        }
        let first = found.log.first().filter(|it| it.position == 1);
        self.place.identify_again(&Identity {
            id: self.id,
            log_id: best.db.id(),
            created_micros: SystemClock::new().wall_micros(),
            base_glsn: first.map_or(best.end.glsn, |it| it.before).0,
        })
    }

    /// Fails if the bucket has commits that the member lacks, unless that is accepted.
    fn check_loss(&self, found: &Found, best: &Source) -> Result<()> {
        if self.how.accept_loss {
            return Ok(());
        }
        let what = match best.extra(self.place, found)? {
            None => return Ok(()),
            Some(Extra::InBase { number, glsn }) => format!(
                "base {number} has the commits up to GLSN {glsn}, and {} ends with GLSN {}; if \
                 the base is whole, open this member, which restores it",
                best.path.display(),
                best.end.glsn
            ),
            Some(Extra::After { first, last }) => format!(
                "the log has commits at positions {first} to {last} which {} lacks, and which \
                 cannot be applied because what is before them is gone",
                best.path.display()
            ),
            Some(Extra::Unreadable { position }) => format!(
                "the batch at position {position} of the log cannot be read, and {} has not \
                 applied it",
                best.path.display()
            ),
            Some(Extra::Forked { first, last }) => {
                format!("the log has commits of another history at positions {first} to {last}")
            }
        };
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
    fn archive(&self, name: &str, best: &Source) -> Result<Verified> {
        match archived(&best.db, &best.path, self.place, name, best.end.glsn) {
            Err(_) => {
                remove_archive(self.place, name)?;
                archived(&best.db, &best.path, self.place, name, best.end.glsn)
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
                let line = found.line.max(sources.line()) + 1 + (random % LINES) as u64;
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

    /// Step 4: reads the log again if it has become longer.
    fn read_again(&self, found: &mut Found) -> Result<()> {
        let first = found.first();
        let mut now = numbers(self.place, LOG)?;
        now.retain(|position| is_in(first, *position));
        if now.last() > found.log.last().map(|it| &it.position) {
            let read = Found::read(self.place, found.log_id)?;
            (found.log, found.unreadable) = (read.log, read.unreadable);
            found.replicas = found.replicas.max(read.replicas);
        }
        Ok(())
    }

    /// Step 5: returns the first position of the new line.
    fn begin(&self, first: u64, found: &Found, sources: &Sources, end: LogPosition) -> Result<u64> {
        let (place, best) = (self.place, sources.best());
        let nonce = entropy().map_err(|error| place.failed("a random number", error))?;
        let replicas = sources.replicas().max(found.replicas);
        if replicas == 0 {
            let what = "it has no place in the log of its cluster (the file REPLICA); give also a \
                        member that has one";
            return Err(Error::Unusable { path: best.path.clone(), what: what.to_owned() });
        }
        for line in line_of(first).. {
            let position = begin_of(line);
            let end = (end.glsn, end.chain);
            let batch = OrderBatch::beginning(best.db.id(), position, best.at.hash, end, replicas)?;
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

    /// Step 7: what the base replaces.
    fn remove(&self, stored: &Numbered) -> Result<u64> {
        let place = self.place;
        let old: Vec<u64> = numbers(place, LOG)?;
        let is_old = |position: &&u64| line_of(**position) < line_of(stored.base.first);
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
