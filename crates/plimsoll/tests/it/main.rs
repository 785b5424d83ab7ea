//! Integration tests of the store: one binary, with one module per subject.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests and their helpers; they wait for the real clock"
)]

mod api;
mod approximate_len;
mod backup;
mod backup_faults;
mod bad_input;
mod beside;
mod blocks;
mod both_ends;
mod branch_faults;
mod branch_history;
mod branch_moves;
mod branch_registry;
mod branches;
mod change_feed;
mod checkpoints;
mod cherry_picks;
mod closing;
mod compression;
mod cursors;
mod deletes;
mod dropped_keyspaces;
mod dump;
mod dump_format_1;
mod errors;
mod events;
mod expiring_rows;
mod expiry;
mod expiry_space;
mod forks;
mod forms;
mod handles;
mod held_log;
mod held_walks;
mod in_memory;
mod io;
mod large;
mod lost_log;
mod lost_manifest;
mod lost_records;
mod many_transactions;
mod members;
mod members_crash;
mod members_files;
mod members_follow;
mod members_holds;
mod members_keeper;
mod members_keyspaces;
mod members_leftovers;
mod members_memory;
mod members_read_only;
mod members_waiting;
mod memory;
mod merge_rules;
mod merges;
mod module_graph;
mod neighbours;
mod own_folder;
mod pinned;
mod pressure;
mod previous;
mod quiet_openings;
mod range_deletes;
mod range_deletes_beside;
mod recover;
mod recover_stale;
mod resident;
mod retained_window;
mod revert;
mod revert_cases;
mod state_hashes;
mod tags;
mod tickets;
mod tidy;
mod updates;
mod visits;
mod warm;
mod warm_law;
mod warm_objects;
mod warm_world;
mod wrong_values;
