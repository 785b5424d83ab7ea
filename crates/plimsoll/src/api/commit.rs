//! A commit read back from the log: its metadata, and its changes with their values.
//!
//! Invariant: a commit and its changes hold the commit's entry, a few pages, and values of at most
//! [`INLINE_BYTES`]. Longer values stay in the log or in blob files until requested, so a
//! transaction of any size can be read within the budget.
//!
//! [`INLINE_BYTES`]: crate::INLINE_BYTES

use std::fmt;
use std::ops::Bound;
use std::sync::Arc;
use std::time::SystemTime;

use plimsoll_log::entry::Entry;
use plimsoll_log::glsn::Glsn;

use crate::engine::Engine;
use crate::read::point::ValueReader;
use crate::read::span::Span;
use crate::txn::payload::{Operations, Payload, Writes};
use crate::txn::spill::merged_runs::MergedRuns;
use crate::txn::spill::side_runs;
use crate::types::branch_key;
use crate::types::branches::{MAIN_CHAIN, decode_merge_key};
use crate::types::error::{Result, show_key};
use crate::types::expiry::Expiry;
use crate::types::index_key::IndexKey;
use crate::types::keyspaces::{BRANCHES, CURSORS, IDS, TAGS, is_internal};
use crate::types::times::of_micros;
use crate::types::value::Value;
use crate::types::version::{OwnedStored, Stored};

/// A commit read from the log by [`Log::commits`](crate::Log::commits),
/// [`Db::watch`](crate::Db::watch) or [`Log::commit`](crate::Log::commit).
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// let notes = db.keyspace("notes")?;
/// let mut tx = db.begin();
/// tx.put(&notes, "a", "one")?;
/// tx.delete(&notes, "b")?;
/// tx.set_metadata(b"by Ada")?;
/// let glsn = tx.commit()?;
/// let commit = db.log().commit(glsn)?.expect("it is a commit");
/// assert_eq!(commit.metadata()?, b"by Ada");
/// let changes = commit.changes()?.collect::<Result<Vec<_>>>()?;
/// assert_eq!(changes[0].key(), b"a");
/// assert_eq!(changes[0].value()?.unwrap().to_vec(), b"one");
/// assert_eq!((changes[1].key(), changes[1].value()?), (&b"b"[..], None));
/// # Ok(())
/// # }
/// ```
pub struct Commit {
    store: Arc<Engine>,
    entry: Entry,
    /// The only changes that [`Commit::changes`] returns; `None`: all.
    watched: Option<Arc<Watched>>,
}

/// Selects the changes that a watch returns.
#[derive(Debug)]
pub(crate) struct Watched {
    /// Index keys; on a branch, those that the branch's versions have.
    pub(crate) span: Span,
    /// The chain of the watched branch; `None`: main.
    pub(crate) chain: Option<u32>,
}

impl Commit {
    pub(crate) fn new(store: &Arc<Engine>, entry: Entry, watched: Option<Arc<Watched>>) -> Self {
        Self { store: Arc::clone(store), entry, watched }
    }

    fn span(&self) -> Option<&Span> {
        self.watched.as_ref().map(|watched| &watched.span)
    }

    /// The commit's GLSN.
    pub fn glsn(&self) -> Glsn {
        self.entry.meta.glsn
    }

    /// Time of the commit, with microsecond precision.
    pub fn time(&self) -> SystemTime {
        of_micros(self.entry.meta.timestamp_micros)
    }

    /// The GLSN of the snapshot that the transaction read.
    pub fn read_at(&self) -> Glsn {
        self.entry.meta.read_at
    }

    /// The metadata set by [`Transaction::set_metadata`](crate::Transaction::set_metadata).
    ///
    /// # Errors
    /// Corruption, or a newer format.
    pub fn metadata(&self) -> Result<&[u8]> {
        Ok(Payload::decode(&self.entry)?.metadata)
    }

