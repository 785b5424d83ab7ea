//! Rights of new files and folders: what a folder permits its group, new files in it permit the group, too, whatever the `umask` is. So
//! processes of several users of one group work on one folder.
//!
//! 1. Only rights of the group are added, only those that the folder gives, and only where the new file has the folder's group (as all have
//!    in a folder with the set-group-id bit): whoever gets them could have replaced the file in any case.
//! 2. Nothing is added in a sticky folder (such as `/tmp`), where members of the group cannot replace each other's files.
//! 3. Files that exist are left as they are.
//! 4. A folder never has its name without the rights of its group. A process that is killed before it has renamed one leaves an empty folder
//!    `NAME.new-PID-NUMBER` beside it, which is never looked at.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::clock::{Clock, SystemClock};
use crate::os::{call, open_fd};
use crate::vfs::NEW_FOLDER_MARK;

/// Waits for another process that has made a file or its folder and not yet given the group its rights, each of a millisecond.
const WAITS: u32 = 200;

/// Counts the folders that this process has made, for names that no other has.
static FOLDERS: AtomicU64 = AtomicU64::new(0);

/// What the folder's group may be given of a new file or folder in it, and which group that is.
struct Grant {
    mode: Mode,
    group: u32,
}

fn grant_in(folder: &Path) -> io::Result<Option<Grant>> {
    // An empty parent is the working folder.
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let stat = call(folder, || rustix::fs::stat(folder))?;
    let mode = Mode::from_raw_mode(stat.st_mode);
    let is_for_group = mode.contains(Mode::WGRP) && !mode.contains(Mode::SVTX);
    Ok(is_for_group.then_some(Grant { mode: mode & Mode::RWXG, group: stat.st_gid }))
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}

/// Gives the group of a file that this process has just made what the folder gives it.
pub(super) fn share_file(path: &Path, fd: &OwnedFd) -> io::Result<()> {
    let Some(grant) = grant_in(parent(path))? else { return Ok(()) };
    let stat = call(path, || rustix::fs::fstat(fd))?;
    let mode = Mode::from_raw_mode(stat.st_mode);
    let wanted = mode | (grant.mode & (Mode::RGRP | Mode::WGRP));
    if stat.st_gid != grant.group || wanted == mode {
        return Ok(());
    }
    call(path, || rustix::fs::fchmod(fd, wanted))
}

/// The same for a folder.
fn share_folder(path: &Path) -> io::Result<()> {
    let Some(grant) = grant_in(parent(path))? else { return Ok(()) };
    let stat = call(path, || rustix::fs::stat(path))?;
    let mode = Mode::from_raw_mode(stat.st_mode);
    if stat.st_gid != grant.group || mode.contains(grant.mode) {
        return Ok(());
    }
    call(path, || rustix::fs::chmod(path, mode | grant.mode))
}

/// Opens a file to read and write, and makes it if it is missing. Several processes may do so at the same time.
pub(super) fn open_or_make(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    loop {
        match patiently(path, || call(path, || rustix::fs::open(path, flags, Mode::empty()))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return opened,
        }
        match patiently(path, || open_fd(path, flags | OFlags::CREATE | OFlags::EXCL)) {
            Ok(fd) => return share_file(path, &fd).map(|()| fd),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

/// Makes a folder. If the group gets rights to it, it is made beside its place and renamed once it has them: another process of this user may
/// make files in it as soon as it has its name, and these get the rights of the folder.
pub(super) fn make_folder(path: &Path) -> io::Result<()> {
    // Most are there already.
    let is_there = rustix::fs::stat(path).is_ok();
    let (Some(_), Some(name), false) = (grant_in(parent(path))?, path.file_name(), is_there) else {
        return make_plain_folder(path);
    };
    let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
    let mut new_name = name.to_owned();
    new_name.push(format!("{NEW_FOLDER_MARK}{}-{number}", std::process::id()));
    let new = path.with_file_name(new_name);
    if make_plain_folder(&new).is_err() {
        // It fails there, too, and the error names the folder that was asked for; but for a name that is too long only with the mark.
        return make_plain_folder(path);
    }
    let renamed = renameat_with(CWD, &new, CWD, path, RenameFlags::NOREPLACE);
    if renamed.is_ok() {
        return Ok(());
    }
    call(&new, || rustix::fs::rmdir(&new))?;
    match renamed {
        // The file system cannot rename without replacing.
        Err(Errno::INVAL | Errno::NOSYS) => make_plain_folder(path),
        renamed => call(path, || renamed),
    }
}

fn make_plain_folder(path: &Path) -> io::Result<()> {
    patiently(path, || call(path, || rustix::fs::mkdir(path, Mode::from_raw_mode(0o777))))?;
    share_folder(path)
}

/// Tries again for a while where there is no right, and another user may have made the file or its folder just now.
fn patiently<T>(path: &Path, mut act: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut waits = 0;
    loop {
        match act() {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && waits < WAITS && may_be_granted(path)? => {
                waits += 1;
                SystemClock::new().sleep(Duration::from_millis(1));
            }
            done => return done,
        }
    }
}

/// Whether another user may have made a file or its folder just now, and is about to give the group its rights.
fn may_be_granted(path: &Path) -> io::Result<bool> {
    let folder = parent(path);
    Ok(grant_in(folder)?.is_some() || grant_in(parent(folder))?.is_some())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::Arc;

    use super::*;
    use crate::os::OsDisk;
    use crate::vfs::{Caching, Disk, Open};

    /// The modes of a file, a lock's file, a file of words and a folder that are made in a folder of this mode.
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
    fn the_group_may_do_with_new_files_what_it_may_do_with_their_folder() {
        for (mode, file, folder) in [(0o770, 0o060, 0o070), (0o2770, 0o060, 0o070), (0o720, 0o020, 0o020)] {
            for (at, made) in modes_in(mode).into_iter().enumerate() {
                let wanted = if at == 4 { folder } else { file };
                assert_eq!(made & wanted, wanted, "{mode:o}: {made:o}");
            }
        }
    }

    #[test]
    fn a_folder_that_is_not_the_groups_or_is_sticky_gives_it_nothing() {
        for mode in [0o755, 0o700, 0o1777, 0o1770] {
            let made = modes_in(mode);
            assert!(made.iter().all(|made| *made == own_mode(*made)), "{mode:o}: {made:?}");
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
        let error = make_folder(&file.join("store")).unwrap_err().to_string();
        assert!(error.contains("/file/store:"), "{error}");
        make_folder(&dir.path().join(&long)).unwrap();
        assert!(dir.path().join(&long).is_dir());
    }

    #[test]
    fn a_file_that_is_there_keeps_its_rights() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        std::fs::File::create_new(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o770)).unwrap();
        open_or_make(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_folder_that_is_there_is_left_and_none_is_left_over() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o770)).unwrap();
        let path = dir.path().join("folder");
        make_folder(&path).unwrap();
        std::fs::File::create_new(path.join("file")).unwrap();
        for _ in 0..2 {
            assert_eq!(make_folder(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
            // The second time the folder is empty.
            let _ = rustix::fs::unlink(path.join("file"));
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn several_that_make_a_file_at_once_have_the_same_one() {
        use std::os::unix::fs::MetadataExt as _;
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let path = dir.path().join("file");
        let made: Vec<u64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| std::fs::File::from(open_or_make(&path).unwrap()).metadata().unwrap().ino()))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(made.iter().all(|inode| *inode == made[0]), "{made:?}");
    }
}
