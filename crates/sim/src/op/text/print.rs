//! Prints operations.

use std::fmt::{self, Write};

use crate::content::Content;
use crate::op::{Change, Edge, Fault, Get, Keep, Moment, Op, Part, Reader, Removal, Span};

/// A byte repeated at least this often is written as a run.
const RUN_BYTES: usize = 9;

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Begin { tx } => write!(f, "begin t{tx}"),
            Op::BeginOrdered { tx } => write!(f, "begin-ordered t{tx}"),
            Op::Commit { tx, metadata } => write!(f, "commit t{tx} {metadata}"),
            Op::Submit { tx } => write!(f, "submit t{tx}"),
            Op::Abort { tx } => write!(f, "abort t{tx}"),
            Op::Wait => f.write_str("wait"),
            Op::Put { tx, space, key, value, streamed } => {
                let how = if *streamed { "stream" } else { "put" };
                write!(f, "{how} t{tx} s{space} ={} {value}", Escaped(key))
            }
            Op::PutMany { tx, space, first, count, value, scattered } => {
                let order = if *scattered { "scattered" } else { "rising" };
                write!(f, "put-many t{tx} s{space} {first} {count} {value} {order}")
            }
            Op::BulkLoad { space, first, count, value, scattered } => {
                let order = if *scattered { "scattered" } else { "rising" };
                write!(f, "bulk-load s{space} {first} {count} {value} {order}")
            }
            Op::LoadBegin { slot, space } => write!(f, "load-begin l{slot} s{space}"),
            Op::LoadPut { slot, key, value } => {
                write!(f, "load-put l{slot} ={} {value}", Escaped(key))
            }
            Op::LoadMany { slot, first, count, value, scattered } => {
                let order = if *scattered { "scattered" } else { "rising" };
                write!(f, "load-many l{slot} {first} {count} {value} {order}")
            }
            Op::LoadCommit { slot } => write!(f, "load-commit l{slot}"),
            Op::LoadDrop { slot } => write!(f, "load-drop l{slot}"),
            Op::Update { tx, space, key, change } => {
                write!(f, "update t{tx} s{space} ={} {change}", Escaped(key))
            }
            Op::Delete { tx, space, key } => write!(f, "delete t{tx} s{space} ={}", Escaped(key)),
            Op::Remove { tx, space, span, how, limit } => {
                write!(f, "remove t{tx} s{space} {span} {how} {limit}")
            }
            Op::DeleteRange { space, span } => write!(f, "delete-range s{space} {span}"),
            Op::Get { from, space, key, how } => {
                write!(f, "{} {from} s{space} ={}", get_name(*how), Escaped(key))
            }
            Op::Walk { from, space, span, reverse, limit, keys_only, replace_after } => {
                let (direction, what) = (direction_name(*reverse), what_name(*keys_only));
                write!(f, "walk {from} s{space} {span} {direction} {limit} {what}")?;
                replace_after.map_or(Ok(()), |keys| write!(f, " amid {keys}"))
            }
            Op::WalkBegin { slot, from, space, span, reverse, keys_only } => {
                let (direction, what) = (direction_name(*reverse), what_name(*keys_only));
                write!(f, "walk-begin w{slot} {from} s{space} {span} {direction} {what}")
            }
            Op::WalkOn { slot, count } => write!(f, "walk-on w{slot} {count}"),
            Op::ReaderBegin { slot, from, space, key } => {
                write!(f, "reader-begin r{slot} {from} s{space} ={}", Escaped(key))
            }
            Op::ReaderOn { slot, bytes } => write!(f, "reader-on r{slot} {bytes}"),
            Op::WithNested { at, nested, op } => write!(f, "amid {at} {nested} then {op}"),
            Op::Failing { call, op } => write!(f, "failing {call} then {op}"),
            Op::Edge { tx, pick, value, spilled } => {
                write!(
                    f,
                    "edge t{tx} {pick} {value} {}",
                    if *spilled { "spilled" } else { "plain" }
                )
            }
            Op::FeedBegin { slot, back, feed } => write!(f, "feed-begin f{slot} {back} {feed}"),
            Op::FeedOn { slot, count } => write!(f, "feed-on f{slot} {count}"),
            Op::Snapshot { slot, moment } => write!(f, "snapshot v{slot} {moment}"),
            Op::Release { slot } => write!(f, "release v{slot}"),
            Op::History { space, key } => write!(f, "history s{space} ={}", Escaped(key)),
            Op::Diff { space, from, to, prefix } => {
                write!(f, "diff s{space} {from} {to} ^{}", Escaped(prefix))
            }
            Op::Revert { back, takes_theirs } => {
                write!(f, "{} {back}", if *takes_theirs { "revert-theirs" } else { "revert" })
            }
            Op::Reset { space: None, back } => write!(f, "reset-all {back}"),
            Op::Reset { space: Some(space), back } => write!(f, "reset s{space} {back}"),
            Op::Append { stream, payloads, wait } => {
                write!(f, "{} {stream}", if *wait { "append" } else { "append-submit" })?;
                payloads.iter().try_for_each(|payload| write!(f, " {payload}"))
            }
            Op::Scan { back, count, stream } => {
                write!(f, "scan {back} {count} {}", StreamName(*stream))
            }
            Op::Follow { back, stream } => write!(f, "follow {back} {}", StreamName(*stream)),
            Op::Watch { space, back, prefix } => {
                write!(f, "watch s{space} {back} ^{}", Escaped(prefix))
            }
            Op::Read { back } => write!(f, "read {back}"),
            Op::Trim { back } => write!(f, "trim {back}"),
            Op::Keyspace { space, retention } => write!(f, "keyspace s{space} {retention}"),
            Op::Compress { space, compression } => write!(f, "compress s{space} {compression}"),
            Op::DropSpace { space } => write!(f, "drop-space s{space}"),
            Op::Cursor { name, back } => write!(f, "cursor c{name} {back}"),
            Op::AdvanceCursor { name, back } => write!(f, "advance-cursor c{name} {back}"),
            Op::DropCursor { name } => write!(f, "drop-cursor c{name}"),
            Op::Tag { name, back } => write!(f, "tag t{name} {back}"),
            Op::ReadTag { name } => write!(f, "read-tag t{name}"),
            Op::DeleteTag { name } => write!(f, "delete-tag t{name}"),
            Op::Recover { damage } => write!(f, "recover {damage}"),
            Op::Flush => f.write_str("flush"),
            Op::Compact => f.write_str("compact"),
            Op::Step => f.write_str("step"),
            Op::Work { first } => write!(f, "work w{first}"),
            Op::DropCaches => f.write_str("drop-caches"),
            Op::Memory { mebibytes } => write!(f, "memory {mebibytes}"),
            Op::Keep => f.write_str("keep"),
            Op::Restore { part } => f.write_str(match part {
                Part::Whole => "restore whole",
                Part::Log => "restore log",
                Part::Index => "restore index",
            }),
            Op::Reopen => f.write_str("reopen"),
            Op::RecoverWhole => f.write_str("recover-whole"),
            Op::LoseIndex => f.write_str("lose-index"),
            Op::Backup => f.write_str("backup"),
            Op::BackupCut => f.write_str("backup-cut"),
            Op::Warm => f.write_str("warm"),
            Op::SaveImage => f.write_str("save-image"),
            Op::Kill => f.write_str("kill"),
            Op::Verify => f.write_str("verify"),
            Op::Check => f.write_str("check"),
            Op::ReadBeside => f.write_str("read-beside"),
            Op::Advance { micros } => write!(f, "advance {micros}"),
            Op::Jump { micros } => write!(f, "jump {micros}"),
            Op::Crash { again } => write!(f, "crash {again}"),
            Op::KillAtSync { after } => write!(f, "kill-at-sync {after}"),
            Op::CutAtSync { after } => write!(f, "cut {after}"),
            Op::CutAtChange { after } => write!(f, "cut-at-change {after}"),
            Op::KillAtChange { after } => write!(f, "kill-at-change {after}"),
            Op::Fault(Fault::Reads(permille)) => write!(f, "fault reads {permille}"),
            Op::Fault(Fault::Flips(permille)) => write!(f, "fault flips {permille}"),
            Op::Fault(Fault::Sync) => f.write_str("fault sync"),
            Op::Fault(Fault::SyncLater(after)) => write!(f, "fault sync-later {after}"),
            Op::Fault(Fault::RenameLater(after)) => write!(f, "fault rename-later {after}"),
            Op::Fault(Fault::RemoveLater(after)) => write!(f, "fault remove-later {after}"),
            Op::Fault(Fault::Full(bytes)) => write!(f, "fault full {bytes}"),
            Op::Fault(Fault::Slow(micros)) => write!(f, "fault slow {micros}"),
            Op::Fault(Fault::Heal) => f.write_str("fault heal"),
            Op::OfProcess(op) => op.fmt(f),
            Op::Timed(choice) => write!(f, "timed {choice}"),
            Op::Branching(choice) => write!(f, "branching {choice}"),
            Op::Syncing(choice) => write!(f, "syncing {choice}"),
            Op::Ordering(choice) => write!(f, "ordering {choice}"),
        }
    }
}

