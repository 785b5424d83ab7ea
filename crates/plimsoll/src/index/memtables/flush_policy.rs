//! When a memtable is closed so that it can be flushed. All of this is pure; [`super::Memtables`]
//! and the threads of the store call it.
//!
//! The active memtable is closed
//! - when it is full ([`limit_bytes`], [`is_full`]), or the budget refuses room to grow it
//!   ([`may_close`]): checked by each commit;
//! - when memory is needed and no other memtable waits to be flushed: by waiting writers
//!   (`txn/writer_memory.rs`), or because the budget shrinks (`engine/memory.rs`);
//! - when nothing was written for [`IDLE`], or it has held something for [`AGE_MAX`] since the
//!   first poll that saw it ([`Watch`], polled by `engine/maintenance/checkpoints.rs`), if it is
//!   worth a run ([`Unflushed::is_worth_a_run`]);
//! - when only its contents retain large blob files ([`frees_blobs`];
//!   `engine/compact_and_free.rs`);
//! - when another process waits for a flush, or for the part of the log that the memtable retains
//!   ([`for_others`], `engine/shared/membership.rs`; [`HeldBack`] decides whether members are
//!   asked, `engine/compact_and_free.rs`);
//! - when the store is closed, unless the replay is short ([`Unflushed::is_too_small_to_flush`];
//!   `engine.rs`).
//!
//! A memtable too small for a run is not flushed, because replaying it takes only some
//! milliseconds. Instead, the log's active segment is sealed if it is long: the next process would
//! read all of it, at two milliseconds per mebibyte from a cold disk. While writes continue, the
//! threshold is higher, so that a slow writer does not create many tiny segments. A memtable with
//! large values is flushed although it is small, and the segment sealed, because only then can
//! the blob files of values that have expired or are superseded be freed.
//!
//! Invariant: a writer that fills a memtable within [`AGE_MAX`], and does not pause for [`IDLE`],
//! is not affected. A slower writer causes smaller runs, which merges rewrite once or twice more:
//! at most one memtable's bytes per [`AGE_MAX`], or the bytes of a burst followed by a pause.
//! (Requests to the members of a shared store add at most one flush per four segments of the log.)
//!
//! Invariants of the retained part of the log ([`HeldBack`]):
//! 1. Entries written less than [`HELD_LONG`] ago do not count: neither short transactions
//!    alongside a busy writer nor floors that are published late cause a flush.
//! 2. Each byte of the log counts once: members are asked again only after another four segments.

use std::time::Duration;

use plimsoll_log::file_log::LONG_SEGMENT_BYTES;
use plimsoll_log::glsn::Glsn;

use crate::index::env::role::Role;
use crate::index::sources::source::Memtable;

/// Divisor: a memtable's share of the budget, but at least the first and at most the second of
/// [`BYTES`].
const SHARE: u64 = 8;
const BYTES: (u64, u64) = (1 << 20, 64 << 20);

/// Divisor: a memtable has at most this part of the bytes of the runs.
const PART: u64 = 3;
/// As [`PART`], while rows are overwritten.
const PART_OVER: u64 = 6;
/// The limits by parts of the runs never go below this.
const PART_LEAST: u64 = 16 << 20;

/// Budgets from this size on allow two memtables to wait to be flushed, smaller ones one.
const TWO_CLOSED_BYTES: u64 = 64 << 20;

/// A memtable is too small for a run if it holds less than both `LEAST_BYTES` and this part of its
/// limit (a divisor), unless its commits take at least `LEAST_LOG_BYTES` of the log, or have put at
/// least `LEAST_BLOB_BYTES` into blob files.
const LEAST_BYTES: u64 = 1 << 20;
const LEAST_PART: u64 = 4;
/// See [`LEAST_BYTES`]: large values are only in the log, and a replay reads all of them.
const LEAST_LOG_BYTES: u64 = LONG_SEGMENT_BYTES;
/// See [`LEAST_BYTES`]: as long as a memtable holds commits that name blob files, the files stay,
/// even if their values have expired or are superseded.
const LEAST_BLOB_BYTES: u64 = 1 << 20;

/// Writers count as idle after this time without a write.
const IDLE: Duration = Duration::from_secs(2);

/// The longest time that a memtable which is worth a run stays in memory before it is full.
const AGE_MAX: Duration = Duration::from_secs(30);

/// While writes continue, the active segment is sealed from this length on. When writers are idle,
/// it is sealed from the same length on as at a close ([`LONG_SEGMENT_BYTES`]).
const LONG_SEGMENT_BUSY_BYTES: u64 = 16 << 20;

/// Blob files that only a memtable retains count as large from the size of this many segments on.
const BLOB_SEGMENTS: u64 = 2;

