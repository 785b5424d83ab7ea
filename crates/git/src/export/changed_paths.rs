//! The changes of a commit of the store, as changes of paths.

use std::io;
use std::ops::Bound;

use plimsoll::{Changes, Commit};

use crate::compare::{SLASHES_MAX, parse};
use crate::error::{Error, Result};
use crate::export::derive::{Change, Content, EntryChange, Source};
use crate::export::destination::Destination;
use crate::object::{Hasher, Kind};
use crate::object_id::ObjectId;
use crate::records::{ENTRIES, FILES, ROOT_KEY};
use crate::tree::Mode;

/// Larger values are streamed.
const WHOLE_BYTES: u64 = 1 << 20;

/// The changes of one keyspace, in key order.
struct In<'c> {
    changes: Changes<'c>,
    keyspace: &'static str,
    next: Option<plimsoll::Change>,
}

impl<'c> In<'c> {
    /// Also returns the deleted ranges.
    fn open(commit: &'c Commit, keyspace: &'static str) -> Result<(Self, Vec<plimsoll::Change>)> {
        let mut changes = Self { changes: commit.changes()?, keyspace, next: None };
        let mut ranges = Vec::new();
        changes.take()?;
        while let Some(range) = changes.next.take_if(|next| next.deleted_range().is_some()) {
            ranges.push(range);
            changes.take()?;
        }
        Ok((changes, ranges))
    }

    fn key(&self) -> Option<&[u8]> {
        self.next.as_ref().map(plimsoll::Change::key)
    }

    fn take(&mut self) -> Result<Option<plimsoll::Change>> {
        let keyspace = self.keyspace;
        let is_wanted = |change: &plimsoll::Result<plimsoll::Change>| match change {
            Ok(change) => change.keyspace() == Some(keyspace),
            Err(_) => true,
        };
        let following = self.changes.by_ref().find(is_wanted).transpose()?;
        Ok(std::mem::replace(&mut self.next, following))
    }
}

/// The changes of paths of one commit.
pub(crate) struct ChangedPaths<'c> {
    files: In<'c>,
    entries: In<'c>,
    /// Files in deleted ranges, the last one first.
    deleted: Vec<Vec<u8>>,
    is_imported: bool,
    left_out: &'c mut dyn FnMut(&[u8]),
}

impl<'c> ChangedPaths<'c> {
    /// The changes of `commit`, whose first parent has the root tree `base`. Keys that are no paths
    /// are passed to `left_out`.
    pub(crate) fn open(
        commit: &'c Commit,
        is_imported: bool,
        base: Option<ObjectId>,
        to: &mut Destination,
        left_out: &'c mut dyn FnMut(&[u8]),
    ) -> Result<Self> {
        let (files, ranges) = In::open(commit, FILES)?;
        let (entries, _) = In::open(commit, ENTRIES)?;
        let mut deleted = Vec::new();
        if let Some(base) = base
            && !ranges.is_empty()
        {
            files_in(to, &mut Vec::new(), base, &ranges, &mut deleted)?;
            deleted.sort_unstable_by(|one, other| other.cmp(one));
        }
        Ok(Self { files, entries, deleted, is_imported, left_out })
    }

    fn entry(&self, change: &plimsoll::Change) -> Result<Option<EntryChange>> {
        let Some(value) = change.value()? else { return Ok(Some(EntryChange::Delete)) };
        let mut words = value.splitn(2, |&byte| byte == b' ');
        let mode = words.next().and_then(Mode::parse);
        Ok(match (mode, words.next().map(ObjectId::parse)) {
            (Some(mode), None) if mode.has_content() => Some(EntryChange::Mode(mode)),
            (Some(mode), Some(Some(id))) if mode.is_commit() => {
                Some(EntryChange::Submodule(mode, id))
            }
            _ => None,
        })
    }
}

