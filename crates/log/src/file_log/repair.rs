//! Log files that are not open: their readable contents, verification, a sound copy, and a copy
//! that ends earlier.

pub mod cut;
pub(crate) mod lost_record;
pub mod recover;
pub mod survey;
pub mod verify;
pub(crate) mod verify_blob;
pub(crate) mod verify_table;
