//! Merges sorted sources into one order: by key, then newest first.
//!
//! Invariants:
//! 1. If two sources hold the same key and GLSN (a transaction that was spilled more than once),
//!    the earlier source takes precedence: its copy comes first in a forward scan and last in a
//!    backward scan.
//! 2. No allocation per entry: the top version is borrowed from its source.

use std::cmp::Ordering;
use std::sync::Arc;

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::pool::Touch;
use plimsoll_memory::sorted::Position;

use crate::borders::{Border, hit};
use crate::index::gaps::key_prefix::prefix;
use crate::index::run::cursor::{Feed, RunCursor};
use crate::index::run::table::Table;
use crate::index::run::warmth::Warmth;
use crate::index::sources::source::Memtable;
use crate::types::error::Result;
use crate::types::version::{Version, VersionHead};

/// The direction of a scan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Direction {
    #[default]
    Forward,
    Backward,
}

/// A cursor over one source.
#[derive(Debug)]
pub(crate) enum Cursor {
    Memtable(MemtableCursor),
    Run(Box<RunCursor>),
    #[cfg(test)]
    List(tests::ListCursor),
}

/// A cursor over a memtable.
#[derive(Debug)]
pub(crate) struct MemtableCursor {
    memtable: Arc<Memtable>,
    at: Option<Position>,
}

impl Cursor {
    /// An unpositioned cursor over the tables of a run that reads from the pool.
    pub(crate) fn run(tables: Arc<[Table]>) -> Self {
        Self::Run(Box::new(RunCursor::new(tables, Feed::Pool(Touch::Point))))
    }

    /// An unpositioned cursor over a memtable.
    pub(crate) fn memtable(memtable: &Arc<Memtable>) -> Self {
        Self::Memtable(MemtableCursor { memtable: Arc::clone(memtable), at: None })
    }

    /// Moves to the first version at or after (`key`, `glsn`).
    pub(crate) fn seek(&mut self, key: &[u8], glsn: Glsn) -> Result<()> {
        match self {
            Cursor::Memtable(cursor) => cursor.at = cursor.memtable.map().seek(key, glsn.0),
            Cursor::Run(cursor) => cursor.seek(key, glsn)?,
            #[cfg(test)]
            Cursor::List(cursor) => cursor.seek(key, glsn),
        }
        Ok(())
    }

    fn seek_before(&mut self, key: &[u8], glsn: Glsn) -> Result<()> {
        match self {
            Cursor::Memtable(cursor) => cursor.at = cursor.memtable.map().seek_before(key, glsn.0),
            Cursor::Run(cursor) => cursor.seek_before(key, glsn)?,
            #[cfg(test)]
            Cursor::List(cursor) => cursor.seek_before(key, glsn),
        }
        Ok(())
    }

    fn seek_end(&mut self, direction: Direction) -> Result<()> {
        match (self, direction) {
            (Cursor::Memtable(cursor), Direction::Forward) => {
                cursor.at = cursor.memtable.map().first()
            }
            (Cursor::Memtable(cursor), Direction::Backward) => {
                cursor.at = cursor.memtable.map().last()
            }
            (Cursor::Run(cursor), Direction::Forward) => cursor.seek_first()?,
            (Cursor::Run(cursor), Direction::Backward) => cursor.seek_last()?,
            #[cfg(test)]
            (Cursor::List(cursor), direction) => cursor.seek_end(direction),
        }
        Ok(())
    }

