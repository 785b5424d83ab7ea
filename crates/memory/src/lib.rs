//! THE LINE: all memory that grows with data, under one budget.
//!
//! A [`budget::Budget`] is one mapping cut into chunks of 64 KiB. Whoever needs memory that grows with data takes a
//! [`chunk::Chunk`] of it, or, where it has to be in one piece, a [`buffer::Buffer`], or a [`budget::Lease`] that retires as many chunks for
//! small pieces of the heap. On top stand the [`pool`] of pages read from immutable files, the [`cache`] of objects of any size, and the [`sorted`] map that memtables and write sets
//! are made of.
//!
//! This crate knows bytes and pages, never keys of a store, commits or GLSNs. It is the only crate with unsafe code, and
//! usable alone: [`cache::Cache`] by anybody who wants a cache in so many bytes, the rest by someone who builds another database.

mod arena;
pub mod budget;
pub mod buffer;
pub mod cache;
pub mod chunk;
pub mod evictor;
mod mapping;
pub mod page;
pub mod pieces;
pub mod pool;
pub mod prefetch;
mod reserved;
pub mod sorted;
mod sync;
pub mod turnover;
