//! The folder of the image: files of segments, each renamed into place when it is complete.
//!
//! `pages-NNNNNN.warm` is a segment of pages, by its number, hottest first;
//! `rows-GGGGGG-NNNNNNNNNN.warm` holds segments of rows, by generation and number. They are written
//! as `*.new`, synced and renamed. Any file here may disappear at any time, because the folder may
//! be deleted.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_disk::vfs::{Caching, Disk, File, Open};
use plimsoll_log::file_log::FileLog;
use plimsoll_memory::chunk::CHUNK_BYTES;

use crate::types::error::{Error, Result};
use crate::types::options::Options;
use crate::warm::WARM_DIR;
use crate::warm::segment::{HEADER_BYTES, Header, Kind, Rejection, read_header};

/// The most bytes of a segment. In a file of several segments, each but the last has exactly this
/// size.
pub(crate) const SEGMENT_BYTES_MAX: usize = CHUNK_BYTES;

const NEW: &str = ".new";

/// A file of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Name {
    /// A segment of pages, by its number.
    Pages(u32),
    /// Segments of rows.
    Rows(RowsName),
}

/// A file of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RowsName {
    /// The generation: each process that writes an image starts a new one.
    pub(crate) generation: u32,
    /// The number of the file within its generation.
    pub(crate) number: u32,
}

impl RowsName {
    /// The number with which the segment at `place` in this file is sealed.
    pub(crate) fn segment_number(self, place: u32) -> u64 {
        u64::from(self.generation) << 40 ^ u64::from(self.number) << 8 ^ u64::from(place)
    }
}

impl Name {
    /// Its file name in the folder.
    pub(crate) fn file(self) -> String {
        match self {
            Self::Pages(number) => format!("pages-{number:06}.warm"),
            Self::Rows(RowsName { generation, number }) => {
                format!("rows-{generation:06}-{number:010}.warm")
            }
        }
    }

    fn of_file(file: &str) -> Option<Self> {
        let stem = file.strip_suffix(".warm")?;
        let name = match stem.split_once('-')? {
            ("pages", number) => Self::Pages(number.parse().ok()?),
            ("rows", numbers) => {
                let (generation, number) = numbers.split_once('-')?;
                Self::Rows(RowsName {
                    generation: generation.parse().ok()?,
                    number: number.parse().ok()?,
                })
            }
            _ => return None,
        };
        (name.file() == file).then_some(name)
    }
}

/// The existing files with their lengths, ascending. Empty if there is no folder.
fn list(disk: &dyn Disk, dir: &Path) -> io::Result<Vec<(Name, u64)>> {
    if disk.entry(dir)?.is_none() {
        return Ok(Vec::new());
    }
    let entries = disk.list(dir)?;
    let mut found: Vec<_> =
        entries.iter().filter_map(|entry| Some((Name::of_file(&entry.name)?, entry.len))).collect();
    found.sort_unstable();
    Ok(found)
}

/// The existing segments of pages with their lengths, ascending.
pub(crate) fn list_pages(disk: &dyn Disk, dir: &Path) -> io::Result<Vec<(u32, u64)>> {
    let number_of = |(name, len)| match name {
        Name::Pages(number) => Some((number, len)),
        Name::Rows(_) => None,
    };
    Ok(list(disk, dir)?.into_iter().filter_map(number_of).collect())
}

/// The existing files of rows with their lengths: the newest generation first, and by number within
/// each.
pub(crate) fn list_rows(disk: &dyn Disk, dir: &Path) -> io::Result<Vec<(RowsName, u64)>> {
    let rows_of = |(name, len)| match name {
        Name::Pages(_) => None,
        Name::Rows(name) => Some((name, len)),
    };
    let mut found: Vec<_> = list(disk, dir)?.into_iter().filter_map(rows_of).collect();
    found.sort_by_key(|(name, _)| (std::cmp::Reverse(name.generation), name.number));
    Ok(found)
}

/// Whether an image exists, or its folder cannot be read.
pub(crate) fn is_there(disk: &dyn Disk, dir: &Path) -> bool {
    !matches!(list(disk, dir).as_deref(), Ok([]))
}

/// A file open for reading.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) file: Arc<dyn File>,
    /// Its length.
    pub(crate) len: u64,
}

/// Opens a file of the image for reading. `None` if it does not exist.
pub(crate) fn open_to_read(
    disk: &dyn Disk,
    dir: &Path,
    name: Name,
) -> Result<Option<OpenFile>, Rejection> {
    let file = match disk.open(&dir.join(name.file()), Open::Read, Caching::Buffered) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(unread)?,
    };
    let len = file.len().map_err(unread)?;
    Ok(Some(OpenFile { file, len }))
}

