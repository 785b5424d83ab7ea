//! Copies of whole blob files between logs of the same id: reads one, and writes one that another
//! log has written. A copy has the same id and the same bytes.

use std::io::{self, Read};
use std::sync::{Arc, Mutex};

use plimsoll_disk::vfs::File;
use plimsoll_memory::page::{PAGE_BYTES, check_page, page_kind, page_payload};

use crate::blob::{BlobId, BlobRef};
use crate::error::LogError;
use crate::file_log::blobs::blob_files::{Blobs, corrupt_blob};
use crate::file_log::env::lock;
use crate::file_log::files::aligned::AlignedBytes;
use crate::file_log::files::names::FileName;
use crate::file_log::files::rewrite::replace_file;
use crate::file_log::segments::list::Trimming;
use crate::format::blob_seed;
use crate::format::blob_trailer::{BLOB_TRAILER_PAGE, BlobTrailer, extend_blob_hash};

/// Bytes read or written at a time.
const PIECE_BYTES: usize = 4 * PAGE_BYTES;

/// Reads the bytes of a finished blob file, from its first page to the end of its trailer.
pub struct BlobFileReader {
    file: Arc<dyn File>,
    piece: AlignedBytes,
    /// Bytes of the piece that are not returned yet.
    left: std::ops::Range<usize>,
    at: u64,
    end: u64,
}

impl BlobFileReader {
    pub(crate) fn open(blobs: &Blobs, id: BlobId) -> Result<Self, LogError> {
        let trailer = blobs.read_trailer(id)?;
        let env = &blobs.env;
        Ok(Self {
            file: env.files.get(FileName::Blob(id), env.options.caching)?,
            piece: AlignedBytes::new(PIECE_BYTES, &env.options.budget)?,
            left: 0..0,
            at: 0,
            end: (u64::from(trailer.blob.pages) + 1) * PAGE_BYTES as u64,
        })
    }
}

impl Read for BlobFileReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.left.is_empty() {
            let bytes = (self.end - self.at).min(PIECE_BYTES as u64) as usize;
            self.file.read_exact_at(&mut self.piece.get_mut()[..bytes], self.at)?;
            self.at += bytes as u64;
            self.left = 0..bytes;
        }
        let bytes = self.left.len().min(into.len());
        into[..bytes].copy_from_slice(&self.piece.get()[self.left.start..][..bytes]);
        self.left.start += bytes;
        Ok(bytes)
    }
}

/// Writes a blob file that another log has written, durably. Fails unless the bytes are the file
/// that `blob` names.
/// `trimming` excludes sweeps.
pub(crate) fn copy(
    blobs: &Blobs,
    trimming: &Mutex<Trimming>,
    blob: BlobRef,
    bytes: &mut dyn Read,
) -> Result<(), LogError> {
    blobs.durability.group.check()?;
    blobs.durability.check_own()?;
    let (env, id) = (&blobs.env, blob.id);
    let mut piece = AlignedBytes::new(PAGE_BYTES, &env.options.budget)?;
    // If a file of that name exists, a process that was killed has left it, and no record names it.
    // Remove it.
    {
        let _no_sweep = lock(trimming);
        blobs.remove(id)?;
        blobs.registry.begin_copy(id);
    }
    let mut write = |file: &dyn File| {
        let mut hash = 0;
        for number in 0..=blob.pages {
            let place = u64::from(number) * PAGE_BYTES as u64;
            let page = piece.get_mut();
            bytes.read_exact(page)?;
            check_page(page, blob_seed(env.id, id.0), number)
                .map_err(|what| corrupt_blob(id, place, what))?;
            if number == blob.pages {
                check_trailer(env.id, blob, hash, page)?;
            }
            hash = extend_blob_hash(hash, page);
            file.write_at(page, place)?;
        }
        match bytes.read(&mut piece.get_mut()[..1])? {
            0 => Ok(()),
            _ => Err(corrupt_blob(id, 0, "bytes follow the end of the blob file")),
        }
    };
    let copied = replace_file(&*env.options.disk, &env.options.dir, FileName::Blob(id), &mut write);
    copied.inspect_err(|_| blobs.registry.forget(id))
}

/// Makes a blob file, and its name, durable.
pub(crate) fn sync(blobs: &Blobs, id: BlobId) -> Result<(), LogError> {
    blobs.durability.check_own()?;
    let env = &blobs.env;
    env.files.get(FileName::Blob(id), env.options.caching)?.sync()?;
    Ok(env.options.disk.sync_dir(&env.options.dir)?)
}

fn check_trailer(log_id: u128, blob: BlobRef, hash: u64, page: &[u8]) -> Result<(), LogError> {
    let found = BlobTrailer::decode(page_payload(page)).ok();
    if page_kind(page) == BLOB_TRAILER_PAGE
        && found == Some(BlobTrailer { log_id, blob })
        && hash == blob.hash
    {
        return Ok(());
    }
    let place = u64::from(blob.pages) * PAGE_BYTES as u64;
    Err(corrupt_blob(blob.id, place, "this is not the blob file that the record names"))
}
