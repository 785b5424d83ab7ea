//! The folder of the image: files of segments, each put in its place whole.
//!
//! `pages-NNNNNN.warm` is a segment of pages, by its number, hottest first; `objects-GGGGGG-NNNNNNNNNN.warm` holds segments of objects, by
//! generation and number. They are written as `*.new`, synced and renamed. Everything here may vanish at any moment: somebody deleted it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_disk::vfs::{Caching, Disk, File, Open};
use plimsoll_log::log::Log;
use plimsoll_memory::chunk::CHUNK_BYTES;

use crate::types::error::{Error, Result};
use crate::types::options::Options;
use crate::warm::WARM_DIR;
use crate::warm::segment::{Distrust, HEADER_BYTES, Header, Kind, read_header};

/// A segment is at most so long; in a file of several each but the last is as long.
pub(crate) const SEGMENT_BYTES_MAX: usize = CHUNK_BYTES;

const NEW: &str = ".new";

/// A file of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Name {
    /// A segment of pages, by its number.
    Pages(u32),
    /// Segments of objects.
    Objects(ObjectsName),
}

/// A file of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ObjectsName {
    /// Which image it belongs to: each process that writes one begins a new one.
    pub(crate) generation: u32,
    /// Which part of that.
    pub(crate) number: u32,
}

impl ObjectsName {
    /// The number under which the segment at a place of it is sealed.
    pub(crate) fn segment_number(self, place: u32) -> u64 {
        u64::from(self.generation) << 40 ^ u64::from(self.number) << 8 ^ u64::from(place)
    }
}

impl Name {
    /// As it stands in the folder.
    pub(crate) fn file(self) -> String {
        match self {
            Self::Pages(number) => format!("pages-{number:06}.warm"),
            Self::Objects(ObjectsName { generation, number }) => format!("objects-{generation:06}-{number:010}.warm"),
        }
    }

    fn of_file(file: &str) -> Option<Self> {
        let stem = file.strip_suffix(".warm")?;
        let name = match stem.split_once('-')? {
            ("pages", number) => Self::Pages(number.parse().ok()?),
            ("objects", numbers) => {
                let (generation, number) = numbers.split_once('-')?;
                Self::Objects(ObjectsName { generation: generation.parse().ok()?, number: number.parse().ok()? })
            }
            _ => return None,
        };
        (name.file() == file).then_some(name)
    }
}

/// The files that are there, with their lengths, ascending. None where there is no folder.
fn list(disk: &dyn Disk, dir: &Path) -> io::Result<Vec<(Name, u64)>> {
    if disk.entry(dir)?.is_none() {
        return Ok(Vec::new());
    }
    let entries = disk.list(dir)?;
    let mut found: Vec<_> = entries.iter().filter_map(|entry| Some((Name::of_file(&entry.name)?, entry.len))).collect();
    found.sort_unstable();
    Ok(found)
}

/// The segments of pages that are there, with their lengths, ascending.
pub(crate) fn list_pages(disk: &dyn Disk, dir: &Path) -> io::Result<Vec<(u32, u64)>> {
    let number_of = |(name, len)| match name {
        Name::Pages(number) => Some((number, len)),
        Name::Objects(_) => None,
    };
    Ok(list(disk, dir)?.into_iter().filter_map(number_of).collect())
}

/// The files of objects that are there, with their lengths: the newest generation first, and in each by number.
pub(crate) fn list_objects(disk: &dyn Disk, dir: &Path) -> io::Result<Vec<(ObjectsName, u64)>> {
    let objects_of = |(name, len)| match name {
        Name::Pages(_) => None,
        Name::Objects(name) => Some((name, len)),
    };
    let mut found: Vec<_> = list(disk, dir)?.into_iter().filter_map(objects_of).collect();
    found.sort_by_key(|(name, _)| (std::cmp::Reverse(name.generation), name.number));
    Ok(found)
}

/// Whether there is an image, or it cannot be said.
pub(crate) fn is_there(disk: &dyn Disk, dir: &Path) -> bool {
    !matches!(list(disk, dir).as_deref(), Ok([]))
}

