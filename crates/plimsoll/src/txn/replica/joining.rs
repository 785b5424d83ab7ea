//! How a store becomes a replica, and how a replica is opened.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};

use plimsoll_disk::random::entropy;
use plimsoll_log::file_log::FileLog;
use plimsoll_log::glsn::Glsn;

use crate::order::{MEMBER_FILE, Order, OrderError, PLACE_FILE};
use crate::txn::applier::Applier;
use crate::txn::replica::access::{Access, Deadline};
use crate::txn::replica::batch::{BEGIN, Batch, BatchBuilder, Head, Refusal};
use crate::txn::replica::group::Group;
use crate::txn::replica::place::{Place, PlaceFile};
use crate::txn::replica::saving::Saving;
use crate::txn::replica::walk::Walk;
use crate::txn::replica::{NEVER, Replica};
use crate::types::error::{Error, Lift, Result};
use crate::types::invalid_input::InvalidInput;
use crate::types::lock::lock;
use crate::types::options::Options;

/// A store that is opened with an order.
pub(crate) struct Joining {
    access: Access,
    file: PlaceFile,
    /// The recorded place; `None` if the store was no replica.
    place: Option<Place>,
    nonce: u128,
}

/// Refuses to open a replica for writing without its order.
pub(crate) fn check_has_order(path: &Path, options: &Options) -> Result<()> {
    if options.order.is_some() || options.read_only {
        return Ok(());
    }
    let is_member = options.disk.entry(&path.join(MEMBER_FILE))?.is_some();
    match is_member || PlaceFile::new(&options.disk, path).exists()? {
        true => Err(InvalidInput::OrderIsMissing { path: path.to_owned() }.into()),
        false => Ok(()),
    }
}

impl Joining {
    /// `None` if the options have no order.
    pub(crate) fn begin(path: &Path, options: &Options) -> Result<Option<Self>> {
        check_has_order(path, options)?;
        let Some(order) = &options.order else { return Ok(None) };
        let (order, clock) = (Arc::clone(order) as Arc<dyn Order>, Arc::clone(&options.clock));
        let access = Access::new(order, clock, options.order_timeout);
        let file = PlaceFile::new(&options.disk, path);
        let place = file.read()?;
        let nonce = entropy()? >> 64 << 64;
        Ok(Some(Self { access, file, place, nonce }))
    }

    /// The id of the log of a store that is being created: the id of the order. If the order is
    /// empty, it begins with a new id.
    pub(crate) fn id_of_new_log(&self) -> Result<u128> {
        let begin = self.first_batch(entropy()?, Glsn::FIRST, 0)?;
        match begin {
            Some(batch) if batch.head.first == Glsn::FIRST => Ok(batch.head.order_id),
            _ => Err(Error::Behind {
                cause: "the order does not contain the whole store, because it was trimmed, or \
                        began with a store that had commits; make this replica from a copy of \
                        another one, or of the store with which the order began"
                    .to_owned(),
            }),
        }
    }

