//! THE DOOR: all access to the outside of the process.
//!
//! Files ([`vfs`], with real files in [`os`], files in memory in [`mem`], simulated faults in [`lying`] and switchable
//! page caching in [`switching`]), memory of the system ([`machine`], [`room`]), time ([`clock`]), threads ([`thread`],
//! [`worker`]), randomness ([`random`]), the one checksum ([`checksum`]) and the encoding of integers ([`codec`]). The
//! crates above never call the operating system themselves; this lets one seed replay a whole run.

pub mod checksum;
pub mod clock;
pub mod codec;
mod image;
pub mod io_cause;
pub mod lying;
pub mod machine;
pub mod mem;
pub mod os;
mod path_error;
pub mod random;
pub mod room;
pub mod switching;
pub mod thread;
mod tree;
pub mod vfs;
pub mod watch;
pub mod worker;
