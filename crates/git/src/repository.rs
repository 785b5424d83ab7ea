//! A repository: found, checked, and asked a few short questions.

use std::path::{Path, PathBuf};

use crate::exit::{Exit, Failure};
use crate::git::object_id::ObjectId;
use crate::git::process::Git;

/// A repository and the commit whose history is wanted.
#[derive(Debug)]
pub(crate) struct Repository {
    git: Git,
    path: PathBuf,
    tip: ObjectId,
    empty_tree: ObjectId,
}

impl Repository {
    /// Finds the repository that `path` is or lies in, and what `branch` points to.
    pub(crate) fn open(path: &Path, branch: &str) -> Result<Self, Failure> {
        let git = Git::in_repository(&git_dir(path)?);
        let tip = tip(&git, path, branch)?;
        let answer = git.ask(&["hash-object", "-t", "tree", "/dev/null"])?;
        let empty_tree = ObjectId::parse(answer.out.as_bytes()).ok_or_else(|| answer.failure("name the empty tree"))?;
        Ok(Self { git, path: path.to_owned(), tip, empty_tree })
    }

    pub(super) fn git(&self) -> &Git {
        &self.git
    }

    /// Where the user said it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The commit that the branch points to.
    pub(crate) fn tip(&self) -> &ObjectId {
        &self.tip
    }

    /// The tree without files.
    pub(crate) fn empty_tree(&self) -> &ObjectId {
        &self.empty_tree
    }

    /// Whether a commit is here.
    pub(crate) fn has_commit(&self, commit: &ObjectId) -> Result<bool, Failure> {
        Ok(self.git.ask(&["cat-file", "-e", &format!("{commit}^{{commit}}")])?.succeeded())
    }

    /// Whether a commit is the tip or one of its ancestors.
    pub(crate) fn is_behind_tip(&self, commit: &ObjectId) -> Result<bool, Failure> {
        let answer = self.git.ask(&["merge-base", "--is-ancestor", commit.as_str(), self.tip.as_str()])?;
        match answer.code() {
            Some(0) => Ok(true),
            Some(1) => Ok(false),
            _ => Err(answer.failure("compare the last imported commit with the branch")),
        }
    }

    /// How many commits an import would bring; `None` where git cannot count them.
    pub(crate) fn count(&self, after: Option<&ObjectId>) -> Result<Option<u64>, Failure> {
        let range = range(after, &self.tip);
        let mut arguments = vec!["rev-list", "--count", "--first-parent"];
        arguments.extend(range.iter().map(String::as_str));
        Ok(self.git.ask(&arguments)?.out.parse().ok())
    }
}

/// The commits behind `tip` and not behind `after`, as arguments of `git rev-list`.
pub(super) fn range(after: Option<&ObjectId>, tip: &ObjectId) -> Vec<String> {
    let mut range = vec![tip.to_string()];
    range.extend(after.map(|after| format!("^{after}")));
    range
}

fn git_dir(path: &Path) -> Result<PathBuf, Failure> {
    if !path.is_dir() {
        let what = if path.exists() { "it is not a folder" } else { "there is no such folder" };
        return Err(Failure::usage(format!("{}: {what}; give the folder of a Git repository", path.display())));
    }
    let answer = Git::anywhere().ask_at(&["rev-parse", "--absolute-git-dir"], Some(path))?;
    if answer.succeeded() {
        return Ok(PathBuf::from(answer.out));
    }
    if answer.error.contains("not a git repository") {
        return Err(Failure::usage(format!(
            "{}: not a Git repository, and no folder above it is one; give a working tree or a bare repository",
            path.display()
        )));
    }
    Err(answer.failure(&format!("open {}", path.display())))
}

fn tip(git: &Git, path: &Path, branch: &str) -> Result<ObjectId, Failure> {
    let wanted = format!("{branch}^{{commit}}");
    let answer = git.ask(&["rev-parse", "--verify", "--quiet", "--end-of-options", &wanted])?;
    if let Some(tip) = ObjectId::parse(answer.out.as_bytes()) {
        return Ok(tip);
    }
    let path = path.display();
    // An unborn branch has a name and no commit.
    let message = match branch {
        "HEAD" => format!(
            "{path}: the repository has no commits yet, or what HEAD points to is missing; commit something, or name a branch with --branch"
        ),
        _ => format!("{path}: there is no branch, tag or commit `{branch}`; `git branch --all` lists what there is"),
    };
    Err(Failure::new(Exit::Usage, message))
}
