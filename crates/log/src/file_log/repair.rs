//! Damaged log files: their readable contents, verification, and a sound copy.

pub(crate) mod lost_record;
pub mod recover;
pub mod survey;
pub mod verify;
pub(crate) mod verify_blob;
pub(crate) mod verify_table;
