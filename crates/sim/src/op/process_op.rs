//! Operations of several processes that share a store, and their text: `among 2 put 1 17
//! 300`.

use std::fmt;
use std::str::FromStr;

/// An act of one process, or an event for it or for the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessOp {
    /// The process; ignored for events of the machine.
    pub member: u8,
    /// The act or event.
    pub act: Act,
}

/// An act of a process, or an event. Keys, keyspaces and cursors are numbers.
#[allow(missing_docs, reason = "the fields are named by their meaning")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Opens the store, and requests this much memory (0: none).
    Join { mebibytes: u64 },
    /// Closes the store.
    Leave,
    /// Is killed now.
    Kill,
    /// The process is killed at this disk operation, counted from its next act.
    KillAt { after: u64 },
    /// The process is stopped at this disk operation in its next act.
    StopAt { after: u64 },
    /// The process is killed this many operations after this change of a file or a name, counted
    /// from its next act.
    KillAtChange { nth: u64, later: u64 },
    /// The process is stopped this many operations after this change of a file or a name in its
    /// next act.
    StopAtChange { nth: u64, later: u64 },
    /// The process is killed when it reaches this border case for the n-th time in its next act.
    KillAtBorder { border: u64, nth: u64 },
    /// The process is stopped when it reaches this border case for the n-th time in its next act.
    StopAtBorder { border: u64, nth: u64 },
    /// In the process's next act, the memory reservation after this many others is refused.
    Refuse { after: u64 },
    /// This read of the process, counted from now, fails in its next act.
    FailRead { nth: u64 },
    /// The process's `nth` read after it next reaches a border fails, within its next act.
    FailReadBeyond { border: u64, nth: u64 },
    /// A stopped process resumes.
    GoOn,
    /// Commits a value.
    Put { space: u64, key: u64, bytes: u64 },
    /// Commits a deletion.
    Delete { space: u64, key: u64 },
    /// Commits an addition to a counter.
    Add { space: u64, counter: u64 },
    /// Loads keys in bulk.
    Load { space: u64, first: u64, count: u64, bytes: u64 },
    /// Begins a transaction.
    TxBegin,
    /// Reads a key in the transaction.
    TxGet { space: u64, key: u64 },
    /// Reads a range of keys in the transaction.
    TxRange { space: u64, from: u64, to: u64 },
    /// Writes in the transaction.
    TxPut { space: u64, key: u64, bytes: u64 },
    /// Deletes a key in the transaction.
    TxDelete { space: u64, key: u64 },
    /// Pops the first or last key in the transaction.
    TxPop { space: u64, last: u64 },
    /// Deletes a range of keys in the transaction.
    TxRemove { space: u64, from: u64, to: u64 },
    /// Commits the transaction.
    TxCommit,
    /// Aborts the transaction.
    TxAbort,
    /// Reads a key.
    Get { space: u64, key: u64 },
    /// Reads a keyspace.
    Scan { space: u64 },
    /// Opens a snapshot that stays open.
    Snapshot,
    /// Reads a keyspace in the oldest open snapshot.
    Past { space: u64 },
    /// Drops the oldest snapshot.
    Release,
    /// Creates or opens the temporary keyspace.
    MakeSpace,
    /// Drops the temporary keyspace.
    DropSpace,
    /// Creates a cursor at this many GLSNs before the newest.
    Cursor { name: u64, back: u64 },
    /// Moves a cursor to this many GLSNs before the newest.
    AdvanceCursor { name: u64, back: u64 },
    /// Drops a cursor.
    DropCursor { name: u64 },
    /// Tags the moment of its oldest snapshot, or the newest one.
    Tag { name: u64 },
    /// Deletes a tag.
    DeleteTag { name: u64 },
    /// Appends entries to a stream.
    Append { stream: u64, count: u64, bytes: u64 },
    /// Begins to follow a stream (0: the commits), from this many GLSNs before the newest.
    Follow { stream: u64, back: u64 },
    /// Takes the next entries of the stream that it follows.
    Take,
    /// Reads the next entries after a cursor, and moves it past them.
    Consume { name: u64 },
    /// Runs one step of background work.
    Step { first: u64 },
    /// Makes all commits durable.
    Sync,
    /// Flushes.
    Flush,
    /// Merges all runs.
    Compact,
    /// Trims the log up to this many GLSNs before the newest.
    Trim { back: u64 },
    /// Reads every byte of the store.
    Verify,
    /// Makes a backup, which is opened and compared.
    Backup,
    /// Drops its caches.
    DropCaches,
    /// Compares the complete contents as read by every process.
    Check,
    /// Lets time pass.
    Advance { millis: u64 },
    /// The power is cut.
    PowerCut,
    /// The power is cut at this sync, counted from now.
    CutAtSync { after: u64 },
    /// This sync, counted from now, fails.
    FailSync { after: u64 },
    /// This sync, counted from now, fails, and the process that sees the error is killed before it
    /// can publish the failure.
    FailSyncAndKill { after: u64 },
    /// All processes leave or are killed; the store is opened alone, compared, and verified.
    Alone,
}

