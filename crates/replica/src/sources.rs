//! The members from which a cluster is healed: how far they are, and what the bucket has that they
//! lack.

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use plimsoll::order::{Appended, Order, OrderError};
use plimsoll::{Db, FileScope, Glsn, LogPosition, Options, OrderBatch, recorded_order_place};
use plimsoll_disk::clock::{Clock, SystemClock};

use crate::bases::line_of;
use crate::bucket_order::BucketOrder;
use crate::cluster::Place;
use crate::diagnosis::{Found, Logged, Problem};
use crate::error::{Error, Result};
use crate::rebase::{continue_rebase, end_of, locked, open_to_read};

/// Numbers of members that are left out, because the log of a member that was killed may name more
/// than its recorded place.
const NUMBERS_LEFT_OUT: u16 = 64;

/// The recorded place of a member.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct At {
    pub(crate) position: u64,
    pub(crate) hash: [u8; 32],
    /// 0 if the folder is a copy.
    pub(crate) replica: u16,
    pub(crate) replicas: u16,
}

/// A member, which no process has open.
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    pub(crate) at: At,
    /// The end of its log, which can be after its recorded place.
    pub(crate) end: LogPosition,
    /// Whether its history is known to be a part of that of the best one.
    is_compared: bool,
    _lock: Box<dyn Send>,
}

impl Source {
    /// The member, and its store.
    fn open(path: &Path, options: &Options) -> Result<(Self, Db)> {
        let lock = Box::new(locked(path)?);
        let db = open_to_read(path, options)?;
        let end = end_of(&db)?;
        let at = recorded_order_place(path)?.map_or_else(At::default, |at| At {
            position: at.position,
            hash: at.hash,
            replica: at.replica,
            replicas: at.replicas,
        });
        let path = path.to_owned();
        Ok((Self { path, at, end, is_compared: true, _lock: lock }, db))
    }
}

/// Commits of the bucket that a member lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extra {
    /// Those of a base up to a GLSN.
    InBase { number: u64, glsn: Glsn },
    /// Those of the log between two positions, which cannot be applied.
    After { first: u64, last: u64 },
    /// Those of a batch that cannot be read.
    Unreadable { position: u64 },
    /// Those of the log between two positions, which have another history.
    Forked { first: u64, last: u64 },
    /// Those up to a position, which cannot be compared, because the log of the member begins
    /// later.
    Unknown { position: u64 },
    /// Those before the first position of another line of the log.
    Before { position: u64, glsn: Glsn },
}

/// The history of a member, compared with another one.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Relation {
    /// It contains the other one.
    Same,
    /// It differs.
    Other(String),
    /// Its log begins later, so that it cannot be compared.
    Unknown,
}

/// The log in the bucket, compared with the history of a member.
#[derive(Clone, Copy, Debug, Default)]
struct Compared {
    /// The first position that is known to differ.
    forked: Option<u64>,
    /// The last position up to which a part of the log cannot be compared.
    unknown: Option<u64>,
    /// Whether that is the newest part of the log.
    is_newest_unknown: bool,
}

/// All of them; the first one has the most.
pub(crate) struct Sources {
    all: Vec<Source>,
    /// The store of the first one.
    db: Db,
    options: Options,
}

impl Sources {
    pub(crate) fn open(members: &[&Path], options: &Options) -> Result<Self> {
        let mut all = Vec::new();
        for path in members {
            continue_rebase(path)?;
            // Only one store at a time takes the memory of the options.
            all.push(Source::open(path, options)?.0);
        }
        all.sort_by_key(|it| std::cmp::Reverse((it.end.glsn, it.at.replica > 0, it.at.position)));
        let db = open_to_read(&all[0].path, options)?;
        let mut sources = Self { all, db, options: options.clone() };
        for at in 1..sources.all.len() {
            match sources.contains(sources.all[at].end)? {
                Relation::Same => {}
                Relation::Unknown => sources.all[at].is_compared = false,
                Relation::Other(what) => {
                    let one = sources.all[0].path.clone();
                    let other = sources.all[at].path.clone();
                    return Err(Error::Diverged { one, other, what });
                }
            }
        }
        Ok(sources)
    }

    pub(crate) fn best(&self) -> &Source {
        &self.all[0]
    }

    /// The store of the best one.
    pub(crate) fn db(&self) -> &Db {
        &self.db
    }

    /// The highest line of a member.
    pub(crate) fn line(&self) -> u64 {
        self.all.iter().map(|it| line_of(it.at.position)).max().unwrap_or(0)
    }

    /// The highest number of a member that can be in their logs; 0 if it is not known.
    pub(crate) fn replicas(&self) -> u16 {
        let highest = self.all.iter().map(|it| it.at.replicas).max().unwrap_or(0);
        if highest == 0 { 0 } else { highest.saturating_add(NUMBERS_LEFT_OUT) }
    }

