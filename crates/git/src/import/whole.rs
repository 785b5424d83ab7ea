//! The import of a whole repository: all commits with all their parents, and all refs.

use std::collections::BTreeSet;
use std::fmt;
use std::io::Read;
use std::time::SystemTime;

use plimsoll::{
    CommitId, Db, HistoryImport, ImportCommit, InvalidInput, Keyspace, MAX_VALUE_BYTES,
};

use crate::commit::{self, Commit, malformed, tree_of};
use crate::commit_text;
use crate::compare::{self, Differences, Leaf};
use crate::counts::Counts;
use crate::error::{Error, Result};
use crate::import::apply::{Watched, unreadable};
use crate::import::commit_list::{CommitList, Line};
use crate::object::Kind;
use crate::object_id::ObjectId;
use crate::objects::{Objects, missing};
use crate::process::Git;
use crate::records::{self, ENTRIES, FILES, Head, OBJECTS, ROOT_KEY, Ref};
use crate::refs;
use crate::repository::Repository;
use crate::tree::{PLAIN, Tree};

/// Contents of more bytes are streamed.
const PIECE_BYTES: u64 = 64 * 1024;
/// Maximum size of an object that is reachable only from tags, because such objects are read whole.
const TAGGED_BYTES_MAX: u64 = 8 << 20;

/// An import of all commits, branches and tags of a repository. It can be dropped between two
/// commits; the next import continues from there.
///
/// The first-parent line of the repository's branch becomes main. Each other branch becomes a
/// branch of the same name, or of another name if that one is taken or not valid.
///
/// ```no_run
/// use plimsoll::{Db, Options};
/// use plimsoll_git::{Repository, WholeImport};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let repository = Repository::open("/srv/project".as_ref(), "HEAD")?;
/// let db = Db::open("project.plimsoll", Options::new())?;
/// if let Some(mut import) = WholeImport::open(&db, &repository)? {
///     while import.next_commit()? {}
///     println!("{} commits", import.finish()?.transactions);
/// }
/// # Ok(())
/// # }
/// ```
pub struct WholeImport<'a> {
    db: &'a Db,
    commits: CommitList,
    line: Line,
    objects: Objects,
    spaces: Spaces,
    counts: Counts,
    /// The last commit and its tree.
    last: Option<(ObjectId, ObjectId)>,
    history: Option<HistoryImport>,
    plan: Plan,
}

/// The records to write once all commits are imported.
#[derive(Debug)]
struct Plan {
    head: Head,
    known: Vec<Ref>,
    refs: Vec<Ref>,
    /// For each of `refs`, the commit that it refers to; `None` if it refers to another object.
    tips: Vec<Option<ObjectId>>,
}

#[derive(Debug)]
struct Spaces {
    files: Keyspace,
    entries: Keyspace,
    objects: Keyspace,
}

impl fmt::Debug for WholeImport<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WholeImport").field("counts", &self.counts).finish_non_exhaustive()
    }
}

