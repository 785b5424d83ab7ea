//! Merges sorted sources into one order: by key, and for one key newest first.
//!
//! Laws:
//! 1. If two sources hold the same key and GLSN (a transaction that was spilled more than once),
//!    the source given first takes precedence: its copy comes first in a forward walk, and last in
//!    a backward walk.
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

/// The direction of a walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Direction {
    #[default]
    Forward,
    Backward,
}

/// A walk over one source.
#[derive(Debug)]
pub(crate) enum Cursor {
    Memtable(MemtableCursor),
    Run(Box<RunCursor>),
    #[cfg(test)]
    List(tests::ListCursor),
}

/// A walk over a memtable.
#[derive(Debug)]
pub(crate) struct MemtableCursor {
    memtable: Arc<Memtable>,
    at: Option<Position>,
}

impl Cursor {
    /// A cursor over the tables of a run, by the pool, not yet positioned.
    pub(crate) fn run(tables: Arc<[Table]>) -> Self {
        Self::Run(Box::new(RunCursor::new(tables, Feed::Pool(Touch::Point))))
    }

    /// A cursor over a memtable, not yet positioned.
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

    /// The head of that version: cheaper than all of it.
    #[inline]
    fn head(&self) -> Option<VersionHead<'_>> {
        match self {
            Cursor::Run(cursor) => cursor.head(),
            other => other.current().map(VersionHead::from),
        }
    }

    /// The value of that version, where the version holds it.
    #[inline]
    fn inline_value(&self) -> Option<&[u8]> {
        match self {
            Cursor::Run(cursor) => cursor.inline_value(),
            other => other.current()?.stored.inline_value(),
        }
    }

    /// The key of that version: cheaper still.
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

    /// Heap bytes of the cursor.
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
    /// No version that the merge's user looks for is younger.
    newest: Glsn,
}

impl Head {
    /// Call after moving the cursor: records its key's prefix if it is to be compared with others.
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
    /// In the order of precedence.
    heads: Vec<Head>,
    /// Indexes into `heads`; the next version is on top.
    heap: Vec<u32>,
    /// Cursors without a source, for those that [`Merge::add_run`] adds.
    #[allow(
        clippy::vec_box,
        reason = "they are boxed in `Cursor::Run`, and go from one to the other"
    )]
    idle: Vec<Box<RunCursor>>,
}

impl Merge {
    /// A merge of cursors in order of precedence, not yet positioned.
    pub(crate) fn new(cursors: Vec<Cursor>, direction: Direction) -> Self {
        let heap = Vec::with_capacity(cursors.len());
        let heads = cursors
            .into_iter()
            .map(|cursor| Head { cursor, prefix: 0, newest: Glsn::MAX })
            .collect();
        Self { direction, heads, heap, idle: Vec::new() }
    }

    /// Begins a walk of a merge without cursors.
    pub(crate) fn begin(&mut self, direction: Direction) {
        debug_assert!(self.heads.is_empty());
        self.direction = direction;
    }

    /// Adds a cursor, behind those that it has in the order of precedence. Only before it is
    /// positioned. No version that the walk may return is younger than `newest`.
    pub(crate) fn add(&mut self, cursor: Cursor, newest: Glsn) {
        self.heads.push(Head { cursor, prefix: 0, newest });
    }

    /// The same, with a cursor over the tables of a run, by the pool.
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

    /// Lets go of all sources. Cursors over runs are kept for other walks, with `nothing` to read.
    pub(crate) fn end(&mut self, nothing: &Arc<[Table]>) {
        self.heap.clear();
        for head in self.heads.drain(..) {
            if let Cursor::Run(mut cursor) = head.cursor {
                cursor.begin(Arc::clone(nothing));
                self.idle.push(cursor);
            }
        }
    }

    /// Heap bytes of the merge and its cursors.
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

    /// Moves to the start of the walk (the last version for a backward walk).
    pub(crate) fn seek_end(&mut self) -> Result<()> {
        let direction = self.direction;
        self.place(|cursor| cursor.seek_end(direction))
    }

