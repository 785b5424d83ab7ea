//! Owner and permissions of new files and folders: those of the containing folder, regardless of
//! the `umask` and the creating user. This lets processes of several users work on one folder, and
//! lets the owner of a store write after the superuser has.
//!
//! 1. A new file has the permissions of its folder, without the right to execute; a new folder
//!    inside a store has all permissions of the store's folder. Group permissions are granted only
//!    if the new file has the folder's group (always so in a folder with the set-group-id bit). A
//!    user who gains permissions this way could have replaced the file in any case.
//! 2. A file created by the superuser gets the owner and group of its folder.
//! 3. None of this applies in a sticky folder (such as `/tmp`), where users cannot replace each
//!    other's files. A folder outside every store belongs to its creator, with the permissions of
//!    the `umask`; a folder that its group may write to passes the group's permissions on.
//! 4. Existing files are left unchanged.
//! 5. A folder never has its final name without its owner and permissions. A process that is killed
//!    before it has given a folder its final name `NAME` leaves an empty folder
//!    `NAME.new-PID-NUMBER` there, which is never read.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{
    AtFlags, Gid, Mode, OFlags, RenameFlags, Stat, Uid, chmodat, chownat, fchmod, fchown, fstat,
    mkdirat, renameat_with, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::clock::{Clock, SystemClock};
use crate::os::call;
use crate::os::place::Place;
use crate::vfs::NEW_FOLDER_MARK;

/// Number of waits, of a millisecond each, for another process that has created a file or its
/// folder but not yet set its permissions.
const WAITS: u32 = 200;

/// Numbers the folders that this process has created, for unique names.
static FOLDERS: AtomicU64 = AtomicU64::new(0);

fn mode_of(stat: &Stat) -> Mode {
    Mode::from_raw_mode(stat.st_mode)
}

/// Whether the group may create files in a folder and replace those of others.
fn is_for_group(folder: &Stat) -> bool {
    mode_of(folder).contains(Mode::WGRP) && !mode_of(folder).contains(Mode::SVTX)
}

/// The owner and group of a new file, if they differ from its creator's.
fn owner_to_set(folder: &Stat, made: &Stat) -> Option<(Uid, Gid)> {
    let differs = (made.st_uid, made.st_gid) != (folder.st_uid, folder.st_gid);
    let gives = differs && geteuid().is_root() && !mode_of(folder).contains(Mode::SVTX);
    gives.then(|| (Uid::from_raw(folder.st_uid), Gid::from_raw(folder.st_gid)))
}

/// The mode of a new file or folder in a folder. Pure.
fn mode_in(folder: &Stat, made: &Stat, most: Mode) -> Mode {
    let (from, own) = (mode_of(folder), mode_of(made));
    if from.contains(Mode::SVTX) {
        return own;
    }
    let group = if made.st_gid == folder.st_gid { from } else { own } & Mode::RWXG;
    let special = own & !(Mode::RWXU | Mode::RWXG | Mode::RWXO);
    special | ((Mode::RWXU | group | (from & Mode::RWXO)) & most)
}

/// Sets the owner and permissions of a file that this process has just created.
pub(super) fn share_file(place: &Place<'_>, fd: &OwnedFd) -> io::Result<()> {
    let folder = place.stat_parent()?;
    let mut made = call(place.path, || fstat(fd))?;
    if let Some((user, group)) = owner_to_set(&folder, &made) {
        // If this is refused, as in a container with few users, the file keeps its creator.
        let _ = fchown(fd, Some(user), Some(group));
        made = call(place.path, || fstat(fd))?;
    }
    let rights = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP | Mode::ROTH | Mode::WOTH;
    match mode_in(&folder, &made, rights) {
        mode if mode == mode_of(&made) => Ok(()),
        // Ignore a refusal, which even the superuser may get: the owner's own permissions are
        // enough.
        mode => call(place.path, || fchmod(fd, mode)).or_else(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => Ok(()),
            _ => Err(error),
        }),
    }
}

/// Like `share_file`, for a folder.
fn share_folder(place: &Place<'_>, folder: &Stat) -> io::Result<()> {
    let mut made = call(place.path, || place.stat())?;
    if !place.is_below() {
        let gives = is_for_group(folder) && made.st_gid == folder.st_gid;
        let mode =
            if gives { mode_of(&made) | (mode_of(folder) & Mode::RWXG) } else { mode_of(&made) };
        return set_mode(place, &made, mode);
    }
    if let Some((user, group)) = owner_to_set(folder, &made) {
        let _ = chownat(place.folder(), place.name(), Some(user), Some(group), AtFlags::empty());
        made = call(place.path, || place.stat())?;
    }
    set_mode(place, &made, mode_in(folder, &made, Mode::RWXU | Mode::RWXG | Mode::RWXO))
}

