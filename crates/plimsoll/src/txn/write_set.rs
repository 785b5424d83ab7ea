//! The uncommitted writes of a transaction.
//!
//! Keys and small values are in a sorted map, values above [`INLINE_BYTES`] in a buffer of chunks;
//! very large values are written to a blob file directly. If the set outgrows its share of the
//! budget, or the budget has no room, it is *spilled*: written as a sorted run into blob files,
//! which the index adopts without a rewrite when the transaction commits. A transaction may
//! therefore be larger than memory, and its bytes are written once.
//!
//! Invariant: the last of several writes of one key wins. In the map it has the highest order, and
//! a newer run hides an older one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_disk::codec::{Reader, push_varint};
use plimsoll_disk::fork::Origin;
use plimsoll_log::blob::{BlobId, BlobRef};
use plimsoll_log::file_log::BlobWriter;
use plimsoll_log::file_log::FileLog;
use plimsoll_memory::budget::{Kind, OutOfBudget};
use plimsoll_memory::page::PAGE_BYTES;
use plimsoll_memory::sorted::{Position, SortedMap};

use crate::borders::{Border, hit};
use crate::compression::packer::{Bytes, Written, pack};
use crate::txn::own_ranges::OwnRanges;
use crate::txn::payload::DeletedRange;
use crate::txn::spill::Spill;
use crate::txn::spill::run_builder::SpillBuilder;
use crate::txn::value_buffer::ValueBuffer;
use crate::txn::writer_memory::WriterMemory;
use crate::types::branch_key::user_keyspace;
use crate::types::compression::{Compression, Packed};
use crate::types::error::{Error, Lift, Result};
use crate::types::expiry::Expiry;
use crate::types::keyspaces::Keyspaces;
use crate::types::version::{INLINE_BYTES, Stored, value_sum};

/// A value is written to a blob file directly if its stored form, which may be compressed, is
/// longer than this.
pub(crate) const LARGE_VALUE_BYTES: usize = 256 << 10;

/// A value up to this length is compressed in memory, because it may become short enough for the
/// log. A longer one is compressed while it is written.
const PACKED_AT_ONCE_BYTES: usize = 1 << 20;

/// Divisor: this part of a record's body is reserved for everything but the writes (head,
/// metadata).
const BODY_RESERVE_PART: u64 = 8;

/// An uncommitted write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Write<'a> {
    /// The final stored form: a deletion, an inline value, or a value in a blob file.
    Stored(Stored<'a>),
    /// A value in the buffer, which is moved to the log or to a blob file at the commit.
    Buffered {
        /// Its offset in the buffer.
        offset: u64,
        /// Number of stored bytes.
        len: u64,
        /// Their checksum.
        sum: u64,
        /// How they are compressed.
        packed: Option<Packed>,
        /// The expiry of the value, if it has one.
        expiry: Option<Expiry>,
    },
}

impl<'a> Write<'a> {
    /// The expiry of the value, if it has one.
    pub(crate) fn expiry(&self) -> Option<Expiry> {
        match self {
            Write::Stored(stored) => stored.expiry(),
            Write::Buffered { expiry, .. } => *expiry,
        }
    }

    /// Length of the value in bytes; 0 for a deletion.
    pub(crate) fn value_bytes(&self) -> u64 {
        match *self {
            Write::Stored(stored) => stored.value_bytes(),
            Write::Buffered { len, packed, .. } => packed.map_or(len, |packed| packed.value_bytes),
        }
    }

    /// The stored bytes of a value that is compressed, and how.
    pub(crate) fn packed(&self) -> Option<(Stored<'static>, Packed)> {
        let stored = match *self {
            Write::Stored(stored) => stored.value().elsewhere()?,
            Write::Buffered { offset, len, sum, packed, .. } => {
                Stored::InLog { offset, len, sum, packed }
            }
        };
        stored.packed().map(|packed| (stored, packed))
    }

