//! The workload language: operations on a store, and on the world around it.
//!
//! One language drives the model test, the crash simulation, the faults, the metamorphic test, the
//! fuzzer and the minimiser. A workload is made from a seed ([`generate`]) or from any bytes, is
//! printed one operation a line, and is read back ([`text`]), so that a failing run can be replayed
//! and shortened.
//!
//! Law: every operation is valid after any other, so that a workload remains one when operations
//! are left out. An operation that addresses nothing (a transaction that is not open) does nothing;
//! moments are given relative to the newest one.

pub mod among;
pub mod generate;
pub mod text;
mod within;

use std::time::Duration;

use plimsoll::Retention;

use crate::content::Content;
pub use crate::op::within::{Call, Deed, Feed, Within};

/// A key's bytes.
pub type Key = Vec<u8>;

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Begins a transaction; one that is open under this number is dropped.
    Begin {
        /// Its number.
        tx: u8,
    },
    /// Begins a transaction that reads what was ordered, durable or not; one that is open under
    /// this number is dropped.
    BeginOrdered {
        /// Its number.
        tx: u8,
    },
    /// Commits.
    Commit {
        /// The transaction.
        tx: u8,
        /// What travels with it.
        metadata: Content,
    },
    /// Gives a commit its place without waiting for it.
    Submit {
        /// The transaction.
        tx: u8,
    },
    /// Aborts.
    Abort {
        /// The transaction.
        tx: u8,
    },
    /// Waits for the oldest commit that was submitted.
    Wait,
    /// Gives a key a value.
    Put {
        /// The transaction.
        tx: u8,
        /// The keyspace's number.
        space: u8,
        /// The key.
        key: Key,
        /// The value.
        value: Content,
        /// Whether it is streamed.
        streamed: bool,
    },
    /// Gives many keys a value.
    PutMany {
        /// The transaction.
        tx: u8,
        /// The keyspace's number.
        space: u8,
        /// The number of the first key ([`numbered_key`]).
        first: u32,
        /// How many keys.
        count: u32,
        /// The first key's value; each further one has the next seed.
        value: Content,
        /// In an order of their own, not in that of the keys.
        scattered: bool,
    },
    /// Gives many keys a value, by a bulk load: a commit of its own.
    BulkLoad {
        /// The keyspace's number.
        space: u8,
        /// The number of the first key ([`numbered_key`]).
        first: u32,
        /// How many keys.
        count: u32,
        /// The first key's value; each further one has the next seed.
        value: Content,
        /// In an order of their own, not in that of the keys.
        scattered: bool,
    },
    /// Begins a bulk load that stays open over other operations; one that is open under this number
    /// is dropped.
    LoadBegin {
        /// Its number.
        slot: u8,
        /// The keyspace's number.
        space: u8,
    },
    /// Gives a key a value in an open bulk load.
    LoadPut {
        /// The load.
        slot: u8,
        /// The key.
        key: Key,
        /// The value.
        value: Content,
    },
    /// Gives many keys a value in an open bulk load.
    LoadMany {
        /// The load.
        slot: u8,
        /// The number of the first key ([`numbered_key`]).
        first: u32,
        /// How many keys.
        count: u32,
        /// The first key's value; each further one has the next seed.
        value: Content,
        /// In an order of their own, not in that of the keys.
        scattered: bool,
    },
    /// Commits a bulk load.
    LoadCommit {
        /// The load.
        slot: u8,
    },
    /// Drops a bulk load.
    LoadDrop {
        /// The load.
        slot: u8,
    },
    /// Takes a key's value away.
    Delete {
        /// The transaction.
        tx: u8,
        /// The keyspace's number.
        space: u8,
        /// The key.
        key: Key,
    },
    /// Takes away what a walk finds.
    Remove {
        /// The transaction.
        tx: u8,
        /// The keyspace's number.
        space: u8,
        /// Which keys; for the first and the last one, of all.
        span: Span,
        /// Which of them, and by which call.
        how: Removal,
        /// How many at most, where the call returns one after the other.
        limit: u32,
    },
    /// Reads a key.
    Get {
        /// Where.
        from: Reader,
        /// The keyspace's number.
        space: u8,
        /// The key.
        key: Key,
        /// By which call.
        how: Get,
    },
    /// Walks over keys.
    Walk {
        /// Where.
        from: Reader,
        /// The keyspace's number.
        space: u8,
        /// Which keys.
        span: Span,
        /// From the last key to the first.
        reverse: bool,
        /// How many at most.
        limit: u32,
        /// Without values.
        keys_only: bool,
        /// After this many keys the sources are exchanged, and log entries that are no longer
        /// needed are freed.
        amid: Option<u32>,
    },
    /// Begins a walk in a snapshot that stays open over other operations; one that is open under
    /// this number is dropped.
    WalkBegin {
        /// Its number.
        slot: u8,
        /// Where: not in a transaction.
        from: Reader,
        /// The keyspace's number.
        space: u8,
        /// Which keys.
        span: Span,
        /// From the last key to the first.
        reverse: bool,
        /// Without values.
        keys_only: bool,
    },
    /// Goes on with a walk that is open; at its end it is dropped.
    WalkOn {
        /// Its number.
        slot: u8,
        /// How many keys.
        count: u32,
    },
    /// Opens a reader of a value; one that is open under this number is dropped.
    ReaderBegin {
        /// Its number.
        slot: u8,
        /// Where: not in a transaction.
        from: Reader,
        /// The keyspace's number.
        space: u8,
        /// The key.
        key: Key,
    },
    /// Reads on in a value; at its end the reader is dropped.
    ReaderOn {
        /// Its number.
        slot: u8,
        /// How many bytes.
        bytes: u32,
    },
    /// Does an operation, and something else at a moment within it, as another thread could.
    Amid {
        /// At which moment.
        at: Within,
        /// What.
        deed: Deed,
        /// The operation.
        op: Box<Op>,
    },
    /// Does an operation in which one call fails: it goes on as if nothing had happened.
    Failing {
        /// Which call.
        call: Call,
        /// The operation.
        op: Box<Op>,
    },
    /// Another transaction changes a key at an edge of what this one has read.
    Edge {
        /// The one that has read.
        tx: u8,
        /// Which edge, and which key there.
        pick: u32,
        /// The value that is put, if one is.
        value: Content,
        /// The change is the first or the last of a commit that is written as a run.
        spilled: bool,
    },
    /// Begins a feed that stays open over other operations; one that is open under this number is
    /// dropped.
    FeedBegin {
        /// Its number.
        slot: u8,
        /// From this many GLSNs before the newest.
        back: u64,
        /// What it yields.
        feed: Feed,
    },
    /// Takes what a feed has next.
    FeedOn {
        /// Its number.
        slot: u8,
        /// How many at most.
        count: u32,
    },
    /// Opens a snapshot; one that is open under this number is dropped.
    Snapshot {
        /// Its number.
        slot: u8,
        /// Of which moment.
        moment: Moment,
    },
    /// Drops a snapshot.
    Release {
        /// Its number.
        slot: u8,
    },
    /// Lists the versions of a key.
    History {
        /// The keyspace's number.
        space: u8,
        /// The key.
        key: Key,
    },
    /// Compares two moments.
    Diff {
        /// The keyspace's number.
        space: u8,
        /// The first moment: this many GLSNs before the newest.
        from: u64,
        /// The second.
        to: u64,
        /// The beginning of the keys.
        prefix: Key,
    },
    /// Appends entries to a stream, all or none.
    Append {
        /// The stream, from 1.
        stream: u32,
        /// The entries.
        payloads: Vec<Content>,
        /// Whether to wait until they are durable.
        wait: bool,
    },
    /// Walks over the log.
    Scan {
        /// From this many GLSNs before the newest.
        back: u64,
        /// How many GLSNs.
        count: u64,
        /// Only this stream.
        stream: Option<u32>,
    },
    /// Follows the log up to its end.
    Follow {
        /// From this many GLSNs before the newest.
        back: u64,
        /// Only this stream.
        stream: Option<u32>,
    },
    /// Reads the commits that changed keys with a prefix.
    Watch {
        /// The keyspace's number.
        space: u8,
        /// From this many GLSNs before the newest.
        back: u64,
        /// The beginning of the keys.
        prefix: Key,
    },
    /// Reads one entry of the log.
    Read {
        /// This many GLSNs before the newest.
        back: u64,
    },
    /// Frees the log's old end.
    Trim {
        /// Up to this many GLSNs before the newest.
        back: u64,
    },
    /// Makes a keyspace, or changes its retention.
    Keyspace {
        /// Its number.
        space: u8,
        /// What it keeps.
        retention: Keep,
    },
    /// Drops a keyspace with all its keys; what is made under its number afterwards is another one.
    DropSpace {
        /// Its number.
        space: u8,
    },
    /// Makes a named cursor of the log where there is none.
    Cursor {
        /// Its number.
        name: u8,
        /// At this many GLSNs before the newest.
        back: u64,
    },
    /// Moves a named cursor on.
    AdvanceCursor {
        /// Its number.
        name: u8,
        /// Behind this many GLSNs before the newest.
        back: u64,
    },
    /// Removes a named cursor.
    DropCursor {
        /// Its number.
        name: u8,
    },
    /// In a copy of the store: files are damaged, and it is recovered.
    Recover {
        /// Which files, and how: a seed.
        damage: u64,
    },
    /// Writes what is in memory into runs.
    Flush,
    /// Merges all runs.
    Compact,
    /// Does one piece of background work.
    Step,
    /// Does one piece of background work, asking for another kind first.
    Work {
        /// Which kind: its number.
        first: u8,
    },
    /// Drops every cache.
    DropCaches,
    /// Gives the store another memory budget.
    Memory {
        /// How much.
        mebibytes: u16,
    },
    /// Closes the store, keeps a copy of its folder aside, and opens it again.
    Keep,
    /// Puts what was kept aside in the store's place, or a part of it beside the rest.
    Restore {
        /// What of it.
        part: Part,
    },
    /// Closes the store and opens it again.
    Reopen,
    /// Closes the store, recovers a copy of it as it is, and opens it again.
    RecoverWhole,
    /// Closes the store, removes the index by hand, and opens it again.
    LoseIndex,
    /// Backs the store up, opens the backup and compares it.
    Backup,
    /// Backs the store up, cuts the power, and compares the backup; the store is opened again.
    BackupCut,
    /// Reads some keys of each keyspace so that they are kept as objects.
    Warm,
    /// Lets time pass until the warm image is written, and has it written.
    SaveImage,
    /// Ends the process without closing the store, and opens it again.
    Kill,
    /// Reads every byte of the store.
    Verify,
    /// Compares the whole store with the model.
    Check,
    /// Opens the store once more, read-only, and compares what that one reads.
    ReadBeside,
    /// Lets time pass.
    Advance {
        /// How much.
        micros: u64,
    },
    /// Moves the wall clock.
    Jump {
        /// By how much.
        micros: i64,
    },
    /// Cuts the power, and opens the store again.
    Crash {
        /// Cuts it once more at this sync of the recovery (0: not).
        again: u64,
    },
    /// Lets the power be cut later.
    CutAtSync {
        /// At which sync from now on.
        after: u64,
    },
    /// Lets the process end later, in the middle of an operation: what it wrote stays, synced or
    /// not.
    KillAtSync {
        /// At which sync from now on.
        after: u64,
    },
    /// Lets the power be cut later, between two syncs, too.
    CutAtChange {
        /// At which change of a file or a name from now on.
        after: u64,
    },
    /// Lets the process end there instead.
    KillAtChange {
        /// At which change of a file or a name from now on.
        after: u64,
    },
    /// Changes how the disk lies.
    Fault(Fault),
    /// What one of several processes does; with one process, nothing.
    Among(among::Among),
}

