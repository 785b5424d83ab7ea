//! The lock of syncs, and the members that wait until something is durable.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use crate::error::LogError;
use crate::members::gathering::Gathering;
use crate::members::lock::{Got, MemberLock};
use crate::members::marks::Marks;
use crate::members::posts::Posts;
use crate::members::table::Table;
use crate::members::words::{Durable, End, FOLLOWERS, READER_BELL, RESTING, STATE, SYNCS};

/// The interval at which a process that cannot be woken polls for news.
const WATCH_INTERVAL: Duration = Duration::from_millis(20);

/// The lock of syncs, and what a sync publishes.
pub struct Syncs {
    table: Arc<Table>,
    marks: Arc<Marks>,
    posts: Arc<Posts>,
    /// Held during a sync, which takes the log's own right to sync first.
    pub(crate) sync: MemberLock,
    /// The processes that wait for the next sync.
    pub(crate) gathering: Gathering,
}

impl Syncs {
    pub(super) fn new(
        (table, marks, posts): (&Arc<Table>, &Arc<Marks>, &Arc<Posts>),
        sync: MemberLock,
    ) -> Self {
        Self {
            table: Arc::clone(table),
            marks: Arc::clone(marks),
            posts: Arc::clone(posts),
            sync,
            gathering: Gathering::new(table, SYNCS),
        }
    }

    /// Takes the lock of syncs, unless `is_needless` returns true.
    pub(crate) fn take_sync(&self, is_needless: &dyn Fn() -> bool) -> Result<Got, LogError> {
        self.sync.take(self.table.timeout, self.table.here(), is_needless)
    }

    /// Publishes the durable end, and wakes the threads that wait for it. The caller must hold the
    /// lock of syncs.
    pub(crate) fn set_durable(&self, durable: &Durable) {
        self.marks.durable.write(&*self.table.words, durable.words());
        self.sync.wake_all();
        self.posts.wake_group();
        if self.table.word(FOLLOWERS) > 0 {
            self.table.ring(READER_BELL);
        }
        // Cleared first: the comment at `RESTING` states the cost if this member is killed before
        // it wakes the others. The fence pairs with the one in `rest`.
        fence(Ordering::SeqCst);
        if self.table.word(RESTING) > 0
            && self.table.words.words()[RESTING].swap(0, Ordering::SeqCst) > 0
        {
            self.table.notify();
        }
    }

    /// Publishes the end that the first member has recovered. Waiters are woken when it has joined.
    pub(crate) fn set_recovered(&self, end: &End) {
        self.marks.durable.write(&*self.table.words, end.as_durable().words());
        self.marks.set_end(end);
    }

    /// Waits until something may have become durable, or until `timeout` has elapsed.
    pub(crate) fn wait_for_durable(&self, timeout: Duration, is_there: &dyn Fn() -> bool) {
        if !self.table.may_write_words() {
            return self.poll_for_durable(timeout, is_there);
        }
        let words = self.table.words.words();
        words[FOLLOWERS].fetch_add(1, Ordering::SeqCst);
        let seen = self.table.word(READER_BELL);
        if !is_there() {
            self.table.words.wait(READER_BELL, seen, timeout);
        }
        words[FOLLOWERS].fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes the threads of all members that wait for news, so that each checks whether its wait
    /// has ended.
    pub(crate) fn wake_followers(&self) {
        self.table.ring(READER_BELL);
    }

    /// Waits until `is_there` returns true, or until `timeout` has elapsed, by polling.
    pub(super) fn poll_for_durable(&self, timeout: Duration, is_there: &dyn Fn() -> bool) {
        let rounds = timeout.as_millis() / WATCH_INTERVAL.as_millis() + 1;
        for _ in 0..rounds {
            if is_there() {
                return;
            }
            self.table.words.wait(STATE, self.table.state(), WATCH_INTERVAL.min(timeout));
        }
    }
}
