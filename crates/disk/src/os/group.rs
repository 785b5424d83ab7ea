//! Owner and rights of new files and folders: those of the folder that they are made in, whatever
//! the `umask` is and whoever makes them. So processes of several users work on one folder, and the
//! owner of a store can still write after the superuser has.
//!
//! 1. A new file permits what its folder permits, without the right to execute; a new folder inside
//!    a store, all that the store's permits. The rights of the group are given only where the new
//!    file has the folder's group (as all have in a folder with the set-group-id bit). Whoever gets
//!    more rights by this could have replaced the file in any case.
//! 2. What the superuser makes gets the owner and the group of its folder.
//! 3. Nothing of this is done in a sticky folder (such as `/tmp`), where users cannot replace each
//!    other's files. A folder outside of every store is its maker's, with the rights of the
//!    `umask`; a folder that its group may write to gives the group its rights.
//! 4. Files that exist are left as they are.
//! 5. A folder never has its name without its owner and rights. A process that is killed before it
//!    has renamed one leaves an empty folder
//!    `NAME.new-PID-NUMBER` beside it, which is never looked at.

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

/// Waits for another process that has made a file or its folder and not yet given it its rights,
/// each of a millisecond.
const WAITS: u32 = 200;

/// Counts the folders that this process has made, for names that no other has.
static FOLDERS: AtomicU64 = AtomicU64::new(0);

fn mode_of(stat: &Stat) -> Mode {
    Mode::from_raw_mode(stat.st_mode)
}

/// Whether the group may make files in a folder, and replace those of others.
fn is_for_group(folder: &Stat) -> bool {
    mode_of(folder).contains(Mode::WGRP) && !mode_of(folder).contains(Mode::SVTX)
}

/// The owner and group that a new file gets, if they are not its maker's.
fn owner_to_give(folder: &Stat, made: &Stat) -> Option<(Uid, Gid)> {
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

/// Gives a file that this process has just made its owner and rights.
pub(super) fn share_file(place: &Place<'_>, fd: &OwnedFd) -> io::Result<()> {
    let folder = place.stat_parent()?;
    let mut made = call(place.path, || fstat(fd))?;
    if let Some((user, group)) = owner_to_give(&folder, &made) {
        // Where it is refused, such as in a container with few users, the file stays its maker's.
        let _ = fchown(fd, Some(user), Some(group));
        made = call(place.path, || fstat(fd))?;
    }
    let rights = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP | Mode::ROTH | Mode::WOTH;
    match mode_in(&folder, &made, rights) {
        mode if mode == mode_of(&made) => Ok(()),
        // The superuser's right to do so may be missing, too: what the owner can do is the least
        // that is needed.
        mode => call(place.path, || fchmod(fd, mode)).or_else(|error| match error.kind() {
            io::ErrorKind::PermissionDenied => Ok(()),
            _ => Err(error),
        }),
    }
}

/// The same for a folder.
fn share_folder(place: &Place<'_>, folder: &Stat) -> io::Result<()> {
    let mut made = call(place.path, || place.stat())?;
    if !place.is_below() {
        let gives = is_for_group(folder) && made.st_gid == folder.st_gid;
        let mode =
            if gives { mode_of(&made) | (mode_of(folder) & Mode::RWXG) } else { mode_of(&made) };
        return set_mode(place, &made, mode);
    }
    if let Some((user, group)) = owner_to_give(folder, &made) {
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

/// Opens a file to read and write, and makes it if it is missing. Several processes may do so at
/// the same time.
pub(super) fn open_or_make(place: &Place<'_>) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK;
    loop {
        match patiently(place, || place.open(flags)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return opened,
        }
        match patiently(place, || place.open(flags | OFlags::CREATE | OFlags::EXCL)) {
            Ok(fd) => return share_file(place, &fd).map(|()| fd),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

/// Makes a folder. If it gets another owner or more rights, it is made beside its place and renamed
/// once it has them: another process may make files in it as soon as it has its name, and these get
/// the owner and rights of the folder.
pub(super) fn make_folder(place: &Place<'_>) -> io::Result<()> {
    // Most are there already.
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
        // It fails there, too, and the error names the folder that was asked for; but for a name
        // that is too long only with the mark.
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
    patiently(place, make)?;
    share_folder(place, folder)
}

/// Tries again for a while where there is no right, and another user may have made the file or its
/// folder just now.
fn patiently<T>(place: &Place<'_>, mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
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

/// Whether another user may have made a file or its folder just now, and is about to give the group
/// its rights.
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

    /// The modes of a file, a lock's file, a file of words and a folder that are made in a folder
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
    fn new_files_permit_what_their_folder_permits() {
        // Another folder than a store's has the rights of the `umask`, and those that its group
        // gets.
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
    fn a_sticky_folder_gives_nothing() {
        for mode in [0o1777, 0o1770] {
            let made = modes_in(mode);
            assert!(made.iter().all(|made| *made == own_mode(*made)), "{mode:o}: {made:?}");
        }
    }

    #[test]
    fn folders_of_an_open_store_have_the_owner_and_rights_of_its_folder() {
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
                // A folder takes over the set-group-id bit.
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

    /// What the `umask` of this process leaves of a mode.
    fn own_mode(made: u32) -> u32 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let umask = status.lines().find_map(|line| line.strip_prefix("Umask:")).unwrap();
        let umask = u32::from_str_radix(umask.trim(), 8).unwrap();
        if made & 0o100 == 0 { 0o666 & !umask } else { 0o777 & !umask }
    }

    #[test]
    fn an_error_names_the_folder_that_was_asked_for() {
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
    fn a_file_that_is_there_keeps_its_rights() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        std::fs::File::create_new(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o770)).unwrap();
        open_or_make(&Place::by_path(&path)).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_folder_that_is_there_is_left_and_none_is_left_over() {
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
            // The second time the folder is empty.
            let _ = rustix::fs::unlink(path.join("file"));
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn several_that_make_a_file_at_once_have_the_same_one() {
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