impl Op {
    /// The keyspace that it is about, if it is about one.
    pub fn space_mut(&mut self) -> Option<&mut u8> {
        match self {
            Op::Put { space, .. }
            | Op::PutMany { space, .. }
            | Op::BulkLoad { space, .. }
            | Op::LoadBegin { space, .. }
            | Op::Delete { space, .. }
            | Op::Remove { space, .. }
            | Op::Watch { space, .. }
            | Op::Get { space, .. }
            | Op::Walk { space, .. }
            | Op::WalkBegin { space, .. }
            | Op::ReaderBegin { space, .. }
            | Op::History { space, .. }
            | Op::Diff { space, .. }
            | Op::Keyspace { space, .. }
            | Op::DropSpace { space } => Some(space),
            Op::FeedBegin { feed: Feed::Watch { space, .. }, .. } => Some(space),
            Op::Amid { op, .. } | Op::Failing { op, .. } => op.space_mut(),
            _ => None,
        }
    }
}

/// How the disk lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// This many of a thousand reads fail.
    Reads(u16),
    /// This many of a thousand reads return a wrong bit.
    Flips(u16),
    /// The next sync fails.
    Sync,
    /// The n-th following sync fails, of a file or of a folder (1: the next one).
    SyncLater(u64),
    /// The n-th following rename fails (1: the next one).
    RenameLater(u64),
    /// This many bytes are left free.
    Full(u64),
    /// Each read and sync takes up to this many microseconds.
    Slow(u32),
    /// The disk is well again (what was lost stays lost).
    Heal,
}

