//! Keeps beside a store the files that a salvage takes out of it, and the list of what is lost with them.
//!
//! Opening a store sweeps the files that its manifest and its log no longer name. So a salvage calls [`Kept`] before it writes a manifest:
//! 1. Each file that the manifest stops naming has a second name that ends with `.cut`; [`Kept::sync`] makes it durable.
//! 2. A name that is taken is never used again.
//! 3. A salvage that is run again after an interruption may give a file one more name, and finds the lists of losses of the runs before.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use plimsoll_disk::vfs::{Caching, Disk, Open};
use plimsoll_log::blob::BlobId;

use crate::index::manifest::Manifest;
use crate::index::run::table::{TableId, run_file_name};
use crate::types::error::Result;

/// Names of the lists of losses begin with this.
const LOSSES: &str = "losses.txt";

/// Bytes that are copied at once.
const PIECE_BYTES: usize = 64 << 10;

/// Files of a store that were given second names.
pub(crate) struct Kept<'a> {
    disk: &'a dyn Disk,
    aside: Vec<String>,
    /// Originals that lose their first names at the end.
    taken: Vec<PathBuf>,
    folders: BTreeSet<PathBuf>,
}

impl<'a> Kept<'a> {
    /// No files yet.
    pub(crate) fn new(disk: &'a dyn Disk) -> Self {
        Self { disk, aside: Vec::new(), taken: Vec::new(), folders: BTreeSet::new() }
    }

    /// Gives a file a second name that ends with `.cut`; a copy where the disk has no links. Does nothing if the file is missing.
    pub(crate) fn keep(&mut self, folder: &Path, name: &str) -> Result<()> {
        let original = folder.join(name);
        if self.disk.entry(&original)?.is_none() {
            return Ok(());
        }
        let aside = free_name(self.disk, folder, name)?;
        if self.disk.hard_link(&original, &aside).is_err() {
            copy_file(self.disk, &original, &aside)?;
        }
        self.folders.insert(folder.to_owned());
        self.aside.push(aside.display().to_string());
        Ok(())
    }

    /// The same, and [`Kept::release`] removes the first name.
    pub(crate) fn take(&mut self, folder: &Path, name: &str) -> Result<()> {
        self.taken.push(folder.join(name));
        self.keep(folder, name)
    }

    /// Keeps each file that `before` names and `after` does not. Blob files keep their first names too: the log may name them.
    pub(crate) fn keep_unnamed(&mut self, store: &Path, before: &Manifest, after: &Manifest) -> Result<()> {
        let (before, after) = (Named::of(before), Named::of(after));
        for run in before.runs.difference(&after.runs) {
            self.take(&store.join("index"), &run_file_name(*run))?;
        }
        for blob in before.blobs.difference(&after.blobs) {
            self.keep(&store.join("log"), &blob.file_name())?;
        }
        Ok(())
    }

    /// Makes the second names durable: from now on the files may lose their first ones.
    pub(crate) fn sync(&self) -> Result<()> {
        Ok(self.folders.iter().try_for_each(|folder| self.disk.sync_dir(folder))?)
    }

    /// Removes the first names of the files that were taken; returns the second names of all.
    pub(crate) fn release(self) -> Result<Vec<String>> {
        for original in &self.taken {
            if self.disk.entry(original)?.is_some() {
                self.disk.remove(original)?;
            }
        }
        self.sync()?;
        Ok(self.aside)
    }
}

/// The files that a manifest names.
#[derive(Default)]
pub(crate) struct Named {
    pub(crate) runs: BTreeSet<u64>,
    pub(crate) blobs: BTreeSet<BlobId>,
}

impl Named {
    pub(crate) fn of(manifest: &Manifest) -> Self {
        let mut named = Self::default();
        for info in manifest.runs.iter().flat_map(|run| &run.tables) {
            match info.id {
                TableId::Run(run) => named.runs.insert(run),
                TableId::Blob(blob) => named.blobs.insert(blob),
            };
            named.blobs.extend(&info.blobs);
        }
        named
    }
}

/// A path for `name` that ends with `.cut` and is not taken.
pub(crate) fn free_name(disk: &dyn Disk, folder: &Path, name: &str) -> Result<PathBuf> {
    let mut number = 0u32;
    loop {
        let free = if number == 0 { format!("{name}.cut") } else { format!("{name}.{number}.cut") };
        let path = folder.join(free);
        if disk.entry(&path)?.is_none() {
            return Ok(path);
        }
        number += 1;
    }
}

