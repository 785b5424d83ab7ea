//! Segments: their blocks, their list, and the places of their entries.

pub(crate) mod create;
pub(crate) mod entry_offsets;
pub(crate) mod header_file;
pub(crate) mod list;
pub(crate) mod named_blobs;
pub(crate) mod offset_table;
pub(crate) mod rebuild;
pub(crate) mod sealing;
pub(crate) mod segment;
pub(crate) mod table_file;
pub(crate) mod table_writer;
pub(crate) mod walk;
