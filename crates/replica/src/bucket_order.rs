//! An order in a bucket: batch *n* is the object `log/<n>`, which is stored only if there is none.
//!
//! The name is the position. If two members append at one position, put-if-absent lets one of them
//! succeed. No member lists objects. Invariants:
//! 1. `Done` is returned only after the bucket has confirmed that the object is stored, or after
//!    this append's own object was read back.
//! 2. An append is refused if the object before it is missing, or if there is one after it: then
//!    the bucket was rolled back or has lost objects. Where this costs a request, it is checked at
//!    the first append, after failures, on a new connection to a database, and once a minute.
//! 3. A batch in a folder is returned only once its name is durable. A member must not be ahead of
//!    the bucket after a power cut.
//! 4. The newest base replaces the batches before a position. No batch before it is returned, and
//!    no append before it succeeds, whether the name is taken or free (`first.rs`).

use std::io::{self, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use plimsoll::order::{Appended, Order, OrderError};
use plimsoll_archive::{Bucket, Put};
use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::random::entropy;

use crate::bases::line_of;
use crate::batch_object::{Body, FRAME_BYTES, SUM_BYTES, decode, encode};
use crate::blobs::{self, PUT_BACK};
use crate::first::FirstPosition;
use crate::pace::Pace;
use crate::positions::find_end;
use crate::retry::{Attempts, is_refusal, remedy};

/// The folder of the batches.
pub(crate) const LOG: &str = "log";

/// The object that says about where the log ends.
const HINT: &str = "hint";

/// The hint is rewritten after this many batches.
const HINT_EVERY: u64 = 64;

/// A larger batch is stored as a blob: buckets store only small objects conditionally.
const INLINE_BYTES_MAX: usize = 4 << 20;

/// The largest object of a batch.
pub(crate) const OBJECT_BYTES_MAX: u64 = (INLINE_BYTES_MAX + FRAME_BYTES) as u64;

/// The largest batch. A store's batches have at most 4 MiB.
const BATCH_BYTES_MAX: u64 = 16 << 20;

/// The neighbours of a position are checked again after this time.
const VET_EVERY: Duration = Duration::from_secs(60);

/// How long an append is repeated whose answers are lost: it is not, because the store repeats it
/// until `Options::order_timeout`.
const PATIENCE: Duration = Duration::ZERO;

/// How long a read is repeated that fails.
const READ_PATIENCE: Duration = Duration::from_secs(1);

/// Intervals of a member at rest: in a cloud, where each question costs, and in a folder.
const REST: [Duration; 2] = [Duration::from_secs(10), Duration::from_millis(50)];

/// Leftovers of killed writers are removed after this time.
pub(crate) const SWEEP_AGE: Duration = Duration::from_secs(3600);

/// An order in a bucket, for one member.
///
/// # Examples
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// use plimsoll::order::{Appended, Order};
/// use plimsoll_archive::{Folders, bucket_at};
/// use plimsoll_replica::BucketOrder;
///
/// let url = dir.path().to_str().unwrap();
/// let order = BucketOrder::new(bucket_at(url, Folders::Create)?, url)?;
/// assert_eq!(order.append(1, b"first")?, Appended::Done);
/// assert_eq!(order.append(1, b"another")?, Appended::Taken);
/// assert_eq!(order.read(1)?.unwrap(), b"first");
/// assert_eq!(order.read(2)?, None);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct BucketOrder {
    bucket: Arc<dyn Bucket>,
    /// The bucket's name in messages.
    place: String,
    clock: Arc<dyn Clock>,
    patience: Duration,
    /// The unique number of the next append: random, plus a counter.
    nonce: u128,
    appends: AtomicU64,
    /// The newest position that is known to have a batch.
    seen: AtomicU64,
    /// The position that this member wrote into the hint last.
    hinted: AtomicU64,
    /// When the neighbours of the end were checked last; 0: not yet.
    vetted: AtomicU64,
    /// The bucket's epoch at that time.
    epoch: AtomicU64,
    first: FirstPosition,
    pace: Pace,
    /// The position and object of another member that an append has met: it is read next.
    other: Mutex<Option<(u64, Vec<u8>)>>,
    /// Held while a blob is sent to a cloud.
    blob_in_transit: Mutex<()>,
    /// Whether the bucket is a folder.
    is_folder: bool,
}

