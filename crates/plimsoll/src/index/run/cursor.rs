//! Iterates over the versions of a run, forward or backward.
//!
//! Leaves are stored in key order, so a scan needs no path. It reads page after page and skips
//! pages that are not leaves. Only a seek descends from the root.

use std::cmp::{Ordering, Reverse};
use std::fmt;
use std::sync::Arc;

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::budget::{Budget, Kind};
use plimsoll_memory::chunk::{CHUNK_BYTES, Chunk};
use plimsoll_memory::page::{PAGE_BYTES, page_kind, page_payload};
use plimsoll_memory::pool::{Page, RecentPages, Touch};

use crate::index::run::leaf::{Entry, LEAF_PAGE, Leaf, LeafShape, SeekResult, Spot, Stepped};
use crate::index::run::table::{Step, Table};
use crate::types::error::{Lift, Result};
use crate::types::index_key::IndexKey;
use crate::types::version::{INLINE_TAG, Stored, Version, VersionHead, expiry_in};

/// A scan over more leaves than this is a long one.
const SHORT_WALK_LEAVES: u32 = 8;

const OUT_OF_ORDER: &str = "versions out of order";

/// Pages that a private feed reads at once.
const WINDOW_PAGES: u32 = (CHUNK_BYTES / PAGE_BYTES) as u32;

/// Read-ahead of a long scan, in pages: several concurrent reads.
const AHEAD_PAGES: u32 = 4 * WINDOW_PAGES;

/// Number of bytes at the beginning of the next leaf that a scan prefetches: its head and first
/// keys.
const FETCHED_BYTES: usize = 256;

/// If at most this many entries of its leaf are left, a scan that begins there prefetches the next
/// leaf.
const FEW_ENTRIES: usize = 16;

/// Bodies of at least this many bytes are too far apart for the hardware prefetcher, so the cursor
/// prefetches them, [`BODIES_AHEAD`] entries ahead.
const FAR_BODY_BYTES: usize = 256;
const BODIES_AHEAD: usize = 3;

/// How a cursor gets its pages.
#[derive(Clone, Debug)]
pub(crate) enum Feed {
    /// From the pool: as point reads while the scan is short, as a scan once it is long.
    Pool(Touch),
    /// Into its own chunk (`Kind::Sort`), for compaction: copied from the pool if present,
    /// otherwise read from the file, 64 KiB at a time. The heat of the pool's pages does not
    /// change.
    Private(Budget),
}

/// A cursor over a run: its tables are sorted and disjoint, and all versions of a key are in one
/// table.
#[derive(Debug)]
pub(crate) struct RunCursor {
    tables: Arc<[Table]>,
    pages: Pages,
    position: Position,
    /// The key of the current version.
    key: Vec<u8>,
    /// The previous version's key, kept when the cursor moves to another leaf or backward.
    before: Vec<u8>,
    /// The leaf (table index and page) whose heat was checked last, and whether it is hot in the
    /// pool.
    heat: Option<(usize, u32, bool)>,
}

/// The position of a cursor.
#[derive(Clone, Copy, Debug)]
enum Position {
    /// Not positioned yet, or lost after an error.
    Unset,
    /// Before the first version.
    AtStart,
    /// After the last version.
    AtEnd,
    /// On an entry of the leaf that `Pages` holds.
    At(Place),
}

#[derive(Clone, Copy, Debug)]
struct Place {
    /// Number of the table in the run.
    table: usize,
    /// Page of the leaf.
    leaf: u32,
    shape: LeafShape,
    spot: Spot,
}

/// How a page is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    On,
    Back,
    /// A single page, without continuing from it.
    Down,
}

impl RunCursor {
    /// An unpositioned cursor.
    pub(crate) fn new(tables: Arc<[Table]>, feed: Feed) -> Self {
        let pages = Pages {
            feed,
            held: Held::Nothing,
            chunk: None,
            leaves_walked: 0,
            recent: RecentPages::default(),
        };
        Self {
            tables,
            pages,
            position: Position::Unset,
            key: Vec::new(),
            before: Vec::new(),
            heat: None,
        }
    }

    /// Releases its tables and pages, and becomes an unpositioned cursor over `tables`. Keeps its
    /// buffers.
    pub(crate) fn begin(&mut self, tables: Arc<[Table]>) {
        self.lift();
        self.pages.held = Held::Nothing;
        self.heat = None;
        self.tables = tables;
    }

    /// Moves to the first version at or after (`key`, `glsn`) in the order key ascending, GLSN
    /// descending; `Glsn::MAX` finds the newest version of the key.
    pub(crate) fn seek(&mut self, key: &[u8], glsn: Glsn) -> Result<()> {
        self.place(key, glsn, Way::On)
    }

