//! The real disk: files of the operating system (Linux), read and written at offsets.
//!
//! 1. A handle has no position: only `pread` and `pwrite` are used, retried after a signal and
//!    continued after a short read or write.
//! 2. `sync` is `fdatasync`, which also makes a changed length durable; `sync_dir` is `fsync` of
//!    the folder.
//! 3. Every error names its path and keeps its kind (`StorageFull`, `ReadOnlyFilesystem`, ...).
//! 4. A forked child cannot change anything through its parent's handles.
//! 5. Files of an open store are reached through descriptors of its folder ([`root`]), and no
//!    descriptor has the number of a standard stream ([`place`]).
//! 6. Only regular files are opened, because a FIFO or a device would block its reader for ever.

mod bus_error;
mod file_system;
mod group;
mod lock;
mod lock_file;
mod named_file;
mod place;
mod root;
mod shared_words;
mod sync_files;

use std::fs;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{
    AtFlags, FallocateFlags, FileType, OFlags, StatxFlags, fallocate, linkat, renameat, statx,
    unlinkat,
};
use rustix::io::{Errno, retry_on_intr};

use crate::fork::Origin;
use crate::image::end_of;
use crate::os::lock::OsLock;
use crate::os::lock_file::OsLockFile;
use crate::os::place::Place;
use crate::os::root::Root;
use crate::os::shared_words::OsWords;
use crate::os::sync_files::sync_files;
use crate::path_error::{at_path, of_kind};
use crate::sharing::{LockFile, SharedWords};
use crate::vfs::{
    Caching, DIRECT_ALIGN, DirEntry, DirLock, Disk, File, FileId, LockError, Open, check_direct,
};

/// The file systems of this machine.
#[derive(Clone, Debug, Default)]
pub struct OsDisk {
    /// The only process that may change files through it; `None`: any process.
    owner: Option<Origin>,
    /// The folder of its store; `None` for a disk that serves no store in particular.
    root: Option<Arc<Root>>,
}

impl OsDisk {
    /// The file systems of this machine.
    pub fn new() -> Self {
        Self { owner: None, root: None }
    }

    fn check_owner(&self, path: &Path) -> io::Result<()> {
        self.owner.map_or(Ok(()), |owner| check_owner(owner, path))
    }

    /// The place of a file, or of the contents of a folder.
    fn place<'a>(&self, path: &'a Path) -> Place<'a> {
        self.root.as_ref().and_then(|root| root.place(path)).unwrap_or_else(|| Place::by_path(path))
    }

    /// The place of a name that is about to be created, changed or removed.
    fn name_place<'a>(&self, path: &'a Path) -> Place<'a> {
        self.root
            .as_ref()
            .and_then(|root| root.name_place(path))
            .unwrap_or_else(|| Place::by_path(path))
    }

    /// Fails if this process must not change a file or name, because it is a forked child, or the
    /// store's folder has been replaced.
    fn check_change(&self, place: &Place<'_>) -> io::Result<()> {
        self.check_owner(place.path)?;
        if place.is_below() { self.check_own() } else { Ok(()) }
    }

    /// Notifies the store's root that a name now refers to something else.
    fn renamed(&self, path: &Path) {
        if let Some(root) = &self.root {
            root.renamed(path);
        }
    }

    fn lock_by(
        &self,
        dir: &Path,
        take: impl FnOnce(&Place<'_>) -> Result<OsLock, LockError>,
    ) -> Result<Box<dyn DirLock>, LockError> {
        let lock = take(&self.place(dir))?;
        if let Some(root) = self.root.as_ref().filter(|root| root.path() == dir) {
            root.locked(lock.file_identity());
        }
        Ok(Box::new(lock))
    }
}

/// Fails in a forked child of the process that opened a store or file.
fn check_owner(owner: Origin, path: &Path) -> io::Result<()> {
    if owner.is_foreign() {
        let what = "the parent of this forked process opened this and may be writing to it; \
                    open it again in this process";
        return Err(at_path(path, io::Error::new(io::ErrorKind::PermissionDenied, what)));
    }
    Ok(())
}

