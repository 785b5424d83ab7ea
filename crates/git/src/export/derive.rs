//! Derives the root tree of a commit: applies the commit's changes to the tree of its first parent.

use crate::compare::parse;
use crate::error::Result;
use crate::export::destination::Destination;
use crate::export::pack::Part;
use crate::object::Kind;
use crate::object_id::ObjectId;
use crate::tree::{self, Entry, Mode, PLAIN};

/// A change at one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// A file, link or submodule was put, changed or removed.
    Leaf { path: Vec<u8>, content: Option<Content>, entry: Option<EntryChange> },
    /// A directory has an irregular tree, or no longer has one.
    Directory { path: Vec<u8>, tree: Option<ObjectId> },
}

/// A change of the content at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Put(ObjectId),
    Delete,
}

/// A change of the record in `git.entries` for a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryChange {
    Mode(Mode),
    Submodule(Mode, ObjectId),
    Delete,
}

impl Change {
    pub(crate) fn path(&self) -> &[u8] {
        match self {
            Self::Leaf { path, .. } | Self::Directory { path, .. } => path,
        }
    }
}

/// The entry at a path after its change; `None` if there is none.
fn changed(
    before: Option<(Mode, ObjectId)>,
    content: Option<Content>,
    entry: Option<EntryChange>,
) -> Option<(Mode, ObjectId)> {
    let file = before.filter(|(mode, _)| mode.has_content());
    let id = match content {
        Some(Content::Put(id)) => Some(id),
        Some(Content::Delete) => None,
        None => file.map(|(_, id)| id),
    };
    match entry {
        Some(EntryChange::Submodule(mode, commit)) => Some((mode, commit)),
        Some(EntryChange::Mode(mode)) => id.map(|id| (mode, id)),
        Some(EntryChange::Delete) => id.map(|id| (PLAIN, id)),
        None => match id {
            Some(id) => Some((file.map_or(PLAIN, |(mode, _)| mode), id)),
            None => before.filter(|(mode, _)| mode.is_commit()),
        },
    }
}

/// The changes of a commit, in the order of their paths.
pub(crate) trait Source {
    /// The next change. Its content has been written to `to`.
    fn next(&mut self, to: &mut Destination) -> Result<Option<Change>>;
}

/// Writes the trees that differ from those of the first parent.
pub(crate) struct Derivation<'d, S> {
    to: &'d mut Destination,
    changes: S,
    next: Option<Change>,
    /// The first 16 paths that are left out, because a file has the name of one of their
    /// directories.
    left_out: Vec<Vec<u8>>,
}

impl<'d, S: Source> Derivation<'d, S> {
    pub(crate) fn new(to: &'d mut Destination, mut changes: S) -> Result<Self> {
        let next = changes.next(to)?;
        Ok(Self { to, changes, next, left_out: Vec::new() })
    }

    /// The first 16 paths that are left out, because a file has the name of one of their
    /// directories.
    pub(crate) fn left_out(self) -> Vec<Vec<u8>> {
        self.left_out
    }

    fn take(&mut self) -> Result<Option<Change>> {
        let following = self.changes.next(self.to)?;
        Ok(std::mem::replace(&mut self.next, following))
    }

    /// Writes the trees. Returns the id of the root tree. `base` is the root tree of the first
    /// parent.
    pub(crate) fn root(&mut self, base: Option<ObjectId>) -> Result<ObjectId> {
        match self.directory(&mut Vec::new(), base)? {
            Some(root) => Ok(root),
            None => self.to.add(Kind::Tree, b""),
        }
    }

    /// Writes the tree of a directory, and returns its id; `None` if the directory is empty.
    fn directory(
        &mut self,
        path: &mut Vec<u8>,
        base: Option<ObjectId>,
    ) -> Result<Option<ObjectId>> {
        let bytes = base.map(|id| self.to.tree(&id)).transpose()?;
        let bytes = bytes.as_deref().unwrap_or_default();
        let old = match base {
            Some(id) => parse(bytes, &id, path)?.entries,
            None => Vec::new(),
        };
        let mut old = old.iter().peekable();
        let mut new = Building { base: bytes, ..Building::default() };
        let mut irregular = None;
        while let Some(next) = self.next_in(path) {
            let (name, is_tree) = match next {
                Next::Itself(tree) => {
                    irregular = tree;
                    self.take()?;
                    continue;
                }
                Next::Below(name) => (name, true),
                Next::Entry(name) => (name, false),
            };
            while let Some(entry) = old.next_if(|entry| entry.place(&name, is_tree).is_lt()) {
                if !new.copy(entry) {
                    self.leave_out(path, entry.name);
                }
            }
            let before = old.next_if(|entry| entry.place(&name, is_tree).is_eq());
            let after = match is_tree {
                true => {
                    let length = path.len();
                    path.extend((length > 0).then_some(b'/'));
                    path.extend_from_slice(&name);
                    let tree = self.directory(path, before.map(Entry::id))?;
                    path.truncate(length);
                    tree.map(|id| (Mode::TREE, id))
                }
                false => {
                    let before = before.map(|entry| (entry.mode, entry.id()));
                    match self.take()? {
                        Some(Change::Leaf { content, entry, .. }) => {
                            changed(before, content, entry)
                        }
                        _ => before,
                    }
                }
            };
            if let Some((mode, id)) = after
                && !new.add(mode, &name, &id)
            {
                self.leave_out(path, &name);
            }
        }
        for entry in old {
            if !new.copy(entry) {
                self.leave_out(path, entry.name);
            }
        }
        if irregular.is_some() {
            return Ok(irregular);
        }
        let Building { bytes: made, parts, .. } = new;
        if made.is_empty() {
            return Ok(None);
        }
        let base = base.as_ref().map(|id| (id, bytes.len()));
        self.to.add_tree(made, base, &parts).map(Some)
    }

