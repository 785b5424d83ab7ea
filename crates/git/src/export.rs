//! The export of a store to a Git repository: imported commits get their original ids, and commits
//! made in the store become new Git commits.

pub(crate) mod changed_paths;
pub(crate) mod commit_text;
pub(crate) mod derive;
pub(crate) mod destination;
pub(crate) mod pack;
pub(crate) mod target;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::io::Read;
use std::path::Path;

use plimsoll::{Commit, CommitId, Db, Glsn};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::export::changed_paths::ChangedPaths;
use crate::export::derive::Derivation;
use crate::export::destination::Destination;
use crate::export::target::{Planned, Points, Target};
use crate::import::counts::LeftOut;
use crate::import::whole::tree_of;
use crate::marks::Marks;
use crate::object::{Format, Kind};
use crate::object_id::ObjectId;
use crate::objects::missing;
use crate::records::{self, OBJECTS, whole_object};
use crate::refs;

/// Of the objects that are kept whole, those of more bytes are streamed.
const WHOLE_BYTES: u64 = 1 << 20;
/// Maximum number of cached ids, which are used to find the parents of commits.
const KNOWN_MAX: usize = 16_384;

/// The counts of an export.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct ExportCounts {
    /// Commits that were written.
    pub commits: u64,
    /// Objects that were written, commits included.
    pub objects: u64,
    /// Branches and tags that were created or moved.
    pub refs: u64,
    /// Keys that Git does not accept as paths.
    pub unfit: LeftOut<Vec<u8>>,
    /// Branches that were left out, because Git does not accept their names, or not beside that of
    /// another branch (`a` and `a/b`).
    pub branches: LeftOut<String>,
}

/// An export of all branches of a store to a Git repository. It can be dropped at any time; the
/// next export finds the objects that [`Export::flush`] added, and continues after them.
///
/// Commits that [`WholeImport`](crate::WholeImport) imported get their original ids. A commit that
/// was made in the store becomes a Git commit with the contents of keyspace `default`, where keys
/// are paths. It gets the same id in every export.
///
/// ```no_run
/// use plimsoll::{Db, Options};
/// use plimsoll_git::Export;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let db = Db::open("project.plimsoll", Options::new())?;
/// let mut export = Export::open(&db, "/srv/project.git".as_ref())?;
/// while export.next_commit()? {}
/// println!("{} commits", export.finish(false)?.commits);
/// # Ok(())
/// # }
/// ```
pub struct Export<'a> {
    db: &'a Db,
    repository: Target,
    to: Destination,
    refs: Vec<Planned>,
    wanted: Marks,
    next: u64,
    /// Cached ids of commits.
    known: HashMap<CommitId, ObjectId>,
    counts: ExportCounts,
}

impl fmt::Debug for Export<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Export").field("counts", &self.counts).finish_non_exhaustive()
    }
}

impl<'a> Export<'a> {
    /// Prepares to export to the repository at `path`. If `path` does not exist or is an empty
    /// folder, creates a bare repository there.
    ///
    /// # Errors
    /// [`Error::Destination`] if `path` is neither of these nor a repository, or the repository has
    /// another kind of ids (SHA-1 or SHA-256); errors of git and of the store.
    pub fn open(db: &'a Db, path: &Path) -> Result<Self> {
        let head = records::head(db)?;
        let format = head.as_ref().map(|head| Format::of(&head.commit));
        let repository = Target::open(path, format)?;
        let to = Destination::new(&repository.git, &repository.folder, repository.format)?;
        let mut export = Self {
            db,
            repository,
            to,
            refs: Vec::new(),
            wanted: Marks::default(),
            next: 0,
            known: HashMap::new(),
            counts: ExportCounts::default(),
        };
        export.plan(head.as_ref())?;
        export.find_wanted()?;
        Ok(export)
    }

    /// Number of commits to export.
    pub fn count_commits(&self) -> u64 {
        self.wanted.count()
    }

    /// Exports the next commit; `false` if there is none. [`Export::finish`] must follow.
    ///
    /// # Errors
    /// [`Error::NotReproduced`]; errors of git and of the store, such as
    /// [`plimsoll::Error::Trimmed`] if the log no longer has the commit.
    pub fn next_commit(&mut self) -> Result<bool> {
        let Some(glsn) = self.wanted.first_from(self.next) else { return Ok(false) };
        self.next = glsn;
        // A commit that is repeated on another branch may have a greater GLSN than its children.
        let mut chain = vec![glsn];
        while let Some(&glsn) = chain.last() {
            let commit = self.commit_at(glsn)?;
            let id = self.id_at(glsn)?;
            let parents = self.db.commit_parents(&id)?;
            let mut ids = Vec::with_capacity(parents.len());
            let mut later = None;
            for parent in &parents {
                let glsn = self.glsn_of(parent)?;
                match self.wanted.has(glsn) {
                    true => later = Some(glsn),
                    false => ids.push(self.git_id(parent)?.ok_or_else(|| unknown(parent))?),
                }
            }
            if let Some(later) = later {
                chain.push(later);
                continue;
            }
            self.export(&commit, &id, &ids)?;
            self.wanted.clear(glsn);
            chain.pop();
        }
        Ok(true)
    }

