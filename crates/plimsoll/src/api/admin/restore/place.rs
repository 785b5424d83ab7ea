//! The temporary folder in which a restore builds the store, before the store is renamed to its
//! destination.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_disk::codec::push_bytes;
use plimsoll_disk::vfs::{Caching, DirLock, Disk, NEW_FOLDER_MARK, Open};

use crate::api::admin::backup::parent_of;
use crate::api::admin::dump::records::{Content, Header};
use crate::engine::folder::remove_folder;
use crate::engine::lock::lock_alone;
use crate::types::error::Result;
use crate::types::invalid_input::InvalidInput;
use crate::types::options::Options;

/// The file that identifies the dump being restored.
const NOTE: &str = "RESTORE";

/// Its name while it is written.
const NEW_NOTE: &str = "RESTORE.new";

/// The first line of that file.
const TITLE: &str = "An unfinished restore of a dump: run `plimsoll restore` again with the same \
                     dump and destination, or delete this folder.\n";

/// The folder of a restore, locked.
pub(super) struct Place {
    disk: Arc<dyn Disk>,
    dest: PathBuf,
    /// The temporary folder, which contains the store.
    around: PathBuf,
    /// The incomplete store.
    pub(super) store: PathBuf,
    /// Whether an interrupted restore has left a part of this dump.
    pub(super) is_resumed: bool,
    lock: Box<dyn DirLock>,
}

impl Place {
    /// Finds or creates the temporary folder for a restore of a dump. Removes the remains of an
    /// interrupted restore of another dump.
    pub(super) fn take(dest: &Path, options: &Options, header: &Header) -> Result<Self> {
        let disk = Arc::clone(&options.disk);
        let exists = || InvalidInput::DestinationExists { path: dest.to_owned() };
        let mut dest = dest.to_owned();
        if let Some(entry) = disk.entry(&dest)? {
            if !entry.is_dir || !disk.names(&dest)?.is_empty() {
                return Err(exists().into());
            }
            dest = disk.resolve(&dest)?;
        }
        let mut name = dest.file_name().ok_or_else(exists)?.to_owned();
        name.push(format!("{NEW_FOLDER_MARK}restore"));
        let around = dest.with_file_name(name);
        if disk.entry(&around)?.is_none() {
            disk.create_dir(&around)?;
            disk.sync_dir(parent_of(&disk.resolve(&around)?))?;
        }
        let lock = lock_alone(&around, options)?;
        let store = around.join("store");
        let mut place = Self { disk, dest, around, store, is_resumed: false, lock };
        let (note, found) = (note_of(header), place.read_note()?);
        if found.is_none() && place.disk.entry(&place.store)?.is_some() {
            // No restore has created this folder, because a restore writes the note before the
            // store.
            return Err(InvalidInput::DestinationExists { path: place.around.clone() }.into());
        }
        place.is_resumed = found.is_some_and(|found| found == note);
        if !place.is_resumed {
            place.clear_store()?;
            place.write_note(&note)?;
        }
        Ok(place)
    }

    fn read_note(&self) -> Result<Option<Vec<u8>>> {
        let path = self.around.join(NOTE);
        let Some(entry) = self.disk.entry(&path)? else { return Ok(None) };
        let mut bytes = vec![0; entry.len.min(4 << 10) as usize];
        self.disk.open(&path, Open::Read, Caching::Buffered)?.read_exact_at(&mut bytes, 0)?;
        Ok(Some(bytes))
    }

    fn write_note(&self, note: &[u8]) -> Result<()> {
        let (path, new) = (self.around.join(NOTE), self.around.join(NEW_NOTE));
        if self.disk.entry(&new)?.is_some() {
            self.disk.remove(&new)?;
        }
        let file = self.disk.open(&new, Open::CreateNew, Caching::Buffered)?;
        file.write_at(note, 0)?;
        file.sync()?;
        self.disk.rename(&new, &path)?;
        Ok(self.disk.sync_dir(&self.around)?)
    }

    /// Removes the incomplete store.
    pub(super) fn clear_store(&self) -> Result<()> {
        remove_folder(&*self.disk, &self.store)?;
        Ok(self.disk.sync_dir(&self.around)?)
    }

    /// Renames the store to its destination.
    pub(super) fn finish(self) -> Result<()> {
        if self.disk.entry(&self.dest)?.is_some() {
            self.disk.remove_dir(&self.dest)?;
        }
        self.disk.rename(&self.store, &self.dest)?;
        self.disk.sync_dir(parent_of(&self.disk.resolve(&self.dest)?))?;
        drop(self.lock);
        // The store is complete; a leftover temporary folder is harmless.
        let _ = remove_folder(&*self.disk, &self.around);
        Ok(())
    }
}

/// The contents of the note. A restore continues an interrupted one only if their notes are equal.
fn note_of(header: &Header) -> Vec<u8> {
    let mut note = TITLE.as_bytes().to_vec();
    let (kind, dump) = match header.content {
        Content::Newest => (0, header.dump),
        // A restore can continue with another dump of the same history.
        Content::History => (1, 0),
    };
    note.push(kind);
    note.extend_from_slice(&header.store.to_le_bytes());
    note.extend_from_slice(&dump.to_le_bytes());
    note.extend_from_slice(&header.first.0.to_le_bytes());
    push_bytes(&mut note, header.keyspace.as_bytes());
    note
}