/// Memtables are closed to free the log once this many segments were retained for long and can now
/// be freed.
const RELEASED_SEGMENTS: u64 = 4;

/// The size at which a memtable is full, given runs of `run_bytes`: an eighth of the budget, but
/// small compared with the runs. `has_been_overwritten`: the last flush superseded much of the
/// older runs.
pub(crate) fn limit_bytes(budget_bytes: u64, run_bytes: u64, has_been_overwritten: bool) -> u64 {
    let (min, max) = BYTES;
    let part = if has_been_overwritten { PART_OVER } else { PART };
    (budget_bytes / SHARE).clamp(min, max).min((run_bytes / part).max(PART_LEAST))
}

/// Whether another `bytes` do not fit. An empty memtable accepts any number.
pub(crate) fn is_full(active: &Memtable, bytes: usize, limit_bytes: u64) -> bool {
    !active.is_empty() && active.map().used_bytes() + bytes as u64 > limit_bytes
}

/// Number of memtables that may wait to be flushed before writers have to wait.
pub(crate) fn closed_max(budget_bytes: u64) -> usize {
    if budget_bytes < TWO_CLOSED_BYTES { 1 } else { 2 }
}

/// Whether a memtable without room may be closed: it is full, or the budget `refused` to let it
/// grow. `few_wait`: fewer than [`closed_max`] wait to be flushed.
pub(crate) fn may_close(role: &Role, refused: bool, few_wait: bool) -> bool {
    match (role.is_read_only(), role.only_reads()) {
        (true, _) => false,
        // A read-only member may wait long for the keeper's flush, so it closes as many as the
        // budget allows.
        (false, true) => !refused,
        (false, false) => few_wait,
    }
}

/// The contents of the active memtable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unflushed {
    /// Bytes of the entries.
    pub(crate) bytes: u64,
    /// Bytes of the log that a replay reads to rebuild it.
    pub(crate) log_bytes: u64,
    /// Bytes of its values in blob files.
    pub(crate) blob_bytes: u64,
    /// The oldest commit.
    pub(crate) oldest: Glsn,
}

impl Unflushed {
    /// Whether it is large enough to be written as a run, with memtables of `limit_bytes`.
    pub(crate) fn is_worth_a_run(&self, limit_bytes: u64) -> bool {
        let least = LEAST_BYTES.min(limit_bytes / LEAST_PART);
        self.bytes >= least
            || self.log_bytes >= LEAST_LOG_BYTES
            || self.blob_bytes >= LEAST_BLOB_BYTES
    }

    /// Whether a store that is closed now may leave the memtable to the next process's replay,
    /// because it is too small for a run.
    pub(crate) fn is_too_small_to_flush(&self, limit_bytes: u64) -> bool {
        self.bytes > 0 && !self.is_worth_a_run(limit_bytes)
    }

    /// Whether it holds any version up to `glsn`.
    fn holds_up_to(&self, glsn: Glsn) -> bool {
        (Glsn::NONE.next()..=glsn).contains(&self.oldest)
    }
}

/// Whether the blob files that the active segment names, of `blob_bytes` in all, are large and
/// retained only by the memtable's contents. Large values fill the disk long before they fill the
/// memtable. The log may be freed up to `until`; the runs hold everything up to `checkpoint`.
pub(crate) fn frees_blobs(
    checkpoint: Glsn,
    until: Glsn,
    blob_bytes: u64,
    segment_bytes: u64,
) -> bool {
    checkpoint.next() < until && blob_bytes >= BLOB_SEGMENTS * segment_bytes
}

/// Whether the active memtable is closed for other processes: one of them waits until everything up
/// to `flush` is flushed by the keeper (the runs hold everything up to `checkpoint`), or the log up
/// to `held` is to be released. Returns the GLSN that must be applied first, so that no second
/// flush is needed; `None` if the memtable stays open. `unflushed` is `None` while another memtable
/// waits.
pub(crate) fn for_others(
    unflushed: Option<Unflushed>,
    checkpoint: Glsn,
    flush: Option<Glsn>,
    held: Glsn,
) -> Option<Glsn> {
    let unflushed = unflushed?;
    if flush.is_some_and(|flush| flush > checkpoint) {
        return Some(Glsn::NONE);
    }
    unflushed.holds_up_to(held).then_some(held)
}

/// The work that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Nothing,
    /// The active memtable is to be flushed.
    Flush,
    /// The log's active segment is to be sealed, if it has at least `from_bytes`, or if it names
    /// blob files of at least `from_blob_bytes`.
    Seal {
        from_bytes: u64,
        from_blob_bytes: u64,
    },
}

