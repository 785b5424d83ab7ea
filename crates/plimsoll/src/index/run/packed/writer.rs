//! Compresses the pages of a table while it is written, and describes where they are.

use std::fmt;
use std::sync::Arc;

use plimsoll_memory::budget::{Budget, Kind};
use plimsoll_memory::buffer::Buffer;
use plimsoll_memory::chunk::{CHUNK_BYTES, Chunk};
use plimsoll_memory::page::{PAGE_BYTES, PAGE_HEADER_BYTES, page_kind, page_payload, seal_page};

use crate::compression::codec::Encoder;
use crate::index::run::leaf::{LEAF_PAGE, Leaf};
use crate::index::run::packed::directory::{
    DIRECTORY_PAGE, ENTRIES, entry, entry_end, write_directory,
};
use crate::types::branch_key::user_keyspace;
use crate::types::compression::Compression;
use crate::types::error::Result;
use crate::types::keyspaces::Keyspaces;

/// A page is stored compressed if that saves this part of it (a divisor) or more.
const SAVED_PART: usize = 8;

const ENTRY_BYTES: usize = size_of::<u32>();

/// Entries of the directory in a chunk.
const CHUNK_ENTRIES: usize = CHUNK_BYTES / ENTRY_BYTES;

/// The stored forms of the pages of one table. Takes a chunk of `Kind::Sort` for the directory of
/// every 256 MiB of pages, and the memory of an encoder if the budget has room for it; otherwise
/// pages are stored uncompressed.
pub(in crate::index::run) struct PagePacker {
    /// The budget of the job that writes the table.
    budget: Budget,
    /// The budget of the store.
    store_budget: Budget,
    keyspaces: Arc<Keyspaces>,
    encoder: Option<OpenEncoder>,
    /// The compression that an encoder was last made for, or could not be made for.
    tried: Compression,
    /// The entries of the directory.
    entries: Vec<Chunk>,
    pages: u32,
    /// Length of the stream.
    stream_bytes: u64,
    /// Offset at which the pages of the open page of the directory begin.
    part_start: u64,
}

/// An encoder of the compression that was last tried.
struct OpenEncoder {
    encoder: Encoder,
    output: Buffer,
}

impl PagePacker {
    pub(in crate::index::run) fn new(
        budget: &Budget,
        store_budget: &Budget,
        keyspaces: &Arc<Keyspaces>,
    ) -> Self {
        Self {
            budget: budget.clone(),
            store_budget: store_budget.clone(),
            keyspaces: Arc::clone(keyspaces),
            encoder: None,
            tried: Compression::None,
            entries: Vec::new(),
            pages: 0,
            stream_bytes: 0,
            part_start: 0,
        }
    }

    /// The stored form of the next page, which was sealed.
    pub(in crate::index::run) fn pack<'a>(&'a mut self, page: &'a [u8]) -> Result<&'a [u8]> {
        if self.pages.is_multiple_of(ENTRIES) {
            self.part_start = self.stream_bytes;
        }
        let at = self.pages as usize;
        if at / CHUNK_ENTRIES == self.entries.len() {
            // The store's budget is asked first, because the memory that was set aside may be
            // needed for the tree and the list of blob files.
            let chunk = self.store_budget.take(Kind::Sort);
            self.entries.push(chunk.or_else(|_| self.budget.take(Kind::Sort))?);
        }
        let plain_bytes = PAGE_HEADER_BYTES + page_payload(page).len();
        let compression = self.compression_of(page);
        self.encoder_for(compression);
        let (packed, codec) = match &mut self.encoder {
            Some(open) if compression == self.tried => {
                let output = &mut open.output[..];
                let packed = open.encoder.encode(page, output);
                (packed.map(|bytes| &open.output[..bytes]), Some(open.encoder.codec()))
            }
            _ => (None, None),
        };
        let packed = packed.filter(|packed| packed.len() + plain_bytes / SAVED_PART <= plain_bytes);
        let (stored, codec) = match packed {
            Some(packed) => (packed, codec),
            None => (&page[..plain_bytes], None),
        };
        self.stream_bytes += stored.len() as u64;
        let entry = entry(self.stream_bytes - self.part_start, codec).to_le_bytes();
        let within = at % CHUNK_ENTRIES * ENTRY_BYTES;
        self.entries[at / CHUNK_ENTRIES][within..within + ENTRY_BYTES].copy_from_slice(&entry);
        self.pages += 1;
        Ok(stored)
    }

    /// Pages of the directory.
    pub(in crate::index::run) fn directory_pages(&self) -> u32 {
        self.pages.div_ceil(ENTRIES)
    }

    /// Writes page `number` of the directory into `page`, for this place in the file.
    pub(in crate::index::run) fn write_directory(
        &self,
        number: u32,
        page: &mut [u8],
        file_seed: u64,
        place: u32,
    ) {
        let first = number * ENTRIES;
        let end = self.pages.min(first.saturating_add(ENTRIES));
        let start = self.part_start(number);
        let entries = (first..end).map(|page| self.entry(page));
        let bytes =
            write_directory(&mut page[PAGE_HEADER_BYTES..], (self.pages, first), start, entries);
        seal_page(page, file_seed, place, DIRECTORY_PAGE, bytes);
    }

    /// Where the pages of directory page `number` begin. The last entry of each page before it has
    /// the length of that page's part.
    fn part_start(&self, number: u32) -> u64 {
        (1..=number).map(|part| entry_end(self.entry(part * ENTRIES - 1))).sum()
    }

    fn entry(&self, page: u32) -> u32 {
        let at = page as usize;
        let within = at % CHUNK_ENTRIES * ENTRY_BYTES;
        let bytes = &self.entries[at / CHUNK_ENTRIES][within..within + ENTRY_BYTES];
        u32::from_le_bytes(bytes.try_into().expect("an entry has four bytes"))
    }

    /// How a page is compressed: a leaf like the values of the keyspace of its first key. Other
    /// pages are not compressed, because hashes and distances do not compress.
    fn compression_of(&self, page: &[u8]) -> Compression {
        if page_kind(page) != LEAF_PAGE {
            return Compression::None;
        }
        let leaf = Leaf::new(page_payload(page), None);
        leaf.map_or(Compression::None, |leaf| {
            self.keyspaces.compression(user_keyspace(leaf.first_key()))
        })
    }

    /// Makes an encoder if the budget has room for one. Does not try again for the same
    /// compression.
    fn encoder_for(&mut self, compression: Compression) {
        if compression == Compression::None || compression == self.tried {
            return;
        }
        (self.tried, self.encoder) = (compression, None);
        let Ok(Some(encoder)) = Encoder::new((&self.store_budget, Kind::Sort), compression) else {
            return;
        };
        let bytes = encoder.output_bytes(PAGE_BYTES);
        let Ok(mut output) = Buffer::with_capacity(&self.store_budget, Kind::Sort, bytes) else {
            return;
        };
        output.resize(bytes);
        self.encoder = Some(OpenEncoder { encoder, output });
    }
}

impl fmt::Debug for PagePacker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PagePacker({} pages in {} bytes)", self.pages, self.stream_bytes)
    }
}
