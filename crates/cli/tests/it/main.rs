//! Tests of the `plimsoll` command as a process: its output and exit codes, and that an import
//! matches git.

#![allow(clippy::unwrap_used, reason = "a test fails where something is not as it should be")]
#![allow(
    clippy::disallowed_methods,
    reason = "tests prepare files and repositories of their own, outside of the store"
)]

mod archive;
mod backup_stops;
mod bad_input;
mod batch;
mod beside;
mod branches;
mod cluster;
#[path = "../../../git/tests/it/comparison.rs"]
mod comparison;
mod completions;
mod cursors;
mod damage;
mod damaged_sector;
mod disks;
mod dump;
mod import;
mod import_refusals;
mod import_stops;
mod imported_moments;
mod keyspaces;
mod load;
mod load_bad_rows;
mod load_stops;
mod locks;
mod maintenance;
#[cfg(any(feature = "cloud", feature = "postgres"))]
mod member_load;
mod merges;
mod moments;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "nats")]
#[path = "../../../replica/tests/it/nats_servers.rs"]
#[allow(dead_code, reason = "the tests of the replica use all of it")]
mod nats_servers;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "postgres")]
#[path = "../../../archive/tests/it/postgres_server.rs"]
mod postgres_server;
mod reads_and_writes;
mod reference;
#[cfg(feature = "replay")]
mod replay;
#[path = "../../../git/tests/it/repository.rs"]
mod repository;
mod run;
#[cfg(feature = "cloud")]
mod s3;
mod shell;
mod signals;
mod sync;
mod sync_pipe;
mod tags;
mod terminal;
mod together;
mod undo;
mod upkeep;
mod watch;
mod whole_repository;
