//! Table metadata, which is available without reading the file, and point lookups in a table.

use std::fmt;
use std::sync::Arc;

use plimsoll_log::blob::BlobId;
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::page::PAGE_BYTES;
use plimsoll_memory::page::{PAGE_HEADER_BYTES, page_kind, page_payload};
use plimsoll_memory::pool::{LoadError, Page, PoolFile, Touch};

use crate::index::ranges::Fragment;
use crate::index::run::filter::{key_hash, stem_hash};
use crate::index::run::guide::{GUIDE_PAGE, Guide};
use crate::index::run::inner::{INNER_PAGE, Inner};
use crate::index::run::leaf::check::check_leaf;
use crate::index::run::leaf::{
    BRANCHES, Entry, LEAF_PAGE, Leaf, SeekResult, comes_before, has_branches,
};
use crate::types::error::{Error, Result};
use crate::types::expiry::ExpiryRange;
use crate::types::version::Stored;

/// Maximum number of leaves that an estimate reads between the first and the last one.
const LEAVES_SAMPLED: u32 = 8;

/// The location of a table's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum TableId {
    /// A file in the index's folder; ids are never used again.
    Run(u64),
    /// A blob file of the log.
    Blob(BlobId),
}

impl fmt::Display for TableId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run(id) => write!(f, "run {id}"),
            Self::Blob(blob) => write!(f, "blob file {}", blob.0),
        }
    }
}

/// The name of a run's file in the index's folder.
pub(crate) fn run_file_name(id: u64) -> String {
    format!("{id:020}.run")
}

impl TableId {
    /// The path of its file, relative to the store's folder.
    pub(crate) fn file(self) -> String {
        match self {
            Self::Run(id) => format!("index/{}", run_file_name(id)),
            Self::Blob(blob) => format!("log/{}", blob.file_name()),
        }
    }
}

/// Metadata of a table, kept in the manifest and in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableInfo {
    /// The table's id.
    pub(crate) id: TableId,
    /// Number of pages.
    pub(crate) pages: u32,
    /// Page number of the root.
    pub(crate) root: u32,
    /// Number of versions.
    pub(crate) versions: u64,
    /// Number of deletions among them.
    pub(crate) deletions: u64,
    /// The first index key.
    pub(crate) first_key: Vec<u8>,
    /// The last index key.
    pub(crate) last_key: Vec<u8>,
    /// The oldest commit.
    pub(crate) min_glsn: Glsn,
    /// The newest commit.
    pub(crate) max_glsn: Glsn,
    /// The oldest log entry that one of its values points to.
    pub(crate) min_pointer: Option<Glsn>,
    /// Bytes of its values that are in log entries; `None` if an earlier version, which did not
    /// count them, wrote the table.
    pub(crate) log_bytes: Option<u64>,
    /// Blob files that its values point to, sorted.
    pub(crate) blobs: Vec<BlobId>,
    /// If set, every version has this GLSN, regardless of the pages (a transaction that was written
    /// before its GLSN was known).
    pub(crate) fixed_glsn: Option<Glsn>,
    /// The expiries of its values that expire; `None` if there are none, or if they are unknown.
    pub(crate) expiries: Option<ExpiryRange>,
    /// Range deletions up to this GLSN are absorbed: the table has a point deletion wherever one of
    /// them deleted a version in it.
    pub(crate) absorbed: Glsn,
    /// If the file is packed: the pages that it has room for.
    pub(crate) packed: Option<u32>,
}

/// The largest table that is rewritten only to free blob files.
const SMALL_BYTES: u64 = 256 << 10;