    /// The version at the cursor.
    #[inline]
    pub(crate) fn current(&self) -> Option<Version<'_>> {
        match self {
            Cursor::Memtable(cursor) => cursor.at.map(|position| cursor.memtable.version(position)),
            Cursor::Run(cursor) => cursor.current(),
            #[cfg(test)]
            Cursor::List(cursor) => cursor.current(),
        }
    }

    /// The head of the current version. Cheaper than [`Cursor::current`].
    #[inline]
    fn head(&self) -> Option<VersionHead<'_>> {
        match self {
            Cursor::Run(cursor) => cursor.head(),
            other => other.current().map(VersionHead::from),
        }
    }

    /// The current version's value if it is inline.
    #[inline]
    fn inline_value(&self) -> Option<&[u8]> {
        match self {
            Cursor::Run(cursor) => cursor.inline_value(),
            other => other.current()?.stored.inline_value(),
        }
    }

    /// The key of the current version. Cheaper than [`Cursor::head`].
    fn key(&self) -> Option<&[u8]> {
        match self {
            Cursor::Memtable(cursor) => {
                cursor.at.map(|position| cursor.memtable.map().at(position).key)
            }
            Cursor::Run(cursor) => cursor.key(),
            #[cfg(test)]
            Cursor::List(cursor) => cursor.current().map(|version| version.key),
        }
    }

    /// Heap size of the cursor.
    fn heap_bytes(&self) -> usize {
        match self {
            Cursor::Run(cursor) => cursor.heap_bytes(),
            _ => 0,
        }
    }

    fn step(&mut self, direction: Direction) -> Result<()> {
        match (self, direction) {
            (Cursor::Memtable(cursor), Direction::Forward) => {
                cursor.at = cursor.at.and_then(|position| cursor.memtable.map().next(position));
            }
            (Cursor::Memtable(cursor), Direction::Backward) => {
                cursor.at = cursor.at.and_then(|position| cursor.memtable.map().prev(position));
            }
            (Cursor::Run(cursor), Direction::Forward) => cursor.next()?,
            (Cursor::Run(cursor), Direction::Backward) => cursor.prev()?,
            #[cfg(test)]
            (Cursor::List(cursor), direction) => cursor.step(direction),
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Head {
    cursor: Cursor,
    prefix: u128,
    /// No version that the caller wants from this cursor is younger than this.
    newest: Glsn,
}

impl Head {
    /// Call after the cursor was moved: records its key's prefix, unless it is the only cursor.
    /// Returns whether it has a current version.
    fn note(&mut self, is_alone: bool) -> bool {
        match self.cursor.key() {
            Some(key) if !is_alone => self.prefix = prefix(key),
            Some(_) => {}
            None => return false,
        }
        true
    }
}

/// A k-way merge: a heap over the cursors that have a current version.
#[derive(Debug, Default)]
pub(crate) struct Merge {
    direction: Direction,
    /// In order of precedence.
    heads: Vec<Head>,
    /// Indexes into `heads`; the top is the next version.
    heap: Vec<u32>,
    /// Idle cursors for [`Merge::add_run`] to reuse.
    #[allow(
        clippy::vec_box,
        reason = "cursors move between this list and `Cursor::Run`, which boxes them"
    )]
    idle: Vec<Box<RunCursor>>,
}

impl Merge {
    /// An unpositioned merge of cursors in order of precedence.
    pub(crate) fn new(cursors: Vec<Cursor>, direction: Direction) -> Self {
        let heap = Vec::with_capacity(cursors.len());
        let heads = cursors
            .into_iter()
            .map(|cursor| Head { cursor, prefix: 0, newest: Glsn::MAX })
            .collect();
        Self { direction, heads, heap, idle: Vec::new() }
    }

    /// Begins a scan with a merge that has no cursors.
    pub(crate) fn begin(&mut self, direction: Direction) {
        debug_assert!(self.heads.is_empty());
        self.direction = direction;
    }

    /// Adds a cursor with the lowest precedence, before the merge is positioned. No version that
    /// the scan may return from it is younger than `newest`.
    pub(crate) fn add(&mut self, cursor: Cursor, newest: Glsn) {
        self.heads.push(Head { cursor, prefix: 0, newest });
    }

    /// Like [`Merge::add`], with a cursor over the tables of a run that reads from the pool.
    pub(crate) fn add_run(&mut self, tables: &Arc<[Table]>, newest: Glsn) {
        let tables = Arc::clone(tables);
        let cursor = match self.idle.pop() {
            Some(mut cursor) => {
                cursor.begin(tables);
                Cursor::Run(cursor)
            }
            None => Cursor::run(tables),
        };
        self.add(cursor, newest);
    }

    /// Releases all sources. Run cursors are kept for later scans, with `nothing` to read.
    pub(crate) fn end(&mut self, nothing: &Arc<[Table]>) {
        self.heap.clear();
        for head in self.heads.drain(..) {
            if let Cursor::Run(mut cursor) = head.cursor {
                cursor.begin(Arc::clone(nothing));
                self.idle.push(cursor);
            }
        }
    }

    /// Heap size of the merge and its cursors.
    pub(crate) fn heap_bytes(&self) -> usize {
        let cursors: usize = self.heads.iter().map(|head| head.cursor.heap_bytes()).sum();
        let idle: usize = self.idle.iter().map(|cursor| cursor.heap_bytes()).sum();
        let lists = self.heads.capacity() * size_of::<Head>()
            + self.heap.capacity() * size_of::<u32>()
            + self.idle.capacity() * size_of::<Box<RunCursor>>();
        cursors + idle + lists
    }