fn set_mode(place: &Place<'_>, made: &Stat, mode: Mode) -> io::Result<()> {
    if mode == mode_of(made) {
        return Ok(());
    }
    call(place.path, || chmodat(place.folder(), place.name(), mode, AtFlags::empty()))
}

/// Opens a file for reading and writing, and creates it if it is missing. Several processes may do
/// so concurrently.
pub(super) fn open_or_make(place: &Place<'_>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK;
    loop {
        match with_retries(place, || place.open(flags)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return opened,
        }
        match with_retries(place, || place.open(flags | OFlags::CREATE | OFlags::EXCL)) {
            Ok(fd) => return share_file(place, &fd).map(|()| fd),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

/// Creates a folder. If it needs another owner or more permissions, it is created under a temporary
/// name and renamed afterwards. Otherwise another process could create files in it, which inherit
/// its owner and permissions, before these are set.
pub(super) fn make_folder(place: &Place<'_>) -> io::Result<()> {
    // Usually the folder exists already.
    let is_there = place.stat().is_ok();
    let folder = place.stat_parent()?;
    let is_shared = is_for_group(&folder) || place.is_below();
    let (true, Some(name), false) = (is_shared, place.name().file_name(), is_there) else {
        return make_plain_folder(place, &folder);
    };
    let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
    let mut new_name = name.to_owned();
    new_name.push(format!("{NEW_FOLDER_MARK}{}-{number}", std::process::id()));
    let (new_name, new_path) =
        (place.name().with_file_name(&new_name), place.path.with_file_name(&new_name));
    let new = place.beside(&new_name, &new_path);
    if make_plain_folder(&new, &folder).is_err() {
        // Create the folder without a temporary name. If that fails too, the error names the
        // requested folder. This succeeds if the only problem was the length of the temporary name.
        return make_plain_folder(place, &folder);
    }
    let renamed = renameat_with(
        new.folder(),
        new.name(),
        place.folder(),
        place.name(),
        RenameFlags::NOREPLACE,
    );
    if renamed.is_ok() {
        return Ok(());
    }
    call(new.path, || unlinkat(new.folder(), new.name(), AtFlags::REMOVEDIR))?;
    match renamed {
        // The file system cannot rename without replacing.
        Err(Errno::INVAL | Errno::NOSYS) => make_plain_folder(place, &folder),
        renamed => call(place.path, || renamed),
    }
}

fn make_plain_folder(place: &Place<'_>, folder: &Stat) -> io::Result<()> {
    let make =
        || call(place.path, || mkdirat(place.folder(), place.name(), Mode::from_raw_mode(0o777)));
    with_retries(place, make)?;
    share_folder(place, folder)
}

/// Retries for a while after a permission error, because another user may just have created the
/// file or its folder.
fn with_retries<T>(place: &Place<'_>, mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut waits = 0;
    loop {
        match act() {
            Err(error)
                if error.kind() == io::ErrorKind::PermissionDenied
                    && waits < WAITS
                    && may_be_granted(place)? =>
            {
                waits += 1;
                SystemClock::new().sleep(Duration::from_millis(1));
            }
            done => return done,
        }
    }
}

/// Whether another user may just have created a file or its folder and is about to set the group's
/// permissions.
fn may_be_granted(place: &Place<'_>) -> io::Result<bool> {
    Ok(is_for_group(&place.stat_parent()?) || is_for_group(&place.stat_grandparent()?))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    use std::sync::Arc;

    use super::*;
    use crate::os::OsDisk;
    use crate::vfs::{Caching, Disk, Open};

    /// The modes of a file, a lock file, a file of words and a folder that are created in a folder
    /// of this mode.
    fn modes_in(mode: u32) -> Vec<u32> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        let (disk, at) = (OsDisk::new(), |name: &str| dir.path().join(name));
        drop(disk.open(&at("file"), Open::CreateNew, Caching::Buffered).unwrap());
        drop(disk.lock_file(&at("lock")).unwrap());
        drop(disk.shared_words(&at("words"), 2).unwrap());
        drop(disk.lock(dir.path()).unwrap());
        disk.create_dir(&at("folder")).unwrap();
        let names = ["file", "lock", "words", "LOCK", "folder"];
        names.map(|name| std::fs::metadata(at(name)).unwrap().permissions().mode() & 0o777).to_vec()
    }

    #[test]
    fn new_files_inherit_their_folders_permissions() {
        // A folder outside a store has the permissions of the `umask`, plus those of its group.
        let cases = [
            (0o770, 0o660, 0o070),
            (0o2770, 0o660, 0o070),
            (0o720, 0o620, 0o020),
            (0o777, 0o666, 0o070),
            (0o755, 0o644, 0),
            (0o700, 0o600, 0),
        ];
        for (mode, file, folder) in cases {
            for (at, made) in modes_in(mode).into_iter().enumerate() {
                if at == 4 {
                    assert_eq!(made & folder, folder, "{mode:o}: {made:o}");
                } else {
                    assert_eq!(made, file, "{mode:o}: {made:o}");
                }
            }
        }
    }

    #[test]
    fn sticky_folder_passes_on_nothing() {
        for mode in [0o1777, 0o1770] {
            let made = modes_in(mode);
            assert!(made.iter().all(|made| *made == own_mode(*made)), "{mode:o}: {made:?}");
        }
    }

    #[test]
    fn store_folders_inherit_owner_and_permissions() {
        for (mode, owner) in [(0o700, 4321), (0o750, 4321), (0o2775, 4321), (0o711, 0)] {
            let dir = tempfile::tempdir().unwrap();
            let is_root = geteuid().is_root();
            if is_root {
                std::os::unix::fs::chown(dir.path(), Some(owner), Some(owner)).unwrap();
            }
            std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            let (disk, path) = OsDisk::new().of_store(dir.path(), &["log"]).unwrap().unwrap();
            let at = |name: &str| path.join(name);
            disk.create_dir(&at("log")).unwrap();
            drop(disk.open(&at("log/file"), Open::CreateNew, Caching::Buffered).unwrap());
            drop(disk.lock(&at("log")).unwrap());
            drop(disk.lock(&path).unwrap());
            drop(disk.shared_words(&at("words"), 2).unwrap());
            for (name, rights) in [
                ("log", 0o7777),
                ("log/file", 0o666),
                ("log/LOCK", 0o666),
                ("LOCK", 0o666),
                ("words", 0o666),
            ] {
                let made = std::fs::metadata(at(name)).unwrap();
                // A folder inherits the set-group-id bit.
                assert_eq!(
                    made.permissions().mode() & 0o7777,
                    (mode | 0o600) & rights,
                    "{name} in {mode:o}"
                );
                assert!(
                    !is_root || (made.uid(), made.gid()) == (owner, owner),
                    "{name} of {owner}"
                );
            }
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3, "nothing is left over");
        }
    }

    /// The mode after this process's `umask` is applied.
    fn own_mode(made: u32) -> u32 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let umask = status.lines().find_map(|line| line.strip_prefix("Umask:")).unwrap();
        let umask = u32::from_str_radix(umask.trim(), 8).unwrap();
        if made & 0o100 == 0 { 0o666 & !umask } else { 0o777 & !umask }
    }

    #[test]
    fn error_names_the_requested_folder() {
        let dir = tempfile::tempdir().unwrap();
        let (file, long) = (dir.path().join("file"), "n".repeat(250));
        std::fs::File::create_new(&file).unwrap();
        for path in [dir.path(), &file] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o770)).unwrap();
        }
        let error = make_folder(&Place::by_path(&file.join("store"))).unwrap_err().to_string();
        assert!(error.contains("/file/store:"), "{error}");
        make_folder(&Place::by_path(&dir.path().join(&long))).unwrap();
        assert!(dir.path().join(&long).is_dir());
    }

    #[test]
    fn existing_file_keeps_its_permissions() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        std::fs::File::create_new(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o770)).unwrap();
        open_or_make(&Place::by_path(&path)).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn existing_folder_is_unchanged_without_leftovers() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o770)).unwrap();
        let path = dir.path().join("folder");
        make_folder(&Place::by_path(&path)).unwrap();
        std::fs::File::create_new(path.join("file")).unwrap();
        for _ in 0..2 {
            assert_eq!(
                make_folder(&Place::by_path(&path)).unwrap_err().kind(),
                io::ErrorKind::AlreadyExists
            );
            // In the second round the folder is empty.
            let _ = rustix::fs::unlink(path.join("file"));
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn concurrent_creators_get_the_same_file() {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let path = dir.path().join("file");
        let made: Vec<u64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        std::fs::File::from(open_or_make(&Place::by_path(&path)).unwrap())
                            .metadata()
                            .unwrap()
                            .ino()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(made.iter().all(|inode| *inode == made[0]), "{made:?}");
    }
}
