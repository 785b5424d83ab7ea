//! A repository and the commit to import.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::error::{Error, Result};
use crate::object_id::ObjectId;
use crate::process::Git;

/// A Git repository and the commit to import.
#[derive(Debug)]
pub struct Repository {
    git: Git,
    /// Set for a partial clone, whose contents may be missing.
    unpromised: Option<Unpromised>,
    path: PathBuf,
    branch: String,
    tip: ObjectId,
    empty_tree: ObjectId,
}

impl Repository {
    /// Opens the repository that contains `path` (a working tree, a folder in one, or a bare
    /// repository), and finds the commit that `branch` (a branch, a tag or a commit) names.
    pub fn open(path: &Path, branch: &str) -> Result<Self> {
        let git = Git::in_repository(&git_dir(path)?);
        let tip = tip(&git, path, branch)?;
        let answer = git.ask(&["hash-object", "-t", "tree", "/dev/null"])?;
        let empty_tree =
            ObjectId::parse(answer.line()).ok_or_else(|| answer.error("name the empty tree"))?;
        let unpromised = Unpromised::of(&git, &tip)?;
        Ok(Self {
            git,
            unpromised,
            path: path.to_owned(),
            branch: branch.to_owned(),
            tip,
            empty_tree,
        })
    }

    pub(crate) fn git(&self) -> &Git {
        &self.git
    }

    /// The git that reads file contents.
    pub(crate) fn contents_git(&self) -> &Git {
        self.unpromised.as_ref().map_or(&self.git, |unpromised| &unpromised.git)
    }

    /// The git that reads objects as they are; fails if the repository is incomplete.
    pub(crate) fn whole_git(&self) -> Result<Git> {
        let incomplete = |why| Error::Incomplete { path: self.path.clone(), why };
        if self.git.ask(&["rev-parse", "--is-shallow-repository"])?.line() == b"true" {
            return Err(incomplete("it is a shallow clone; run `git fetch --unshallow` there"));
        }
        if self.unpromised.is_some() {
            let why = "it is a partial clone; run `git fetch --refetch --no-filter` there";
            return Err(incomplete(why));
        }
        Ok(self.git.clone().raw())
    }

    /// The path given to [`Repository::open`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The branch given to [`Repository::open`].
    pub fn branch(&self) -> &str {
        &self.branch
    }

    /// The commit that the branch names.
    pub fn tip(&self) -> &ObjectId {
        &self.tip
    }

    /// The empty tree.
    pub(crate) fn empty_tree(&self) -> &ObjectId {
        &self.empty_tree
    }

    /// Whether the repository has a commit.
    pub(crate) fn has_commit(&self, commit: &ObjectId) -> Result<bool> {
        Ok(self.git.ask(&["cat-file", "-e", &format!("{commit}^{{commit}}")])?.succeeded())
    }

    /// Whether a commit is the tip or one of its ancestors.
    pub(crate) fn is_behind_tip(&self, commit: &ObjectId) -> Result<bool> {
        let answer =
            self.git.ask(&["merge-base", "--is-ancestor", commit.as_str(), self.tip.as_str()])?;
        match answer.code() {
            Some(0) => Ok(true),
            Some(1) => Ok(false),
            _ => Err(answer.error("compare the last imported commit with the branch")),
        }
    }

    /// The number of commits to import; `None` if git cannot count them.
    pub(crate) fn count(&self, after: Option<&ObjectId>) -> Result<Option<u64>> {
        let range = range(after, &self.tip);
        let mut arguments = vec!["rev-list", "--count", "--first-parent"];
        arguments.extend(range.iter().map(String::as_str));
        let answer = self.git.ask(&arguments)?;
        Ok(std::str::from_utf8(answer.line()).ok().and_then(|count| count.parse().ok()))
    }
}

/// Arguments of `git rev-list`: `tip` and its ancestors, without `after` and its ancestors.
pub(crate) fn range(after: Option<&ObjectId>, tip: &ObjectId) -> Vec<String> {
    let mut range = vec![tip.to_string()];
    range.extend(after.map(|after| format!("^{after}")));
    range
}

/// The folder of the repository that contains `path`.
pub(crate) fn git_dir(path: &Path) -> Result<PathBuf> {
    if !path.is_dir() {
        return Err(Error::NotARepository {
            path: path.to_owned(),
            why: match path.exists() {
                true => "it is not a folder; give the folder of a Git repository",
                false => "there is no such folder; give the folder of a Git repository",
            },
        });
    }
    const QUESTION: [&str; 2] = ["rev-parse", "--absolute-git-dir"];
    let answer = Git::anywhere().ask_at(&QUESTION, Some(path))?;
    if answer.succeeded() {
        return Ok(answer.path());
    }
    // With `safe.bareRepository=explicit`, git does not discover bare repositories but accepts an
    // explicitly named one.
    if answer.stderr.contains("safe.bareRepository") {
        let named = Git::in_repository(path).ask(&QUESTION)?;
        if named.succeeded() {
            return Ok(named.path());
        }
    }
    if answer.stderr.contains("not a git repository") {
        return Err(Error::NotARepository {
            path: path.to_owned(),
            why: "not a Git repository, and no folder above it is one; give a working tree or a \
                  bare repository",
        });
    }
    Err(answer.error(&format!("open {}", path.display())))
}

fn tip(git: &Git, path: &Path, branch: &str) -> Result<ObjectId> {
    let wanted = format!("{branch}^{{commit}}");
    let answer = git.ask(&["rev-parse", "--verify", "--quiet", "--end-of-options", &wanted])?;
    if let Some(tip) = ObjectId::parse(answer.line()) {
        return Ok(tip);
    }
    let path = path.to_owned();
    // In a new repository, HEAD names a branch without commits.
    Err(match branch {
        "HEAD" => Error::NoCommits { path },
        _ => Error::NoBranch { path, branch: branch.to_owned() },
    })
}

/// The objects of a partial clone, seen from an empty repository without remotes.
///
/// In a partial clone, `git cat-file` exits at each missing object that a remote has promised,
/// after searching all packs for the promise. Without a remote it reports the object as missing and
/// continues.
#[derive(Debug)]
struct Unpromised {
    git: Git,
    /// The empty repository.
    _folder: TempDir,
}

impl Unpromised {
    /// `None` if the repository is not a partial clone.
    fn of(git: &Git, tip: &ObjectId) -> Result<Option<Self>> {
        const PROMISES: &str =
            r"^(extensions\.partialclone|remote\..*\.(promisor|partialclonefilter))$";
        if !git.ask(&["config", "--get-regexp", PROMISES])?.succeeded() {
            return Ok(None);
        }
        let objects = git.ask(&["rev-parse", "--path-format=absolute", "--git-path", "objects"])?;
        if !objects.succeeded() {
            return Err(objects.error("find the objects"));
        }
        let cannot_make = |error: &dyn Display| {
            Error::git(format!("cannot make a temporary folder for git: {error}"))
        };
        let folder = tempfile::tempdir().map_err(|error| cannot_make(&error))?;
        let git = Git::in_repository(folder.path());
        let mut arguments = vec!["init", "--quiet", "--bare", "--template="];
        if tip.as_str().len() == 64 {
            arguments.push("--object-format=sha256");
        }
        let made = git.ask(&arguments)?;
        match made.succeeded() {
            true => Ok(Some(Self { git: git.with_objects(objects.path()), _folder: folder })),
            false => Err(cannot_make(&made.stderr)),
        }
    }
}
