//! Applies the steps of a history to a store: one commit, one transaction.

use std::io::{self, Read};

use jiff::Timestamp;
use plimsoll::{Db, Keyspace, MAX_KEY_BYTES, MAX_VALUE_BYTES, Transaction};

use crate::bytes::show_bytes;
use crate::exit::Failure;
use crate::git::blobs::Blob;
use crate::git::feed::{Feed, Step};
use crate::git::object_id::ObjectId;
use crate::imported::Notes;
use crate::size::{count_of, show_count, show_size};

use super::resume::{self, Bookmark};

/// Contents up to here are put in one piece, larger ones are streamed.
const PIECE_BYTES: u64 = 64 * 1024;
/// Of what was left out, so many are named.
const NAMED_MAX: usize = 5;

/// What was left out: how many, and the first few by name.
#[derive(Debug, Default)]
pub(super) struct LeftOut {
    pub(super) count: u64,
    named: Vec<String>,
}

impl LeftOut {
    fn add(&mut self, name: impl FnOnce() -> String) {
        self.count += 1;
        if self.named.len() < NAMED_MAX {
            self.named.push(name());
        }
    }

    fn report(&self, one: &str, many: &str, why: &str) {
        if self.count == 0 {
            return;
        }
        eprintln!("plimsoll: {} left out: {why}", count_of(self.count, one, many));
        for name in &self.named {
            eprintln!("  {name}");
        }
        let more = self.count - self.named.len() as u64;
        if more > 0 {
            eprintln!("  and {} more", show_count(more));
        }
    }
}

/// What an import did.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) transactions: u64,
    pub(super) versions: u64,
    pub(super) bytes_in: u64,
    pub(super) submodules: u64,
    /// Files whose content is not in the repository.
    pub(super) missing: LeftOut,
    /// Files that a store cannot hold.
    pub(super) unfit: LeftOut,
    /// Commits that could not be compared.
    pub(super) commits: LeftOut,
}

impl Counts {
    /// A few words beside the progress bar.
    pub(super) fn in_words(&self) -> String {
        format!("{} versions, {}", show_count(self.versions), show_size(self.bytes_in))
    }

    /// Says on stderr what was left out, and why.
    pub(super) fn report_left_out(&self) {
        self.missing.report("file version", "file versions", "the repository does not hold its content");
        self.unfit.report("file version", "file versions", "a store holds paths up to 4 KiB and files up to 1 GiB");
        self.commits.report(
            "commit",
            "commits",
            "its folders are not all in the repository; its changes come with the next one",
        );
    }
}

/// Applies a history to one keyspace.
pub(super) struct Applier<'a> {
    db: &'a Db,
    keyspace: Keyspace,
    bookmarks: Keyspace,
    notes: Notes<'a>,
    branch: &'a str,
    root: Option<ObjectId>,
    piece: Vec<u8>,
}

impl<'a> Applier<'a> {
    /// `root`: the first imported commit, if there is one already.
    pub(super) fn new(
        db: &'a Db,
        keyspace: Keyspace,
        bookmarks: Keyspace,
        branch: &'a str,
        root: Option<ObjectId>,
    ) -> Result<Self, Failure> {
        let notes = Notes::open(db, bookmarks.clone(), keyspace.name())?;
        Ok(Self { db, keyspace, bookmarks, notes, branch, root, piece: Vec::new() })
    }

    /// Takes the next commit; false at the end of the history.
    pub(super) fn next(&mut self, feed: &mut Feed<'_>, counts: &mut Counts) -> Result<bool, Failure> {
        match feed.next()? {
            None => return Ok(false),
            Some(Step::Begin { id, time, metadata }) => self.commit(id, time, &metadata, feed, counts)?,
            Some(Step::LeftOut { id, why }) => counts.commits.add(|| format!("{id}: {why}")),
            Some(step) => unreachable!("{step:?} outside of a commit: the feed brackets each by Begin and End"),
        }
        Ok(true)
    }

