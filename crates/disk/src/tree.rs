//! Folders and names in memory, for the disks in memory.
//!
//! Follows the rules of POSIX for replacing names. Reports the names that each operation changed,
//! so that a disk can decide on their durability. The disk also stores the contents of files.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::path::{Component, Path};

use crate::path_error::of_kind;
use crate::vfs::DirEntry;

/// Identifies a folder or a file, independently of its names; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeId(u64);

/// The folder in which every path starts.
pub(crate) const ROOT: NodeId = NodeId(0);

/// The names in a folder.
pub(crate) type Names = BTreeMap<String, NodeId>;

#[derive(Clone, Debug)]
enum Node<F> {
    Folder(Names),
    File(F),
}

/// A name that now refers to another node, or to none.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) folder: NodeId,
    pub(crate) name: String,
    pub(crate) was: Option<NodeId>,
    pub(crate) now: Option<NodeId>,
}

/// A tree whose files are `F`.
#[derive(Clone, Debug)]
pub(crate) struct Tree<F> {
    nodes: BTreeMap<NodeId, Node<F>>,
    /// Number of names of each node.
    links: BTreeMap<NodeId, u64>,
    next: u64,
}

impl<F> Tree<F> {
    pub(crate) fn new() -> Self {
        Self {
            nodes: BTreeMap::from([(ROOT, Node::Folder(Names::new()))]),
            links: BTreeMap::new(),
            next: 1,
        }
    }

    /// The folder at a path.
    pub(crate) fn folder(&self, path: &Path) -> io::Result<NodeId> {
        let id = self.find(path)?;
        self.names(id).map(|_| id).ok_or_else(|| of_kind(path, ErrorKind::NotADirectory))
    }

    /// The file at a path.
    pub(crate) fn file(&self, path: &Path) -> io::Result<NodeId> {
        let id = self.find(path)?;
        self.get(id).map(|_| id).ok_or_else(|| of_kind(path, ErrorKind::IsADirectory))
    }

    pub(crate) fn get(&self, id: NodeId) -> Option<&F> {
        match self.nodes.get(&id)? {
            Node::File(file) => Some(file),
            Node::Folder(_) => None,
        }
    }

    pub(crate) fn get_mut(&mut self, id: NodeId) -> Option<&mut F> {
        match self.nodes.get_mut(&id)? {
            Node::File(file) => Some(file),
            Node::Folder(_) => None,
        }
    }

    /// Every file in the tree, oldest first.
    pub(crate) fn files(&self) -> impl Iterator<Item = (NodeId, &F)> {
        self.nodes.keys().filter_map(|id| Some((*id, self.get(*id)?)))
    }

    /// Every file in the tree, oldest first.
    pub(crate) fn files_mut(&mut self) -> impl Iterator<Item = &mut F> {
        self.nodes.values_mut().filter_map(|node| match node {
            Node::File(file) => Some(file),
            Node::Folder(_) => None,
        })
    }

    /// Number of names of a node.
    pub(crate) fn links(&self, id: NodeId) -> u64 {
        self.links.get(&id).copied().unwrap_or(0)
    }

    /// The entries of a folder, sorted; `len` returns a file's length.
    pub(crate) fn list(&self, dir: &Path, len: impl Fn(&F) -> u64) -> io::Result<Vec<DirEntry>> {
        let names = self.names(self.folder(dir)?).into_iter().flatten();
        Ok(names.map(|(name, id)| self.describe(name.clone(), *id, &len)).collect())
    }

