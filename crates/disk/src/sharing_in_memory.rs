//! Locks and shared words of disks in memory: every handle of such a disk counts as a separate
//! process.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use crate::mutex::lock;
use crate::sharing::{LockFile, SharedWords};

/// The identity of every file. One value suffices, because locks and words in memory have only a
/// path, and no file that could be removed.
const ONLY_FILE: u64 = 1;

/// The locks and words of one disk. Clones are the same object.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharingInMemory {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    locked: BTreeSet<PathBuf>,
    words: BTreeMap<PathBuf, Arc<Words>>,
    /// Incremented when the power is cut, which invalidates earlier locks.
    generation: u64,
}

impl SharingInMemory {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(crate) fn lock_file(&self, path: &Path) -> Box<dyn LockFile> {
        let generation = self.state().generation;
        Box::new(Lock {
            of: self.clone(),
            path: path.to_owned(),
            generation,
            held: AtomicBool::new(false),
        })
    }

    pub(crate) fn words(&self, path: &Path, count: usize) -> Arc<dyn SharedWords> {
        let make = || {
            Arc::new(Words {
                words: (0..count).map(|_| AtomicU64::new(0)).collect(),
                ..Words::default()
            })
        };
        Arc::clone(self.state().words.entry(path.to_owned()).or_insert_with(make)) as _
    }

    /// Cuts the power: no lock holds, and the words are gone.
    #[cfg_attr(
        not(any(test, feature = "testing")),
        allow(dead_code, reason = "only the simulated disk loses power")
    )]
    pub(crate) fn forget_all(&self) {
        let mut state = self.state();
        let generation = state.generation + 1;
        *state = State { generation, ..State::default() };
    }
}

#[derive(Debug)]
struct Lock {
    of: SharingInMemory,
    path: PathBuf,
    generation: u64,
    held: AtomicBool,
}

impl LockFile for Lock {
    fn try_lock(&self) -> io::Result<bool> {
        let mut state = self.of.state();
        if state.generation != self.generation {
            return Err(io::Error::other("the power was cut since this lock was opened"));
        }
        let took = state.locked.insert(self.path.clone());
        self.held.fetch_or(took, Ordering::Relaxed);
        Ok(took)
    }

    fn unlock(&self) {
        if self.held.swap(false, Ordering::Relaxed) {
            let mut state = self.of.state();
            if state.generation == self.generation {
                state.locked.remove(&self.path);
            }
        }
    }

    fn identity(&self) -> u64 {
        ONLY_FILE
    }

    fn check(&self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.unlock();
    }
}

#[derive(Debug, Default)]
struct Words {
    words: Vec<AtomicU64>,
    sleeping: Mutex<()>,
    woken: Condvar,
}

impl SharedWords for Words {
    fn words(&self) -> &[AtomicU64] {
        &self.words
    }

    fn wait(&self, at: usize, seen: u64, timeout: Duration) {
        let sleeping = lock(&self.sleeping);
        if self.words[at].load(Ordering::SeqCst) as u32 == seen as u32 {
            drop(self.woken.wait_timeout(sleeping, timeout));
        }
    }

    fn wake(&self, _: usize, _: u32) {
        // Lock and unlock, so that a thread that has checked but does not sleep yet is not missed.
        drop(lock(&self.sleeping));
        self.woken.notify_all();
    }

    fn identity(&self) -> u64 {
        ONLY_FILE
    }

    fn check(&self) -> io::Result<()> {
        Ok(())
    }
}
