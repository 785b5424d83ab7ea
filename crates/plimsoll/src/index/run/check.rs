//! Verifies a table completely.
//!
//! Reads each page once from the file, bypassing the pool, from the root downwards. Checks its
//! checksum and location, the order of its keys, their fences and filter, and finally that all
//! counts agree with the footer and the manifest.

use std::io::ErrorKind;

use plimsoll_log::blob::BlobId;
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::{Budget, Kind};
use plimsoll_memory::page::{PAGE_BYTES, page_kind, page_payload};

use crate::index::run::ends::with_expiry;
use crate::index::run::fences::{Fences, OwnedFence};
use crate::index::run::file::read_info;
use crate::index::run::filter::key_hash;
use crate::index::run::guide::{GUIDE_PAGE, check_guide};
use crate::index::run::inner::{INNER_PAGE, check_inner};
use crate::index::run::leaf::LEAF_PAGE;
use crate::index::run::leaf::check::check_leaf;
use crate::index::run::table::{Table, TableInfo};
use crate::types::error::{Error, Lift, Result, strip_advice};
use crate::types::expiry::ExpiryRange;
use crate::types::index_key::IndexKey;
use crate::types::version::{Stored, Version};

/// The check stops after this many problems.
const MAX_PROBLEMS: usize = 100;

/// Maximum number of levels of inner pages; no table has more.
const MAX_HEIGHT: usize = 32;

/// Reads the whole table and returns its problems, none if it is sound. `each` receives every
/// version.
///
/// # Errors
/// The budget refuses; the check is then incomplete. Disk errors are reported as problems.
pub(crate) fn check_table(
    table: &Table,
    budget: &Budget,
    each: &mut dyn FnMut(&Version<'_>),
) -> Result<Vec<String>> {
    let info = &table.info;
    let mut walk = Walk { table, budget, each, problems: Vec::new(), seen: Seen::default() };
    let read = read_info(&**table.file.source(), info.pages, info.id, budget);
    let Some(footer) = walk.keep(read)? else { return Ok(walk.problems) };
    if !agree(&footer, info) {
        walk.report(format!("{}: the footer has {footer:?}, the manifest {info:?}", info.id));
    }
    walk.seen.blobs.clone_from(&footer.blobs);
    walk.check_tree(footer.root, None, &Bounds { lower: OwnedFence::lowest(), upper: None })?;
    if let Err(error) = table.file.source().check_rest() {
        walk.keep(Err::<(), _>(table.failed_to_load(error)))?;
    }
    if walk.problems.is_empty() && !walk.seen.agrees(&footer) {
        let seen = format!("{:?}", walk.seen);
        walk.report(format!("{}: the footer has {footer:?}, the pages have {seen}", info.id));
    }
    Ok(walk.problems)
}

/// A fault of a page.
type Fault = Option<&'static str>;

/// Whether a footer agrees with the manifest.
fn agree(footer: &TableInfo, info: &TableInfo) -> bool {
    let mut footer = footer.clone();
    if info.fixed_glsn.is_some() {
        // The footer was written before the GLSN was known.
        (footer.min_glsn, footer.max_glsn, footer.min_pointer) =
            (info.min_glsn, info.max_glsn, info.min_pointer);
    }
    footer.fixed_glsn = info.fixed_glsn;
    footer.packed = info.packed;
    // The footer does not record up to which GLSN range deletions are absorbed.
    footer.absorbed = info.absorbed;
    footer == *info
}

struct Walk<'a> {
    table: &'a Table,
    budget: &'a Budget,
    each: &'a mut dyn FnMut(&Version<'_>),
    problems: Vec<String>,
    seen: Seen,
}

