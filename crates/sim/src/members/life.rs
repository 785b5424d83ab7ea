//! The open store of a process, and its acts. Runs in its own thread, which stops when the process
//! is stopped.

use std::collections::{BTreeSet, VecDeque};

use plimsoll::{
    Db, Error, Glsn, InvalidInput, Keyspace, Options, Overflow, Result, Retention, Snapshot,
    Transaction,
};

use crate::content::Content;
use crate::members::model::{FIRST_COUNTER, MARKS, Span, Write};
use crate::members::notes::{self, CURSORS, Follower, Note, TakenEntries};
use crate::members::tags;
use crate::op::process_op::Act;

/// The store's path.
pub(super) const STORE: &str = "/store";

/// The most snapshots that a process holds.
const SNAPSHOTS_MAX: usize = 3;

/// Names of the keyspaces.
const SPACES: [&str; 3] = ["latest", "other", "passing"];

/// The temporary keyspace, which acts create and drop.
pub(super) const PASSING: u64 = 2;

/// An open store.
pub(super) struct Life {
    pub(super) db: Db,
    pub(super) tx: Option<Tx>,
    pub(super) snapshots: VecDeque<Snapshot>,
    follower: Option<Follower>,
    marks: Keyspace,
    pub(super) spaces: [Keyspace; 2],
}

/// An open transaction.
pub(super) struct Tx {
    handle: Transaction,
    pub(super) at: u64,
    pub(super) reads: Vec<Span>,
    pub(super) writes: Vec<Write>,
}

/// The order to execute an act.
#[derive(Clone)]
pub(super) struct Order {
    pub(super) act: Act,
    /// The number of its commit, if it makes one.
    pub(super) id: u64,
    /// Options for opening the store.
    pub(super) options: Options,
    /// Path of a backup.
    pub(super) backup: String,
    /// The newest commit at the time of the order.
    pub(super) newest: u64,
    /// The newest commit that the process must see.
    pub(super) seen: u64,
    /// Retention of the keyspace that may keep everything.
    pub(super) retention: Retention,
    /// Whether commits of this process are acknowledged before they are durable.
    pub(super) is_buffered: bool,
}

/// The answer of a process.
#[derive(Debug)]
pub(super) enum Answer {
    /// Nothing to compare.
    Done,
    /// A commit.
    Committed(Glsn),
    /// The rows as of a moment.
    Rows { span: Span, at: u64, own: Vec<Write>, rows: Vec<(u64, Vec<u8>)> },
    /// The temporary keyspace does not exist.
    NoSpace,
    /// The problems found by a verification.
    Verified(Vec<String>),
    /// A backup.
    BackedUp,
    /// The temporary keyspace exists, with this many rows.
    Made { rows: usize },
    /// The temporary keyspace was dropped.
    Dropped,
    /// Another process has dropped it; possibly the drop is not durable yet.
    DroppedByAnother,
    /// All earlier commits are durable.
    Synced,
    /// Appended entries.
    Appended { first: Glsn, last: Glsn },
    /// Entries taken from a follower or a cursor.
    Taken(TakenEntries),
    /// The position of a cursor; `None`: it was dropped.
    Cursor { name: u64, at: Option<Glsn> },
    /// The moment of a tag (`None`: there is no tag), and whether the act has changed that.
    Tag { name: u64, at: Option<Glsn>, is_changed: bool },
}

/// The bytes of a key.
pub(super) fn key_bytes(key: u64) -> [u8; 8] {
    key.to_be_bytes()
}

/// The mark that a commit leaves.
pub(super) fn mark(id: u64) -> Write {
    Write { space: MARKS, key: id, content: Some(Content { bytes: 8, seed: id as u32 }) }
}

/// Writes of an act that is a commit by itself.
pub(super) fn writes_of(act: Act, id: u64) -> Option<Vec<Write>> {
    let content = |bytes: u64| Some(Content { bytes: bytes as u32, seed: id as u32 });
    Some(match act {
        Act::Put { space, key, bytes } => {
            vec![Write { space, key, content: content(bytes) }, mark(id)]
        }
        Act::Delete { space, key } => vec![Write { space, key, content: None }, mark(id)],
        Act::Add { space, counter } => {
            let content = Some(Content { bytes: 8, seed: 1 + id as u32 % 7 });
            vec![Write { space, key: FIRST_COUNTER + counter, content }, mark(id)]
        }
        _ => return None,
    })
}

