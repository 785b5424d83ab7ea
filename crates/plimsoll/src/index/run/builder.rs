//! Writes a table sequentially.
//!
//! Versions are added to the open leaf. A full leaf is written and added to the open group. A full
//! group is written as a guide page (filter and index block) and added to the open inner page, and
//! so on upwards. The last page that is alone at its level is the root. No page is written twice,
//! and none is read.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt::Debug;

use plimsoll_log::blob::BlobId;
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::{Budget, Kind, Lease};
use plimsoll_memory::chunk::{CHUNK_BYTES, Chunk};
use plimsoll_memory::page::{PAGE_BYTES, PAGE_HEADER_BYTES, seal_page};

use crate::borders::{Border, hit};
use crate::index::run::bytes::compare;
use crate::index::run::ends::{
    BLOBS_PAGE, FOOTER_PAGE, Footer, HEADER_PAGE, Header, with_expiry, write_blobs,
};
use crate::index::run::fences::{Fence, OwnedFence};
use crate::index::run::filter::key_hash;
use crate::index::run::guide::{GUIDE_PAGE, GuideDraft, MAX_GUIDE_KEYS};
use crate::index::run::inner::{INNER_PAGE, InnerDraft};
use crate::index::run::leaf::{LEAF_PAGE, LeafDraft, MAX_LEAF_KEYS};
use crate::index::run::table::{TableId, TableInfo};
use crate::types::error::Result;
use crate::types::expiry::ExpiryRange;
use crate::types::index_key::MAX_INDEX_KEY_BYTES;
use crate::types::version::{MAX_STORED_BYTES, Stored, Version};

/// Number of pages in a chunk.
const PAGES: usize = CHUNK_BYTES / PAGE_BYTES;

/// Size of a key's hash.
const HASH_BYTES: usize = 4;

const _: () = assert!(
    (MAX_GUIDE_KEYS + MAX_LEAF_KEYS) * HASH_BYTES <= CHUNK_BYTES,
    "a chunk holds the hashes of a group and a leaf"
);

/// Memory for the id of a blob file, in the set of ids and in the list made from it.
const BLOB_BYTES: u64 = 48;

/// The destination of a builder's pages: a run file of the index, or a blob file of the log.
pub(crate) trait PageSink: Send {
    /// The table's id.
    fn id(&self) -> TableId;
    /// The log whose commits the table holds; 0 for a blob file, which belongs to its log.
    fn log_id(&self) -> u128 {
        0
    }
    /// The seed of the page checksums.
    fn seed(&self) -> u64;
    /// Writes the next page, sealed. Page numbers start at 0.
    fn write_page(&mut self, page: &[u8]) -> Result<()>;
}

/// Builds one table. It takes three chunks of `Kind::Sort` regardless of the table's size (one more
/// for every four levels beyond the first), and a lease for the ids of the blob files that the
/// table points to. It must be dropped after an error.
#[derive(Debug)]
pub(crate) struct TableBuilder<S: PageSink> {
    sink: S,
    budget: Budget,
    pending: bool,
    pages: u32,
    leaf: LeafDraft,
    guide: GuideDraft,
    levels: Vec<InnerDraft>,
    memory: BuilderMemory,
    /// Keys in the open leaf.
    leaf_keys: usize,
    /// The fence before the open leaf.
    leaf_fence: OwnedFence,
    /// The fence before a page that is added to the next level.
    rising: OwnedFence,
    last_key: Vec<u8>,
    stored: Vec<u8>,
    tally: Tally,
}

/// The memory chunks of a builder.
#[derive(Debug)]
struct BuilderMemory {
    /// The open leaf; the page being sealed; the open group's fences.
    work: Chunk,
    /// Hashes of the keys of the open group, then of the open leaf.
    hashes: Chunk,
    /// Children of the open inner pages, a page for each level.
    inner: Vec<Chunk>,
}

/// Statistics for the footer.
#[derive(Debug)]
struct Tally {
    versions: u64,
    deletions: u64,
    first_key: Vec<u8>,
    last_glsn: Glsn,
    min_glsn: Glsn,
    max_glsn: Glsn,
    min_pointer: Option<Glsn>,
    log_bytes: u64,
    expiries: Option<ExpiryRange>,
    blobs: BTreeSet<u64>,
    /// The last blob file pointed to, which is usually the next one as well.
    last_blob: Option<BlobId>,
    blobs_lease: Lease,
}