impl TableInfo {
    /// Size of its pages, which may be stored compressed.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.pages) * PAGE_BYTES as u64
    }

    /// Size of its file.
    pub(crate) fn file_bytes(&self) -> u64 {
        u64::from(self.packed.unwrap_or(self.pages)) * PAGE_BYTES as u64
    }

    /// Whether rewriting the table in a merge is worth it, if that drops `expired` values and the
    /// versions that deletions hide.
    pub(crate) fn is_worth_rewriting(&self, expired: u64) -> bool {
        2 * (self.deletions + expired) > self.versions || self.frees_blobs(expired)
    }

    /// Whether all values that expire have expired, some values are in blob files, and the table is
    /// small: their files may be much larger than the table, and rewriting it costs little.
    pub(crate) fn frees_blobs(&self, expired: u64) -> bool {
        self.expiries.is_some_and(|expiries| expired >= expiries.values)
            && !self.blobs.is_empty()
            && self.bytes() <= SMALL_BYTES
    }

    /// Whether the deletion of `range` at `glsn` may hide a version of the table that no point
    /// deletion in the table hides.
    pub(crate) fn needs(&self, range: &Fragment, glsn: Glsn) -> bool {
        self.absorbed < glsn
            && self.min_glsn < glsn
            && *range.first <= *self.last_key
            && *self.first_key < *range.end
    }
}

/// A table open for reading.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    /// Its metadata.
    pub(crate) info: Arc<TableInfo>,
    /// Its pages in the pool.
    pub(crate) file: PoolFile,
}

/// The result of a point lookup.
#[derive(Debug)]
pub(crate) struct Lookup {
    /// The newest version of the key in this table, regardless of the snapshot.
    pub(crate) newest: Option<Glsn>,
    /// The newest version that is not younger than the snapshot.
    pub(crate) found: Option<Found>,
    /// Whether some page was not in memory.
    pub(crate) missed: bool,
}

/// The leaf that may hold a key, according to its guide.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Guided {
    /// Its page; `None` if the filter excludes the key.
    pub(crate) leaf: Option<u32>,
    /// Number of pages that were not in memory.
    pub(crate) misses: u32,
}

/// A version on a pinned page.
#[derive(Debug)]
pub(crate) struct Found {
    /// The commit that wrote it.
    pub(crate) glsn: Glsn,
    page: Page,
    tag: u8,
    start: u32,
    end: u32,
}

impl Found {
    /// Its stored form.
    pub(crate) fn stored(&self) -> Stored<'_> {
        Stored::from_parts(self.tag, &self.page[self.start as usize..self.end as usize])
            .expect("it was decoded when it was found, and pages do not change")
    }
}

/// The result of searching a leaf for a version of a key.
#[derive(Debug)]
enum InLeaf {
    Found(Found),
    /// The leaf continues with another key.
    Absent,
    /// The leaf ends before the version.
    After,
}

impl InLeaf {
    fn found(self) -> Option<Found> {
        match self {
            Self::Found(found) => Some(found),
            Self::Absent | Self::After => None,
        }
    }
}

/// The result of one level of a descent.
pub(crate) enum Step<'a> {
    /// The next page further down.
    Child(u32),
    /// The page itself, which is a guide.
    Guide(Guide<'a>),
}

impl Lookup {
    fn nothing(missed: bool) -> Self {
        Self { newest: None, found: None, missed }
    }
}

impl Table {
    /// Looks `key` up as of `at`. The filter is checked first: an absent key usually reads no leaf.
    pub(crate) fn lookup(&self, key: &[u8], at: Glsn, touch: Touch) -> Result<Lookup> {
        if key < &self.info.first_key[..] || key > &self.info.last_key[..] {
            return Ok(Lookup::nothing(false));
        }
        let Guided { leaf, misses } = self.leaf_that_may_have(key, touch)?;
        let mut missed = misses > 0;
        let Some(leaf) = leaf else { return Ok(Lookup::nothing(missed)) };
        let InLeaf::Found(newest) = self.find_in_leaf(leaf, key, Glsn::MAX, touch, &mut missed)?
        else {
            return Ok(Lookup::nothing(missed));
        };
        let newest_glsn = Some(newest.glsn);
        if newest.glsn <= at {
            return Ok(Lookup { newest: newest_glsn, found: Some(newest), missed });
        }
        // An older version is in the same leaf, unless the key's versions continue in the next one.
        let mut found = self.find_in_page(leaf, newest.page, key, at)?;
        if matches!(found, InLeaf::After) {
            let (leaf, _) = self.leaf_of(key, at, touch)?;
            found = self.find_in_leaf(leaf, key, at, touch, &mut missed)?;
        }
        Ok(Lookup { newest: newest_glsn, found: found.found(), missed })
    }

