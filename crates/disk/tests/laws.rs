//! The invariants of `vfs`, tested on every disk.
#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::os::OsDisk;
use plimsoll_disk::random::Random;
use plimsoll_disk::vfs::{Caching, DIRECT_ALIGN, DirEntry, Disk, File, LockError, Open};

macro_rules! laws {
    ($($law:ident,)*) => {
        mod of_the_real_disk {
            $(#[test] fn $law() {
                let dir = tempfile::tempdir().unwrap();
                super::$law(&super::OsDisk::new(), dir.path());
            })*
        }
        mod of_the_disk_in_memory {
            $(#[test] fn $law() { super::$law(&super::MemDisk::new(), super::Path::new("/")); })*
        }
        mod of_the_lying_disk {
            $(#[test] fn $law() { super::$law(&super::LyingDisk::new(1), super::Path::new("/")); })*
        }
    };
}

laws! {
    writes_are_read_back,
    read_is_short_only_at_the_end,
    regrown_file_reads_zeros,
    allocate_keeps_bytes_and_reads_zeros,
    offset_beyond_all_files_is_rejected,
    direct_handle_reads_buffered_writes,
    read_handle_does_not_write,
    opening_says_why_it_cannot,
    folder_lists_names_sorted,
    entry_describes_a_path,
    folder_is_created_once_in_an_existing_one,
    rename_replaces_a_file_and_keeps_its_handles,
    rename_between_links_changes_nothing,
    rename_moves_a_folder_with_its_contents,
    rename_refuses_forbidden_targets,
    removed_file_survives_in_its_handles,
    only_an_empty_folder_is_removed,
    hard_link_shares_the_bytes,
    lock_excludes_others_until_dropped,
    a_lock_file_names_its_holder,
    syncing_a_missing_path_is_an_error,
    files_synced_together_keep_their_writes,
    one_file_serves_many_threads,
    errors_name_their_path,
}

fn create(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> Arc<dyn File> {
    let file = disk.open(path, Open::CreateNew, Caching::Buffered).unwrap();
    file.write_at(bytes, 0).unwrap();
    file
}

fn bytes_of(file: &dyn File) -> Vec<u8> {
    let mut bytes = vec![0xee; file.len().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn read(disk: &dyn Disk, path: &Path) -> Vec<u8> {
    bytes_of(&*disk.open(path, Open::Read, Caching::Buffered).unwrap())
}

fn names(disk: &dyn Disk, dir: &Path) -> Vec<String> {
    disk.list(dir).unwrap().into_iter().map(|entry| entry.name).collect()
}

fn kind<T: std::fmt::Debug>(result: std::io::Result<T>) -> ErrorKind {
    result.unwrap_err().kind()
}

fn writes_are_read_back(disk: &dyn Disk, root: &Path) {
    let path = root.join("file");
    let file = create(disk, &path, b"");
    assert!(file.is_empty().unwrap());
    let mut random = Random::new(5);
    let mut expected = Vec::new();
    for step in 0..200u64 {
        let offset = random.below(30_000) as usize;
        if random.chance(0.1) {
            file.set_len(offset as u64).unwrap();
            expected.resize(offset, 0);
        } else {
            let bytes = vec![step as u8; random.below(10_000) as usize];
            file.write_at(&bytes, offset as u64).unwrap();
            if !bytes.is_empty() {
                expected.resize(expected.len().max(offset + bytes.len()), 0);
                expected[offset..offset + bytes.len()].copy_from_slice(&bytes);
            }
        }
        assert_eq!(file.len().unwrap(), expected.len() as u64, "step {step}");
        if random.chance(0.1) {
            file.sync().unwrap();
        }
    }
    assert_eq!(bytes_of(&*file), expected);
    disk.sync_dir(root).unwrap();
    drop(file);
    assert_eq!(read(disk, &path), expected);
}

fn read_is_short_only_at_the_end(disk: &dyn Disk, root: &Path) {
    let file = create(disk, &root.join("file"), &[7; 10_000]);
    let mut buf = vec![0; 4000];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), 4000);
    assert_eq!(file.read_at(&mut buf, 6000).unwrap(), 4000);
    assert_eq!(file.read_at(&mut buf, 6001).unwrap(), 3999);
    assert_eq!(file.read_at(&mut buf, 10_000).unwrap(), 0);
    assert_eq!(file.read_at(&mut buf, 1 << 40).unwrap(), 0);
    assert_eq!(file.read_at(&mut [], 0).unwrap(), 0);
    assert_eq!(kind(file.read_exact_at(&mut buf, 6001)), ErrorKind::UnexpectedEof);
}

fn regrown_file_reads_zeros(disk: &dyn Disk, root: &Path) {
    let file = create(disk, &root.join("file"), b"abcdef");
    file.set_len(2).unwrap();
    file.set_len(4).unwrap();
    file.write_at(b"z", 6).unwrap();
    assert_eq!(bytes_of(&*file), b"ab\0\0\0\0z");
}

fn allocate_keeps_bytes_and_reads_zeros(disk: &dyn Disk, root: &Path) {
    let file = create(disk, &root.join("file"), b"abcdef");
    // On a real disk, only if the file system supports it.
    let is_possible = file.allocate(2, 9).is_ok();
    file.set_len(9).unwrap();
    file.write_at(b"z", 7).unwrap();
    file.allocate(0, 4).unwrap_or_else(|error| assert!(!is_possible, "{error}"));
    assert_eq!(bytes_of(&*file), b"abcdef\0z\0");
    assert!(file.allocate(5, u64::MAX).is_err());
    let read = disk.open(&root.join("file"), Open::Read, Caching::Buffered).unwrap();
    assert!(read.allocate(0, 100).is_err());
}

fn offset_beyond_all_files_is_rejected(disk: &dyn Disk, root: &Path) {
    let file = create(disk, &root.join("file"), b"abc");
    for offset in [u64::MAX, u64::MAX - 1, i64::MAX as u64 + 1, i64::MAX as u64] {
        assert_eq!(file.read_at(&mut [0; 8], offset).unwrap(), 0);
        assert!(file.write_at(b"12345678", offset).is_err());
    }
    assert!(file.set_len(u64::MAX).is_err());
    assert_eq!(bytes_of(&*file), b"abc");
}

fn direct_handle_reads_buffered_writes(disk: &dyn Disk, root: &Path) {
    let path = root.join("file");
    let bytes: Vec<u8> = (0..10_000u32).map(|i| i as u8).collect();
    create(disk, &path, &bytes).sync().unwrap();
    let file = disk.open(&path, Open::ReadWrite, Caching::Direct).unwrap();
    let mut memory = vec![0; 5 * DIRECT_ALIGN];
    let start = memory.as_ptr().align_offset(DIRECT_ALIGN);
    let buf = &mut memory[start..start + 4 * DIRECT_ALIGN];
    assert_eq!(file.read_at(buf, 0).unwrap(), 10_000);
    assert_eq!(buf[..10_000], bytes);
    assert_eq!(file.read_at(buf, 2 * DIRECT_ALIGN as u64).unwrap(), 10_000 - 2 * DIRECT_ALIGN);
    assert_eq!(file.read_at(buf, 4 * DIRECT_ALIGN as u64).unwrap(), 0);
    buf.fill(9);
    file.write_at(buf, 4 * DIRECT_ALIGN as u64).unwrap();
    file.sync().unwrap();
    let read = read(disk, &path);
    assert_eq!(read.len(), 8 * DIRECT_ALIGN);
    assert_eq!(read[..10_000], bytes);
    assert!(read[4 * DIRECT_ALIGN..].iter().all(|byte| *byte == 9));
}

fn read_handle_does_not_write(disk: &dyn Disk, root: &Path) {
    let path = root.join("file");
    create(disk, &path, b"abc");
    let file = disk.open(&path, Open::Read, Caching::Buffered).unwrap();
    assert!(file.write_at(b"x", 0).is_err());
    assert!(file.set_len(0).is_err());
    assert_eq!(bytes_of(&*file), b"abc");
}

fn opening_says_why_it_cannot(disk: &dyn Disk, root: &Path) {
    let (file, folder) = (root.join("file"), root.join("folder"));
    create(disk, &file, b"abc");
    disk.create_dir(&folder).unwrap();
    let open = |path: &Path, open| kind(disk.open(path, open, Caching::Buffered));
    assert_eq!(open(&file, Open::CreateNew), ErrorKind::AlreadyExists);
    assert_eq!(open(&folder, Open::CreateNew), ErrorKind::AlreadyExists);
    assert_eq!(open(&root.join("nothing"), Open::Read), ErrorKind::NotFound);
    assert_eq!(open(&root.join("nothing"), Open::ReadWrite), ErrorKind::NotFound);
    assert_eq!(open(&root.join("nothing/file"), Open::CreateNew), ErrorKind::NotFound);
    assert_eq!(open(&folder, Open::Read), ErrorKind::IsADirectory);
    assert_eq!(open(&folder, Open::ReadWrite), ErrorKind::IsADirectory);
    assert_eq!(open(&file.join("below"), Open::Read), ErrorKind::NotADirectory);
    assert_eq!(open(&file.join("below"), Open::CreateNew), ErrorKind::NotADirectory);
}

fn folder_lists_names_sorted(disk: &dyn Disk, root: &Path) {
    create(disk, &root.join("b"), b"123");
    create(disk, &root.join("c"), b"");
    disk.create_dir(&root.join("a")).unwrap();
    create(disk, &root.join("a/inside"), b"1");
    let entry = |name: &str, len, is_dir| DirEntry { name: name.to_owned(), len, is_dir, links: 1 };
    assert_eq!(
        disk.list(root).unwrap(),
        [entry("a", 0, true), entry("b", 3, false), entry("c", 0, false)]
    );
    assert_eq!(disk.list(&root.join("a")).unwrap(), [entry("inside", 1, false)]);
    assert_eq!(kind(disk.list(&root.join("b"))), ErrorKind::NotADirectory);
    assert_eq!(kind(disk.list(&root.join("nothing"))), ErrorKind::NotFound);
}

fn entry_describes_a_path(disk: &dyn Disk, root: &Path) {
    create(disk, &root.join("file"), b"123");
    disk.create_dir(&root.join("folder")).unwrap();
    let entry =
        |name: &str, len, is_dir| Some(DirEntry { name: name.to_owned(), len, is_dir, links: 1 });
    assert_eq!(disk.entry(&root.join("file")).unwrap(), entry("file", 3, false));
    assert_eq!(disk.entry(&root.join("folder")).unwrap(), entry("folder", 0, true));
    assert_eq!(disk.entry(&root.join("nothing")).unwrap(), None);
    assert_eq!(disk.entry(&root.join("file/below")).unwrap(), None);
    assert!(disk.entry(root).unwrap().is_some_and(|entry| entry.is_dir));
}

fn folder_is_created_once_in_an_existing_one(disk: &dyn Disk, root: &Path) {
    let folder = root.join("folder");
    disk.create_dir(&folder).unwrap();
    create(disk, &root.join("file"), b"");
    assert_eq!(kind(disk.create_dir(&folder)), ErrorKind::AlreadyExists);
    assert_eq!(kind(disk.create_dir(&root.join("file"))), ErrorKind::AlreadyExists);
    assert_eq!(kind(disk.create_dir(&root.join("nothing/folder"))), ErrorKind::NotFound);
    assert_eq!(kind(disk.create_dir(root)), ErrorKind::AlreadyExists);
}

fn rename_replaces_a_file_and_keeps_its_handles(disk: &dyn Disk, root: &Path) {
    let (from, to) = (root.join("from"), root.join("to"));
    let new = create(disk, &from, b"new");
    let old = create(disk, &to, b"old");
    disk.rename(&from, &to).unwrap();
    assert_eq!(names(disk, root), ["to"]);
    assert_eq!(read(disk, &to), b"new");
    assert_eq!(bytes_of(&*old), b"old");
    new.write_at(b"NEW", 0).unwrap();
    assert_eq!(read(disk, &to), b"NEW");
}

fn rename_between_links_changes_nothing(disk: &dyn Disk, root: &Path) {
    let (one, two) = (root.join("one"), root.join("two"));
    create(disk, &one, b"abc");
    disk.hard_link(&one, &two).unwrap();
    disk.rename(&one, &two).unwrap();
    disk.rename(&one, &one).unwrap();
    assert_eq!(names(disk, root), ["one", "two"]);
    assert_eq!(read(disk, &one), b"abc");
}

fn rename_moves_a_folder_with_its_contents(disk: &dyn Disk, root: &Path) {
    let (from, to) = (root.join("from"), root.join("to"));
    disk.create_dir(&from).unwrap();
    create(disk, &from.join("file"), b"abc");
    // An empty folder may be replaced.
    disk.create_dir(&to).unwrap();
    disk.rename(&from, &to).unwrap();
    assert_eq!(names(disk, root), ["to"]);
    assert_eq!(read(disk, &to.join("file")), b"abc");
}

fn rename_refuses_forbidden_targets(disk: &dyn Disk, root: &Path) {
    let (file, empty, full) = (root.join("file"), root.join("empty"), root.join("full"));
    create(disk, &file, b"abc");
    disk.create_dir(&empty).unwrap();
    disk.create_dir(&full).unwrap();
    create(disk, &full.join("file"), b"");
    assert_eq!(kind(disk.rename(&file, &empty)), ErrorKind::IsADirectory);
    assert_eq!(kind(disk.rename(&empty, &file)), ErrorKind::NotADirectory);
    assert_eq!(kind(disk.rename(&empty, &full)), ErrorKind::DirectoryNotEmpty);
    assert_eq!(kind(disk.rename(&full, &full.join("below"))), ErrorKind::InvalidInput);
    assert_eq!(kind(disk.rename(&root.join("nothing"), &file)), ErrorKind::NotFound);
    assert_eq!(kind(disk.rename(&file, &root.join("nothing/file"))), ErrorKind::NotFound);
    assert_eq!(names(disk, root), ["empty", "file", "full"]);
}

fn removed_file_survives_in_its_handles(disk: &dyn Disk, root: &Path) {
    let path = root.join("file");
    let old = create(disk, &path, b"old");
    disk.remove(&path).unwrap();
    assert_eq!(names(disk, root), [""; 0]);
    assert_eq!(kind(disk.remove(&path)), ErrorKind::NotFound);
    create(disk, &path, b"new");
    old.write_at(b"!", 3).unwrap();
    old.sync().unwrap();
    disk.sync_dir(root).unwrap();
    assert_eq!(bytes_of(&*old), b"old!");
    assert_eq!(read(disk, &path), b"new");
}

fn only_an_empty_folder_is_removed(disk: &dyn Disk, root: &Path) {
    let folder = root.join("folder");
    disk.create_dir(&folder).unwrap();
    create(disk, &folder.join("file"), b"");
    assert_eq!(kind(disk.remove_dir(&folder)), ErrorKind::DirectoryNotEmpty);
    assert_eq!(kind(disk.remove_dir(&folder.join("file"))), ErrorKind::NotADirectory);
    assert_eq!(kind(disk.remove(&folder)), ErrorKind::IsADirectory);
    disk.remove(&folder.join("file")).unwrap();
    disk.remove_dir(&folder).unwrap();
    assert_eq!(kind(disk.remove_dir(&folder)), ErrorKind::NotFound);
    assert_eq!(names(disk, root), [""; 0]);
}

fn hard_link_shares_the_bytes(disk: &dyn Disk, root: &Path) {
    let (one, two) = (root.join("one"), root.join("two"));
    let file = create(disk, &one, b"abc");
    disk.hard_link(&one, &two).unwrap();
    file.write_at(b"ABC", 0).unwrap();
    assert_eq!(read(disk, &two), b"ABC");
    disk.remove(&one).unwrap();
    drop(file);
    assert_eq!(read(disk, &two), b"ABC");
    create(disk, &one, b"other");
    assert_eq!(kind(disk.hard_link(&one, &two)), ErrorKind::AlreadyExists);
    assert_eq!(
        kind(disk.hard_link(&root.join("nothing"), &root.join("three"))),
        ErrorKind::NotFound
    );
    disk.create_dir(&root.join("folder")).unwrap();
    assert_eq!(
        kind(disk.hard_link(&root.join("folder"), &root.join("three"))),
        ErrorKind::PermissionDenied
    );
}

fn lock_excludes_others_until_dropped(disk: &dyn Disk, root: &Path) {
    let (one, two) = (root.join("one"), root.join("two"));
    disk.create_dir(&one).unwrap();
    disk.create_dir(&two).unwrap();
    let lock = disk.lock(&one).unwrap();
    assert!(matches!(disk.lock(&one), Err(LockError::Held { pid: Some(_), .. })));
    let _other = disk.lock(&two).unwrap();
    drop(lock);
    let _again = disk.lock(&one).unwrap();
    assert!(matches!(disk.lock(&one), Err(LockError::Held { .. })));
    let missing = disk.lock(&root.join("nothing"));
    assert!(matches!(missing, Err(LockError::Io(error)) if error.kind() == ErrorKind::NotFound));
}

fn a_lock_file_names_its_holder(disk: &dyn Disk, root: &Path) {
    let path = root.join("LOCK");
    create(disk, &path, b"4294967295\nand more");
    let lock = disk.lock(root).unwrap();
    let Err(LockError::Held { pid: Some(pid), .. }) = disk.lock(root) else {
        panic!("the lock is not held")
    };
    assert_eq!(read(disk, &path), format!("{pid}\n").as_bytes());
    drop(lock);
    assert_eq!(read(disk, &path), b"");
}

fn syncing_a_missing_path_is_an_error(disk: &dyn Disk, root: &Path) {
    create(disk, &root.join("file"), b"");
    assert_eq!(kind(disk.sync_dir(&root.join("nothing"))), ErrorKind::NotFound);
    assert_eq!(kind(disk.sync_dir(&root.join("file"))), ErrorKind::NotADirectory);
}

fn one_file_serves_many_threads(disk: &dyn Disk, root: &Path) {
    let file = create(disk, &root.join("file"), b"");
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let file = &file;
            scope.spawn(move || {
                for i in 0..50u64 {
                    let offset = (i * 4 + u64::from(thread)) * 1000;
                    file.write_at(&[thread + 1; 1000], offset).unwrap();
                    let mut buf = [0; 1000];
                    file.read_exact_at(&mut buf, offset).unwrap();
                    assert_eq!(buf, [thread + 1; 1000]);
                }
            });
        }
    });
    let bytes = bytes_of(&*file);
    assert_eq!(bytes.len(), 200_000);
    assert!(
        bytes
            .chunks(1000)
            .enumerate()
            .all(|(i, part)| part.iter().all(|byte| *byte == (i % 4) as u8 + 1))
    );
}