impl<S: PageSink> TableBuilder<S> {
    /// Starts a table. With `fixed_glsn_pending`, versions are added with [`Glsn::NONE`] and get a
    /// common GLSN when the table is adopted.
    pub(crate) fn new(sink: S, budget: &Budget, fixed_glsn_pending: bool) -> Result<Self> {
        let mut builder = Self {
            sink,
            budget: budget.clone(),
            pending: fixed_glsn_pending,
            pages: 0,
            leaf: LeafDraft::new(),
            guide: GuideDraft::new(),
            levels: Vec::new(),
            memory: BuilderMemory::new(budget)?,
            leaf_keys: 0,
            leaf_fence: OwnedFence::lowest(),
            rising: OwnedFence::lowest(),
            last_key: Vec::with_capacity(MAX_INDEX_KEY_BYTES),
            stored: Vec::with_capacity(MAX_STORED_BYTES),
            tally: Tally::new(budget)?,
        };
        let header = Header {
            id: builder.sink.id(),
            log_id: builder.sink.log_id(),
            pending: fixed_glsn_pending,
        };
        let bytes = header.write(builder.memory.split().out);
        builder.write_out(HEADER_PAGE, bytes)?;
        Ok(builder)
    }

    /// Adds a version: keys ascending, one key's versions newest first. All versions of a key must
    /// be in one table.
    pub(crate) fn add(&mut self, version: &Version<'_>) -> Result<()> {
        let key = version.key;
        let (common, order) = compare(&self.last_key, key);
        self.assert_order(order, version);
        self.stored.clear();
        version.stored.encode(&mut self.stored);
        assert!(
            self.stored.len() <= MAX_STORED_BYTES,
            "a stored form has at most {MAX_STORED_BYTES} bytes"
        );

        let payload = &mut self.memory.work[PAGE_HEADER_BYTES..PAGE_BYTES];
        if !self.leaf.add(payload, key, common, version.glsn, &self.stored) {
            if order == Ordering::Equal {
                hit(Border::KeyOverLeaf);
            }
            self.close_leaf(Some(version))?;
            let payload = &mut self.memory.work[PAGE_HEADER_BYTES..PAGE_BYTES];
            assert!(
                self.leaf.add(payload, key, common, version.glsn, &self.stored),
                "any entry fits into an empty leaf"
            );
        }
        if order != Ordering::Equal || self.leaf.entries() == 1 {
            self.memory.push_hash(self.guide.keys() + self.leaf_keys, key_hash(key));
            self.leaf_keys += 1;
        }
        self.last_key.truncate(common);
        self.last_key.extend_from_slice(&key[common..]);
        self.tally.note(version)
    }

    /// The sink of the pages.
    pub(crate) fn sink_mut(&mut self) -> &mut S {
        &mut self.sink
    }

