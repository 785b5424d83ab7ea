//! The bytes of a file in memory: pages of 4 KiB, shared copy-on-write between clones.
//!
//! A page that was never written takes no memory and reads as zeros. All pages written with zeros
//! share one page, so that a zeroed file costs little. Invariant: bytes at and beyond the length
//! are zero.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

/// Bytes of a page.
pub(crate) const PAGE_BYTES: u64 = 4096;

type Page = [u8; PAGE_BYTES as usize];

static ZEROS: LazyLock<Arc<Page>> = LazyLock::new(|| Arc::new([0; PAGE_BYTES as usize]));

/// A file's bytes. A clone shares its pages.
#[derive(Clone, Default)]
pub(crate) struct Image {
    len: u64,
    pages: BTreeMap<u64, Arc<Page>>,
}

/// The end of `len` bytes at `offset`; an error beyond the sizes that file systems support.
pub(crate) fn end_of(offset: u64, len: u64) -> io::Result<u64> {
    offset
        .checked_add(len)
        .filter(|end| i64::try_from(*end).is_ok())
        .ok_or(io::ErrorKind::FileTooLarge.into())
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes in {} pages", self.len, self.pages.len())
    }
}

impl Image {
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    #[cfg(test)]
    pub(crate) fn to_vec(&self) -> Vec<u8> {
        let mut all = vec![0xee; self.len as usize];
        assert_eq!(self.read(&mut all, 0), all.len());
        all
    }

    /// Number of pages written.
    pub(crate) fn page_count(&self) -> u64 {
        self.pages.len() as u64
    }

    /// The length of the prefix of `len` bytes at `offset` that can be written with at most `spare`
    /// new pages.
    pub(crate) fn fitting(&self, offset: u64, len: usize, spare: u64) -> usize {
        let missing = parts(offset, len).filter(|(page, ..)| !self.pages.contains_key(page));
        missing
            .map(|(.., part)| part.start)
            .nth(usize::try_from(spare).unwrap_or(usize::MAX))
            .unwrap_or(len)
    }

    pub(crate) fn read(&self, buf: &mut [u8], offset: u64) -> usize {
        let n = self.len.saturating_sub(offset).min(buf.len() as u64) as usize;
        for (page, within, part) in parts(offset, n) {
            let out = &mut buf[part];
            match self.pages.get(&page) {
                Some(bytes) => out.copy_from_slice(&bytes[within..within + out.len()]),
                None => out.fill(0),
            }
        }
        n
    }

    /// Writes bytes whose range [`end_of`] has accepted.
    pub(crate) fn write(&mut self, bytes: &[u8], offset: u64) {
        for (page, within, part) in parts(offset, bytes.len()) {
            let bytes = &bytes[part];
            if bytes == &ZEROS[..] {
                self.pages.insert(page, ZEROS.clone());
            } else {
                let target = Arc::make_mut(self.pages.entry(page).or_insert_with(|| ZEROS.clone()));
                target[within..within + bytes.len()].copy_from_slice(bytes);
            }
        }
        if !bytes.is_empty() {
            self.len = self.len.max(offset + bytes.len() as u64);
        }
    }

    /// Sets the length; added bytes are zeros that take no page.
    pub(crate) fn set_len(&mut self, len: u64) {
        if len < self.len {
            self.pages.split_off(&len.div_ceil(PAGE_BYTES));
            let within = (len % PAGE_BYTES) as usize;
            if let Some(last) = self.pages.get_mut(&(len / PAGE_BYTES)).filter(|_| within > 0) {
                Arc::make_mut(last)[within..].fill(0);
            }
        }
        self.len = len;
    }
}

/// Splits `len` bytes at `offset` at page boundaries: page number, offset within the page, range
/// within the bytes.
fn parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let within = (at % PAGE_BYTES) as usize;
        let part = done..len.min(done + PAGE_BYTES as usize - within);
        done = part.end;
        (!part.is_empty()).then_some((at / PAGE_BYTES, within, part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_matches_a_vector() {
        let mut image = Image::default();
        let mut vector = Vec::new();
        let mut random = crate::random::Random::new(7);
        for step in 0..500 {
            let offset = random.below(20_000) as usize;
            if random.chance(0.1) {
                image.set_len(offset as u64);
                vector.resize(offset, 0);
            } else {
                let bytes = vec![(step % 3) as u8; random.below(9000) as usize];
                image.write(&bytes, offset as u64);
                if !bytes.is_empty() {
                    vector.resize(vector.len().max(offset + bytes.len()), 0);
                    vector[offset..offset + bytes.len()].copy_from_slice(&bytes);
                }
            }
            assert_eq!(image.to_vec(), vector, "step {step}");
        }
    }

    #[test]
    fn clone_does_not_see_later_writes() {
        let mut image = Image::default();
        image.write(b"before", 4090);
        let copy = image.clone();
        image.write(b"behind", 4090);
        assert_eq!(&copy.to_vec()[4090..], b"before");
        assert_eq!(&image.to_vec()[4090..], b"behind");
    }

    #[test]
    fn only_written_pages_are_counted() {
        let mut image = Image::default();
        image.set_len(1 << 40);
        assert_eq!(image.page_count(), 0);
        image.write(&[0; 8192], 0);
        assert_eq!(image.page_count(), 2);
        image.set_len(1);
        assert_eq!(image.page_count(), 1);
    }

    #[test]
    fn fitting_counts_only_new_pages() {
        let mut image = Image::default();
        image.write(&[1; 4096], 4096);
        assert_eq!(image.fitting(0, 12288, 2), 12288);
        assert_eq!(image.fitting(0, 12288, 1), 8192);
        assert_eq!(image.fitting(0, 12288, 0), 0);
        assert_eq!(image.fitting(5000, 9000, 0), 8192 - 5000);
        assert_eq!(image.fitting(4096, 4096, 0), 4096);
    }

    #[test]
    fn end_beyond_supported_sizes_is_refused() {
        assert_eq!(end_of(i64::MAX as u64 - 1, 1).ok(), Some(i64::MAX as u64));
        assert!(end_of(i64::MAX as u64, 1).is_err());
        assert!(end_of(u64::MAX, 2).is_err());
    }
}
