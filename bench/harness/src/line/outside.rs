//! Runs git's own processes outside the limit of the process that starts them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::cgroup;

/// Creates a folder with a command `git` that leaves its starter's cgroup for that of the bench and
/// then executes the real git. Returns the value of `PATH` that finds this command first.
pub(super) fn path_with_git_outside(folder: &Path) -> Result<String> {
    let path = std::env::var("PATH").context("PATH is not set")?;
    let git = find(&path, "git").context("git is not installed")?;
    let bench = std::env::current_exe()?;
    fs::create_dir_all(folder)?;
    let script = folder.join("git");
    let [bench, cgroup, git] = [&bench, &cgroup::own()?, &git].map(|path| quoted(path));
    fs::write(
        &script,
        format!("#!/bin/sh\nexec {bench} launch --cgroup {cgroup} -- {git} \"$@\"\n"),
    )?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    Ok(format!("{}:{path}", folder.display()))
}

fn find(path: &str, name: &str) -> Option<PathBuf> {
    std::env::split_paths(path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// Quotes a single shell word.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_word() {
        assert_eq!(quoted(Path::new("/a b/it's")), "'/a b/it'\\''s'");
    }
}
