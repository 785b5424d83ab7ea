//! The start of a history whose earlier commits are missing from the repository.

use crate::error::Result;
use crate::object_id::ObjectId;
use crate::repository::Repository;

/// Why the imported history begins with a commit that has a parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// A parent of the first commit is missing.
    Missing {
        /// The first commit.
        first: ObjectId,
    },
    /// The repository is a shallow clone that begins with this commit.
    Shallow {
        /// The first commit.
        first: ObjectId,
    },
}

/// Whether a shallow clone begins with `last`, the oldest commit of the list. Git hides the parents
/// of such a commit, so the list looks complete; only the commit object names the parents.
pub(crate) fn shallow(repository: &Repository, last: ObjectId) -> Result<Option<Cut>> {
    let git = repository.git();
    if git.ask(&["rev-parse", "--is-shallow-repository"])?.line() != b"true"
        || git.ask(&["rev-parse", "--verify", "--quiet", &format!("{last}^1")])?.succeeded()
    {
        return Ok(None);
    }
    let object = git.ask(&["cat-file", "commit", last.as_str()])?;
    let mut headers =
        object.line().split(|&byte| byte == b'\n').take_while(|line| !line.is_empty());
    let has_parent = headers.any(|line| line.starts_with(b"parent "));
    Ok(has_parent.then_some(Cut::Shallow { first: last }))
}
