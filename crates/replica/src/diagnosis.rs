//! Finds the faults of a cluster's bucket: reads every object that a new member would need, and
//! compares the log with the members.

use std::collections::BTreeMap;

use plimsoll::order::OrderError;
use plimsoll::{Glsn, OrderBatch};

use crate::bases::{self, Numbered, line_of};
use crate::blobs;
use crate::bucket_order::{self, BucketOrder, LOG};
use crate::cluster::{BASE, CLUSTER, Identity, Place};
use crate::error::{Error, Result};

/// So many numbers of bases may be missing before the highest one.
const BASES_LOST_MAX: u64 = 1 << 16;

/// A fault of the bucket of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// It has no object of a cluster.
    #[error("the bucket is empty")]
    Empty,
    /// An object is missing.
    #[error("{object}: it is missing")]
    Missing {
        /// The object.
        object: String,
    },
    /// An object is damaged.
    #[error("{object}: {what}")]
    Damaged {
        /// The object.
        object: String,
        /// The damage.
        what: String,
    },
    /// The log ends before a member does: it was cut, or set back.
    #[error(
        "the log ends at position {last} with GLSN {glsn}, but a member has applied position \
         {position} and GLSN {member}: the bucket was cut or set back"
    )]
    SetBack {
        /// The last position of the log.
        last: u64,
        /// The last GLSN of the log.
        glsn: Glsn,
        /// The position of the member.
        position: u64,
        /// The newest GLSN of the member.
        member: Glsn,
    },
    /// The log has another history than the members: it was set back, and another member has
    /// committed since.
    #[error(
        "log/{position:016x}: it is another batch than that which the members have applied: the \
         log was forked"
    )]
    Forked {
        /// The first position that is known to differ.
        position: u64,
    },
    /// An earlier heal did not end.
    #[error("an earlier heal had not finished")]
    Unfinished,
}

impl Problem {
    /// Whether only `cluster.json` is missing or damaged.
    pub(crate) fn is_of_name(&self) -> bool {
        matches!(self, Self::Missing { object } | Self::Damaged { object, .. } if object == CLUSTER)
    }
}

/// A batch of the log in the bucket.
#[derive(Clone, Debug)]
pub(crate) struct Logged {
    pub(crate) position: u64,
    pub(crate) previous: [u8; 32],
    pub(crate) hash: [u8; 32],
    /// The last GLSN before its entries, and the chain hash of the log there.
    pub(crate) before: Glsn,
    pub(crate) chain: u64,
    pub(crate) entries: u64,
    /// Whether its blobs can be read.
    pub(crate) has_blobs: bool,
}

impl Logged {
    /// Its last GLSN.
    pub(crate) fn last(&self) -> Glsn {
        Glsn(self.before.0 + self.entries)
    }
}

/// The objects of a bucket.
pub(crate) struct Found {
    pub(crate) problems: Vec<Problem>,
    pub(crate) identity: Option<Identity>,
    /// The base numbers that are missing or damaged, up to the highest one.
    pub(crate) bad_bases: Vec<u64>,
    /// The highest number of a base; 0 if there is none.
    pub(crate) last_base: u64,
    /// The newest base that can be read and has an archive.
    pub(crate) base: Option<Numbered>,
    /// The base after that, if it is a fence, and no other base is newer.
    pub(crate) fence: Option<Numbered>,
    /// The highest line of any object.
    pub(crate) line: u64,
    /// The first position of the newest line of the log that has commits.
    pub(crate) begins: u64,
    /// The highest GLSN with which a later line begins, and its first position. Such a line is of
    /// a heal that did not end, or its base is lost.
    pub(crate) beyond: Option<(u64, Glsn)>,
    /// The blobs whose contents are damaged.
    pub(crate) damaged_blobs: Vec<String>,
    /// The batches of the newest line of the log that can be read.
    pub(crate) log: Vec<Logged>,
    /// The positions of those that cannot be read.
    pub(crate) unreadable: Vec<u64>,
    /// The highest number of a member that the log names.
    pub(crate) replicas: u16,
    pub(crate) log_id: u128,
}

impl Found {
    /// Reads the bucket of the cluster with an id, whose log has the id `log_id`.
    ///
    /// # Errors
    /// The bucket; another cluster is there.
    pub(crate) fn read(place: &Place, log_id: u128) -> Result<Self> {
        let mut found = Self {
            problems: Vec::new(),
            identity: None,
            bad_bases: Vec::new(),
            last_base: 0,
            base: None,
            fence: None,
            line: 0,
            begins: 1,
            beyond: None,
            damaged_blobs: Vec::new(),
            log: Vec::new(),
            unreadable: Vec::new(),
            replicas: 0,
            log_id,
        };
        match place.find_identity() {
            Ok(Some(identity)) => found.identity = Some(identity),
            Ok(None) => {
                found.problems.push(Problem::Missing { object: CLUSTER.to_owned() });
            }
            Err(Error::Damaged { what, .. }) => {
                found.problems.push(Problem::Damaged { object: CLUSTER.to_owned(), what });
            }
            Err(error) => return Err(error),
        }
        found.read_bases(place)?;
        let positions = found.read_log(place, log_id)?;
        if found.identity.is_none() && found.last_base == 0 && positions == 0 {
            found.problems = vec![Problem::Empty];
        }
        if found.problems.iter().all(Problem::is_of_name) {
            found.check_archive(place)?;
        }
        Ok(found)
    }

