//! Members of one store on several machines, whose commits are ordered by objects in a bucket.

mod batch_object;
mod blobs;
mod bucket_order;
mod cluster;
mod error;
mod membership;
mod pace;
mod probe;
mod retry;
mod sealed_json;

pub use bucket_order::BucketOrder;
pub use error::{Error, Result};
pub use membership::{Membership, membership};