    /// Like [`Table::lookup`], but does not return the newest version. This saves a search if the
    /// newest version is younger than `at`. Returns the version, and whether some page was not in
    /// memory.
    pub(crate) fn find_as_of(
        &self,
        key: &[u8],
        at: Glsn,
        touch: Touch,
    ) -> Result<(Option<Found>, bool)> {
        if key < &self.info.first_key[..] || key > &self.info.last_key[..] {
            return Ok((None, false));
        }
        let Guided { leaf, misses } = self.leaf_that_may_have_at(key, at, touch)?;
        let mut missed = misses > 0;
        let Some(leaf) = leaf else { return Ok((None, missed)) };
        let found = self.find_in_leaf(leaf, key, at, touch, &mut missed)?.found();
        Ok((found, missed))
    }

    /// The leaf in which `key` begins, unless the filter excludes the key.
    pub(crate) fn leaf_that_may_have(&self, key: &[u8], touch: Touch) -> Result<Guided> {
        self.leaf_that_may_have_at(key, Glsn::MAX, touch)
    }

    /// The leaf that contains (`key`, `glsn`), unless the filter excludes the key.
    fn leaf_that_may_have_at(&self, key: &[u8], glsn: Glsn, touch: Touch) -> Result<Guided> {
        let (number, page, misses) = self.guide_of(key, glsn, touch)?;
        let guide = self.read(number, Guide::new(page_payload(&page)))?;
        if !guide.may_contain(key_hash(key)) {
            return Ok(Guided { leaf: None, misses });
        }
        let leaf = self.read(number, guide.find(key, glsn))?;
        Ok(Guided { leaf: Some(leaf), misses })
    }

    /// Whether any chain of a branch may have a version of the key with this stem, whose last
    /// possible index key is `last`.
    pub(crate) fn may_have_stem(&self, stem: &[u8], last: &[u8], touch: Touch) -> Result<bool> {
        // Read the guide of the last possible key: no fence behind it has this stem, because no
        // stem is a prefix of another, and a fence has one byte more than its neighbours share.
        let (number, page, _) = self.guide_of(last, Glsn::MAX, touch)?;
        let guide = self.read(number, Guide::new(page_payload(&page)))?;
        Ok(guide.may_contain(stem_hash(stem)))
    }

    /// Searches a leaf for the newest version of `key` that is not younger than `at`. Sets `missed`
    /// if the leaf was not in memory.
    fn find_in_leaf(
        &self,
        number: u32,
        key: &[u8],
        at: Glsn,
        touch: Touch,
        missed: &mut bool,
    ) -> Result<InLeaf> {
        let page = self.load(number, touch)?;
        *missed |= page.is_miss();
        self.find_in_page(number, page, key, at)
    }

    /// Like [`Table::find_in_leaf`], in a page that is held already.
    fn find_in_page(&self, number: u32, page: Page, key: &[u8], at: Glsn) -> Result<InLeaf> {
        let leaf = self.leaf(number, &page)?;
        let spot = match self.read(number, leaf.seek(key, at))? {
            SeekResult::At(spot, true) => spot,
            SeekResult::At(_, false) => return Ok(InLeaf::Absent),
            SeekResult::After => return Ok(InLeaf::After),
        };
        self.read(number, leaf.stored(&spot.entry))?;
        let Entry { body, end, tag, glsn, .. } = spot.entry;
        let (start, end) = ((PAGE_HEADER_BYTES + body) as u32, (PAGE_HEADER_BYTES + end) as u32);
        Ok(InLeaf::Found(Found { glsn, page, tag: tag as u8, start, end }))
    }

