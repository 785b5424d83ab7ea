//! The header of every page in every file of pages.
//!
//! ```text
//! 0        8     9    10      12        16
//! | checksum | kind | codec | reserved | length | payload ...            | zeros | 16384
//! ```
//!
//! `checksum` covers bytes 8 to 16384 and is seeded with the file's seed and the page's number, so
//! that a misplaced page fails the check. `length` counts the payload's bytes. `codec` and
//! `reserved` are 0 in format 1.

use plimsoll_disk::checksum::{checksum, seed};

/// Bytes of a page, and of a frame of the pool.
pub const PAGE_BYTES: usize = 16 * 1024;

/// Bytes of a page's header.
pub const PAGE_HEADER_BYTES: usize = 16;

/// Payload bytes of a page.
pub const PAGE_PAYLOAD_BYTES: usize = PAGE_BYTES - PAGE_HEADER_BYTES;

/// Fills in the header of a page whose payload is already in place, and zeroes the rest.
pub fn seal_page(page: &mut [u8], file_seed: u64, number: u32, kind: u8, payload_bytes: usize) {
    assert_eq!(page.len(), PAGE_BYTES);
    assert!(payload_bytes <= PAGE_PAYLOAD_BYTES);
    page[PAGE_HEADER_BYTES + payload_bytes..].fill(0);
    page[8] = kind;
    page[9..12].fill(0);
    page[12..16].copy_from_slice(&(payload_bytes as u32).to_le_bytes());
    let sum = checksum(seed(&[file_seed, u64::from(number)]), &page[8..]);
    page[..8].copy_from_slice(&sum.to_le_bytes());
}

/// Checks a page read from disk. The error describes the damage.
pub fn check_page(page: &[u8], file_seed: u64, number: u32) -> Result<(), &'static str> {
    if page.len() != PAGE_BYTES {
        return Err("the page is truncated");
    }
    let sum = checksum(seed(&[file_seed, u64::from(number)]), &page[8..]);
    if page[..8] != sum.to_le_bytes() {
        return Err("the page's checksum does not match its bytes and place");
    }
    if page_payload_bytes(page) > PAGE_PAYLOAD_BYTES {
        return Err("the payload length exceeds the page");
    }
    if page[9] != 0 {
        return Err("the page uses a codec that this version does not support");
    }
    Ok(())
}

/// The kind byte of a page.
pub fn page_kind(page: &[u8]) -> u8 {
    page[8]
}

/// The payload of a checked page.
pub fn page_payload(page: &[u8]) -> &[u8] {
    &page[PAGE_HEADER_BYTES..PAGE_HEADER_BYTES + page_payload_bytes(page)]
}

fn page_payload_bytes(page: &[u8]) -> usize {
    u32::from_le_bytes([page[12], page[13], page[14], page[15]]) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_page_rejects_changed_or_misplaced_pages() {
        let mut page = vec![7; PAGE_BYTES];
        seal_page(&mut page, 1, 2, 3, 100);
        assert_eq!(check_page(&page, 1, 2), Ok(()));
        assert_eq!((page_kind(&page), page_payload(&page)), (3, &[7u8; 100][..]));
        assert!(check_page(&page, 1, 3).is_err());
        assert!(check_page(&page, 2, 2).is_err());
        for at in (0..PAGE_BYTES).step_by(61) {
            page[at] ^= 1;
            assert!(check_page(&page, 1, 2).is_err(), "byte {at}");
            page[at] ^= 1;
        }
    }
}
