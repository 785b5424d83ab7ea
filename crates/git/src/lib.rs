//! Imports the history of a Git repository into a Plimsoll store (one commit, one transaction), and
//! exports a store to a Git repository.
//!
//! [`Import`] follows the first parents of one branch. [`WholeImport`] imports all commits,
//! branches and tags, and [`Export`] writes the same objects and refs again.
//!
//! Keys are paths, values are file contents; author, dates and message are the transaction's
//! metadata. Repositories are read and written through the `git` command. An import or export holds
//! a bounded part of the history in memory, whatever its length.
//!
//! ```no_run
//! use plimsoll::{Db, Options};
//! use plimsoll_git::{Import, Repository};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let repository = Repository::open("/srv/project".as_ref(), "HEAD")?;
//! let db = Db::open("project.plimsoll", Options::new())?;
//! if let Some(mut import) = Import::open(&db, &repository, "default")? {
//!     while import.next_commit()? {}
//!     println!("{} commits", import.counts().transactions);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Invariant: each transaction also records the commit that it imports. An interrupted import
//! therefore continues after the last commit in the store.
//!
//! Three git processes run in parallel: one lists commits, one compares them, one prints contents.
//! Their pipes are the buffers. Requests are sent ahead of the answers, but never more than the
//! smallest pipe holds, so that neither side blocks on a full pipe while the other waits for it.

mod commit;
mod compare;
mod date;
mod encoding;
mod error;
mod export;
mod import;
mod marks;
pub mod moments;
mod object;
mod object_id;
mod objects;
mod process;
mod records;
mod refs;
mod repository;
mod tree;

pub use error::{Error, Result};
pub use export::{Export, ExportCounts};
pub use import::Import;
pub use import::counts::{Counts, FileReason, LeftOut, LeftOutCommit, LeftOutFile};
pub use import::cut::Cut;
pub use import::whole::WholeImport;
pub use object_id::ObjectId;
pub use repository::Repository;