    /// Whether the key is deleted, on main or on a branch.
    pub(crate) fn is_deletion(&self) -> bool {
        match self {
            Write::Stored(Stored::Deleted) => true,
            write => write.expiry() == Some(Expiry::OF_DELETION),
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Write::Stored(stored) => stored.encode(out),
            Write::Buffered { offset, len, sum, packed, expiry } => {
                out.push(BUFFERED);
                push_varint(out, offset);
                push_varint(out, len);
                out.extend_from_slice(&sum.to_le_bytes());
                out.extend_from_slice(&expiry.map_or(0, Expiry::micros).to_le_bytes());
                packed.iter().for_each(|packed| packed.encode(out));
            }
        }
    }

    fn decode(bytes: &'a [u8]) -> Self {
        if bytes[0] == BUFFERED {
            let mut reader = Reader::new(&bytes[1..]);
            let (offset, len, sum) = (reader.varint(), reader.varint(), reader.u64());
            let expiry = reader.u64().expect("written by `encode`");
            return Write::Buffered {
                offset: offset.expect("written by `encode`"),
                len: len.expect("written by `encode`"),
                sum: sum.expect("written by `encode`"),
                expiry: Expiry::from_micros(expiry),
                packed: Packed::decode(&mut reader),
            };
        }
        Write::Stored(Stored::decode(bytes).expect("written by `encode`"))
    }
}

/// A tag beyond those of [`Stored`].
const BUFFERED: u8 = 255;

/// A value that is being written to a blob file.
pub(crate) struct LargeValue {
    blob: BlobId,
    offset: u64,
    bytes: Bytes,
}

/// The write set of one transaction.
pub(crate) struct WriteSet {
    writer_memory: Arc<WriterMemory>,
    log: Arc<FileLog>,
    keyspaces: Arc<Keyspaces>,
    map: SortedMap,
    values: ValueBuffer,
    order: u64,
    limit_bytes: u64,
    /// An upper bound of the bytes of the operations in a record's body, without buffered values
    /// but including overwritten operations.
    operation_bytes: u64,
    /// Size of the buffered values.
    value_bytes: u64,
    /// Locked, because several threads may read own writes.
    large: Mutex<Option<BlobWriter>>,
    large_done: Vec<BlobRef>,
    /// Whether a record names the blob files, so that the log owns them.
    named: AtomicBool,
    ranges: OwnRanges,
    /// Upper bound on the bytes that applying the ranges adds to the index.
    range_index_bytes: u64,
    spill: Spill,
    /// Maximum size of a record's body.
    body_limit_bytes: u64,
    origin: Origin,
    /// Scratch space for encoding a write.
    encoded: Vec<u8>,
}

impl WriteSet {
    /// An empty set that spills beyond `limit_bytes`, into tables of `table_bytes`. A set below
    /// `body_limit_bytes` is committed within the record.
    pub(crate) fn new(
        writer_memory: &Arc<WriterMemory>,
        (log, keyspaces): (&Arc<FileLog>, &Arc<Keyspaces>),
        limit_bytes: u64,
        table_bytes: u64,
        body_limit_bytes: u64,
    ) -> Self {
        Self {
            origin: Origin::here(),
            writer_memory: Arc::clone(writer_memory),
            log: Arc::clone(log),
            keyspaces: Arc::clone(keyspaces),
            map: empty_map(writer_memory),
            values: ValueBuffer::new(writer_memory.budget(), writer_memory.small()),
            order: 0,
            limit_bytes,
            operation_bytes: 0,
            value_bytes: 0,
            large: Mutex::new(None),
            large_done: Vec::new(),
            named: AtomicBool::new(false),
            body_limit_bytes,
            ranges: OwnRanges::default(),
            range_index_bytes: 0,
            spill: Spill::new(writer_memory.budget(), log, table_bytes),
            encoded: Vec::new(),
        }
    }