    /// Like [`RunCursor::seek`]; the scan continues in direction `way`.
    fn place(&mut self, key: &[u8], glsn: Glsn, way: Way) -> Result<()> {
        self.search(key, glsn, way)?;
        self.check_place(key, glsn, Ordering::Greater)
    }

    /// Moves like [`RunCursor::place`], but does not check the position that it reaches, which is
    /// arbitrary if keys are out of order.
    fn search(&mut self, key: &[u8], glsn: Glsn, way: Way) -> Result<()> {
        self.lift();
        let number = self.tables.partition_point(|table| &table.info.last_key[..] < key);
        let Some(table) = self.tables.get(number) else {
            self.position = Position::AtEnd;
            return Ok(());
        };
        if key < &table.info.first_key[..] {
            return self.enter_forward(number, 1);
        }
        let at = self.pages.leaf_of(number, table, key, glsn)?;
        let page = self.pages.get(number, table, at, Way::On)?;
        let leaf = table.leaf(at, page)?;
        match table.read(at, leaf.seek(key, glsn))? {
            SeekResult::At(spot, _) => {
                if way == Way::On {
                    fetch_first_bodies(&leaf, &spot.entry);
                    if leaf.entries() - spot.number <= FEW_ENTRIES {
                        table.file.fetch(at + 1, FETCHED_BYTES);
                    }
                }
                table.read(at, leaf.found_key(&spot, key, &mut self.key))?;
                let shape = leaf.shape();
                self.set_current(Place { table: number, leaf: at, shape, spot })
            }
            SeekResult::After => self.enter_forward(number, at + 1),
        }
    }

    /// Moves to the last version before (`key`, `glsn`).
    pub(crate) fn seek_before(&mut self, key: &[u8], glsn: Glsn) -> Result<()> {
        self.place(key, glsn, Way::Back)?;
        self.prev()?;
        self.check_place(key, glsn, Ordering::Less)
    }

    /// After a search for (`key`, `glsn`): checks that the position is before it (`Less`), or at or
    /// after it (`Greater`). A caller that resumes at a key relies on this check, because otherwise
    /// it could return the same versions again and again.
    fn check_place(&mut self, key: &[u8], glsn: Glsn, order: Ordering) -> Result<()> {
        let Position::At(place) = &self.position else { return Ok(()) };
        let is_before = (&self.key[..], Reverse(place.spot.entry.glsn)) < (key, Reverse(glsn));
        if is_before == (order == Ordering::Less) {
            return Ok(());
        }
        let error = self.tables[place.table].corrupt(place.leaf, OUT_OF_ORDER);
        self.position = Position::Unset;
        Err(error)
    }

    /// Moves to the first version.
    pub(crate) fn seek_first(&mut self) -> Result<()> {
        self.lift();
        self.enter_forward(0, 1)
    }

    /// Moves to the last version.
    pub(crate) fn seek_last(&mut self) -> Result<()> {
        self.lift();
        match self.tables.len().checked_sub(1) {
            Some(number) => self.enter_backward(number, self.tables[number].info.root),
            None => {
                self.position = Position::AtStart;
                Ok(())
            }
        }
    }

