//! Transactions: their writes, and the outcome of their commits.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::io::{Cursor, Read};

use plimsoll::{Error, InvalidInput, Transaction};

use crate::content::Content;
use crate::driver::step::{said, scatter};
use crate::driver::updates::Updates;
use crate::driver::{Driver, Durability};
use crate::failure::{Failure, Outcome, ensure, same};
use crate::judge::show;
use crate::model::reads::Reads;
use crate::model::{Entry, Writes};
use crate::op::{Key, Span, numbered_key};

/// Bytes that a streamed value yields per read; not a multiple of any block size.
const DRIBBLE_BYTES: usize = 7001;

/// Lengths of values that are also appended in parts.
const APPENDED: std::ops::Range<u32> = 1500..9000;

/// An open transaction.
pub(super) struct OpenTx {
    pub(super) handle: Transaction,
    pub(super) reads: Reads,
    pub(super) writes: Writes,
    /// Updates whose values are computed at the commit. `writes` has their values at the snapshot.
    pub(super) updates: Updates,
    /// One of its writes may have failed half-way, so it must not be committed.
    pub(super) may_be_spoiled: bool,
    /// Ranges of keys that it deletes.
    pub(super) ranges: Vec<(u8, Span)>,
}

impl OpenTx {
    fn new(handle: Transaction) -> Self {
        Self {
            handle,
            reads: Reads::default(),
            writes: Writes::new(),
            updates: BTreeMap::new(),
            may_be_spoiled: false,
            ranges: Vec::new(),
        }
    }
}

impl Driver {
    pub(super) fn begin(&mut self, tx: u8) -> Outcome<String> {
        self.txs.remove(&tx);
        let handle = self.db().begin();
        self.absorb_nested()?;
        let at = handle.at();
        ensure(self.model.may_end_at(at.0) && at <= self.model.newest(), || {
            format!(
                "a transaction begins at {at}; acknowledged {}, submitted {}",
                self.model.acked(),
                self.model.newest()
            )
        })?;
        self.txs.insert(tx, OpenTx::new(handle));
        said(format!("at {at}"))
    }

    pub(super) fn begin_ordered(&mut self, tx: u8) -> Outcome<String> {
        self.txs.remove(&tx);
        let handle = self.db().begin_ordered();
        let at = handle.at();
        let newest = self.model.newest();
        ensure(if self.in_doubt { at <= newest } else { at == newest }, || {
            format!("a transaction that reads ordered commits begins at {at}; submitted {newest}")
        })?;
        self.txs.insert(tx, OpenTx::new(handle));
        said(format!("at {at}"))
    }

    pub(super) fn put(
        &mut self,
        tx: u8,
        space: u8,
        key: &Key,
        value: Content,
        streamed: bool,
    ) -> Outcome<String> {
        let Some(keyspace) = self.keyspace(space)? else { return said("failed") };
        let Slot::Occupied(mut open) = self.txs.entry(tx) else { return said("no transaction") };
        let bytes = value.make();
        if !streamed && value.seed.is_multiple_of(3) && APPENDED.contains(&value.bytes) {
            // The appended part is overwritten below.
            let open = open.get_mut();
            let mut parts = bytes.chunks(bytes.len().div_ceil(4));
            let appended = parts.try_for_each(|part| open.handle.append(&keyspace, key, part));
            // If the transaction has no more room for updates, the append reads the value.
            open.reads.perhaps_key(space, key);
            if appended.is_err() {
                return self.written(tx, &format!("append to {}", show(key)), appended);
            }
            self.check_charges()?;
        }
        let Slot::Occupied(mut open) = self.txs.entry(tx) else { return said("no transaction") };
        let handle = &mut open.get_mut().handle;
        let written = if streamed {
            handle.put_reader(&keyspace, key, &mut ShortReads(Cursor::new(&bytes)))
        } else {
            handle.put(&keyspace, key, &bytes).map(|()| bytes.len() as u64)
        };
        if let Ok(len) = &written {
            same("number of streamed bytes", len, &u64::from(value.bytes))?;
            open.get_mut().overwrites(space, key);
            open.get_mut().writes.insert((space, key.clone()), Some(value));
        }
        self.written(tx, &format!("put {} of {value}", show(key)), written)
    }