    /// Whether the commit only created, moved or dropped a named cursor
    /// ([`Log::cursor`](crate::Log::cursor)), or only advanced the time of an idle store.
    ///
    /// # Errors
    /// Corruption, or a newer format.
    pub fn moves_cursor(&self) -> Result<bool> {
        self.begins_in(CURSORS)
    }

    /// Whether the commit's first key is in `keyspace`, one of the store's own. If so, the commit
    /// changed nothing else, because these keyspaces are changed by separate transactions.
    fn begins_in(&self, keyspace: u32) -> Result<bool> {
        let Writes::Operations(mut operations) = Payload::decode(&self.entry)?.writes else {
            return Ok(false);
        };
        Ok(operations.next()?.is_some_and(|operation| IndexKey::new(operation.key).is_in(keyspace)))
    }

    /// Whether the commit only created or deleted a tag ([`Db::tag`](crate::Db::tag)).
    ///
    /// # Errors
    /// Corruption, or a newer format.
    pub fn changes_tag(&self) -> Result<bool> {
        self.begins_in(TAGS)
    }

    /// Whether the commit only created, renamed or deleted a branch
    /// ([`Db::create_branch`](crate::Db::create_branch)).
    ///
    /// # Errors
    /// Corruption, or a newer format.
    pub fn changes_branch(&self) -> Result<bool> {
        let Writes::Operations(mut operations) = Payload::decode(&self.entry)?.writes else {
            return Ok(false);
        };
        // A merge of branches also writes to this keyspace, but only the record of the merge.
        Ok(operations.next()?.is_some_and(|operation| {
            let key = IndexKey::new(operation.key);
            key.is_in(BRANCHES) && decode_merge_key(key.user_key()).is_none()
        }))
    }

    /// Whether the commit only recorded the ids of other commits
    /// ([`Db::commit_id`](crate::Db::commit_id)), or the address of another store
    /// ([`Db::add_remote`](crate::Db::add_remote)).
    ///
    /// # Errors
    /// Corruption, or a newer format.
    pub fn records_ids(&self) -> Result<bool> {
        let mut has_ids = false;
        for change in self.changes()? {
            let change = change?;
            if change.space() != IDS || change.branch().is_some() {
                return Ok(false);
            }
            has_ids = true;
        }
        Ok(has_ids)
    }

    /// The present name of the branch on which the commit changed keys, or its number
    /// ([`Branch::id`](crate::Branch::id)) if the branch was deleted since. `None`: the commit was
    /// made on main, or changed only the store's own records of keyspaces, cursors, tags and
    /// branches. A transaction writes on one branch.
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// let notes = db.keyspace("notes")?;
    /// let draft = db.create_branch("draft", &db.main())?;
    /// let glsn = draft.put(&notes, "a", "one")?;
    /// let commit = db.log().commit(glsn)?.expect("it is a commit");
    /// assert_eq!(commit.branch()?.as_deref(), Some("draft"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Commit::changes`].
    pub fn branch(&self) -> Result<Option<Arc<str>>> {
        let chain = self.chain()?.filter(|chain| *chain != MAIN_CHAIN);
        Ok(chain.map(|chain| self.store.reader.snapshots.branches.name_of(chain)))
    }

    /// The chain on which the commit changed keys, or into which it merged another chain; `None`:
    /// it changed only the store's own records.
    pub(crate) fn chain(&self) -> Result<Option<u32>> {
        let chain = self.chain_of_keys();
        chain.map_err(|error| self.store.reader.trimmed_or(self.glsn(), error))
    }

