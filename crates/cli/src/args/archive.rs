//! The command line of `archive`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::duration::parse_duration;

#[derive(Args, Debug)]
#[command(after_help = "\
Sends the segments and blob files of the log that the archive lacks, compressed, then the new part \
of the active segment. Each file is sent once. Afterwards everything that was durable is in the \
archive, and `plimsoll restore NEW-STORE ARCHIVE --at MOMENT` makes a store as of any moment in \
it. At first, after much log, and if the log was trimmed before it was archived, the index is \
sent too; moments between the archived part and such a trim are lost. The store stays in use.

With --follow: a pass whenever the store has changed, at most one every --every. A pass that fails \
for lack of space, or because the archive cannot be reached, is tried again. Ctrl-C ends the \
command (exit code 130), also in the middle of a pass; the archive then ends with the pass before. \
It costs least if the store is shared, because this command then keeps the store open. It then \
also keeps the log from being freed before it is archived; a process that has the store for itself \
is not kept from that.

With --keep, a pass also deletes what only earlier moments need; the index is sent at least once \
in that time.

ARCHIVE is a folder, which is created, or its URL file:///PATH; put it on another disk. A build \
with the feature `cloud` also takes s3://BUCKET/PREFIX, gs://BUCKET/PREFIX and \
az://CONTAINER/PREFIX, with the credentials of the environment; one with the feature `postgres` \
takes postgres://USER@HOST/DATABASE/SCHEMA, and one with the feature `nats` \
nats://HOST,HOST,HOST/STREAM?monitor=URL,URL,URL. An archive belongs to one store and to one \
archiver at a time. `plimsoll verify ARCHIVE` reads and checks all of it.

Examples:
  plimsoll archive demo.plimsoll /backup/demo.archive
  plimsoll archive demo.plimsoll /backup/demo.archive --follow
  plimsoll restore yesterday.plimsoll /backup/demo.archive --at yesterday")]
pub(crate) struct Archive {
    /// Store
    pub(crate) store: PathBuf,
    /// Folder of the archive, or its URL
    pub(crate) archive: String,
    /// Keep only the moments of this time before the newest commit, e.g. 30d [default: all]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) keep: Option<Duration>,
    /// Archive what is new until Ctrl-C
    #[arg(long)]
    pub(crate) follow: bool,
    /// Least time from the start of one pass to that of the next
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    #[arg(requires = "follow")]
    pub(crate) every: Duration,
}
