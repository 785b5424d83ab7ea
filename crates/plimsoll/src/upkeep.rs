//! Who keeps room in memory for a store: the evictor's thread, its owner step by step, or nobody.

use std::sync::Arc;

use plimsoll_memory::evictor::{Evictor, EvictorThread, Progress};
use plimsoll_memory::pool::Pool;

use crate::error::Result;
use crate::options::Options;

#[derive(Debug)]
pub(crate) enum Upkeep {
    /// A thread, which ends with it.
    Thread { _thread: EvictorThread },
    /// The store's owner calls [`Upkeep::step`].
    Steps(Evictor),
    /// Everybody evicts for himself.
    Nobody,
}

impl Upkeep {
    /// As the options say.
    pub(crate) fn start(pool: &Arc<Pool>, options: &Options) -> Result<Self> {
        if !options.evictor {
            return Ok(Self::Nobody);
        }
        let evictor = Evictor::new(pool, Arc::clone(&options.clock));
        match options.background {
            true => Ok(Self::Thread { _thread: EvictorThread::start(evictor)? }),
            false => Ok(Self::Steps(evictor)),
        }
    }

    /// Makes some room, if that is not a thread's business.
    pub(crate) fn step(&mut self) -> Progress {
        match self {
            Self::Steps(evictor) => evictor.step(),
            Self::Thread { .. } | Self::Nobody => Progress::Idle,
        }
    }
}
