//! The folder of a store: finds or creates it, and rejects one with other contents.
//!
//! Invariant: creating a store removes no file. If its folders have files but no log, the files may
//! be all that remains of another store.

use std::io::ErrorKind;
use std::path::Path;

use plimsoll_disk::vfs::{Disk, NEW_FOLDER_MARK};
use plimsoll_log::file_log::UNFINISHED;
use plimsoll_log::members::{LOCKS_DIR, WORDS_FILE};

use crate::engine::unfinished_backup::is_unfinished;
use crate::index::manifest::names::{FOREIGN, manifest_number};
use crate::types::error::{Error, Result};
use crate::types::options::Options;
use crate::warm::WARM_DIR;

/// Folders that a store needs while it is open. The warm image's folder is not among them, because
/// it may be deleted at any time.
pub(crate) const LASTING: [&str; 3] = ["log", "index", LOCKS_DIR];

/// Creates the folder if it is missing and the options permit it.
pub(crate) fn find_or_make_folder(path: &Path, options: &Options) -> Result<()> {
    let disk = &*options.disk;
    match disk.entry(path)? {
        None if may_make(options) => match make_folder(disk, path) {
            // Another process created it first; the lock decides between the two.
            Err(error) if error.kind() == ErrorKind::AlreadyExists && is_folder(disk, path)? => {
                Ok(())
            }
            made => Ok(made?),
        },
        None => not_a_store(
            path,
            "there is no store here; check the path, or create a store: run a command that writes, \
             or open the path with creation enabled",
        ),
        Some(entry) if !entry.is_dir => Err(Error::is_a_file(path)),
        Some(_) => Ok(()),
    }
}

fn may_make(options: &Options) -> bool {
    options.create && !options.read_only
}

fn not_a_store(path: &Path, what: &str) -> Result<()> {
    Err(Error::NotAStore { path: path.to_owned(), what: what.to_owned() })
}

/// Rejects a folder without a store, unless a store may be created there. Then it must be empty.
pub(crate) fn check_folder(path: &Path, options: &Options) -> Result<()> {
    let disk = &*options.disk;
    refuse_index_without_log(path, disk)?;
    match disk.entry(&path.join("log"))? {
        Some(entry) if entry.is_dir => return Ok(()),
        Some(_) => {
            return not_a_store(path, "`log` is a file here, not a folder; give another path");
        }
        None => {}
    }
    let names = disk.names(path)?;
    if is_unfinished(&names) {
        let what = "this folder holds an unfinished backup; unless it is being made now, delete \
                    it and make another";
        return not_a_store(path, what);
    }
    // A folder is created under a temporary name, and renamed once its permissions are set.
    let is_known = |name: &str| {
        let name = name.split_once(NEW_FOLDER_MARK).map_or(name, |(name, _)| name);
        ["LOCK", "log", "index", WARM_DIR, WORDS_FILE, LOCKS_DIR].contains(&name)
    };
    let others: Vec<&String> = names.iter().filter(|name| !is_known(name)).collect();
    if let Some(name) = others.iter().min() {
        let more = if others.len() > 1 {
            format!(" and {} more", others.len() - 1)
        } else {
            String::new()
        };
        let what = format!(
            "this folder holds `{name}`{more} and no store; give an empty folder, or another \
             path, such as that of a new folder in it"
        );
        return not_a_store(path, &what);
    }
    if may_make(options) {
        Ok(())
    } else {
        not_a_store(
            path,
            "this folder is empty; check the path, or create a store by writing to it",
        )
    }
}

/// Rejects a store whose log was removed: a new log would not match its index, whose runs may be
/// the only copy of their contents. A creation that was interrupted has left nothing in these
/// folders.
pub(crate) fn refuse_index_without_log(path: &Path, disk: &dyn Disk) -> Result<()> {
    let names = if is_folder(disk, path)? { disk.names(path)? } else { return Ok(()) };
    // An unfinished backup is not a store.
    if is_unfinished(&names) {
        return Ok(());
    }
    let names_in = |folder: &str| match is_folder(disk, &path.join(folder))? {
        true => disk.names(&path.join(folder)),
        false => Ok(Vec::new()),
    };
    let is_gone = match disk.entry(&path.join("log"))? {
        Some(entry) if !entry.is_dir => false,
        _ => names_in("log")?.iter().all(|name| name == "LOCK" || name.ends_with(UNFINISHED)),
    };
    if !is_gone {
        return Ok(());
    }
    for (folder, what) in [("index", "an index"), (WARM_DIR, "an image of its memory")] {
        if !names_in(folder)?.is_empty() {
            let error = Error::damaged(format_args!(
                "{}: its folder `log` is missing or empty, but `{folder}` holds {what}: \
                 restore the log, or give another path",
                path.display()
            ));
            return Err(error.in_file(|| "log".to_owned()));
        }
    }
    Ok(())
}

fn is_folder(disk: &dyn Disk, path: &Path) -> std::io::Result<bool> {
    Ok(disk.entry(path)?.is_some_and(|entry| entry.is_dir))
}

fn make_folder(disk: &dyn Disk, path: &Path) -> std::io::Result<()> {
    disk.create_dir(path)?;
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => disk.sync_dir(Path::new(".")),
        Some(parent) => disk.sync_dir(parent),
        None => Ok(()),
    }
}

pub(crate) fn make_folders(path: &Path, options: &Options) -> Result<()> {
    if options.read_only {
        return Ok(());
    }
    for dir in ["index", "log"] {
        if options.disk.entry(&path.join(dir))?.is_none() {
            options.disk.create_dir(&path.join(dir))?;
        }
    }
    // Sync names that an earlier process may have left after a failed sync, before anything depends
    // on them.
    options.disk.sync_dir(&path.join("index"))?;
    Ok(options.disk.sync_dir(path)?)
}

/// Renames manifests of other logs whose numbers are above the store's own, so that the next
/// manifest can take its number. Processes of an earlier version wrote such manifests after their
/// store's folder was replaced by this one. The renamed manifests are kept, but nothing reads them.
pub(crate) fn set_foreign_aside(disk: &dyn Disk, index: &Path, own: u64) -> Result<()> {
    let mut is_changed = false;
    for name in disk.names(index)? {
        if manifest_number(&name).is_some_and(|number| number > own) {
            disk.rename(&index.join(&name), &index.join(name + FOREIGN))?;
            is_changed = true;
        }
    }
    if is_changed { Ok(disk.sync_dir(index)?) } else { Ok(()) }
}

/// Removes a folder of the store with its contents, if it exists.
pub(crate) fn remove_folder(disk: &dyn Disk, dir: &Path) -> Result<()> {
    if disk.entry(dir)?.is_none() {
        return Ok(());
    }
    for entry in disk.list(dir)? {
        let path = dir.join(&entry.name);
        if entry.is_dir { remove_folder(disk, &path)? } else { disk.remove(&path)? }
    }
    Ok(disk.remove_dir(dir)?)
}
