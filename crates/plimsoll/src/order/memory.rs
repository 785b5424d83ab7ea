//! An order in memory, with injected faults: test support.

use std::collections::HashMap;
use std::fmt;
use std::io::{Cursor, Read};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use plimsoll_disk::random::Random;

use crate::order::{Appended, Order, OrderError};

/// How often faults happen, each as a probability of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// An append is refused although nothing is at the position.
    pub refused: f64,
    /// A call cannot reach the order.
    pub unavailable: f64,
    /// An append is in doubt and was done.
    pub in_doubt_done: f64,
    /// An append is in doubt and was not done.
    pub in_doubt_lost: f64,
    /// An append is in doubt, and is done before some later call, unless the position is taken.
    pub in_doubt_late: f64,
    /// A read returns other bytes than those that were appended.
    pub flipped: f64,
    /// A blob is returned with other bytes than those that were stored.
    pub flipped_blob: f64,
}

/// An order in memory. Its clones are the same order.
#[derive(Clone)]
pub struct MemoryOrder {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    appended: Condvar,
    /// Never notified: a wait for it takes as long as its timeout, like a slow append.
    never: Condvar,
}

struct State {
    first: u64,
    batches: Vec<Vec<u8>>,
    blobs: HashMap<[u8; 32], Vec<u8>>,
    late: Vec<(u64, Vec<u8>)>,
    faults: Faults,
    random: Random,
    is_available: bool,
    delay: Duration,
    appends: u64,
    reads: u64,
}

impl Default for MemoryOrder {
    fn default() -> Self {
        Self::new(0)
    }
}

