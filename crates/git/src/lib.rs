//! Reads the history of a Git repository through the `git` command, as a stream of bounded memory.
//!
//! Three of git's processes work side by side: one lists commits, one tells what each changed, one hands out contents. Their pipes are
//! the buffers: requests are sent ahead of the answers, but never more of them than the smallest pipe takes without a reader, so nobody
//! waits for somebody who waits for him.

pub(crate) mod blobs;
mod changes;
pub(crate) mod commit;
mod commit_stream;
pub(crate) mod feed;
pub(crate) mod object_id;
mod process;
pub(crate) mod repository;