    /// Bytes written or buffered in a page.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.pages) * PAGE_BYTES as u64 + self.leaf.bytes() as u64
    }

    /// Versions added.
    pub(crate) fn versions(&self) -> u64 {
        self.tally.versions
    }

    /// The number of blob files that contain its values.
    pub(crate) fn blobs(&self) -> usize {
        self.tally.blobs.len()
    }

    /// The expiries of its values that expire.
    pub(crate) fn expiries(&self) -> Option<ExpiryRange> {
        self.tally.expiries
    }

    /// Writes the remaining pages and the footer. Returns the sink, not yet synced, and the table's
    /// metadata. At least one version must have been added.
    pub(crate) fn finish(mut self) -> Result<(S, TableInfo)> {
        assert!(self.versions() > 0, "a table holds at least one version");
        self.close_leaf(None)?;
        self.close_guide()?;
        let root = self.close_levels()?;
        let blobs_page = self.pages;
        self.write_blob_pages()?;
        let footer = self.tally.footer(
            self.pages + 1,
            root,
            blobs_page,
            self.pending,
            self.last_key.clone(),
        );
        let bytes = footer.write(self.memory.split().out);
        self.write_out(FOOTER_PAGE, bytes)?;
        let blobs = self.tally.blobs.iter().map(|&id| BlobId(id)).collect();
        let info = footer.into_info(self.sink.id(), blobs);
        Ok((self.sink, info))
    }

    fn assert_order(&self, order: Ordering, version: &Version<'_>) {
        let follows = match order {
            Ordering::Less => true,
            Ordering::Equal => self.tally.versions == 0 || version.glsn < self.tally.last_glsn,
            Ordering::Greater => false,
        };
        assert!(follows, "versions are added by key, then newest first");
        assert!(
            version.key.len() <= MAX_INDEX_KEY_BYTES,
            "an index key has at most {MAX_INDEX_KEY_BYTES} bytes"
        );
        assert!(!self.pending || version.glsn == Glsn::NONE, "a pending version has no GLSN yet");
    }

    /// Writes the open leaf, which must not be empty, and opens the one that begins with `next`.
    fn close_leaf(&mut self, next: Option<&Version<'_>>) -> Result<()> {
        if !self.guide.has_room(self.memory.split().fences, self.leaf_fence.get(), self.leaf_keys) {
            hit(Border::IndexBlockFull);
            self.close_guide()?;
        }
        let (draft, page) = self.memory.work[..2 * PAGE_BYTES].split_at_mut(PAGE_BYTES);
        let bytes = self.leaf.finish(
            &draft[PAGE_HEADER_BYTES..],
            &mut page[PAGE_HEADER_BYTES..],
            &self.last_key,
        );
        let number = write_sealed(&mut self.sink, &mut self.pages, page, LEAF_PAGE, bytes)?;
        self.guide.add(self.memory.split().fences, number, self.leaf_fence.get(), self.leaf_keys);
        self.leaf_keys = 0;
        if let Some(next) = next {
            self.leaf_fence.set(Fence::between(&self.last_key, self.tally.last_glsn, next.key));
        }
        Ok(())
    }

    /// Writes the open group's guide, if it has leaves.
    fn close_guide(&mut self) -> Result<()> {
        if self.guide.is_empty() {
            return Ok(());
        }
        let keys = self.guide.keys();
        let memory = self.memory.split();
        self.rising.set(self.guide.first_fence(memory.fences));
        let hashes = memory.hashes[..HASH_BYTES * keys]
            .chunks_exact(HASH_BYTES)
            .map(|hash| u32::from_le_bytes(hash.try_into().expect("chunks are four bytes")));
        let bytes = self.guide.finish(memory.fences, memory.out, hashes);
        self.memory.hashes.copy_within(HASH_BYTES * keys..HASH_BYTES * (keys + self.leaf_keys), 0);
        let number = self.write_out(GUIDE_PAGE, bytes)?;
        self.rise(0, number)
    }

    /// Adds a page, with the fence `self.rising` before it, to the inner page at `level`. A full
    /// inner page is first written and added to the next level.
    fn rise(&mut self, mut level: usize, mut child: u32) -> Result<()> {
        loop {
            if level == self.levels.len() {
                self.memory.add_level(level, &self.budget)?;
                self.levels.push(InnerDraft::new(level as u16 + 1));
            }
            let raw = self.memory.level(level).0;
            if self.levels[level].has_room(raw, self.rising.get()) {
                self.levels[level].add(raw, child, self.rising.get());
                return Ok(());
            }
            let mut fence = OwnedFence::lowest();
            fence.set(self.levels[level].first(raw).1);
            let number = self.write_inner(level)?;
            self.levels[level].add(self.memory.level(level).0, child, self.rising.get());
            self.rising = fence;
            child = number;
            level += 1;
        }
    }

    fn write_inner(&mut self, level: usize) -> Result<u32> {
        let (raw, out) = self.memory.level(level);
        let bytes = self.levels[level].finish(raw, out);
        self.write_out(INNER_PAGE, bytes)
    }

    /// Writes the remaining pages of every level. Returns the root's page number.
    fn close_levels(&mut self) -> Result<u32> {
        let mut level = 0;
        loop {
            let raw = self.memory.level(level).0;
            let (child, fence) = self.levels[level].first(raw);
            if level + 1 == self.levels.len() && self.levels[level].children() == 1 {
                return Ok(child);
            }
            self.rising.set(fence);
            let number = self.write_inner(level)?;
            self.rise(level + 1, number)?;
            level += 1;
        }
    }

    fn write_blob_pages(&mut self) -> Result<()> {
        let blobs = std::mem::take(&mut self.tally.blobs);
        let mut ids = blobs.iter().copied().peekable();
        while ids.peek().is_some() {
            let bytes = write_blobs(&mut ids, self.memory.split().out);
            self.write_out(BLOBS_PAGE, bytes)?;
        }
        self.tally.blobs = blobs;
        Ok(())
    }

    /// Seals and writes the page whose payload is in the memory's `out`.
    fn write_out(&mut self, kind: u8, payload_bytes: usize) -> Result<u32> {
        let page = &mut self.memory.work[PAGE_BYTES..2 * PAGE_BYTES];
        write_sealed(&mut self.sink, &mut self.pages, page, kind, payload_bytes)
    }
}

