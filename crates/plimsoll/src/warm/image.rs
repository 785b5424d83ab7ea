//! The folder of the image: files of segments, each put in its place whole.
//!
//! A segment is `pages-NNNNNN.warm`, by its number, hottest first; it is written as `*.new`, synced and renamed. Everything here may vanish
//! at any moment: somebody deleted it.

use std::io;
use std::path::{Path, PathBuf};

use plimsoll_disk::vfs::{Caching, Disk, Open};
use plimsoll_log::log::Log;
use plimsoll_memory::chunk::CHUNK_BYTES;

use crate::error::{Error, Result};
use crate::options::Options;
use crate::warm::WARM_DIR;
use crate::warm::segment::{Distrust, HEADER_BYTES, Header, Kind, read_header};

/// A segment is at most so long.
pub(crate) const SEGMENT_BYTES_MAX: usize = CHUNK_BYTES;

const NEW: &str = ".new";

/// Name of a segment.
pub(crate) fn segment_name(kind: Kind, number: u32) -> String {
    match kind {
        Kind::Pages => format!("pages-{number:06}.warm"),
    }
}

fn number_of(name: &str) -> Option<(Kind, u32)> {
    let digits = name.strip_prefix("pages-")?.strip_suffix(".warm")?;
    let number = digits.parse().ok()?;
    (segment_name(Kind::Pages, number) == name).then_some((Kind::Pages, number))
}

/// The segments of a kind that are there, with their lengths, ascending. None where there is no folder.
pub(crate) fn list(disk: &dyn Disk, dir: &Path, kind: Kind) -> io::Result<Vec<(u32, u64)>> {
    if disk.entry(dir)?.is_none() {
        return Ok(Vec::new());
    }
    let entries = disk.list(dir)?;
    let segments = entries.iter().filter_map(|entry| Some((number_of(&entry.name)?, entry.len)));
    let mut found: Vec<_> =
        segments.filter(|((of, _), _)| *of == kind).map(|((_, number), len)| (number, len)).collect();
    found.sort_unstable();
    Ok(found)
}

/// Whether there is an image, or it cannot be said.
pub(crate) fn is_there(disk: &dyn Disk, dir: &Path) -> bool {
    !matches!(list(disk, dir, Kind::Pages).as_deref(), Ok([]))
}

/// Reads a segment's bytes into `into`; how many there are. `None` if it is not there.
pub(crate) fn read(
    disk: &dyn Disk,
    dir: &Path,
    kind: Kind,
    number: u32,
    into: &mut [u8],
) -> Result<Option<usize>, Distrust> {
    let unread = |error: io::Error| Distrust::Unread { message: error.to_string() };
    let file = match disk.open(&dir.join(segment_name(kind, number)), Open::Read, Caching::Buffered) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(unread)?,
    };
    let len = file.len().map_err(unread)?;
    let room = into.len() as u64;
    let len = usize::try_from(len).ok().filter(|_| len <= room).ok_or(Distrust::Damaged { what: "it is too long" })?;
    file.read_exact_at(&mut into[..len], 0).map_err(unread)?;
    Ok(Some(len))
}

/// Puts a segment in its place. Its name is durable with the next sync of the folder.
pub(crate) fn write(disk: &dyn Disk, dir: &Path, kind: Kind, number: u32, bytes: &[u8]) -> io::Result<()> {
    let path = dir.join(segment_name(kind, number));
    let new = with_ending(&path, NEW);
    let file = match disk.open(&new, Open::CreateNew, Caching::Buffered) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            disk.remove(&new)?;
            disk.open(&new, Open::CreateNew, Caching::Buffered)?
        }
        opened => opened?,
    };
    file.write_at(bytes, 0)?;
    file.sync()?;
    disk.rename(&new, &path)
}

/// Removes the segments of a kind from `number` on.
pub(crate) fn remove_from(disk: &dyn Disk, dir: &Path, kind: Kind, number: u32) -> io::Result<bool> {
    let mut removed = false;
    for (number, _) in list(disk, dir, kind)?.into_iter().filter(|&(found, _)| found >= number) {
        remove(disk, &dir.join(segment_name(kind, number)))?;
        removed = true;
    }
    Ok(removed)
}

