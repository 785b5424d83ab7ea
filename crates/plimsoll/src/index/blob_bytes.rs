//! Reads values from blob files of plain bytes.

use plimsoll_log::blob::{BLOB_DROPPED_PAGE, BlobId};
use plimsoll_log::file_log::FileLog;
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::page::{PAGE_PAYLOAD_BYTES, page_kind, page_payload};
use plimsoll_memory::pool::Touch;

use crate::types::error::{Error, Lift, Result};

/// Fills `into` with the bytes of a blob file from `offset` on, for the version at `glsn`. Returns
/// whether some page had to be read from disk.
pub(crate) fn read(
    log: &FileLog,
    glsn: Glsn,
    blob: BlobId,
    offset: u64,
    into: &mut [u8],
) -> Result<bool> {
    let file = log.open_blob(blob).lift()?.file;
    // A long value is read once, sequentially, so it must not evict hot pages.
    let touch = if into.len() > 4 * PAGE_PAYLOAD_BYTES { Touch::Scan } else { Touch::Point };
    let (mut at, mut filled, mut missed) = (offset, 0, false);
    while filled < into.len() {
        let number = u32::try_from(at / PAGE_PAYLOAD_BYTES as u64).map_err(|_| short_blob(blob))?;
        let page = file.get(number, touch).map_err(|error| {
            Error::of_load(error).in_file(|| format!("log/{}", blob.file_name()))
        })?;
        missed |= page.is_miss();
        if page_kind(&page) == BLOB_DROPPED_PAGE {
            return Err(Error::Dropped { glsn });
        }
        let bytes = page_payload(&page)
            .get((at % PAGE_PAYLOAD_BYTES as u64) as usize..)
            .unwrap_or_default();
        let fits = bytes.len().min(into.len() - filled);
        if fits == 0 {
            return Err(short_blob(blob));
        }
        into[filled..filled + fits].copy_from_slice(&bytes[..fits]);
        filled += fits;
        at += fits as u64;
    }
    Ok(missed)
}

fn short_blob(blob: BlobId) -> Error {
    Error::damaged(format_args!("blob file {} ends before the end of a value in it", blob.0))
        .in_file(|| format!("log/{}", blob.file_name()))
}
