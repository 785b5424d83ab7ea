//! The public interface: the store, snapshots, histories, the change feed, and the maintenance of a
//! store on disk.

pub(crate) mod admin;
mod branch;
mod branch_history;
pub(crate) mod branch_log;
pub(crate) mod branches;
pub(crate) mod change_feed;
pub(crate) mod commit;
pub(crate) mod db;
pub(crate) mod diff;
mod expiry;
pub(crate) mod feed_handle;
pub(crate) mod follow;
pub(crate) mod history;
pub(crate) mod log;
pub(crate) mod log_entry;
pub(crate) mod log_hold;
pub(crate) mod sizes;
pub(crate) mod skip_damage;
pub(crate) mod snapshot;
pub(crate) mod state_diff;
pub(crate) mod state_hash;
mod tags;
pub(crate) mod updates;
pub(crate) mod watch_events;
pub(crate) mod written;
