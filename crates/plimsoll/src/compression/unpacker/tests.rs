//! Tests of compressed values against their plain bytes: sizes around chunks, damage, memory.

use plimsoll_disk::random::Random;
use plimsoll_log::blob::BlobId;
use plimsoll_memory::budget::Backing;

use crate::compression::packer::{Bytes, Written, pack};
use crate::types::compression::{Codec, Compression};

use super::*;

const CHUNK: usize = VALUE_CHUNK_BYTES;

fn budget() -> Budget {
    Budget::new(16 << 20, Backing::Heap).unwrap()
}

fn compressible(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| b"plimsoll"[i % 8] ^ (i / 1000) as u8).collect()
}

fn random(bytes: usize) -> Vec<u8> {
    let mut random = Random::new(7);
    (0..bytes).map(|_| random.below(256) as u8).collect()
}

/// Compresses a value that arrives in pieces.
fn written(budget: &Budget, value: &[u8], piece_bytes: usize) -> (Vec<u8>, Written) {
    let (mut stored, mut bytes) = (Vec::new(), Bytes::begin(budget, Compression::Lz4));
    let mut out = |bytes: &[u8]| {
        stored.extend_from_slice(bytes);
        Ok(())
    };
    value.chunks(piece_bytes).for_each(|piece| bytes.write(piece, &mut out).unwrap());
    let written = bytes.finish(&mut out).unwrap();
    assert_eq!((written.len, written.sum), (stored.len() as u64, value_sum(&stored)));
    (stored, written)
}

fn place(Written { len, sum, packed }: Written) -> (Stored<'static>, Packed) {
    let stored = Stored::InBlob { blob: BlobId(1), offset: 0, len, sum, packed };
    (stored, packed.unwrap())
}

fn read(budget: &Budget, bytes: &[u8], written: Written) -> Result<Vec<u8>> {
    let (stored, packed) = place(written);
    let mut value = vec![0; packed.value_bytes as usize];
    let fetch = &mut |at, into: &mut [u8]| {
        into.copy_from_slice(&bytes[at as usize..at as usize + into.len()]);
        Ok(())
    };
    unpack(budget, Glsn(1), (stored, packed), &mut value, fetch)?;
    Ok(value)
}

#[test]
fn values_of_any_length_and_in_any_pieces_come_back() {
    let budget = budget();
    for bytes in [1025, 5000, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 5 * CHUNK + 77] {
        let value = compressible(bytes);
        let all = written(&budget, &value, bytes);
        assert!(all.0.len() < bytes / 2, "{} of {bytes}", all.0.len());
        for piece_bytes in [999, CHUNK, CHUNK + 5] {
            assert_eq!(written(&budget, &value, piece_bytes), all);
        }
        assert_eq!(read(&budget, &all.0, all.1), Ok(value.clone()));
        let (stored, packed) = pack(&budget, Compression::Lz4, &value).unwrap();
        assert_eq!((&stored[..], Some(packed)), (&all.0[..], all.1.packed));
    }
    assert_eq!(budget.usage().of(Kind::Staging), 0);
}

#[test]
fn a_value_is_stored_as_it_is_unless_an_eighth_is_saved() {
    let budget = budget();
    for bytes in [1025, CHUNK, 3 * CHUNK + 5] {
        let value = random(bytes);
        let (stored, written) = written(&budget, &value, 1000);
        assert_eq!((stored == value, written.packed), (true, None));
        assert!(pack(&budget, Compression::Lz4, &value).is_none());
    }
    assert!(pack(&budget, Compression::None, &compressible(5000)).is_none());
    let mixed = [&random(2 * CHUNK)[..], &compressible(CHUNK), &random(100)].concat();
    let (stored, written) = written(&budget, &mixed, 1000);
    assert!(written.packed.is_some());
    assert_eq!(read(&budget, &stored, written), Ok(mixed));
}

#[test]
fn every_flipped_byte_is_found() {
    let budget = budget();
    for bytes in [2000, 2 * CHUNK + 300] {
        let (stored, written) = written(&budget, &compressible(bytes), bytes);
        for at in 0..stored.len() {
            let mut damaged = stored.clone();
            damaged[at] ^= 1 << (at % 8);
            let read = read(&budget, &damaged, written);
            assert!(matches!(read, Err(Error::Corrupt { .. })), "byte {at} of {bytes}");
        }
    }
}

#[test]
fn a_chunk_of_another_place_or_of_another_value_is_refused() {
    let budget = budget();
    let [one, other] = [0, 1].map(|n| [compressible(CHUNK), vec![n; CHUNK]].concat());
    let (one, other) = (written(&budget, &one, CHUNK), written(&budget, &other, CHUNK));
    assert_eq!(one.0.len(), other.0.len(), "they are as long");
    assert!(matches!(read(&budget, &other.0, one.1), Err(Error::Corrupt { .. })));
    let twice = compressible(8).repeat(CHUNK / 4);
    let (mut stored, written) = written(&budget, &twice, CHUNK);
    let entry = |number: usize| number * DIRECTORY_ENTRY_BYTES + 4;
    let directory = stored.len() - 2 * DIRECTORY_ENTRY_BYTES - DIRECTORY_SUM_BYTES;
    assert_ne!(
        stored[directory + entry(0)..][..8],
        stored[directory + entry(1)..][..8],
        "equal chunks have checksums of their place"
    );
    let half = directory / 2;
    stored.copy_within(half..directory, 0);
    assert!(read(&budget, &stored, written).is_ok(), "the chunks are equal");
}

#[test]
fn a_length_that_differs_from_the_chunks_is_refused() {
    let budget = budget();
    let (stored, written) = written(&budget, &compressible(3 * CHUNK), CHUNK);
    for value_bytes in [3 * CHUNK as u64 + 1, 3 * CHUNK as u64 - 1, 40 * CHUNK as u64] {
        let packed = Some(Packed { codec: Codec::Lz4, value_bytes });
        let forged = Written { packed, ..written };
        assert!(matches!(read(&budget, &stored, forged), Err(Error::Corrupt { .. })));
    }
    let (stored, written) = self::written(&budget, &compressible(5000), 5000);
    for value_bytes in [4999, 5001] {
        let forged = Written { packed: Some(Packed { codec: Codec::Lz4, value_bytes }), ..written };
        assert!(matches!(read(&budget, &stored, forged), Err(Error::Corrupt { .. })));
    }
}

#[test]
fn without_memory_a_value_is_stored_as_it_is() {
    let budget = budget();
    let value = compressible(2 * CHUNK);
    let _rest = budget.lease(Kind::Sort, budget.free_bytes()).unwrap();
    assert!(pack(&budget, Compression::Lz4, &value).is_none());
    assert_eq!(written(&budget, &value, CHUNK).1.packed, None);
}