fn direction_name(reverse: bool) -> &'static str {
    if reverse { "rev" } else { "fwd" }
}

fn what_name(keys_only: bool) -> &'static str {
    if keys_only { "keys" } else { "values" }
}

fn get_name(how: Get) -> &'static str {
    match how {
        Get::Value => "get",
        Get::Streamed => "get-stream",
        Get::Contains => "contains",
        Get::Lent => "get-lent",
        Get::Now => "get-now",
        Get::Resident => "get-resident",
    }
}

impl fmt::Display for Removal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Removal::First => f.write_str("first"),
            Removal::Last => f.write_str("last"),
            Removal::Retain(each) => write!(f, "retain:{each}"),
            Removal::Extract(each) => write!(f, "extract:{each}"),
            Removal::Range => f.write_str("range"),
        }
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.bytes, self.seed)
    }
}

impl fmt::Display for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reader::Tx(tx) => write!(f, "t{tx}"),
            Reader::Snapshot(slot) => write!(f, "v{slot}"),
            Reader::Back(back) => write!(f, "-{back}"),
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Span::Prefix(prefix) => write!(f, "^{} .", Escaped(prefix)),
            Span::Range(lower, upper) => {
                match lower {
                    Edge::Open => f.write_str("*"),
                    Edge::At(key) => write!(f, "[{}", Escaped(key)),
                    Edge::Beside(key) => write!(f, "({}", Escaped(key)),
                }?;
                match upper {
                    Edge::Open => f.write_str(" *"),
                    Edge::At(key) => write!(f, " ]{}", Escaped(key)),
                    Edge::Beside(key) => write!(f, " ){}", Escaped(key)),
                }
            }
        }
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Moment::Newest => f.write_str("newest"),
            Moment::Back(glsns) => write!(f, "back:{glsns}"),
            Moment::Ahead(glsns) => write!(f, "ahead:{glsns}"),
            Moment::Age(micros) => write!(f, "age:{micros}"),
            Moment::TimeOf { back, micros } => write!(f, "time-of:{back}:{micros}"),
        }
    }
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Keep::Forever => f.write_str("forever"),
            Keep::Latest => f.write_str("latest"),
            Keep::Glsns(glsns) => write!(f, "glsns:{glsns}"),
            Keep::Micros(micros) => write!(f, "micros:{micros}"),
        }
    }
}

/// A stream, or all of them.
pub(super) struct StreamName(pub(super) Option<u32>);

impl fmt::Display for StreamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.write_str("all"),
            Some(stream) => write!(f, "{stream}"),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Add(by) => write!(f, "add {by}"),
            Change::IfAbsent(value) => write!(f, "if-absent {value}"),
        }
    }
}

/// A key's bytes, as the format writes them.
pub(super) struct Escaped<'a>(pub(super) &'a [u8]);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0;
        while let Some(&byte) = rest.first() {
            let run = rest.iter().take_while(|&&other| other == byte).count();
            if run >= RUN_BYTES {
                write!(f, "{{{byte:02x}*{run}}}")?;
                rest = &rest[run..];
                continue;
            }
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'_' | b'-' | b'.' => {
                    f.write_char(byte.into())?
                }
                _ => write!(f, "%{byte:02x}")?,
            }
            rest = &rest[1..];
        }
        Ok(())
    }
}