    /// The best one's history, compared with that up to a position.
    fn contains(&self, after: LogPosition) -> Result<Relation> {
        match after {
            LogPosition { glsn: Glsn::NONE, .. } => return Ok(Relation::Same),
            LogPosition { chain: 0, .. } => return Ok(Relation::Unknown),
            LogPosition { .. } => {}
        }
        let scope = FileScope::LogFrom { segment: Glsn(u64::MAX), after };
        match self.db.files(scope, &mut |_| Ok(())) {
            Ok(_) => Ok(Relation::Same),
            Err(plimsoll::Error::Trimmed { .. }) => Ok(Relation::Unknown),
            Err(plimsoll::Error::Forked { message, .. }) => Ok(Relation::Other(message)),
            Err(error) => Err(error.into()),
        }
    }

    /// As [`Sources::contains`], for the history before a batch.
    fn follows(&self, batch: &Logged) -> Result<Relation> {
        self.contains(LogPosition { glsn: batch.before, chain: batch.chain })
    }

    /// The best one's entries, compared with those of a batch before its end.
    fn has_entries(&self, order: &BucketOrder, batch: &Logged) -> Result<Relation> {
        let Some(bytes) = order.read_any(batch.position)? else { return Ok(Relation::Unknown) };
        let (mut is_equal, mut is_known) = (true, true);
        OrderBatch::read(bytes, &mut |glsn, stream, payload| match self.db.log().read(glsn) {
            Ok(entry) => is_equal &= entry.stream == stream && entry.payload() == payload,
            Err(_) => is_known = false,
        })?;
        Ok(match (is_equal, is_known) {
            (false, _) => Relation::Other("its entries differ".to_owned()),
            (true, true) => Relation::Same,
            (true, false) => Relation::Unknown,
        })
    }

    /// Compares each part of the log without a gap with the best one's history, up to its end. In
    /// such a part, the chain hash of a batch covers those before it; the entries of the last one
    /// are compared themselves.
    fn compare_log(&self, place: &Place, log: &[Logged]) -> Result<Compared> {
        let (Source { at, end, .. }, order) = (self.best(), place.order()?);
        let mut compared = Compared::default();
        let is_next = |one: &Logged, next: &Logged| {
            one.position + 1 == next.position && one.hash == next.previous
        };
        for part in log.chunk_by(is_next) {
            let part = &part[..part.partition_point(|it| it.before <= end.glsn)];
            let Some(last) = part.last() else { continue };
            let (mut low, mut high) = (0, part.len());
            // None from `high` on follows this history.
            while low < high {
                let middle = low + (high - low) / 2;
                match self.follows(&part[middle])? {
                    Relation::Other(_) => high = middle,
                    Relation::Same | Relation::Unknown => low = middle + 1,
                }
            }
            let newest = part.iter().rev().find(|it| it.entries > 0 && it.last() <= end.glsn);
            let relation = match newest {
                _ if low < part.len() => {
                    let position = part[low.saturating_sub(1)].position;
                    compared.forked = compared.forked.or(Some(position));
                    continue;
                }
                Some(newest) if newest.position == last.position => {
                    self.has_entries(&order, newest)?
                }
                _ => self.follows(last)?,
            };
            let is_at = |it: &Logged| it.position == at.position && it.hash == at.hash;
            compared.is_newest_unknown = false;
            match relation {
                Relation::Same => {}
                Relation::Other(_) => {
                    compared.forked = compared.forked.or(Some(last.position));
                }
                // Its place is in this part, and nothing that it could lack follows.
                Relation::Unknown
                    if part.iter().any(is_at)
                        && newest.is_none_or(|it| it.position <= at.position) => {}
                Relation::Unknown => {
                    (compared.unknown, compared.is_newest_unknown) = (Some(last.position), true);
                }
            }
        }
        Ok(compared)
    }

    /// The commits of the bucket that the best one lacks, or may lack.
    pub(crate) fn extra(&self, place: &Place, found: &Found) -> Result<Option<Extra>> {
        let Source { at, end, .. } = self.best();
        if let Some(base) = found.base.as_ref().filter(|it| it.base.glsn > end.glsn.0) {
            return Ok(Some(Extra::InBase { number: base.number, glsn: Glsn(base.base.glsn) }));
        }
        let last = found.log.last().map_or(0, |it| it.position);
        let compared = self.compare_log(place, &found.log)?;
        if let Some(first) = compared.forked {
            return Ok(Some(Extra::Forked { first, last }));
        }
        let after = found.log.iter().find(|it| it.last() > end.glsn);
        if let Some(Logged { position: first, .. }) = after {
            return Ok(Some(Extra::After { first: *first, last }));
        }
        let may_be_forked = found.may_be_forked();
        if let Some(position) = compared.unknown
            && (compared.is_newest_unknown || may_be_forked)
        {
            return Ok(Some(Extra::Unknown { position }));
        }
        let unreadable = found.unreadable.iter().find(|it| **it > at.position);
        if let Some(position) = unreadable {
            return Ok(Some(Extra::Unreadable { position: *position }));
        }
        let before = found.beyond.filter(|(_, glsn)| *glsn > end.glsn);
        Ok(before.map(|(position, glsn)| Extra::Before { position, glsn }))
    }

