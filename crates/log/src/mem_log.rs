//! The log in memory: for users' tests and for simulations. It keeps the laws of [`crate::log`] and fails on demand.
//!
//! Handles are clones of one log. [`MemLog::crash`] does to it what a power cut does to a log in files: entries that
//! were not durable are lost, and the log is as if opened anew.

mod blob;
mod faults;
mod records;
mod scan;

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use plimsoll_disk::clock::Clock;
use plimsoll_memory::budget::{Budget, Kind};
use plimsoll_memory::pool::Pool;

use crate::blob::{Blob, BlobId, BlobRef, BlobWriter};
use crate::draft::{Draft, MAX_BLOBS, MAX_BODY_BYTES, Ticket};
use crate::entry::{Entry, EntryMeta};
use crate::error::LogError;
use crate::format::genesis_chain;
use crate::format::record::MAX_ENTRIES;
use crate::glsn::{Bounds, Glsn, Position, StreamId};
use crate::log::{Durability, Log, Scan};
use crate::mem_log::blob::{MemBlobWriter, MemBlobs};
use crate::mem_log::faults::Faults;
use crate::mem_log::records::{MemRecord, Records};
use crate::mem_log::scan::MemScan;

/// Options of a log in memory.
#[derive(Clone, Debug)]
pub struct MemLogOptions {
    /// The source of timestamps.
    pub clock: Arc<dyn Clock>,
    /// The pool that caches blob files.
    pub pool: Arc<Pool>,
    /// The budget of its bytes; `None`: they are not counted.
    pub budget: Option<Budget>,
    /// When an append returns.
    pub durability: Durability,
    /// The log's id.
    pub id: u128,
}

/// A log in memory. Clones are the same log.
#[derive(Clone)]
pub struct MemLog {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    options: MemLogOptions,
    state: Mutex<State>,
    news: Condvar,
}

pub(crate) struct State {
    records: Records,
    durable: Position,
    blobs: MemBlobs,
    faults: Faults,
    poison: Option<String>,
    last_timestamp: u64,
}

impl MemLog {
    /// An empty log.
    ///
    /// # Errors
    /// The budget has no room at all.
    pub fn new(options: MemLogOptions) -> Result<Self, LogError> {
        let chain = genesis_chain(options.id);
        let state = State {
            records: Records::new(chain, options.budget.as_ref())?,
            durable: Position { glsn: Glsn::NONE, chain },
            blobs: MemBlobs::default(),
            faults: Faults::default(),
            poison: None,
            last_timestamp: 0,
        };
        Ok(Self { inner: Arc::new(Inner { options, state: Mutex::new(state), news: Condvar::new() }) })
    }

    /// Simulates a power cut and reopening: of the records that were not durable only the first `kept` are left. Poison
    /// and unfinished blob files are gone.
    pub fn crash(&self, kept: usize) {
        let mut state = self.inner.state();
        let durable = state.durable.glsn;
        state.records.cut(durable, kept);
        state.durable = state.records.end();
        state.last_timestamp = state.records.last_timestamp();
        state.poison = None;
        state.faults = Faults::default();
        state.blobs.crash();
        drop(state);
        self.inner.news.notify_all();
    }

    /// Makes everything durable.
    ///
    /// # Errors
    /// `Poisoned`.
    pub fn sync(&self) -> Result<(), LogError> {
        let last = Glsn(self.bounds().next.0 - 1);
        self.wait_durable(last)
    }

    /// Lets the next sync fail, which poisons the log.
    pub fn fail_next_sync(&self) {
        self.inner.state().faults.fail_next_sync = true;
    }

    /// Lets `n` more submits succeed and refuses the next one for lack of space, once; the log stays usable.
    pub fn fail_submit_after(&self, n: u64) {
        self.inner.state().faults.fail_submit_after = Some(n);
    }

