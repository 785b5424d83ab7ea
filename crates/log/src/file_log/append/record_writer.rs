//! Writes one record into the buffer, fragment by fragment.
//!
//! Invariant: `append` has reserved the room before. Nothing here can fail except writing out full
//! chunks when the buffer is full, and such a failure poisons the log.

use crate::draft::Draft;
use crate::error::LogError;
use crate::file_log::durability::writer::SegmentWriter;
use crate::file_log::tail::TailState;
use crate::format::content::ContentHash;
use crate::format::fragment::{Continues, FRAGMENT_HEADER_BYTES, FragmentType, seal_fragment};
use crate::format::layout::{block_end, block_of};
use crate::format::record::{ENTRY_HEADER_BYTES, EntryHeader, RecordHeader, encode_blob};
use crate::format::{BLOCK_BYTES, align8};

use plimsoll_memory::chunk::CHUNK_BYTES;

/// The seed and the epoch under which fragments are sealed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FragmentSeal {
    pub(crate) segment_seed: u64,
    pub(crate) epoch: u32,
}

/// The end of a written record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordEnd {
    /// Offset after it.
    pub(crate) end: u32,
    /// Chain hash after it.
    pub(crate) chain: u64,
}

/// Writes a record at `start` and adds its entries to the tail's entry offsets. Its GLSNs are not
/// published yet.
pub(crate) fn write_record(
    tail: &mut TailState,
    writer: Option<&mut SegmentWriter>,
    seal: FragmentSeal,
    start: u64,
    header: &RecordHeader,
    draft: &Draft<'_>,
) -> Result<RecordEnd, LogError> {
    let mut record = RecordWriter::new(tail, writer, seal);
    record.skip_to(start)?;
    if start + (FRAGMENT_HEADER_BYTES + header.head_bytes()) as u64 + u64::from(header.body_bytes)
        > block_end(start)
    {
        // Compute the chain hash first, because the middle and last fragments contain it.
        record.chain = Some(chain_of(header, draft));
    }
    record.begin(FragmentType::First)?;
    let header_at = record.at;
    record.write_bytes(&header.encode())?;
    for blob in draft.blobs {
        record.write_bytes(&encode_blob(blob))?;
    }
    for (index, entry) in draft.entries.iter().enumerate() {
        if record.room() < ENTRY_HEADER_BYTES as u64 {
            record.next_fragment()?;
        }
        let payload_bytes = entry.payload_bytes();
        let back = (record.at - header_at) as u32;
        let entry_header = EntryHeader {
            stream: entry.stream,
            payload_bytes: payload_bytes as u32,
            back,
            index: index as u32,
        };
        record.tail.entry_offsets.push(record.at as u32, entry.stream);
        record.write_bytes(&entry_header.encode())?;
        for part in entry.parts {
            record.write_bytes(part)?;
        }
        record.write_bytes(&[0; 8][..align8(payload_bytes) - payload_bytes])?;
    }
    record.finish(None)
}

/// The chain hash of a record that will be in several fragments.
fn chain_of(header: &RecordHeader, draft: &Draft<'_>) -> u64 {
    let mut hash = ContentHash::new(header, draft.blobs);
    for (index, entry) in draft.entries.iter().enumerate() {
        let payload_bytes = entry.payload_bytes() as u32;
        let entry_header =
            EntryHeader { stream: entry.stream, payload_bytes, back: 0, index: index as u32 };
        hash.entry(entry_header, entry.parts.iter().copied());
    }
    hash.sum()
}

/// Writes a mark after all other fragments.
pub(crate) fn write_mark_fragment(
    tail: &mut TailState,
    seal: FragmentSeal,
    start: u64,
    bytes: &[u8],
) -> Result<u32, LogError> {
    let mut record = RecordWriter::new(tail, None, seal);
    record.skip_to(start)?;
    record.begin(FragmentType::Mark)?;
    record.write_bytes(bytes)?;
    record.finish(Some(FragmentType::Mark)).map(|written| written.end)
}

struct RecordWriter<'a> {
    tail: &'a mut TailState,
    writer: Option<&'a mut SegmentWriter>,
    seal: FragmentSeal,
    /// The chain hash after the record. For a record in one fragment, it is known once that
    /// fragment is sealed.
    chain: Option<u64>,
    at: u64,
    /// Offset of the fragment that is being written.
    fragment: u64,
    /// Checksum of the record's first fragment, if that is finished and others follow.
    head: Option<u64>,
}

