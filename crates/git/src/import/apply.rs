//! Applies the steps of a history to a store: one commit, one transaction.

use std::io::{self, Read};

use jiff::Timestamp;
use plimsoll::{Db, Keyspace, MAX_KEY_BYTES, MAX_VALUE_BYTES, Transaction};

use crate::error::{Error, Result};
use crate::import::blobs::Blob;
use crate::import::bookmark::{self, Bookmark};
use crate::import::counts::{Counts, FileReason, LeftOutCommit, LeftOutFile};
use crate::import::feed::{Feed, Step};
use crate::moments::Notes;
use crate::object_id::ObjectId;

/// Larger contents are streamed.
const PIECE_BYTES: u64 = 64 * 1024;

/// Applies a history to one keyspace.
#[derive(Debug)]
pub(crate) struct Applier<'a> {
    db: &'a Db,
    keyspace: Keyspace,
    bookmarks: Keyspace,
    notes: Notes<'a>,
    branch: &'a str,
    /// The bookmark of the last imported commit, if there is one.
    bookmark: Option<Bookmark>,
    piece: Vec<u8>,
}

impl<'a> Applier<'a> {
    /// `bookmark` is the one of the last imported commit, if there is one.
    pub(crate) fn new(
        db: &'a Db,
        keyspace: Keyspace,
        bookmarks: Keyspace,
        branch: &'a str,
        bookmark: Option<Bookmark>,
    ) -> Result<Self> {
        let notes = Notes::open(db, bookmarks.clone(), keyspace.name())?;
        Ok(Self { db, keyspace, bookmarks, notes, branch, bookmark, piece: Vec::new() })
    }

    /// Applies the next commit; `false` at the end of the history.
    pub(crate) fn next(&mut self, feed: &mut Feed<'_>, counts: &mut Counts) -> Result<bool> {
        match feed.next()? {
            None => return Ok(false),
            Some(Step::Begin { id, time, metadata }) => {
                self.commit(id, time, &metadata, feed, counts)?
            }
            Some(Step::LeftOut { id, why }) => counts.commits.add(|| LeftOutCommit { id, why }),
            Some(step) => {
                unreachable!("{step:?} outside of a commit: the feed begins and ends each commit")
            }
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
    ) -> Result<()> {
        let mut transaction = self.db.begin();
        bookmark::confirm(&transaction, &self.bookmarks, self.keyspace.name(), self.bookmark)?;
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
                // Commits are read ahead, so a missing one is reported while an earlier one is
                // delivered.
                Some(Step::LeftOut { id, why }) => counts.commits.add(|| LeftOutCommit { id, why }),
                Some(Step::End) => break,
                other => unreachable!(
                    "{other:?} inside of a commit: the feed begins and ends each commit"
                ),
            }
        }
        let root = self.bookmark.map_or(id, |bookmark| bookmark.root);
        let bookmark = Bookmark { commit: id, root };
        bookmark::write(
            &mut transaction,
            &self.bookmarks,
            self.keyspace.name(),
            self.branch,
            bookmark,
        )?;
        self.notes.add(&mut transaction, id.as_str(), time)?;
        transaction.commit().map_err(|error| bookmark::of_commit(error, self.keyspace.name()))?;
        self.bookmark = Some(bookmark);
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
    ) -> Result<()> {
        let (commit, object) = (*commit, *content);
        let left_out = |why| LeftOutFile { path: path.to_vec(), commit, why };
        let bytes = match feed.blob()? {
            _ if path.len() > MAX_KEY_BYTES => {
                counts.unfit.add(|| left_out(FileReason::PathTooLong));
                return Ok(());
            }
            Blob::Found { bytes } if bytes <= MAX_VALUE_BYTES => bytes,
            Blob::Found { bytes } => {
                counts.unfit.add(|| left_out(FileReason::TooLarge { bytes }));
                return self.absent(transaction, path);
            }
            Blob::Missing => {
                counts.missing.add(|| left_out(FileReason::Missing { object }));
                return self.absent(transaction, path);
            }
            Blob::Damaged(message) => {
                counts.missing.add(|| left_out(FileReason::Damaged { object, message }));
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
            if let Some(error) = content.failed {
                return Err(unreadable(&error));
            }
            put?;
        }
        counts.versions += 1;
        counts.bytes_in += bytes;
        Ok(())
    }

    /// Deletes a file whose content is missing, because its earlier content would be a wrong
    /// answer.
    fn absent(&self, transaction: &mut Transaction, path: &[u8]) -> Result<()> {
        Ok(transaction.delete(&self.keyspace, path)?)
    }
}

pub(crate) fn unreadable(error: &dyn std::fmt::Display) -> Error {
    Error::unreadable(format!("cannot read a file's content from git: {error}"))
}

/// Records an error of the reader, which `put_reader` would otherwise report as a store error.
pub(crate) struct Watched<R> {
    pub(crate) inner: R,
    pub(crate) failed: Option<String>,
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.inner.read(into).inspect_err(|error| self.failed = Some(error.to_string()))
    }
}
