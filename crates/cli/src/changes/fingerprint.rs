//! A fingerprint of a store's files: their names, lengths and times.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

/// The state of a folder. If two fingerprints are equal, the file system reports no write between
/// them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Fingerprint {
    files: u64,
    bytes: u64,
    newest: Option<SystemTime>,
}

impl Fingerprint {
    /// Reads a folder and its subfolders. Unreadable entries are ignored, because opening the store
    /// reports the error.
    pub(super) fn of(folder: &Path) -> Self {
        let mut fingerprint = Self::default();
        fingerprint.add(folder);
        fingerprint
    }

    fn add(&mut self, folder: &Path) {
        let Ok(entries) = fs::read_dir(folder) else { return };
        for entry in entries.flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_dir() {
                self.add(&entry.path());
            } else {
                self.files += 1;
                self.bytes += metadata.len();
                self.newest = self.newest.max(metadata.modified().ok());
            }
        }
    }
}
