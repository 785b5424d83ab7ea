//! Replays traces of cache requests against the object cache of Plimsoll, and against models of
//! other policies.
//!
//! A trace is libCacheSim's oracleGeneral, CSV as CacheLib and Twitter publish it, or a cachebench
//! configuration, from which the requests are generated. [`TraceFile`] opens it, [`Replay`] serves
//! its requests and counts hits, [`curve`] draws miss ratios over memory.
//!
//! ```no_run
//! use plimsoll_replay::{Policy, Replay, TraceFile, TraceFormat};
//!
//! # fn main() -> Result<(), plimsoll_replay::Error> {
//! let file = TraceFile::new("web.oracleGeneral.zst".as_ref(), TraceFormat::Oracle);
//! let mut replay = Replay::new(Policy::S3Fifo, 64 << 20, 0.25)?;
//! replay.run(&mut *file.open()?.requests, || false)?;
//! println!("{:.2} % hits", 100.0 * replay.tally().hit_ratio());
//! # Ok(())
//! # }
//! ```
//!
//! Invariant: a replay is deterministic. It uses one thread, no clock in any decision, and a fixed
//! seed for generated requests.

mod cache;
mod cachebench;
pub mod curve;
mod delimited;
mod error;
mod lists;
mod model;
mod oracle;
mod policy;
mod replay;
mod request;
mod sketch;
mod source;
mod subject;
mod trace;

pub use error::{Error, Result};
pub use policy::{MAX_MEMORY_BYTES, MIN_MEMORY_BYTES, Policy};
pub use replay::{Replay, Tally};
pub use request::{Operation, Request, Requests};
pub use subject::Held;
pub use trace::{Opened, TraceFile, TraceFormat};