    fn chain_of_keys(&self) -> Result<Option<u32>> {
        let is_of_user = |key: &[u8]| !is_internal(IndexKey::new(key).keyspace());
        let payload = Payload::decode(&self.entry)?;
        // A commit that deletes a branch also deletes everything that was written on it, but this
        // is no change on the branch.
        if self.changes_branch()? {
            return Ok(None);
        }
        if payload.ranges.iter().any(|(first, _)| is_of_user(first)) {
            return Ok(Some(MAIN_CHAIN));
        }
        let chain = |key: &[u8]| match branch_key::is_of_branch(key) {
            true => Some(branch_key::chain_of(key)),
            false if is_of_user(key) => Some(MAIN_CHAIN),
            // A merge that changed no keys: its record has the chain.
            false => {
                let key = Some(IndexKey::new(key)).filter(|key| key.is_in(BRANCHES));
                key.and_then(|key| decode_merge_key(key.user_key())).map(|(into, _, _)| into)
            }
        };
        match self.all()? {
            Walk::Operations(mut operations) => {
                while let Some(operation) = operations.next()? {
                    if let Some(chain) = chain(operation.key) {
                        return Ok(Some(chain));
                    }
                }
            }
            Walk::Runs(mut runs) => {
                while let Some(version) = runs.next()? {
                    if let Some(chain) = chain(version.key) {
                        return Ok(Some(chain));
                    }
                }
            }
        }
        Ok(None)
    }

    /// The commit's changes: first the ranges that it deleted, one change for each, then the keys,
    /// ordered by keyspace and key, one for each. From [`Db::watch`](crate::Db::watch): only those
    /// under the watched prefix, and the parts of ranges that lie there.
    ///
    /// # Errors
    /// [`Error::Trimmed`](crate::Error::Trimmed) if the changes are in blob files that were removed
    /// when the log was trimmed; disk errors, the budget, corruption, or a newer format.
    pub fn changes(&self) -> Result<Changes<'_>> {
        self.changes_in(false)
    }

    /// As [`Commit::changes`], but changes on branches have their keys and values as stored.
    pub(crate) fn stored_changes(&self) -> Result<Changes<'_>> {
        self.changes_in(true)
    }

    fn changes_in(&self, is_as_stored: bool) -> Result<Changes<'_>> {
        let walk = self.walk().map_err(|error| self.store.reader.trimmed_or(self.glsn(), error))?;
        let ranges = Payload::decode(&self.entry)?.ranges.into_iter();
        Ok(Changes { commit: self, ranges, walk: Some(walk), keyspace: None, is_as_stored })
    }

    /// All writes that [`Commit::changes`] must return, and possibly others.
    fn walk(&self) -> Result<Walk<'_>> {
        let mut walk = self.all()?;
        if let (Walk::Runs(runs), Some(span)) = (&mut walk, self.span()) {
            runs.seek(&span.first())?;
        }
        Ok(walk)
    }

    /// All writes.
    fn all(&self) -> Result<Walk<'_>> {
        Ok(match Payload::decode(&self.entry)?.writes {
            // A value's checksum is verified when the value is read.
            Writes::Operations(operations) => Walk::Operations(operations.uncompared()),
            Writes::Runs(runs) => {
                let reader = &self.store.reader;
                Walk::Runs(side_runs(&reader.log, &reader.budget, &runs, self.glsn())?)
            }
        })
    }
}

impl fmt::Debug for Commit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Commit({}, {} bytes)", self.glsn(), self.entry.len())
    }
}

/// The changes of a commit.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// let notes = db.keyspace("notes")?;
/// let glsn = db.put(&notes, "a", "one")?;
/// let commit = db.log().commit(glsn)?.expect("it is a commit");
/// for change in commit.changes()? {
///     let change = change?;
///     println!("{:?} {:?}: {:?}", change.keyspace(), change.key(), change.value()?);
/// }
/// # Ok(())
/// # }
/// ```
pub struct Changes<'a> {
    commit: &'a Commit,
    /// The deleted ranges that were not returned yet: the first index key and the end of each.
    ranges: std::vec::IntoIter<(&'a [u8], &'a [u8])>,
    /// `None` past the end.
    walk: Option<Walk<'a>>,
    /// The id and the name of the last change's keyspace.
    keyspace: Option<(u32, Option<Arc<str>>)>,
    /// Whether keys on branches are returned as stored.
    is_as_stored: bool,
}

