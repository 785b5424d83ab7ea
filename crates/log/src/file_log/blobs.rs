//! Blob files: bytes that are too large for a record.

pub(crate) mod blob_copy;
pub(crate) mod blob_files;
pub(crate) mod blob_writer;
pub(crate) mod registry;
