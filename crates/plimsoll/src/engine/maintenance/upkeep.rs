//! Who works for a store's memory: the evictor, in a thread or step by step, and the threads that read ahead.

use std::sync::Arc;

use plimsoll_memory::evictor::{Evictor, EvictorThread, Progress};
use plimsoll_memory::pool::{Pool, ReaderThreads};

use crate::types::error::Result;
use crate::types::options::Options;

/// Reads in flight at once for those who scan.
const READERS: usize = 4;

/// Threads end when it is dropped.
#[derive(Debug)]
pub(crate) struct Upkeep {
    evictor: Option<Seat>,
    _readers: Option<ReaderThreads>,
}

#[derive(Debug)]
enum Seat {
    Thread {
        _thread: EvictorThread,
    },
    /// The store's owner calls [`Upkeep::step`].
    Steps(Evictor),
}

impl Upkeep {
    /// As the options say. Without background threads whoever reads ahead reads himself.
    pub(crate) fn start(pool: &Arc<Pool>, options: &Options) -> Result<Self> {
        let seat = |evictor| match options.background {
            true => EvictorThread::start(evictor).map(|thread| Seat::Thread { _thread: thread }),
            false => Ok(Seat::Steps(evictor)),
        };
        let evictor = options.evictor.then(|| seat(Evictor::new(pool, Arc::clone(&options.clock)))).transpose()?;
        let readers = options.background.then(|| ReaderThreads::start(pool, READERS)).transpose()?;
        Ok(Self { evictor, _readers: readers })
    }

    /// Nobody works any more: everybody evicts for himself, and reads each page when he wants it, none ahead.
    pub(crate) fn stop(&mut self) {
        *self = Self { evictor: None, _readers: None };
    }

    /// Makes some room, if that is not a thread's business.
    pub(crate) fn step(&mut self) -> Progress {
        match &mut self.evictor {
            Some(Seat::Steps(evictor)) => evictor.step(),
            Some(Seat::Thread { .. }) | None => Progress::Idle,
        }
    }
}
