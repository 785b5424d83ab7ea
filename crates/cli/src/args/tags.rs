//! The command line of `tag`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::moment::{At, parse_at};

#[derive(Debug, Subcommand)]
pub(crate) enum Tag {
    /// List the tags, their GLSNs and times
    List(TagList),
    /// Name a moment, which then stays readable
    Create(TagCreate),
    /// Remove a tag; its moment is then kept only as long as retention allows
    Delete(TagDelete),
}

#[derive(Args, Debug)]
#[command(after_help = "\
A tag's name is a moment: `get --at NAME`, `diff A B`, `reset --to NAME`. A pipe gets one line per \
tag: name, tab, GLSN, tab, time of the commit.

Examples:
  plimsoll tag list demo.plimsoll")]
pub(crate) struct TagList {
    /// Store
    pub(crate) store: PathBuf,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Every keyspace stays readable at a tagged moment, whatever its retention, until the tag is \
deleted. The moment must be readable now: the newest one always is.

A name has 1 to 255 bytes and no control characters. Names that would be read as another moment \
are refused: newest, now, yesterday, numbers, and names that begin like a date, count back from \
now (\"2 hours ago\") or contain `:` or `@{`.

Examples:
  plimsoll tag create demo.plimsoll before-import
  plimsoll tag create demo.plimsoll v1.2 --at 120")]
pub(crate) struct TagCreate {
    /// Store
    pub(crate) store: PathBuf,
    /// Name of the tag
    pub(crate) name: String,
    /// Moment: a GLSN, a time, commit:ID or another tag, as for `get --at` [default: newest]
    #[arg(long, value_name = "MOMENT", value_parser = parse_at)]
    pub(crate) at: Option<At>,
    /// Keyspace whose imported commits --at refers to
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub(crate) keyspace: String,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  plimsoll tag delete demo.plimsoll before-import")]
pub(crate) struct TagDelete {
    /// Store
    pub(crate) store: PathBuf,
    /// Name of the tag
    pub(crate) name: String,
}