    fn leave_out(&mut self, directory: &[u8], name: &[u8]) {
        let slash: &[u8] = if directory.is_empty() { b"" } else { b"/" };
        if self.left_out.len() < 16 {
            self.left_out.push([directory, slash, name].concat());
        }
    }

    /// The next change in a directory.
    fn next_in(&self, directory: &[u8]) -> Option<Next> {
        let change = self.next.as_ref()?;
        let rest = change.path().strip_prefix(directory)?;
        if let Change::Directory { tree, .. } = change
            && rest.is_empty()
        {
            return Some(Next::Itself(*tree));
        }
        let rest = match directory.is_empty() {
            true => rest,
            false => rest.strip_prefix(b"/")?,
        };
        Some(match rest.iter().position(|&byte| byte == b'/') {
            Some(slash) => Next::Below(rest[..slash].to_vec()),
            None if matches!(change, Change::Directory { .. }) => Next::Below(rest.to_vec()),
            None => Next::Entry(rest.to_vec()),
        })
    }
}

/// The place of the next change, relative to a directory.
enum Next {
    /// The directory's own tree.
    Itself(Option<ObjectId>),
    /// In the directory with this name.
    Below(Vec<u8>),
    /// The file, link or submodule with this name.
    Entry(Vec<u8>),
}

/// A tree that is being built.
#[derive(Default)]
struct Building<'b> {
    base: &'b [u8],
    bytes: Vec<u8>,
    parts: Vec<Part>,
    /// The names of files that are prefixes of the name added last. If the name added last is a
    /// file itself, it is the last of them.
    files: Vec<Vec<u8>>,
}

impl Building<'_> {
    /// Copies an entry of the base. Returns `false` if a file already has the name of a directory.
    fn copy(&mut self, entry: &Entry<'_>) -> bool {
        let Some(bytes) = entry.regular_bytes() else {
            let mode = if entry.mode.is_tree() { Mode::TREE } else { entry.mode };
            return self.add(mode, entry.name, &entry.id());
        };
        if self.is_in_the_way(entry.name, entry.mode.is_tree()) {
            return false;
        }
        self.bytes.extend_from_slice(bytes);
        let offset = bytes.as_ptr().addr() - self.base.as_ptr().addr();
        match self.parts.last_mut() {
            Some(Part::Copy { offset: at, bytes: length }) if *at + *length == offset => {
                *length += bytes.len();
            }
            _ => self.parts.push(Part::Copy { offset, bytes: bytes.len() }),
        }
        true
    }

    /// Adds an entry. Returns `false` if it is a directory and a file already has the name.
    fn add(&mut self, mode: Mode, name: &[u8], id: &ObjectId) -> bool {
        if self.is_in_the_way(name, mode.is_tree()) {
            return false;
        }
        let offset = self.bytes.len();
        tree::append(&mut self.bytes, mode, name, id);
        let length = self.bytes.len() - offset;
        match self.parts.last_mut() {
            Some(Part::Insert { bytes, .. }) => *bytes += length,
            _ => self.parts.push(Part::Insert { offset, bytes: length }),
        }
        true
    }

    /// Whether the entry is a directory and a file already has its name.
    fn is_in_the_way(&mut self, name: &[u8], is_tree: bool) -> bool {
        while self.files.pop_if(|file| !name.starts_with(file)).is_some() {}
        if is_tree {
            return self.files.last().is_some_and(|file| file == name);
        }
        self.files.push(name.to_vec());
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_after_a_change_is_decided() {
        let id = |digit| ObjectId::parse(&[digit; 40]).unwrap();
        let mode = |digits: &str| Mode::parse(digits.as_bytes()).unwrap();
        let (run, link, module) = (mode("100755"), mode("120000"), mode("160000"));
        let put = Some(Content::Put(id(b'2')));
        let old = |mode| Some((mode, id(b'1')));
        let new = |mode| Some((mode, id(b'2')));
        let submodule = Some(EntryChange::Submodule(module, id(b'3')));
        let cases = [
            (None, put, None, new(PLAIN)),
            (None, put, Some(EntryChange::Mode(link)), new(link)),
            (old(run), put, None, new(run)),
            (old(run), put, Some(EntryChange::Delete), new(PLAIN)),
            (old(PLAIN), None, Some(EntryChange::Mode(run)), old(run)),
            (old(run), None, Some(EntryChange::Delete), old(PLAIN)),
            (old(run), Some(Content::Delete), Some(EntryChange::Delete), None),
            (old(PLAIN), Some(Content::Delete), None, None),
            (old(PLAIN), Some(Content::Delete), submodule, Some((module, id(b'3')))),
            (old(module), put, Some(EntryChange::Delete), new(PLAIN)),
            (old(module), None, Some(EntryChange::Delete), None),
            (old(module), None, None, old(module)),
            (None, Some(Content::Delete), Some(EntryChange::Delete), None),
            (None, None, Some(EntryChange::Mode(run)), None),
        ];
        for (number, (before, content, entry, after)) in cases.into_iter().enumerate() {
            assert_eq!(changed(before, content, entry), after, "case {number}");
        }
    }
}