    /// Moves to the first version at or after (`key`, `glsn`).
    pub(crate) fn seek(&mut self, key: &[u8], glsn: Glsn) -> Result<()> {
        self.place(|cursor| cursor.seek(key, glsn))
    }

    /// Moves to the last version before (`key`, `glsn`).
    pub(crate) fn seek_before(&mut self, key: &[u8], glsn: Glsn) -> Result<()> {
        self.place(|cursor| cursor.seek_before(key, glsn))
    }

    /// Moves to the start of a scan (the last version for a backward scan).
    pub(crate) fn seek_end(&mut self) -> Result<()> {
        let direction = self.direction;
        self.place(|cursor| cursor.seek_end(direction))
    }

    fn place(&mut self, mut seek: impl FnMut(&mut Cursor) -> Result<()>) -> Result<()> {
        self.place_heads(|head| seek(&mut head.cursor))
    }

    /// Moves the cursors that have no versions younger than `glsn` past an interval: in a forward
    /// merge to the first version at or after `to`, in a backward merge to the last version before
    /// `to`.
    pub(crate) fn skip_older(&mut self, to: &[u8], glsn: Glsn) -> Result<()> {
        let direction = self.direction;
        self.place_heads(|head| match (head.cursor.key(), direction) {
            (Some(key), Direction::Forward) if head.newest < glsn && key < to => {
                head.cursor.seek(to, Glsn::MAX)
            }
            (Some(key), Direction::Backward) if head.newest < glsn && key >= to => {
                head.cursor.seek_before(to, Glsn::MAX)
            }
            _ => Ok(()),
        })
    }

    fn place_heads(&mut self, mut place: impl FnMut(&mut Head) -> Result<()>) -> Result<()> {
        self.heap.clear();
        let is_alone = self.is_of_one();
        for (at, head) in self.heads.iter_mut().enumerate() {
            place(head)?;
            if head.note(is_alone) {
                self.heap.push(at as u32);
            }
        }
        for at in (0..self.heap.len() / 2).rev() {
            self.sift_down(at);
        }
        Ok(())
    }

