//! Members of one store on several machines, whose commits are ordered by objects in a bucket.
//!
//! A *cluster* is a bucket: a local folder, or, with the feature `cloud`, S3, Google Cloud Storage
//! or Azure, or, with the feature `postgres`, a PostgreSQL database. [`create`] makes one from a
//! store, which becomes its first *member*; [`join`] makes another member on any machine. [`open`]
//! opens a member: a [`Db`](plimsoll::Db) whose commits are in the bucket when they return, in one
//! order with those of all members, serializable. There is no server and no leader: the bucket
//! stores each batch of commits only if no other member was first ([`BucketOrder`]).
//! `docs/reference/cluster.md` specifies every byte.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! # let path = |name: &str| dir.path().join(name);
//! use plimsoll::{Db, Options};
//!
//! let options = Options::new().memory_bytes(16 << 20);
//! let db = Db::open(path("users"), options.clone())?;
//! db.put(&db.keyspace("default")?, "ada", "Ada Lovelace")?;
//! db.close()?;
//!
//! let url = format!("file://{}", path("bucket").display());
//! plimsoll_replica::create(&url, path("users"), options.clone())?;
//! plimsoll_replica::join(&url, path("replica"), options.clone())?;
//!
//! let one = plimsoll_replica::open_member(path("users"), options.clone())?;
//! let other = plimsoll_replica::open_member(path("replica"), options)?;
//! one.put(&one.keyspace("default")?, "ada", "Augusta Ada King")?;
//! other.sync()?; // now it has everything that was committed anywhere
//! assert_eq!(other.get(&other.keyspace("default")?, "ada")?.unwrap(), b"Augusta Ada King");
//! # Ok(())
//! # }
//! ```

mod bases;
mod batch_object;
mod blobs;
mod bucket_order;
mod cluster;
mod creating;
mod diagnosis;
mod error;
mod first;
mod healing;
mod joining;
mod leaving;
mod member_order;
mod membership;
mod moving;
mod opening;
mod pace;
mod positions;
mod probe;
mod rebase;
mod retry;
mod sealed_json;
mod sources;
mod status;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
mod trimming;

pub use bucket_order::BucketOrder;
pub use creating::{CreateReport, create};
pub use diagnosis::Problem;
pub use error::{Error, Result};
pub use healing::{Heal, HealReport, heal};
pub use joining::{JoinReport, join};
pub use leaving::{Leave, LeaveReport, leave};
pub use membership::{Membership, membership};
pub use moving::{MoveReport, move_cluster};
pub use opening::{open, open_member};
pub use status::{BaseStatus, ClusterStatus, MemberStatus, Status, status};
pub use trimming::{KEEP_BATCHES, TrimReport, trim};