    /// The counts so far.
    pub fn counts(&self) -> &ExportCounts {
        &self.counts
    }

    /// Adds the objects that were written so far to the repository. No branch leads to them until
    /// [`Export::finish`]. The export also flushes by itself whenever a pack is full.
    ///
    /// # Errors
    /// Errors of git.
    pub fn flush(&mut self) -> Result<()> {
        self.to.flush()
    }

    /// Moves the branches and tags of the repository to the exported commits. Returns the counts.
    /// If `is_forced`, also moves branches and tags with commits that the export does not contain.
    ///
    /// # Errors
    /// [`Error::Diverged`] if a branch or tag has commits that the export does not contain, unless
    /// `is_forced`; [`Error::Destination`] if a branch that is to be moved is checked out; errors
    /// of git and of the store.
    pub fn finish(mut self, is_forced: bool) -> Result<ExportCounts> {
        for planned in std::mem::take(&mut self.refs) {
            let target = match planned.to {
                Points::Commit(commit) => {
                    let id = self.git_id(&commit)?.ok_or_else(|| unknown(&commit))?;
                    Points::Object(id)
                }
                Points::Object(id) => {
                    self.write_recorded(id)?;
                    Points::Object(id)
                }
                other => other,
            };
            self.refs.push(Planned { name: planned.name, to: target });
        }
        self.to.flush()?;
        self.counts.refs = self.repository.update(&self.refs, is_forced)?;
        self.counts.objects = self.to.written;
        Ok(self.counts)
    }

    /// Decides which refs are written, and marks the commits that they name.
    fn plan(&mut self, head: Option<&records::Head>) -> Result<()> {
        let known = records::refs(self.db)?;
        let mut names = vec!["main".to_owned()];
        names.extend(self.db.branches()?.into_iter().map(|info| info.name));
        names.retain(|name| !name.starts_with("incoming/"));
        // Imported branches come first, because other branches must not take their refs.
        names.sort_by_key(|name| !known.iter().any(|known| known.branch.as_ref() == Some(name)));
        let main = head.and_then(|head| head.name.clone());
        for branch in &names {
            let Some(tip) = self.db.branch(branch)?.tip()? else { continue };
            let recorded = known.iter().find(|known| known.branch.as_ref() == Some(branch));
            let name = match (branch.as_str(), recorded) {
                (_, Some(recorded)) => recorded.name.clone(),
                ("main", None) => {
                    let is_detached = head.is_some_and(|head| head.name.is_none());
                    if is_detached && self.git_id(&tip)? == head.map(|head| head.commit) {
                        self.mark(&tip)?;
                        self.repository.head = head.map(|head| Points::Object(head.commit));
                        continue;
                    }
                    main.clone().unwrap_or_else(|| refs::of_branch("main"))
                }
                (branch, None) => refs::of_branch(branch),
            };
            let is_taken = self.refs.iter().any(|planned| refs::exclude(&planned.name, &name));
            if is_taken || !self.repository.accepts(&name)? {
                self.counts.branches.add(|| branch.clone());
                continue;
            }
            if branch == "main" {
                self.repository.head = Some(Points::Ref(name.clone()));
            }
            self.mark(&tip)?;
            self.refs.push(Planned { name, to: Points::Commit(tip) });
        }
        for recorded in known {
            if let Some(target) = recorded.symref {
                self.refs.push(Planned { name: recorded.name, to: Points::Ref(target) });
            } else if recorded.branch.is_none() {
                if let Some(commit) = self.commit_below(recorded.id)? {
                    self.mark(&commit)?;
                }
                self.refs.push(Planned { name: recorded.name, to: Points::Object(recorded.id) });
            }
        }
        Ok(())
    }

