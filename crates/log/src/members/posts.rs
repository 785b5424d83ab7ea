//! Posts: records that members leave in shared memory, so that one member orders all of them in one
//! turn (*flat combining*: Hendler, Incze, Shavit and Tzafrir, 2010).
//!
//! Each slot has a few cells, and a word with a bit for each: the bit is set while the cell holds a
//! pending post. Only the member that owns the slot writes a post. Only the holder of the turn
//! processes one: it claims the post, orders the record, writes its GLSN into the cell, publishes
//! the new end, and then clears the bit. The owner can withdraw a post that was not claimed. The
//! owner has its answer once the GLSN in the cell is durable.
//!
//! Invariants:
//! 1. A post is ordered at most once. A member that is killed between writing a GLSN and publishing
//!    the end leaves the turn abandoned; the next holder takes the GLSN back before it orders
//!    anything else ([`Posts::discard_unpublished`]).
//! 2. A cell does not change while its bit is set. A process that gets a slot clears its bits when
//!    it joins. It holds the turn once before its first post, so that no member is still reading a
//!    cell of the slot's previous owner.
//! 3. A post is ordered only while its owner is alive and has not returned `Stalled` for it. So it
//!    never overwrites a value that was committed long after it was posted.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::LogError;
use crate::glsn::Glsn;
use crate::members::gathering::Gathering;
use crate::members::lock::{Got, MemberLock, WaitQueue};
use crate::members::marks::Marks;
use crate::members::slots::Slots;
use crate::members::table::Table;
use crate::members::words::{
    CELL_WORDS, CELLS, CELLS_AT, GROUP_BEGUN, GROUP_WHOLE, POSTED_AT, POSTING, POSTING_QUEUES,
    POSTS, SLOTS,
};

/// The words of a cell before the payload.
const HEAD_WORDS: usize = 5;
const ANSWER: usize = 0;
const READ_AT: usize = 1;
const KNOWN: usize = 2;
const LEN: usize = 3;
const LEFT: usize = 4;

/// The most bytes of a post's payload.
pub(crate) const POST_BYTES_MAX: usize = (CELL_WORDS - HEAD_WORDS) * size_of::<u64>();

/// The post is not claimed yet.
const NONE: u64 = 0;
/// The post was not ordered and never will be.
const REFUSED: u64 = u64::MAX;
/// The holder of the turn is about to order the post.
const CLAIMED: u64 = u64::MAX - 1;

/// The posts of all members, and this member's own cells.
pub struct Posts {
    table: Arc<Table>,
    marks: Arc<Marks>,
    slots: Arc<Slots>,
    /// Held by the member that orders and syncs the posts of all members.
    pub(crate) posting: MemberLock,
    /// The processes that wait for their posts to be ordered.
    pub(crate) gathering: Gathering,
    /// A bit for each cell that a thread uses.
    used: AtomicU64,
    /// Whether the slot's cells hold no post of an earlier owner of the slot.
    are_cleared: AtomicBool,
    /// If a wait for the lock of posts has timed out: the time at which its holder took it.
    /// Otherwise 0.
    stalled_since: AtomicU64,
}

/// A place for a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    slot: usize,
    index: usize,
}

/// The outcome of a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It is not claimed yet.
    None,
    /// The holder of the turn is about to order it.
    Claimed,
    /// It has this GLSN.
    Ordered(Glsn),
    /// It was not ordered.
    Refused,
}

/// A post of this member. Its cell can be used again when this is dropped.
#[derive(Debug)]
pub(crate) struct Post<'a> {
    posts: &'a Posts,
    pub(crate) cell: Cell,
}

impl Post<'_> {
    /// The answer, once it is final: a GLSN counts only when it is durable.
    pub(crate) fn answer(&self) -> Answer {
        // Read the durable GLSN first. Otherwise the durable record at the answer's GLSN could be
        // another one, to which the GLSN was assigned after it was taken back from this post.
        let durable = self.posts.marks.durable().next;
        match self.posts.post_answer(self.cell) {
            Answer::Claimed => Answer::None,
            Answer::Ordered(glsn) if glsn >= durable => Answer::None,
            answer => answer,
        }
    }
}