/// Seals a page, passes it to the sink, and returns its number.
fn write_sealed<S: PageSink>(
    sink: &mut S,
    pages: &mut u32,
    page: &mut [u8],
    kind: u8,
    bytes: usize,
) -> Result<u32> {
    let number = *pages;
    *pages = number.checked_add(1).expect("a table has far fewer than 2^32 pages");
    seal_page(page, sink.seed(), number, kind, bytes);
    sink.write_page(page)?;
    Ok(number)
}

struct BuilderBuffers<'a> {
    /// Payload of the page being assembled.
    out: &'a mut [u8],
    fences: &'a mut [u8],
    hashes: &'a mut [u8],
}

impl BuilderMemory {
    fn new(budget: &Budget) -> Result<Self> {
        let (work, hashes) = (budget.take(Kind::Sort)?, budget.take(Kind::Sort)?);
        Ok(Self { work, hashes, inner: vec![budget.take(Kind::Sort)?] })
    }

    fn split(&mut self) -> BuilderBuffers<'_> {
        let (pages, fences) = self.work.split_at_mut(2 * PAGE_BYTES);
        BuilderBuffers {
            out: &mut pages[PAGE_BYTES + PAGE_HEADER_BYTES..],
            fences,
            hashes: &mut self.hashes,
        }
    }

    fn add_level(&mut self, level: usize, budget: &Budget) -> Result<()> {
        if level / PAGES == self.inner.len() {
            self.inner.push(budget.take(Kind::Sort)?);
        }
        Ok(())
    }

    /// The raw children of a level, and the payload buffer of the page being assembled.
    fn level(&mut self, level: usize) -> (&mut [u8], &mut [u8]) {
        let start = level % PAGES * PAGE_BYTES;
        let raw = &mut self.inner[level / PAGES][start..start + PAGE_BYTES];
        (raw, &mut self.work[PAGE_BYTES + PAGE_HEADER_BYTES..2 * PAGE_BYTES])
    }

    fn push_hash(&mut self, at: usize, hash: u32) {
        self.hashes[HASH_BYTES * at..HASH_BYTES * (at + 1)].copy_from_slice(&hash.to_le_bytes());
    }
}

impl Tally {
    fn new(budget: &Budget) -> Result<Self> {
        Ok(Self {
            versions: 0,
            deletions: 0,
            first_key: Vec::new(),
            last_glsn: Glsn::NONE,
            min_glsn: Glsn::MAX,
            max_glsn: Glsn::NONE,
            min_pointer: None,
            log_bytes: 0,
            expiries: None,
            blobs: BTreeSet::new(),
            last_blob: None,
            blobs_lease: budget.lease(Kind::Sort, 0)?,
        })
    }

    fn note(&mut self, version: &Version<'_>) -> Result<()> {
        if self.versions == 0 {
            self.first_key.extend_from_slice(version.key);
        }
        self.versions += 1;
        self.last_glsn = version.glsn;
        self.min_glsn = self.min_glsn.min(version.glsn);
        self.max_glsn = self.max_glsn.max(version.glsn);
        if let Some(expiry) = version.stored.expiry() {
            self.expiries = with_expiry(self.expiries, expiry, version.keyspace());
        }
        match version.stored.value() {
            Stored::Deleted => self.deletions += 1,
            Stored::Inline(_) | Stored::Dropped { .. } | Stored::Expiring(_) => {}
            Stored::InLog { len, .. } => {
                self.log_bytes = self.log_bytes.saturating_add(len);
                self.min_pointer =
                    Some(self.min_pointer.map_or(version.glsn, |oldest| oldest.min(version.glsn)));
            }
            Stored::InBlob { blob, .. } => self.note_blob(blob)?,
        }
        Ok(())
    }

    fn note_blob(&mut self, blob: BlobId) -> Result<()> {
        if self.last_blob == Some(blob) || self.blobs.contains(&blob.0) {
            return Ok(());
        }
        self.blobs_lease.grow(BLOB_BYTES)?;
        self.blobs.insert(blob.0);
        self.last_blob = Some(blob);
        Ok(())
    }

    fn footer(
        &self,
        pages: u32,
        root: u32,
        blobs_page: u32,
        pending: bool,
        last_key: Vec<u8>,
    ) -> Footer {
        Footer {
            pages,
            root,
            versions: self.versions,
            deletions: self.deletions,
            min_glsn: self.min_glsn,
            max_glsn: self.max_glsn,
            min_pointer: self.min_pointer,
            log_bytes: Some(self.log_bytes),
            expiries: self.expiries,
            blobs: self.blobs.len() as u32,
            blobs_page,
            pending,
            first_key: self.first_key.clone(),
            last_key,
        }
    }
}