impl<'a> WholeImport<'a> {
    /// Prepares to import the parts of a repository that are not imported yet. Returns `None` if
    /// there are none.
    ///
    /// # Errors
    /// [`Error::Incomplete`] for a shallow or partial clone; [`Error::OtherRepository`] if the
    /// store has the history of another repository; [`Error::NotEmpty`] if it has other commits;
    /// errors of git and of the store.
    pub fn open(db: &'a Db, repository: &Repository) -> Result<Option<Self>> {
        let git = repository.whole_git()?;
        let mut objects = Objects::open(&git)?;
        let old = records::head(db)?;
        let begun = records::begun(db)?;
        for commit in old.iter().map(|old| old.commit).chain(begun) {
            if objects.find(&commit)?.is_none() {
                return Err(Error::OtherRepository { path: repository.path().to_owned(), commit });
            }
        }
        if begun.is_none() {
            if db.main().tip()?.is_some() {
                return Err(Error::NotEmpty { what: "commits on main" });
            }
            records::put_begun(db, repository.tip())?;
        }
        let head = Head { name: main_ref(&git, repository)?, commit: *repository.tip() };
        let known = records::refs(db)?;
        let mut refs = refs::all(&git)?;
        refs::choose_branches(&mut refs, &known, head.name.as_deref());
        if old.as_ref() == Some(&head) && known == refs {
            return Ok(None);
        }
        let mut tips = Vec::with_capacity(refs.len());
        for found in &refs {
            tips.push(tagged(db, &mut objects, &found.id)?);
        }
        let history = db.import_history("main")?;
        let mut done = Vec::new();
        for id in old.iter().map(|old| &old.commit).chain(known.iter().map(|known| &known.id)) {
            // The commits of a branch that was deleted in the store are imported again.
            if find(db, &history, id)?.is_some() && objects.find(id)?.is_some() {
                done.push(*id);
            }
        }
        let wanted = tips.iter().copied().flatten().chain([head.commit]).collect::<Vec<_>>();
        let spaces = Spaces {
            files: db.keyspace(FILES)?,
            entries: db.keyspace(ENTRIES)?,
            objects: db.keyspace(OBJECTS)?,
        };
        Ok(Some(Self {
            db,
            commits: CommitList::open(&git, &wanted, &done)?,
            line: Line::open(&git, &head.commit, &done)?,
            objects,
            spaces,
            counts: Counts::default(),
            last: None,
            history: Some(history),
            plan: Plan { head, known, refs, tips },
        }))
    }

    /// Imports the next commit; `false` if there is none. [`WholeImport::finish`] must follow.
    ///
    /// # Errors
    /// [`Error::Unreadable`] if the repository is damaged or lacks objects; errors of the store.
    pub fn next_commit(&mut self) -> Result<bool> {
        let Some((id, bytes)) = self.commits.next()? else { return Ok(false) };
        if self.find(&id)?.is_none() {
            self.import(id, &bytes)?;
            self.counts.transactions += 1;
        }
        Ok(true)
    }

    /// The counts so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Moves main and the other branches to the imported commits, and records all refs. Returns the
    /// counts.
    ///
    /// # Errors
    /// [`Error::Rewritten`] if main has commits that the repository's branch does not contain;
    /// errors of git and of the store.
    pub fn finish(mut self) -> Result<Counts> {
        self.commits.finish()?;
        let mut history = self.history.take().expect("it is taken once");
        let Plan { head, known, refs, tips } = self.plan;
        let find = |history: &HistoryImport, id: &ObjectId| {
            find(self.db, history, id)?.ok_or_else(|| missing(id))
        };
        let main = find(&history, &head.commit)?;
        let mut diverged = BTreeSet::new();
        for (found, tip) in refs.iter().zip(&tips) {
            let (Some(branch), Some(tip)) = (&found.branch, tip) else { continue };
            if branch == "main" {
                continue;
            }
            let commit = find(&history, tip)?;
            match history.set_branch(branch, &commit) {
                Err(plimsoll::Error::InvalidInput(InvalidInput::NotFastForward { .. })) => {
                    self.counts.diverged.add(|| found.name.clone());
                    diverged.insert(&found.name);
                }
                set => set?,
            }
        }
        history.finish(&main).map_err(|error| match error {
            plimsoll::Error::InvalidInput(InvalidInput::NotFastForward { .. }) => {
                let commit = known.iter().find(|known| known.branch.as_deref() == Some("main"));
                let commit = commit.map_or(head.commit, |known| known.id);
                let branch = head.name.clone().unwrap_or_default();
                Error::Rewritten { path: "the repository".into(), commit, branch }
            }
            error => error.into(),
        })?;
        for old in &known {
            if !refs.iter().any(|found| found.name == old.name) {
                records::remove_ref(self.db, &old.name)?;
            }
        }
        for found in refs.iter().filter(|found| !diverged.contains(&found.name)) {
            if !known.contains(found) {
                records::put_ref(self.db, found)?;
            }
        }
        // Write the head last, because the next import assumes that everything reachable from it is
        // imported.
        records::put_head(self.db, &head)?;
        Ok(self.counts)
    }