impl Walk<'_> {
    fn report(&mut self, problem: String) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(problem);
        }
    }

    fn report_page(&mut self, number: u32, what: &str) {
        self.report(format!("{}, page {number}: {what}", self.table.info.id));
    }

    /// The result of a read. An error is recorded as a problem, unless the budget refused.
    fn keep<T>(&mut self, read: Result<T>) -> Result<Option<T>> {
        match read {
            Ok(value) => Ok(Some(value)),
            Err(error @ Error::OutOfBudget(_)) => Err(error),
            // The page is sound, but this build cannot decompress it.
            Err(error @ Error::Io { kind: ErrorKind::Unsupported, .. }) => Err(error),
            Err(error) => {
                self.report(strip_advice(&error.to_string()).to_owned());
                Ok(None)
            }
        }
    }

    fn load(&mut self, number: u32, page: &mut [u8]) -> Result<bool> {
        self.seen.tree_pages += 1;
        let loaded = self.table.file.source().load(number, page);
        Ok(self.keep(loaded.lift())?.is_some())
    }

    /// Checks a page and everything below it. `height` is known for all pages but the root.
    fn check_tree(&mut self, number: u32, height: Option<usize>, bounds: &Bounds) -> Result<()> {
        let mut chunk = self.budget.take(Kind::Sort)?;
        let (page, rest) = chunk.split_at_mut(PAGE_BYTES);
        if !self.load(number, page)? {
            return Ok(());
        }
        let payload = page_payload(page);
        let flaw = match (page_kind(page), height) {
            (GUIDE_PAGE, None | Some(0)) => {
                self.check_group(number, payload, &mut rest[..PAGE_BYTES], bounds)?
            }
            (INNER_PAGE, None | Some(1..)) => {
                self.check_children(number, payload, height, bounds)?
            }
            _ => Some("the page's kind differs from the one that its parent implies"),
        };
        if let Some(what) = flaw {
            self.report_page(number, what);
        }
        Ok(())
    }

    /// Checks an inner page and everything below it. Returns the fault of the page itself.
    fn check_children(
        &mut self,
        number: u32,
        payload: &[u8],
        height: Option<usize>,
        bounds: &Bounds,
    ) -> Result<Fault> {
        let inner = match check_inner(payload) {
            Ok(inner) => inner,
            Err(what) => return Ok(Some(what)),
        };
        if !(1..=MAX_HEIGHT).contains(&inner.height())
            || height.is_some_and(|height| height != inner.height())
        {
            return Ok(Some("the page's height differs from the one that its parent implies"));
        }
        for child in 0..inner.children() {
            match (inner.child(child), bounds.of_child(inner.fences(), child, inner.children())) {
                (Some(page), Some(bounds)) if page < number => {
                    self.check_tree(page, Some(inner.height() - 1), &bounds)?;
                }
                _ => return Ok(Some("a child is missing, or stored after its parent")),
            }
            if self.problems.len() >= MAX_PROBLEMS {
                break;
            }
        }
        Ok(None)
    }

    /// Checks a guide and its leaves, which are read into `page`. Returns the fault of the guide
    /// itself.
    fn check_group(
        &mut self,
        number: u32,
        payload: &[u8],
        page: &mut [u8],
        bounds: &Bounds,
    ) -> Result<Fault> {
        let guide = match check_guide(payload) {
            Ok(guide) => guide,
            Err(what) => return Ok(Some(what)),
        };
        if guide.first_leaf() + guide.leaves() != number {
            return Ok(Some("the guide does not follow its leaves"));
        }
        let mut keys = 0;
        for leaf in 0..guide.leaves() {
            let Some(bounds) =
                bounds.of_child(guide.fences(), leaf as usize, guide.leaves() as usize)
            else {
                return Ok(Some("a fence cannot be decoded"));
            };
            let leaf = guide.first_leaf() + leaf;
            if self.load(leaf, page)? {
                keys +=
                    self.check_leaf(leaf, page, &bounds, |key| guide.may_contain(key_hash(key)));
            }
        }
        Ok((keys != guide.keys())
            .then_some("the guide's key count differs from that of its leaves"))
    }

    /// Checks a leaf. Returns the number of its keys.
    fn check_leaf(
        &mut self,
        number: u32,
        page: &[u8],
        bounds: &Bounds,
        passes: impl Fn(&[u8]) -> bool,
    ) -> u32 {
        if page_kind(page) != LEAF_PAGE {
            self.report_page(number, "the page is not a leaf");
            return 0;
        }
        let (mut keys, mut last_key) = (0, Vec::new());
        let (mut is_outside, mut is_filtered, mut is_loose) = (false, false, false);
        let (seen, each, fixed) = (&mut self.seen, &mut *self.each, self.table.info.fixed_glsn);
        let checked = check_leaf(page_payload(page), None, |key, glsn, stored| {
            is_outside |= !bounds.hold(key, glsn);
            if keys == 0 || last_key != key {
                keys += 1;
                is_filtered |= !passes(key);
                key.clone_into(&mut last_key);
            }
            is_loose |= !seen.note(key, glsn, stored);
            each(&Version { key, glsn: fixed.unwrap_or(glsn), stored });
        });
        if let Err(what) = checked {
            self.report_page(number, what);
        }
        let findings = [
            (is_outside, "a version is outside the fences around its leaf"),
            (is_filtered, "a key does not pass the filter of its group"),
            (is_loose, "a value is in a blob file that the footer does not name"),
        ];
        for (_, what) in findings.iter().filter(|(is_found, _)| *is_found) {
            self.report_page(number, what);
        }
        keys
    }
}