    /// Whether nothing was written.
    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty() && self.spill.is_empty() && self.ranges.is_empty()
    }

    /// Deletes the keys from `first` up to `end`. The set must have no puts of these keys. Applying
    /// the range adds at most `index_bytes` to the index.
    pub(crate) fn delete_range(&mut self, first: &[u8], end: &[u8], index_bytes: u64) {
        self.ranges.add(first, end);
        self.range_index_bytes += index_bytes;
    }

    /// Upper bound on the bytes that applying the ranges adds to the index.
    pub(crate) fn range_index_bytes(&self) -> u64 {
        self.range_index_bytes
    }

    /// Whether another range can be deleted by one record.
    pub(crate) fn has_room_for_range(&self) -> bool {
        self.ranges.has_room()
    }

    /// The ranges that are deleted before the writes.
    pub(crate) fn ranges(&self) -> &[DeletedRange] {
        self.ranges.list()
    }

    /// The deleted range that contains a key.
    pub(crate) fn range_over(&self, key: &[u8]) -> Option<&DeletedRange> {
        self.ranges.over(key)
    }

    /// An upper bound of the ranges' bytes in the record.
    pub(crate) fn range_bytes(&self) -> usize {
        self.ranges.encoded_bytes()
    }

    /// Writes a value that expires, or one that does not.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8], expiry: Option<Expiry>) -> Result<()> {
        if value.len() <= INLINE_BYTES {
            return self.record(key, Write::Stored(Stored::Inline(value).expiring(expiry)));
        }
        if value.len() > PACKED_AT_ONCE_BYTES {
            let stored = self.put_outside(key, value)?.expiring(expiry);
            return self.record(key, Write::Stored(stored));
        }
        let compressed = pack(self.writer_memory.budget(), self.compression_of(key), value);
        let (value, packed) = match &compressed {
            Some((stored, packed)) => (&stored[..], Some(*packed)),
            None => (value, None),
        };
        let (len, sum) = (value.len() as u64, value_sum(value));
        if value.len() > LARGE_VALUE_BYTES {
            let (blob, offset) = self.begin_blob()?;
            self.large_sink()(value)?;
            hit(Border::LargeWritten);
            let stored = Stored::InBlob { blob, offset, len, sum, packed };
            return self.record(key, Write::Stored(stored.expiring(expiry)));
        }
        let writer_memory = Arc::clone(&self.writer_memory);
        let offset = writer_memory.in_transaction(!self.values.has_room(len), || {
            match self.values.push(value) {
                Ok(offset) => Ok(offset),
                Err(refusal) => {
                    self.spill_because(refusal)?;
                    Ok(self.values.push(value)?)
                }
            }
        })?;
        self.record(key, Write::Buffered { offset, len, sum, packed, expiry })
    }

    /// Deletes a key.
    pub(crate) fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.record(key, Write::Stored(Stored::Deleted))
    }

    /// Writes a value above [`INLINE_BYTES`] of this index key to a blob file, for a row of a run.
    pub(crate) fn put_outside(&mut self, key: &[u8], value: &[u8]) -> Result<Stored<'static>> {
        let mut large = self.begin_large(key)?;
        self.continue_large(&mut large, value)?;
        self.finish_large(large)
    }

    fn compression_of(&self, key: &[u8]) -> Compression {
        self.keyspaces.compression(user_keyspace(key))
    }

    /// Writes a value that is inline or in a blob file.
    pub(crate) fn put_stored(&mut self, key: &[u8], stored: Stored<'_>) -> Result<()> {
        self.record(key, Write::Stored(stored))
    }

    /// Starts a value of an index key that arrives in pieces.
    pub(crate) fn begin_large(&mut self, key: &[u8]) -> Result<LargeValue> {
        let (blob, offset) = self.begin_blob()?;
        let bytes = Bytes::begin(self.writer_memory.budget(), self.compression_of(key));
        Ok(LargeValue { blob, offset, bytes })
    }

    /// The blob file and the offset of the next bytes of large values.
    fn begin_blob(&mut self) -> Result<(BlobId, u64)> {
        let large = self.large.get_mut().unwrap_or_else(PoisonError::into_inner);
        if large.is_none() {
            *large = Some(self.log.create_blob_for_record().lift()?);
        }
        let writer = large.as_ref().expect("made above");
        Ok((writer.id(), writer.position()))
    }

    /// Appends the next piece.
    pub(crate) fn continue_large(&mut self, large: &mut LargeValue, bytes: &[u8]) -> Result<()> {
        large.bytes.write(bytes, &mut self.large_sink())?;
        hit(Border::LargeWritten);
        Ok(())
    }

    /// Ends the value and writes it to its key.
    pub(crate) fn end_large(
        &mut self,
        key: &[u8],
        large: LargeValue,
        expiry: Option<Expiry>,
    ) -> Result<()> {
        let stored = self.finish_large(large)?.expiring(expiry);
        self.record(key, Write::Stored(stored))
    }

    fn finish_large(&mut self, large: LargeValue) -> Result<Stored<'static>> {
        let LargeValue { blob, offset, bytes } = large;
        let Written { len, sum, packed } = bytes.finish(&mut self.large_sink())?;
        Ok(Stored::InBlob { blob, offset, len, sum, packed })
    }

    /// Appends to the blob file of large values.
    fn large_sink(&mut self) -> impl FnMut(&[u8]) -> Result<()> {
        let large = self.large.get_mut().unwrap_or_else(PoisonError::into_inner);
        let writer = large.as_mut().expect("begin_large was called");
        move |bytes| writer.write(bytes).lift()
    }

    fn record(&mut self, key: &[u8], write: Write<'_>) -> Result<()> {
        let mut encoded = std::mem::take(&mut self.encoded);
        encoded.clear();
        write.encode(&mut encoded);
        let recorded = self.record_encoded(key, write, &mut encoded);
        self.encoded = encoded;
        recorded
    }

    fn record_encoded(
        &mut self,
        key: &[u8],
        mut write: Write<'_>,
        encoded: &mut Vec<u8>,
    ) -> Result<()> {
        self.order += 1;
        let writer_memory = Arc::clone(&self.writer_memory);
        let needs_memory = !self.map.has_room(key.len() + encoded.len());
        writer_memory.in_transaction(needs_memory, || {
            let Err(refusal) = self.map.defer(key, self.order, encoded) else { return Ok(()) };
            // The spill empties the buffer, but does not write the value that was just pushed,
            // because the map does not have its key yet. Write the value to a blob file first.
            write = Write::Stored(self.to_blob(write)?);
            encoded.clear();
            write.encode(encoded);
            self.spill_because(refusal)?;
            Ok(self.map.defer(key, self.order, encoded)?)
        })?;
        self.operation_bytes += operation_bytes(key, encoded);
        self.value_bytes += if let Write::Buffered { len, .. } = write { len } else { 0 };
        if self.held_bytes() > self.limit_bytes {
            writer_memory.in_transaction(true, || self.spill())?;
        }
        Ok(())
    }

    /// An upper bound of the bytes of the operations in a record's body, without buffered values.
    pub(crate) fn operation_bytes(&self) -> u64 {
        self.operation_bytes
    }

    fn held_bytes(&self) -> u64 {
        self.map.held_bytes() + self.values.held_bytes()
    }

    fn spill_because(&mut self, refusal: OutOfBudget) -> Result<()> {
        if self.map.is_empty() {
            return Err(refusal.into());
        }
        self.spill()
    }

    /// Moves everything in memory into a run of blob files.
    fn spill(&mut self) -> Result<()> {
        self.write_run(self.spill.begin())?;
        self.clear_memory();
        match self.spill.merge_full_tiers() {
            // The runs are unchanged, and are merged after the next spill.
            Err(Error::OutOfBudget(_)) => Ok(()),
            done => done,
        }
    }

    /// Copies everything in memory into a run of blob files.
    fn write_run(&mut self, mut builder: SpillBuilder) -> Result<()> {
        let mut at = self.map().first();
        while let Some(position) = at {
            let entry = self.map.at(position);
            let stored = self.to_blob(Write::decode(entry.value))?;
            builder.add(entry.key, stored)?;
            at = self.after_key(position);
        }
        self.spill.end(builder)
    }

    fn clear_memory(&mut self) {
        self.map = empty_map(&self.writer_memory);
        self.values.clear();
        (self.operation_bytes, self.value_bytes) = (0, 0);
    }

    /// The stored form of a write. A buffered value is copied to a blob file.
    fn to_blob<'a>(&self, write: Write<'a>) -> Result<Stored<'a>> {
        let (offset, len, sum, packed, expiry) = match write {
            Write::Stored(stored) => return Ok(stored),
            Write::Buffered { offset, len, sum, packed, expiry } => {
                (offset, len, sum, packed, expiry)
            }
        };
        let mut large = self.large.lock().unwrap_or_else(PoisonError::into_inner);
        if large.is_none() {
            *large = Some(self.log.create_blob_for_record().lift()?);
        }
        let writer = large.as_mut().expect("made above");
        let place = writer.position();
        for slice in self.values.slices(offset, len) {
            writer.write(slice).lift()?;
        }
        let stored = Stored::InBlob { blob: writer.id(), offset: place, len, sum, packed };
        Ok(stored.expiring(expiry))
    }

    /// The newest write of the next key.
    pub(crate) fn after_key(&self, position: Position) -> Option<Position> {
        let key = self.map.at(position).key;
        let mut at = self.map.next(position);
        while let Some(next) = at {
            if self.map.at(next).key != key {
                return Some(next);
            }
            at = self.map.next(next);
        }
        None
    }

    /// The map, for iteration in key order; the newest write of a key comes first. It has no
    /// deferred entries.
    pub(crate) fn map(&self) -> &SortedMap {
        self.map.settle();
        &self.map
    }

    /// The spilled runs.
    pub(crate) fn spilled(&self) -> &Spill {
        &self.spill
    }

    /// The spilled runs, to which a bulk load adds its own.
    pub(crate) fn spilled_mut(&mut self) -> &mut Spill {
        &mut self.spill
    }

    /// Whether a prepared set is completely in the map, so that its versions can be inserted into
    /// the memtable.
    pub(crate) fn is_in_memory(&self) -> bool {
        !self.map.is_empty()
    }

    /// The writes of a prepared set that is in the map, in key order. Values are inline or in blob
    /// files.
    pub(crate) fn in_memory(&self) -> impl Iterator<Item = (&[u8], Stored<'_>)> + Clone {
        let mut next = self.map().first();
        std::iter::from_fn(move || {
            let position = next?;
            next = self.after_key(position);
            let entry = self.map.at(position);
            let stored =
                Stored::decode(entry.value).expect("a set written as a run has no buffered values");
            Some((entry.key, stored))
        })
    }

    /// The write at a position of the map.
    pub(crate) fn at(&self, position: Position) -> (&[u8], Write<'_>) {
        let entry = self.map.at(position);
        (entry.key, Write::decode(entry.value))
    }

    /// Applies `then` to the newest write of a key.
    pub(crate) fn find<T>(
        &self,
        key: &[u8],
        then: impl FnOnce(Write<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        if let Some(position) = self.map().seek(key, u64::MAX) {
            let (found, write) = self.at(position);
            if found == key {
                return then(write).map(Some);
            }
        }
        match self.spill.lookup(key)? {
            None if self.ranges.over(key).is_some() => {
                then(Write::Stored(Stored::Deleted)).map(Some)
            }
            None => Ok(None),
            Some(found) => then(Write::Stored(found.stored())).map(Some),
        }
    }

    /// Fills `into` with stored bytes of a write's value, from `from` on. Returns a value that is
    /// in a finished blob file instead, for the caller to read.
    pub(crate) fn read_back<'a>(
        &self,
        write: Write<'a>,
        from: u64,
        into: &mut [u8],
    ) -> Result<Option<Stored<'a>>> {
        match write {
            Write::Stored(stored @ Stored::Expiring(_)) => {
                return self.read_back(Write::Stored(stored.value()), from, into);
            }
            Write::Stored(Stored::Inline(value)) => {
                into.copy_from_slice(&value[from as usize..from as usize + into.len()]);
            }
            Write::Buffered { offset, .. } => {
                let mut at = 0;
                for slice in self.values.slices(offset + from, into.len() as u64) {
                    into[at..at + slice.len()].copy_from_slice(slice);
                    at += slice.len();
                }
            }
            Write::Stored(stored @ Stored::InBlob { blob, offset, .. }) => {
                let mut large = self.large.lock().unwrap_or_else(PoisonError::into_inner);
                match large.as_mut() {
                    Some(writer) if writer.id() == blob => {
                        writer.read_back(offset + from, into).lift()?;
                    }
                    _ => return Ok(Some(stored)),
                }
            }
            Write::Stored(Stored::Deleted | Stored::InLog { .. } | Stored::Dropped { .. }) => {
                unreachable!("writes have no such values")
            }
        }
        Ok(None)
    }

    /// Maximum size of a record's body.
    pub(crate) fn body_limit_bytes(&self) -> u64 {
        self.body_limit_bytes
    }

    /// Whether [`WriteSet::prepare`] will neither write runs nor copy values, and the set has at
    /// most `bytes_max` bytes, if `reserve_bytes` of the record are used for other data.
    pub(crate) fn fits_into_record(&self, reserve_bytes: usize, bytes_max: u64) -> bool {
        let bytes = self.operation_bytes + self.value_bytes;
        self.spill.is_empty() && bytes <= bytes_max.min(self.room_in_record(reserve_bytes))
    }

    fn room_in_record(&self, metadata_bytes: usize) -> u64 {
        let reserve = (self.body_limit_bytes / BODY_RESERVE_PART).max(metadata_bytes as u64 + 64);
        self.body_limit_bytes.saturating_sub(reserve)
    }

    /// Prepares the set for commit: either everything is in the map and its body fits into a
    /// record, or everything is in runs, and also in the map if it takes at most `memtable_bytes`
    /// there. Blob files are finished.
    pub(crate) fn prepare(&mut self, metadata_bytes: usize, memtable_bytes: u64) -> Result<()> {
        let room = self.room_in_record(metadata_bytes);
        if !self.spill.is_empty() && !self.map.is_empty() {
            self.spill()?;
        } else if self.operation_bytes + self.value_bytes > room {
            self.buffered_to_blob()?;
            if self.operation_bytes > room {
                match self.map.used_bytes() <= memtable_bytes {
                    true => self.write_run(self.spill.begin_retained())?,
                    false => self.spill()?,
                }
            }
        }
        self.spill.fit_into_record()?;
        if let Some(writer) = self.large.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            self.large_done.push(writer.finish().lift()?);
        }
        Ok(())
    }

    /// Copies buffered values into the blob file, so that the body has only their locations.
    fn buffered_to_blob(&mut self) -> Result<()> {
        let moved = empty_map(&self.writer_memory);
        let mut bytes = 0;
        let mut at = self.map().first();
        let mut encoded = Vec::new();
        while let Some(position) = at {
            let (key, write) = self.at(position);
            encoded.clear();
            self.to_blob(write)?.encode(&mut encoded);
            moved.insert(key, 1, &encoded)?;
            bytes += operation_bytes(key, &encoded);
            at = self.after_key(position);
        }
        self.map = moved;
        self.order = 1;
        self.values.clear();
        (self.operation_bytes, self.value_bytes) = (bytes, 0);
        Ok(())
    }

    /// The slices of a buffered value.
    pub(crate) fn buffered(&self, offset: u64, len: u64) -> impl Iterator<Item = &[u8]> {
        self.values.slices(offset, len)
    }

    /// The blob files that the commit's record must name: first those of values, then those of
    /// runs.
    pub(crate) fn blobs(&self) -> Vec<BlobRef> {
        self.large_done.iter().chain(self.spill.blobs()).copied().collect()
    }

    /// Size of the blob files that the commit's record names.
    pub(crate) fn blob_bytes(&self) -> u64 {
        let pages =
            self.large_done.iter().chain(self.spill.blobs()).map(|blob| u64::from(blob.pages));
        pages.sum::<u64>() * PAGE_BYTES as u64
    }

    /// Records that a record names the blob files, so that the log owns them.
    pub(crate) fn named(&self) {
        // Relaxed: only one thread commits.
        self.named.store(true, Ordering::Relaxed);
        self.spill.keep();
    }
}

/// An upper bound of an operation's size: its kind, two lengths and the key. `encoded` is its form
/// in the set.
fn operation_bytes(key: &[u8], encoded: &[u8]) -> u64 {
    (key.len() + encoded.len() + 8) as u64
}

fn empty_map(writer_memory: &WriterMemory) -> SortedMap {
    SortedMap::beginning_small(writer_memory.budget(), Kind::WriteSet, writer_memory.small())
}

impl Drop for WriteSet {
    fn drop(&mut self) {
        if self.origin.is_foreign() {
            return;
        }
        // After an abort, no record names these files. A file that cannot be removed now is swept
        // at the next open.
        for blob in self.large_done.drain(..).filter(|_| !self.named.load(Ordering::Relaxed)) {
            let _ = self.log.discard_blob(blob.id);
        }
    }
}