impl MemoryOrder {
    /// An empty order without faults; `seed` decides which faults happen once there are any.
    pub fn new(seed: u64) -> Self {
        let state = State {
            first: 1,
            batches: Vec::new(),
            blobs: HashMap::new(),
            late: Vec::new(),
            faults: Faults::default(),
            random: Random::new(seed),
            is_available: true,
            delay: Duration::ZERO,
            appends: 0,
            reads: 0,
        };
        let shared =
            Shared { state: Mutex::new(state), appended: Condvar::new(), never: Condvar::new() };
        Self { shared: Arc::new(shared) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the faults of later calls.
    pub fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// Sets whether calls reach the order.
    pub fn set_available(&self, yes: bool) {
        self.state().is_available = yes;
    }

    /// Sets how long an append takes.
    pub fn set_delay(&self, delay: Duration) {
        self.state().delay = delay;
    }

    /// The position of the last batch.
    pub fn last(&self) -> u64 {
        self.state().last()
    }

    /// The first position that is not trimmed.
    pub fn first(&self) -> u64 {
        self.state().first
    }

    /// The number of appends that were done, and of reads.
    pub fn calls(&self) -> (u64, u64) {
        let state = self.state();
        (state.appends, state.reads)
    }

    /// The batch at a position, without faults.
    pub fn batch(&self, position: u64) -> Option<Vec<u8>> {
        self.state().find(position)
    }

    /// Replaces the batch at a position.
    pub fn replace(&self, position: u64, batch: Vec<u8>) {
        let mut state = self.state();
        let index = (position - state.first) as usize;
        state.batches[index] = batch;
    }

    /// Changes one byte of the batch at a position.
    pub fn flip(&self, position: u64, at: usize) {
        let mut batch = self.batch(position).expect("there is a batch to damage");
        let at = at % batch.len();
        batch[at] ^= 0x10;
        self.replace(position, batch);
    }

    /// Removes the batches after a position, as a restored backup would.
    pub fn roll_back(&self, last: u64) {
        let mut state = self.state();
        let len = (last + 1).saturating_sub(state.first) as usize;
        state.batches.truncate(len);
        state.late.clear();
    }

    /// Forgets the batches before a position.
    pub fn trim(&self, first: u64) {
        let mut state = self.state();
        let count = (first.saturating_sub(state.first) as usize).min(state.batches.len());
        state.batches.drain(..count);
        state.first += count as u64;
    }

    /// Forgets all batches, and goes on with one at a position after all earlier ones. Appends in
    /// doubt may still come.
    pub fn begin_anew(&self, first: u64, batch: Vec<u8>) {
        let mut state = self.state();
        assert!(first > state.last(), "a position is used once");
        (state.first, state.batches) = (first, vec![batch]);
    }

    /// The hashes of the blobs.
    pub fn blobs(&self) -> Vec<[u8; 32]> {
        self.state().blobs.keys().copied().collect()
    }

    /// Changes one byte of a blob.
    pub fn flip_blob(&self, hash: [u8; 32], at: usize) {
        let mut state = self.state();
        let bytes = state.blobs.get_mut(&hash).expect("there is a blob to damage");
        let at = at % bytes.len();
        bytes[at] ^= 0x10;
    }

    /// Removes a blob.
    pub fn remove_blob(&self, hash: [u8; 32]) {
        self.state().blobs.remove(&hash);
    }
}

impl State {
    fn last(&self) -> u64 {
        self.first + self.batches.len() as u64 - 1
    }

    fn find(&self, position: u64) -> Option<Vec<u8>> {
        let index = position.checked_sub(self.first)?;
        self.batches.get(index as usize).cloned()
    }

    /// Begins a call: some appends in doubt are done now.
    fn begin(&mut self) -> Result<(), OrderError> {
        let chance = if self.faults.in_doubt_late > 0.0 { 0.5 } else { 1.0 };
        for (position, batch) in std::mem::take(&mut self.late) {
            match self.random.chance(chance) {
                true => drop(self.put(position, &batch)),
                false => self.late.push((position, batch)),
            }
        }
        if !self.is_available || self.random.chance(self.faults.unavailable) {
            return Err(OrderError::Unavailable("the order in memory is not available".to_owned()));
        }
        Ok(())
    }

    fn put(&mut self, position: u64, batch: &[u8]) -> Result<Appended, OrderError> {
        if position < self.first {
            return Err(OrderError::Trimmed { first: self.first });
        }
        if position <= self.last() {
            return Ok(Appended::Taken);
        }
        if position > self.last() + 1 {
            return Err(OrderError::Corrupt(format!("there is no batch before {position}")));
        }
        self.batches.push(batch.to_vec());
        self.appends += 1;
        Ok(Appended::Done)
    }

    fn append(&mut self, position: u64, batch: &[u8]) -> Result<Appended, OrderError> {
        self.begin()?;
        let in_doubt = || OrderError::InDoubt("the answer was lost".to_owned());
        let faults = self.faults;
        if self.random.chance(faults.refused) {
            return Ok(Appended::Taken);
        }
        if self.random.chance(faults.in_doubt_lost) {
            return Err(in_doubt());
        }
        if self.random.chance(faults.in_doubt_late) {
            self.late.push((position, batch.to_vec()));
            return Err(in_doubt());
        }
        let appended = self.put(position, batch)?;
        if self.random.chance(faults.in_doubt_done) { Err(in_doubt()) } else { Ok(appended) }
    }
}

impl Order for MemoryOrder {
    fn append(&self, position: u64, batch: &[u8]) -> Result<Appended, OrderError> {
        let delay = self.state().delay;
        if !delay.is_zero() {
            let state = self.state();
            let over = self.shared.never.wait_timeout_while(state, delay, |_| true);
            drop(over.unwrap_or_else(PoisonError::into_inner));
        }
        let appended = self.state().append(position, batch);
        self.shared.appended.notify_all();
        appended
    }

    fn read(&self, position: u64) -> Result<Option<Vec<u8>>, OrderError> {
        let mut state = self.state();
        state.reads += 1;
        state.begin()?;
        if position < state.first {
            return Err(OrderError::Trimmed { first: state.first });
        }
        let mut batch = state.find(position);
        let chance = state.faults.flipped;
        if let Some(batch) = batch.as_mut().filter(|batch| !batch.is_empty())
            && state.random.chance(chance)
        {
            let at = state.random.below(batch.len() as u64) as usize;
            batch[at] ^= 1 << state.random.below(8);
        }
        Ok(batch)
    }

    fn wait(&self, position: u64, timeout: Duration) -> Result<(), OrderError> {
        let state = self.state();
        let is_missing = |state: &mut State| state.last() < position;
        let waited = self.shared.appended.wait_timeout_while(state, timeout, is_missing);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        Ok(())
    }

    fn put_blob(&self, hash: [u8; 32], bytes: &mut dyn Read) -> Result<(), OrderError> {
        self.state().begin()?;
        let mut all = Vec::new();
        bytes
            .read_to_end(&mut all)
            .map_err(|error| OrderError::Unavailable(format!("a blob cannot be read: {error}")))?;
        self.state().blobs.entry(hash).or_insert(all);
        Ok(())
    }

    fn get_blob(&self, hash: [u8; 32]) -> Result<Option<Box<dyn Read + Send>>, OrderError> {
        let mut state = self.state();
        state.begin()?;
        let mut blob = state.blobs.get(&hash).cloned();
        let chance = state.faults.flipped_blob;
        if let Some(blob) = blob.as_mut().filter(|blob| !blob.is_empty())
            && state.random.chance(chance)
        {
            let at = state.random.below(blob.len() as u64) as usize;
            blob[at] ^= 1 << state.random.below(8);
        }
        Ok(blob.map(|blob| Box::new(Cursor::new(blob)) as Box<dyn Read + Send>))
    }
}

impl fmt::Debug for MemoryOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryOrder(last {})", self.last())
    }
}
