//! Blob files: bytes that are too large for a record.

pub(crate) mod blob_file;
pub(crate) mod registry;