/// A part of a store's folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it: from now on the store is what it was.
    Whole,
    /// The log; only to see what is said of it.
    Log,
    /// The index; only to see what is said of it.
    Index,
}

/// Where something is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// In a transaction, its own writes on top; in the store as it is now if none is open under
    /// this number.
    Tx(u8),
    /// In a snapshot; in the store as it is now if none is open under this number.
    Snapshot(u8),
    /// In the store as it was this many GLSNs before the newest.
    Back(u64),
}

/// The key of a number, for [`Op::PutMany`], [`Op::BulkLoad`] and [`Op::LoadMany`].
pub fn numbered_key(number: u32) -> Key {
    format!("m/{number:05}").into_bytes()
}

/// By which call a key is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Get {
    /// `get`.
    Value,
    /// `get_reader`.
    Streamed,
    /// `contains_key`.
    Contains,
    /// `get_with`.
    Lent,
    /// By the store's own calls, at its newest moment.
    Now,
    /// `get_resident`.
    Resident,
}

/// Which keys are taken away, and by which call. The numbers choose every n-th key, by its bytes
/// ([`Removal::takes`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// `pop_first`.
    First,
    /// `pop_last`.
    Last,
    /// `retain`.
    Retain(u8),
    /// `extract_if`.
    Extract(u8),
}