    /// The key, GLSN and kind (whether it is a deletion) of the current version. Cheaper than
    /// [`RunCursor::current`].
    #[inline]
    pub(crate) fn head(&self) -> Option<VersionHead<'_>> {
        let Position::At(place) = &self.position else { return None };
        let Entry { glsn, tag, body, end, .. } = place.spot.entry;
        let is_deleted = Stored::is_deletion(tag as u8, end - body);
        // Read the body, which is on another cache line, only if the tag does not show that the
        // version never expires.
        let expiry = match tag {
            0 if !is_deleted => {
                let page = page_payload(self.pages.held(place.leaf));
                page.get(body..end).and_then(|body| expiry_in(tag as u8, body))
            }
            _ => None,
        };
        Some(VersionHead { key: &self.key, glsn, is_deleted, expiry })
    }

    /// The current version; `None` before the first, after the last, or if unpositioned.
    #[inline]
    pub(crate) fn current(&self) -> Option<Version<'_>> {
        let Position::At(place) = &self.position else { return None };
        let leaf = place.shape.on(page_payload(self.pages.held(place.leaf)));
        let stored =
            leaf.stored(&place.spot.entry).expect("it was decoded when the cursor was placed here");
        Some(Version { key: &self.key, glsn: place.spot.entry.glsn, stored })
    }

    /// The current version's value if it is inline. Does not use [`RunCursor::current`], whose
    /// result would be copied through each call.
    #[inline]
    pub(crate) fn inline_value(&self) -> Option<&[u8]> {
        let Position::At(place) = &self.position else { return None };
        let Entry { tag, body, end, .. } = place.spot.entry;
        if tag == INLINE_TAG {
            page_payload(self.pages.held(place.leaf)).get(body..end)
        } else {
            None
        }
    }

    /// The key of the current version.
    pub(crate) fn key(&self) -> Option<&[u8]> {
        matches!(self.position, Position::At(_)).then_some(&self.key[..])
    }

    /// Heap size of the cursor including itself, without pages and chunks.
    pub(crate) fn heap_bytes(&self) -> usize {
        size_of::<Self>() + self.key.capacity() + self.before.capacity()
    }

    /// Unpins the current page until [`RunCursor::repin`]. No other method may be called in
    /// between.
    pub(crate) fn leave_page(&mut self) {
        self.pages.held = Held::Nothing;
    }

    /// Pins the current page again, if it was unpinned.
    pub(crate) fn repin(&mut self) -> Result<()> {
        if let Position::At(place) = self.position {
            self.pages.get(place.table, &self.tables[place.table], place.leaf, Way::Down)?;
        }
        Ok(())
    }

    /// Whether the current leaf was hot in the pool at the first call on that leaf.
    pub(crate) fn is_on_hot_leaf(&mut self) -> bool {
        let Position::At(place) = &self.position else { return false };
        match self.heat {
            Some((table, leaf, hot)) if (table, leaf) == (place.table, place.leaf) => hot,
            _ => {
                let hot = self.tables[place.table].file.is_hot(place.leaf);
                self.heat = Some((place.table, place.leaf, hot));
                hot
            }
        }
    }

    /// Moves one version forward: from before the first (or unpositioned) to the first, from the
    /// last to after it, where it stays.
    pub(crate) fn next(&mut self) -> Result<()> {
        self.skip_version().map(drop)
    }

    /// Like [`RunCursor::next`], but returns whether the next version has the same key, which is
    /// cheaper than a comparison.
    #[inline]
    pub(crate) fn skip_version(&mut self) -> Result<bool> {
        let place = match &mut self.position {
            Position::At(place) => place,
            Position::AtEnd => return Ok(false),
            Position::AtStart | Position::Unset => return self.seek_first().map(|()| false),
        };
        let leaf = place.shape.on(page_payload(self.pages.held(place.leaf)));
        let from = place.spot.entry.glsn;
        let moved = leaf.step(&mut place.spot, &mut self.key);
        // Most steps stay in the leaf and change only the entry.
        if let Some(Stepped::ToNextKey | Stepped::ToSameKey) = moved
            && leaf.stored(&place.spot.entry).is_some()
            && IndexKey::is_valid_len(self.key.len())
        {
            fetch_body(&leaf, &place.spot.entry);
            return Ok(moved == Some(Stepped::ToSameKey));
        }
        let place = *place;
        self.leave_leaf(place, moved, from)
    }

    /// The slow path of [`RunCursor::skip_version`]: the step from the version with GLSN `from` has
    /// left the leaf or failed.
    #[cold]
    fn leave_leaf(&mut self, place: Place, moved: Option<Stepped>, from: Glsn) -> Result<bool> {
        self.position = Position::Unset;
        match self.tables[place.table].read(place.leaf, moved)? {
            Stepped::ToNextKey | Stepped::ToSameKey => {
                self.set_current(place)?;
                Ok(moved == Some(Stepped::ToSameKey))
            }
            Stepped::AtEnd => {
                std::mem::swap(&mut self.key, &mut self.before);
                self.enter_forward(place.table, place.leaf + 1)?;
                self.check_order(from, Ordering::Less)?;
                Ok(matches!(self.position, Position::At(_)) && self.key == self.before)
            }
        }
    }

    /// Moves one version back: from after the last (or unpositioned) to the last, from the first to
    /// before it, where it stays.
    pub(crate) fn prev(&mut self) -> Result<()> {
        let place = match self.position {
            Position::At(place) => place,
            Position::AtStart => return Ok(()),
            Position::AtEnd | Position::Unset => return self.seek_last(),
        };
        self.position = Position::Unset;
        std::mem::swap(&mut self.key, &mut self.before);
        match place.spot.number.checked_sub(1) {
            None => self.enter_backward(place.table, place.leaf - 1)?,
            Some(number) => {
                let leaf = place.shape.on(page_payload(self.pages.held(place.leaf)));
                let before = leaf.spot(number, &mut self.key);
                let spot = self.tables[place.table].read(place.leaf, before)?;
                self.set_current(Place { spot, ..place })?;
            }
        }
        self.check_order(place.spot.entry.glsn, Ordering::Greater)
    }

    /// After a step from the version (`before`, `from`): checks that it is in `order` to the
    /// current version. Merges and iterators rely on this.
    fn check_order(&mut self, from: Glsn, order: Ordering) -> Result<()> {
        let Position::At(place) = &self.position else { return Ok(()) };
        let (before, now) = (Reverse(from), Reverse(place.spot.entry.glsn));
        if (&self.before, before).cmp(&(&self.key, now)) == order {
            return Ok(());
        }
        let error = self.tables[place.table].corrupt(place.leaf, OUT_OF_ORDER);
        self.position = Position::Unset;
        Err(error)
    }

    /// Clears the position, and forgets which pages the scan has accessed.
    fn lift(&mut self) {
        self.position = Position::Unset;
        self.pages.leaves_walked = 0;
        self.pages.recent = RecentPages::default();
    }

    /// Moves to the first entry of the first leaf at or after `page`.
    fn enter_forward(&mut self, mut number: usize, mut page: u32) -> Result<()> {
        while let Some(table) = self.tables.get(number) {
            while page < table.info.root {
                if let Some(place) =
                    self.pages.enter(number, table, page, Way::On, &mut self.key)?
                {
                    return self.set_current(place);
                }
                page += 1;
            }
            (number, page) = (number + 1, 1);
        }
        self.position = Position::AtEnd;
        Ok(())
    }

    /// Moves to the last entry of the last leaf at or before `page`.
    fn enter_backward(&mut self, mut number: usize, mut page: u32) -> Result<()> {
        loop {
            let table = &self.tables[number];
            while page > 0 {
                if let Some(place) =
                    self.pages.enter(number, table, page, Way::Back, &mut self.key)?
                {
                    return self.set_current(place);
                }
                page -= 1;
            }
            if number == 0 {
                self.position = Position::AtStart;
                return Ok(());
            }
            number -= 1;
            page = self.tables[number].info.root;
        }
    }

    /// Makes an entry current. Its key is assembled and its leaf is held. Checks that the entry can
    /// be decoded.
    fn set_current(&mut self, place: Place) -> Result<()> {
        let leaf = place.shape.on(page_payload(self.pages.held(place.leaf)));
        let table = &self.tables[place.table];
        table.read(place.leaf, leaf.stored(&place.spot.entry))?;
        if !IndexKey::is_valid_len(self.key.len()) {
            return Err(table.corrupt(place.leaf, "a key of invalid length"));
        }
        self.position = Position::At(place);
        Ok(())
    }
}

