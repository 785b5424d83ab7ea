//! Maintenance of a store on disk: verification, backup, recovery, dump and restore, with their
//! reports.

pub(crate) mod backup;
pub(crate) mod backup_options;
pub(crate) mod diagnose;
pub(crate) mod dump;
pub(crate) mod files;
pub(crate) mod lost_keyspaces;
pub(crate) mod members;
pub(crate) mod order_batch;
pub(crate) mod order_place;
pub(crate) mod recover;
pub(crate) mod restore;
pub(crate) mod verify;
pub(crate) mod verify_values;