/// Copies a file to a new one, and syncs it.
pub(crate) fn copy_file(disk: &dyn Disk, source: &Path, target: &Path) -> Result<()> {
    let (source, copy) =
        (disk.open(source, Open::Read, Caching::Buffered)?, disk.open(target, Open::CreateNew, Caching::Buffered)?);
    let (mut piece, mut at) = (vec![0; PIECE_BYTES], 0);
    loop {
        let n = source.read_at(&mut piece, at)?;
        if n == 0 {
            return Ok(copy.sync()?);
        }
        copy.write_at(&piece[..n], at)?;
        at += n as u64;
    }
}

/// Writes a list of losses, one a line, before they happen: a salvage that fails later cannot find them again. Nothing without losses.
pub(crate) fn note_losses(disk: &dyn Disk, store: &Path, losses: &[String]) -> Result<()> {
    if losses.is_empty() {
        return Ok(());
    }
    let mut text = String::new();
    losses.iter().for_each(|loss| writeln!(text, "{loss}").expect("a string takes any text"));
    if let Some(path) = lists_of_losses(disk, store)?.iter().find(|path| holds(disk, Path::new(path), text.as_bytes()))
    {
        // The run before noted the same; it may have ended before it synced that.
        disk.open(Path::new(path), Open::Read, Caching::Buffered)?.sync()?;
        return Ok(disk.sync_dir(store)?);
    }
    let file = disk.open(&free_name(disk, store, LOSSES)?, Open::CreateNew, Caching::Buffered)?;
    file.write_at(text.as_bytes(), 0)?;
    file.sync()?;
    Ok(disk.sync_dir(store)?)
}

/// The lists of losses beside a store: of its last salvage, and of earlier ones.
pub(crate) fn lists_of_losses(disk: &dyn Disk, store: &Path) -> Result<Vec<String>> {
    let mut names = disk.names(store)?;
    names.retain(|name| name.starts_with(LOSSES) && name.ends_with(".cut"));
    names.sort_unstable();
    Ok(names.iter().map(|name| store.join(name).display().to_string()).collect())
}

fn holds(disk: &dyn Disk, path: &Path, text: &[u8]) -> bool {
    let mut bytes = vec![0; text.len() + 1];
    let read = disk.open(path, Open::Read, Caching::Buffered).and_then(|file| file.read_at(&mut bytes, 0));
    read.is_ok_and(|n| &bytes[..n] == text)
}

#[cfg(test)]
mod tests {
    use plimsoll_disk::mem::MemDisk;

    use super::*;

    fn read(disk: &dyn Disk, path: &Path) -> Vec<u8> {
        let file = disk.open(path, Open::Read, Caching::Buffered).unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    #[test]
    fn a_kept_file_has_a_name_of_its_own_each_time() {
        let (disk, folder) = (MemDisk::new(), Path::new("/index"));
        disk.create_dir(folder).unwrap();
        for (round, aside) in ["/index/a.cut", "/index/a.1.cut", "/index/a.2.cut"].iter().enumerate() {
            let file = disk.open(&folder.join("a"), Open::CreateNew, Caching::Buffered).unwrap();
            file.write_at(&[round as u8], 0).unwrap();
            let mut kept = Kept::new(&disk);
            kept.take(folder, "a").unwrap();
            kept.take(folder, "missing").unwrap();
            kept.sync().unwrap();
            assert_eq!(kept.release().unwrap(), [(*aside).to_owned()]);
            assert_eq!(disk.entry(&folder.join("a")).unwrap().map(|entry| entry.name), None);
            assert_eq!(read(&disk, Path::new(aside)), [round as u8]);
        }
        assert_eq!(read(&disk, Path::new("/index/a.cut")), [0]);
    }

    #[test]
    fn losses_are_noted_once_and_lists_of_others_stay() {
        let (disk, store) = (MemDisk::new(), Path::new("/store"));
        disk.create_dir(store).unwrap();
        note_losses(&disk, store, &[]).unwrap();
        assert_eq!(lists_of_losses(&disk, store).unwrap(), Vec::<String>::new());
        for lost in ["one", "two", "one"] {
            note_losses(&disk, store, &[lost.to_owned()]).unwrap();
        }
        assert_eq!(lists_of_losses(&disk, store).unwrap(), ["/store/losses.txt.1.cut", "/store/losses.txt.cut"]);
        assert_eq!(read(&disk, Path::new("/store/losses.txt.cut")), b"one\n");
    }
}
