//! Calls of the order. A call is repeated while the order is unavailable, until a deadline. An
//! append in doubt is repeated until the doubt is resolved, or until a deadline.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll_disk::clock::Clock;
use plimsoll_log::blob::BlobId;

use crate::order::{Appended, Order, OrderError};
use crate::txn::replica::batch::{Batch, Refusal};
use crate::types::error::{Error, Result};
use crate::types::lock::lock;
use crate::types::times::of_micros;

/// The first pause between two tries; each further one is twice as long.
const PAUSE: Duration = Duration::from_millis(1);

/// The longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// How often a damaged batch is read before it is refused, because the damage may have occurred on
/// a connection.
const READS: u32 = 3;

/// The order, as a replica calls it.
pub(crate) struct Access {
    pub(crate) order: Arc<dyn Order>,
    pub(crate) clock: Arc<dyn Clock>,
    timeout: Duration,
    /// The time since which the order has been unavailable, in microseconds; `None` if it is not.
    since: Mutex<Option<u64>>,
}

/// Until when a call is repeated while the order is unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Deadline {
    nanos: u64,
    /// Whether it begins anew with each batch that is applied.
    is_renewed: bool,
}

impl Deadline {
    /// Each call is made once.
    pub(crate) const PASSED: Self = Self { nanos: 0, is_renewed: false };

    /// The later one of two.
    pub(crate) fn max(self, other: Self) -> Self {
        if other.nanos > self.nanos { other } else { self }
    }
}

/// Increasing pauses until a deadline.
struct Pauses {
    pause: Duration,
    deadline_nanos: u64,
}

impl Pauses {
    fn until(deadline: Deadline) -> Self {
        Self { pause: PAUSE, deadline_nanos: deadline.nanos }
    }
}

/// The outcome of [`Access::append`].
#[derive(Debug)]
pub(crate) enum Placed {
    /// The batch is at the position.
    Own {
        /// When the last request began, in nanoseconds of the monotonic clock.
        begun: u64,
    },
    /// Another batch is at the position; `None` if it could not be read.
    Other(Option<Batch>),
}

impl Access {
    /// Calls fail if the order is not available for longer than `timeout`.
    pub(crate) fn new(order: Arc<dyn Order>, clock: Arc<dyn Clock>, timeout: Duration) -> Self {
        Self { order, clock, timeout, since: Mutex::new(None) }
    }

    /// The deadline of a call that begins now.
    pub(crate) fn deadline(&self) -> Deadline {
        let timeout = u64::try_from(self.timeout.as_nanos()).unwrap_or(u64::MAX);
        let nanos = self.clock.monotonic_nanos().saturating_add(timeout);
        Deadline { nanos, is_renewed: false }
    }

    /// The deadline of a walk that begins now, which may be long: it is renewed by progress.
    pub(crate) fn walk_deadline(&self) -> Deadline {
        Deadline { is_renewed: true, ..self.deadline() }
    }

    /// The deadline after a batch was applied.
    pub(crate) fn renewed(&self, deadline: Deadline) -> Deadline {
        if deadline.is_renewed { self.walk_deadline() } else { deadline }
    }

    /// Whether a walk that has just applied a batch must stop: its deadline has passed, and is not
    /// renewed. A walk with [`Deadline::PASSED`] goes on.
    pub(crate) fn ends_walk(&self, deadline: Deadline) -> bool {
        !deadline.is_renewed && deadline != Deadline::PASSED && self.has_passed(deadline)
    }

    pub(crate) fn has_passed(&self, deadline: Deadline) -> bool {
        self.clock.monotonic_nanos() >= deadline.nanos
    }

    /// The error of a commit that other replicas have outrun until its deadline.
    pub(crate) fn outrun(&self, begun_micros: u64, times: u32) -> Error {
        let cause = format!("other replicas appended first, {times} times in a row");
        Error::Unavailable { since: of_micros(begun_micros), cause }
    }