    /// Poisons the log.
    pub fn poison(&self, cause: &str) {
        self.inner.state().poison.get_or_insert_with(|| cause.to_owned());
        self.inner.news.notify_all();
    }

    /// Flips the bits in `mask` of one payload byte. `false` if there is no such byte.
    pub fn corrupt(&self, glsn: Glsn, byte: usize, mask: u8) -> bool {
        self.inner.state().records.corrupt(glsn, byte, mask)
    }
}

impl Inner {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code under this lock panics")
    }

    pub(crate) fn readable(&self, state: &State) -> Glsn {
        match self.options.durability {
            Durability::Sync => state.durable.glsn,
            Durability::Buffered => Glsn(state.records.next().0 - 1),
        }
    }
}

impl State {
    fn check(&self) -> Result<(), LogError> {
        self.poison.as_ref().map_or(Ok(()), |cause| Err(LogError::Poisoned { cause: cause.clone() }))
    }
}

fn check_draft(draft: &Draft<'_>) -> Result<(), LogError> {
    if draft.entries.is_empty() || draft.entries.len() > MAX_ENTRIES {
        let what = format!("a record has 1 to {MAX_ENTRIES} entries, this one {}", draft.entries.len());
        return Err(LogError::InvalidDraft { what });
    }
    if draft.blobs.len() > MAX_BLOBS {
        let what = format!("a record has at most {MAX_BLOBS} blob files, this one {}", draft.blobs.len());
        return Err(LogError::InvalidDraft { what });
    }
    let bytes = draft.entries.iter().map(|entry| entry.payload_bytes() as u64).sum();
    if bytes > MAX_BODY_BYTES as u64 {
        return Err(LogError::TooLarge { bytes, limit_bytes: MAX_BODY_BYTES as u64 });
    }
    Ok(())
}

impl Log for MemLog {
    fn id(&self) -> u128 {
        self.inner.options.id
    }

    fn bounds(&self) -> Bounds {
        let state = self.inner.state();
        Bounds { first: state.records.first(), next: state.records.next(), durable: state.durable.glsn }
    }

    fn position(&self) -> Position {
        self.inner.state().durable
    }

    fn chain_at(&self, glsn: Glsn) -> Result<Option<u64>, LogError> {
        Ok(self.inner.state().records.chain_at(glsn))
    }

    fn submit(&self, draft: &Draft<'_>, expected: Option<Glsn>) -> Result<Ticket, LogError> {
        check_draft(draft)?;
        let mut state = self.inner.state();
        state.check()?;
        let next = state.records.next();
        if let Some(expected) = expected.filter(|expected| *expected != next) {
            return Err(LogError::Conflict { expected, next });
        }
        state.faults.submit()?;
        let timestamp_micros = self.inner.options.clock.wall_micros().max(state.last_timestamp + 1);
        let record = MemRecord::new(draft, next, timestamp_micros);
        state.records.push(record)?;
        state.last_timestamp = timestamp_micros;
        state.blobs.named(draft.blobs);
        let last = Glsn(state.records.next().0 - 1);
        drop(state);
        if self.inner.options.durability == Durability::Buffered {
            self.inner.news.notify_all();
        }
        Ok(Ticket { first: next, last, timestamp_micros })
    }

    fn wait_durable(&self, glsn: Glsn) -> Result<(), LogError> {
        let mut state = self.inner.state();
        let next = state.records.next();
        if glsn >= next {
            return Err(LogError::NotYet { asked: glsn, next });
        }
        if glsn <= state.durable.glsn {
            return Ok(());
        }
        state.check()?;
        if let Err(cause) = state.faults.sync() {
            state.poison = Some(cause);
            self.inner.news.notify_all();
            return state.check();
        }
        state.durable = state.records.end();
        self.inner.news.notify_all();
        Ok(())
    }