    fn place(&mut self, mut seek: impl FnMut(&mut Cursor) -> Result<()>) -> Result<()> {
        self.place_heads(|head| seek(&mut head.cursor))
    }

    /// Moves the cursors that have nothing younger than `glsn` out of an interval in the merge's
    /// direction: to the first version at or after `to`, or to the last one before it.
    pub(crate) fn leave_older(&mut self, to: &[u8], glsn: Glsn) -> Result<()> {
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

    /// The top version, borrowed until the merge is moved.
    #[inline]
    pub(crate) fn top(&self) -> Option<Version<'_>> {
        let &top = self.heap.first()?;
        self.heads[top as usize].cursor.current()
    }

    /// The value of the version on top, where the version holds it.
    #[inline]
    pub(crate) fn top_inline_value(&self) -> Option<&[u8]> {
        let &top = self.heap.first()?;
        self.heads[top as usize].cursor.inline_value()
    }

    /// The head of the version on top.
    #[inline]
    pub(crate) fn top_head(&self) -> Option<VersionHead<'_>> {
        let &top = self.heap.first()?;
        self.heads[top as usize].cursor.head()
    }

    /// The key of the version on top.
    pub(crate) fn top_key(&self) -> Option<&[u8]> {
        let &top = self.heap.first()?;
        self.heads[top as usize].cursor.key()
    }

    /// How the leaf that holds the top version was accessed.
    pub(crate) fn top_warmth(&mut self) -> Warmth {
        let Some(&top) = self.heap.first() else { return Warmth::Unread };
        let hot = match &mut self.heads[top as usize].cursor {
            Cursor::Run(cursor) => cursor.is_on_hot_leaf(),
            _ => false,
        };
        if hot { Warmth::Hot } else { Warmth::Unread }
    }

    /// Moves by one version in the merge's direction.
    pub(crate) fn advance(&mut self) -> Result<()> {
        let Some(&top) = self.heap.first() else { return Ok(()) };
        let head = &mut self.heads[top as usize];
        head.cursor.step(self.direction)?;
        self.settle_top()
    }

    /// Forward walks only: moves by one version, from one of `key`; returns whether the next one is
    /// of another key.
    #[inline]
    pub(crate) fn pass_version(&mut self, key: &[u8]) -> Result<bool> {
        if let [Head { cursor: Cursor::Run(cursor), .. }] = &mut self.heads[..] {
            if cursor.pass_version()? {
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

    /// Whether it has one source, so that nothing is ever compared.
    fn is_of_one(&self) -> bool {
        self.heads.len() == 1
    }

    /// Forward walks only: skips the versions before (`key`, `glsn`) by a lookup in each source.
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

    /// Backward walks only, with every cursor at or before `key`: passes the newest version of
    /// `key` that is not younger than `at` to `see`, and moves before the key.
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
            see(self.heads[index].cursor.current().expect("it was just found"));
        }
        self.seek_before(key, Glsn::MAX)
    }

    fn sift_down(&mut self, mut at: usize) {
        loop {
            let (left, right) = (2 * at + 1, 2 * at + 2);
            let first = match (self.heap.get(left), self.heap.get(right)) {
                // Added, not branched: a processor cannot guess which one it is.
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

    /// A walk over a sorted list: (key, GLSN, deleted).
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
    fn sources_come_in_one_order_and_the_first_wins_where_two_are_equal() {
        let mut merge = Merge::new(sources(), Direction::Forward);
        merge.seek_end().unwrap();
        assert_eq!(walk(&mut merge), in_order());
    }

    #[test]
    fn a_walk_back_is_the_walk_forward_reversed() {
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
    fn a_skip_leaves_out_what_stands_before_and_nothing_else() {
        let mut merge = Merge::new(sources(), Direction::Forward);
        merge.seek_end().unwrap();
        merge.skip_to(b"b", Glsn::NONE).unwrap();
        assert_eq!(walk(&mut merge), in_order()[8..]);
    }

    #[test]
    fn a_key_is_looked_up_and_left_while_walking_back() {
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