    fn read_bases(&mut self, place: &Place) -> Result<()> {
        let numbers = numbers(place, bases::FOLDER)?;
        self.last_base = numbers.last().copied().unwrap_or(0);
        if self.last_base.saturating_sub(numbers.len() as u64) > BASES_LOST_MAX {
            let object = format!("{}: {}", place.url, bases::name_of(self.last_base));
            let what = "its number is too high; if Plimsoll did not store it, move it away and \
                        repeat this";
            return Err(Error::Damaged { place: object, what: what.to_owned() });
        }
        for number in 1..=self.last_base {
            let object = bases::name_of(number);
            match bases::read(&*place.bucket, number) {
                Ok(Some(read)) => {
                    self.line = self.line.max(line_of(read.base.first));
                    match read.base.is_fence() {
                        true => self.fence = Some(read),
                        false => (self.base, self.fence) = (Some(read), None),
                    }
                }
                Ok(None) => {
                    self.bad_bases.push(number);
                    self.problems.push(Problem::Missing { object });
                }
                Err(blobs::Failure::Damaged(object, what)) => {
                    self.bad_bases.push(number);
                    self.problems.push(Problem::Damaged { object, what });
                }
                Err(failure) => return Err(place.refused(failure)),
            }
        }
        if self.fence.as_ref().is_some_and(|it| it.number == self.last_base) {
            self.problems.push(Problem::Unfinished);
        } else {
            self.fence = None;
        }
        Ok(())
    }

    /// The first position that a new member needs.
    pub(crate) fn first(&self) -> u64 {
        self.base.as_ref().map_or(1, |it| it.base.first)
    }

    /// Whether the bucket may have another history than the members, as far as the problems tell.
    pub(crate) fn may_be_forked(&self) -> bool {
        let may_be = |it: &Problem| {
            matches!(it, Problem::Empty | Problem::SetBack { .. } | Problem::Forked { .. })
        };
        self.problems.iter().any(may_be)
    }

    /// Finds the newest line that has commits, whether or not its base can be read. The line of a
    /// heal that did not end has only its first batch.
    fn find_line(&mut self, positions: &[u64]) {
        let first = self.first();
        self.begins = first;
        let lines = positions.chunk_by(|one, next| line_of(*one) == line_of(*next));
        let lost = lines.rev().map(|line| (line_of(line[0]), line)).find(|(line, positions)| {
            *line > line_of(first) && positions.iter().any(|it| *it != bases::begin_of(*line))
        });
        if let Some((line, _)) = lost {
            self.begins = bases::begin_of(line);
            if self.bad_bases.is_empty() {
                let object = bases::name_of(self.last_base + 1);
                self.problems.push(Problem::Missing { object });
            }
        }
    }

    /// Reads the first batches of later lines.
    fn read_beyond(&mut self, order: &BucketOrder, positions: &[u64]) -> Result<()> {
        let begins = line_of(self.begins);
        for position in positions.iter().filter(|it| line_of(**it) > begins) {
            let read = match order.read_any(*position) {
                Ok(Some(bytes)) => OrderBatch::read(bytes, &mut |_, _, _| {}),
                // It has no commits.
                Ok(None) | Err(OrderError::Corrupt(_)) => continue,
                Err(error) => return Err(error.into()),
            };
            if let Ok(batch) = read {
                let glsn = Glsn(batch.first.0 - 1);
                if self.beyond.is_none_or(|(_, most)| most < glsn) {
                    self.beyond = Some((*position, glsn));
                }
            }
        }
        Ok(())
    }

    /// Reads the log, and returns how many objects it has.
    fn read_log(&mut self, place: &Place, log_id: u128) -> Result<usize> {
        let positions = numbers(place, LOG)?;
        self.line = positions.last().map_or(self.line, |last| self.line.max(line_of(*last)));
        self.find_line(&positions);
        let begins = self.begins;
        let own: Vec<u64> = positions.iter().copied().filter(|it| is_in(begins, *it)).collect();
        // A base that cannot be read may have replaced what is missing before that.
        let is_known = self.bad_bases.is_empty() && begins == self.first();
        let mut next = if is_known { begins } else { own.first().map_or(1, |it| *it) };
        if own.is_empty() {
            self.problems.push(Problem::Missing { object: bucket_order::name_of(begins) });
        }
        let order = place.order()?;
        let mut previous = None;
        for position in own {
            if position > next {
                let object = bucket_order::name_of(next);
                self.problems.push(Problem::Missing { object });
                previous = None;
            }
            next = position + 1;
            previous = self.read_batch(place, &order, position, log_id, previous)?;
        }
        self.read_beyond(&order, &positions)?;
        Ok(positions.len())
    }