/// The pages that a cursor holds, and their source.
struct Pages {
    feed: Feed,
    held: Held,
    /// The chunk of a private feed.
    chunk: Option<Chunk>,
    leaves_walked: u32,
    /// Pages that this scan has accessed, so that a repeated access does not make a page hot.
    recent: RecentPages,
}

/// The page or pages of table `number` that are held.
enum Held {
    Nothing,
    /// A page of the pool.
    Pinned {
        number: usize,
        at: u32,
        page: Page,
    },
    /// Pages from `first` on, in the chunk.
    Window {
        number: usize,
        first: u32,
        count: u32,
    },
}

impl Pages {
    /// Page `at` of table `number`.
    fn get(&mut self, number: usize, table: &Table, at: u32, way: Way) -> Result<&[u8]> {
        if at >= table.info.pages {
            return Err(table.corrupt(at, "a reference to a page after the last"));
        }
        let is_held = match self.held {
            Held::Nothing => false,
            Held::Pinned { number: held, at: page, .. } => (held, page) == (number, at),
            Held::Window { number: held, first, count } => {
                held == number && (first..first + count).contains(&at)
            }
        };
        if !is_held {
            self.load(number, table, at, way)?;
        }
        Ok(self.held(at))
    }

    fn load(&mut self, number: usize, table: &Table, at: u32, way: Way) -> Result<()> {
        // Release the old page first: a small budget may need its memory to load the new one.
        self.held = Held::Nothing;
        let budget = match &self.feed {
            Feed::Pool(touch) => {
                let is_long = self.leaves_walked >= SHORT_WALK_LEAVES;
                if is_long {
                    read_ahead(table, at, way);
                }
                let touch = if is_long { Touch::Scan } else { *touch };
                let page = table.file.get_in(&mut self.recent, at, touch);
                let page = page.map_err(|error| table.failed_to_load(error))?;
                self.held = Held::Pinned { number, at, page };
                return Ok(());
            }
            Feed::Private(budget) => budget,
        };
        let (first, count) = match way {
            Way::On => (at, WINDOW_PAGES.min(table.info.pages - at)),
            Way::Back => ((at + 1).saturating_sub(WINDOW_PAGES), WINDOW_PAGES.min(at + 1)),
            Way::Down => (at, 1),
        };
        let chunk = match &mut self.chunk {
            Some(chunk) => chunk,
            none => none.insert(budget.take(Kind::Sort)?),
        };
        // Verify the checksum, because a page damaged in memory would be written with a valid
        // checksum. If it does not match, read the page from the file.
        let resident =
            table.file.find(at, Touch::Again).filter(|page| table.file.source().is_sound(at, page));
        self.held = match resident {
            Some(page) => {
                // Copy the page: a job keeps pages between steps, and a small pool cannot spare a
                // pinned page.
                chunk[..PAGE_BYTES].copy_from_slice(&page);
                Held::Window { number, first: at, count: 1 }
            }
            None => {
                table
                    .file
                    .source()
                    .load_run(first, &mut chunk[..count as usize * PAGE_BYTES])
                    .lift()?;
                Held::Window { number, first, count }
            }
        };
        Ok(())
    }

