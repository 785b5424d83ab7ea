//! Whether the files of a store have changed: their names, lengths and times.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

/// What a folder looked like. Equal fingerprints: nothing was written in between, as far as the
/// file system tells.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Fingerprint {
    files: u64,
    bytes: u64,
    newest: Option<SystemTime>,
}

impl Fingerprint {
    /// Looks at a folder and the folders in it. What cannot be read counts as nothing: opening the
    /// store will say why.
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
