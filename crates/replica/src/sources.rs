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
    pub(crate) db: Db,
    pub(crate) at: At,
    /// The end of its log, which can be after its recorded place.
    pub(crate) end: LogPosition,
    _lock: Box<dyn Send>,
}

/// Commits of the bucket that a member lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extra {
    /// Those of a base up to a GLSN.
    InBase { number: u64, glsn: Glsn },
    /// Those of the log between two positions, before which something is missing.
    After { first: u64, last: u64 },
    /// Those of a batch that cannot be read.
    Unreadable { position: u64 },
    /// Those of the log between two positions, which have another history.
    Forked { first: u64, last: u64 },
}

impl Source {
    fn open(path: &Path, options: &Options) -> Result<Self> {
        let lock = Box::new(locked(path)?);
        let db = open_to_read(path, options)?;
        let end = end_of(&db)?;
        let at = recorded_order_place(path)?.map_or_else(At::default, |at| At {
            position: at.position,
            hash: at.hash,
            replica: at.replica,
            replicas: at.replicas,
        });
        Ok(Self { path: path.to_owned(), db, at, end, _lock: lock })
    }

    /// Whether its history contains that before a batch; true if that cannot be compared.
    fn follows(&self, batch: &Logged) -> Result<bool> {
        let after = LogPosition { glsn: batch.before, chain: batch.chain };
        Ok(after.chain == 0 || self.contains(after)?.is_none())
    }

    /// How its history differs from that up to a position.
    fn contains(&self, after: LogPosition) -> Result<Option<String>> {
        let scope = FileScope::LogFrom { segment: Glsn(u64::MAX), after };
        match self.db.files(scope, &mut |_| Ok(())) {
            Ok(_) | Err(plimsoll::Error::Trimmed { .. }) => Ok(None),
            Err(plimsoll::Error::Forked { message, .. }) => Ok(Some(message)),
            Err(error) => Err(error.into()),
        }
    }

    /// The first batch of the log that has another history, as far as that can be told.
    fn forked(&self, place: &Place, log: &[Logged]) -> Result<Option<u64>> {
        let end = log.partition_point(|it| it.before <= self.end.glsn);
        let log = &log[..end];
        let (mut low, mut high) = (0, log.len());
        // All before `low` follow this history, none from `high` on does.
        while low < high {
            let middle = low + (high - low) / 2;
            match self.follows(&log[middle])? {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        if low < log.len() {
            return Ok(Some(log[low.saturating_sub(1)].position));
        }
        let newest = log.iter().rev().find(|it| it.entries > 0 && it.last() <= self.end.glsn);
        let Some(newest) = newest else { return Ok(None) };
        let Some(bytes) = place.order()?.read_any(newest.position)? else { return Ok(None) };
        let mut is_equal = true;
        OrderBatch::read(bytes, &mut |glsn, stream, payload| {
            // What is trimmed here cannot be compared.
            if let Ok(entry) = self.db.log().read(glsn) {
                is_equal &= entry.stream == stream && entry.payload() == payload;
            }
        })?;
        Ok((!is_equal).then_some(newest.position))
    }

    /// The commits of the bucket that it lacks.
    pub(crate) fn extra(&self, place: &Place, found: &Found) -> Result<Option<Extra>> {
        if let Some(base) = found.base.as_ref().filter(|it| it.base.glsn > self.end.glsn.0) {
            return Ok(Some(Extra::InBase { number: base.number, glsn: Glsn(base.base.glsn) }));
        }
        let last = found.log.last().map_or(0, |it| it.position);
        if let Some(first) = self.forked(place, &found.log)? {
            return Ok(Some(Extra::Forked { first, last }));
        }
        let after = found.log.iter().find(|it| it.last() > self.end.glsn);
        if let Some(Logged { position: first, .. }) = after {
            return Ok(Some(Extra::After { first: *first, last }));
        }
        let unreadable = found.unreadable.iter().find(|it| **it > self.at.position);
        Ok(unreadable.map(|position| Extra::Unreadable { position: *position }))
    }
}

/// All of them; the first one has the most.
pub(crate) struct Sources {
    all: Vec<Source>,
    options: Options,
}

impl Sources {
    pub(crate) fn open(members: &[&Path], options: &Options) -> Result<Self> {
        let mut all = Vec::new();
        for path in members {
            continue_rebase(path)?;
            all.push(Source::open(path, options)?);
        }
        all.sort_by_key(|it| std::cmp::Reverse((it.end.glsn, it.at.replica > 0, it.at.position)));
        for other in &all[1..] {
            if let Some(what) = all[0].contains(other.end)? {
                let (one, other) = (all[0].path.clone(), other.path.clone());
                return Err(Error::Diverged { one, other, what });
            }
        }
        Ok(Self { all, options: options.clone() })
    }

    pub(crate) fn best(&self) -> &Source {
        &self.all[0]
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

    /// Adds the differences between the members and the bucket to the problems.
    pub(crate) fn compare(&self, place: &Place, found: &mut Found) -> Result<()> {
        if found.problems.contains(&Problem::Empty) {
            return Ok(());
        }
        let (line, best) = (line_of(found.first()), self.best());
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
        let forked = best.forked(place, &found.log)?;
        if let Some(position) = [forked, differs].into_iter().flatten().min() {
            found.problems.push(Problem::Forked { position });
        }
        Ok(())
    }

    /// Applies to the first member what follows in the log without a gap. It may have more then.
    pub(crate) fn catch_up(&mut self, place: &Place, found: &Found) -> Result<()> {
        let At { position, hash, replica, .. } = self.best().at;
        let last = found.after(position, hash);
        if last == position || replica == 0 {
            return Ok(());
        }
        let path = self.all.remove(0).path;
        let rest = Arc::new(Rest { order: place.order()?, position, last });
        let options = self.options.clone().create(false).shared(false).read_only(false);
        let db = Db::open(&path, options.order(rest))?;
        // If it has records that the log lacks, it fails at the end, and has applied the rest.
        let applied = db.sync();
        db.close()?;
        self.all.insert(0, Source::open(&path, &self.options)?);
        match applied {
            Ok(_) | Err(plimsoll::Error::Forked { .. }) => Ok(()),
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