    fn commit(
        &mut self,
        id: ObjectId,
        time: Option<Timestamp>,
        metadata: &[u8],
        feed: &mut Feed<'_>,
        counts: &mut Counts,
    ) -> Result<(), Failure> {
        let mut transaction = self.db.begin();
        transaction.set_metadata(metadata)?;
        loop {
            match feed.next()? {
                Some(Step::Put { id: content, path }) => {
                    self.put(&mut transaction, &id, &content, &path, feed, counts)?;
                }
                Some(Step::Delete { path }) if path.len() <= MAX_KEY_BYTES => {
                    transaction.delete(&self.keyspace, &path)?;
                    counts.versions += 1;
                }
                Some(Step::Delete { .. }) => {}
                Some(Step::Submodule) => counts.submodules += 1,
                // A commit that is missing altogether is noticed while others are still being delivered.
                Some(Step::LeftOut { id, why }) => counts.commits.add(|| format!("{id}: {why}")),
                Some(Step::End) => break,
                other => unreachable!("{other:?} inside of a commit: the feed brackets each by Begin and End"),
            }
        }
        let root = *self.root.get_or_insert(id);
        let bookmark = Bookmark { commit: id, root };
        resume::write(&mut transaction, &self.bookmarks, self.keyspace.name(), self.branch, bookmark)?;
        self.notes.add(&mut transaction, id.as_str(), time)?;
        transaction.commit()?;
        counts.transactions += 1;
        Ok(())
    }

    fn put(
        &mut self,
        transaction: &mut Transaction,
        commit: &ObjectId,
        content: &ObjectId,
        path: &[u8],
        feed: &mut Feed<'_>,
        counts: &mut Counts,
    ) -> Result<(), Failure> {
        let name = || format!("{} at commit {}", show_bytes(&path[..path.len().min(200)]), commit.short());
        let bytes = match feed.blob()? {
            _ if path.len() > MAX_KEY_BYTES => {
                counts.unfit.add(|| format!("{} (a path of {})", name(), show_size(path.len() as u64)));
                return Ok(());
            }
            Blob::Found { bytes } if bytes <= MAX_VALUE_BYTES => bytes,
            Blob::Found { bytes } => {
                counts.unfit.add(|| format!("{} ({})", name(), show_size(bytes)));
                return self.absent(transaction, path);
            }
            Blob::Missing => {
                counts.missing.add(|| format!("{} (object {content})", name()));
                return self.absent(transaction, path);
            }
            Blob::Damaged(words) => {
                counts.missing.add(|| format!("{} (object {content}: {words})", name()));
                return self.absent(transaction, path);
            }
        };
        if bytes <= PIECE_BYTES {
            self.piece.resize(bytes as usize, 0);
            feed.content().read_exact(&mut self.piece).map_err(|error| unreadable(&error))?;
            transaction.put(&self.keyspace, path, &self.piece)?;
        } else {
            let mut content = Watched { inner: feed.content(), failed: None };
            let put = transaction.put_reader(&self.keyspace, path, &mut content);
            if let Some(words) = content.failed {
                return Err(unreadable(&words));
            }
            put?;
        }
        counts.versions += 1;
        counts.bytes_in += bytes;
        Ok(())
    }

    /// A file without content is absent: an earlier content would be a wrong answer.
    fn absent(&self, transaction: &mut Transaction, path: &[u8]) -> Result<(), Failure> {
        Ok(transaction.delete(&self.keyspace, path)?)
    }
}

fn unreadable(error: &dyn std::fmt::Display) -> Failure {
    Failure::system(format!("cannot read a file's content from git: {error}"))
        .advise("`git fsck` tells whether the repository is sound.")
}

/// Remembers that it was the reader that failed, not the store.
struct Watched<R> {
    inner: R,
    failed: Option<String>,
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.inner.read(into).inspect_err(|error| self.failed = Some(error.to_string()))
    }
}
