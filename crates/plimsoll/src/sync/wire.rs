//! The protocol by which two stores exchange commits over a connection: two streams of bytes, one
//! in each direction. `docs/reference/sync-protocol.md` specifies every byte.
//!
//! The client sends requests, one after another, and the server answers each ([`client`],
//! [`server`]). Requests and answers are messages; a message is a sequence of frames with lengths
//! and checksums ([`frames`]). All commits of a transfer are one message of any length
//! ([`commits`]), and large values are passed on in pieces.
//!
//! Invariant: no length that the other side sends causes an allocation beyond a fixed limit, and no
//! byte of a frame is used before its checksum is verified.

pub(crate) mod client;
mod commits;
mod errors;
mod frames;
mod hello;
mod items;
mod server;