impl Drop for Post<'_> {
    fn drop(&mut self) {
        self.posts.used.fetch_and(!(1 << self.cell.index), Ordering::AcqRel);
    }
}

impl Posts {
    pub(super) fn new(
        (table, marks, slots): (&Arc<Table>, &Arc<Marks>, &Arc<Slots>),
        posting: MemberLock,
    ) -> Self {
        Self {
            table: Arc::clone(table),
            marks: Arc::clone(marks),
            slots: Arc::clone(slots),
            posting,
            gathering: Gathering::new(table, POSTS),
            used: AtomicU64::new(0),
            are_cleared: AtomicBool::new(false),
            stalled_since: AtomicU64::new(0),
        }
    }

    /// Whether this member may post.
    pub(crate) fn may_post(&self) -> bool {
        self.are_cleared.load(Ordering::Acquire)
    }

    /// Whether threads of this process have posted and are waiting.
    pub fn has_posts(&self) -> bool {
        self.used.load(Ordering::Relaxed) != 0
    }

    /// Permits this member to post. The caller must hold the turn.
    pub(crate) fn begin_to_post(&self) {
        if self.table.has_slot() && !self.may_post() {
            self.clear_posts();
            self.are_cleared.store(true, Ordering::Release);
        }
    }

    /// Drops the posts in this member's slot, which belong to an earlier owner. This member must
    /// not have posted anything.
    pub(super) fn clear_posts(&self) {
        if self.table.has_slot() {
            self.posted(self.table.slot).store(0, Ordering::SeqCst);
        }
    }