/// Reads a segment that fills its file into `into`; returns its length. `None` if it does not
/// exist.
pub(crate) fn read(
    disk: &dyn Disk,
    dir: &Path,
    name: Name,
    into: &mut [u8],
) -> Result<Option<usize>, Rejection> {
    let Some(OpenFile { file, len }) = open_to_read(disk, dir, name)? else { return Ok(None) };
    let room = into.len() as u64;
    let len = usize::try_from(len)
        .ok()
        .filter(|_| len <= room)
        .ok_or(Rejection::Damaged { what: "it is too long" })?;
    file.read_exact_at(&mut into[..len], 0).map_err(unread)?;
    Ok(Some(len))
}

pub(crate) fn unread(error: io::Error) -> Rejection {
    Rejection::Unread { message: error.to_string() }
}

/// A file that is being written.
#[derive(Debug)]
pub(crate) struct NewFile {
    path: PathBuf,
    new: PathBuf,
    file: Arc<dyn File>,
}

impl NewFile {
    /// Creates a file, and the folder if it does not exist.
    pub(crate) fn begin(disk: &dyn Disk, dir: &Path, name: Name) -> io::Result<Self> {
        let path = dir.join(name.file());
        let new = with_ending(&path, NEW);
        let create = || disk.open(&new, Open::CreateNew, Caching::Buffered);
        let file = match create() {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                disk.remove(&new)?;
                create()?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                disk.create_dir(dir)?;
                disk.sync_dir(dir.parent().expect("the image's folder is in the store's folder"))?;
                create()?
            }
            opened => opened?,
        };
        Ok(Self { path, new, file })
    }

    /// Writes at an offset.
    pub(crate) fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.file.write_at(bytes, at)
    }

    /// Renames the file into place. The name is durable with the next sync of the folder.
    pub(crate) fn finish(self, disk: &dyn Disk) -> io::Result<()> {
        self.file.sync()?;
        disk.rename(&self.new, &self.path)
    }

    /// Abandons the file.
    pub(crate) fn forget(self, disk: &dyn Disk) -> io::Result<()> {
        remove_path(disk, &self.new)
    }
}

/// Removes the segments of pages with numbers from `number` on.
pub(crate) fn remove_pages_from(disk: &dyn Disk, dir: &Path, number: u32) -> io::Result<bool> {
    let mut removed = false;
    for (number, _) in list_pages(disk, dir)?.into_iter().filter(|&(found, _)| found >= number) {
        remove(disk, dir, Name::Pages(number))?;
        removed = true;
    }
    Ok(removed)
}

/// Removes all files of rows.
pub(crate) fn remove_rows(disk: &dyn Disk, dir: &Path) -> io::Result<bool> {
    let all = list_rows(disk, dir)?;
    for &(name, _) in &all {
        remove(disk, dir, Name::Rows(name))?;
    }
    Ok(!all.is_empty())
}

/// Removes a file, if it exists.
pub(crate) fn remove(disk: &dyn Disk, dir: &Path, name: Name) -> io::Result<()> {
    remove_path(disk, &dir.join(name.file()))
}

fn remove_path(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    match disk.remove(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

/// The result of comparing a segment with the history of the log up to the segment's position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Past {
    /// The log has the same history up to that position.
    Same,
    /// The position is before the first commit that the log still holds, so the segment cannot be
    /// compared.
    Trimmed,
}

/// Checks that a segment with this header belongs to the history of this log.
pub(crate) fn check_past(header: &Header, log: &FileLog) -> Result<Past, Rejection> {
    if header.log_id != log.id() {
        return Err(Rejection::Foreign);
    }
    let (glsn, bounds) = (header.position.glsn, log.bounds());
    if glsn > bounds.durable {
        return Err(Rejection::Ahead { glsn, durable: bounds.durable });
    }
    if glsn.0 == 0 {
        return Ok(Past::Trimmed);
    }
    match log.chain_at(glsn) {
        Ok(Some(chain)) if chain == header.position.chain => Ok(Past::Same),
        // Check this after the lookup in the log, because the log may have been trimmed in between.
        Ok(_) | Err(_) if glsn < log.bounds().first => Ok(Past::Trimmed),
        Ok(_) => Err(Rejection::Forked { glsn }),
        Err(error) => Err(Error::of_log(error).into()),
    }
}

/// The warm image of a store, as its files describe it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WarmImage {
    /// Its segments.
    pub segments: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// Pages that it names.
    pub pages: u64,
    /// Rows that it holds.
    pub rows: u64,
    /// Bytes of rows, part of `bytes`.
    pub row_bytes: u64,
    /// The oldest GLSN of a segment; 0 if no segment can be read.
    pub oldest_glsn: u64,
    /// The newest GLSN of a segment.
    pub newest_glsn: u64,
    /// The store of its first segment, as in `Db::id`; `None` if no segment can be read. An image
    /// of another store is ignored.
    pub store_id: Option<u128>,
    /// The fault of the first unreadable file, if there is one.
    pub problem: Option<String>,
}

