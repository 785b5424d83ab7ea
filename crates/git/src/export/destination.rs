//! The repository that an export writes to: its objects, and a pack of new ones.

use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::commit::{malformed, tree_of};
use crate::error::Result;
use crate::export::pack::{Pack, Part};
use crate::object::{Format, Kind};
use crate::object_id::ObjectId;
use crate::objects::Objects;
use crate::process::Git;

/// Maximum number of ids in one generation of [`Recent`].
const RECENT_MAX: usize = 16_384;

/// Writes objects.
#[derive(Debug)]
pub(crate) struct Destination {
    pub(crate) format: Format,
    git: Git,
    folder: PathBuf,
    objects: Objects,
    pack: Pack,
    recent: Recent,
    /// The root trees of the commits in the pack.
    roots: HashMap<ObjectId, ObjectId>,
    /// Number of objects that were written.
    pub(crate) written: u64,
}

impl Destination {
    /// Writes to the repository of `git`; temporary files are in `folder`.
    pub(crate) fn new(git: &Git, folder: &Path, format: Format) -> Result<Self> {
        Ok(Self {
            format,
            git: git.clone(),
            folder: folder.to_owned(),
            objects: Objects::open(git)?,
            pack: Pack::new(format, folder)?,
            recent: Recent::default(),
            roots: HashMap::new(),
            written: 0,
        })
    }

    /// Whether the repository has an object.
    pub(crate) fn has(&mut self, id: &ObjectId) -> Result<bool> {
        Ok(self.is_written(id) || self.objects.find(id)?.is_some())
    }

    /// Whether an object was written lately. A few are forgotten, and are written again.
    pub(crate) fn is_written(&mut self, id: &ObjectId) -> bool {
        self.pack.has(id) || self.recent.has(id)
    }

    /// The bytes of a tree that was written, or that the repository has.
    pub(crate) fn tree(&mut self, id: &ObjectId) -> Result<Arc<[u8]>> {
        if let Some(tree) = self.objects.cached_tree(id) {
            return Ok(tree);
        }
        if self.pack.has(id) {
            self.flush()?;
        }
        self.objects.tree(id)
    }

    /// The root tree of a commit that was written, or that the repository has.
    pub(crate) fn root_of(&mut self, commit: &ObjectId) -> Result<ObjectId> {
        if let Some(root) = self.roots.get(commit) {
            return Ok(*root);
        }
        let (_, bytes) = self.objects.read(commit)?;
        tree_of(&bytes).ok_or_else(|| malformed(commit))
    }

    /// Writes a commit with this root tree.
    pub(crate) fn add_commit(&mut self, bytes: &[u8], root: ObjectId) -> Result<ObjectId> {
        let id = self.format.id(Kind::Commit, bytes);
        // Add the root before the pack may be flushed, which forgets the roots.
        self.roots.insert(id, root);
        self.add(Kind::Commit, bytes)
    }

    /// Writes an object, unless it was written lately.
    pub(crate) fn add(&mut self, kind: Kind, bytes: &[u8]) -> Result<ObjectId> {
        let id = self.format.id(kind, bytes);
        if !self.is_written(&id) {
            self.pack.add(kind, id, bytes)?;
            self.added(id)?;
        }
        Ok(id)
    }

    /// Writes a blob that was not written lately.
    pub(crate) fn add_blob(&mut self, bytes: u64, from: &mut impl Read) -> Result<ObjectId> {
        let id = self.pack.add_blob(bytes, from)?;
        self.added(id)?;
        Ok(id)
    }

    /// Writes a tree that was made from another one.
    pub(crate) fn add_tree(
        &mut self,
        bytes: Vec<u8>,
        base: Option<(&ObjectId, usize)>,
        parts: &[Part],
    ) -> Result<ObjectId> {
        let id = self.format.id(Kind::Tree, &bytes);
        if !self.is_written(&id) {
            self.pack.add_tree(id, &bytes, base, parts)?;
            self.added(id)?;
        }
        self.objects.cache_tree(id, bytes.into());
        Ok(id)
    }

    fn added(&mut self, id: ObjectId) -> Result<()> {
        self.recent.add(id);
        self.written += 1;
        if self.pack.is_full() { self.flush() } else { Ok(()) }
    }

    /// Adds the written objects to the repository.
    pub(crate) fn flush(&mut self) -> Result<()> {
        let next = Pack::new(self.format, &self.folder)?;
        self.roots.clear();
        std::mem::replace(&mut self.pack, next).finish(&self.git)
    }
}

/// The ids that were added last, in two generations.
#[derive(Debug, Default)]
struct Recent {
    young: HashSet<ObjectId>,
    old: HashSet<ObjectId>,
}

impl Recent {
    fn has(&self, id: &ObjectId) -> bool {
        self.young.contains(id) || self.old.contains(id)
    }

    fn add(&mut self, id: ObjectId) {
        if self.young.len() >= RECENT_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(id);
    }
}
