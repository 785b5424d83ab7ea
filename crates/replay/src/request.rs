//! A request to a cache, and a source of requests.

use crate::error::Result;

/// The kind of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Operation {
    /// Find the value; insert one on a miss.
    #[default]
    ReadThrough,
    /// Find the value.
    Find,
    /// Insert a value.
    Set,
    /// Remove the value.
    Delete,
}

/// One request of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Its kind.
    pub operation: Operation,
    /// The key.
    pub key: Vec<u8>,
    /// The size of the value.
    pub value_bytes: u64,
}

/// A sequence of requests.
pub trait Requests {
    /// Reads the next request into `request`; `false` at the end.
    fn next(&mut self, request: &mut Request) -> Result<bool>;
}