impl BucketOrder {
    /// The order in a bucket. Messages name it `place`. Makes no request to a cloud.
    ///
    /// # Errors
    /// The system has no random numbers, or the folder cannot be found.
    pub fn new(bucket: Arc<dyn Bucket>, place: &str) -> io::Result<Self> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let is_folder = bucket.folder()?.is_some();
        let rest = REST[usize::from(is_folder)];
        let pace = Pace::new(rest, clock.monotonic_nanos());
        Ok(Self {
            bucket,
            place: place.to_owned(),
            clock,
            patience: PATIENCE,
            nonce: entropy()?,
            appends: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            hinted: AtomicU64::new(0),
            vetted: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            first: FirstPosition::default(),
            pace,
            other: Mutex::new(None),
            blob_in_transit: Mutex::new(()),
            is_folder,
        })
    }

    /// Repeats a request whose answers are lost for this long before it fails, an append with
    /// [`OrderError::InDoubt`]. By default requests are not repeated: a store that has this order
    /// repeats them until [`Options::order_timeout`](plimsoll::Options::order_timeout).
    #[must_use]
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// The position of the newest batch; 0 if there is none. Needs a few requests, whose number
    /// grows with the logarithm of the distance between the hint and the end. A hint that is wrong
    /// or missing changes only their number.
    ///
    /// # Errors
    /// The bucket.
    pub fn end(&self) -> Result<u64, OrderError> {
        let hint = self.hint().unwrap_or(0);
        let known = self.seen.load(Ordering::Acquire);
        let first = self.first()?;
        // The first batch that a base leaves is always there.
        let exists = |position| Ok(position < first || self.exists(position)?);
        let end = find_end(hint.max(known).max(first - 1), exists)?;
        self.saw(end);
        Ok(end)
    }

    /// The first position that the newest base leaves; 1 if there is no base. Needs one request if
    /// there is no newer base than at the last call.
    ///
    /// # Errors
    /// The bucket; [`OrderError::Corrupt`] if the object of the newest base is damaged.
    pub fn first(&self) -> Result<u64, OrderError> {
        self.first.ask(&*self.bucket).map_err(|failure| self.failed(failure))
    }

    /// Whether the line of the log that a position is in has ended, as of the last answer.
    pub(crate) fn has_ended(&self, position: u64) -> bool {
        line_of(self.first.known()) > line_of(position)
    }

    /// Fails if the batch at a position, which a request has just read or stored, is below the
    /// first position.
    fn check_kept(&self, position: u64) -> Result<(), OrderError> {
        let first = self.first()?;
        if position < first { Err(OrderError::Trimmed { first }) } else { Ok(()) }
    }

    /// Fails if the newest known base is lost. After a heal, the number of a newer one may then be
    /// below that of the known one, so that [`BucketOrder::first`] does not find it.
    fn check_base(&self) -> Result<(), OrderError> {
        self.first.check(&*self.bucket).map_err(|failure| self.failed(failure))
    }

    fn failed(&self, failure: blobs::Failure) -> OrderError {
        match failure {
            blobs::Failure::Io(name, error) => self.unavailable(&name, &error),
            blobs::Failure::Damaged(name, what) => self.corrupt(&name, &what),
            blobs::Failure::Newer(name, format) => {
                let what =
                    format!("it has format {format}: use the version of Plimsoll that wrote it");
                self.corrupt(&name, &what)
            }
        }
    }

    fn hint(&self) -> Option<u64> {
        let mut text = String::new();
        self.bucket.get(HINT).ok()??.reader.take(32).read_to_string(&mut text).ok()?;
        text.trim().parse().ok()
    }

    fn exists(&self, position: u64) -> Result<bool, OrderError> {
        let name = name_of(position);
        self.retry(&name, || self.bucket.exists(&name))
    }

    /// Repeats a request that only reads.
    fn retry<T>(
        &self,
        name: &str,
        mut request: impl FnMut() -> io::Result<T>,
    ) -> Result<T, OrderError> {
        let mut attempts = Attempts::new(&*self.clock, self.patience.min(READ_PATIENCE));
        loop {
            match request() {
                Ok(answer) => return Ok(answer),
                Err(error) if is_refusal(&error) || !attempts.again() => {
                    return Err(self.unavailable(name, &error));
                }
                Err(_) => {}
            }
        }
    }

    fn unavailable(&self, name: &str, error: &io::Error) -> OrderError {
        OrderError::Unavailable(format!("{}: {name}: {error}; {}", self.place, remedy(error)))
    }

    fn corrupt(&self, name: &str, what: &str) -> OrderError {
        OrderError::Corrupt(format!("{}: {name}: {what}", self.place))
    }

    /// As [`BucketOrder::corrupt`], for an object that is changed or missing, with the remedy.
    fn damaged(&self, name: &str, what: &str) -> OrderError {
        self.corrupt(name, &format!("{what}; {PUT_BACK}"))
    }

    /// Records that a position has a batch.
    fn saw(&self, position: u64) {
        self.seen.fetch_max(position, Ordering::AcqRel);
        self.pace.note_batch(self.clock.monotonic_nanos());
    }

    /// Whether there is an object in a place that contradicts that `position` is the end of the
    /// log: one after it, or none before it. Checked at the first call, and then from time to time;
    /// returns whether it was.
    fn vet(&self, position: u64) -> Result<bool, OrderError> {
        let now = self.clock.monotonic_nanos().max(1);
        let vetted = self.vetted.load(Ordering::Acquire);
        let epoch = self.bucket.epoch();
        let is_recent = vetted > 0
            && now.saturating_sub(vetted) < VET_EVERY.as_nanos() as u64
            && epoch == self.epoch.load(Ordering::Acquire);
        if is_recent && !self.is_folder {
            return Ok(false);
        }
        // In a folder, this costs little enough to be done for each append.
        if position > 1 && !self.exists(position - 1)? {
            if self.first()? != position {
                return Err(self.lost(position - 1, position));
            }
            // The first batch that a base leaves is always there.
            if !self.exists(position)? {
                return Err(self.lost(position, position));
            }
        }
        if is_recent {
            return Ok(false);
        }
        // So that nothing is stored if the newest base is damaged, or was set back.
        self.check_base()?;
        self.check_kept(position)?;
        let hint = self.hint().unwrap_or(0);
        if hint <= position {
            self.hinted.fetch_max(hint, Ordering::Relaxed);
        }
        for later in [position + 1, hint] {
            // Another member may have appended both meanwhile.
            if later > position && self.exists(later)? && !self.exists(position)? {
                return Err(self.lost(position, later));
            }
        }
        self.epoch.store(epoch, Ordering::Release);
        self.vetted.store(now, Ordering::Release);
        Ok(true)
    }

    /// Checks the neighbours of a position that has a batch, if the bucket may have become an older
    /// one since they were checked.
    fn vet_epoch(&self, position: u64) -> Result<(), OrderError> {
        if self.bucket.epoch() == self.epoch.load(Ordering::Acquire) {
            return Ok(());
        }
        self.vet(position).map(drop)
    }

    /// The error if a batch is missing, although there was a later one: it was lost, unless a base
    /// has replaced it.
    fn lost(&self, position: u64, later: u64) -> OrderError {
        match self.first() {
            Ok(first) if position < first => return OrderError::Trimmed { first },
            Ok(_) => {}
            Err(error) => return error,
        }
        if self.is_folder && matches!(self.bucket.exists(LOG), Ok(false)) {
            return self.unavailable(LOG, &io::ErrorKind::NotFound.into());
        }
        let what = format!(
            "it is missing, although the log has reached position {later}: the bucket was set back \
             or has lost objects; {PUT_BACK}"
        );
        self.corrupt(&name_of(position), &what)
    }

    /// The object of an append.
    fn object(&self, position: u64, batch: &[u8]) -> Result<Vec<u8>, OrderError> {
        let count = self.appends.fetch_add(1, Ordering::Relaxed);
        let nonce = self.nonce.wrapping_add(u128::from(count));
        if batch.len() <= INLINE_BYTES_MAX {
            return Ok(encode(nonce, position, Body::Inline(batch)));
        }
        if batch.len() as u64 > BATCH_BYTES_MAX {
            let what = format!("a batch of {} bytes is too long", batch.len());
            return Err(self.corrupt(&name_of(position), &what));
        }
        let hash = *blake3::hash(batch).as_bytes();
        blobs::put(&*self.bucket, &hash, &mut &batch[..])
            .map_err(|failure| self.failed(failure))?;
        Ok(encode(nonce, position, Body::Blob(hash, batch.len() as u64)))
    }

    /// The outcome once the object of an append is stored.
    fn appended(&self, position: u64) -> Result<Appended, OrderError> {
        let checked = self.vet_epoch(position).and_then(|()| self.check_base());
        match checked.and_then(|()| self.check_kept(position)) {
            Ok(()) => {}
            Err(OrderError::Trimmed { first }) => {
                // The name was free again; or the batch was in the log, and is in the base. A heal
                // reads the old line once more after it has ended it, so that one stays.
                if line_of(first) == line_of(position) {
                    let _ = self.bucket.delete(&name_of(position));
                }
                return Err(OrderError::InDoubt(format!(
                    "{}: {}: the log was trimmed or healed meanwhile; open this member again, and \
                     check whether the commit was made",
                    self.place,
                    name_of(position)
                )));
            }
            Err(error) => {
                return Err(OrderError::InDoubt(format!(
                    "{} is stored, but it cannot be confirmed that the log is whole and was not \
                     trimmed meanwhile: {error}",
                    name_of(position)
                )));
            }
        }
        self.saw(position);
        // In a cloud, no commit waits for this: `wait` does it.
        if self.is_folder {
            self.renew_hint();
        }
        Ok(Appended::Done)
    }

    /// Rewrites the hint from time to time.
    fn renew_hint(&self) {
        let (seen, hinted) =
            (self.seen.load(Ordering::Acquire), self.hinted.load(Ordering::Relaxed));
        if seen >= hinted + HINT_EVERY || (hinted == 0 && seen > 0) {
            self.hinted.store(seen, Ordering::Relaxed);
            // A hint that is missing costs only time.
            let _ = self.bucket.replace(HINT, format!("{seen}\n").as_bytes());
        }
    }

    /// The object at a name, at most `most` bytes of it.
    fn fetch(&self, name: &str, most: u64) -> io::Result<Option<Vec<u8>>> {
        let Some(found) = self.bucket.get(name)? else { return Ok(None) };
        let mut bytes = Vec::with_capacity(found.bytes.min(most + 1) as usize);
        found.reader.take(most + 1).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    /// The batch in an object.
    fn batch(&self, position: u64, mut object: Vec<u8>) -> Result<Vec<u8>, OrderError> {
        let name = name_of(position);
        match decode(&object, position).map_err(|what| self.corrupt(&name, &what))? {
            Body::Inline(batch) => {
                // Without a copy, which could be as long again.
                let len = batch.len();
                object.drain(..object.len() - SUM_BYTES - len);
                object.truncate(len);
                Ok(object)
            }
            Body::Blob(_, length) if length > BATCH_BYTES_MAX => {
                Err(self.damaged(&name, "its batch has an impossible length"))
            }
            Body::Blob(hash, length) => {
                let blob = blobs::name_of(&hash);
                let fetch = || self.fetch(&blob, length);
                match self.retry(&blob, fetch)? {
                    Some(batch) if *blake3::hash(&batch).as_bytes() == hash => Ok(batch),
                    Some(_) => Err(self.damaged(&blob, blobs::DAMAGED)),
                    None => {
                        Err(self.damaged(&blob, &format!("it is missing, and {name} needs it")))
                    }
                }
            }
        }
    }

    /// The batch at a position, whether or not a base has replaced it; `None` if there is none.
    ///
    /// # Errors
    /// The bucket; [`OrderError::Corrupt`].
    pub(crate) fn read_any(&self, position: u64) -> Result<Option<Vec<u8>>, OrderError> {
        let name = name_of(position);
        match self.retry(&name, || self.fetch(&name, OBJECT_BYTES_MAX))? {
            Some(object) => self.batch(position, object).map(Some),
            None => Ok(None),
        }
    }

    /// Makes the newest batch durable that another member has appended to a folder. If there is a
    /// next one, the member that appended it has done that.
    fn settle(&self, position: u64) -> Result<(), OrderError> {
        if self.is_folder && !self.exists(position + 1)? {
            self.bucket.sync(LOG).map_err(|error| self.unavailable(LOG, &error))?;
        }
        Ok(())
    }
}

