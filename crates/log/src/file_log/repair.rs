//! Repair of log files: verification, dropping damaged records and pages, and cutting.

pub(crate) mod aside;
pub(crate) mod dropped_record;
pub mod mend;
pub mod salvage;
pub(crate) mod spare_blobs;
pub mod verify;
pub(crate) mod verify_table;
