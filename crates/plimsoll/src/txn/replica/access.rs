//! Calls of the order: repeated while it is unavailable, until a deadline, and until an append that
//! is in doubt is resolved.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll_disk::clock::Clock;

use crate::order::{Appended, Order, OrderError};
use crate::txn::replica::batch::{Batch, Refusal};
use crate::types::error::{Error, Result};
use crate::types::lock::lock;
use crate::types::times::of_micros;

/// The pauses between two tries.
const PAUSE: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// How often a damaged batch is read before it is refused, because the damage may be that of a
/// connection.
const READS: u32 = 3;

/// The order, as a replica calls it.
pub(crate) struct Access {
    pub(crate) order: Arc<dyn Order>,
    pub(crate) clock: Arc<dyn Clock>,
    timeout: Duration,
    /// The time since which the order is not available, in microseconds.
    since: Mutex<Option<u64>>,
}

/// Increasing pauses until a deadline.
struct Pauses {
    pause: Duration,
    deadline_nanos: u64,
}

impl Access {
    /// Calls fail if the order is not available for longer than `timeout`.
    pub(crate) fn new(order: Arc<dyn Order>, clock: Arc<dyn Clock>, timeout: Duration) -> Self {
        Self { order, clock, timeout, since: Mutex::new(None) }
    }

    fn pauses(&self, waits: bool) -> Pauses {
        let timeout = if waits { self.timeout.as_nanos() as u64 } else { 0 };
        let deadline_nanos = self.clock.monotonic_nanos().saturating_add(timeout);
        Pauses { pause: PAUSE, deadline_nanos }
    }

    /// Waits before another try; false if the deadline has passed.
    fn pause(&self, pauses: &mut Pauses) -> bool {
        if self.clock.monotonic_nanos() >= pauses.deadline_nanos {
            return false;
        }
        self.clock.sleep(pauses.pause);
        pauses.pause = (pauses.pause * 2).min(PAUSE_MAX);
        true
    }

    fn is_available(&self) {
        *lock(&self.since) = None;
    }

    fn unavailable(&self, cause: String) -> Error {
        let now = self.clock.wall_micros();
        let since = of_micros(*lock(&self.since).get_or_insert(now));
        Error::Unavailable { since, cause }
    }

    /// The error of a call that is not repeated.
    pub(crate) fn error(&self, error: OrderError, position: u64) -> Error {
        match error {
            OrderError::Unavailable(cause) | OrderError::InDoubt(cause) => self.unavailable(cause),
            OrderError::Trimmed { first } => Error::Behind {
                cause: format!(
                    "the order begins at position {first}, but this store needs position \
                     {position}; close it and open it again as a member of its cluster, which \
                     restores it, or make this replica anew from a copy of another one"
                ),
            },
            OrderError::Corrupt(what) => Error::corrupt(format!(
                "the order returned damaged data at position {position}: {what}"
            )),
        }
    }

    /// Calls the order until it is available; at once or, if this `waits`, until the deadline.
    pub(crate) fn call<T>(
        &self,
        position: u64,
        waits: bool,
        mut call: impl FnMut(&dyn Order) -> Result<T, OrderError>,
    ) -> Result<T> {
        let mut pauses = self.pauses(waits);
        loop {
            match call(&*self.order) {
                Ok(done) => {
                    self.is_available();
                    return Ok(done);
                }
                Err(error @ (OrderError::Unavailable(_) | OrderError::InDoubt(_))) => {
                    let error = self.error(error, position);
                    if !self.pause(&mut pauses) {
                        return Err(error);
                    }
                }
                Err(error) => return Err(self.error(error, position)),
            }
        }
    }

    /// The batch at a position, with its hash checked.
    ///
    /// # Errors
    /// [`Error::Unavailable`], [`Error::Behind`], [`Error::Corrupt`].
    pub(crate) fn read(&self, position: u64, waits: bool) -> Result<Option<Batch>> {
        let mut tries = 0;
        loop {
            let bytes = self.call(position, waits, |order| order.read(position))?;
            tries += 1;
            match bytes.map(Batch::decode).transpose() {
                Err(Refusal::Damaged(_)) if tries < READS => {}
                read => return read.map_err(|refusal| refusal.at(position)),
            }
        }
    }

    /// Appends a batch. False if another batch is at the position.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if nothing was appended; [`Error::InDoubt`].
    pub(crate) fn append(&self, position: u64, batch: &[u8]) -> Result<bool> {
        let (mut pauses, mut in_doubt) = (self.pauses(true), false);
        loop {
            let error = match self.order.append(position, batch) {
                Ok(Appended::Done) => {
                    self.is_available();
                    return Ok(true);
                }
                // It may be this batch, which an earlier try has appended.
                Ok(Appended::Taken) => match self.order.read(position) {
                    Ok(Some(found)) if found == batch => {
                        self.is_available();
                        return Ok(true);
                    }
                    Ok(Some(found)) => {
                        // After a try in doubt, a damaged answer may be this batch, too.
                        if !in_doubt || Batch::decode(found).is_ok() {
                            self.is_available();
                            return Ok(false);
                        }
                        let what = format!("its batch at position {position} is damaged");
                        OrderError::InDoubt(what)
                    }
                    Ok(None) => {
                        let what = "it refuses a batch although it has none at the position";
                        OrderError::InDoubt(what.to_owned())
                    }
                    Err(_) if !in_doubt => return Ok(false),
                    Err(error) => OrderError::InDoubt(error.to_string()),
                },
                Err(error) => error,
            };
            in_doubt |= matches!(error, OrderError::InDoubt(_));
            let is_over = match &error {
                OrderError::Unavailable(_) | OrderError::InDoubt(_) => !self.pause(&mut pauses),
                OrderError::Trimmed { .. } | OrderError::Corrupt(_) => true,
            };
            if !is_over {
                continue;
            }
            let cause = error.to_string();
            let error = self.error(error, position);
            return Err(if in_doubt { Error::InDoubt { position, cause } } else { error });
        }
    }
}