impl Order for BucketOrder {
    fn append(&self, position: u64, batch: &[u8]) -> Result<Appended, OrderError> {
        self.vet(position)?;
        // In a cloud, the request after the append suffices.
        if self.is_folder {
            self.check_kept(position)?;
        }
        let (name, object) = (name_of(position), self.object(position, batch)?);
        let mut attempts = Attempts::new(&*self.clock, self.patience);
        // Whether a request may still store the object, or has stored it.
        let mut in_doubt = false;
        loop {
            let error = match self.bucket.put_new(&name, &mut &object[..]) {
                Ok(Put::New) => return self.appended(position),
                Ok(Put::Exists) => match self.fetch(&name, OBJECT_BYTES_MAX) {
                    // An earlier attempt stored it, and this one has made it durable.
                    Ok(Some(found)) if found == object => return self.appended(position),
                    Ok(Some(found)) => {
                        self.saw(position);
                        *lock(&self.other) = Some((position, found));
                        return Ok(Appended::Taken);
                    }
                    Ok(None) => {
                        in_doubt = true;
                        io::Error::other("it exists, and cannot be found")
                    }
                    Err(error) => {
                        in_doubt = true;
                        error
                    }
                },
                Err(error) if is_refusal(&error) && !in_doubt => {
                    // A folder may refuse the object after it has got its name.
                    match self.fetch(&name, OBJECT_BYTES_MAX) {
                        Ok(Some(found)) if found != object => return Ok(Appended::Taken),
                        Ok(Some(_)) => in_doubt = true,
                        Ok(None) => return Err(self.unavailable(&name, &error)),
                        // A client of a cloud may have repeated the request by itself, and only the
                        // repetition was refused.
                        Err(_)
                            if self.is_folder && matches!(self.bucket.exists(&name), Ok(false)) =>
                        {
                            return Err(self.unavailable(&name, &error));
                        }
                        Err(_) => in_doubt = true,
                    }
                    error
                }
                Err(error) => {
                    in_doubt = true;
                    error
                }
            };
            // The neighbours are checked again once the bucket answers.
            self.vetted.store(0, Ordering::Release);
            if !attempts.again() {
                return Err(match in_doubt {
                    true => OrderError::InDoubt(format!(
                        "{}: {name}: the bucket did not answer: {error}; {}",
                        self.place,
                        remedy(&error)
                    )),
                    false => self.unavailable(&name, &error),
                });
            }
        }
    }