/// Describes the warm image of the store in a folder. Works while another process has the store
/// open.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// # let notes = db.keyspace("notes")?;
/// db.put(&notes, "a", "one")?;
/// db.close()?;
/// let options = Options::new().memory_bytes(16 << 20);
/// let image = warm_image(&path, &options)?;
/// assert!(image.rows <= 1);
/// delete_warm_image(&path, &options)?;
/// assert_eq!(warm_image(&path, &options)?.bytes, 0);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// The disk. Damage is reported in [`WarmImage::problem`].
pub fn warm_image(path: impl AsRef<Path>, options: &Options) -> Result<WarmImage> {
    let (disk, dir) = (&*options.disk, path.as_ref().join(WARM_DIR));
    let mut image = WarmImage::default();
    let (mut oldest, mut newest) = (None, None);
    for (name, len) in list(disk, &dir)? {
        let seen = report_headers(disk, &dir, name, &mut |header| {
            image.segments += 1;
            match header.kind {
                Kind::Pages => image.pages = image.pages.saturating_add(header.entries),
                Kind::Rows => image.rows = image.rows.saturating_add(header.entries),
            }
            image.store_id.get_or_insert(header.log_id);
            let glsn = header.position.glsn.0;
            oldest = Some(oldest.map_or(glsn, |oldest: u64| oldest.min(glsn)));
            newest = newest.max(Some(glsn));
        });
        match seen {
            Ok(true) => {}
            // The file was removed in between.
            Ok(false) => continue,
            Err(rejection) => {
                image.segments += 1;
                image.problem.get_or_insert_with(|| {
                    format!("{}: {rejection}", dir.join(name.file()).display())
                });
            }
        }
        image.bytes += len;
        image.row_bytes += if matches!(name, Name::Rows(_)) { len } else { 0 };
    }
    (image.oldest_glsn, image.newest_glsn) = (oldest.unwrap_or(0), newest.unwrap_or(0));
    Ok(image)
}

/// Reports the headers in a file; returns whether the file exists.
fn report_headers(
    disk: &dyn Disk,
    dir: &Path,
    name: Name,
    each: &mut dyn FnMut(&Header),
) -> Result<bool, Rejection> {
    let Some(OpenFile { file, len }) = open_to_read(disk, dir, name)? else { return Ok(false) };
    let mut head = [0; HEADER_BYTES];
    let mut at = 0;
    for place in 0.. {
        let (kind, number) = match name {
            Name::Pages(number) => (Kind::Pages, u64::from(number)),
            Name::Rows(name) => (Kind::Rows, name.segment_number(place)),
        };
        let segment_bytes = match kind {
            Kind::Pages => len,
            Kind::Rows => (len - at).min(SEGMENT_BYTES_MAX as u64),
        };
        let read = file.read_at(&mut head, at).map_err(unread)?;
        each(&read_header(&head[..read], kind, number, segment_bytes)?.0);
        at += segment_bytes;
        if at >= len {
            break;
        }
    }
    Ok(true)
}

/// Deletes the warm image of the store in a folder; returns the bytes removed. A process that has
/// the store open writes a new image at its next save.
///
/// # Errors
/// The disk.
pub fn delete_warm_image(path: impl AsRef<Path>, options: &Options) -> Result<u64> {
    let (disk, path) = (&*options.disk, path.as_ref());
    let dir = path.join(WARM_DIR);
    if disk.entry(&dir)?.is_none() {
        return Ok(0);
    }
    let mut bytes = 0;
    for entry in disk.list(&dir)? {
        if Name::of_file(entry.name.strip_suffix(NEW).unwrap_or(&entry.name)).is_some() {
            remove_path(disk, &dir.join(&entry.name))?;
            bytes += entry.len;
        }
    }
    disk.sync_dir(&dir)?;
    // Fails if the folder holds other files, or a segment was just written.
    let _ = disk.remove_dir(&dir);
    Ok(bytes)
}

/// Removes files that an earlier process did not finish. No other process writes here.
pub(crate) fn remove_unfinished(disk: &dyn Disk, dir: &Path) -> io::Result<()> {
    if disk.entry(dir)?.is_none() {
        return Ok(());
    }
    for entry in disk.list(dir)? {
        if entry.name.strip_suffix(NEW).and_then(Name::of_file).is_some() {
            remove_path(disk, &dir.join(&entry.name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_image_files_are_recognised() {
        let rows = |generation, number| Name::Rows(RowsName { generation, number });
        for name in [Name::Pages(7), Name::Pages(u32::MAX), rows(0, 7), rows(u32::MAX, u32::MAX)] {
            assert_eq!(Name::of_file(&name.file()), Some(name));
        }
        let others = [
            "pages-7.warm",
            "pages-000007.warm.new",
            "pages-.warm",
            "pages-+00007.warm",
            "rows-000001.warm",
            "rows-000001-7.warm",
            "rows-000001-0000000007-1.warm",
            "x",
        ];
        for name in others {
            assert_eq!(Name::of_file(name), None, "{name}");
        }
    }
}
