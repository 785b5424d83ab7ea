//! The format of a batch: the records that one replica appends to the order at once.
//!
//! ```text
//! 0       8         12         16         32         40         72      88      96
//! | magic | version | micros   | order id | position | previous | nonce | first |
//! 96        98         100     104     112
//! | replica | replicas | count | chain | records … | BLAKE3 of everything before |
//! ```
//!
//! A record: time u64, GLSN that its transaction read u64, blobs u8, entries varint; for each blob
//! id u64, pages u32, hash u64, BLAKE3 of its file; for each entry its stream u32, its length
//! varint and its bytes.
//!
//! `micros` is the time that an append of the replica takes, in microseconds; 0 if it is not known.
//! `chain` is the chain hash of the log before the first record. The batch at position 1 has no
//! records: it states the id of the log, and where the order begins. Another batch without records
//! claims a number for a new replica.
//!
//! Invariant: a batch is used only if its hash is right, it names the order and its position, and
//! it follows the batch before it by hash and by GLSN.

use plimsoll_disk::codec::{Reader, push_varint};
use plimsoll_log::blob::{BlobId, BlobRef};
use plimsoll_log::draft::{Draft, MAX_BLOBS};
use plimsoll_log::glsn::{Glsn, StreamId};

use crate::types::error::Error;

const MAGIC: [u8; 8] = *b"PLIMBATC";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 112;
const HASH_BYTES: usize = 32;

/// A batch of several records is closed before it is longer than this, in bytes.
pub(crate) const FULL_BYTES: usize = 1 << 20;

/// The most bytes of a batch. One record of the greatest length that a log accepts, with its
/// references to blobs, fits.
pub(crate) const MAX_BYTES: usize = 4 << 20;

/// The BLAKE3 hash of a batch or of a blob's file.
pub(crate) type Hash = [u8; HASH_BYTES];

/// The position of the batch with which an order begins.
pub(crate) const BEGIN: u64 = 1;

/// The fields of a batch before its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// The microseconds that an append of the replica takes; 0 if it is not known.
    pub(crate) append_micros: u32,
    /// The id of the log of every replica.
    pub(crate) order_id: u128,
    pub(crate) position: u64,
    /// The hash of the batch before it.
    pub(crate) previous: Hash,
    /// Differs in all batches, so that two replicas never append equal ones.
    pub(crate) nonce: u128,
    /// The GLSN of the first entry.
    pub(crate) first: Glsn,
    /// The number of the replica that appended it.
    pub(crate) replica: u16,
    /// The highest number of a replica so far, that of this batch included.
    pub(crate) replicas: u16,
    /// The number of records.
    pub(crate) count: u32,
    /// The chain hash of the log before `first`; 0 if it is empty.
    pub(crate) chain: u64,
}

/// Why bytes are not used as the batch at a position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The bytes are damaged; another read may return sound ones.
    Damaged(&'static str),
    /// The bytes are a batch of another order, or of another history.
    Forked(String),
    /// A newer version of Plimsoll wrote the bytes.
    Newer(u32),
}

/// The end of the message if the order has another history than the store.
pub(crate) const FORK_ADVICE: &str = "; commits are refused, reads go on; for the remedy, see \
     \"An order that is wrong\" in docs/explanation/replicas.md";

impl Refusal {
    /// The error that names the position.
    pub(crate) fn at(self, position: u64) -> Error {
        match self {
            Self::Damaged(what) => Error::corrupt(format!(
                "the batch at position {position} of the order is damaged: {what}; commits are \
                 refused until the order has it again, reads go on"
            )),
            Self::Forked(what) => Error::Forked {
                glsn: None,
                message: format!(
                    "the batch at position {position} of the order is not of this store's history: \
                     {what}{FORK_ADVICE}"
                ),
            },
            Self::Newer(version) => Error::format(format!(
                "the batch at position {position} of the order has format version {version}, but \
                 this build of Plimsoll reads only version {VERSION}; use a newer one"
            )),
        }
    }
}

/// A batch whose hash is right.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) head: Head,
    pub(crate) hash: Hash,
    bytes: Vec<u8>,
}

impl Batch {
    /// Checks the bytes.
    pub(crate) fn decode(bytes: Vec<u8>) -> Result<Self, Refusal> {
        if bytes.len() < HEAD_BYTES + HASH_BYTES || bytes.len() > MAX_BYTES {
            return Err(Refusal::Damaged("its length is impossible"));
        }
        let (body, stated) = bytes.split_at(bytes.len() - HASH_BYTES);
        let hash = *blake3::hash(body).as_bytes();
        if hash != *stated {
            return Err(Refusal::Damaged("its hash is wrong"));
        }
        let mut reader = Reader::new(body);
        if reader.take(8) != Some(&MAGIC) {
            return Err(Refusal::Damaged("it does not begin as a batch does"));
        }
        match reader.u32() {
            Some(VERSION) => {}
            version => return Err(Refusal::Newer(version.unwrap_or_default())),
        }
        let head = decode_head(&mut reader).ok_or(Refusal::Damaged("its head is cut"))?;
        Ok(Self { head, hash, bytes })
    }

