//! The memory budget: all memory that grows with data, under one limit.
//!
//! A [`budget::Budget`] is one mapping cut into chunks of 64 KiB. All memory that grows with data
//! comes from it, in one of three forms: a [`chunk::Chunk`], a contiguous [`buffer::Buffer`], or a
//! [`budget::Lease`] for small heap allocations, which retires as many chunks as they need. Built
//! on these are the [`pool`] of pages read from immutable files, the [`cache`] of objects of any
//! size, and the [`sorted`] map behind memtables and write sets.
//!
//! This crate knows bytes and pages, never keys of a store, commits or GLSNs. Nearly all of the
//! project's unsafe code is here. The crate is usable alone: [`cache::Cache`] as a cache with a
//! byte limit, the rest as parts of another database.

mod arena;
mod backing;
pub mod budget;
pub mod buffer;
pub mod cache;
pub mod cpu_prefetch;
pub mod doorkeeper;
pub mod evictor;
mod mapping;
pub mod page;
pub mod pieces;
pub mod pool;
mod reserved;
pub mod sort_buffer;
pub mod sorted;
mod sync;
pub mod turnover;

pub use budget::chunk;