    fn wait_beyond(&self, glsn: Glsn, patience: Duration) -> Result<Glsn, LogError> {
        let inner = &self.inner;
        let state = inner.state();
        let (state, _) = inner
            .news
            .wait_timeout_while(state, patience, |state| inner.readable(state) <= glsn && state.poison.is_none())
            .expect("no code under this lock panics");
        let readable = inner.readable(&state);
        if readable <= glsn {
            state.check()?;
        }
        Ok(readable)
    }

    fn readable(&self) -> Glsn {
        self.inner.readable(&self.inner.state())
    }

    fn read(&self, glsn: Glsn) -> Result<Entry, LogError> {
        let (record, index) = self.inner.state().records.find(glsn)?;
        let range = record.checked_payload(index)?;
        Ok(Entry::shared(record.meta(index), Arc::clone(&record.bytes), range))
    }

    fn meta(&self, glsn: Glsn) -> Result<EntryMeta, LogError> {
        let (record, index) = self.inner.state().records.find(glsn)?;
        Ok(record.meta(index))
    }

    fn read_range(&self, glsn: Glsn, offset: u64, into: &mut [u8]) -> Result<(), LogError> {
        let (record, index) = self.inner.state().records.find(glsn)?;
        let payload = &record.bytes[record.checked_payload(index)?];
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let part = from.checked_add(into.len()).and_then(|end| payload.get(from..end));
        let part = part.ok_or_else(|| record.corrupt(index, "the payload ends before what was asked for"))?;
        into.copy_from_slice(part);
        Ok(())
    }

    fn blobs_of(&self, glsn: Glsn) -> Result<Vec<BlobRef>, LogError> {
        let (record, _) = self.inner.state().records.find(glsn)?;
        Ok(record.blobs.clone())
    }

    fn scan(&self, range: Range<Glsn>, stream: Option<StreamId>) -> Result<Box<dyn Scan + '_>, LogError> {
        let first = self.inner.state().records.first();
        if range.start < first && range.start < range.end {
            return Err(LogError::Trimmed { asked: range.start, first });
        }
        Ok(Box::new(MemScan::new(&self.inner, range, stream)))
    }

    fn glsn_at(&self, micros: u64) -> Result<Glsn, LogError> {
        let state = self.inner.state();
        let readable = self.inner.readable(&state);
        state.records.last_not_younger(micros).map(|glsn| glsn.min(readable))
    }

    fn trim(&self, until: Glsn, keep: &dyn Fn(BlobId) -> bool) -> Result<Glsn, LogError> {
        let mut state = self.inner.state();
        let until = until.min(state.durable.glsn.next());
        let blobs = state.records.trim(until);
        blobs.into_iter().filter(|blob| !keep(*blob)).for_each(|blob| drop(state.blobs.remove(blob)));
        Ok(state.records.first())
    }

    fn sweep_blobs(&self, keep: &dyn Fn(BlobId) -> bool) -> Result<u64, LogError> {
        let mut state = self.inner.state();
        let named = state.records.named_blobs();
        let swept = state.blobs.unnamed(&named, keep);
        swept.iter().for_each(|blob| drop(state.blobs.remove(*blob)));
        Ok(swept.len() as u64)
    }

    fn create_blob(&self) -> Result<Box<dyn BlobWriter>, LogError> {
        let mut state = self.inner.state();
        state.check()?;
        let id = state.blobs.begin();
        drop(state);
        Ok(Box::new(MemBlobWriter::new(Arc::clone(&self.inner), id)?))
    }

    fn discard_blob(&self, id: BlobId) -> Result<(), LogError> {
        drop(self.inner.state().blobs.remove(id));
        Ok(())
    }

    fn open_blob(&self, id: BlobId) -> Result<Blob, LogError> {
        self.inner.state().blobs.open(id, self.inner.options.id, &self.inner.options.pool)
    }
}

impl fmt::Debug for MemLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemLog").field("bounds", &self.bounds()).finish()
    }
}

/// The account of a log in memory.
const ACCOUNT: Kind = Kind::LogBuffer;
