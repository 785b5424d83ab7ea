//! The workload language: operations on a store, and on the world around it.
//!
//! The model test, crash simulation, fault injection, metamorphic test, fuzzer and minimiser share
//! this language. A workload is generated from a seed ([`generate`]) or from arbitrary bytes, is
//! printed with one operation per line, and is parsed back ([`text`]), so that a failing run can be
//! replayed and shortened.
//!
//! Invariant: every operation is valid after any other, so that removing operations leaves a valid
//! workload. An operation without a target (a transaction that is not open) does nothing; moments
//! are relative to the newest one.

pub mod generate;
mod operands;
pub mod process_op;
pub mod text;
mod within;

use plimsoll::Compression;

use crate::content::Content;
pub use crate::op::operands::{
    Change, Edge, Fault, Get, Keep, Moment, Part, Reader, Removal, Span,
};
pub use crate::op::within::{Call, Feed, NestedOp, Within};

/// A key's bytes.
pub type Key = Vec<u8>;

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Begins a transaction; an open one with this number is dropped.
    Begin {
        /// Its number.
        tx: u8,
    },
    /// Begins a transaction that reads ordered commits, durable or not; an open one with this
    /// number is dropped.
    BeginOrdered {
        /// Its number.
        tx: u8,
    },
    /// Commits.
    Commit {
        /// The transaction.
        tx: u8,
        /// The commit's metadata.
        metadata: Content,
    },
    /// Submits a commit without waiting for it.
    Submit {
        /// The transaction.
        tx: u8,
    },
    /// Aborts.
    Abort {
        /// The transaction.
        tx: u8,
    },
    /// Waits for the oldest submitted commit.
    Wait,
    /// Puts a key.
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
    /// Puts many keys.
    PutMany {
        /// The transaction.
        tx: u8,
        /// The keyspace's number.
        space: u8,
        /// The number of the first key ([`numbered_key`]).
        first: u32,
        /// Number of keys.
        count: u32,
        /// The first key's value; each later value has the next seed.
        value: Content,
        /// Whether the keys are put in a shuffled order.
        scattered: bool,
    },
    /// Puts many keys by a bulk load, which is a separate commit.
    BulkLoad {
        /// The keyspace's number.
        space: u8,
        /// The number of the first key ([`numbered_key`]).
        first: u32,
        /// Number of keys.
        count: u32,
        /// The first key's value; each later value has the next seed.
        value: Content,
        /// Whether the keys are put in a shuffled order.
        scattered: bool,
    },
    /// Begins a bulk load that stays open across other operations; an open one with this number is
    /// dropped.
    LoadBegin {
        /// Its number.
        slot: u8,
        /// The keyspace's number.
        space: u8,
    },
    /// Puts a key in an open bulk load.
    LoadPut {
        /// The load.
        slot: u8,
        /// The key.
        key: Key,
        /// The value.
        value: Content,
    },
    /// Puts many keys in an open bulk load.
    LoadMany {
        /// The load.
        slot: u8,
        /// The number of the first key ([`numbered_key`]).
        first: u32,
        /// Number of keys.
        count: u32,
        /// The first key's value; each later value has the next seed.
        value: Content,
        /// Whether the keys are put in a shuffled order.
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
    /// Updates a key without reading it.
    Update {
        /// The transaction.
        tx: u8,
        /// The keyspace's number.
        space: u8,
        /// The key.
        key: Key,
        /// How.
        change: Change,
    },
    /// Deletes a key.
    Delete {
        /// The transaction.
        tx: u8,
        /// The keyspace's number.
        space: u8,
        /// The key.
        key: Key,
    },
    /// Deletes keys found by a scan.
    Remove {
        /// The transaction.
        tx: u8,
        /// The keyspace's number.
        space: u8,
        /// The range of keys; ignored by pops.
        span: Span,
        /// The keys to delete within the range, and the call.
        how: Removal,
        /// Upper bound on the keys, for calls that return keys one by one.
        limit: u32,
    },
    /// Deletes a range of keys in a separate commit.
    DeleteRange {
        /// The keyspace's number.
        space: u8,
        /// The range of keys.
        span: Span,
    },
    /// Reads a key.
    Get {
        /// Where.
        from: Reader,
        /// The keyspace's number.
        space: u8,
        /// The key.
        key: Key,
        /// The call.
        how: Get,
    },
    /// Scans keys.
    Walk {
        /// Where.
        from: Reader,
        /// The keyspace's number.
        space: u8,
        /// Which keys.
        span: Span,
        /// Whether the order is descending.
        reverse: bool,
        /// Upper bound on the number.
        limit: u32,
        /// Whether values are omitted.
        keys_only: bool,
        /// After this many keys the sources are replaced and the log is trimmed.
        replace_after: Option<u32>,
    },
    /// Begins a walk in a snapshot that stays open across other operations; an open one with this
    /// number is dropped.
    WalkBegin {
        /// Its number.
        slot: u8,
        /// The snapshot or the newest state; not a transaction.
        from: Reader,
        /// The keyspace's number.
        space: u8,
        /// Which keys.
        span: Span,
        /// Whether the order is descending.
        reverse: bool,
        /// Whether values are omitted.
        keys_only: bool,
    },
    /// Continues an open walk; drops it at its end.
    WalkOn {
        /// Its number.
        slot: u8,
        /// Number of keys.
        count: u32,
    },
    /// Opens a reader of a value; an open one with this number is dropped.
    ReaderBegin {
        /// Its number.
        slot: u8,
        /// The snapshot or the newest state; not a transaction.
        from: Reader,
        /// The keyspace's number.
        space: u8,
        /// The key.
        key: Key,
    },
    /// Continues reading a value; drops the reader at the end.
    ReaderOn {
        /// Its number.
        slot: u8,
        /// Number of bytes.
        bytes: u32,
    },
    /// Runs an operation, and a nested one at a point within it, as another thread could.
    WithNested {
        /// The point.
        at: Within,
        /// The nested operation.
        nested: NestedOp,
        /// The operation.
        op: Box<Op>,
    },
    /// Runs an operation in which one call fails; the workload continues afterwards.
    Failing {
        /// The failing call.
        call: Call,
        /// The operation.
        op: Box<Op>,
    },
    /// Another transaction changes a key at an edge of this one's reads.
    Edge {
        /// The reading transaction.
        tx: u8,
        /// The edge, and the key at it.
        pick: u32,
        /// The new value, unless `pick` chooses a deletion.
        value: Content,
        /// Whether the change is the first or last of a commit written as a run.
        spilled: bool,
    },
    /// Begins a feed that stays open across other operations; an open one with this number is
    /// dropped.
    FeedBegin {
        /// Its number.
        slot: u8,
        /// From this many GLSNs before the newest.
        back: u64,
        /// The items that it yields.
        feed: Feed,
    },
    /// Takes the next items of a feed.
    FeedOn {
        /// Its number.
        slot: u8,
        /// Upper bound on the number.
        count: u32,
    },
    /// Opens a snapshot; an open one with this number is dropped.
    Snapshot {
        /// Its number.
        slot: u8,
        /// The moment.
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
        /// The prefix of the keys.
        prefix: Key,
    },
    /// Reverts a commit.
    Revert {
        /// The commit: this many GLSNs before the newest.
        back: u64,
        /// Whether the earlier value wins a conflict.
        takes_theirs: bool,
    },
    /// Resets keyspaces to a moment.
    Reset {
        /// The keyspace's number; `None`: all.
        space: Option<u8>,
        /// The moment: this many GLSNs before the newest.
        back: u64,
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
    /// Scans the log.
    Scan {
        /// From this many GLSNs before the newest.
        back: u64,
        /// Number of GLSNs.
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
        /// The prefix of the keys.
        prefix: Key,
    },
    /// Reads one entry of the log.
    Read {
        /// This many GLSNs before the newest.
        back: u64,
    },
    /// Trims the log.
    Trim {
        /// Up to this many GLSNs before the newest.
        back: u64,
    },
    /// Creates a keyspace, or changes its retention.
    Keyspace {
        /// Its number.
        space: u8,
        /// Its retention.
        retention: Keep,
    },
    /// Changes how the values of a keyspace are compressed. No answer depends on it.
    Compress {
        /// Its number.
        space: u8,
        /// Its compression.
        compression: Compression,
    },
    /// Drops a keyspace with all its keys; the same number then refers to a new keyspace.
    DropSpace {
        /// Its number.
        space: u8,
    },
    /// Creates a named cursor of the log, if it does not exist.
    Cursor {
        /// Its number.
        name: u8,
        /// At this many GLSNs before the newest.
        back: u64,
    },
    /// Advances a named cursor.
    AdvanceCursor {
        /// Its number.
        name: u8,
        /// To just after the entry this many GLSNs before the newest.
        back: u64,
    },
    /// Removes a named cursor.
    DropCursor {
        /// Its number.
        name: u8,
    },
    /// Tags a moment.
    Tag {
        /// The number of the tag.
        name: u8,
        /// The moment this many GLSNs before the newest.
        back: u64,
    },
    /// Reads everything at a tag.
    ReadTag {
        /// Its number.
        name: u8,
    },
    /// Deletes a tag.
    DeleteTag {
        /// Its number.
        name: u8,
    },
    /// Damages files in a copy of the store, and recovers the copy.
    Recover {
        /// Seed of the damage.
        damage: u64,
    },
    /// Flushes the memtables.
    Flush,
    /// Merges all runs.
    Compact,
    /// Runs one step of background work.
    Step,
    /// Runs one step of background work; tries this kind first.
    Work {
        /// The number of the kind.
        first: u8,
    },
    /// Drops every cache.
    DropCaches,
    /// Changes the store's memory budget.
    Memory {
        /// How much.
        mebibytes: u16,
    },
    /// Closes the store, keeps a copy of its folder, and reopens it.
    Keep,
    /// Replaces the store, or a part of it, by the kept copy.
    Restore {
        /// The part.
        part: Part,
    },
    /// Closes and reopens the store.
    Reopen,
    /// Closes the store, recovers an undamaged copy of it, and reopens it.
    RecoverWhole,
    /// Closes the store, removes the index, and reopens it.
    LoseIndex,
    /// Makes a backup, opens it and compares it.
    Backup,
    /// Makes a backup, cuts the power, compares the backup, and reopens the store.
    BackupCut,
    /// Reads some keys of each keyspace, so that they enter the row cache.
    Warm,
    /// Lets time pass until the warm image is due, and saves it.
    SaveImage,
    /// Ends the process without closing the store, and reopens it.
    Kill,
    /// Reads every byte of the store.
    Verify,
    /// Compares the whole store with the model.
    Check,
    /// Opens the store a second time, read-only, and compares its reads.
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
    /// Cuts the power, and reopens the store.
    Crash {
        /// Cuts it again at this sync of the recovery (0: not).
        again: u64,
    },
    /// Schedules a power cut.
    CutAtSync {
        /// The sync, counted from now.
        after: u64,
    },
    /// Schedules the end of the process, in the middle of an operation; its writes remain, synced
    /// or not.
    KillAtSync {
        /// The sync, counted from now.
        after: u64,
    },
    /// Schedules a power cut, possibly between two syncs.
    CutAtChange {
        /// The change of a file or a name, counted from now.
        after: u64,
    },
    /// Schedules the end of the process at such a change.
    KillAtChange {
        /// The change of a file or a name, counted from now.
        after: u64,
    },
    /// Sets the disk's faults.
    Fault(Fault),
    /// An act of one of several processes; ignored in a run with one process.
    OfProcess(process_op::ProcessOp),
    /// A step of a run with values that expire, chosen by this number; ignored in other runs.
    Timed(u64),
    /// A step of a run with branches, chosen by this number; ignored in other runs.
    Branching(u64),
    /// A step of a run with several stores, chosen by this number; ignored in other runs.
    Syncing(u64),
    /// A step of a run with replicas, chosen by this number; ignored in other runs.
    Ordering(u64),
}

impl Op {
    /// The keyspace of the operation, if any.
    pub fn space_mut(&mut self) -> Option<&mut u8> {
        match self {
            Op::Put { space, .. }
            | Op::Update { space, .. }
            | Op::PutMany { space, .. }
            | Op::BulkLoad { space, .. }
            | Op::LoadBegin { space, .. }
            | Op::Delete { space, .. }
            | Op::Remove { space, .. }
            | Op::DeleteRange { space, .. }
            | Op::Watch { space, .. }
            | Op::Get { space, .. }
            | Op::Walk { space, .. }
            | Op::WalkBegin { space, .. }
            | Op::ReaderBegin { space, .. }
            | Op::History { space, .. }
            | Op::Diff { space, .. }
            | Op::Keyspace { space, .. }
            | Op::Compress { space, .. }
            | Op::DropSpace { space } => Some(space),
            Op::FeedBegin { feed: Feed::Watch { space, .. }, .. } => Some(space),
            Op::WithNested { op, .. } | Op::Failing { op, .. } => op.space_mut(),
            _ => None,
        }
    }
}

/// The key of a number, for [`Op::PutMany`], [`Op::BulkLoad`] and [`Op::LoadMany`].
pub fn numbered_key(number: u32) -> Key {
    format!("m/{number:05}").into_bytes()
}
