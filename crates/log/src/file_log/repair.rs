//! Work on the files of a log that may be damaged: verification, dropping what is damaged, and cutting.

pub(crate) mod dropped_record;
pub mod mend;
pub mod salvage;
pub mod verify;
pub(crate) mod verify_table;
