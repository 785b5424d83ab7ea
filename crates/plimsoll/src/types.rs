//! Types that all folders above use and users see: options, errors, statistics, values, versions.
//! They import nothing from the engine.

pub(crate) mod as_of;
pub(crate) mod branch_key;
pub(crate) mod branch_registry;
pub(crate) mod branches;
pub(crate) mod cancel;
pub(crate) mod compression;
pub(crate) mod cursors;
pub(crate) mod damage;
pub(crate) mod error;
pub(crate) mod events;
pub(crate) mod expiry;
pub(crate) mod index_key;
pub(crate) mod invalid_input;
pub(crate) mod io;
pub(crate) mod key_range;
pub(crate) mod keyspaces;
pub(crate) mod lock;
pub(crate) mod machine_memory;
pub(crate) mod options;
pub(crate) mod retention;
pub(crate) mod sizes;
pub(crate) mod stats;
pub(crate) mod tags;
pub(crate) mod thread_part;
pub(crate) mod times;
pub(crate) mod update;
pub(crate) mod value;
pub(crate) mod version;