/// The seal decision while writes continue, and once they have ended.
const SEAL_BUSY: Due =
    Due::Seal { from_bytes: LONG_SEGMENT_BUSY_BYTES, from_blob_bytes: LONG_SEGMENT_BUSY_BYTES };
const SEAL_IDLE: Due =
    Due::Seal { from_bytes: LONG_SEGMENT_BYTES, from_blob_bytes: LEAST_BLOB_BYTES };

/// Decides when to flush because writers are idle or a memtable is old. Holds the state of earlier
/// polls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watch {
    /// The GLSN after the log's last entry, when it was first seen, and whether the segment was
    /// sealed there.
    pub(crate) next: Glsn,
    since: u64,
    sealed: bool,
    /// The oldest commit in a memtable that is large enough for a run, and when it was first seen.
    held: Option<(Glsn, u64)>,
    /// Whether that memtable has reached its maximum age.
    aged: bool,
}

impl Watch {
    /// The work that is due at `now`. The log ends before `next`; `oldest` is the oldest commit in
    /// the active memtable if that is large enough for a run.
    pub(crate) fn poll(&mut self, now: u64, next: Glsn, oldest: Option<Glsn>) -> Due {
        if next != self.next {
            (self.next, self.since, self.sealed) = (next, now, false);
        }
        let is_idle = now.saturating_sub(self.since) >= nanos(IDLE);
        let is_gone = self.held.is_some_and(|(known, _)| oldest != Some(known));
        self.held = oldest.map(|oldest| match self.held {
            Some((known, since)) if known == oldest => (oldest, since),
            _ => (oldest, now),
        });
        if is_gone && std::mem::take(&mut self.aged) {
            return SEAL_BUSY;
        }
        if let Some((_, since)) = self.held {
            self.aged = now.saturating_sub(since) >= nanos(AGE_MAX);
            return if is_idle || self.aged { Due::Flush } else { Due::Nothing };
        }
        if is_idle && !self.sealed {
            self.sealed = true;
            return SEAL_IDLE;
        }
        Due::Nothing
    }