impl Disk for OsDisk {
    fn has_page_cache(&self) -> bool {
        true
    }

    fn of_store(
        &self,
        folder: &Path,
        lasting: &'static [&'static str],
    ) -> io::Result<Option<(Arc<dyn Disk>, PathBuf)>> {
        let root = match &self.root {
            Some(root) if root.path() == folder => Arc::clone(root),
            _ => Arc::new(Root::open(folder, lasting)?),
        };
        let path = root.path().to_owned();
        Ok(Some((Arc::new(Self { owner: Some(Origin::here()), root: Some(root) }), path)))
    }

    fn check_own(&self) -> io::Result<()> {
        self.root.as_ref().map_or(Ok(()), |root| root.check())
    }

    fn open(&self, path: &Path, open: Open, caching: Caching) -> io::Result<Arc<dyn File>> {
        let flags = match open {
            Open::Read => OFlags::RDONLY,
            Open::ReadWrite => OFlags::RDWR,
            Open::CreateNew => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
        };
        let place = self.place(path);
        if open != Open::Read {
            self.check_change(&place)?;
        }
        // NONBLOCK: opening a FIFO returns at once, so that it can be rejected. Regular files
        // ignore the flag.
        let fd = match place.open(flags | OFlags::NONBLOCK) {
            // If the store was removed, report that as the reason.
            Err(error) if error.kind() == io::ErrorKind::NotFound && place.is_below() => {
                return self.check_own().and(Err(error));
            }
            opened => opened?,
        };
        check_regular(&fd, path)?;
        if open == Open::CreateNew {
            group::share_file(&place, &fd)?;
        }
        let direct =
            caching == Caching::Direct && turn_direct(&fd).map_err(|e| at_path(path, e))?;
        Ok(Arc::new(OsFile::new(fd, direct, path)))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let place = self.name_place(path);
        self.check_change(&place)?;
        group::make_folder(&place)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let mut entries = Vec::new();
        for name in self.names(dir)? {
            // `None`: removed since its name was read.
            entries.extend(self.entry(&dir.join(name))?);
        }
        entries.sort();
        Ok(entries)
    }

    fn names(&self, dir: &Path) -> io::Result<Vec<String>> {
        // Do not use `std::fs::read_dir`, which panics if closing the folder fails.
        let fd = self.place(dir).open(OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut names = Vec::new();
        for found in rustix::fs::Dir::new(fd).map_err(|e| at_path(dir, e))? {
            let found = found.map_err(|e| at_path(dir, e))?;
            let name = found.file_name().to_str().ok();
            names.extend(name.filter(|name| ![".", ".."].contains(name)).map(str::to_owned));
        }
        Ok(names)
    }

    fn entry(&self, path: &Path) -> io::Result<Option<DirEntry>> {
        let stat = match self.name_place(path).stat() {
            Ok(stat) => stat,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(errno) => return Err(at_path(path, errno)),
        };
        let is_dir = FileType::from_raw_mode(stat.st_mode).is_dir();
        let name =
            path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        #[allow(clippy::unnecessary_cast, reason = "the field has 32 bits on some platforms")]
        let links = stat.st_nlink as u64;
        let (len, links) = if is_dir { (0, 1) } else { (stat.st_size as u64, links) };
        Ok(Some(DirEntry { name, len, is_dir, links }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (source, target) = (self.name_place(from), self.name_place(to));
        self.check_change(&source)?;
        self.check_change(&target)?;
        retry_on_intr(|| renameat(source.folder(), source.name(), target.folder(), target.name()))
            .map_err(|errno| at_paths(from, to, errno))?;
        [from, to].into_iter().for_each(|path| self.renamed(path));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let place = self.name_place(path);
        self.check_change(&place)?;
        call(path, || unlinkat(place.folder(), place.name(), AtFlags::empty()))
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let place = self.name_place(path);
        self.check_change(&place)?;
        call(path, || unlinkat(place.folder(), place.name(), AtFlags::REMOVEDIR))?;
        self.renamed(path);
        Ok(())
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (source, target) = (self.name_place(from), self.name_place(to));
        self.check_change(&target)?;
        let link = || {
            linkat(source.folder(), source.name(), target.folder(), target.name(), AtFlags::empty())
        };
        retry_on_intr(link).map_err(|errno| at_paths(from, to, errno))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let fd = self.place(dir).open(OFlags::RDONLY | OFlags::DIRECTORY)?;
        call(dir, || rustix::fs::fsync(&fd))
    }

    fn sync_files(&self, files: &[Arc<dyn File>]) -> io::Result<()> {
        sync_files(files)
    }

    fn resolve(&self, path: &Path) -> io::Result<PathBuf> {
        fs::canonicalize(path).map_err(|e| at_path(path, e))
    }

    fn lock(&self, dir: &Path) -> Result<Box<dyn DirLock>, LockError> {
        self.lock_by(dir, OsLock::take)
    }

    fn lock_shared(&self, dir: &Path) -> Result<Box<dyn DirLock>, LockError> {
        self.lock_by(dir, OsLock::take_shared)
    }

    fn lock_file(&self, path: &Path) -> io::Result<Box<dyn LockFile>> {
        let place = self.place(path);
        self.check_change(&place)?;
        Ok(Box::new(OsLockFile::open(&place)?))
    }

    fn lock_file_to_read(&self, path: &Path) -> io::Result<Box<dyn LockFile>> {
        Ok(Box::new(OsLockFile::open_to_read(&self.place(path))?))
    }

    fn locked_by(&self, dir: &Path) -> io::Result<Option<(Option<u32>, String)>> {
        lock::locked_by(&self.place(dir))
    }

    fn is_in_use(&self, dir: &Path) -> io::Result<bool> {
        lock::is_in_use(&self.place(dir))
    }

    fn shared_words_to_read(&self, path: &Path, count: usize) -> io::Result<Arc<dyn SharedWords>> {
        Ok(Arc::new(OsWords::open_to_read(&self.place(path), count)?))
    }

    fn not_for_sharing(&self, path: &Path) -> io::Result<Option<&'static str>> {
        file_system::not_for_sharing(&self.place(path))
    }

    fn shared_words(&self, path: &Path, count: usize) -> io::Result<Arc<dyn SharedWords>> {
        let place = self.place(path);
        self.check_change(&place)?;
        Ok(Arc::new(OsWords::open(&place, count)?))
    }
}

/// Retries a system call while signals interrupt it.
fn call<T>(path: &Path, mut body: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    retry_on_intr(&mut body).map_err(|errno| at_path(path, errno))
}

fn at_paths(from: &Path, to: &Path, errno: Errno) -> io::Error {
    at_path(Path::new(&format!("{} -> {}", from.display(), to.display())), errno)
}

/// Rejects everything but a regular file: a folder, which opens for reading but then fails to read;
/// a FIFO; a device.
fn check_regular(fd: &OwnedFd, path: &Path) -> io::Result<()> {
    let stat = call(path, || rustix::fs::fstat(fd))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(of_kind(path, io::ErrorKind::IsADirectory)),
        other => {
            let what = format!("this is a {}, not a regular file", name_of_type(other));
            Err(at_path(path, io::Error::new(io::ErrorKind::InvalidInput, what)))
        }
    }
}