    /// Fails if a member may have commits of another history that cannot be seen.
    pub(crate) fn check_compared(&self, found: &Found) -> Result<()> {
        let unknown = self.all.iter().find(|it| !it.is_compared);
        let Some(unknown) = unknown.filter(|_| found.may_be_forked()) else { return Ok(()) };
        let what = format!(
            "this member may have commits of another history, because the bucket was cut or set \
             back. It cannot be compared with {}, whose log begins after GLSN {}; heal without \
             this member, and keep its folder",
            self.best().path.display(),
            unknown.end.glsn
        );
        Err(Error::Unusable { path: unknown.path.clone(), what })
    }

    /// Adds the differences between the members and the bucket to the problems.
    pub(crate) fn compare(&self, place: &Place, found: &mut Found) -> Result<()> {
        if found.problems.contains(&Problem::Empty) {
            return Ok(());
        }
        let (line, best) = (line_of(found.begins), self.best());
        let (last, glsn) = match (found.log.last(), &found.base) {
            (Some(batch), _) => (batch.position, batch.last()),
            (None, Some(base)) => (base.base.first - 1, Glsn(base.base.glsn)),
            (None, None) => (0, found.identity.as_ref().map_or(Glsn::NONE, |it| it.base())),
        };
        let is_beyond = |it: &&Source| {
            line_of(it.at.position) > line
                || it.at.position > last && line_of(it.at.position) == line
        };
        let most = self.all.iter().find(is_beyond);
        let most = most.or((best.end.glsn > glsn).then_some(best));
        if let Some(Source { at, end, .. }) = most {
            let (position, member) = (at.position, end.glsn);
            found.problems.push(Problem::SetBack { last, glsn, position, member });
        }
        let differs = self.all.iter().find_map(|it| {
            let at =
                found.log.binary_search_by_key(&it.at.position, |batch| batch.position).ok()?;
            (found.log[at].hash != it.at.hash).then_some(it.at.position)
        });
        let forked = self.compare_log(place, &found.log)?.forked;
        if let Some(position) = [forked, differs].into_iter().flatten().min() {
            found.problems.push(Problem::Forked { position });
        }
        Ok(())
    }

    /// Applies to the first member what follows in the log without a gap. It may have more then.
    pub(crate) fn catch_up(mut self, place: &Place, found: &Found) -> Result<Self> {
        let At { position, hash, replica, .. } = self.best().at;
        let last = found.after(position, hash);
        if last == position || replica == 0 {
            return Ok(self);
        }
        drop(self.db);
        let path = self.all.remove(0).path;
        let rest = Arc::new(Rest { order: place.order()?, position, last });
        let options = self.options.clone().create(false).shared(false).read_only(false);
        let db = Db::open(&path, options.order(rest))?;
        // If it has records that the log lacks, it fails at the end, and has applied the rest.
        let applied = db.sync();
        db.close()?;
        let (source, db) = Source::open(&path, &self.options)?;
        self.all.insert(0, source);
        match applied {
            Ok(_) | Err(plimsoll::Error::Forked { .. }) => {
                Ok(Self { all: self.all, db, options: self.options })
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// The batches of an old line of the log after a position.
#[derive(Debug)]
struct Rest {
    order: BucketOrder,
    position: u64,
    last: u64,
}

impl Order for Rest {
    fn append(&self, _position: u64, _batch: &[u8]) -> Result<Appended, OrderError> {
        Err(OrderError::Unavailable("the cluster is being healed".to_owned()))
    }

    fn read(&self, position: u64) -> Result<Option<Vec<u8>>, OrderError> {
        match position {
            _ if position <= self.position => Err(OrderError::Trimmed { first: self.position + 1 }),
            _ if position > self.last => Ok(None),
            _ => self.order.read_any(position),
        }
    }

    fn wait(&self, position: u64, timeout: Duration) -> Result<(), OrderError> {
        if position > self.last {
            SystemClock::new().sleep(timeout.min(Duration::from_millis(50)));
        }
        Ok(())
    }

    fn put_blob(&self, _hash: [u8; 32], _bytes: &mut dyn Read) -> Result<(), OrderError> {
        Err(OrderError::Unavailable(ErrorKind::ReadOnlyFilesystem.to_string()))
    }

    fn get_blob(&self, hash: [u8; 32]) -> Result<Option<Box<dyn Read + Send>>, OrderError> {
        self.order.get_blob(hash)
    }
}
