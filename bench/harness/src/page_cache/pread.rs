//! A file in the system's page cache, read by `pread`: only the requested word, which is less than
//! any store would read.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::Result;
use plimsoll_memory::page::PAGE_BYTES;

use super::{PageCache, fill};

pub(super) struct Pread {
    file: File,
}

impl Pread {
    pub(super) fn make(pages: u32, folder: &Path) -> Result<Self> {
        let path = folder.join("pages");
        let file = File::create_new(&path)?;
        let mut bytes = vec![0; PAGE_BYTES];
        for page in 0..pages {
            fill(page, &mut bytes);
            file.write_all_at(&bytes, u64::from(page) * PAGE_BYTES as u64)?;
        }
        Ok(Self { file: File::open(path)? })
    }
}

impl PageCache for Pread {
    fn name(&self) -> &'static str {
        "pread"
    }

    fn read(&self, page: u32, word: usize) -> u64 {
        let mut bytes = [0; 8];
        let at = u64::from(page) * PAGE_BYTES as u64 + word as u64 * 8;
        self.file.read_exact_at(&mut bytes, at).expect("the file was just written");
        u64::from_le_bytes(bytes)
    }
}