fn name_of_type(file_type: FileType) -> &'static str {
    match file_type {
        FileType::Fifo => "FIFO",
        FileType::Socket => "socket",
        FileType::CharacterDevice | FileType::BlockDevice => "device",
        _ => "special file",
    }
}

/// Turns the page cache off for a handle; `false` if the file system refuses.
///
/// Done after opening, because an `open` that both creates a file and requests `O_DIRECT` leaves
/// the file behind if it is refused.
fn turn_direct(fd: &OwnedFd) -> rustix::io::Result<bool> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    match rustix::fs::fcntl_setfl(fd, flags | OFlags::DIRECT) {
        Ok(()) => Ok(true),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Turns the page cache on for a handle. The system's read-ahead stays off, because pages are
/// requested individually and the pool reads ahead for scans.
fn turn_cached(fd: &OwnedFd) -> rustix::io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd)?;
    rustix::fs::fcntl_setfl(fd, flags - OFlags::DIRECT)?;
    // Ignore an error: the call is only a hint.
    let _ = rustix::fs::fadvise(fd, 0, None, rustix::fs::Advice::Random);
    Ok(())
}

#[derive(Debug)]
struct OsFile {
    fd: OwnedFd,
    /// The process that opened it.
    owner: Origin,
    /// Whether the file system accepted `O_DIRECT`; then all reads and writes are aligned, even
    /// while the page cache serves them.
    direct: bool,
    /// Whether the page cache is in use now.
    cached: AtomicBool,
    path: PathBuf,
}

