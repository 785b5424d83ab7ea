//! The refs of a repository.

use std::collections::HashSet;

use plimsoll::BranchInfo;

use crate::error::{Error, Result};
use crate::object_id::ObjectId;
use crate::process::Git;
use crate::records::Ref;

const HEADS: &str = "refs/heads/";
const REMOTES: &str = "refs/remotes/";

/// All refs, ordered by name. [`Ref::branch`] is `None` in each.
pub(crate) fn all(git: &Git) -> Result<Vec<Ref>> {
    let answer = git.ask(&["for-each-ref", "--format=%(objectname) %(symref) %(refname)"])?;
    if !answer.succeeded() {
        return Err(answer.error("list the refs"));
    }
    let lines = answer.out().split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| parse(line).ok_or_else(|| unreadable(line))).collect()
}

fn parse(line: &[u8]) -> Option<Ref> {
    let line = std::str::from_utf8(line).ok()?;
    let mut words = line.splitn(3, ' ');
    let id = ObjectId::parse(words.next()?.as_bytes())?;
    let symref = Some(words.next()?).filter(|name| !name.is_empty()).map(str::to_owned);
    Some(Ref { name: words.next()?.to_owned(), id, symref, branch: None })
}

fn unreadable(line: &[u8]) -> Error {
    Error::unreadable(format!(
        "cannot import the ref `{}`: its name is not UTF-8; rename it",
        line.escape_ascii()
    ))
}

/// Chooses a branch of the store for each branch of the repository and of its remotes. `main` is
/// the ref that is imported to main. A ref in `known` keeps the branch that was chosen earlier.
pub(crate) fn choose_branches(refs: &mut [Ref], known: &[Ref], main: Option<&str>) {
    let mut taken = HashSet::from(["main".to_owned()]);
    for found in refs.iter_mut() {
        let old = known.binary_search_by(|known| known.name.cmp(&found.name));
        found.branch = old.ok().and_then(|place| known[place].branch.clone());
        taken.extend(found.branch.clone());
    }
    for found in refs.iter_mut().filter(|found| found.symref.is_none()) {
        if Some(&*found.name) == main {
            found.branch = Some("main".to_owned());
        } else if found.branch.is_none() || found.branch.as_deref() == Some("main") {
            let names = names(&found.name);
            found.branch = names.into_iter().find(|name| is_free(name) && !taken.contains(name));
            taken.extend(found.branch.clone());
        }
    }
}

/// Candidate names for the branch of a ref, in order of preference.
fn names(name: &str) -> Vec<String> {
    match (name.strip_prefix(HEADS), name.strip_prefix(REMOTES)) {
        (Some(short), _) => vec![short.to_owned(), format!("heads/{short}")],
        (_, Some(short)) => vec![short.to_owned(), format!("remotes/{short}")],
        _ => Vec::new(),
    }
}

/// Whether the name is valid for a branch, and not reserved for temporary branches.
fn is_free(name: &str) -> bool {
    BranchInfo::is_name(name) && !name.starts_with("incoming/")
}

/// Whether a repository cannot have both refs, because they are the same, or one is a folder that
/// contains the other.
pub(crate) fn exclude(one: &str, other: &str) -> bool {
    let is_below = |long: &str, short: &str| {
        long.strip_prefix(short).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    is_below(one, other) || is_below(other, one)
}

/// The ref for a branch that was made in the store.
pub(crate) fn of_branch(branch: &str) -> String {
    format!("{HEADS}{branch}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_branch_has_a_name_of_its_own() {
        let id = "1".repeat(40);
        let refs = ["heads/12", "heads/main", "heads/master", "heads/o/x", "remotes/o/x", "tags/t"];
        let parsed = |name| parse(format!("{id}  refs/{name}").as_bytes()).unwrap();
        let mut refs = refs.map(parsed);
        choose_branches(&mut refs, &[], Some("refs/heads/master"));
        let branches = refs.each_ref().map(|found| found.branch.as_deref());
        assert_eq!(
            branches,
            [
                Some("heads/12"),
                Some("heads/main"),
                Some("main"),
                Some("o/x"),
                Some("remotes/o/x"),
                None
            ]
        );
        let mut again = refs.clone();
        again.iter_mut().for_each(|found| found.branch = None);
        choose_branches(&mut again, &refs, Some("refs/heads/master"));
        assert_eq!(again, refs);
    }
}