    fn find(&self, id: &ObjectId) -> Result<Option<CommitId>> {
        find(self.db, self.history.as_ref().expect("it is taken at the end"), id)
    }

    /// Whether a commit is on the first-parent line of main.
    fn is_on_line(&mut self, id: &ObjectId) -> Result<bool> {
        while let Some(next) = self.line.next().copied() {
            if next == *id {
                self.line.advance()?;
                return Ok(true);
            }
            if self.find(&next)?.is_none() {
                return Ok(false);
            }
            self.line.advance()?;
        }
        Ok(false)
    }

    fn import(&mut self, id: ObjectId, bytes: &[u8]) -> Result<()> {
        let is_on_line = self.is_on_line(&id)?;
        let commit = commit::parse(id, bytes, false).ok_or_else(|| malformed(&id))?;
        let parents = parents(bytes);
        let mut ids = Vec::with_capacity(parents.len());
        for parent in &parents {
            ids.push(self.find(parent)?.ok_or_else(|| missing(parent))?);
        }
        let before = match parents.first() {
            None => None,
            Some(parent) => Some(self.tree_of(parent)?),
        };
        self.last = Some((id, commit.tree));
        let time = commit.time.map_or(SystemTime::UNIX_EPOCH, SystemTime::from);
        let history = self.history.as_mut().expect("it is taken at the end");
        let draft = history.begin(&ids, time.max(SystemTime::UNIX_EPOCH), is_on_line)?;
        let mut writer = Writer {
            draft,
            spaces: &self.spaces,
            counts: &mut self.counts,
            whole: BTreeSet::new(),
            extras: Vec::new(),
        };
        compare::compare(&mut self.objects, before, commit.tree, &mut writer)?;
        writer.put_objects(&mut self.objects, &commit, bytes)?;
        let mut draft = writer.draft;
        draft.set_metadata(&commit.metadata)?;
        draft.set_source(&id.to_bytes())?;
        draft.commit()?;
        Ok(())
    }

    fn tree_of(&mut self, commit: &ObjectId) -> Result<ObjectId> {
        if let Some((last, tree)) = &self.last
            && last == commit
        {
            return Ok(*tree);
        }
        let (_, bytes) = self.objects.read(commit)?;
        tree_of(&bytes).ok_or_else(|| malformed(commit))
    }
}

/// The commit of the store for a commit of the repository.
fn find(db: &Db, history: &HistoryImport, id: &ObjectId) -> Result<Option<CommitId>> {
    match history.find(&id.to_bytes())? {
        Some(commit) => Ok(Some(commit)),
        None => match records::made(db, id)? {
            Some(commit) if history.has(&commit)? => Ok(Some(commit)),
            _ => Ok(None),
        },
    }
}

/// The parents of a commit.
fn parents(commit: &[u8]) -> Vec<ObjectId> {
    let lines = commit.split(|&byte| byte == b'\n').skip(1);
    lines.map_while(|line| ObjectId::parse(line.strip_prefix(b"parent ")?)).collect()
}

/// The name of the branch that is imported to main; `None` if it is not a branch.
fn main_ref(git: &Git, repository: &Repository) -> Result<Option<String>> {
    let options = ["rev-parse", "--symbolic-full-name", "--end-of-options", repository.branch()];
    let answer = git.ask(&options)?;
    let lines = String::from_utf8_lossy(answer.line()).into_owned();
    let name = lines.lines().last().filter(|name| name.starts_with("refs/heads/"));
    Ok(name.map(str::to_owned))
}