impl OsFile {
    fn new(fd: OwnedFd, direct: bool, path: &Path) -> Self {
        Self {
            fd,
            owner: Origin::here(),
            direct,
            cached: AtomicBool::new(!direct),
            path: path.to_owned(),
        }
    }

    fn check(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        if self.direct {
            check_direct(buf, offset).map_err(|e| at_path(&self.path, e))
        } else {
            Ok(())
        }
    }

    fn pread(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        retry_on_intr(|| rustix::io::pread(&self.fd, &mut *buf, offset))
            .map_err(|errno| at_path(&self.path, errno))
    }

    fn pwrite(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        call(&self.path, || rustix::io::pwrite(&self.fd, buf, offset))
    }
}

impl File for OsFile {
    fn id(&self) -> io::Result<Option<FileId>> {
        let wanted = StatxFlags::INO | StatxFlags::BTIME;
        let stat = call(&self.path, || statx(&self.fd, "", AtFlags::EMPTY_PATH, wanted))?;
        let is_reported = stat.stx_mask & wanted.bits() == wanted.bits();
        Ok(is_reported.then(|| FileId {
            inode: stat.stx_ino,
            born_nanos: (stat.stx_btime.tv_sec as u64)
                .wrapping_mul(1_000_000_000)
                .wrapping_add(u64::from(stat.stx_btime.tv_nsec)),
        }))
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.check(buf, offset)?;
        if end_of(offset, buf.len() as u64).is_err() {
            // No file extends that far.
            return Ok(0);
        }
        let mut done = 0;
        while done < buf.len() {
            let n = self.pread(&mut buf[done..], offset + done as u64)?;
            // A direct read can resume only at an aligned offset, so read the last partial block
            // again.
            let step = if self.direct { n - n % DIRECT_ALIGN } else { n };
            if step == 0 {
                return Ok(done + n);
            }
            done += step;
        }
        Ok(done)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        check_owner(self.owner, &self.path)?;
        self.check(buf, offset)?;
        end_of(offset, buf.len() as u64).map_err(|e| at_path(&self.path, e))?;
        let mut done = 0;
        while done < buf.len() {
            match self.pwrite(&buf[done..], offset + done as u64)? {
                0 => return Err(of_kind(&self.path, io::ErrorKind::WriteZero)),
                n => done += n,
            }
        }
        Ok(())
    }