/// The fences around a page.
struct Bounds {
    lower: OwnedFence,
    upper: Option<OwnedFence>,
}

impl Bounds {
    fn hold(&self, key: &[u8], glsn: Glsn) -> bool {
        let is_below = self.upper.as_ref().is_none_or(|upper| !upper.get().is_left_of(key, glsn));
        is_below && self.lower.get().is_left_of(key, glsn)
    }

    /// The fences around child `number` of `children`; `self` are those around the parent.
    fn of_child(&self, fences: &Fences<'_>, number: usize, children: usize) -> Option<Self> {
        let mut key = Vec::new();
        let lower =
            if number == 0 { self.lower.clone() } else { fences.before(number, &mut key)?.into() };
        let is_last = number + 1 == children;
        let upper = if is_last {
            self.upper.clone()
        } else {
            Some(fences.before(number + 1, &mut key)?.into())
        };
        Some(Self { lower, upper })
    }
}

/// Statistics of the visited pages.
#[derive(Debug, Default)]
struct Seen {
    tree_pages: u32,
    versions: u64,
    deletions: u64,
    glsns: Option<(Glsn, Glsn)>,
    min_pointer: Option<Glsn>,
    log_bytes: u64,
    expiries: Option<ExpiryRange>,
    first_key: Vec<u8>,
    last_key: Vec<u8>,
    /// The blob files that the footer names; values may point to no others.
    blobs: Vec<BlobId>,
}

impl Seen {
    /// Counts a version. Returns whether its value is in an allowed place.
    fn note(&mut self, key: &[u8], glsn: Glsn, stored: Stored<'_>) -> bool {
        if self.versions == 0 {
            key.clone_into(&mut self.first_key);
        }
        key.clone_into(&mut self.last_key);
        self.versions += 1;
        let (min, max) = self.glsns.unwrap_or((glsn, glsn));
        self.glsns = Some((min.min(glsn), max.max(glsn)));
        if let Some(expiry) = stored.expiry() {
            self.expiries = with_expiry(self.expiries, expiry, IndexKey::new(key).keyspace());
        }
        match stored.value() {
            Stored::Deleted => self.deletions += 1,
            Stored::Inline(_) | Stored::Dropped { .. } | Stored::Expiring(_) => {}
            Stored::InLog { len, .. } => {
                self.min_pointer = Some(self.min_pointer.map_or(glsn, |oldest| oldest.min(glsn)));
                // Saturate, because a damaged page can contain any length.
                self.log_bytes = self.log_bytes.saturating_add(len);
            }
            Stored::InBlob { blob, .. } => return self.blobs.binary_search(&blob).is_ok(),
        }
        true
    }

    /// Whether the counts agree with the footer. Pages 1 to the root are all pages between header
    /// and footer.
    fn agrees(&self, footer: &TableInfo) -> bool {
        self.tree_pages == footer.root
            && (self.versions, self.deletions) == (footer.versions, footer.deletions)
            && self.glsns == Some((footer.min_glsn, footer.max_glsn))
            && self.min_pointer == footer.min_pointer
            && self.expiries == footer.expiries
            && footer.log_bytes.is_none_or(|bytes| bytes == self.log_bytes)
            && (&self.first_key, &self.last_key) == (&footer.first_key, &footer.last_key)
    }
}