/// The writes of a commit, in key order.
enum Walk<'a> {
    Operations(Operations<'a>),
    Runs(MergedRuns),
}

/// Position of a write relative to the requested span.
enum SpanMatch {
    /// Before the span, or on another chain than the watched one.
    Before,
    Found(u32, Change),
    After,
}

impl SpanMatch {
    fn new(commit: &Commit, is_as_stored: bool, key: &[u8], stored: Stored<'_>) -> Self {
        if let Some(Watched { span, chain }) = commit.watched.as_deref() {
            if !span.contains(key) {
                return if *key < *span.first() { Self::Before } else { Self::After };
            }
            if chain.is_some_and(|chain| chain != branch_key::chain_of(key)) {
                return Self::Before;
            }
        }
        let (id, user_key) = IndexKey::new(key).split().expect("an operation's key has a keyspace");
        let is_decoded = branch_key::is_of_branch(key) && !is_as_stored;
        let Some(main) = is_decoded.then(|| branch_key::main_key(key)).flatten() else {
            return Self::Found(id, Change::new(commit, id, user_key, stored, None));
        };
        let main = IndexKey::new(&main);
        let is_deleted = stored.expiry() == Some(Expiry::OF_DELETION);
        let stored = if is_deleted { Stored::Deleted } else { stored };
        let (_, user_key) = main.split().expect("it was decoded");
        let change = Change::new(commit, id, user_key, stored, None);
        let (_, chain) = branch_key::split(key);
        let branch = commit.store.reader.snapshots.branches.name_of(chain);
        Self::Found(main.keyspace(), Change { branch: Some(branch), chain, ..change })
    }
}

/// The deletion of the part of a range that lies in the requested span, and its keyspace; `None` if
/// no part does.
fn range_change(commit: &Commit, first: &[u8], end: &[u8]) -> Option<(u32, Change)> {
    let span = commit.span();
    let span_first = span.map(Span::first);
    let first = span_first.as_deref().map_or(first, |span| span.max(first));
    let span_end = span.and_then(Span::end);
    let end = span_end.as_deref().map_or(end, |span| span.min(end));
    if first >= end {
        return None;
    }
    let (id, key) = IndexKey::new(first).split().expect("a range's first key has a keyspace");
    let end = match IndexKey::new(end).split() {
        Some((keyspace, end)) if keyspace == id => Bound::Excluded(end.to_vec()),
        _ => Bound::Unbounded,
    };
    Some((id, Change::new(commit, id, key, Stored::Deleted, Some(end))))
}

impl Changes<'_> {
    fn step(&mut self) -> Result<Option<Change>> {
        let (commit, is_as_stored) = (self.commit, self.is_as_stored);
        commit.store.check_open()?;
        let ranges = &mut self.ranges;
        if let Some((id, change)) = ranges.find_map(|(first, end)| range_change(commit, first, end))
        {
            return Ok(Some(Change { keyspace: self.name(id), ..change }));
        }
        let Some(walk) = &mut self.walk else { return Ok(None) };
        loop {
            let sought = match walk {
                Walk::Operations(operations) => operations.next()?.map(|operation| {
                    SpanMatch::new(commit, is_as_stored, operation.key, operation.stored)
                }),
                Walk::Runs(runs) => runs.next()?.map(|version| {
                    SpanMatch::new(commit, is_as_stored, version.key, version.stored)
                }),
            };
            match sought {
                Some(SpanMatch::Before) => {}
                Some(SpanMatch::Found(id, change)) => {
                    return Ok(Some(Change { keyspace: self.name(id), ..change }));
                }
                Some(SpanMatch::After) | None => return Ok(None),
            }
        }
    }

    fn name(&mut self, id: u32) -> Option<Arc<str>> {
        match &self.keyspace {
            Some((last, name)) if *last == id => name.clone(),
            _ => {
                let name = self.commit.store.reader.keyspaces.name(id);
                self.keyspace = Some((id, name.clone()));
                name
            }
        }
    }
}