    fn write_parts_at(&self, parts: &[&[u8]], mut offset: u64) -> io::Result<()> {
        check_owner(self.owner, &self.path)?;
        let mut at = offset;
        for part in parts {
            self.check(part, at)?;
            at += part.len() as u64;
        }
        end_of(offset, at - offset).map_err(|e| at_path(&self.path, e))?;
        let slices: Vec<_> = parts.iter().map(|part| io::IoSlice::new(part)).collect();
        let mut written = call(&self.path, || rustix::io::pwritev(&self.fd, &slices, offset))?;
        for part in parts {
            // Continue a short write part by part.
            let done = written.min(part.len());
            written -= done;
            if done < part.len() {
                self.write_at(&part[done..], offset + done as u64)?;
            }
            offset += part.len() as u64;
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        check_owner(self.owner, &self.path)?;
        call(&self.path, || rustix::fs::fdatasync(&self.fd))
    }

    fn begin_sync(&self) {
        // Writes out dirty pages and drops clean ones from the page cache. Only a hint; the sync
        // reports any error.
        let _ = rustix::fs::fadvise(&self.fd, 0, None, rustix::fs::Advice::DontNeed);
    }

    fn len(&self) -> io::Result<u64> {
        Ok(call(&self.path, || rustix::fs::fstat(&self.fd))?.st_size as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        check_owner(self.owner, &self.path)?;
        call(&self.path, || rustix::fs::ftruncate(&self.fd, len))
    }

    fn allocate(&self, from: u64, to: u64) -> io::Result<()> {
        check_owner(self.owner, &self.path)?;
        let bytes =
            end_of(from, to.saturating_sub(from)).map_err(|e| at_path(&self.path, e))? - from;
        if bytes == 0 {
            return Ok(());
        }
        call(&self.path, || fallocate(&self.fd, FallocateFlags::empty(), from, bytes))
    }

    fn will_read(&self, offset: u64, bytes: u64) {
        // Relaxed: it only controls a hint.
        if self.cached.load(Ordering::Relaxed)
            && let Some(bytes) = NonZeroU64::new(bytes)
        {
            // Only a hint; a later read reports any error.
            let _ =
                rustix::fs::fadvise(&self.fd, offset, Some(bytes), rustix::fs::Advice::WillNeed);
        }
    }

    fn turn(&self, caching: Caching) {
        if !self.direct {
            return;
        }
        // If the system refuses, the handle reads as before, with correct results.
        let turned = match caching {
            Caching::Direct => turn_direct(&self.fd).is_ok(),
            Caching::Buffered => turn_cached(&self.fd).is_ok(),
        };
        if turned {
            self.cached.store(caching == Caching::Buffered, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tempdir() -> tempfile::TempDir {
        tempfile::tempdir().expect("the machine has a folder for temporary files")
    }

    fn os_file(path: &Path, caching: Caching) -> OsFile {
        let fd = Place::by_path(path).open(OFlags::RDWR | OFlags::CREATE).unwrap();
        let direct = caching == Caching::Direct && turn_direct(&fd).unwrap();
        OsFile::new(fd, direct, path)
    }

    #[test]
    fn direct_handle_rejects_unaligned_io() {
        let dir = tempdir();
        let file = OsFile { direct: true, ..os_file(&dir.path().join("file"), Caching::Buffered) };
        let mut buf = vec![0; 3 * DIRECT_ALIGN];
        let start = buf.as_ptr().align_offset(DIRECT_ALIGN);
        let aligned = start..start + DIRECT_ALIGN;
        file.write_at(&buf[aligned.clone()], 0).unwrap();
        let errors = [
            file.write_at(&buf[aligned.clone()], 1),
            file.write_at(&buf[start..start + 5], 0),
            file.write_at(&buf[start + 1..start + 1 + DIRECT_ALIGN], 0),
            file.read_at(&mut buf[aligned], 512).map(drop),
        ];
        for error in errors.map(Result::unwrap_err) {
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert!(error.to_string().contains("multiples of 4096"), "{error}");
        }
    }

    #[test]
    fn handle_falls_back_if_direct_is_refused() {
        // Files of /proc never allow O_DIRECT.
        let file =
            OsDisk::new().open(Path::new("/proc/self/stat"), Open::Read, Caching::Direct).unwrap();
        let mut buf = [0; 3];
        assert_eq!(file.read_at(&mut buf, 1).unwrap(), 3);
    }

    #[test]
    fn will_read_accepts_any_range() {
        let dir = tempdir();
        for caching in [Caching::Buffered, Caching::Direct] {
            let file = os_file(&dir.path().join(format!("{caching:?}")), caching);
            file.set_len(3 * DIRECT_ALIGN as u64).unwrap();
            for (offset, bytes) in
                [(0, 0), (1, 7), (0, u64::MAX), (u64::MAX, 1), (1 << 40, 1 << 20)]
            {
                file.will_read(offset, bytes);
            }
            assert_eq!(file.len().unwrap(), 3 * DIRECT_ALIGN as u64);
        }
    }

    #[test]
    fn switching_caching_keeps_contents_and_alignment() {
        let dir = tempdir();
        let path = dir.path().join("file");
        let mut bytes = vec![0; 3 * DIRECT_ALIGN];
        let start = bytes.as_ptr().align_offset(DIRECT_ALIGN);
        let aligned = start..start + 2 * DIRECT_ALIGN;
        bytes[aligned.clone()].fill(7);
        os_file(&path, Caching::Buffered).write_at(&bytes[aligned.clone()], 0).unwrap();
        let file = os_file(&path, Caching::Direct);
        let has_direct_flag =
            || rustix::fs::fcntl_getfl(&file.fd).unwrap().contains(OFlags::DIRECT);
        for caching in [Caching::Buffered, Caching::Direct, Caching::Direct, Caching::Buffered] {
            file.turn(caching);
            assert_eq!(has_direct_flag(), file.direct && caching == Caching::Direct, "{caching:?}");
            bytes.fill(0);
            assert_eq!(file.read_at(&mut bytes[aligned.clone()], 0).unwrap(), 2 * DIRECT_ALIGN);
            assert!(bytes[aligned.clone()].iter().all(|&byte| byte == 7), "{caching:?}");
            assert_eq!(
                file.read_at(&mut bytes[start..start + 5], 0).is_err(),
                file.direct,
                "{caching:?}"
            );
        }
        let plain = os_file(&path, Caching::Buffered);
        plain.turn(Caching::Direct);
        assert!(
            !rustix::fs::fcntl_getfl(&plain.fd).unwrap().contains(OFlags::DIRECT),
            "it was not asked for alignment"
        );
    }

    #[test]
    fn system_error_keeps_its_kind_and_path() {
        let full =
            os_file(Path::new("/dev/full"), Caching::Buffered).write_at(b"x", 0).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        assert!(full.to_string().starts_with("/dev/full: "), "{full}");
        let dir = tempdir();
        let rename =
            OsDisk::new().rename(&dir.path().join("from"), &dir.path().join("to")).unwrap_err();
        assert_eq!(rename.kind(), io::ErrorKind::NotFound);
        assert!(rename.to_string().contains("from -> "), "{rename}");
    }

    #[test]
    fn irregular_file_is_refused_without_blocking() {
        let dir = tempdir();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
        for open in [Open::Read, Open::ReadWrite] {
            let error = OsDisk::new().open(&fifo, open, Caching::Direct).unwrap_err();
            assert!(error.to_string().contains("this is a FIFO"), "{error}");
            let error =
                OsDisk::new().open(Path::new("/dev/zero"), open, Caching::Buffered).unwrap_err();
            assert!(error.to_string().contains("this is a device"), "{error}");
            OsDisk::new().open(&dir.path().join("socket"), open, Caching::Buffered).unwrap_err();
        }
        assert_eq!(
            OsDisk::new().open(&fifo, Open::CreateNew, Caching::Buffered).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
        rustix::fs::mknodat(
            rustix::fs::CWD,
            dir.path().join("LOCK"),
            FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let locked = OsDisk::new().lock(dir.path());
        assert!(
            matches!(&locked, Err(LockError::Io(error)) if error.to_string().contains("FIFO")),
            "{locked:?}"
        );
    }

    #[test]
    fn names_that_are_not_utf8_are_not_listed() {
        use std::os::unix::ffi::OsStrExt;
        let dir = tempdir();
        drop(os_file(&dir.path().join(std::ffi::OsStr::from_bytes(b"\xff")), Caching::Buffered));
        drop(os_file(&dir.path().join("file"), Caching::Buffered));
        let names: Vec<String> =
            OsDisk::new().list(dir.path()).unwrap().into_iter().map(|entry| entry.name).collect();
        assert_eq!(names, ["file"]);
        assert_eq!(OsDisk::new().names(dir.path()).unwrap(), names);
    }
}