impl<'a> RecordWriter<'a> {
    fn new(
        tail: &'a mut TailState,
        writer: Option<&'a mut SegmentWriter>,
        seal: FragmentSeal,
    ) -> Self {
        let at = u64::from(tail.end.offset);
        Self { tail, writer, seal, chain: None, at, fragment: at, head: None }
    }

    /// Bytes left in the block.
    fn room(&self) -> u64 {
        if self.at.is_multiple_of(BLOCK_BYTES as u64) && self.at > self.fragment {
            0
        } else {
            block_end(self.at) - self.at
        }
    }

    /// Leaves the rest of the block zero if the record begins with the next one.
    fn skip_to(&mut self, start: u64) -> Result<(), LogError> {
        if start > self.at && !self.at.is_multiple_of(BLOCK_BYTES as u64) {
            self.block_is_complete(block_of(self.at));
        }
        self.at = start;
        Ok(())
    }

    fn begin(&mut self, part: FragmentType) -> Result<(), LogError> {
        self.enter_chunk()?;
        self.fragment = self.at;
        self.at += part.header_bytes() as u64;
        Ok(())
    }

    /// Makes sure that the buffer has room for the byte at `at`.
    fn enter_chunk(&mut self) -> Result<(), LogError> {
        while self.at >= self.tail.buffer.current_start() + CHUNK_BYTES as u64 {
            if !self.tail.buffer.advance() {
                let writer = self
                    .writer
                    .as_deref_mut()
                    .expect("without a writer the chunks were taken before");
                writer.write_full_chunks(self.tail)?;
            }
        }
        Ok(())
    }

    fn write_bytes(&mut self, mut bytes: &[u8]) -> Result<(), LogError> {
        while !bytes.is_empty() {
            if self.room() == 0 {
                self.next_fragment()?;
            }
            let step = (self.room() as usize).min(bytes.len());
            let within = (self.at - self.tail.buffer.current_start()) as usize;
            self.tail.buffer.current_mut()[within..within + step].copy_from_slice(&bytes[..step]);
            self.at += step as u64;
            bytes = &bytes[step..];
        }
        Ok(())
    }

    /// Ends the fragment and continues in the next block.
    fn next_fragment(&mut self) -> Result<(), LogError> {
        let part = if self.head.is_some() { FragmentType::Middle } else { FragmentType::First };
        let sum = self.seal(part);
        self.head.get_or_insert(sum);
        let block = block_of(self.fragment);
        self.block_is_complete(block);
        self.at = (block + 1) * BLOCK_BYTES as u64;
        self.begin(FragmentType::Middle)
    }

    fn finish(mut self, part: Option<FragmentType>) -> Result<RecordEnd, LogError> {
        let part = part.unwrap_or(if self.head.is_some() {
            FragmentType::Last
        } else {
            FragmentType::Whole
        });
        self.seal(part);
        if self.at.is_multiple_of(BLOCK_BYTES as u64) {
            self.block_is_complete(block_of(self.fragment));
        }
        Ok(RecordEnd { end: self.at as u32, chain: self.chain.unwrap_or(self.tail.end.chain) })
    }

    fn seal(&mut self, part: FragmentType) -> u64 {
        let start = self.tail.buffer.current_start();
        let (from, to) = ((self.fragment - start) as usize, (self.at - start) as usize);
        let fragment = &mut self.tail.buffer.current_mut()[from..to];
        if let Some(head) = self.head {
            let chain = self
                .chain
                .expect("the chain hash of a record in several fragments is computed first");
            Continues { head, chain }.put(fragment);
        }
        let (sum, content) = seal_fragment(
            fragment,
            self.seal.segment_seed,
            self.seal.epoch,
            self.fragment as u32,
            part,
        );
        self.chain = content.or(self.chain);
        sum
    }

    /// Gives a complete block to the pool, so that followers do not read it from the disk.
    fn block_is_complete(&mut self, block: u64) {
        if let Some(bytes) = self.tail.buffer.bytes_at(block * BLOCK_BYTES as u64) {
            self.tail.segment.pages.put(block as u32, &bytes[..BLOCK_BYTES], false);
        }
    }
}