/// A file that is open to read.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) file: Arc<dyn File>,
    /// Bytes of it.
    pub(crate) len: u64,
}

/// Opens a file of the image to read. `None` if it is not there.
pub(crate) fn open_to_read(disk: &dyn Disk, dir: &Path, name: Name) -> Result<Option<OpenFile>, Distrust> {
    let file = match disk.open(&dir.join(name.file()), Open::Read, Caching::Buffered) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(unread)?,
    };
    let len = file.len().map_err(unread)?;
    Ok(Some(OpenFile { file, len }))
}

/// Reads a segment's bytes, which fill its file, into `into`; how many there are. `None` if it is not there.
pub(crate) fn read(disk: &dyn Disk, dir: &Path, name: Name, into: &mut [u8]) -> Result<Option<usize>, Distrust> {
    let Some(OpenFile { file, len }) = open_to_read(disk, dir, name)? else { return Ok(None) };
    let room = into.len() as u64;
    let len = usize::try_from(len).ok().filter(|_| len <= room).ok_or(Distrust::Damaged { what: "it is too long" })?;
    file.read_exact_at(&mut into[..len], 0).map_err(unread)?;
    Ok(Some(len))
}

pub(crate) fn unread(error: io::Error) -> Distrust {
    Distrust::Unread { message: error.to_string() }
}

/// A file that is being written.
#[derive(Debug)]
pub(crate) struct NewFile {
    path: PathBuf,
    new: PathBuf,
    file: Arc<dyn File>,
}

impl NewFile {
    /// Begins a file, in a folder that is made if it is not there.
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
                disk.sync_dir(dir.parent().expect("the image's folder stands in the store's"))?;
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

    /// Puts it in its place. Its name is durable with the next sync of the folder.
    pub(crate) fn finish(self, disk: &dyn Disk) -> io::Result<()> {
        self.file.sync()?;
        disk.rename(&self.new, &self.path)
    }

    /// Leaves it.
    pub(crate) fn forget(self, disk: &dyn Disk) -> io::Result<()> {
        remove_path(disk, &self.new)
    }
}

/// Removes the segments of pages from `number` on.
pub(crate) fn remove_pages_from(disk: &dyn Disk, dir: &Path, number: u32) -> io::Result<bool> {
    let mut removed = false;
    for (number, _) in list_pages(disk, dir)?.into_iter().filter(|&(found, _)| found >= number) {
        remove(disk, dir, Name::Pages(number))?;
        removed = true;
    }
    Ok(removed)
}

/// Removes all files of objects.
pub(crate) fn remove_objects(disk: &dyn Disk, dir: &Path) -> io::Result<bool> {
    let all = list_objects(disk, dir)?;
    for &(name, _) in &all {
        remove(disk, dir, Name::Objects(name))?;
    }
    Ok(!all.is_empty())
}

/// Removes a file, if it is there.
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

/// Whether the place that a segment is of can be compared with the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Past {
    /// The log has the same past up to there.
    Same,
    /// It lies below the trim point.
    Trimmed,
}

/// Whether a segment that says this of itself is of this log's past.
pub(crate) fn check_past(header: &Header, log: &dyn Log) -> Result<Past, Distrust> {
    if header.log_id != log.id() {
        return Err(Distrust::Foreign);
    }
    let (glsn, bounds) = (header.position.glsn, log.bounds());
    if glsn > bounds.durable {
        return Err(Distrust::Ahead { glsn, durable: bounds.durable });
    }
    if glsn.0 == 0 {
        return Ok(Past::Trimmed);
    }
    match log.chain_at(glsn) {
        Ok(Some(chain)) if chain == header.position.chain => Ok(Past::Same),
        // Asked behind the look at the log: it may have been trimmed in between.
        Ok(_) | Err(_) if glsn < log.bounds().first => Ok(Past::Trimmed),
        Ok(_) => Err(Distrust::Forked { glsn }),
        Err(error) => Err(Error::from(error).into()),
    }
}