    /// The length of the batch in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Its records, in order.
    pub(crate) fn records(&self) -> impl Iterator<Item = Result<Record<'_>, Refusal>> {
        let mut reader = Reader::new(&self.bytes[HEAD_BYTES..self.bytes.len() - HASH_BYTES]);
        let (mut left, mut next) = (self.head.count, self.head.first);
        std::iter::from_fn(move || {
            if left == 0 {
                let rest = reader.take(reader.remaining()).unwrap_or_default();
                return (!rest.is_empty())
                    .then_some(Err(Refusal::Damaged("bytes follow its last record")));
            }
            left -= 1;
            match decode_record(&mut reader, next) {
                Some(record) => {
                    next = record.last().next();
                    Some(Ok(record))
                }
                None => {
                    left = 0;
                    reader.take(reader.remaining());
                    Some(Err(Refusal::Damaged("a record is cut")))
                }
            }
        })
    }
}

fn decode_head(reader: &mut Reader<'_>) -> Option<Head> {
    Some(Head {
        append_micros: reader.u32()?,
        order_id: reader.u128()?,
        position: reader.u64()?,
        previous: reader.take(HASH_BYTES)?.try_into().ok()?,
        nonce: reader.u128()?,
        first: Glsn(reader.u64()?),
        replica: reader.u16()?,
        replicas: reader.u16()?,
        count: reader.u32()?,
        chain: reader.u64()?,
    })
}

/// A record of a batch.
#[derive(Debug)]
pub(crate) struct Record<'a> {
    pub(crate) first: Glsn,
    pub(crate) timestamp_micros: u64,
    pub(crate) read_at: Glsn,
    pub(crate) blobs: Vec<NamedBlob>,
    pub(crate) entries: Vec<(StreamId, &'a [u8])>,
}

impl Record<'_> {
    /// The GLSN of its last entry.
    pub(crate) fn last(&self) -> Glsn {
        Glsn(self.first.0 + self.entries.len() as u64 - 1)
    }
}

/// A blob file of a record, and the hash of the whole file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NamedBlob {
    pub(crate) blob: BlobRef,
    pub(crate) hash: Hash,
}

fn decode_record<'a>(reader: &mut Reader<'a>, first: Glsn) -> Option<Record<'a>> {
    let (timestamp_micros, read_at) = (reader.u64()?, Glsn(reader.u64()?));
    let (blob_count, entry_count) = (reader.u8()?, reader.varint()?);
    if usize::from(blob_count) > MAX_BLOBS
        || !(1..=reader.remaining() as u64).contains(&entry_count)
    {
        return None;
    }
    let mut blob = || {
        let (id, pages, hash) = (BlobId(reader.u64()?), reader.u32()?, reader.u64()?);
        let file = reader.take(HASH_BYTES)?.try_into().ok()?;
        Some(NamedBlob { blob: BlobRef { id, pages, hash }, hash: file })
    };
    let blobs = (0..blob_count).map(|_| blob()).collect::<Option<Vec<_>>>()?;
    let mut entry = || Some((StreamId(reader.u32()?), reader.bytes()?));
    let entries = (0..entry_count).map(|_| entry()).collect::<Option<Vec<_>>>()?;
    Some(Record { first, timestamp_micros, read_at, blobs, entries })
}

/// Builds a batch.
#[derive(Debug)]
pub(crate) struct BatchBuilder {
    bytes: Vec<u8>,
    count: u32,
    next: Glsn,
}