    /// The top version, borrowed until the merge moves.
    #[inline]
    pub(crate) fn top(&self) -> Option<Version<'_>> {
        let &top = self.heap.first()?;
        self.heads[top as usize].cursor.current()
    }

    /// The value of the top version if it is inline.
    #[inline]
    pub(crate) fn top_inline_value(&self) -> Option<&[u8]> {
        let &top = self.heap.first()?;
        self.heads[top as usize].cursor.inline_value()
    }

    /// The head of the top version.
    #[inline]
    pub(crate) fn top_head(&self) -> Option<VersionHead<'_>> {
        let &top = self.heap.first()?;
        self.heads[top as usize].cursor.head()
    }

    /// The key of the top version.
    pub(crate) fn top_key(&self) -> Option<&[u8]> {
        let &top = self.heap.first()?;
        self.heads[top as usize].cursor.key()
    }

    /// The warmth of the leaf that holds the top version.
    pub(crate) fn top_warmth(&mut self) -> Warmth {
        let Some(&top) = self.heap.first() else { return Warmth::Unread };
        let hot = match &mut self.heads[top as usize].cursor {
            Cursor::Run(cursor) => cursor.is_on_hot_leaf(),
            _ => false,
        };
        if hot { Warmth::Hot } else { Warmth::Unread }
    }

    /// Moves one version in the merge's direction.
    pub(crate) fn advance(&mut self) -> Result<()> {
        let Some(&top) = self.heap.first() else { return Ok(()) };
        let head = &mut self.heads[top as usize];
        head.cursor.step(self.direction)?;
        self.settle_top()
    }

    /// Forward only: moves one version on from a version of `key`. Returns whether the next version
    /// has another key.
    #[inline]
    pub(crate) fn skip_version(&mut self, key: &[u8]) -> Result<bool> {
        if let [Head { cursor: Cursor::Run(cursor), .. }] = &mut self.heads[..] {
            if cursor.skip_version()? {
                return Ok(false);
            }
            if cursor.key().is_none() {
                self.heap.clear();
            }
            return Ok(true);
        }
        self.advance()?;
        Ok(self.top_key().is_none_or(|top| top != key))
    }

    /// Restores the heap after the top cursor was moved in the merge's direction.
    fn settle_top(&mut self) -> Result<()> {
        let is_alone = self.is_of_one();
        let head = &mut self.heads[self.heap[0] as usize];
        if !head.note(is_alone) {
            self.heap.swap_remove(0);
        }
        self.sift_down(0);
        Ok(())
    }

    /// Whether there is only one source, so that nothing is compared.
    fn is_of_one(&self) -> bool {
        self.heads.len() == 1
    }

    /// Forward only: skips the versions before (`key`, `glsn`) by a seek in each source.
    pub(crate) fn skip_to(&mut self, key: &[u8], glsn: Glsn) -> Result<()> {
        debug_assert_eq!(self.direction, Direction::Forward);
        while self.top().is_some_and(|top| {
            (top.key, std::cmp::Reverse(top.glsn)) < (key, std::cmp::Reverse(glsn))
        }) {
            self.heads[self.heap[0] as usize].cursor.seek(key, glsn)?;
            self.settle_top()?;
        }
        Ok(())
    }

    /// Backward only, with every cursor at or before `key`: passes the newest version of `key` that
    /// is not younger than `at` to `see`, and moves before the key.
    pub(crate) fn look_up_and_leave(
        &mut self,
        key: &[u8],
        at: Glsn,
        see: impl FnOnce(Version<'_>),
    ) -> Result<()> {
        debug_assert_eq!(self.direction, Direction::Backward);
        hit(Border::ReverseLookup);
        let mut best: Option<(Glsn, usize)> = None;
        for (index, head) in self.heads.iter_mut().enumerate() {
            head.cursor.seek(key, at)?;
            let found = head
                .cursor
                .current()
                .filter(|version| version.key == key)
                .map(|version| version.glsn);
            if found.is_some_and(|glsn| best.is_none_or(|(best, _)| glsn > best)) {
                best = found.map(|glsn| (glsn, index));
            }
        }
        if let Some((_, index)) = best {
            see(self.heads[index].cursor.current().expect("the version was just found"));
        }
        self.seek_before(key, Glsn::MAX)
    }

    fn sift_down(&mut self, mut at: usize) {
        loop {
            let (left, right) = (2 * at + 1, 2 * at + 2);
            let first = match (self.heap.get(left), self.heap.get(right)) {
                // Branch-free, because the comparison is unpredictable.
                (Some(&one), Some(&other)) => left + usize::from(self.before(other, one)),
                (Some(_), None) => left,
                (None, _) => return,
            };
            if !self.before(self.heap[first], self.heap[at]) {
                return;
            }
            self.heap.swap(at, first);
            at = first;
        }
    }

    /// Whether the version of head `a` comes before that of head `b` in the merge's direction.
    fn before(&self, a: u32, b: u32) -> bool {
        let (one, other) = (&self.heads[a as usize], &self.heads[b as usize]);
        let is_forward = self.direction == Direction::Forward;
        if one.prefix != other.prefix {
            return (one.prefix < other.prefix) == is_forward;
        }
        let order = match (one.cursor.current(), other.cursor.current()) {
            (Some(one), Some(other)) => {
                one.key.cmp(other.key).then(other.glsn.cmp(&one.glsn)).then(a.cmp(&b))
            }
            // Only cursors with a current version are in the heap.
            _ => Ordering::Equal,
        };
        order == if is_forward { Ordering::Less } else { Ordering::Greater }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::types::version::Stored;

    /// A cursor over a sorted list of (key, GLSN, value).
    #[derive(Debug)]
    pub(crate) struct ListCursor {
        list: Vec<(Vec<u8>, u64, &'static [u8])>,
        at: Option<usize>,
    }

    impl ListCursor {
        pub(crate) fn seek(&mut self, key: &[u8], glsn: Glsn) {
            let at = self.list.partition_point(|entry| before(entry, key, glsn));
            self.at = (at < self.list.len()).then_some(at);
        }

        pub(crate) fn seek_before(&mut self, key: &[u8], glsn: Glsn) {
            self.at = self.list.partition_point(|entry| before(entry, key, glsn)).checked_sub(1);
        }

        pub(crate) fn seek_end(&mut self, direction: Direction) {
            self.at = match direction {
                Direction::Forward => (!self.list.is_empty()).then_some(0),
                Direction::Backward => self.list.len().checked_sub(1),
            };
        }

        pub(crate) fn step(&mut self, direction: Direction) {
            self.at = match direction {
                Direction::Forward => self.at.map(|at| at + 1).filter(|&at| at < self.list.len()),
                Direction::Backward => self.at.and_then(|at| at.checked_sub(1)),
            };
        }

        pub(crate) fn current(&self) -> Option<Version<'_>> {
            let (key, glsn, value) = &self.list[self.at?];
            Some(Version { key, glsn: Glsn(*glsn), stored: Stored::Inline(value) })
        }
    }

    fn before(entry: &(Vec<u8>, u64, &'static [u8]), key: &[u8], glsn: Glsn) -> bool {
        (&entry.0[..], std::cmp::Reverse(entry.1)) < (key, std::cmp::Reverse(glsn.0))
    }

    pub(crate) fn list(entries: &[(&str, u64, &'static [u8])]) -> Cursor {
        let mut list: Vec<_> = entries
            .iter()
            .map(|(key, glsn, value)| (key.as_bytes().to_vec(), *glsn, *value))
            .collect();
        list.sort_by(|a, b| (&a.0, std::cmp::Reverse(a.1)).cmp(&(&b.0, std::cmp::Reverse(b.1))));
        Cursor::List(ListCursor { list, at: None })
    }

    fn sources() -> Vec<Cursor> {
        vec![
            list(&[("b", 7, b"first"), ("d", 9, b"")]),
            list(&[
                ("a", 3, b""),
                ("b", 7, b"second"),
                ("b", 5, b""),
                ("a long key, longer than the prefix", 4, b""),
            ]),
            list(&[]),
            list(&[
                ("a", 2, b""),
                ("b", 1, b""),
                ("c", 1, b""),
                ("a long key, longer than a prefix", 6, b""),
            ]),
        ]
    }

    fn walk(merge: &mut Merge) -> Vec<(String, u64, Vec<u8>)> {
        let mut seen = Vec::new();
        while let Some(version) = merge.top() {
            let Stored::Inline(value) = version.stored else { panic!("lists hold values") };
            seen.push((
                String::from_utf8(version.key.to_vec()).unwrap(),
                version.glsn.0,
                value.to_vec(),
            ));
            merge.advance().unwrap();
        }
        seen
    }

    fn in_order() -> Vec<(String, u64, Vec<u8>)> {
        let entry = |key: &str, glsn, value: &[u8]| (key.to_owned(), glsn, value.to_vec());
        vec![
            entry("a", 3, b""),
            entry("a", 2, b""),
            entry("a long key, longer than a prefix", 6, b""),
            entry("a long key, longer than the prefix", 4, b""),
            entry("b", 7, b"first"),
            entry("b", 7, b"second"),
            entry("b", 5, b""),
            entry("b", 1, b""),
            entry("c", 1, b""),
            entry("d", 9, b""),
        ]
    }

    #[test]
    fn sources_merge_in_order_and_the_first_wins_for_equal_versions() {
        let mut merge = Merge::new(sources(), Direction::Forward);
        merge.seek_end().unwrap();
        assert_eq!(walk(&mut merge), in_order());
    }

    #[test]
    fn a_backward_scan_is_the_reversed_forward_scan() {
        let mut merge = Merge::new(sources(), Direction::Backward);
        merge.seek_end().unwrap();
        let mut seen = walk(&mut merge);
        seen.reverse();
        assert_eq!(seen, in_order());
    }

    #[test]
    fn a_seek_lands_between_versions() {
        let mut merge = Merge::new(sources(), Direction::Forward);
        merge.seek(b"b", Glsn(6)).unwrap();
        assert_eq!(walk(&mut merge), in_order()[6..]);
        let mut merge = Merge::new(sources(), Direction::Backward);
        merge.seek_before(b"b", Glsn(6)).unwrap();
        assert_eq!(walk(&mut merge).len(), 6);
    }

    #[test]
    fn a_skip_omits_exactly_the_versions_before_its_target() {
        let mut merge = Merge::new(sources(), Direction::Forward);
        merge.seek_end().unwrap();
        merge.skip_to(b"b", Glsn::NONE).unwrap();
        assert_eq!(walk(&mut merge), in_order()[8..]);
    }

    #[test]
    fn a_backward_scan_can_look_a_key_up_and_leave_it() {
        let mut merge = Merge::new(sources(), Direction::Backward);
        merge.seek_before(b"b", Glsn::NONE).unwrap();
        let mut seen = 0;
        merge
            .look_up_and_leave(b"b", Glsn(8), |version| {
                assert_eq!((version.glsn, version.stored), (Glsn(7), Stored::Inline(b"first")));
                seen += 1;
            })
            .unwrap();
        assert_eq!(seen, 1);
        assert_eq!(walk(&mut merge).len(), 4);
    }
}
