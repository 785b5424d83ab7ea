//! Work that puts pressure on the memory limit: values of 2 MB, and many concurrent iterators and
//! transactions over keys of 4 KiB.
//!
//! Values are generated and compared in pieces, so that the process holds little memory besides its
//! store's.

use std::io::Read;
use std::ops::Bound;

use plimsoll::{Error, Range, Snapshot, Transaction};
use plimsoll_disk::random::Random;

use super::Shared;
use crate::failure::{Outcome, ensure};

/// Bytes of a large value.
const LARGE_BYTES: u64 = 2_000_000;

/// Keys that have one.
const LARGE_KEYS: u64 = 8;

/// Bytes compared at a time.
const PIECE_BYTES: usize = 16 << 10;

/// Bytes of a long key.
const LONG_KEY_BYTES: usize = 4096;

/// Number of long keys, and of concurrent iterators over them.
const LONG_KEYS: u64 = 2100;
const WALKS: u64 = 2000;

/// Long keys of a transaction.
const BATCH: u64 = 20;

/// Transactions open at once.
const TRANSACTIONS: u64 = 3000;

/// The first bytes of a key, which identify it.
type Head = [u8; 8];

/// An idle iterator, and the last key that it returned.
type HeldWalk<'t> = (Range<'t>, Head);

/// The memory of the thread that holds iterators or transactions. An open transaction is in the
/// program's own memory; a started iterator is charged to the budget.
pub(super) const HELD_BYTES_MAX: u64 = TRANSACTIONS * size_of::<Transaction>() as u64;

/// Generates bytes from a number and their offset.
struct Stream {
    number: u64,
    at: u64,
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let bytes =
            usize::try_from(LARGE_BYTES - self.at).map_or(into.len(), |left| left.min(into.len()));
        for byte in &mut into[..bytes] {
            *byte = match self.at {
                0..8 => self.number.to_le_bytes()[self.at as usize],
                at => {
                    (self.number.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(at / 5)
                        >> (at % 5 * 7)) as u8
                }
            };
            self.at += 1;
        }
        Ok(bytes)
    }
}

/// Writes a large value as a stream, and reads another the same way.
pub(super) fn large(shared: &Shared, _: u64, random: &mut Random) -> Outcome {
    let key = |random: &mut Random| format!("large/{}", random.below(LARGE_KEYS));
    let mut tx = shared.db.begin();
    let mut value = Stream { number: random.next_u64(), at: 0 };
    let written = tx.put_reader(&shared.crowd, key(random).as_bytes(), &mut value);
    let done = written.and_then(|_| tx.commit());
    shared.unless_refused("a large value", done)?;
    let snapshot = shared.db.snapshot();
    let key = key(random);
    let reader = shared.unless_refused(
        "a large value's reader",
        snapshot.get_reader(&shared.crowd, key.as_bytes()),
    )?;
    if let Some(Some(mut reader)) = reader {
        let read = compare(&mut reader).map_err(|error| match error.downcast::<Error>() {
            Ok(error) => error,
            Err(error) => {
                Error::Corrupt { file: None, glsn: None, message: format!("{key}: {error}") }
            }
        });
        if shared.unless_refused("a large value", read)?.is_some() {
            shared.count("large-values");
        }
    }
    shared.pause(random, 200);
    Ok(())
}

fn compare(value: &mut dyn Read) -> std::io::Result<()> {
    let mut number = [0; 8];
    value.read_exact(&mut number)?;
    let mut expected = Stream { number: u64::from_le_bytes(number), at: 8 };
    let (mut got, mut want) = (vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]);
    loop {
        let bytes = expected.read(&mut want)?;
        value.read_exact(&mut got[..bytes])?;
        if got[..bytes] != want[..bytes] {
            return Err(std::io::Error::other(format!("it differs before byte {}", expected.at)));
        }
        if bytes == 0 {
            return Ok(());
        }
    }
}

fn long_key(number: u64) -> Vec<u8> {
    let mut key = vec![b'~'; LONG_KEY_BYTES];
    key[..8].copy_from_slice(&number.to_be_bytes());
    key
}

/// Begins many iterators over long keys, leaves them idle, and advances each once more; or opens
/// many transactions at once.
pub(super) fn hold(shared: &Shared, _: u64, random: &mut Random) -> Outcome {
    if random.chance(0.5) { hold_walks(shared, random) } else { hold_transactions(shared, random) }
}

fn hold_walks(shared: &Shared, random: &mut Random) -> Outcome {
    for first in (0..LONG_KEYS).step_by(BATCH as usize) {
        let mut tx = shared.db.begin();
        let mut numbers = first..(first + BATCH).min(LONG_KEYS);
        let put = numbers
            .try_for_each(|number| tx.put(&shared.crowd, &long_key(number), &number.to_le_bytes()));
        shared.unless_refused("long keys", put.and_then(|()| tx.commit()))?;
    }
    let snapshot: Snapshot = shared.db.snapshot();
    let count = random.below(WALKS);
    let mut walks: Vec<HeldWalk<'_>> = Vec::with_capacity(count as usize);
    for number in 0..count {
        let first = long_key(number);
        let range = (Bound::Included(&first[..]), Bound::Excluded(&b"large"[..]));
        let walk = shared.unless_refused("a walk", snapshot.range(&shared.crowd, range))?;
        let Some(mut walk) = walk else { break };
        // Keep only the head of each key, because the test's own memory also counts.
        match shared
            .unless_refused("a walk's first step", walk.advance().map(|pair| pair.map(head)))?
        {
            Some(Some(head)) => walks.push((walk, head)),
            Some(None) => {}
            None => break,
        }
    }
    shared.pause(random, 300);
    for (walk, last) in &mut walks {
        let Some(next) = shared
            .unless_refused("a walk's next step", walk.advance().map(|pair| pair.map(head)))?
        else {
            break;
        };
        ensure(next.as_ref().is_none_or(|next| next > last), || {
            format!("a walk left idle at {} resumes at {next:?}", last.escape_ascii())
        })?;
        shared.count("held-walks");
    }
    Ok(())
}

fn head((key, _): (&[u8], &[u8])) -> Head {
    let mut head = Head::default();
    let bytes = key.len().min(head.len());
    head[..bytes].copy_from_slice(&key[..bytes]);
    head
}

fn hold_transactions(shared: &Shared, random: &mut Random) -> Outcome {
    let count = random.below(TRANSACTIONS);
    let mut open: Vec<Transaction> = Vec::with_capacity(count as usize);
    for number in 0..count {
        let mut tx = shared.db.begin();
        let put = tx.put(&shared.crowd, format!("open/{number}").as_bytes(), &[7; 40]);
        if shared.unless_refused("a small write", put)?.is_none() {
            break;
        }
        open.push(tx);
    }
    shared.pause(random, 300);
    for tx in open.into_iter().step_by(20) {
        if shared.unless_refused("a small commit", tx.commit())?.is_some() {
            shared.count("held-transactions");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_value_check_detects_differences() {
        let mut bytes = Vec::new();
        Stream { number: 77, at: 0 }.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len() as u64, LARGE_BYTES);
        compare(&mut &bytes[..]).unwrap();
        bytes[1_234_567] ^= 1;
        compare(&mut &bytes[..]).unwrap_err();
        bytes[1_234_567] ^= 1;
        compare(&mut &bytes[..1_999_999]).unwrap_err();
    }
}
