//! Maintenance of a store on disk: verification, backup, rebuilding and salvage, with their reports.

pub(crate) mod aside;
pub(crate) mod backup;
pub(crate) mod backup_options;
pub(crate) mod diagnose;
pub(crate) mod lost_manifest;
pub(crate) mod lost_names;
pub(crate) mod members;
pub(crate) mod repair;
pub(crate) mod salvage_drop;
pub(crate) mod salvage_index;
pub(crate) mod verify;
pub(crate) mod verify_values;
