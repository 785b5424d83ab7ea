//! Reads the pages of a blob file, for `verify`.

use std::ops::Range;

use plimsoll_disk::vfs::File;
use plimsoll_memory::page::{PAGE_BYTES, check_page, page_kind, page_payload};

use crate::blob::{BLOB_BYTES_PAGE, BLOB_DROPPED_PAGE, BlobId, BlobRef};
use crate::error::LogError;
use crate::format::blob_seed;
use crate::format::blob_trailer::{BLOB_TRAILER_PAGE, BlobTrailer, extend_blob_hash};
use crate::glsn::Glsn;

/// After this many consecutive pages of zeros (4 MiB), a blob file without a trailer is not read
/// any further.
const ZERO_PAGES_MAX: u64 = 256;

/// A blob file as read.
pub(crate) struct BlobFile {
    /// Pages that an earlier recovery could not read.
    pub(crate) dropped: u32,
    pub(crate) damage: Option<UnsoundBlob>,
}

/// A damaged blob file.
pub(crate) struct UnsoundBlob {
    pub(crate) id: BlobId,
    pub(crate) offset: u64,
    pub(crate) what: &'static str,
    /// Pages that are damaged.
    pub(crate) pages: Vec<Range<u32>>,
    pub(crate) is_plain: Option<bool>,
    /// A record that names it.
    pub(crate) named_by: Option<(Glsn, BlobRef)>,
}

/// Reads a blob file of this log page by page, and passes the bytes that were read to `advance`.
pub(crate) fn read_blob_file(
    file: &dyn File,
    (log_id, id): (u128, BlobId),
    page: &mut [u8],
    advance: &mut dyn FnMut(u64),
) -> Result<BlobFile, LogError> {
    let pages = file.len()? / PAGE_BYTES as u64;
    let ends_well = pages > 0 && ends_with_trailer(file, (log_id, id), pages - 1, page)?;
    let (mut hash, mut bad, mut dropped, mut is_plain) = (0, BadPages::default(), 0u32, None);
    // The file's end is lost unless the last readable page is a trailer.
    let mut lost_from = Some(0);
    let mut zero_pages = 0;
    for number in 0..pages {
        let place = number * PAGE_BYTES as u64;
        let n = file.read_at(page, place)?;
        let last = number + 1 == pages;
        zero_pages = if page[..n].iter().all(|byte| *byte == 0) { zero_pages + 1 } else { 0 };
        if !ends_well && zero_pages > ZERO_PAGES_MAX {
            // The file was extended, or its end is lost, so its length does not state how much
            // there is to read.
            advance((pages - number) * PAGE_BYTES as u64);
            break;
        }
        if !last && is_trailer(page, (log_id, id), number) {
            let what = "the blob file continues after its last page; if that is the only \
                        damage, truncate the file there";
            bad.add(number as u32 + 1, what, false);
            lost_from = None;
            advance((pages - number) * PAGE_BYTES as u64);
            break;
        }
        if let Err(what) = check_page(&page[..n], blob_seed(log_id, id.0), number as u32) {
            bad.add(number as u32, what, !last);
            lost_from = Some(number as u32);
        } else if last {
            lost_from = (page_kind(page) != BLOB_TRAILER_PAGE).then_some(number as u32 + 1);
            let expected = BlobTrailer { log_id, blob: BlobRef { id, pages: number as u32, hash } };
            let fits = |trailer: BlobTrailer| {
                // Dropped pages have no known hash.
                let hash = if dropped > 0 { trailer.blob.hash } else { hash };
                trailer == BlobTrailer { blob: BlobRef { hash, ..expected.blob }, ..expected }
            };
            let trailer = BlobTrailer::decode(page_payload(page));
            if bad.what.is_none()
                && (page_kind(page) != BLOB_TRAILER_PAGE || !trailer.is_ok_and(fits))
            {
                bad.add(
                    number as u32,
                    "the blob file's last page does not match the others",
                    false,
                );
            }
        } else {
            dropped += u32::from(page_kind(page) == BLOB_DROPPED_PAGE);
            is_plain =
                is_plain.or(Some(matches!(page_kind(page), BLOB_BYTES_PAGE | BLOB_DROPPED_PAGE)));
            hash = extend_blob_hash(hash, page);
        }
        advance(PAGE_BYTES as u64);
    }
    if pages == 0 {
        bad.add(0, "the blob file was never finished", false);
    }
    if let Some(from) = lost_from {
        bad.add_rest(from);
    }
    let damage = bad.what.map(|(first, what)| UnsoundBlob {
        id,
        offset: u64::from(first) * PAGE_BYTES as u64,
        what,
        pages: bad.pages,
        is_plain,
        named_by: None,
    });
    Ok(BlobFile { dropped, damage })
}

/// Whether the last page of a blob file, `number`, is its trailer.
fn ends_with_trailer(
    file: &dyn File,
    whose: (u128, BlobId),
    number: u64,
    page: &mut [u8],
) -> Result<bool, LogError> {
    let n = file.read_at(page, number * PAGE_BYTES as u64)?;
    Ok(is_trailer(&page[..n], whose, number))
}

/// Whether a page is the trailer of this log's blob file and says that it is page `number`.
fn is_trailer(page: &[u8], (log_id, id): (u128, BlobId), number: u64) -> bool {
    let Ok(number) = u32::try_from(number) else { return false };
    page.len() == PAGE_BYTES
        && page_kind(page) == BLOB_TRAILER_PAGE
        && check_page(page, blob_seed(log_id, id.0), number).is_ok()
        && BlobTrailer::decode(page_payload(page))
            .is_ok_and(|trailer| trailer.blob.id == id && trailer.blob.pages == number)
}

/// Pages of a blob file that are damaged.
#[derive(Default)]
struct BadPages {
    /// The first damaged page, and its damage.
    what: Option<(u32, &'static str)>,
    pages: Vec<Range<u32>>,
}

impl BadPages {
    fn add(&mut self, number: u32, what: &'static str, holds_values: bool) {
        self.what.get_or_insert((number, what));
        match self.pages.last_mut() {
            _ if !holds_values => {}
            Some(range) if range.end == number => range.end += 1,
            _ => self.pages.push(number..number + 1),
        }
    }

    /// Adds all pages from `number` on, because the file may have had any number of them.
    fn add_rest(&mut self, number: u32) {
        match self.pages.last_mut() {
            Some(range) if range.end >= number => range.end = u32::MAX,
            _ => self.pages.push(number..u32::MAX),
        }
    }
}