    /// The page of the leaf that contains (`key`, `glsn`), and the number of leaves of its guide.
    /// If the leaf ends before that version, the next leaf begins after it.
    fn leaf_of(&self, key: &[u8], glsn: Glsn, touch: Touch) -> Result<(u32, u32)> {
        let (number, page, _) = self.guide_of(key, glsn, touch)?;
        let guide = self.read(number, Guide::new(page_payload(&page)))?;
        Ok((self.read(number, guide.find(key, glsn))?, guide.leaves()))
    }

    /// Estimates a sum over the versions from `from` up to `to` (`None`: the table's ends), in the
    /// order of keys and then newest first. `weigh` is called with the keys and stored forms of the
    /// first leaf, the last one, and a few in between. Exact if there are only a few leaves.
    pub(crate) fn estimate(
        &self,
        from: Option<(&[u8], Glsn)>,
        to: Option<(&[u8], Glsn)>,
        mut weigh: impl FnMut(&[u8], Stored<'_>) -> f64,
    ) -> Result<f64> {
        let info = &self.info;
        let (begin, end) = ((&info.first_key[..], Glsn::MAX), (&info.last_key[..], Glsn::NONE));
        let is_before = |(key, glsn): (&[u8], Glsn), place: (&[u8], Glsn)| {
            comes_before(key.cmp(place.0), glsn, place.1)
        };
        let from = from.filter(|from| is_before(begin, *from)).unwrap_or(begin);
        let to = to.filter(|to| is_before(*to, end)).unwrap_or(end);
        let (first, of_guide) = self.leaf_of(from.0, from.1, Touch::Scan)?;
        let (last, _) = self.leaf_of(to.0, to.1, Touch::Scan)?;
        let mut in_leaf = |number: u32| -> Result<Option<f64>> {
            let page = self.load(number, Touch::Scan)?;
            if page_kind(&page) != LEAF_PAGE {
                return Ok(None);
            }
            let mut sum = 0.0;
            let each = |key: &[u8], glsn, stored: Stored<'_>| {
                if !is_before((key, glsn), from) && is_before((key, glsn), to) {
                    sum += weigh(key, stored);
                }
            };
            check_leaf(page_payload(&page), info.fixed_glsn, each)
                .map_err(|fault| self.corrupt(number, fault))?;
            Ok(Some(sum))
        };
        let mut sum = in_leaf(first)?.unwrap_or(0.0);
        if last > first {
            sum += in_leaf(last)?.unwrap_or(0.0);
        }
        let between = last.saturating_sub(first + 1);
        let pages = between.min(LEAVES_SAMPLED);
        let (mut sampled, mut leaves) = (0.0, 0.0);
        for page in 0..pages {
            let number = first
                + 1
                + (u64::from(between) * u64::from(2 * page + 1) / u64::from(2 * pages)) as u32;
            // Use the next page if this one is not a leaf.
            let there = match in_leaf(number)? {
                None if number + 1 < last && pages < between => in_leaf(number + 1)?,
                there => there,
            };
            if let Some(in_leaf) = there {
                (sampled, leaves) = (sampled + in_leaf, leaves + 1.0);
            }
        }
        if pages == between {
            return Ok(sum + sampled);
        }
        // Subtract the guides: there is one per as many leaves as the first leaf's guide has.
        let leaves_between = f64::from(between) * f64::from(of_guide) / f64::from(of_guide + 1);
        Ok(sum + sampled / f64::max(leaves, 1.0) * leaves_between)
    }