    /// Reads one batch, and returns its hash.
    fn read_batch(
        &mut self,
        place: &Place,
        order: &BucketOrder,
        position: u64,
        log_id: u128,
        previous: Option<[u8; 32]>,
    ) -> Result<Option<[u8; 32]>> {
        let object = bucket_order::name_of(position);
        let read = match order.read_any(position) {
            Ok(None) => return Ok(None),
            Ok(Some(bytes)) => OrderBatch::read(bytes, &mut |_, _, _| {}),
            Err(OrderError::Corrupt(what)) => Err(plimsoll::Error::Remote { message: what }),
            Err(error) => return Err(error.into()),
        };
        let what = match read {
            Err(error) => error.to_string(),
            Ok(batch) if batch.order_id != log_id => {
                let object = format!("{}: {object}", place.url);
                let what = "it is of another store, so this may be the bucket of another cluster; \
                            check the URL. If it is the right one, move this object away and \
                            repeat this. Nothing was changed";
                return Err(Error::Damaged { place: object, what: what.to_owned() });
            }
            Ok(batch) if batch.position != position => "it is of another position".to_owned(),
            Ok(batch) => {
                if previous.is_some_and(|it| it != batch.previous) {
                    // Record it all the same: the members are compared with it, because it may be
                    // of another history.
                    let what = "it does not follow the batch before it".to_owned();
                    self.problems.push(Problem::Damaged { object, what });
                }
                let mut has_blobs = true;
                for hash in &batch.blobs {
                    has_blobs &= self.check_blob(place, hash)?;
                }
                self.replicas = self.replicas.max(batch.replicas);
                self.log.push(Logged {
                    position,
                    previous: batch.previous,
                    hash: batch.hash,
                    before: Glsn(batch.first.0 - 1),
                    chain: batch.chain,
                    entries: batch.entries,
                    has_blobs,
                });
                return Ok(Some(batch.hash));
            }
        };
        self.problems.push(Problem::Damaged { object, what });
        self.unreadable.push(position);
        Ok(None)
    }

    /// Whether a blob can be read.
    fn check_blob(&mut self, place: &Place, hash: &[u8; 32]) -> Result<bool> {
        let object = blobs::name_of(hash);
        let failed = |error| place.failed(&object, error);
        if !place.bucket.exists(&object).map_err(failed)? {
            self.problems.push(Problem::Missing { object });
        } else if !blobs::check(&*place.bucket, &object, hash).map_err(failed)? {
            self.damaged_blobs.push(object.clone());
            self.problems.push(Problem::Damaged { object, what: blobs::DAMAGED.to_owned() });
        } else {
            return Ok(true);
        }
        Ok(false)
    }

    /// Reads every object of the newest base.
    fn check_archive(&mut self, place: &Place) -> Result<()> {
        let archive = self.base.as_ref().map_or(BASE, |it| &it.base.archive).to_owned();
        let damaged = |object: &str, what: String| Problem::Damaged {
            object: format!("{archive}/{object}"),
            what,
        };
        match place.archive(&archive)?.verify(&mut |_| {}) {
            Ok(report) => {
                let created = self.identity.as_ref().map_or(0, |it| it.base_glsn);
                let least = self.base.as_ref().map_or(created, |it| it.base.glsn);
                if report.damage.is_empty() && report.glsn.0 < least {
                    let what = format!("it was set back: it ends with GLSN {}", report.glsn);
                    self.problems.push(damaged("manifests", what));
                }
                let damage = report.damage.into_iter();
                self.problems.extend(damage.map(|it| damaged(&it.object, it.what)));
                Ok(())
            }
            Err(
                error @ (plimsoll_archive::Error::NotAnArchive { .. }
                | plimsoll_archive::Error::Damaged { .. }
                | plimsoll_archive::Error::NotArchived { .. }),
            ) => {
                self.problems.push(damaged("manifests", error.to_string()));
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The last of the batches that follow a position and a hash without a gap, and whose blobs can
    /// be read.
    pub(crate) fn after(&self, position: u64, hash: [u8; 32]) -> u64 {
        let by_position: BTreeMap<u64, &Logged> =
            self.log.iter().map(|it| (it.position, it)).collect();
        let (mut last, mut hash) = (position, hash);
        while let Some(next) = by_position.get(&(last + 1))
            && next.previous == hash
            && next.has_blobs
        {
            (last, hash) = (next.position, next.hash);
        }
        last
    }
}

/// Whether a position is in the line that `first` is in, and not before it.
pub(crate) fn is_in(first: u64, position: u64) -> bool {
    position >= first && line_of(position) == line_of(first)
}

/// The numbers of the objects in a folder, in order.
pub(crate) fn numbers(place: &Place, folder: &str) -> Result<Vec<u64>> {
    let listed = place.bucket.list(folder);
    let names = listed.map_err(|error| place.failed("the list of its objects", error))?;
    let number = |name: &String| {
        let (_, name) = name.rsplit_once('/')?;
        (name.len() == 16).then(|| u64::from_str_radix(name, 16).ok()).flatten()
    };
    let mut numbers: Vec<u64> = names.iter().filter_map(number).collect();
    numbers.sort_unstable();
    Ok(numbers)
}