    /// The batch at position 1. If the order is empty, it begins with the store that these
    /// arguments describe. `None` if position 1 was trimmed.
    fn first_batch(&self, order_id: u128, first: Glsn, chain: u64) -> Result<Option<Batch>> {
        let (position, previous, nonce) = (BEGIN, [0; 32], self.nonce);
        let (replica, replicas, count) = (0, 0, 0);
        let head = Head {
            append_micros: 0,
            order_id,
            position,
            previous,
            nonce,
            first,
            replica,
            replicas,
            count,
            chain,
        };
        let deadline = self.access.deadline();
        loop {
            match self.access.read(BEGIN, deadline) {
                Err(Error::Behind { .. }) => return Ok(None),
                Ok(Some(batch)) if batch.head.position == BEGIN => return Ok(Some(batch)),
                Ok(Some(batch)) => {
                    let what = format!("it was appended at position {}", batch.head.position);
                    let refusal = Refusal::Forked(what);
                    return Err(refusal.at(BEGIN));
                }
                Ok(None) => {
                    let batch = BatchBuilder::new(&head).finish();
                    drop(self.access.append(BEGIN, &batch, deadline)?);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The place of a store that was no replica: the beginning of the order.
    fn first_place(&self, log: &FileLog) -> Result<Place> {
        let forked = |what: String| Error::Forked {
            glsn: None,
            message: format!(
                "the order is not that of this store: {what}; open the store with its own order"
            ),
        };
        let next = log.bounds().next;
        let last = Glsn(next.0 - 1);
        let chain = match last {
            Glsn::NONE => 0,
            last => log.chain_at(last).lift()?.unwrap_or_default(),
        };
        let Some(batch) = self.first_batch(log.id(), next, chain)? else {
            return self.place_in_trimmed(log);
        };
        let Head { order_id, first, .. } = batch.head;
        if order_id != log.id() {
            return Err(forked("it has another id".to_owned()));
        }
        if next < first {
            return Err(behind(first, next));
        }
        let glsn = Glsn(first.0 - 1);
        let here = if glsn == Glsn::NONE { None } else { log.chain_at(glsn).ok().flatten() };
        if here.is_some_and(|here| batch.head.chain != 0 && here != batch.head.chain) {
            return Err(forked(format!("its history up to GLSN {glsn} is another one")));
        }
        let (hash, replica, replicas) = (batch.hash, 0, batch.head.replicas);
        Ok(Place { order_id, position: BEGIN, hash, glsn, chain: 0, replica, replicas })
    }

    /// The place of a copy of a replica, before the first batch that the order still has.
    fn place_in_trimmed(&self, log: &FileLog) -> Result<Place> {
        let first = match self.access.order.read(BEGIN) {
            Err(OrderError::Trimmed { first }) => first,
            // The order cannot be read now.
            Err(error) => return Err(self.access.error(error, BEGIN)),
            Ok(_) => return Err(self.access.error(OrderError::Trimmed { first: 0 }, BEGIN)),
        };
        let batch = self.access.read(first, self.access.deadline())?;
        let Some(Batch { head, .. }) = batch else {
            return Err(self.access.error(OrderError::Trimmed { first }, BEGIN));
        };
        let next = log.bounds().next;
        if next < head.first {
            return Err(behind(head.first, next));
        }
        if head.order_id != log.id() || head.position != first {
            let what = "it is of another order".to_owned();
            return Err(Refusal::Forked(what).at(first));
        }
        let glsn = Glsn(head.first.0 - 1);
        let here = log.chain_at(glsn).ok().flatten();
        if here.is_some_and(|here| head.chain != 0 && here != head.chain) {
            let what = format!("it follows another history up to GLSN {glsn}");
            return Err(Refusal::Forked(what).at(first));
        }
        let (order_id, replicas) = (head.order_id, head.replicas.saturating_sub(1));
        let (hash, position) = (head.previous, first - 1);
        Ok(Place { order_id, position, hash, glsn, chain: 0, replica: 0, replicas })
    }

    /// The replica of an open store. `applier` applies batches to the parts of the store.
    pub(crate) fn end(self, options: &Options, applier: Applier) -> Result<Replica> {
        let log = &applier.log;
        let place = match self.place {
            Some(place) => {
                check_place(log, &place)?;
                place
            }
            None => self.first_place(log)?,
        };
        log.set_node(place.replica);
        Ok(Replica {
            access: self.access,
            applier,
            group: Group::default(),
            walk: Mutex::new(Walk::default()),
            place: Mutex::new(place),
            saving: Saving::new(self.file, self.place),
            max_staleness: options.max_staleness,
            checked_nanos: AtomicU64::new(NEVER),
            nonce: self.nonce,
            batches: AtomicU64::new(0),
            append_micros: AtomicU32::new(0),
            own_elsewhere: AtomicU64::new(0),
            unfreed_bytes: AtomicU64::new(0),
            segment_bytes: options.segment_limit_bytes(),
            is_closed: AtomicBool::new(false),
        })
    }
}

fn behind(first: Glsn, next: Glsn) -> Error {
    Error::Behind {
        cause: format!(
            "the order begins with GLSN {first}, but this store has no entry from GLSN {next} on; \
             open it as a member of its cluster, which restores it, or make this replica anew from \
             a copy of another one"
        ),
    }
}

/// Checks that the log has everything up to the recorded place.
fn check_place(log: &FileLog, place: &Place) -> Result<()> {
    let next = log.bounds().next;
    let wrong = if place.order_id != log.id() {
        Some("it is that of another store".to_owned())
    } else if next <= place.glsn {
        Some(format!("it is at GLSN {}, but the log ends with GLSN {}", place.glsn, next.0 - 1))
    } else {
        let here = match place.glsn {
            Glsn::NONE => None,
            glsn => log.chain_at(glsn).ok().flatten(),
        };
        here.filter(|here| place.chain != 0 && *here != place.chain)
            .map(|_| format!("the log has another history at GLSN {}", place.glsn))
    };
    wrong.map_or(Ok(()), |what| {
        Err(Error::Forked {
            glsn: Some(place.glsn),
            message: format!(
                "the place of this replica in its order (file `{PLACE_FILE}`) does not fit its \
                 log: {what}; make this replica anew from a copy of another one"
            ),
        })
    })
}

impl Replica {
    /// Reads the order for the first time. A store that becomes a replica must reach the end of the
    /// order.
    pub(crate) fn start(&self) -> Result<()> {
        if lock(&self.place).replica == 0 {
            self.claim_number()?;
            return self.save_place(true);
        }
        // An error is ignored: the next commit, or the next read that must not be stale, gets it.
        let _ = self.catch_up_by(&mut lock(&self.walk), Deadline::PASSED);
        Ok(())
    }
}