impl Life {
    /// Opens the store.
    pub(super) fn open(path: &str, options: Options, retention: Retention) -> Result<Self> {
        let db = Db::open(path, options)?;
        let marks = db.create_keyspace("marks", Retention::Latest)?;
        let spaces = [
            db.create_keyspace(SPACES[0], Retention::Latest)?,
            db.create_keyspace(SPACES[1], retention)?,
        ];
        Ok(Self { db, tx: None, snapshots: VecDeque::new(), follower: None, marks, spaces })
    }

    /// The keyspace with this number in a snapshot, if it exists.
    fn space(&self, space: u64) -> Result<Option<Keyspace>> {
        match space {
            MARKS => Ok(Some(self.marks.clone())),
            PASSING => self.db.snapshot().keyspace(SPACES[2]),
            other => Ok(Some(self.spaces[other as usize % 2].clone())),
        }
    }

    /// The GLSN of a commit according to its mark, if this process sees it.
    pub(super) fn place_of(&self, id: u64) -> Result<Option<u64>> {
        let version = self.db.history(&self.marks, key_bytes(id))?.next().transpose()?;
        Ok(version.filter(|version| version.bytes.is_some()).map(|version| version.glsn.0))
    }

    /// The rows of a span in a new snapshot.
    pub(super) fn read(&self, span: Span) -> Result<Answer> {
        let snapshot = self.db.snapshot();
        match self.space(span.space)? {
            Some(space) => read_in(&snapshot, &space, span),
            None => Ok(Answer::NoSpace),
        }
    }

    /// Reads the two lasting keyspaces in each of its snapshots.
    pub(super) fn past(&self) -> impl Iterator<Item = Result<Answer>> {
        let spans = |space| Span { space, from: 0, to: u64::MAX };
        let both = move |snapshot| [0, 1].map(|space| (snapshot, space));
        let reads = self.snapshots.iter().flat_map(both);
        reads.map(move |(snapshot, space)| {
            read_in(snapshot, &self.spaces[space as usize], spans(space))
        })
    }

    fn commit(&self, writes: &[Write]) -> Result<Answer> {
        let mut tx = self.db.begin();
        for write in writes {
            let Some(space) = self.space(write.space)? else { return Ok(Answer::NoSpace) };
            put(&mut tx, &space, write)?;
        }
        Ok(Answer::Committed(tx.commit()?))
    }
}

fn put(tx: &mut Transaction, space: &Keyspace, write: &Write) -> Result<()> {
    match write.content {
        Some(content) if write.key >= FIRST_COUNTER => {
            tx.add(space, key_bytes(write.key), content.seed.into(), Overflow::Checked)
        }
        Some(content) => tx.put(space, key_bytes(write.key), content.make()),
        None => tx.delete(space, key_bytes(write.key)),
    }
}

/// The rows of a span in a snapshot.
pub(super) fn read_in(snapshot: &Snapshot, space: &Keyspace, span: Span) -> Result<Answer> {
    let at = snapshot.at().0;
    let mut rows = Vec::new();
    if span.to == span.from + 1 {
        rows.extend(
            snapshot.get(space, key_bytes(span.from))?.map(|value| (span.from, value.to_vec())),
        );
    } else {
        for row in snapshot.range(space, key_bytes(span.from)..key_bytes(span.to))? {
            let (key, value) = row?;
            rows.push((number_of(&key), value.to_vec()));
        }
    }
    Ok(Answer::Rows { span, at, own: Vec::new(), rows })
}

fn number_of(key: &[u8]) -> u64 {
    key.try_into().map_or(u64::MAX, u64::from_be_bytes)
}

