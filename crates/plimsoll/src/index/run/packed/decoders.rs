//! Memory to decompress pages, shared by the packed tables of a store.

use std::fmt;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll_memory::budget::{Budget, Kind};
use plimsoll_memory::pool::LoadError;

use crate::compression::codec::Decoder;
use crate::types::compression::Codec;
use crate::types::error::Error;

/// Maximum number of decoders that are kept for the next pages, because making one takes longer
/// than decompressing a page.
const IDLE_MAX: usize = 2;

/// Decoders of pages. Only those of zstd need memory, and are kept; like the metadata of tables,
/// they exist as long as tables are read.
pub(crate) struct Decoders {
    budget: Budget,
    idle: Mutex<Vec<Decoder>>,
}

impl Decoders {
    /// No decoders yet; each takes its memory from `budget` when it is made.
    pub(crate) fn new(budget: &Budget) -> Self {
        Self { budget: budget.clone(), idle: Mutex::new(Vec::with_capacity(IDLE_MAX)) }
    }

    pub(in crate::index::run) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Decompresses a page.
    ///
    /// # Errors
    /// The budget has no room for a decoder, or this build does not contain the codec.
    pub(super) fn decode(
        &self,
        codec: Codec,
        stored: &[u8],
        page: &mut [u8],
    ) -> Result<bool, LoadError> {
        let kept = if codec == Codec::Zstd { self.idle().pop() } else { None };
        let mut decoder = match kept {
            Some(decoder) => decoder,
            None => {
                Decoder::new((&self.budget, Kind::Metadata), codec, "a page").map_err(load_error)?
            }
        };
        let is_filled = decoder.decode(stored, page);
        if codec == Codec::Zstd {
            let mut idle = self.idle();
            if idle.len() < IDLE_MAX {
                idle.push(decoder);
            }
        }
        Ok(is_filled)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Decoder>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn load_error(error: Error) -> LoadError {
    match error {
        Error::OutOfBudget(refusal) => LoadError::OutOfBudget(refusal),
        Error::Io { kind, message, source } => LoadError::Io { kind, message, source },
        error => LoadError::Io {
            kind: io::ErrorKind::Unsupported,
            message: error.to_string(),
            source: None,
        },
    }
}

impl fmt::Debug for Decoders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Decoders({} idle)", self.idle().len())
    }
}