impl Iterator for Changes<'_> {
    type Item = Result<Change>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self
            .step()
            .map_err(|error| self.commit.store.reader.trimmed_or(self.commit.glsn(), error))
            .transpose();
        if !matches!(next, Some(Ok(_))) {
            self.walk = None;
        }
        next
    }
}

impl fmt::Debug for Changes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Changes(of {})", self.commit.glsn())
    }
}

/// One change of a commit: a key with its new value or its deletion. A value of more than
/// [`INLINE_BYTES`](crate::INLINE_BYTES) is read only when requested, and stays readable as long as
/// the log holds the commit.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// let films = db.keyspace("films")?;
/// let glsn = db.put(&films, "metropolis", vec![7; 3 << 20])?;
/// let commit = db.log().commit(glsn)?.expect("it is a commit");
/// let change = commit.changes()?.next().expect("there is one")?;
/// assert_eq!((change.keyspace(), change.key()), (Some("films"), &b"metropolis"[..]));
/// assert_eq!(change.value_len(), Some(3 << 20));
/// let mut copy = Vec::new();
/// let mut reader = change.value_reader()?.expect("it is not a deletion");
/// std::io::copy(&mut reader, &mut copy).expect("the disk is well");
/// assert_eq!(copy.len(), 3 << 20);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Change {
    store: Arc<Engine>,
    glsn: Glsn,
    micros: u64,
    space: u32,
    chain: u32,
    /// `None`: main.
    branch: Option<Arc<str>>,
    keyspace: Option<Arc<str>>,
    key: Vec<u8>,
    written: OwnedStored,
    expiry: Option<Expiry>,
    kind: ChangeKind,
}

/// The kind of a change.
#[derive(Clone)]
enum ChangeKind {
    /// A single key has changed.
    Key,
    /// A range was deleted, which begins at the key and has this end.
    Range(Bound<Vec<u8>>),
    /// No commit made the change: the value has expired.
    Expiry,
}

impl Change {
    fn new(
        commit: &Commit,
        space: u32,
        key: &[u8],
        written: Stored<'_>,
        range_end: Option<Bound<Vec<u8>>>,
    ) -> Self {
        let meta = &commit.entry.meta;
        Self {
            store: Arc::clone(&commit.store),
            glsn: meta.glsn,
            micros: meta.timestamp_micros,
            space,
            chain: MAIN_CHAIN,
            branch: None,
            keyspace: None,
            key: key.to_vec(),
            written: OwnedStored::new(written),
            expiry: written.expiry(),
            kind: range_end.map_or(ChangeKind::Key, ChangeKind::Range),
        }
    }

    /// The expiry of a value on main that the commit `put_by` has put.
    pub(crate) fn expired(
        store: &Arc<Engine>,
        space: u32,
        key: &[u8],
        put_by: Glsn,
        expiry: Option<Expiry>,
    ) -> Self {
        Self {
            store: Arc::clone(store),
            glsn: put_by,
            micros: expiry.map_or(0, Expiry::micros),
            space,
            chain: MAIN_CHAIN,
            branch: None,
            keyspace: store.reader.keyspaces.name(space),
            key: key.to_vec(),
            written: OwnedStored::new(Stored::Deleted),
            expiry,
            kind: ChangeKind::Expiry,
        }
    }

    /// The commit's GLSN; of an expiry, that of the commit that put the value.
    pub fn glsn(&self) -> Glsn {
        self.glsn
    }

    /// Time of the commit, or of the expiry.
    pub fn time(&self) -> SystemTime {
        of_micros(self.micros)
    }