/// Executes an order. An act without a target does nothing.
pub(super) fn perform(slot: &mut Option<Life>, order: &Order) -> Result<Answer> {
    let Some(life) = slot else {
        if let Act::Join { .. } = order.act {
            *slot = Some(Life::open(STORE, order.options.clone(), order.retention)?);
        }
        return Ok(Answer::Done);
    };
    if order.act == Act::Leave {
        let Life { db, tx, snapshots, follower, .. } = slot.take().expect("the store is open");
        drop((tx, snapshots, follower));
        return db.close().map(|()| Answer::Synced);
    }
    if let Some(writes) = writes_of(order.act, order.id) {
        return life.commit(&writes);
    }
    let db = life.db.clone();
    match order.act {
        Act::TxBegin
        | Act::TxGet { .. }
        | Act::TxRange { .. }
        | Act::TxPut { .. }
        | Act::TxPop { .. }
        | Act::TxRemove { .. }
        | Act::TxDelete { .. } => transact(life, order).inspect_err(|error| {
            // After a failed write, or if it could not see everything, a transaction can only be
            // aborted.
            let is_read = matches!(order.act, Act::TxGet { .. } | Act::TxRange { .. });
            let is_read = is_read && !matches!(error, Error::Behind { .. });
            life.tx.take_if(|_| !is_read);
        }),
        Act::TxCommit => {
            let Some(Tx { mut handle, .. }) = life.tx.take() else { return Ok(Answer::Done) };
            put(&mut handle, &life.marks, &mark(order.id))?;
            Ok(Answer::Committed(handle.commit()?))
        }
        Act::TxAbort => {
            life.tx = None;
            Ok(Answer::Done)
        }
        Act::Load { space, first, count, bytes } => {
            load(life, order, space, first..first + count, bytes)
        }
        Act::Get { space, key } => get(life, space, key),
        Act::Scan { space } => life.read(Span { space, from: 0, to: u64::MAX }),
        Act::Snapshot => {
            life.snapshots.truncate(SNAPSHOTS_MAX - 1);
            life.snapshots.push_back(db.snapshot());
            Ok(Answer::Done)
        }
        Act::Past { space } => match life.snapshots.front() {
            Some(snapshot) => {
                let space = space % 2;
                read_in(
                    snapshot,
                    &life.spaces[space as usize],
                    Span { space, from: 0, to: u64::MAX },
                )
            }
            None => Ok(Answer::Done),
        },
        Act::Release => {
            life.snapshots.pop_front();
            Ok(Answer::Done)
        }
        Act::MakeSpace => {
            db.create_keyspace(SPACES[2], Retention::Latest)?;
            if order.is_buffered {
                db.sync()?;
            }
            match life.read(Span { space: PASSING, from: 0, to: u64::MAX })? {
                Answer::Rows { rows, .. } => Ok(Answer::Made { rows: rows.len() }),
                _ => Ok(Answer::NoSpace),
            }
        }
        Act::DropSpace => match life.space(PASSING)? {
            Some(space) => match db.drop_keyspace(&space) {
                // Another process has ordered a drop, and died before the drop was durable.
                Err(Error::InvalidInput(InvalidInput::KeyspaceDropped { .. })) => {
                    Ok(Answer::DroppedByAnother)
                }
                dropped => {
                    dropped?;
                    if order.is_buffered {
                        db.sync()?;
                    }
                    Ok(Answer::Dropped)
                }
            },
            None => Ok(Answer::NoSpace),
        },
        Act::Cursor { .. } | Act::AdvanceCursor { .. } | Act::DropCursor { .. } => {
            cursor(&db, order.act)
        }
        Act::Tag { name } => {
            // The moment of the oldest snapshot, or the newest one.
            let oldest = life.snapshots.front().map(Snapshot::at);
            let (at, is_changed) = tags::create(&db, name, oldest)?;
            Ok(Answer::Tag { name, at: Some(at), is_changed })
        }
        Act::DeleteTag { name } => {
            Ok(Answer::Tag { name, at: None, is_changed: tags::delete(&db, name)? })
        }
        Act::Append { stream, count, bytes } => {
            let places = notes::append(&db, &Note::of_commit(order.id, stream, count, bytes))?;
            Ok(Answer::Appended { first: *places.start(), last: *places.end() })
        }
        Act::Follow { stream, back } => {
            life.follower = Some(Follower::begin(&db, stream, back)?);
            Ok(Answer::Done)
        }
        Act::Take => match &mut life.follower {
            Some(follower) => follower.take(&db).map(Answer::Taken),
            None => Ok(Answer::Done),
        },
        Act::Consume { name } => Ok(notes::consume(&db, name)?.map_or(Answer::Done, Answer::Taken)),
        Act::Step { first } => db.step_from(first as usize % 6).map(|_| Answer::Done),
        Act::Sync => db.sync().map(|_| Answer::Synced),
        Act::Flush => db.flush().map(|()| Answer::Done),
        Act::Compact => db.compact().map(|()| Answer::Done),
        Act::Trim { back } => {
            db.log().trim(Glsn(db.newest().0.saturating_sub(back))).map(|_| Answer::Done)
        }
        Act::Verify => {
            let report = db.verify(&mut |_| {})?;
            Ok(Answer::Verified(
                report.problems.iter().map(|problem| format!("{problem:?}")).collect(),
            ))
        }
        Act::Backup => db.backup(&order.backup).map(|_| Answer::BackedUp),
        Act::DropCaches => {
            db.drop_caches();
            Ok(Answer::Done)
        }
        _ => Ok(Answer::Done),
    }
}