    /// Posts a record of one entry, whose transaction read at `read_at`. This member has applied
    /// the log up to `known`. `None` if there is no room, or if this member may not post now.
    pub(crate) fn post(&self, parts: &[&[u8]], read_at: Glsn, known: Glsn) -> Option<Post<'_>> {
        let len = parts.iter().map(|part| part.len()).sum::<usize>();
        if len > POST_BYTES_MAX || !self.may_post() || self.is_posting_stalled() {
            return None;
        }
        let posted = self.posted(self.table.slot);
        let mut index = 0;
        let take = |used: u64| {
            let free = !(used | posted.load(Ordering::Acquire)) & ((1 << CELLS) - 1);
            index = free.trailing_zeros() as usize;
            (free != 0).then(|| used | (1 << index))
        };
        self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).ok()?;
        if posted.load(Ordering::Acquire) & (1 << index) != 0 {
            // Another thread used the cell meanwhile, and got its answer before the bit was
            // cleared.
            self.used.fetch_and(!(1 << index), Ordering::AcqRel);
            return None;
        }
        let cell = Cell { slot: self.table.slot, index };
        let words = self.cell(cell);
        words[LEFT].store(0, Ordering::Relaxed);
        words[ANSWER].store(NONE, Ordering::Relaxed);
        words[READ_AT].store(read_at.0, Ordering::Relaxed);
        words[KNOWN].store(known.0, Ordering::Relaxed);
        words[LEN].store(len as u64, Ordering::Relaxed);
        #[cfg(feature = "testing")]
        self.table.words.between_stores();
        let mut bytes = [0; POST_BYTES_MAX];
        let mut rest = &mut bytes[..];
        for part in parts {
            let (place, after) = rest.split_at_mut(part.len());
            place.copy_from_slice(part);
            rest = after;
        }
        let (eights, _) = bytes.as_chunks();
        for (word, eight) in
            words[HEAD_WORDS..].iter().zip(&eights[..len.div_ceil(size_of::<u64>())])
        {
            word.store(u64::from_le_bytes(*eight), Ordering::Relaxed);
        }
        posted.fetch_or(1 << index, Ordering::Release);
        #[cfg(feature = "testing")]
        self.table.words.between_stores();
        Some(Post { posts: self, cell })
    }

    /// The slots, this member's own first.
    fn slots_to_ask(&self) -> impl Iterator<Item = usize> {
        let own = self.table.slot;
        std::iter::once(own)
            .chain((0..SLOTS).filter(move |slot| *slot != own))
            .filter(|slot| *slot < SLOTS)
    }

    /// The cells whose bits are set, this member's own first. The caller must hold the turn.
    pub(crate) fn pending(&self) -> impl Iterator<Item = Cell> {
        self.slots_to_ask().flat_map(move |slot| {
            let bits = self.posted(slot).load(Ordering::Acquire);
            (0..CELLS)
                .filter(move |index| bits & (1 << index) != 0)
                .map(move |index| Cell { slot, index })
        })
    }

    /// Whether the process that posted this is alive. If it has ended, its post is never ordered,
    /// even if no member has noticed the end yet. A living owner whose lock file was replaced
    /// counts as ended; it orders the record by itself.
    pub(crate) fn is_owner_there(&self, cell: Cell) -> bool {
        self.slots.is_alive(cell.slot)
    }

    /// Claims a post, to order it. False if its owner has withdrawn or left it, or if it was
    /// already answered. The caller must hold the turn.
    pub(crate) fn claim_post(&self, cell: Cell) -> bool {
        let answer = &self.cell(cell)[ANSWER];
        if answer.compare_exchange(NONE, CLAIMED, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return false;
        }
        #[cfg(feature = "testing")]
        self.table.words.between_stores();
        if self.cell(cell)[LEFT].load(Ordering::Acquire) != 0 {
            self.answer_post(cell, Answer::Refused);
            return false;
        }
        true
    }

    /// Withdraws a post of this member; needs no turn. False if it was already claimed or answered.
    pub(crate) fn withdraw_post(&self, post: &Post<'_>) -> bool {
        let answer = &self.cell(post.cell)[ANSWER];
        answer.compare_exchange(NONE, REFUSED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Leaves a claimed post to the current holder of the turn. If that member ends without
    /// publishing it, no other member orders it.
    pub(crate) fn leave_post(&self, post: &Post<'_>) {
        self.cell(post.cell)[LEFT].store(1, Ordering::Release);
    }

    /// Reads a post: copies its payload into `into`, and returns it with the GLSNs `read_at` and
    /// `known` of the post.
    pub(crate) fn read_post<'a>(
        &self,
        cell: Cell,
        into: &'a mut [u8; POST_BYTES_MAX],
    ) -> (&'a [u8], Glsn, Glsn) {
        let words = self.cell(cell);
        let len = (words[LEN].load(Ordering::Relaxed) as usize).min(POST_BYTES_MAX);
        for (word, eight) in words[HEAD_WORDS..]
            .iter()
            .zip(into[..].chunks_exact_mut(size_of::<u64>()))
            .take(len.div_ceil(8))
        {
            eight.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
        }
        let moment = |at: usize| Glsn(words[at].load(Ordering::Relaxed));
        (&into[..len], moment(READ_AT), moment(KNOWN))
    }

    pub(crate) fn post_answer(&self, cell: Cell) -> Answer {
        match self.cell(cell)[ANSWER].load(Ordering::Acquire) {
            NONE => Answer::None,
            CLAIMED => Answer::Claimed,
            REFUSED => Answer::Refused,
            glsn => Answer::Ordered(Glsn(glsn)),
        }
    }

    /// Answers a post. The caller must hold the turn; if the answer is a GLSN, it must publish that
    /// record next.
    pub(crate) fn answer_post(&self, cell: Cell, answer: Answer) {
        let word = match answer {
            Answer::None => NONE,
            Answer::Claimed => CLAIMED,
            Answer::Refused => REFUSED,
            Answer::Ordered(glsn) => glsn.0,
        };
        self.cell(cell)[ANSWER].store(word, Ordering::Release);
        #[cfg(feature = "testing")]
        self.table.words.between_stores();
    }

    /// Clears the bit of an answered post whose record, if it was ordered, is published. The caller
    /// must hold the turn.
    pub(crate) fn clear_post(&self, cell: Cell) {
        self.posted(cell.slot).fetch_and(!(1 << cell.index), Ordering::AcqRel);
        #[cfg(feature = "testing")]
        self.table.words.between_stores();
    }

    /// Takes back the claims of a member, and the GLSNs that it assigned to posts, if it ended
    /// before it published them. The caller must hold the turn and must not have ordered anything
    /// yet.
    pub(crate) fn discard_unpublished(&self) {
        let next = self.marks.next();
        let cells: Vec<Cell> = self.pending().collect();
        for cell in cells {
            let is_unpublished = match self.post_answer(cell) {
                Answer::Claimed => true,
                Answer::Ordered(glsn) => glsn >= next,
                Answer::None | Answer::Refused => false,
            };
            if is_unpublished {
                self.answer_post(cell, Answer::None);
            }
        }
    }

    /// Takes the lock of posts, unless `post` gets its answer first.
    ///
    /// # Errors
    /// `Stalled`, the operating system.
    pub(crate) fn take_posting(
        &self,
        post: Cell,
        is_needless: &dyn Fn() -> bool,
    ) -> Result<Got, LogError> {
        // A post without an answer belongs to the group after the last closed one, or to a later
        // group; in the latter case its owner is woken once needlessly. A post that is ordered and
        // not durable yet belongs to the group that was begun last.
        let queue = || {
            // Read this before the answer. Otherwise a group could close in between.
            let next = self.table.word(GROUP_WHOLE) + 1;
            let is_ordered = !matches!(self.post_answer(post), Answer::None);
            post_queue(if is_ordered { self.table.word(GROUP_BEGUN) } else { next })
        };
        self.posting.take_waiting_at(&queue, self.table.timeout, self.table.here(), is_needless)
    }

    /// Begins a group: the posts that are found from here on, until [`Posts::end_group`]. The
    /// caller must hold the lock of posts and the turn.
    pub(crate) fn begin_group(&self) {
        self.table.words.words()[GROUP_BEGUN]
            .store(self.table.word(GROUP_WHOLE) + 1, Ordering::SeqCst);
    }

    /// Closes the group: later posts belong to the next one.
    pub(crate) fn end_group(&self) {
        self.table.words.words()[GROUP_WHOLE].store(self.table.word(GROUP_BEGUN), Ordering::SeqCst);
    }

    /// Wakes the owners of the posts of the last group, which have their answers.
    pub(crate) fn wake_group(&self) {
        self.posting.wake_all_at(post_queue(self.table.word(GROUP_BEGUN)));
    }

    /// Wakes all owners that wait for answers, because the log is poisoned.
    pub(super) fn wake_all_groups(&self) {
        POSTING_QUEUES.iter().for_each(|queue| self.posting.wake_all_at(*queue));
    }

    /// Records that a wait for the lock of posts has timed out. Nothing is posted until that lock
    /// is released.
    pub(crate) fn note_posting_stalled(&self) {
        self.stalled_since.store(self.table.word(POSTING.since), Ordering::Relaxed);
    }

    fn is_posting_stalled(&self) -> bool {
        let stalled_since = self.stalled_since.load(Ordering::Relaxed);
        if stalled_since == 0 {
            return false;
        }
        let holder = self.table.word(POSTING.holder) as usize;
        let is_same =
            self.table.word(POSTING.since) == stalled_since && (1..=SLOTS).contains(&holder);
        let is_stalled = is_same && self.is_owner_there(Cell { slot: holder - 1, index: 0 });
        if !is_stalled {
            self.stalled_since.store(0, Ordering::Relaxed);
        }
        is_stalled
    }

    /// Releases the lock of posts, and wakes the owner of a post of the next group.
    pub(crate) fn release_posting(&self) {
        self.posting.release_to(post_queue(self.table.word(GROUP_WHOLE) + 1));
    }

    fn posted(&self, slot: usize) -> &AtomicU64 {
        &self.table.words.words()[POSTED_AT + slot]
    }

    fn cell(&self, cell: Cell) -> &[AtomicU64] {
        let at = CELLS_AT + (cell.slot * CELLS + cell.index) * CELL_WORDS;
        &self.table.words.words()[at..at + CELL_WORDS]
    }
}

impl fmt::Debug for Posts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Posts(of slot {})", self.table.slot)
    }
}

fn post_queue(group: u64) -> WaitQueue {
    POSTING_QUEUES[(group % 2) as usize]
}
