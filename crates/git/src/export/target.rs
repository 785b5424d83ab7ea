//! The repository that a store is exported to: found or made, and its refs.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use plimsoll::CommitId;

use crate::error::{Error, Result};
use crate::object::Format;
use crate::object_id::ObjectId;
use crate::process::{Git, Input};
use crate::refs;
use crate::repository::git_dir;

/// A ref that is written at the end.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) name: String,
    pub(crate) to: Points,
}

#[derive(Debug)]
pub(crate) enum Points {
    /// To a commit of the store.
    Commit(CommitId),
    /// To a recorded object.
    Object(ObjectId),
    /// To another ref.
    Ref(String),
}

/// The repository that is exported to.
#[derive(Debug)]
pub(crate) struct Target {
    path: PathBuf,
    pub(crate) git: Git,
    /// The folder for temporary files.
    pub(crate) folder: PathBuf,
    pub(crate) format: Format,
    /// Whether the export made it.
    pub(crate) is_new: bool,
    /// The target of HEAD in a new repository.
    pub(crate) head: Option<Points>,
}

impl Target {
    pub(crate) fn open(path: &Path, format: Option<Format>) -> Result<Self> {
        let refused = |why: &str| Error::Destination { path: path.to_owned(), why: why.to_owned() };
        if path.exists() && !path.is_dir() {
            return Err(refused("it is not a folder; give a Git repository or a new folder"));
        }
        let is_empty = match std::fs::read_dir(path) {
            Ok(mut entries) => entries.next().is_none(),
            Err(_) => true,
        };
        let is_new = is_empty;
        if is_empty {
            let format = format.unwrap_or(Format::Sha1);
            let object_format = format!("--object-format={}", format.name());
            let text =
                path.to_str().ok_or_else(|| refused("the path is not UTF-8; give another path"))?;
            let made = Git::anywhere().ask(&[
                "init",
                "--quiet",
                "--bare",
                "--initial-branch=main",
                &object_format,
                "--",
                text,
            ])?;
            if !made.succeeded() {
                return Err(made.error("make a repository"));
            }
        }
        let folder = git_dir(path)?;
        let same = |one: &Path, other: &Path| {
            one.canonicalize().ok().zip(other.canonicalize().ok()).is_some_and(|(a, b)| a == b)
        };
        if !same(&folder, path) && !path.join(".git").exists() {
            return Err(refused(
                "it is not a Git repository; give a repository, or a new or empty folder",
            ));
        }
        let git = Git::in_repository(&folder).raw();
        let answer = git.ask(&["rev-parse", "--show-object-format"])?;
        let found = match answer.line() {
            b"sha256" => Format::Sha256,
            _ => Format::Sha1,
        };
        if format.is_some_and(|format| format != found) {
            return Err(refused(
                "its object format (SHA-1 or SHA-256) differs from that of the imported \
                 repository; export to a new folder",
            ));
        }
        let folder = git.ask(&["rev-parse", "--path-format=absolute", "--git-path", "objects"])?;
        if !folder.succeeded() {
            return Err(folder.error("find the objects"));
        }
        let folder = folder.path();
        Ok(Self { path: path.to_owned(), git, folder, format: found, is_new, head: None })
    }

    /// Whether a ref can have a name.
    pub(crate) fn accepts(&self, name: &str) -> Result<bool> {
        Ok(self.git.ask(&["check-ref-format", name])?.succeeded())
    }

    /// Creates and moves refs; returns their number.
    pub(crate) fn update(&self, planned: &[Planned], is_forced: bool) -> Result<u64> {
        let old = refs::all(&self.git)?;
        let old: HashMap<&str, _> = old.iter().map(|old| (&*old.name, old)).collect();
        let checked_out = self.checked_out()?;
        let mut updates = String::new();
        let mut count = 0;
        for Planned { name, to } in planned {
            let Points::Object(id) = to else { continue };
            let before = old.get(&**name).map(|old| &old.id);
            if before == Some(id) {
                continue;
            }
            if checked_out.as_ref() == Some(name) {
                let why = format!(
                    "{name} is checked out there; check out another branch, or export to a bare \
                     repository"
                );
                return Err(Error::Destination { path: self.path.clone(), why });
            }
            if let Some(before) = before
                && !is_forced
            {
                let arguments = ["merge-base", "--is-ancestor", before.as_str(), id.as_str()];
                if !self.git.ask(&arguments)?.succeeded() {
                    return Err(Error::Diverged { path: self.path.clone(), name: name.clone() });
                }
            }
            let zero = "0".repeat(id.as_str().len());
            let before = before.map_or(&*zero, |before| before.as_str());
            updates += &format!("update {name} {id} {before}\n");
            count += 1;
        }
        self.apply(&updates)?;
        for Planned { name, to } in planned {
            let Points::Ref(target) = to else { continue };
            if old.get(&**name).and_then(|old| old.symref.as_ref()) != Some(target) {
                self.ask(&["symbolic-ref", name, target], "set a symbolic ref")?;
                count += 1;
            }
        }
        match self.head.as_ref().filter(|_| self.is_new) {
            Some(Points::Ref(name)) => self.ask(&["symbolic-ref", "HEAD", name], "set HEAD")?,
            Some(Points::Object(id)) => {
                self.ask(&["update-ref", "--no-deref", "HEAD", id.as_str()], "set HEAD")?;
            }
            _ => {}
        }
        Ok(count)
    }

    fn ask(&self, arguments: &[&str], doing: &str) -> Result<()> {
        let answer = self.git.ask(arguments)?;
        if answer.succeeded() { Ok(()) } else { Err(answer.error(doing)) }
    }

    /// The branch that is checked out in the working tree of an older repository.
    fn checked_out(&self) -> Result<Option<String>> {
        if self.is_new || self.git.ask(&["config", "core.bare"])?.line() == b"true" {
            return Ok(None);
        }
        let head = self.git.ask(&["symbolic-ref", "--quiet", "HEAD"])?;
        let name = String::from_utf8_lossy(head.line()).into_owned();
        Ok(Some(name).filter(|name| !name.is_empty()))
    }

    fn apply(&self, updates: &str) -> Result<()> {
        if updates.is_empty() {
            return Ok(());
        }
        let mut process = self.git.start(&["update-ref", "--stdin"], Input::Ours)?;
        let (mut input, mut output) = (process.take_input(), process.take_output());
        // If the process has ended, its exit code reports it.
        let _ = input.write_all(updates.as_bytes());
        drop(input);
        let _ = output.read_to_end(&mut Vec::new());
        process.finish()
    }
}