/// Follows `id` through tags and records each of them. Returns the commit at their end. If there is
/// a tree or blob instead, records it with all objects reachable from it, and returns `None`.
fn tagged(db: &Db, objects: &mut Objects, id: &ObjectId) -> Result<Option<ObjectId>> {
    let mut id = *id;
    loop {
        let (kind, _) = objects.find(&id)?.ok_or_else(|| missing(&id))?;
        match kind {
            Kind::Commit => return Ok(Some(id)),
            Kind::Tag => {
                let (_, bytes) = objects.read(&id)?;
                if !records::has_object(db, &id)? {
                    records::put_object(db, &id, kind, &bytes)?;
                }
                let line = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
                let target = line.strip_prefix(b"object ").and_then(ObjectId::parse);
                id = target.ok_or_else(|| {
                    Error::unreadable(format!("tag {id} is malformed; run `git fsck`"))
                })?;
            }
            Kind::Tree | Kind::Blob => {
                record_below(db, objects, id)?;
                return Ok(None);
            }
        }
    }
}

/// Records a tree or blob, and all objects reachable from it.
fn record_below(db: &Db, objects: &mut Objects, id: ObjectId) -> Result<()> {
    if records::has_object(db, &id)? {
        return Ok(());
    }
    let mut others = below(objects, [id])?;
    others.remove(&id);
    // The object itself comes last: if it is recorded, so are the others.
    for id in others.into_iter().chain([id]) {
        let (kind, bytes) = objects.find(&id)?.ok_or_else(|| missing(&id))?;
        if bytes > TAGGED_BYTES_MAX {
            return Err(Error::unreadable(format!(
                "object {id}, which is reachable only from tags, has {bytes} bytes; the maximum \
                 is {TAGGED_BYTES_MAX}"
            )));
        }
        let (_, bytes) = objects.read(&id)?;
        records::put_object(db, &id, kind, &bytes)?;
    }
    Ok(())
}

/// The given trees and blobs, and all trees and blobs reachable from them.
fn below(
    objects: &mut Objects,
    from: impl IntoIterator<Item = ObjectId>,
) -> Result<BTreeSet<ObjectId>> {
    let mut found = BTreeSet::new();
    let mut left: Vec<ObjectId> = from.into_iter().collect();
    while let Some(id) = left.pop() {
        if !found.insert(id) {
            continue;
        }
        if let (Kind::Tree, _) = objects.find(&id)?.ok_or_else(|| missing(&id))? {
            let bytes = objects.tree(&id)?;
            let tree: Tree<'_> = compare::parse(&bytes, &id, b"")?;
            let entries = tree.entries.iter().chain(&tree.extras);
            left.extend(entries.filter(|entry| !entry.mode.is_commit()).map(|entry| entry.id()));
        }
    }
    Ok(found)
}

/// Writes the changes of a commit.
struct Writer<'w> {
    draft: ImportCommit<'w>,
    spaces: &'w Spaces,
    counts: &'w mut Counts,
    /// Irregular trees.
    whole: BTreeSet<ObjectId>,
    /// Objects that are reachable only from irregular trees.
    extras: Vec<ObjectId>,
}