/// Reads a key at the newest moment, without a snapshot.
fn get(life: &Life, space: u64, key: u64) -> Result<Answer> {
    let Some(keyspace) = life.space(space)? else { return Ok(Answer::NoSpace) };
    let before = life.db.newest();
    let value = life.db.get(&keyspace, key_bytes(key))?;
    if life.db.newest() != before {
        // The process was stopped meanwhile, so the moment that it read is unknown.
        return Ok(Answer::Done);
    }
    let rows = value.map(|value| (key, value.to_vec())).into_iter().collect();
    Ok(Answer::Rows {
        span: Span { space, from: key, to: key + 1 },
        at: life.db.newest().0,
        own: Vec::new(),
        rows,
    })
}

fn load(
    life: &Life,
    order: &Order,
    space: u64,
    keys: std::ops::Range<u64>,
    bytes: u64,
) -> Result<Answer> {
    // Use a large transaction instead of a bulk load, because a bulk load cannot leave a mark.
    let writes = load_writes(order.id, space, keys, bytes);
    life.commit(&writes)
}

/// The rows of a load.
pub(super) fn load_writes(
    id: u64,
    space: u64,
    keys: std::ops::Range<u64>,
    bytes: u64,
) -> Vec<Write> {
    let content = Some(Content { bytes: bytes as u32, seed: id as u32 });
    let mut writes: Vec<Write> = keys.map(|key| Write { space, key, content }).collect();
    writes.push(mark(id));
    writes
}

fn transact(life: &mut Life, order: &Order) -> Result<Answer> {
    if order.act == Act::TxBegin {
        life.tx = None;
        let handle = life.db.begin();
        life.tx = Some(Tx { at: handle.at().0, handle, reads: Vec::new(), writes: Vec::new() });
        return Ok(Answer::Done);
    }
    let (spaces, Some(tx)) = (&life.spaces, &mut life.tx) else { return Ok(Answer::Done) };
    let content = |bytes: u64| Some(Content { bytes: bytes as u32, seed: order.id as u32 });
    let write = match order.act {
        Act::TxPut { space, key, bytes } => {
            Write { space: space % 2, key, content: content(bytes) }
        }
        Act::TxDelete { space, key } => Write { space: space % 2, key, content: None },
        Act::TxGet { space, key } => {
            return read_tx(tx, spaces, Span { space: space % 2, from: key, to: key + 1 });
        }
        Act::TxRange { space, from, to } => {
            return read_tx(tx, spaces, Span { space: space % 2, from, to });
        }
        Act::TxPop { space, last } => return pop(tx, spaces, space % 2, last % 2 == 1),
        Act::TxRemove { space, from, to } => {
            return remove(tx, spaces, Span { space: space % 2, from, to });
        }
        _ => return Ok(Answer::Done),
    };
    put(&mut tx.handle, &spaces[write.space as usize], &write)?;
    tx.writes.push(write);
    Ok(Answer::Done)
}

fn read_tx(tx: &mut Tx, spaces: &[Keyspace; 2], span: Span) -> Result<Answer> {
    let space = &spaces[span.space as usize];
    let mut rows = Vec::new();
    if span.to == span.from + 1 {
        rows.extend(
            tx.handle.get(space, key_bytes(span.from))?.map(|value| (span.from, value.to_vec())),
        );
    } else {
        for row in tx.handle.range(space, key_bytes(span.from)..key_bytes(span.to))? {
            let (key, value) = row?;
            rows.push((number_of(&key), value.to_vec()));
        }
    }
    let own = tx.writes.clone();
    note_read(tx, span);
    Ok(Answer::Rows { span, at: tx.at, own, rows })
}