impl Removal {
    /// Whether it takes a key away.
    pub fn takes(self, key: &[u8]) -> bool {
        let sum: u64 = key.iter().map(|byte| u64::from(*byte)).sum();
        match self {
            Removal::First | Removal::Last => true,
            Removal::Retain(each) | Removal::Extract(each) => {
                sum.is_multiple_of(u64::from(each.max(1)))
            }
        }
    }
}

/// The end of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edge {
    /// There is none.
    Open,
    /// The key belongs to the range.
    At(Key),
    /// The key does not belong to it.
    Beside(Key),
}

/// A set of keys that stand together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Span {
    /// Between two edges.
    Range(Edge, Edge),
    /// Those that begin so.
    Prefix(Key),
}

/// A moment of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The newest.
    Newest,
    /// This many GLSNs before the newest.
    Back(u64),
    /// This many GLSNs after the newest: refused.
    Ahead(u64),
    /// The time of the clock this many microseconds ago.
    Age(u64),
    /// This many microseconds after an entry of the log was appended: 0 is its own time.
    TimeOf {
        /// The entry: this many GLSNs before the newest.
        back: u64,
        /// How much later; negative: before.
        micros: i64,
    },
}

/// A retention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// Every version.
    #[default]
    Forever,
    /// The latest version of each key.
    Latest,
    /// The versions that the last n GLSNs can see.
    Glsns(u64),
    /// What a reader of at most this age can see.
    Micros(u64),
}

impl Keep {
    /// As the store takes it.
    pub fn retention(self) -> Retention {
        match self {
            Keep::Forever => Retention::Forever,
            Keep::Latest => Retention::Latest,
            Keep::Glsns(glsns) => Retention::Glsns(glsns),
            Keep::Micros(micros) => Retention::Time(Duration::from_micros(micros)),
        }
    }
}

impl Span {
    /// Whether a key belongs to it.
    pub fn contains(&self, key: &[u8]) -> bool {
        match self {
            Span::Prefix(prefix) => key.starts_with(prefix),
            Span::Range(lower, upper) => {
                let above = match lower {
                    Edge::Open => true,
                    Edge::At(edge) => key >= &edge[..],
                    Edge::Beside(edge) => key > &edge[..],
                };
                let below = match upper {
                    Edge::Open => true,
                    Edge::At(edge) => key <= &edge[..],
                    Edge::Beside(edge) => key < &edge[..],
                };
                above && below
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_contains_what_lies_between_its_edges() {
        let range = Span::Range(Edge::At(b"b".to_vec()), Edge::Beside(b"d".to_vec()));
        assert!(range.contains(b"b") && range.contains(b"czz"));
        assert!(!range.contains(b"a") && !range.contains(b"d"));
        let open = Span::Range(Edge::Beside(b"b".to_vec()), Edge::Open);
        assert!(open.contains(b"b\0") && !open.contains(b"b"));
        assert!(
            Span::Prefix(b"ab".to_vec()).contains(b"abc")
                && !Span::Prefix(b"ab".to_vec()).contains(b"b")
        );
    }
}
