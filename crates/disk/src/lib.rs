//! THE DOOR: everything that touches the outside of the process.
//!
//! Files ([`vfs`], with real files in [`os`], files in memory in [`mem`], a disk that lies by seed in [`lying`] and one that reads with or without the
//! page cache in [`switching`]), memory of the system ([`machine`], [`room`]), time ([`clock`]), threads ([`thread`], [`worker`]), randomness ([`random`]), the one checksum ([`checksum`]) and the bytes of integers
//! ([`codec`]). The crates above never call the operating system themselves: that is what lets one seed replay a whole run.

pub mod checksum;
pub mod clock;
pub mod codec;
mod image;
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
