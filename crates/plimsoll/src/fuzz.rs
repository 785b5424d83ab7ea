//! Entry points for the fuzzers (`fuzz/`): each passes arbitrary bytes to a decoder of data from
//! disk. Not part of the public API.
//!
//! Invariant: no entry point panics, and none allocates more than a small multiple of its input's
//! length. Checksums that would only stop a fuzzer are recomputed here.

pub mod reseal;
pub mod store;

use std::io;
use std::ops::ControlFlow;
use std::path::Path;

use plimsoll_disk::checksum::checksum;
use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::vfs::{Caching, Disk, Open};
use plimsoll_log::glsn::Glsn;

use crate::index::manifest::Manifest;
use crate::index::manifest::names::manifest_name;
use crate::index::run::ends::{check_blobs, check_footer, check_header};
use crate::index::run::guide::check_guide;
use crate::index::run::inner::check_inner;
use crate::index::run::leaf::check::check_leaf;
use crate::index::run::leaf::{Leaf, SeekResult, Stepped};
use crate::txn::payload::{Payload, Writes};

/// Bytes of a manifest's head, and of the blocks that its checksum covers
/// (`docs/reference/format.md`).
const MANIFEST_HEAD_BYTES: usize = 56;
const MANIFEST_BLOCK_BYTES: usize = 16 << 10;

/// Decodes the payload of a run page, as every kind of page.
pub fn run_page(payload: &[u8]) {
    // Search for a key that is likely to occur in the page.
    let key = payload.get(16..).map_or(payload, |rest| &rest[..rest.len().min(12)]);
    for fixed in [None, Some(Glsn(7))] {
        let checked = check_leaf(payload, fixed, |_, _, _| {});
        let walked = walk_leaf(payload, fixed, key);
        assert!(checked.is_err() || walked.is_some(), "a leaf that was checked can be walked");
    }
    if let Ok(guide) = check_guide(payload) {
        let _ = guide.may_contain(checksum(0, key) as u32);
        let found = guide.find(key, Glsn(5));
        assert!(found.is_none_or(|leaf| {
            (guide.first_leaf()..guide.first_leaf() + guide.leaves()).contains(&leaf)
        }));
    }
    if let Ok(inner) = check_inner(payload) {
        let _ = inner.find(key, Glsn(5));
        assert!((0..inner.children()).all(|number| inner.child(number).is_some()));
    }
    let _ = check_header(payload);
    let _ = check_footer(payload);
    let _ = check_blobs(payload, |_| {});
}

/// Seeks in a leaf and scans it from there; `None` if it is damaged.
fn walk_leaf(payload: &[u8], fixed: Option<Glsn>, wanted: &[u8]) -> Option<()> {
    let leaf = Leaf::new(payload, fixed)?;
    let mut key = Vec::new();
    if let Some(SeekResult::At(spot, _)) = leaf.seek(wanted, Glsn(3)) {
        let _ = leaf.found_key(&spot, wanted, &mut key);
    }
    let mut spot = leaf.spot(0, &mut key)?;
    loop {
        leaf.stored(&spot.entry)?;
        if leaf.step(&mut spot, &mut key)? == Stepped::AtEnd {
            return Some(());
        }
    }
}

/// Decodes a manifest with this body; its head and checksum are made valid.
pub fn manifest(body: &[u8]) {
    let (disk, dir) = (MemDisk::new(), Path::new(""));
    if place_manifest(&disk, body).is_err() {
        return;
    }
    let Ok(Some(manifest)) = Manifest::read(&disk, dir) else { return };
    // A manifest that can be read can be written, and reads back equal.
    let disk = MemDisk::new();
    assert_eq!(manifest.write(&disk, dir), Ok(()));
    assert_eq!(Manifest::read(&disk, dir), Ok(Some(manifest)));
}

fn place_manifest(disk: &MemDisk, body: &[u8]) -> io::Result<()> {
    let empty = MemDisk::new();
    Manifest::empty(1)
        .write(&empty, Path::new(""))
        .map_err(|error| io::Error::other(error.to_string()))?;
    let mut bytes = vec![0; MANIFEST_HEAD_BYTES];
    empty
        .open(Path::new(&manifest_name(0)), Open::Read, Caching::Buffered)?
        .read_exact_at(&mut bytes, 0)?;
    // A manifest's file name contains the number that it begins with.
    let number = body.first_chunk().map_or(0, |number| u64::from_le_bytes(*number));
    let file = disk.open(Path::new(&manifest_name(number)), Open::CreateNew, Caching::Buffered)?;
    bytes.extend_from_slice(body);
    let sum = bytes.chunks(MANIFEST_BLOCK_BYTES).fold(0, checksum);
    bytes.extend_from_slice(&sum.to_le_bytes());
    file.write_at(&bytes, 0)
}

/// Decodes the payload of a transaction's entry.
pub fn payload(bytes: &[u8]) {
    let Ok(payload) = Payload::decode(bytes) else { return };
    assert!(payload.metadata.len() <= bytes.len());
    if let Writes::Operations(mut operations) = payload.writes {
        let mut step = || match operations.next() {
            Ok(Some(operation)) => {
                assert!(operation.key.len() >= 4);
                ControlFlow::Continue(())
            }
            _ => ControlFlow::Break(()),
        };
        while step().is_continue() {}
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_disk::random::Random;

    use super::*;

    #[test]
    fn a_written_manifest_is_decoded() {
        let (disk, dir) = (MemDisk::new(), Path::new(""));
        Manifest::empty(1).write(&disk, dir).unwrap();
        let file = disk.open(Path::new(&manifest_name(0)), Open::Read, Caching::Buffered).unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let other = MemDisk::new();
        place_manifest(&other, &bytes[MANIFEST_HEAD_BYTES..bytes.len() - 8]).unwrap();
        assert_eq!(Manifest::read(&other, dir), Ok(Some(Manifest::empty(1))));
    }

    #[test]
    fn any_bytes_may_be_decoded() {
        let mut random = Random::new(1);
        for round in 0..3000 {
            let small = random.chance(0.7);
            let byte = |random: &mut Random| {
                if small { random.below(4) as u8 } else { random.next_u64() as u8 }
            };
            let bytes: Vec<u8> = (0..round % 300).map(|_| byte(&mut random)).collect();
            run_page(&bytes);
            manifest(&bytes);
            payload(&bytes);
        }
    }
}