    /// Whether something may become due soon.
    pub(crate) fn is_watching(&self) -> bool {
        self.held.is_some() || !self.sealed
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Entries that are retained for less time do not count.
const HELD_LONG: Duration = Duration::from_secs(2);

/// Detects that much of the log was retained and may now be freed. Holds the state of earlier
/// polls.
#[derive(Debug, Default)]
pub(crate) struct HeldBack {
    /// The GLSN up to which the log could be freed at an earlier poll. It only rises: a joining
    /// member has not published a floor yet, and concurrent polls may arrive in any order.
    until: Glsn,
    /// The newest commit at a poll at least [`HELD_LONG`] before this one.
    old: Glsn,
    /// The time of a later poll and the newest commit then.
    sample: (u64, Glsn),
}

impl HeldBack {
    /// Whether much of the log was retained until the last poll and may now be freed, up to
    /// `until`. `is_much` gets the bounds of that part; they are in reverse order if it is empty.
    pub(crate) fn is_released(
        &mut self,
        now: u64,
        until: Glsn,
        newest: Glsn,
        is_much: impl FnOnce(Glsn, Glsn) -> bool,
    ) -> bool {
        let (since, then) = self.sample;
        if now.saturating_sub(since) >= HELD_LONG.as_nanos() as u64 {
            (self.old, self.sample) = (then, (now, newest));
        }
        let is_released = is_much(self.until, until.min(self.old));
        self.until = self.until.max(until);
        is_released
    }
}

/// The size from which a released part of the log counts as much.
pub(crate) fn much_held_bytes(segment_bytes: u64) -> u64 {
    RELEASED_SEGMENTS * segment_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    #[test]
    fn the_memtable_limit_is_small_beside_the_runs_during_overwrites() {
        assert_eq!(limit_bytes(GIB, 0, false), 16 * MIB);
        assert_eq!(limit_bytes(GIB, 120 * MIB, false), 40 * MIB);
        assert_eq!(limit_bytes(GIB, 120 * MIB, true), 20 * MIB);
        assert_eq!(limit_bytes(GIB, 60 * GIB, true), 64 * MIB, "the budget is the lower limit");
        assert_eq!(limit_bytes(40 * MIB, 60 * GIB, true), 5 * MIB);
    }

    #[test]
    fn a_memtable_is_closed_for_others_once_their_glsn_is_applied() {
        let active = |oldest| {
            Some(Unflushed { bytes: 1, log_bytes: 1, blob_bytes: 0, oldest: Glsn(oldest) })
        };
        let none = Glsn::NONE;
        assert_eq!(for_others(active(5), Glsn(4), None, none), None, "no process asks for a flush");
        assert_eq!(
            for_others(active(5), Glsn(4), Some(Glsn(4)), none),
            None,
            "it is flushed already"
        );
        assert_eq!(for_others(active(5), Glsn(4), Some(Glsn(7)), none), Some(none));
        assert_eq!(for_others(active(5), Glsn(4), None, Glsn(4)), None, "the memtable is younger");
        assert_eq!(for_others(active(5), Glsn(4), None, Glsn(9)), Some(Glsn(9)));
        assert_eq!(for_others(None, Glsn(4), Some(Glsn(7)), Glsn(9)), None, "another one waits");
    }

    const SECOND: u64 = 1_000_000_000;

    fn holding(oldest: u64) -> Option<Glsn> {
        Some(Glsn(oldest))
    }

    #[test]
    fn idle_writers_cause_a_flush_and_then_one_seal() {
        let mut watch = Watch::default();
        assert_eq!(watch.poll(SECOND, Glsn(9), holding(1)), Due::Nothing);
        assert_eq!(watch.poll(2 * SECOND, Glsn(12), holding(1)), Due::Nothing);
        assert_eq!(watch.poll(3 * SECOND, Glsn(12), holding(1)), Due::Nothing);
        assert_eq!(watch.poll(4 * SECOND, Glsn(12), holding(1)), Due::Flush);
        assert_eq!(watch.poll(5 * SECOND, Glsn(12), None), SEAL_IDLE);
        assert!(!watch.is_watching());
        assert_eq!(watch.poll(6 * SECOND, Glsn(12), None), Due::Nothing);
    }

    #[test]
    fn a_memtable_not_worth_a_run_is_not_flushed() {
        let mut watch = Watch::default();
        for second in 1..100 {
            assert_ne!(watch.poll(second * SECOND, Glsn(9), None), Due::Flush);
        }
    }

    #[test]
    fn steady_writes_cause_a_flush_at_maximum_age_and_then_a_seal() {
        let mut watch = Watch::default();
        let mut look =
            |second: u64, oldest| watch.poll(second * SECOND, Glsn(10 + second), holding(oldest));
        // The writes of the first 30 seconds go into one memtable and those after that into the
        // next; from then on, each is full after 20 seconds.
        assert!((0..30).all(|second| look(second, 1) == Due::Nothing));
        assert_eq!(
            (look(30, 1), look(31, 1)),
            (Due::Flush, Due::Flush),
            "due until the memtable is closed"
        );
        assert_eq!(watch.poll(32 * SECOND, Glsn(42), None), SEAL_BUSY);
        let mut look =
            |second: u64, oldest| watch.poll(second * SECOND, Glsn(10 + second), holding(oldest));
        assert!((33..200).all(|second| look(second, second / 20) == Due::Nothing));
    }

    /// When (in half seconds) and how much is released, if each second has two polls and 100
    /// commits; `floor` returns the floor of a half second.
    fn released(seconds: u64, floor: impl Fn(u64) -> u64) -> Vec<(u64, u64)> {
        let mut held = HeldBack::default();
        let mut look = |half: u64| {
            let (newest, mut bytes) = (half * 50, 0);
            let is_much = |from: Glsn, to: Glsn| {
                bytes = to.0.saturating_sub(from.0);
                bytes > 0
            };
            let until = Glsn(floor(newest).min(newest));
            held.is_released(half * SECOND / 2, until, Glsn(newest), is_much)
                .then_some((half, bytes))
        };
        (0..2 * seconds).filter_map(&mut look).collect()
    }

    #[test]
    fn a_long_retained_floor_is_reported_once() {
        let gone = released(30, |newest| if newest < 2000 { 100 } else { newest });
        assert_eq!(gone.len(), 1);
        assert!((1500..1900).contains(&gone[0].1), "{gone:?}");
    }

    #[test]
    fn a_second_release_soon_after_is_reported_separately() {
        // The floor rises to 1000 after 20 seconds, and to 2000 after 22.
        let floor = |newest| match newest {
            0..2000 => 100,
            2000..2200 => 1000,
            _ => 2000,
        };
        let gone = released(50, floor);
        assert_eq!(gone, [(40, 900), (44, 1000)]);
    }

    #[test]
    fn a_floor_unknown_at_one_poll_is_not_reported() {
        assert_eq!(released(30, |newest| if newest == 2000 { 0 } else { newest }), []);
    }

    #[test]
    fn transactions_of_one_second_are_not_reported() {
        assert_eq!(released(30, |newest| newest.saturating_sub(100)), []);
        assert_eq!(released(30, |newest| newest / 100 * 100), []);
    }
}