fn errors_name_their_path(disk: &dyn Disk, root: &Path) {
    let path = root.join("nothing");
    let shown = path.display().to_string();
    let errors = [
        disk.open(&path, Open::Read, Caching::Buffered).map(drop),
        disk.list(&path).map(drop),
        disk.remove(&path),
        disk.remove_dir(&path),
        disk.rename(&path, &root.join("other")),
        disk.hard_link(&path, &root.join("other")),
        disk.sync_dir(&path),
    ];
    for error in errors.map(Result::unwrap_err) {
        assert!(error.to_string().starts_with(&shown), "{error}");
    }
}

/// The real disk only if its file system supports direct handles; `os` tests it there.
#[test]
fn direct_handles_in_memory_require_alignment() {
    for disk in [&MemDisk::new() as &dyn Disk, &LyingDisk::new(1)] {
        let file = disk.open(Path::new("file"), Open::CreateNew, Caching::Direct).unwrap();
        let buf = vec![0; 2 * DIRECT_ALIGN];
        let start = buf.as_ptr().align_offset(DIRECT_ALIGN);
        file.write_at(&buf[start..start + DIRECT_ALIGN], 0).unwrap();
        assert_eq!(kind(file.write_at(&buf[start..start + 512], 0)), ErrorKind::InvalidInput);
        assert_eq!(
            kind(file.write_at(&buf[start..start + DIRECT_ALIGN], 512)),
            ErrorKind::InvalidInput
        );
        assert_eq!(kind(file.read_at(&mut [0; 3], 0)), ErrorKind::InvalidInput);
    }
}

fn files_synced_together_keep_their_writes(disk: &dyn Disk, dir: &Path) {
    for count in [0, 1, 2, 9] {
        let path = |number| dir.join(format!("{count}-{number}"));
        let files: Vec<_> =
            (0..count).map(|number| create(disk, &path(number), &[number; 70_000])).collect();
        disk.sync_files(&files).unwrap();
        for (number, file) in (0..).zip(&files) {
            let mut bytes = vec![0; 70_001];
            assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 70_000);
            assert!(bytes[..70_000].iter().all(|byte| *byte == number));
        }
    }
}