    /// The commit that the recorded object `id` leads to; `None` if it leads to none. If `id` is a
    /// commit, the commit of the store for it.
    fn commit_below(&self, mut id: ObjectId) -> Result<Option<CommitId>> {
        while let Some((kind, bytes)) = records::object(self.db, &id)? {
            let line = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
            let below = line.strip_prefix(b"object ").and_then(ObjectId::parse);
            match below.filter(|_| kind == Kind::Tag) {
                Some(below) => id = below,
                None => return Ok(None),
            }
        }
        let commit = self.db.find_imported(&id.to_bytes())?;
        match commit {
            Some(commit) => Ok(Some(commit)),
            None => Ok(Some(records::made(self.db, &id)?.ok_or_else(|| missing(&id))?)),
        }
    }

    fn mark(&mut self, commit: &CommitId) -> Result<()> {
        let glsn = self.glsn_of(commit)?;
        self.wanted.set(glsn);
        Ok(())
    }

    /// Marks the ancestors of the marked commits, without those that the repository has.
    fn find_wanted(&mut self) -> Result<()> {
        let mut next = self.wanted.end();
        let mut seen = Marks::default();
        // A parent that is repeated on another branch may have a greater GLSN than `next`.
        while let Some(glsn) = self.wanted.last_before(next) {
            next = glsn;
            seen.set(glsn);
            let id = self.id_at(glsn)?;
            if !self.repository.is_new
                && let Some(known) = self.git_id(&id)?
                && self.to.has(&known)?
            {
                self.wanted.clear(glsn);
                continue;
            }
            for parent in self.db.commit_parents(&id)? {
                let parent = self.glsn_of(&parent)?;
                if !seen.has(parent) && !self.wanted.has(parent) {
                    self.wanted.set(parent);
                    next = next.max(parent + 1);
                }
            }
        }
        Ok(())
    }

    fn glsn_of(&self, commit: &CommitId) -> Result<u64> {
        Ok(self.db.find_commit(commit)?.ok_or_else(|| unknown(commit))?.0)
    }

    fn id_at(&self, glsn: u64) -> Result<CommitId> {
        let id = self.db.commit_id(Glsn(glsn))?;
        id.ok_or_else(|| Error::git(format!("the entry {glsn} of the log is no commit")))
    }

    fn commit_at(&self, glsn: u64) -> Result<Commit> {
        let commit = self.db.log().commit(Glsn(glsn))?;
        commit.ok_or_else(|| Error::git(format!("the entry {glsn} of the log is no commit")))
    }

    /// The id of a commit in Git; `None` if it was made in the store and not exported yet.
    fn git_id(&mut self, id: &CommitId) -> Result<Option<ObjectId>> {
        if let Some(known) = self.known.get(id) {
            return Ok(Some(*known));
        }
        let known = match records::own(self.db, id)? {
            Some(own) => Some(own),
            None => {
                let commit = self.commit_at(self.glsn_of(id)?)?;
                let metadata = serde_json::from_slice(commit.metadata()?).unwrap_or_default();
                let claimed = self.claimed(&metadata, id)?;
                claimed.filter(|(_, is_certain)| *is_certain).map(|(claimed, _)| claimed)
            }
        };
        if let Some(known) = known {
            self.remember(*id, known);
        }
        Ok(known)
    }

    fn remember(&mut self, id: CommitId, git: ObjectId) {
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(id, git);
    }

    /// The Git id in the metadata of a commit, and whether it is certain, because this store
    /// recorded the import of the commit under this id. If it is not certain, the metadata may have
    /// been copied from another commit; or this store is a clone, which has no such records. `None`
    /// if there is no id in the metadata, or it belongs to another commit.
    fn claimed(&self, metadata: &Value, id: &CommitId) -> Result<Option<(ObjectId, bool)>> {
        let claimed = metadata["commit"].as_str().and_then(|id| ObjectId::parse(id.as_bytes()));
        let Some(claimed) = claimed else { return Ok(None) };
        Ok(match self.db.find_imported(&claimed.to_bytes())? {
            Some(found) if found == *id => Some((claimed, true)),
            Some(_) => None,
            None => Some((claimed, false)),
        })
    }

    fn export(&mut self, commit: &Commit, id: &CommitId, parents: &[ObjectId]) -> Result<()> {
        let metadata: Value = serde_json::from_slice(commit.metadata()?).unwrap_or_default();
        let base = parents.first().map(|parent| self.to.root_of(parent)).transpose()?;
        let again = match self.claimed(&metadata, id)? {
            Some((claimed, is_certain)) => {
                let made = self.imported(commit, &metadata, claimed, base);
                match made {
                    Err(Error::NotReproduced { .. }) if !is_certain => None,
                    made => Some((made?, is_certain)),
                }
            }
            None => None,
        };
        let ((bytes, root), is_recorded) = match again {
            Some(again) => again,
            None => {
                let root = self.root(commit, false, base)?;
                let time = self.db.commit_time(id)?;
                ((commit_text::of_own(commit, time, &root, parents)?, root), false)
            }
        };
        let git = self.to.add_commit(&bytes, root)?;
        if !is_recorded && records::own(self.db, id)? != Some(git) {
            records::put_own(self.db, id, &git)?;
        }
        self.remember(*id, git);
        self.counts.commits += 1;
        self.counts.objects = self.to.written;
        Ok(())
    }