impl BatchBuilder {
    /// A batch without records that begins with `head`.
    pub(crate) fn new(head: &Head) -> Self {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + HASH_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&head.append_micros.to_le_bytes());
        bytes.extend_from_slice(&head.order_id.to_le_bytes());
        bytes.extend_from_slice(&head.position.to_le_bytes());
        bytes.extend_from_slice(&head.previous);
        bytes.extend_from_slice(&head.nonce.to_le_bytes());
        bytes.extend_from_slice(&head.first.0.to_le_bytes());
        bytes.extend_from_slice(&head.replica.to_le_bytes());
        bytes.extend_from_slice(&head.replicas.to_le_bytes());
        bytes.extend_from_slice(&0u32.to_le_bytes());
        bytes.extend_from_slice(&head.chain.to_le_bytes());
        debug_assert_eq!(bytes.len(), HEAD_BYTES);
        Self { bytes, count: 0, next: head.first }
    }

    /// The bytes by which a record makes a batch longer, at most.
    pub(crate) fn bytes_of(draft: &Draft<'_>) -> usize {
        let entries: usize = draft.entries.iter().map(|entry| 16 + entry.payload_bytes()).sum();
        32 + entries + draft.blobs.len() * (20 + HASH_BYTES)
    }

    /// Adds a record; returns the GLSNs of its first and last entry. `hashes` are those of the
    /// files of its blobs.
    pub(crate) fn push(
        &mut self,
        draft: &Draft<'_>,
        hashes: &[Hash],
        timestamp_micros: u64,
    ) -> (Glsn, Glsn) {
        assert_eq!(draft.blobs.len(), hashes.len(), "each blob has a hash");
        let out = &mut self.bytes;
        out.extend_from_slice(&timestamp_micros.to_le_bytes());
        out.extend_from_slice(&draft.read_at.0.to_le_bytes());
        out.push(draft.blobs.len() as u8);
        push_varint(out, draft.entries.len() as u64);
        for (blob, hash) in draft.blobs.iter().zip(hashes) {
            out.extend_from_slice(&blob.id.0.to_le_bytes());
            out.extend_from_slice(&blob.pages.to_le_bytes());
            out.extend_from_slice(&blob.hash.to_le_bytes());
            out.extend_from_slice(hash);
        }
        for entry in draft.entries {
            out.extend_from_slice(&entry.stream.0.to_le_bytes());
            push_varint(out, entry.payload_bytes() as u64);
            entry.parts.iter().for_each(|part| out.extend_from_slice(part));
        }
        self.count += 1;
        let first = self.next;
        self.next = Glsn(first.0 + draft.entries.len() as u64);
        (first, Glsn(self.next.0 - 1))
    }

    /// The bytes so far.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes of the batch.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.bytes[100..104].copy_from_slice(&self.count.to_le_bytes());
        let hash = blake3::hash(&self.bytes);
        self.bytes.extend_from_slice(hash.as_bytes());
        self.bytes.shrink_to_fit();
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_log::draft::{CommitTimes, DraftEntry};

    use super::*;

    fn head() -> Head {
        Head {
            append_micros: 8,
            order_id: 7,
            position: 3,
            previous: [5; 32],
            nonce: 9,
            first: Glsn(11),
            replica: 2,
            replicas: 4,
            count: 0,
            chain: 0,
        }
    }

    fn sample() -> Vec<u8> {
        let mut builder = BatchBuilder::new(&head());
        let blob = BlobRef { id: BlobId::of(2, 8), pages: 3, hash: 6 };
        let parts: [&[&[u8]]; 2] = [&[b"one", b" entry"], &[b"another"]];
        let entries = parts.map(|parts| DraftEntry { stream: StreamId(4), parts });
        let draft =
            Draft { entries: &entries, read_at: Glsn(10), blobs: &[blob], times: CommitTimes::ANY };
        assert_eq!(builder.push(&draft, &[[1; 32]], 1000), (Glsn(11), Glsn(12)));
        let (before, bytes) = (builder.len(), BatchBuilder::bytes_of(&draft));
        assert_eq!(builder.push(&draft, &[[2; 32]], 1001), (Glsn(13), Glsn(14)));
        assert!(builder.len() - before <= bytes);
        builder.finish()
    }

    #[test]
    fn a_batch_round_trips() {
        let batch = Batch::decode(sample()).unwrap();
        assert_eq!(batch.head, Head { count: 2, ..head() });
        let records = batch.records().map(Result::unwrap).collect::<Vec<_>>();
        assert_eq!(records.len(), 2);
        assert_eq!((records[1].first, records[1].last()), (Glsn(13), Glsn(14)));
        assert_eq!((records[1].timestamp_micros, records[1].read_at), (1001, Glsn(10)));
        assert_eq!(records[1].blobs[0].hash, [2; 32]);
        assert_eq!(records[0].blobs[0].blob.id, BlobId::of(2, 8));
        assert_eq!(records[0].entries[0], (StreamId(4), &b"one entry"[..]));
    }

    #[test]
    fn a_changed_or_cut_batch_is_refused() {
        let bytes = sample();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(matches!(Batch::decode(changed), Err(Refusal::Damaged(_))), "{at}");
            assert!(matches!(Batch::decode(bytes[..at].to_vec()), Err(Refusal::Damaged(_))));
        }
    }
}