fn remove(disk: &dyn Disk, path: &Path) -> io::Result<()> {
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

/// Whether a segment that says this of itself is of this log's past.
///
/// What lies below the trim point cannot be compared; then it passes: for names of pages that is enough.
pub(crate) fn check_past(header: &Header, log: &dyn Log) -> Result<(), Distrust> {
    if header.log_id != log.id() {
        return Err(Distrust::Foreign);
    }
    let (glsn, bounds) = (header.position.glsn, log.bounds());
    if glsn > bounds.durable {
        return Err(Distrust::Ahead { glsn, durable: bounds.durable });
    }
    let there = glsn >= bounds.first && glsn.0 > 0;
    if there && log.chain_at(glsn).map_err(Error::from)? != Some(header.position.chain) {
        return Err(Distrust::Forked { glsn });
    }
    Ok(())
}

/// The warm image of a store, as its files say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WarmImage {
    /// Its segments.
    pub segments: u64,
    /// Bytes of their files.
    pub bytes: u64,
    /// Pages that it names.
    pub pages: u64,
    /// The oldest GLSN that one of its segments is of; 0 if there are none.
    pub oldest_glsn: u64,
    /// The newest one.
    pub newest_glsn: u64,
    /// What is wrong with the first segment that cannot be read, if one cannot.
    pub problem: Option<String>,
}

/// What the warm image of the store in a folder says of itself. Works beside a process that has the store open.
///
/// # Errors
/// The disk. Damage is told in [`WarmImage::problem`].
pub fn warm_image(path: impl AsRef<Path>, options: &Options) -> Result<WarmImage> {
    let (disk, dir) = (&*options.disk, path.as_ref().join(WARM_DIR));
    let mut image = WarmImage::default();
    for (number, len) in list(disk, &dir, Kind::Pages)? {
        match read_front(disk, &dir, number, len) {
            Ok(header) => {
                let glsn = header.position.glsn.0;
                image.pages += header.entries;
                image.oldest_glsn = if image.segments == 0 { glsn } else { image.oldest_glsn.min(glsn) };
                image.newest_glsn = image.newest_glsn.max(glsn);
            }
            Err(distrust) => {
                let name = segment_name(Kind::Pages, number);
                image.problem.get_or_insert_with(|| format!("{}: {distrust}", dir.join(name).display()));
            }
        }
        image.segments += 1;
        image.bytes += len;
    }
    Ok(image)
}

fn read_front(disk: &dyn Disk, dir: &Path, number: u32, len: u64) -> Result<Header, Distrust> {
    let unread = |error: io::Error| Distrust::Unread { message: error.to_string() };
    let path = dir.join(segment_name(Kind::Pages, number));
    let file = disk.open(&path, Open::Read, Caching::Buffered).map_err(unread)?;
    let mut head = [0; HEADER_BYTES];
    let read = file.read_at(&mut head, 0).map_err(unread)?;
    read_header(&head[..read], Kind::Pages, number, len).map(|(header, _)| header)
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
        if number_of(entry.name.strip_suffix(NEW).unwrap_or(&entry.name)).is_some() {
            remove(disk, &dir.join(&entry.name))?;
            bytes += entry.len;
        }
    }
    disk.sync_dir(&dir)?;
    // Not if somebody keeps other things there, or has just written a segment.
    let _ = disk.remove_dir(&dir);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_known_by_its_name_and_nothing_else_is() {
        assert_eq!(number_of(&segment_name(Kind::Pages, 7)), Some((Kind::Pages, 7)));
        assert_eq!(number_of(&segment_name(Kind::Pages, u32::MAX)), Some((Kind::Pages, u32::MAX)));
        for name in ["pages-7.warm", "pages-000007.warm.new", "pages-.warm", "pages-+00007.warm", "x"] {
            assert_eq!(number_of(name), None, "{name}");
        }
    }
}