    /// The held page `at`.
    fn held(&self, at: u32) -> &[u8] {
        match &self.held {
            Held::Nothing => unreachable!("`get` holds a page until its next call"),
            Held::Pinned { page, .. } => page,
            Held::Window { first, .. } => {
                let chunk = self.chunk.as_ref().expect("a window is in a chunk");
                &chunk[(at - first) as usize * PAGE_BYTES..][..PAGE_BYTES]
            }
        }
    }

    /// The page of the leaf that contains (`key`, `glsn`).
    fn leaf_of(&mut self, number: usize, table: &Table, key: &[u8], glsn: Glsn) -> Result<u32> {
        let mut at = table.info.root;
        loop {
            let page = self.get(number, table, at, Way::Down)?;
            match table.step_down(at, page, key, glsn)? {
                Step::Child(child) => at = child,
                Step::Guide(guide) => return table.read(at, guide.find(key, glsn)),
            }
        }
    }

    /// The first entry of the leaf at page `at`, or the last for a backward scan; `None` if the
    /// page is not a leaf.
    fn enter(
        &mut self,
        number: usize,
        table: &Table,
        at: u32,
        way: Way,
        key: &mut Vec<u8>,
    ) -> Result<Option<Place>> {
        let page = self.get(number, table, at, way)?;
        if page_kind(page) != LEAF_PAGE {
            return Ok(None);
        }
        let leaf = table.leaf(at, page)?;
        let shape = leaf.shape();
        let entry = if way == Way::Back { leaf.entries() - 1 } else { 0 };
        let spot = table.read(at, leaf.spot(entry, key))?;
        if way == Way::On {
            fetch_first_bodies(&leaf, &spot.entry);
        }
        self.leaves_walked = self.leaves_walked.saturating_add(1);
        if way == Way::On && matches!(self.feed, Feed::Pool(_)) {
            table.file.fetch(at + 1, FETCHED_BYTES);
        }
        Ok(Some(Place { table: number, leaf: at, shape, spot }))
    }
}

/// Prefetches a later body after a step. Its offset is estimated from this body's length.
#[inline]
fn fetch_body(leaf: &Leaf<'_>, entry: &Entry) {
    let body_bytes = entry.end - entry.body;
    if body_bytes >= FAR_BODY_BYTES {
        leaf.fetch(entry.body + BODIES_AHEAD * body_bytes);
    }
}

/// Prefetches the first bodies of a scan in a leaf, which [`fetch_body`] does not reach.
#[inline]
fn fetch_first_bodies(leaf: &Leaf<'_>, entry: &Entry) {
    let body_bytes = entry.end - entry.body;
    if body_bytes >= FAR_BODY_BYTES {
        (0..=BODIES_AHEAD).for_each(|number| leaf.fetch(entry.body + number * body_bytes));
    }
}

/// Requests the next pages of a long scan, each time it has used up one read's worth of pages.
fn read_ahead(table: &Table, at: u32, way: Way) {
    match way {
        Way::On if at.is_multiple_of(WINDOW_PAGES) => {
            table.file.read_ahead(at, AHEAD_PAGES.min(table.info.pages - at));
        }
        Way::Back if (at + 1).is_multiple_of(WINDOW_PAGES) => {
            // Request no more than will be read, so that the nearest pages are among them.
            let count = AHEAD_PAGES.min(table.file.read_ahead_max()).min(at + 1);
            table.file.read_ahead(at + 1 - count, count);
        }
        _ => {}
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.feed.fmt(f)
    }
}