    fn read(&self, position: u64) -> Result<Option<Vec<u8>>, OrderError> {
        let name = name_of(position);
        let fetch = || self.retry(&name, || self.fetch(&name, OBJECT_BYTES_MAX));
        let other = lock(&self.other).take_if(|(at, _)| *at == position);
        let mut found = match other {
            Some((_, object)) => Some(object),
            None => fetch()?,
        };
        if found.is_none() {
            let seen = self.seen.load(Ordering::Acquire);
            if seen < position && !self.vet(position)? {
                return self.check_kept(position).map(|()| None);
            }
            // Another member may have appended it meanwhile.
            found = fetch()?;
            match found {
                None if seen >= position => return Err(self.lost(position, seen)),
                None => return self.check_kept(position).map(|()| None),
                Some(_) => {}
            }
        }
        let batch = match self.batch(position, found.unwrap_or_default()) {
            // The transfer may have been at fault.
            Err(OrderError::Corrupt(_)) => match fetch()? {
                Some(object) => self.batch(position, object)?,
                None => return Err(self.lost(position, position)),
            },
            batch => batch?,
        };
        self.settle(position)?;
        self.vet_epoch(position)?;
        self.check_kept(position)?;
        self.saw(position);
        Ok(Some(batch))
    }

    fn wait(&self, position: u64, timeout: Duration) -> Result<(), OrderError> {
        if !self.is_folder {
            self.renew_hint();
        }
        let name = name_of(position);
        if let Some(waited) = self.bucket.wait_for(&name, timeout) {
            return waited.map_err(|error| self.unavailable(&name, &error));
        }
        let timeout = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let until = self.clock.monotonic_nanos().saturating_add(timeout);
        let mut failure = None;
        loop {
            let now = self.clock.monotonic_nanos();
            let left = Duration::from_nanos(until.saturating_sub(now));
            let pause = self.pace.pause(now);
            if pause > left {
                self.clock.sleep(left);
                return failure.map_or(Ok(()), |error| Err(self.unavailable(&name, &error)));
            }
            self.clock.sleep(pause);
            self.pace.note_question(self.clock.monotonic_nanos());
            match self.bucket.exists(&name) {
                Ok(true) => return Ok(()),
                Ok(false) => failure = None,
                Err(error) => failure = Some(error),
            }
            if left.is_zero() {
                return failure.map_or(Ok(()), |error| Err(self.unavailable(&name, &error)));
            }
        }
    }

    fn put_blob(&self, hash: [u8; 32], bytes: &mut dyn Read) -> Result<(), OrderError> {
        // In a cloud, each has a part of the blob in memory.
        let _one = (!self.is_folder).then(|| lock(&self.blob_in_transit));
        blobs::put(&*self.bucket, &hash, bytes).map_err(|failure| self.failed(failure))
    }

    fn get_blob(&self, hash: [u8; 32]) -> Result<Option<Box<dyn Read + Send>>, OrderError> {
        let name = blobs::name_of(&hash);
        let place = format!("{}: {name}", self.place);
        let found = self.retry(&name, || self.bucket.get(&name))?;
        Ok(found.map(|object| blobs::verified(object.reader, hash, place)))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The object of a position.
pub(crate) fn name_of(position: u64) -> String {
    format!("{LOG}/{position:016x}")
}
