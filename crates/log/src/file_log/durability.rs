//! From the buffer to the disk: one writer, one sync for all who wait.

pub(crate) mod flusher;
pub(crate) mod group_commit;
pub(crate) mod writer;