/// Removes the first or the last key.
fn pop(tx: &mut Tx, spaces: &[Keyspace; 2], number: u64, is_last: bool) -> Result<Answer> {
    let space = &spaces[number as usize];
    let popped = if is_last { tx.handle.pop_last(space)? } else { tx.handle.pop_first(space)? };
    let rows: Vec<_> =
        popped.map(|(key, value)| (number_of(&key), value.to_vec())).into_iter().collect();
    let span = match rows.first() {
        None => Span { space: number, from: 0, to: u64::MAX },
        Some((key, _)) if is_last => Span { space: number, from: *key, to: u64::MAX },
        Some((key, _)) => Span { space: number, from: 0, to: key + 1 },
    };
    let own = tx.writes.clone();
    note_read(tx, span);
    let deleted = rows.first().map(|(key, _)| Write { space: number, key: *key, content: None });
    tx.writes.extend(deleted);
    Ok(Answer::Rows { span, at: tx.at, own, rows })
}

/// Deletes a range of keys.
fn remove(tx: &mut Tx, spaces: &[Keyspace; 2], span: Span) -> Result<Answer> {
    let keys = key_bytes(span.from)..key_bytes(span.to);
    tx.handle.delete_range(&spaces[span.space as usize], keys)?;
    note_read(tx, span);
    let deletion = |key| Write { space: span.space, key, content: None };
    tx.writes.extend((span.from..span.to).map(deletion));
    Ok(Answer::Done)
}

/// Records the read of a span, without the keys that the transaction has written: their reads do
/// not depend on other processes.
fn note_read(tx: &mut Tx, span: Span) {
    let mut from = span.from;
    let own: BTreeSet<u64> =
        tx.writes.iter().filter(|w| w.space == span.space).map(|w| w.key).collect();
    for key in own.range(span.from..span.to) {
        tx.reads.push(Span { from, to: *key, ..span });
        from = key + 1;
    }
    tx.reads.push(Span { from, ..span });
}

fn cursor(db: &Db, act: Act) -> Result<Answer> {
    let name = |name: u64| CURSORS[name as usize % CURSORS.len()];
    let back = |back: u64| Glsn(db.newest().0.saturating_sub(back).max(1));
    // Other processes may have moved the cursors.
    db.newest();
    let known: BTreeSet<String> =
        db.log().cursors().into_iter().map(|cursor| cursor.name).collect();
    match act {
        Act::Cursor { name: of, back: by } => {
            let at = db.log().cursor(name(of), back(by).max(db.log().bounds().first))?;
            Ok(Answer::Cursor { name: of, at: Some(at) })
        }
        Act::AdvanceCursor { name: of, back: by } if known.contains(name(of)) => {
            let place =
                |db: &Db| db.log().cursors().into_iter().find(|cursor| cursor.name == name(of));
            let next = place(db).map_or(back(by), |cursor| cursor.next.max(back(by)));
            db.log().advance_cursor(name(of), next)?;
            Ok(Answer::Cursor { name: of, at: Some(next) })
        }
        Act::DropCursor { name: of } if known.contains(name(of)) => {
            db.log().drop_cursor(name(of))?;
            Ok(Answer::Cursor { name: of, at: None })
        }
        _ => Ok(Answer::Done),
    }
}

/// The cursors that a process sees, by number, and their positions.
pub(super) fn cursors(db: &Db) -> Vec<(u64, u64)> {
    let number = |name: &str| {
        CURSORS.iter().position(|known| *known == name).map_or(u64::MAX, |at| at as u64)
    };
    let mut cursors: Vec<(u64, u64)> =
        db.log().cursors().iter().map(|cursor| (number(&cursor.name), cursor.next.0)).collect();
    cursors.sort_unstable();
    cursors
}

/// Whether an error reports only that the process is not the keeper.
pub(super) fn is_not_keeper(error: &Error) -> bool {
    matches!(error, Error::NotKeeper { .. })
}