    /// Present name of the branch; `None`: main. If the branch was deleted since, a number that
    /// identifies it.
    pub fn branch(&self) -> Option<&str> {
        self.branch.as_deref()
    }

    /// Name of the keyspace, even if it was dropped since; `None` for the store's own records of
    /// keyspaces, cursors, tags and branches.
    pub fn keyspace(&self) -> Option<&str> {
        self.keyspace.as_deref()
    }

    /// The key; of a deleted range, the first key that can lie in it.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The range that was deleted, if the change is the deletion of a range.
    #[allow(clippy::type_complexity, reason = "a pair of bounds needs no name of its own")]
    pub fn deleted_range(&self) -> Option<(Bound<&[u8]>, Bound<&[u8]>)> {
        let ChangeKind::Range(end) = &self.kind else { return None };
        Some((Bound::Included(&self.key), end.as_ref().map(Vec::as_slice)))
    }

    /// Whether the key, or the range, was deleted, or the key's value has expired.
    pub fn is_delete(&self) -> bool {
        self.stored() == Stored::Deleted
    }

    /// Whether the key has no value any more because the value has expired. Only
    /// [`WatchEvents`](crate::WatchEvents) return such changes.
    pub fn is_expiry(&self) -> bool {
        matches!(self.kind, ChangeKind::Expiry)
    }

    /// When the value expires, according to the commit; `None` if it does not.
    pub fn expires(&self) -> Option<SystemTime> {
        self.expiry.map(Expiry::time)
    }

    /// Length of the value in bytes; `None` if the key was deleted.
    pub fn value_len(&self) -> Option<u64> {
        (!self.is_delete()).then(|| self.stored().value_bytes())
    }

    /// The value; `None` if the key was deleted.
    ///
    /// # Errors
    /// [`Error::Trimmed`](crate::Error::Trimmed) if the log no longer holds the commit,
    /// [`Error::Dropped`](crate::Error::Dropped), disk errors, the budget, or corruption.
    pub fn value(&self) -> Result<Option<Value>> {
        self.store.check_open()?;
        let reader = &self.store.reader;
        match &self.written {
            OwnedStored::Inline(value) => Ok(Some(value.clone())),
            OwnedStored::Elsewhere(Stored::Deleted) => Ok(None),
            &OwnedStored::Elsewhere(stored) => {
                let load = |bytes: &mut _| reader.load(self.glsn, stored, bytes).map(|_| ());
                let value = Value::of_len(&reader.budget, stored.value_bytes(), load);
                value.map(Some).map_err(|error| reader.trimmed_or(self.glsn, error))
            }
        }
    }

    /// A reader of the value, for values too large to hold in memory; `None` if the key was
    /// deleted.
    ///
    /// # Errors
    /// The store is closed. The reader itself reports the errors of [`Change::value`].
    pub fn value_reader(&self) -> Result<Option<ValueReader>> {
        self.store.check_open()?;
        let reader = &self.store.reader;
        Ok((!self.is_delete()).then(|| ValueReader::of_logged(reader, self.glsn, self.stored())))
    }

    /// The id of the change's keyspace; on a branch, that of the keyspace of all branches.
    pub(crate) fn space(&self) -> u32 {
        self.space
    }

    /// The chain of its branch.
    pub(crate) fn chain(&self) -> u32 {
        self.chain
    }

    pub(crate) fn stored(&self) -> Stored<'_> {
        self.written.get().expiring(self.expiry)
    }
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Change");
        shown.field("glsn", &self.glsn).field("keyspace", &self.keyspace());
        self.branch().iter().for_each(|branch| _ = shown.field("branch", branch));
        shown.field("key", &format_args!("{}", show_key(&self.key)));
        if let Some((_, end)) = self.deleted_range() {
            shown.field("range_end", &end.map(show_key));
        }
        shown.field("value_len", &self.value_len()).finish_non_exhaustive()
    }
}