/// The warm image of a store, as its files say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WarmImage {
    /// Its segments.
    pub segments: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// Pages that it names.
    pub pages: u64,
    /// Objects that it holds.
    pub objects: u64,
    /// Of the bytes, those of objects.
    pub object_bytes: u64,
    /// The oldest GLSN that one of its segments is of; 0 if there is none that can be read.
    pub oldest_glsn: u64,
    /// The newest one.
    pub newest_glsn: u64,
    /// The store that its first segment is of, as `Db::id` says; `None` if there is none that can be read. An image of another store is ignored.
    pub store_id: Option<u128>,
    /// What is wrong with the first file that cannot be read, if one cannot.
    pub problem: Option<String>,
}

/// What the warm image of the store in a folder says of itself. Works beside a process that has the store open.
///
/// # Errors
/// The disk. Damage is told in [`WarmImage::problem`].
pub fn warm_image(path: impl AsRef<Path>, options: &Options) -> Result<WarmImage> {
    let (disk, dir) = (&*options.disk, path.as_ref().join(WARM_DIR));
    let mut image = WarmImage::default();
    let (mut oldest, mut newest) = (None, None);
    for (name, len) in list(disk, &dir)? {
        let seen = look_at_file(disk, &dir, name, &mut |header| {
            image.segments += 1;
            match header.kind {
                Kind::Pages => image.pages = image.pages.saturating_add(header.entries),
                Kind::Objects => image.objects = image.objects.saturating_add(header.entries),
            }
            image.store_id.get_or_insert(header.log_id);
            let glsn = header.position.glsn.0;
            oldest = Some(oldest.map_or(glsn, |oldest: u64| oldest.min(glsn)));
            newest = newest.max(Some(glsn));
        });
        match seen {
            Ok(true) => {}
            // It was removed meanwhile.
            Ok(false) => continue,
            Err(distrust) => {
                image.segments += 1;
                image.problem.get_or_insert_with(|| format!("{}: {distrust}", dir.join(name.file()).display()));
            }
        }
        image.bytes += len;
        image.object_bytes += if matches!(name, Name::Objects(_)) { len } else { 0 };
    }
    (image.oldest_glsn, image.newest_glsn) = (oldest.unwrap_or(0), newest.unwrap_or(0));
    Ok(image)
}

/// Tells of the headers in a file; whether it is there.
fn look_at_file(disk: &dyn Disk, dir: &Path, name: Name, each: &mut dyn FnMut(&Header)) -> Result<bool, Distrust> {
    let Some(OpenFile { file, len }) = open_to_read(disk, dir, name)? else { return Ok(false) };
    let mut head = [0; HEADER_BYTES];
    let mut at = 0;
    for place in 0.. {
        let (kind, number) = match name {
            Name::Pages(number) => (Kind::Pages, u64::from(number)),
            Name::Objects(name) => (Kind::Objects, name.segment_number(place)),
        };
        let segment_bytes = match kind {
            Kind::Pages => len,
            Kind::Objects => (len - at).min(SEGMENT_BYTES_MAX as u64),
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

/// Deletes the warm image of the store in a folder; how many bytes that were. It may be open: it then writes another in time.
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
    // Not if somebody keeps other things there, or has just written a segment.
    let _ = disk.remove_dir(&dir);
    Ok(bytes)
}

/// Removes what an earlier process began to write and did not finish. Nobody else writes here.
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
    fn a_file_is_known_by_its_name_and_nothing_else_is() {
        let objects = |generation, number| Name::Objects(ObjectsName { generation, number });
        for name in [Name::Pages(7), Name::Pages(u32::MAX), objects(0, 7), objects(u32::MAX, u32::MAX)] {
            assert_eq!(Name::of_file(&name.file()), Some(name));
        }
        let others = [
            "pages-7.warm",
            "pages-000007.warm.new",
            "pages-.warm",
            "pages-+00007.warm",
            "objects-000001.warm",
            "objects-000001-7.warm",
            "objects-000001-0000000007-1.warm",
            "x",
        ];
        for name in others {
            assert_eq!(Name::of_file(name), None, "{name}");
        }
    }
}
