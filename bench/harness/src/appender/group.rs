//! The simplest group commit: a thread that finds no leader writes and syncs the queue, the others
//! sleep until it is done.
//!
//! It shows the cost of waking threads on this machine in addition to that of the disk.

use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard};

use anyhow::Result;

use super::Appender;
use super::bare::ZeroedFile;
use crate::payload;

/// A zeroed file with a queue in front.
pub(crate) struct Group {
    payload: Vec<u8>,
    state: Mutex<State>,
    synced: Condvar,
}

struct State {
    file: ZeroedFile,
    gathered: Vec<u8>,
    /// Bytes queued and bytes durable since the start.
    submitted: u64,
    durable: u64,
    led: bool,
}

impl Group {
    pub(crate) fn make(path: &Path, append_bytes: usize) -> Result<Self> {
        let mut payload = vec![0; append_bytes];
        payload::fill(1, &mut payload);
        let file = ZeroedFile::make(path)?;
        let state = State { file, gathered: Vec::new(), submitted: 0, durable: 0, led: false };
        Ok(Self { payload, state: Mutex::new(state), synced: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics under this lock")
    }

    /// Writes and syncs the queue.
    fn lead(&self, mut state: MutexGuard<'_, State>) -> Result<()> {
        state.led = true;
        let (bytes, end) = (std::mem::take(&mut state.gathered), state.submitted);
        let offset = state.file.take(bytes.len() as u64);
        let file = state.file.file.try_clone()?;
        drop(state);
        let done = file.write_all_at(&bytes, offset).and_then(|()| file.sync_data());
        let mut state = self.lock();
        state.led = false;
        if done.is_ok() {
            state.durable = end;
        }
        drop(state);
        self.synced.notify_all();
        Ok(done?)
    }
}

impl Appender for Group {
    fn append(&self, _: u64) -> Result<()> {
        let mut state = self.lock();
        state.gathered.extend_from_slice(&self.payload);
        state.submitted += self.payload.len() as u64;
        let mine = state.submitted;
        while state.durable < mine {
            if state.led {
                state = self.synced.wait(state).expect("nobody panics under this lock");
            } else {
                self.lead(state)?;
                state = self.lock();
            }
        }
        Ok(())
    }
}
