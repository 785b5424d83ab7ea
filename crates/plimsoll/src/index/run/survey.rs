//! Reads the readable part of a damaged table: its leaves in file order, without guides and inner
//! pages, which may be damaged as well.
//!
//! Invariants:
//! 1. For each unreadable leaf, the span of keys that it may have held is reported. An unreadable
//!    guide or inner page loses no version.
//! 2. A leaf with a valid checksum counts as unreadable if its content is impossible: keys outside
//!    the table, or versions that do not follow the preceding ones. In the latter case the
//!    preceding leaf may be the wrong one, so the span includes both.

use std::io::ErrorKind;

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::{Budget, Kind};
use plimsoll_memory::page::{PAGE_BYTES, page_kind, page_payload};
use plimsoll_memory::pool::{LoadError, PageSource};

use crate::index::run::guide::{GUIDE_PAGE, Guide};
use crate::index::run::leaf::check::check_leaf;
use crate::index::run::leaf::{LEAF_PAGE, comes_before};
use crate::index::run::table::TableInfo;
use crate::types::error::{Error, Result};
use crate::types::version::Version;

/// The unreadable parts of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Survey {
    /// The first damaged page, and the number of damaged pages.
    pub(crate) bad: Option<(u32, u32)>,
    /// The key spans of lost leaves, in key order.
    pub(crate) lost: Vec<LostSpan>,
}

/// A span of index keys whose versions may be lost, from `first` to `last`. Each bound may be
/// inclusive or exclusive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LostSpan {
    pub(crate) page: u32,
    pub(crate) first: Vec<u8>,
    pub(crate) with_first: bool,
    pub(crate) last: Vec<u8>,
    pub(crate) with_last: bool,
}

impl LostSpan {
    /// Whether versions of `key` may be lost.
    pub(crate) fn holds(&self, key: &[u8]) -> bool {
        let above = key > &self.first[..] || (self.with_first && key == &self.first[..]);
        above && (key < &self.last[..] || (self.with_last && key == &self.last[..]))
    }
}

/// An unreadable page whose kind or following key is still unknown.
struct Missing {
    page: u32,
    /// The last readable key before it.
    before: Option<Vec<u8>>,
    /// The first readable key after it, and whether versions of that key may be lost as well.
    behind: Option<(Vec<u8>, bool)>,
    is_leaf: Option<bool>,
}

/// A version's position in the order.
type Spot = (Vec<u8>, Glsn);

/// The first and the last version of a leaf.
struct Ends {
    first: Spot,
    last: Spot,
}

impl Ends {
    /// The ends of a leaf, if it can be decoded and holds only keys of the table.
    fn of(payload: &[u8], info: &TableInfo) -> Option<Self> {
        let (mut first, mut last): (Option<Spot>, Spot) = (None, (Vec::new(), Glsn::NONE));
        let checked = check_leaf(payload, info.fixed_glsn, |key, glsn, _| {
            first.get_or_insert_with(|| (key.to_vec(), glsn));
            key.clone_into(&mut last.0);
            last.1 = glsn;
        });
        let first = first.filter(|_| checked.is_ok())?;
        (first.0 >= info.first_key && last.0 <= info.last_key).then_some(Self { first, last })
    }
}

/// The end of the versions that were accepted.
#[derive(Default)]
struct Taken {
    /// The last key before the last leaf.
    before: Option<Vec<u8>>,
    last: Option<Spot>,
}

impl Taken {
    fn last_key(&self) -> Option<Vec<u8>> {
        self.last.as_ref().map(|(key, _)| key.clone())
    }

    /// Whether a version may follow the accepted ones.
    fn leads_to(&self, (key, glsn): &Spot) -> bool {
        self.last.as_ref().is_none_or(|(last, newer)| comes_before(last.cmp(key), *newer, *glsn))
    }

    fn add(&mut self, last: Spot) {
        self.before = self.last_key();
        self.last = Some(last);
    }
}

/// The survey stops after this many consecutive unreadable pages, more than any table has.
const BAD_MAX: u32 = 1 << 16;

