//! Compression of values: which keyspaces have it, and the chunks of a compressed value.
//!
//! A compressed value is opaque bytes to everything that stores, moves or verifies it: these bytes
//! have the checksum of the version, and only readers ([`unpacker`]) and writers ([`packer`]) of
//! whole values interpret them. Pages of runs use only the codecs ([`codec`]).

pub(crate) mod codec;
pub(crate) mod packer;
pub(crate) mod unpacker;