    /// Writes the trees and contents of an imported commit. Returns the bytes of the commit and its
    /// root tree.
    ///
    /// # Errors
    /// [`Error::NotReproduced`] if the bytes do not have the id `id`.
    fn imported(
        &mut self,
        commit: &Commit,
        metadata: &Value,
        id: ObjectId,
        base: Option<ObjectId>,
    ) -> Result<(Vec<u8>, ObjectId)> {
        let whole = self.write_whole(commit, &id)?;
        let root = self.root(commit, true, base)?;
        let is_equal = |bytes: &Vec<u8>| {
            self.to.format.id(Kind::Commit, bytes) == id && tree_of(bytes) == Some(root)
        };
        let rebuilt = commit_text::of_imported(metadata, &root);
        let bytes = rebuilt.into_iter().chain(whole).find(is_equal);
        Ok((bytes.ok_or(Error::NotReproduced { commit: id })?, root))
    }

    /// Writes the trees and contents of a commit. Returns its root tree.
    fn root(
        &mut self,
        commit: &Commit,
        is_imported: bool,
        base: Option<ObjectId>,
    ) -> Result<ObjectId> {
        let unfit = &mut self.counts.unfit;
        let mut left_out = |path: &[u8]| unfit.add(|| path.to_vec());
        let changes = ChangedPaths::open(commit, is_imported, base, &mut self.to, &mut left_out)?;
        let mut derivation = Derivation::new(&mut self.to, changes)?;
        let root = derivation.root(base)?;
        for path in derivation.left_out() {
            self.counts.unfit.add(|| path.clone());
        }
        Ok(root)
    }

    /// Writes the objects that an imported commit keeps whole. Returns the bytes of the commit if
    /// it is one of them.
    fn write_whole(&mut self, commit: &Commit, imported: &ObjectId) -> Result<Option<Vec<u8>>> {
        let mut own = None;
        for change in commit.changes()? {
            let change = change?;
            let bytes = change.value_len().unwrap_or_default();
            if change.keyspace() != Some(OBJECTS) || bytes == 0 {
                continue;
            }
            let not_reproduced = || Error::NotReproduced { commit: *imported };
            if bytes > WHOLE_BYTES
                && let Some(mut reader) = change.value_reader()?
            {
                let mut kind = [0];
                let read = reader.read_exact(&mut kind);
                read.map_err(|_| Error::git("cannot read a value of the store; verify it"))?;
                if kind[0] == Kind::Blob as u8 {
                    let id = self.to.add_blob(bytes - 1, &mut reader)?;
                    if id.to_bytes() != change.key() {
                        return Err(not_reproduced());
                    }
                    continue;
                }
            }
            let Some(value) = change.value()? else { continue };
            let (kind, bytes) = whole_object(&value).ok_or_else(not_reproduced)?;
            if kind == Kind::Commit {
                own = Some(bytes);
            } else if self.to.add(kind, &bytes)?.to_bytes() != change.key() {
                return Err(not_reproduced());
            }
        }
        Ok(own)
    }

    /// Writes a recorded object and the recorded objects that it leads to.
    fn write_recorded(&mut self, id: ObjectId) -> Result<()> {
        let mut left = vec![id];
        let mut seen = BTreeSet::new();
        while let Some(id) = left.pop() {
            if !seen.insert(id) || self.to.is_written(&id) {
                continue;
            }
            let Some((kind, bytes)) = records::object(self.db, &id)? else { continue };
            match kind {
                Kind::Tag => {
                    let line = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
                    left.extend(line.strip_prefix(b"object ").and_then(ObjectId::parse));
                }
                Kind::Tree => {
                    let tree = crate::compare::parse(&bytes, &id, b"")?;
                    left.extend(tree.entries.iter().chain(&tree.extras).map(|entry| entry.id()));
                }
                Kind::Blob | Kind::Commit => {}
            }
            if self.repository.is_new || !self.to.has(&id)? {
                self.to.add(kind, &bytes)?;
            }
        }
        Ok(())
    }
}

fn unknown(commit: &CommitId) -> Error {
    Error::git(format!(
        "commit {commit} is not in the log, so the history cannot be exported; only a store that \
         retains its whole log can be exported"
    ))
}