/// Reads a table; `each` receives every readable version, in order. `source` is `None` if the file
/// is missing.
///
/// # Errors
/// The budget refuses, or `each` fails. A page that the disk cannot read counts as unreadable.
pub(crate) fn survey(
    source: Option<&dyn PageSource>,
    info: &TableInfo,
    budget: &Budget,
    each: &mut dyn FnMut(&Version<'_>) -> Result<()>,
) -> Result<Survey> {
    let mut found = Survey::default();
    let mut missing: Vec<Missing> = Vec::new();
    let Some(source) = source else {
        found.bad = Some((0, info.pages));
        missing.push(Missing { page: 0, before: None, behind: None, is_leaf: Some(true) });
        found.close(missing, info);
        return Ok(found);
    };
    let mut chunk = budget.take(Kind::Sort)?;
    let page = &mut chunk[..PAGE_BYTES];
    let (mut taken, mut in_a_row) = (Taken::default(), 0u32);
    for number in 0..info.pages {
        let is_good = match source.load(number, page) {
            Ok(()) => true,
            // The page is sound, but this build cannot decompress it.
            Err(error @ LoadError::Io { kind: ErrorKind::Unsupported, .. }) => {
                return Err(Error::of_load(error));
            }
            Err(LoadError::Corrupt { .. } | LoadError::Io { .. }) => false,
            Err(error) => return Err(Error::of_load(error)),
        };
        in_a_row = if is_good { 0 } else { in_a_row + 1 };
        if in_a_row > BAD_MAX {
            // The file has ended, regardless of the length in the manifest.
            break;
        }
        let in_tree = (1..=info.root).contains(&number);
        let payload = if is_good { page_payload(page) } else { &[] };
        let kind = if is_good { page_kind(page) } else { 0 };
        let ends = if kind == LEAF_PAGE && in_tree { Ends::of(payload, info) } else { None };
        if let Some(ends) = ends {
            if !taken.leads_to(&ends.first) {
                found.note_bad(number);
                let before = taken.before.clone();
                missing.push(Missing { page: number, before, behind: None, is_leaf: Some(true) });
                continue;
            }
            let mut outcome = Ok(());
            let read = check_leaf(payload, info.fixed_glsn, |key, glsn, stored| {
                if outcome.is_ok() {
                    outcome = each(&Version { key, glsn, stored });
                }
            });
            debug_assert!(read.is_ok(), "the leaf was decoded above");
            outcome?;
            let open = missing.iter_mut().filter(|missing| missing.behind.is_none());
            open.for_each(|missing| missing.behind = Some((ends.first.0.clone(), true)));
            taken.add(ends.last);
            continue;
        }
        let guide = if kind == GUIDE_PAGE && in_tree { Guide::new(payload) } else { None };
        if let Some(guide) = guide {
            found.take_guide(&guide, &mut missing, info);
        } else if !is_good || kind == LEAF_PAGE || kind == GUIDE_PAGE {
            found.note_bad(number);
            if in_tree {
                missing.push(Missing {
                    page: number,
                    before: taken.last_key(),
                    behind: None,
                    is_leaf: None,
                });
            }
        }
    }
    judge(&mut missing, u32::MAX);
    found.close(missing, info);
    Ok(found)
}

/// Decides the kind of the unreadable pages below `first_leaf` that no guide describes. A single
/// one is the guide of the leaves before it, or an inner page. If there are several, some may have
/// been leaves.
fn judge(missing: &mut [Missing], first_leaf: u32) {
    let unknown = |missing: &&mut Missing| missing.is_leaf.is_none() && missing.page < first_leaf;
    let count = missing.iter_mut().filter(unknown).count();
    missing.iter_mut().filter(unknown).for_each(|missing| missing.is_leaf = Some(count > 1));
}

impl Survey {
    fn note_bad(&mut self, number: u32) {
        let (first, count) = self.bad.unwrap_or((number, 0));
        self.bad = Some((first, count + 1));
    }

    /// Marks the unreadable pages that a guide lists as its leaves.
    fn take_guide(&mut self, guide: &Guide<'_>, missing: &mut Vec<Missing>, info: &TableInfo) {
        let leaves = guide.first_leaf()..guide.first_leaf().saturating_add(guide.leaves());
        judge(missing, leaves.start);
        let mut key = Vec::new();
        for page in missing.iter_mut().filter(|missing| leaves.contains(&missing.page)) {
            page.is_leaf = Some(true);
            let next = (page.page + 1 - leaves.start) as usize;
            let fence = (page.page + 1 < leaves.end)
                .then(|| guide.fences().before(next, &mut key))
                .flatten();
            if let (Some((behind, with)), Some(fence)) = (&mut page.behind, fence) {
                // A fence between versions of one key shows where they continue.
                *with = fence.below != 0 && fence.key == &behind[..];
            }
        }
        let (closed, open) =
            std::mem::take(missing).into_iter().partition(|page| page.behind.is_some());
        *missing = open;
        self.close(closed, info);
    }

    fn close(&mut self, missing: Vec<Missing>, info: &TableInfo) {
        for page in missing.into_iter().filter(|page| page.is_leaf != Some(false)) {
            let with_first = page.before.is_none();
            let first = page.before.unwrap_or_else(|| info.first_key.clone());
            let (last, with_last) = page.behind.unwrap_or_else(|| (info.last_key.clone(), true));
            match self.lost.last_mut() {
                // Consecutive leaves form one span.
                Some(before) if before.first == first => {
                    (before.last, before.with_last) = (last, with_last)
                }
                _ => {
                    self.lost.push(LostSpan { page: page.page, first, with_first, last, with_last })
                }
            }
        }
    }
}
