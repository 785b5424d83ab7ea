//! The memory workers of a store: the evictor, in a thread or step by step, and the read-ahead
//! threads.

use std::sync::Arc;

use plimsoll_memory::evictor::{Evictor, EvictorThread, Progress};
use plimsoll_memory::pool::{Pool, ReaderThreads};

use crate::types::error::Result;
use crate::types::events;
use crate::types::options::Options;

/// Concurrent read-ahead requests of scans.
const READERS: usize = 4;

/// The memory workers. Their threads end when this is dropped.
#[derive(Debug)]
pub(crate) struct MemoryWorkers {
    evictor: Option<EvictorRunner>,
    _readers: Option<ReaderThreads>,
}

#[derive(Debug)]
enum EvictorRunner {
    Thread {
        _thread: EvictorThread,
    },
    /// The store's owner calls [`MemoryWorkers::step`] instead of a thread.
    Steps(Evictor),
}

impl MemoryWorkers {
    /// Starts the threads that the options request. Without background threads each scan reads
    /// ahead on its own thread.
    pub(crate) fn start(pool: &Arc<Pool>, options: &Options) -> Result<Self> {
        let run = |evictor| match options.background {
            true => EvictorThread::start(evictor)
                .map(|thread| EvictorRunner::Thread { _thread: thread }),
            false => Ok(EvictorRunner::Steps(evictor)),
        };
        let evictor = || {
            let evictor = Evictor::new(pool, Arc::clone(&options.clock));
            evictor.on_batch(|batch| events::evicted(batch.pages, batch.bytes))
        };
        let evictor = options.evictor.then(|| run(evictor())).transpose()?;
        let readers = options.background.then(|| ReaderThreads::start(pool, READERS));
        Ok(Self { evictor, _readers: readers })
    }

    /// Stops all workers: from then on each thread evicts for itself and reads pages on demand,
    /// without read-ahead.
    pub(crate) fn stop(&mut self) {
        *self = Self { evictor: None, _readers: None };
    }

    /// Leaks the workers, because a forked child has no threads to stop.
    pub(crate) fn leak(&mut self) {
        std::mem::forget(std::mem::replace(self, Self { evictor: None, _readers: None }));
    }

    /// Frees some memory, unless a thread does so.
    pub(crate) fn step(&mut self) -> Progress {
        match &mut self.evictor {
            Some(EvictorRunner::Steps(evictor)) => evictor.step(),
            Some(EvictorRunner::Thread { .. }) | None => Progress::Idle,
        }
    }
}