    /// Keys at about equal intervals, including the first. Reads one or two pages per further key.
    pub(crate) fn sample_keys(&self, count: usize) -> Result<Vec<Vec<u8>>> {
        let mut keys = vec![self.info.first_key.clone()];
        for part in 1..count {
            keys.push(self.sample_leaf(part, count)?.0);
        }
        Ok(keys)
    }

    /// The first key and the number of versions of the leaf at the fraction `part`/`count` of the
    /// table.
    pub(crate) fn sample_leaf(&self, part: usize, count: usize) -> Result<(Vec<u8>, usize)> {
        let mut number = (u64::from(self.info.root) * part as u64 / count as u64).max(1) as u32;
        let mut page = self.load(number, Touch::Scan)?;
        while page_kind(&page) != LEAF_PAGE && number > 1 {
            number -= 1;
            page = self.load(number, Touch::Scan)?;
        }
        let leaf = self.leaf(number, &page)?;
        Ok((leaf.first_key().to_vec(), leaf.entries()))
    }

    /// The guide of the leaf that contains (`key`, `glsn`), and the number of pages on the path
    /// that were not in memory.
    fn guide_of(&self, key: &[u8], glsn: Glsn, touch: Touch) -> Result<(u32, Page, u32)> {
        let (mut number, mut misses) = (self.info.root, 0);
        loop {
            let page = self.load(number, touch)?;
            misses += u32::from(page.is_miss());
            match self.step_down(number, &page, key, glsn)? {
                Step::Guide(_) => return Ok((number, page, misses)),
                Step::Child(child) => number = child,
            }
        }
    }

    /// Reads page `number` on the path from the root to (`key`, `glsn`).
    pub(crate) fn step_down<'a>(
        &self,
        number: u32,
        page: &'a [u8],
        key: &[u8],
        glsn: Glsn,
    ) -> Result<Step<'a>> {
        let payload = page_payload(page);
        match page_kind(page) {
            GUIDE_PAGE => Ok(Step::Guide(self.read(number, Guide::new(payload))?)),
            INNER_PAGE => {
                let child =
                    self.read(number, Inner::new(payload).and_then(|inner| inner.find(key, glsn)))?;
                // Children are stored before their parents, so every descent ends.
                if child < number {
                    Ok(Step::Child(child))
                } else {
                    Err(self.corrupt(number, "a child that is stored after it"))
                }
            }
            _ => Err(self.corrupt(number, "neither a guide nor an inner page")),
        }
    }

    /// The leaf on page `number`.
    pub(crate) fn leaf<'a>(&self, number: u32, page: &'a [u8]) -> Result<Leaf<'a>> {
        if page_kind(page) != LEAF_PAGE {
            return Err(self.corrupt(number, "no leaf"));
        }
        let payload = page_payload(page);
        match Leaf::new(payload, self.info.fixed_glsn) {
            None if has_branches(payload) => Err(Error::format(format!(
                "{}, page {number}: {BRANCHES}; use that version",
                self.info.id
            ))),
            leaf => self.read(number, leaf),
        }
    }

    fn load(&self, number: u32, touch: Touch) -> Result<Page> {
        if number >= self.info.pages {
            return Err(self.corrupt(number, "a reference to a page after the last"));
        }
        self.file.get(number, touch).map_err(|error| self.failed_to_load(error))
    }

    /// The data decoded from page `number`, or an error if there is none.
    pub(crate) fn read<T>(&self, number: u32, read: Option<T>) -> Result<T> {
        read.ok_or_else(|| self.corrupt(number, "bytes that are invalid for a page of its kind"))
    }

    pub(crate) fn corrupt(&self, number: u32, what: &str) -> Error {
        Error::damaged(format_args!("{}, page {number}: found {what}", self.info.id))
            .in_file(|| self.info.id.file())
    }

    /// The error for a page that cannot be loaded, with the name of the file.
    pub(crate) fn failed_to_load(&self, error: LoadError) -> Error {
        Error::of_load(error).in_file(|| self.info.id.file())
    }
}