impl Writer<'_> {
    fn put_content(&mut self, objects: &mut Objects, path: &[u8], id: &ObjectId) -> Result<()> {
        let (kind, bytes) = objects.find(id)?.ok_or_else(|| missing(id))?;
        if kind != Kind::Blob {
            let kind = kind.name();
            return Err(Error::unreadable(format!("object {id} is a {kind}, not a blob")));
        }
        self.counts.versions += 1;
        self.counts.bytes_in += bytes;
        self.put(objects, PutTo::File(path), None, bytes)
    }

    /// Puts the content of the object that `objects` found last, after the byte `first`.
    fn put(
        &mut self,
        objects: &mut Objects,
        to: PutTo<'_>,
        first: Option<u8>,
        bytes: u64,
    ) -> Result<()> {
        let bytes = bytes + first.iter().len() as u64;
        if bytes > MAX_VALUE_BYTES {
            return Err(Error::unreadable(format!(
                "a file has {bytes} bytes; the maximum is {MAX_VALUE_BYTES}"
            )));
        }
        let (space, key) = match to {
            PutTo::File(path) => (&self.spaces.files, path),
            PutTo::Object(key) => (&self.spaces.objects, key),
        };
        let first = first.as_slice();
        let mut content = Watched { inner: first.chain(objects.content()), failed: None };
        let put = if bytes <= PIECE_BYTES {
            let mut piece = Vec::with_capacity(bytes as usize);
            content.read_to_end(&mut piece).map_err(|error| unreadable(&error))?;
            self.draft.put(space, key, &piece)
        } else {
            self.draft.put_reader(space, key, bytes, &mut content)
        };
        if let Some(error) = content.failed {
            return Err(unreadable(&error));
        }
        Ok(put?)
    }

    /// Puts the objects of a commit that the store keeps whole: irregular trees, the objects
    /// reachable only from those, and the commit if its metadata does not determine it.
    fn put_objects(&mut self, objects: &mut Objects, commit: &Commit, bytes: &[u8]) -> Result<()> {
        let mut whole = std::mem::take(&mut self.whole);
        whole.extend(below(objects, std::mem::take(&mut self.extras))?);
        let metadata = serde_json::from_slice(&commit.metadata).unwrap_or_default();
        if commit_text::of_imported(&metadata, &commit.tree).as_deref() != Some(bytes) {
            whole.insert(commit.id);
        }
        for id in &whole {
            let (kind, bytes) = objects.find(id)?.ok_or_else(|| missing(id))?;
            self.put(objects, PutTo::Object(&id.to_bytes()), Some(kind as u8), bytes)?;
        }
        Ok(())
    }

    fn put_entry(&mut self, key: &[u8], value: Option<String>) -> Result<()> {
        match value {
            Some(value) => self.draft.put(&self.spaces.entries, key, value)?,
            None => self.draft.delete(&self.spaces.entries, key)?,
        }
        Ok(())
    }
}

enum PutTo<'k> {
    File(&'k [u8]),
    Object(&'k [u8]),
}

/// The value for a leaf in [`ENTRIES`]; `None` for a plain file, which needs none.
fn entry_of(leaf: &Leaf) -> Option<String> {
    if leaf.mode.is_commit() {
        return Some(format!("{} {}", leaf.mode.digits(), leaf.id));
    }
    (leaf.mode != PLAIN).then(|| leaf.mode.digits())
}

/// The key of the irregular tree of a directory.
fn directory_key(path: &[u8]) -> Vec<u8> {
    if path.is_empty() { ROOT_KEY.to_vec() } else { [path, b"/"].concat() }
}

impl Differences for Writer<'_> {
    fn irregular(
        &mut self,
        path: &[u8],
        before: Option<ObjectId>,
        after: Option<ObjectId>,
        extras: &[ObjectId],
    ) -> Result<()> {
        self.whole.extend(after);
        self.extras.extend_from_slice(extras);
        match (before, after) {
            (None, None) => Ok(()),
            (_, after) => self.put_entry(&directory_key(path), after.map(|id| id.to_string())),
        }
    }

    fn leaf(
        &mut self,
        objects: &mut Objects,
        path: &[u8],
        before: Option<Leaf>,
        after: Option<Leaf>,
    ) -> Result<()> {
        let content = |leaf: &Option<Leaf>| leaf.filter(|leaf| leaf.mode.has_content());
        match (content(&before), content(&after)) {
            (Some(before), Some(after)) if before.id == after.id => {}
            (_, Some(after)) => self.put_content(objects, path, &after.id)?,
            (Some(_), None) => {
                self.draft.delete(&self.spaces.files, path)?;
                self.counts.versions += 1;
            }
            (None, None) => {}
        }
        let [old, new] = [before, after].map(|leaf| leaf.as_ref().and_then(entry_of));
        if old != new { self.put_entry(path, new) } else { Ok(()) }
    }
}
