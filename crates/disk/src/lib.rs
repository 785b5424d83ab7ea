//! The system interface: all access to anything outside the process.
//!
//! Files ([`vfs`], with real files in [`os`], switchable page caching in [`switching`]; files in
//! memory in [`mem`]; disks that wrap another one in [`layer`]; with the feature `testing`,
//! simulated faults in `lying`; what processes share in [`sharing`]; what a forked child may do in
//! [`fork`]), memory of the system ([`machine`], [`free_memory`]), its processors ([`processors`]),
//! time ([`clock`]), threads ([`thread`], [`worker`], [`job_pool`]) and their fair lock
//! ([`fair_lock`]), other programs ([`command`]), randomness ([`random`]), the one checksum
//! ([`checksum`]) and the encoding of integers ([`codec`]). The crates above never call the
//! operating system themselves; this lets one seed replay a whole run.

#[doc(hidden)]
pub mod borders;
pub mod checksum;
pub mod clock;
pub mod codec;
pub mod command;
mod descriptor;
pub mod fair_lock;
pub mod fork;
pub mod free_memory;
#[cfg_attr(
    not(any(test, feature = "testing")),
    allow(dead_code, reason = "files in memory and disks that lie are made of it")
)]
mod image;
pub mod io_cause;
pub mod job_pool;
pub mod layer;
#[cfg(any(test, feature = "testing"))]
pub mod lying;
pub mod machine;
pub mod mem;
pub mod mutex;
pub mod os;
mod path_error;
pub mod processors;
pub mod random;
pub mod sharing;
#[cfg_attr(
    not(any(test, feature = "testing")),
    allow(dead_code, reason = "disks in memory have it")
)]
mod sharing_in_memory;
pub mod switching;
pub mod thread;
#[cfg_attr(
    not(any(test, feature = "testing")),
    allow(dead_code, reason = "parts of it are for disks that lie")
)]
mod tree;
pub mod vfs;
pub mod watch;
pub mod worker;