    /// The error of a commit whose blob file was replaced by one of an earlier commit.
    pub(crate) fn replaced(&self, blob: BlobId) -> Error {
        let cause = format!(
            "the disk of this replica was set back, and one of its earlier commits has replaced \
             the blob file {} of this commit",
            blob.file_name()
        );
        Error::Unavailable { since: of_micros(self.clock.wall_micros()), cause }
    }

    /// Waits before another try; false if the deadline has passed.
    fn pause(&self, pauses: &mut Pauses) -> bool {
        let left = pauses.deadline_nanos.saturating_sub(self.clock.monotonic_nanos());
        if left == 0 {
            return false;
        }
        self.clock.sleep(pauses.pause.min(Duration::from_nanos(left)));
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
                    "the order was trimmed: it begins at position {first}, and this store needs \
                     position {position}. Close the store. A member of a cluster is restored \
                     when it is opened again as one (if `plimsoll cluster status` shows an \
                     unfinished heal, finish that first); make any other replica anew from a \
                     copy of another one"
                ),
            },
            OrderError::Corrupt(what) if position == 0 => {
                Error::corrupt(format!("the order has damaged data: {what}"))
            }
            OrderError::Corrupt(what) => Error::corrupt(format!(
                "the order returned damaged data at position {position}: {what}"
            )),
        }
    }

    /// Calls the order until it is available, or the deadline has passed.
    pub(crate) fn call<T>(
        &self,
        position: u64,
        deadline: Deadline,
        mut call: impl FnMut(&dyn Order) -> Result<T, OrderError>,
    ) -> Result<T> {
        let mut pauses = Pauses::until(deadline);
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
    pub(crate) fn read(&self, position: u64, deadline: Deadline) -> Result<Option<Batch>> {
        let mut tries = 0;
        loop {
            let bytes = self.call(position, deadline, |order| order.read(position))?;
            tries += 1;
            match bytes.map(Batch::decode).transpose() {
                Err(Refusal::Damaged(_)) if tries < READS => {}
                read => return read.map_err(|refusal| refusal.at(position)),
            }
        }
    }

    /// Appends a batch, unless another batch is at the position.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if nothing was appended; [`Error::InDoubt`].
    pub(crate) fn append(&self, position: u64, batch: &[u8], deadline: Deadline) -> Result<Placed> {
        let (mut pauses, mut in_doubt) = (Pauses::until(deadline), false);
        loop {
            let begun = self.clock.monotonic_nanos();
            let error = match self.order.append(position, batch) {
                Ok(Appended::Done) => {
                    self.is_available();
                    return Ok(Placed::Own { begun });
                }
                // The batch there may be this one, appended by an earlier try.
                Ok(Appended::Taken) => match self.order.read(position) {
                    Ok(Some(found)) if found == batch => {
                        self.is_available();
                        return Ok(Placed::Own { begun });
                    }
                    Ok(Some(found)) => {
                        let found = Batch::decode(found).ok();
                        // After a try in doubt, a damaged answer may be this batch, too.
                        if !in_doubt || found.is_some() {
                            self.is_available();
                            return Ok(Placed::Other(found));
                        }
                        let what = "the order returns a damaged batch at this position";
                        OrderError::InDoubt(what.to_owned())
                    }
                    Ok(None) => {
                        let what = "the order refuses a batch at this position, but has none there";
                        OrderError::InDoubt(what.to_owned())
                    }
                    Err(_) if !in_doubt => return Ok(Placed::Other(None)),
                    Err(error) => OrderError::InDoubt(error.to_string()),
                },
                Err(error) => error,
            };
            if !in_doubt && matches!(error, OrderError::InDoubt(_)) {
                in_doubt = true;
                // Resolving the doubt gets time of its own, even if the commit has waited for long.
                let least = u64::try_from(self.timeout.as_nanos() / 4).unwrap_or(u64::MAX);
                let until = self.clock.monotonic_nanos().saturating_add(least);
                pauses.deadline_nanos = pauses.deadline_nanos.max(until);
            }
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
