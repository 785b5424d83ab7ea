//! The folder of a run.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;

/// Where the bench puts its stores and its results.
#[derive(Args, Clone, Debug)]
pub(crate) struct Places {
    /// Folder to work in; it should lie on the disk that is to be measured [default: a new one in
    /// the system's folder for temporary files]
    #[arg(long, global = true)]
    work: Option<PathBuf>,
    /// Folder of results [default: bench/results]
    #[arg(long, global = true, conflicts_with = "no_results")]
    results: Option<PathBuf>,
    /// Keep no results
    #[arg(long, global = true)]
    no_results: bool,
}

impl Places {
    /// The folder of results, if they are kept.
    pub(crate) fn results(&self) -> Option<PathBuf> {
        if self.no_results {
            return None;
        }
        Some(
            self.results
                .clone()
                .unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../results")),
        )
    }

    /// A new folder for subcommand `name`.
    pub(crate) fn work(&self, name: &str) -> Result<WorkFolder> {
        let parent = self.work.clone().unwrap_or_else(std::env::temp_dir);
        let path = parent.join(format!("plimsoll-bench-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(WorkFolder { path, stays: false })
    }
}

/// A folder that is removed on drop, unless it was given by the user.
#[derive(Debug)]
pub(crate) struct WorkFolder {
    path: PathBuf,
    stays: bool,
}

impl WorkFolder {
    /// A folder that stays after the run, for the next one.
    pub(crate) fn kept(path: &Path) -> Result<WorkFolder> {
        fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(WorkFolder { path: path.to_owned(), stays: true })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes a store, to make room for the next one at once.
    pub(crate) fn remove(&self, name: &str) {
        let _ = fs::remove_dir_all(self.path.join(name));
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        if self.stays {
            return;
        }
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("{} is left over: {error}", self.path.display());
        }
    }
}

/// Bytes of all files in a folder and below.
pub(crate) fn bytes_on_disk(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_on_disk(&entry.path()),
        Ok(metadata) => std::os::unix::fs::MetadataExt::blocks(&metadata) * 512,
        Err(_) => 0,
    });
    sizes.sum()
}

/// Hard-links the files of a folder into another, for files that are only ever replaced as a whole.
pub(crate) fn link_files(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::hard_link(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

/// Copies the files of a folder into a new one, and those below.
pub(crate) fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.metadata()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// Drops the files of a folder and below from the page cache, so that the next reader starts cold.
pub(crate) fn drop_from_page_cache(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.metadata()?.is_dir() {
            drop_from_page_cache(&entry.path())?;
            continue;
        }
        let file = fs::File::open(entry.path())?;
        // Dirty pages cannot be dropped.
        file.sync_all()?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    }
    Ok(())
}