    pub(super) fn put_many(
        &mut self,
        tx: u8,
        space: u8,
        first: u32,
        count: u32,
        value: Content,
        scattered: bool,
    ) -> Outcome<String> {
        let Some(keyspace) = self.keyspace(space)? else { return said("failed") };
        let Some(open) = self.txs.get_mut(&tx) else { return said("no transaction") };
        let mut written = Ok(());
        for number in 0..count {
            let number = if scattered { scatter(number, count) } else { number };
            let content = Content { seed: value.seed.wrapping_add(number), ..value };
            let key = numbered_key(first.wrapping_add(number));
            written = open.handle.put(&keyspace, &key, &content.make());
            if written.is_err() {
                break;
            }
            open.overwrites(space, &key);
            open.writes.insert((space, key), Some(content));
        }
        self.written(tx, &format!("put {count} keys of {value}"), written)
    }

    pub(super) fn delete(&mut self, tx: u8, space: u8, key: &Key) -> Outcome<String> {
        let Some(keyspace) = self.keyspace(space)? else { return said("failed") };
        let Some(open) = self.txs.get_mut(&tx) else { return said("no transaction") };
        let deleted = open.handle.delete(&keyspace, key);
        open.overwrites(space, key);
        open.writes.insert((space, key.clone()), None);
        self.written(tx, &format!("delete {}", show(key)), deleted)
    }

    /// After a failed write, a transaction can only be aborted, and its commit must be refused.
    pub(super) fn written<T>(
        &mut self,
        tx: u8,
        what: &str,
        written: plimsoll::Result<T>,
    ) -> Outcome<String> {
        if self.expect(what, written)?.is_some() {
            return said("");
        }
        if let Some(open) = self.txs.remove(&tx) {
            let committed = open.handle.commit();
            ensure(committed.is_err(), || {
                format!("{what} failed, but its transaction was committed")
            })?;
        }
        said("failed")
    }

    pub(super) fn commit(&mut self, tx: u8, metadata: Content, wait: bool) -> Outcome<String> {
        let Some(mut open) = self.txs.remove(&tx) else { return said("no transaction") };
        if metadata.bytes > 0 {
            let set = open.handle.set_metadata(&metadata.make());
            if self.expect("set_metadata", set)?.is_none() {
                return said("failed");
            }
        }
        let (at, may_be_spoiled) = (open.handle.at(), open.may_be_spoiled);
        let committed = if wait {
            open.handle.commit()
        } else {
            open.handle.commit_submit().map(|ticket| {
                let glsn = ticket.glsn();
                self.tickets.push_back(ticket);
                glsn
            })
        };
        self.absorb_nested()?;
        if may_be_spoiled
            && matches!(committed, Err(Error::InvalidInput(InvalidInput::TransactionFailed)))
        {
            return said("spoiled");
        }
        if open.writes.is_empty() && open.updates.is_empty() {
            let Some(glsn) = self.expect("commit", committed)? else { return said("failed") };
            same("GLSN of an empty commit", &glsn, &at)?;
            if wait && self.world.setting.durability == Durability::Sync {
                // The transaction may have read commits that were not durable yet.
                self.model.acknowledge(glsn.0);
            }
            return said(format!("glsn {glsn}"));
        }
        let into_dropped = |put: bool| {
            let mut writes = open.writes.iter().filter(|(_, value)| !put || value.is_some());
            writes.any(|((space, _), _)| self.model.is_dropped(*space))
        };
        match &committed {
            // A key that was put and deleted again counts as put.
            Err(Error::InvalidInput { .. }) if into_dropped(false) => return said("dropped"),
            Ok(_) if into_dropped(true) => {
                return Err(Failure::new("committed although it writes to a dropped keyspace"));
            }
            _ => {}
        }
        if self.is_refused_update(&open.updates, &committed)? {
            return said("refused");
        }
        if let Err(Error::Conflict { key, at: found_at, by }) = &committed {
            // The key may be that of an update that was computed before the commit (its value or
            // its transaction is large), and was changed since.
            let is_of_update = open.updates.keys().any(|(space, updated)| {
                updated == key && self.model.changed(*space, key, by.0 - 1).next() == Some(by.0)
            });
            if is_of_update && *found_at >= at {
                return said("conflict");
            }
            self.is_conflict(&open.reads, &open.writes, at.0, key, found_at.0, by.0)?;
            return said("conflict");
        }
        let conflict = open.reads.conflict(&self.model, at.0);
        if committed.is_ok()
            && let Some((space, key)) = conflict
        {
            let key = show(&key);
            return Err(Failure::new(format!(
                "committed although {key} in keyspace {space} was changed after {at}, which it \
                 read"
            )));
        }
        let has_updates = !open.updates.is_empty();
        self.resolve(&open.updates, &mut open.writes);
        if has_updates && open.writes.is_empty() && committed.is_ok() {
            // The updates were computed from everything that was submitted before, or from the
            // snapshot.
            let Some(glsn) = self.expect("commit", committed)? else { return said("failed") };
            let newest = self.model.newest();
            let is_of_snapshot = glsn == at && self.may_be_computed(&open.updates);
            ensure(self.in_doubt || glsn.0 == newest || is_of_snapshot, || {
                format!("updates that change nothing are committed at {glsn}, not {newest}")
            })?;
            if wait && self.world.setting.durability == Durability::Sync && !self.in_doubt {
                self.model.acknowledge(glsn.0);
            }
            return said(format!("glsn {glsn}"));
        }
        let entry = Entry::Commit { writes: open.writes, metadata, read_at: at.0 };
        self.model.deletes_ranges_next(open.ranges);
        self.submitted("commit", vec![entry], committed.map(|glsn| glsn.0), wait)
    }