/// The name of an act, and its numbers.
fn parts(act: Act) -> (&'static str, Vec<u64>) {
    match act {
        Act::Join { mebibytes } => ("join", vec![mebibytes]),
        Act::Leave => ("leave", vec![]),
        Act::Kill => ("kill", vec![]),
        Act::KillAt { after } => ("kill-at", vec![after]),
        Act::StopAt { after } => ("stop-at", vec![after]),
        Act::KillAtChange { nth, later } => ("kill-at-change", vec![nth, later]),
        Act::StopAtChange { nth, later } => ("stop-at-change", vec![nth, later]),
        Act::KillAtBorder { border, nth } => ("kill-at-border", vec![border, nth]),
        Act::StopAtBorder { border, nth } => ("stop-at-border", vec![border, nth]),
        Act::Refuse { after } => ("refuse", vec![after]),
        Act::FailRead { nth } => ("fail-read", vec![nth]),
        Act::FailReadBeyond { border, nth } => ("fail-read-beyond", vec![border, nth]),
        Act::GoOn => ("go-on", vec![]),
        Act::Put { space, key, bytes } => ("put", vec![space, key, bytes]),
        Act::Delete { space, key } => ("delete", vec![space, key]),
        Act::Add { space, counter } => ("add", vec![space, counter]),
        Act::Load { space, first, count, bytes } => ("load", vec![space, first, count, bytes]),
        Act::TxBegin => ("tx-begin", vec![]),
        Act::TxGet { space, key } => ("tx-get", vec![space, key]),
        Act::TxRange { space, from, to } => ("tx-range", vec![space, from, to]),
        Act::TxPut { space, key, bytes } => ("tx-put", vec![space, key, bytes]),
        Act::TxDelete { space, key } => ("tx-delete", vec![space, key]),
        Act::TxPop { space, last } => ("tx-pop", vec![space, last]),
        Act::TxRemove { space, from, to } => ("tx-remove", vec![space, from, to]),
        Act::TxCommit => ("tx-commit", vec![]),
        Act::TxAbort => ("tx-abort", vec![]),
        Act::Get { space, key } => ("get", vec![space, key]),
        Act::Scan { space } => ("scan", vec![space]),
        Act::Snapshot => ("snapshot", vec![]),
        Act::Past { space } => ("past", vec![space]),
        Act::Release => ("release", vec![]),
        Act::MakeSpace => ("make-space", vec![]),
        Act::DropSpace => ("drop-space", vec![]),
        Act::Cursor { name, back } => ("cursor", vec![name, back]),
        Act::AdvanceCursor { name, back } => ("advance-cursor", vec![name, back]),
        Act::DropCursor { name } => ("drop-cursor", vec![name]),
        Act::Tag { name } => ("tag", vec![name]),
        Act::DeleteTag { name } => ("delete-tag", vec![name]),
        Act::Append { stream, count, bytes } => ("append", vec![stream, count, bytes]),
        Act::Follow { stream, back } => ("follow", vec![stream, back]),
        Act::Take => ("take", vec![]),
        Act::Consume { name } => ("consume", vec![name]),
        Act::Step { first } => ("step", vec![first]),
        Act::Sync => ("sync", vec![]),
        Act::Flush => ("flush", vec![]),
        Act::Compact => ("compact", vec![]),
        Act::Trim { back } => ("trim", vec![back]),
        Act::Verify => ("verify", vec![]),
        Act::Backup => ("backup", vec![]),
        Act::DropCaches => ("drop-caches", vec![]),
        Act::Check => ("check", vec![]),
        Act::Advance { millis } => ("advance", vec![millis]),
        Act::PowerCut => ("power-cut", vec![]),
        Act::CutAtSync { after } => ("cut-at-sync", vec![after]),
        Act::FailSync { after } => ("fail-sync", vec![after]),
        Act::FailSyncAndKill { after } => ("fail-sync-and-kill", vec![after]),
        Act::Alone => ("alone", vec![]),
    }
}

