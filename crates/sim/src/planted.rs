//! Planted bugs: tests that the simulation finds them.
//!
//! Each bug is a patch in the folder `planted`: the first line describes the fault, the rest is a
//! diff. The patches are applied one at a time in a copy of the sources ([`scratch`]). A bug that
//! the simulation misses shows a gap in its checks. If no simulated run can reach a bug, because
//! another mechanism masks it, the second line names the test that finds it instead.
#![allow(clippy::disallowed_methods, reason = "copies and patches the project's own sources")]

pub mod scratch;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A bug.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planted {
    /// The name of its patch, without the extension.
    pub name: String,
    /// The fault that it causes.
    pub what: String,
    /// The test that finds it, if no simulated run can.
    pub test: Option<Test>,
    /// Its patch.
    pub patch: PathBuf,
}

/// A test of the library of one of the crates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Test {
    /// The crate.
    pub package: String,
    /// Its path.
    pub name: String,
}

impl Test {
    /// From a line such as `Found by the test plimsoll index::tests::a_key_is_found`.
    fn in_line(line: &str) -> Option<Self> {
        let (package, name) = line.strip_prefix("Found by the test ")?.split_once(' ')?;
        Some(Self { package: package.to_owned(), name: name.to_owned() })
    }
}

/// The sources: the workspace from which this program was built.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All planted bugs, by name.
///
/// # Errors
/// A patch cannot be read, or its first line has no description.
pub fn all(workspace: &Path) -> Result<Vec<Planted>, String> {
    let folder = workspace.join("crates/sim/planted");
    let failed = |error: io::Error| format!("{}: {error}", folder.display());
    let mut bugs = Vec::new();
    for entry in fs::read_dir(&folder).map_err(failed)? {
        let patch = entry.map_err(failed)?.path();
        let Some(name) = patch.file_name().and_then(|name| name.to_str()?.strip_suffix(".patch"))
        else {
            continue;
        };
        let text = fs::read_to_string(&patch).map_err(failed)?;
        let what = text.lines().next().unwrap_or_default().to_owned();
        if what.is_empty() || what.starts_with("---") {
            return Err(format!("{}: the first line must describe the fault", patch.display()));
        }
        let test = text.lines().nth(1).and_then(Test::in_line);
        bugs.push(Planted { name: name.to_owned(), what, test, patch });
    }
    bugs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(bugs)
}

/// Whether a patch applies to the current sources.
///
/// # Errors
/// The patch does not apply; the message has the remedy.
pub fn applies(workspace: &Path, bug: &Planted) -> Result<(), String> {
    git_apply(workspace, &["--check"], bug).map_err(|error| {
        format!(
            "{} does not apply to the sources any more.\n{error}\nIf the code has moved, plant \
             the same bug in its new place and write the patch anew: keep the text above the diff, \
             replace the diff by the output of `git diff -U2`, and undo the change. Then check \
             that `cargo run --release -p plimsoll-sim -- planted --only {}` finds the bug. If \
             the bug cannot be made any more, remove the patch.",
            bug.patch.display(),
            bug.name
        )
    })
}

fn git_apply(dir: &Path, how: &[&str], bug: &Planted) -> Result<(), String> {
    let patch =
        bug.patch.canonicalize().map_err(|error| format!("{}: {error}", bug.patch.display()))?;
    let mut git = Command::new("git");
    // A scratch copy may lie within a repository, which git must not find.
    git.current_dir(dir).env("GIT_CEILING_DIRECTORIES", dir.parent().unwrap_or(dir));
    git.args(["apply", "--whitespace=nowarn"]).args(how).arg(patch);
    done(git.output(), "git apply")
}

fn done(output: io::Result<Output>, what: &str) -> Result<(), String> {
    let output = output.map_err(|error| format!("{what}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{what}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}