    /// The entry at a path.
    pub(crate) fn entry(
        &self,
        path: &Path,
        len: impl Fn(&F) -> u64,
    ) -> io::Result<Option<DirEntry>> {
        match self.find(path) {
            Ok(id) => {
                let name = components(path)?.last().copied().unwrap_or_default().to_owned();
                Ok(Some(self.describe(name, id, len)))
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) fn create_file(
        &mut self,
        path: &Path,
        file: F,
    ) -> io::Result<(NodeId, Vec<Change>)> {
        self.create(path, Node::File(file))
    }

    pub(crate) fn create_dir(&mut self, path: &Path) -> io::Result<(NodeId, Vec<Change>)> {
        self.create(path, Node::Folder(Names::new()))
    }

    pub(crate) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<Vec<Change>> {
        let moved = self.find(from)?;
        let (from_folder, from_name) = self.place(from)?;
        let (to_folder, to_name) = self.place(to)?;
        let (from_parts, to_parts) = (components(from)?, components(to)?);
        if to_parts.len() > from_parts.len() && to_parts.starts_with(&from_parts) {
            return Err(of_kind(to, ErrorKind::InvalidInput));
        }
        let replaced = self.lookup(to_folder, &to_name);
        if replaced == Some(moved) {
            return Ok(Vec::new());
        }
        if let Some(replaced) = replaced {
            self.may_replace(moved, replaced).map_err(|kind| of_kind(to, kind))?;
        }
        Ok(self.apply(vec![
            Change { folder: from_folder, name: from_name, was: Some(moved), now: None },
            Change { folder: to_folder, name: to_name, was: replaced, now: Some(moved) },
        ]))
    }

    pub(crate) fn remove(&mut self, path: &Path) -> io::Result<Vec<Change>> {
        let was = Some(self.file(path)?);
        let (folder, name) = self.place(path)?;
        Ok(self.apply(vec![Change { folder, name, was, now: None }]))
    }

    pub(crate) fn remove_dir(&mut self, path: &Path) -> io::Result<Vec<Change>> {
        let id = self.folder(path)?;
        let (folder, name) = self.place(path)?;
        if self.names(id).is_some_and(|names| !names.is_empty()) {
            return Err(of_kind(path, ErrorKind::DirectoryNotEmpty));
        }
        Ok(self.apply(vec![Change { folder, name, was: Some(id), now: None }]))
    }

    pub(crate) fn hard_link(&mut self, from: &Path, to: &Path) -> io::Result<Vec<Change>> {
        let id = self.find(from)?;
        let (folder, name) = self.place(to)?;
        if self.lookup(folder, &name).is_some() {
            return Err(of_kind(to, ErrorKind::AlreadyExists));
        }
        if self.get(id).is_none() {
            return Err(of_kind(from, ErrorKind::PermissionDenied));
        }
        Ok(self.apply(vec![Change { folder, name, was: None, now: Some(id) }]))
    }

    /// Drops a node; its bytes survive while a handle shares them.
    pub(crate) fn forget(&mut self, id: NodeId) {
        self.nodes.remove(&id);
        self.links.remove(&id);
    }

    /// Gives every folder the names in `folders` (none if it is absent there) and drops all nodes
    /// that become unreachable.
    pub(crate) fn reset(&mut self, folders: &BTreeMap<NodeId, Names>) {
        for (id, node) in &mut self.nodes {
            if let Node::Folder(names) = node {
                *names = folders.get(id).cloned().unwrap_or_default();
            }
        }
        let reached = self.reach([ROOT], folders);
        self.keep(&reached);
        self.links.clear();
        for node in self.nodes.values() {
            if let Node::Folder(names) = node {
                names.values().for_each(|id| *self.links.entry(*id).or_default() += 1);
            }
        }
    }

    /// All nodes reachable from `starts` by the names of the tree or by those in `folders`,
    /// including `starts`.
    pub(crate) fn reach(
        &self,
        starts: impl IntoIterator<Item = NodeId>,
        folders: &BTreeMap<NodeId, Names>,
    ) -> BTreeSet<NodeId> {
        let mut reached = BTreeSet::new();
        let mut waiting: Vec<NodeId> = starts.into_iter().collect();
        while let Some(id) = waiting.pop() {
            if reached.insert(id) {
                waiting.extend(
                    self.names(id).into_iter().chain(folders.get(&id)).flat_map(Names::values),
                );
            }
        }
        reached
    }

    /// Drops every node that is not in `kept`.
    pub(crate) fn keep(&mut self, kept: &BTreeSet<NodeId>) {
        self.nodes.retain(|id, _| kept.contains(id));
        self.links.retain(|id, _| kept.contains(id));
    }

    fn create(&mut self, path: &Path, node: Node<F>) -> io::Result<(NodeId, Vec<Change>)> {
        if self.find(path).is_ok() {
            return Err(of_kind(path, ErrorKind::AlreadyExists));
        }
        let (folder, name) = self.place(path)?;
        let id = NodeId(self.next);
        self.next += 1;
        self.nodes.insert(id, node);
        Ok((id, self.apply(vec![Change { folder, name, was: None, now: Some(id) }])))
    }

    fn apply(&mut self, changes: Vec<Change>) -> Vec<Change> {
        for change in &changes {
            if let Some(Node::Folder(names)) = self.nodes.get_mut(&change.folder) {
                apply(names, change);
            }
            if let Some(links) = change.was.and_then(|id| self.links.get_mut(&id)) {
                *links -= 1;
            }
            if let Some(id) = change.now {
                *self.links.entry(id).or_default() += 1;
            }
        }
        changes
    }

    /// Whether a rename may replace `replaced` with `moved`.
    fn may_replace(&self, moved: NodeId, replaced: NodeId) -> Result<(), ErrorKind> {
        match (self.names(moved), self.names(replaced)) {
            (None, None) => Ok(()),
            (None, Some(_)) => Err(ErrorKind::IsADirectory),
            (Some(_), None) => Err(ErrorKind::NotADirectory),
            (Some(_), Some(names)) if names.is_empty() => Ok(()),
            (Some(_), Some(_)) => Err(ErrorKind::DirectoryNotEmpty),
        }
    }

    fn describe(&self, name: String, id: NodeId, len: impl Fn(&F) -> u64) -> DirEntry {
        let file = self.get(id);
        let links = if file.is_some() { self.links(id) } else { 1 };
        DirEntry { name, len: file.map_or(0, len), is_dir: file.is_none(), links }
    }

    fn names(&self, id: NodeId) -> Option<&Names> {
        match self.nodes.get(&id)? {
            Node::Folder(names) => Some(names),
            Node::File(_) => None,
        }
    }

    fn lookup(&self, folder: NodeId, name: &str) -> Option<NodeId> {
        self.names(folder)?.get(name).copied()
    }

    fn find(&self, path: &Path) -> io::Result<NodeId> {
        self.walk(path, &components(path)?)
    }

    fn walk(&self, path: &Path, names: &[&str]) -> io::Result<NodeId> {
        names.iter().try_fold(ROOT, |id, name| match self.names(id) {
            Some(names) => {
                names.get(*name).copied().ok_or_else(|| of_kind(path, ErrorKind::NotFound))
            }
            None => Err(of_kind(path, ErrorKind::NotADirectory)),
        })
    }

    /// The parent folder of a path's last name, and that name.
    fn place(&self, path: &Path) -> io::Result<(NodeId, String)> {
        let names = components(path)?;
        let (name, parents) =
            names.split_last().ok_or_else(|| of_kind(path, ErrorKind::ResourceBusy))?;
        let folder = self.walk(path, parents)?;
        self.names(folder).ok_or_else(|| of_kind(path, ErrorKind::NotADirectory))?;
        Ok((folder, (*name).to_owned()))
    }
}

/// Applies a change to the names of its folder.
pub(crate) fn apply(names: &mut Names, change: &Change) {
    match change.now {
        Some(id) => names.insert(change.name.clone(), id),
        None => names.remove(&change.name),
    };
}

/// The components of a path from the root; relative paths start there too.
fn components(path: &Path) -> io::Result<Vec<&str>> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push(utf8(path, name)?),
            Component::ParentDir => drop(names.pop()),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    Ok(names)
}

fn utf8<'a>(path: &Path, name: &'a OsStr) -> io::Result<&'a str> {
    name.to_str().ok_or_else(|| of_kind(path, ErrorKind::InvalidInput))
}
