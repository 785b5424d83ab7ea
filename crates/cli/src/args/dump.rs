//! The command line of dump and restore.

use std::path::PathBuf;

use clap::Args;

use crate::moment::{At, parse_at};

#[derive(Args, Debug)]
#[command(after_help = "\
The dump is a stream that any later version reads on any machine (docs/reference/dump.md). By \
default it holds all keyspaces with their settings and the newest value of each key; with \
--history, every commit that the log holds, with its GLSN, time and metadata, and the streams and \
cursors. Each record has a checksum, and a truncated dump is detected. It is not compressed: pipe \
it through zstd. The store stays in use; processes that share it do not trim its log until a dump \
with --history ends. If a process with exclusive use of the store frees data before it is dumped, \
the dump fails; run it again.

With --json: the newest rows of one keyspace, one {\"key\", \"value\"} object per line \
(\"key_hex\" and \"value_hex\" for bytes that are not text), which `load --key key --value value` \
loads again.

Examples:
  plimsoll dump demo.plimsoll --history -o demo.dump
  plimsoll dump demo.plimsoll --history | zstd > demo.dump.zst
  plimsoll dump demo.plimsoll --history | ssh other plimsoll restore demo.plimsoll -
  plimsoll dump demo.plimsoll --json > rows.jsonl")]
pub(crate) struct Dump {
    /// Store
    pub(crate) store: PathBuf,
    /// Dump every retained commit instead of the newest values
    #[arg(long)]
    pub(crate) history: bool,
    /// Only this keyspace [default: all; with --json: default]
    #[arg(long, value_name = "NAME")]
    pub(crate) keyspace: Option<String>,
    /// File to write, which must not exist; - is stdout
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    pub(crate) output: PathBuf,
}

#[derive(Args, Debug)]
#[command(after_help = "\
STORE appears once the whole dump has been read and verified. A dump with history keeps every GLSN \
and time, so `get --at`, `history` and `log` answer as before. If the command is stopped, \
STORE.new-restore holds the restored part; the same command resumes it. A damaged dump is refused \
with exit code 4.

If SOURCE is the folder of a backup (`plimsoll backup`), its files are copied and checked.

If SOURCE is an archive (`plimsoll archive`), STORE ends with the last commit at the moment --at \
or before it. A time is compared with the times of the log. Everything is read and checked. If \
damage is in the way, STORE ends with the newest moment before it; the damaged objects are listed, \
and the exit code is 1.

Examples:
  plimsoll restore demo.plimsoll demo.dump
  zstd -dc demo.dump.zst | plimsoll restore demo.plimsoll -
  plimsoll restore demo.plimsoll /backup/demo-2024-01-31.plimsoll
  plimsoll restore demo.plimsoll /backup/demo.archive --at \"2024-01-31 12:00\"")]
pub(crate) struct Restore {
    /// Folder of the new store; it must be empty or not exist
    pub(crate) store: PathBuf,
    /// Dump to read, - for stdin, the folder of a backup, or an archive
    pub(crate) source: PathBuf,
    /// Of an archive: the moment to restore, a GLSN or a time (2024-01-31, "2024-01-31 12:00",
    /// yesterday, "2 hours ago"; UTC) [default: newest]
    #[arg(long, value_name = "MOMENT", value_parser = parse_at)]
    pub(crate) at: Option<At>,
}