    fn is_conflict(
        &self,
        reads: &Reads,
        own: &Writes,
        at: u64,
        key: &[u8],
        found_at: u64,
        by: u64,
    ) -> Outcome {
        same("snapshot of a conflict", &found_at, &at)?;
        ensure(by > at && by <= self.model.newest(), || {
            format!("conflict by {by}, after {at}, newest {}", self.model.newest())
        })?;
        let limit = self.world.setting.sizes.read_set_bytes;
        let longest =
            self.model.longest_key().max(own.keys().map(|(_, key)| key.len()).max().unwrap_or(0));
        ensure(
            reads.changed_by(&self.model, key, by) || reads.may_be_coarse(limit, longest),
            || {
                let read = if reads.covers(key) { "was read" } else { "was not read" };
                format!(
                    "conflict on {} by {by} after {at}: the key {read}, but that commit did not \
                     change it",
                    show(key)
                )
            },
        )
    }

    /// Checks the GLSN of a record that was submitted, or handles its refusal; `glsn` is the last
    /// GLSN of the record.
    pub(super) fn submitted(
        &mut self,
        what: &str,
        entries: Vec<Entry>,
        glsn: plimsoll::Result<u64>,
        waited: bool,
    ) -> Outcome<String> {
        match glsn {
            Ok(glsn) => {
                let wanted = self.model.submit(entries);
                same(format!("GLSN of a {what}"), &glsn, &wanted)?;
                if waited && self.world.setting.durability == Durability::Sync {
                    self.model.acknowledge(glsn);
                }
                said(format!("glsn {glsn}"))
            }
            Err(error) => {
                if self.leaves_doubt(&error) {
                    self.model.submit(entries);
                    self.in_doubt = true;
                }
                self.expect::<()>(what, Err(error))?;
                said("failed")
            }
        }
    }

    pub(super) fn wait(&mut self) -> Outcome<String> {
        let Some(ticket) = self.tickets.pop_front() else { return said("no ticket") };
        let glsn = ticket.glsn();
        match ticket.wait() {
            Ok(waited) => {
                same("GLSN of an awaited commit", &waited, &glsn)?;
                if self.world.setting.durability == Durability::Sync {
                    self.model.acknowledge(glsn.0);
                }
                said(format!("glsn {glsn}"))
            }
            Err(error) => {
                self.in_doubt = true;
                self.expect::<()>("wait", Err(error))?;
                said("failed")
            }
        }
    }
}

/// A reader that yields few bytes at a time.
struct ShortReads<'a>(Cursor<&'a Vec<u8>>);

impl Read for ShortReads<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let most = into.len().min(DRIBBLE_BYTES);
        self.0.read(&mut into[..most])
    }
}