/// The act of this name.
fn act(name: &str, numbers: &[u64]) -> Option<Act> {
    Some(match (name, numbers) {
        ("join", &[mebibytes]) => Act::Join { mebibytes },
        ("leave", []) => Act::Leave,
        ("kill", []) => Act::Kill,
        ("kill-at", &[after]) => Act::KillAt { after },
        ("stop-at", &[after]) => Act::StopAt { after },
        ("kill-at-change", &[nth, later]) => Act::KillAtChange { nth, later },
        ("stop-at-change", &[nth, later]) => Act::StopAtChange { nth, later },
        ("kill-at-border", &[border, nth]) => Act::KillAtBorder { border, nth },
        ("stop-at-border", &[border, nth]) => Act::StopAtBorder { border, nth },
        ("refuse", &[after]) => Act::Refuse { after },
        ("fail-read", &[nth]) => Act::FailRead { nth },
        ("fail-read-beyond", &[border, nth]) => Act::FailReadBeyond { border, nth },
        ("go-on", []) => Act::GoOn,
        ("put", &[space, key, bytes]) => Act::Put { space, key, bytes },
        ("delete", &[space, key]) => Act::Delete { space, key },
        ("add", &[space, counter]) => Act::Add { space, counter },
        ("load", &[space, first, count, bytes]) => Act::Load { space, first, count, bytes },
        ("tx-begin", []) => Act::TxBegin,
        ("tx-get", &[space, key]) => Act::TxGet { space, key },
        ("tx-range", &[space, from, to]) => Act::TxRange { space, from, to },
        ("tx-put", &[space, key, bytes]) => Act::TxPut { space, key, bytes },
        ("tx-delete", &[space, key]) => Act::TxDelete { space, key },
        ("tx-pop", &[space, last]) => Act::TxPop { space, last },
        ("tx-remove", &[space, from, to]) => Act::TxRemove { space, from, to },
        ("tx-commit", []) => Act::TxCommit,
        ("tx-abort", []) => Act::TxAbort,
        ("get", &[space, key]) => Act::Get { space, key },
        ("scan", &[space]) => Act::Scan { space },
        ("snapshot", []) => Act::Snapshot,
        ("past", &[space]) => Act::Past { space },
        ("release", []) => Act::Release,
        ("make-space", []) => Act::MakeSpace,
        ("drop-space", []) => Act::DropSpace,
        ("cursor", &[name, back]) => Act::Cursor { name, back },
        ("advance-cursor", &[name, back]) => Act::AdvanceCursor { name, back },
        ("drop-cursor", &[name]) => Act::DropCursor { name },
        ("tag", &[name]) => Act::Tag { name },
        ("delete-tag", &[name]) => Act::DeleteTag { name },
        ("append", &[stream, count, bytes]) => Act::Append { stream, count, bytes },
        ("follow", &[stream, back]) => Act::Follow { stream, back },
        ("take", []) => Act::Take,
        ("consume", &[name]) => Act::Consume { name },
        ("step", &[first]) => Act::Step { first },
        ("sync", []) => Act::Sync,
        ("flush", []) => Act::Flush,
        ("compact", []) => Act::Compact,
        ("trim", &[back]) => Act::Trim { back },
        ("verify", []) => Act::Verify,
        ("backup", []) => Act::Backup,
        ("drop-caches", []) => Act::DropCaches,
        ("check", []) => Act::Check,
        ("advance", &[millis]) => Act::Advance { millis },
        ("power-cut", []) => Act::PowerCut,
        ("cut-at-sync", &[after]) => Act::CutAtSync { after },
        ("fail-sync", &[after]) => Act::FailSync { after },
        ("fail-sync-and-kill", &[after]) => Act::FailSyncAndKill { after },
        ("alone", []) => Act::Alone,
        _ => return None,
    })
}

impl fmt::Display for ProcessOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, numbers) = parts(self.act);
        write!(f, "among {} {name}", self.member)?;
        numbers.iter().try_for_each(|number| write!(f, " {number}"))
    }
}

impl FromStr for ProcessOp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace().skip(1);
        let member = words.next().and_then(|word| word.parse().ok()).ok_or("which process?")?;
        let name = words.next().ok_or("the act is missing")?;
        let numbers = words.map(|word| word.parse().map_err(|_| format!("{word} is not a number")));
        let numbers = numbers.collect::<Result<Vec<u64>, _>>()?;
        let act = act(name, &numbers).ok_or_else(|| format!("unknown act: {name} {numbers:?}"))?;
        Ok(Self { member, act })
    }
}

#[cfg(test)]
mod tests {
    use crate::op::Op;
    use crate::op::generate::process_ops::generate;

    #[test]
    fn process_op_round_trips_through_its_text() {
        for op in (0..30).flat_map(|seed| generate(seed, 300)) {
            let Op::OfProcess(process_op) = &op else { panic!("{op}") };
            assert_eq!(process_op.to_string().parse(), Ok(*process_op));
            assert_eq!(op.to_string().parse(), Ok(op));
        }
    }
}