impl Source for ChangedPaths<'_> {
    fn next(&mut self, to: &mut Destination) -> Result<Option<Change>> {
        loop {
            let deleted = self.deleted.last().map(Vec::as_slice);
            let keys = [self.files.key(), self.entries.key(), deleted];
            let Some(path) = keys.into_iter().flatten().min().map(<[u8]>::to_vec) else {
                return Ok(None);
            };
            let is_next = keys.map(|key| key == Some(&path));
            let file = if is_next[0] { self.files.take()? } else { None };
            let entry = if is_next[1] { self.entries.take()? } else { None };
            let is_deleted = is_next[2] && self.deleted.pop().is_some();
            if let Some(directory) = directory(&path)
                && let Some(entry) = &entry
            {
                // Only an import records whole trees of directories.
                if self.is_imported {
                    let tree = entry.value()?.and_then(|id| ObjectId::parse(&id));
                    return Ok(Some(Change::Directory { path: directory.to_vec(), tree }));
                }
                if file.is_none() {
                    continue;
                }
            }
            if !is_path(&path) && !self.is_imported {
                (self.left_out)(&path);
                continue;
            }
            let content = match &file {
                Some(file) if file.is_delete() => Some(Content::Delete),
                Some(file) => Some(Content::Put(write(file, to)?)),
                None => is_deleted.then_some(Content::Delete),
            };
            let entry = match &entry {
                Some(entry) => self.entry(entry)?,
                None => None,
            };
            return Ok(Some(Change::Leaf { path, content, entry }));
        }
    }
}

/// The directory whose irregular tree has this key; `None` for other keys.
fn directory(key: &[u8]) -> Option<&[u8]> {
    if key == ROOT_KEY { Some(b"") } else { key.strip_suffix(b"/") }
}

/// Whether Git accepts a path.
fn is_path(path: &[u8]) -> bool {
    let is_name = |name: &[u8]| {
        !name.is_empty()
            && !name.contains(&0)
            && ![&b"."[..], b".."].contains(&name)
            && !name.eq_ignore_ascii_case(b".git")
    };
    let slashes = path.iter().filter(|&&byte| byte == b'/').count();
    let fits = path.len() < plimsoll::MAX_KEY_BYTES && slashes <= SLASHES_MAX;
    fits && path.split(|&byte| byte == b'/').all(is_name)
}

/// Writes a value as a blob; returns its id.
fn write(change: &plimsoll::Change, to: &mut Destination) -> Result<ObjectId> {
    let bytes = change.value_len().unwrap_or_default();
    if bytes <= WHOLE_BYTES {
        let value = change.value()?;
        return to.add(Kind::Blob, value.as_deref().unwrap_or_default());
    }
    let mut hasher = Hasher::of_object(to.format, Kind::Blob, bytes);
    let reader = || change.value_reader()?.ok_or_else(unreadable);
    io::copy(&mut reader()?, &mut Hashing(&mut hasher)).map_err(|_| unreadable())?;
    let id = hasher.id();
    if to.is_written(&id) { Ok(id) } else { to.add_blob(bytes, &mut reader()?) }
}

fn unreadable() -> Error {
    Error::git("cannot read a value of the store; verify the store")
}

struct Hashing<'h>(&'h mut Hasher);

impl io::Write for Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Lists the files of a tree that lie in deleted ranges.
fn files_in(
    to: &mut Destination,
    path: &mut Vec<u8>,
    tree: ObjectId,
    ranges: &[plimsoll::Change],
    found: &mut Vec<Vec<u8>>,
) -> Result<()> {
    let bytes = to.tree(&tree)?;
    for entry in parse(&bytes, &tree, path)?.entries {
        let length = path.len();
        path.extend((length > 0).then_some(b'/'));
        path.extend_from_slice(entry.name);
        if entry.mode.is_tree() {
            files_in(to, path, entry.id(), ranges, found)?;
        } else if entry.mode.has_content() && ranges.iter().any(|range| contains(range, path)) {
            found.push(path.clone());
        }
        path.truncate(length);
    }
    Ok(())
}

fn contains(range: &plimsoll::Change, path: &[u8]) -> bool {
    let Some((first, end)) = range.deleted_range() else { return false };
    let is_behind = match first {
        Bound::Included(first) => path >= first,
        Bound::Excluded(first) => path > first,
        Bound::Unbounded => true,
    };
    is_behind
        && match end {
            Bound::Included(end) => path <= end,
            Bound::Excluded(end) => path < end,
            Bound::Unbounded => true,
        }
}
