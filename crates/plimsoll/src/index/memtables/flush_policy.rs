//! When a memtable is closed, to be flushed as a run. All of this is pure; [`super::Memtables`] and
//! the threads of the store ask it.
//!
//! The active memtable is closed
//! - when it is full ([`limit_bytes`], [`is_full`]), or the budget refuses room to grow it
//!   ([`may_close`]): each commit asks;
//! - when memory is wanted, unless another memtable waits to be flushed: by writers that wait
//!   (`txn/patience.rs`), or because the budget shrinks (`engine/memory.rs`);
//! - when nothing was written for [`IDLE`], or it has held something for [`AGE_MAX`], measured from
//!   the first look that saw it ([`Watch`]; `engine/maintenance/checkpoints.rs` asks), if it is
//!   worth a run ([`Unflushed::is_worth_a_run`]);
//! - when only its contents keep large blob files ([`frees_blobs`]; `engine/steps.rs`);
//! - when another process waits for a flush, or for the log that it holds back ([`for_others`],
//!   `engine/membership.rs`; whether members are asked for that: [`HeldBack`], `engine/steps.rs`);
//! - when the store is closed, unless the replay is short ([`Unflushed::leaves_little`];
//!   `engine.rs`).
//!
//! A memtable too small for a run stays: replaying it takes some milliseconds. In that case the
//! log's active segment is sealed if it is long, because the next process would read all of it,
//! from a cold disk a mebibyte in two milliseconds. While writes continue, the threshold is higher,
//! so that a slow writer does not create many tiny segments.
//!
//! Law: writers that fill a memtable in less than that time are not affected. Slower ones pay with
//! a smaller run each time, which merges rewrite once or twice more: at most one memtable's bytes
//! in [`AGE_MAX`], or the bytes of a burst before writers rested. (What a shared store's members
//! are asked for comes beside it, once for each four segments of the log.)
//!
//! Laws of what is held back of the log ([`HeldBack`]):
//! 1. What was written less than [`HELD_LONG`] before counts for nothing: neither short
//!    transactions beside a busy writer nor floors that are told late cause a flush.
//! 2. Each byte of the log counts once: it takes another four segments before members are asked
//!    again.

use std::time::Duration;

use plimsoll_log::file_log::LONG_SEGMENT_BYTES;
use plimsoll_log::glsn::Glsn;

use crate::index::env::duty::Duty;
use crate::index::sources::source::Memtable;

/// Divisor: a memtable's share of the budget. Its bounds in bytes follow.
const SHARE: u64 = 8;
const BYTES: (u64, u64) = (1 << 20, 64 << 20);

/// A memtable is at most this part of the runs (a divisor), and this part of them while rows are
/// written over,
const PART: u64 = 3;
const PART_OVER: u64 = 6;
/// but never less than this because of it.
const PART_LEAST: u64 = 16 << 20;

/// Memtables that may wait to be flushed: one in a small budget, two from this many bytes on.
const TWO_CLOSED_BYTES: u64 = 64 << 20;

/// A memtable is too small for a run if it holds less than both this and this part of its limit (a
/// divisor),
const LEAST_BYTES: u64 = 1 << 20;
const LEAST_PART: u64 = 4;
/// unless its commits take at least this much of the log: large values are in the log only, and
/// replay reads them all.
const LEAST_LOG_BYTES: u64 = LONG_SEGMENT_BYTES;

/// Writers are idle when nothing was written for this long.
const IDLE: Duration = Duration::from_secs(2);

/// The longest time that a memtable which is not full stays in memory.
const AGE_MAX: Duration = Duration::from_secs(30);

/// The active segment is sealed from this length on while writes continue. When writers are idle,
/// the threshold is the one used at close.
const LONG_SEGMENT_BUSY_BYTES: u64 = 16 << 20;

/// Blob files that only a memtable keeps are large from this many segments on.
const BLOB_SEGMENTS: u64 = 2;

/// Segments that were held back for long, from which on memtables are closed once they may be
/// freed.
const LET_GO_SEGMENTS: u64 = 4;

/// Bytes at which a memtable is full, beside runs of `run_bytes`: an eighth of the budget, and no
/// more than what takes little beside the runs. `is_written_over`: the last flush superseded much
/// of what older runs hold.
pub(crate) fn limit_bytes(budget_bytes: u64, run_bytes: u64, is_written_over: bool) -> u64 {
    let (min, max) = BYTES;
    let part = if is_written_over { PART_OVER } else { PART };
    (budget_bytes / SHARE).clamp(min, max).min((run_bytes / part).max(PART_LEAST))
}

/// Whether another `bytes` do not fit. An empty memtable takes any number.
pub(crate) fn is_full(active: &Memtable, bytes: usize, limit_bytes: u64) -> bool {
    !active.is_empty() && active.map().used_bytes() + bytes as u64 > limit_bytes
}

/// Memtables that may wait to be flushed before writers wait for them.
pub(crate) fn closed_max(budget_bytes: u64) -> usize {
    if budget_bytes < TWO_CLOSED_BYTES { 1 } else { 2 }
}

/// Whether a memtable may be closed that has no room: because it is full, or because the budget
/// `refused` to let it grow. `few_wait`: fewer than [`closed_max`] wait to be flushed.
pub(crate) fn may_close(duty: &Duty, refused: bool, few_wait: bool) -> bool {
    match (duty.is_read_only(), duty.only_reads()) {
        (true, _) => false,
        // One that follows others and only reads may wait long for their flush: it closes as many
        // as the budget allows.
        (false, true) => !refused,
        (false, false) => few_wait,
    }
}

/// What the active memtable holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unflushed {
    /// Bytes of its entries.
    pub(crate) bytes: u64,
    /// Bytes of the log that a replay reads to rebuild it.
    pub(crate) log_bytes: u64,
    /// Its oldest commit.
    pub(crate) oldest: Glsn,
}

impl Unflushed {
    /// Whether it is large enough for a run, with memtables of `limit_bytes`.
    pub(crate) fn is_worth_a_run(&self, limit_bytes: u64) -> bool {
        let least = LEAST_BYTES.min(limit_bytes / LEAST_PART);
        self.bytes >= least || self.log_bytes >= LEAST_LOG_BYTES
    }

    /// Whether a store that is closed now leaves a replay to the next process that is too small for
    /// a run.
    pub(crate) fn leaves_little(&self, limit_bytes: u64) -> bool {
        self.bytes > 0 && !self.is_worth_a_run(limit_bytes)
    }

    /// Whether it has something up to `glsn`.
    fn holds_up_to(&self, glsn: Glsn) -> bool {
        (Glsn::NONE.next()..=glsn).contains(&self.oldest)
    }
}

/// Whether the blob files that the active segment names, of `blob_bytes`, take much space and only
/// the memtable's contents keep them: large values fill the disk long before what the memtable has
/// of them fills that. The log may be freed up to `until`, the runs hold all up to `checkpoint`.
pub(crate) fn frees_blobs(
    checkpoint: Glsn,
    until: Glsn,
    blob_bytes: u64,
    segment_bytes: u64,
) -> bool {
    checkpoint.next() < until && blob_bytes >= BLOB_SEGMENTS * segment_bytes
}

/// Whether the active memtable is to be closed for other processes: one of them waits until
/// everything up to `flush` is flushed (of the keeper; the runs hold all up to `checkpoint`), or
/// the log up to `held` is to be let go of. Returns what must be applied before: otherwise a second
/// flush would be needed. `None`: it stays. `unflushed` is `None` while another memtable waits.
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
    /// The log's active segment is to be sealed, if it has at least this many bytes.
    Seal {
        from_bytes: u64,
    },
}

/// Observations of earlier looks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watch {
    /// The position after the log's last entry, when it was first seen, and whether the segment was
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
    pub(crate) fn look(&mut self, now: u64, next: Glsn, oldest: Option<Glsn>) -> Due {
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
            return Due::Seal { from_bytes: LONG_SEGMENT_BUSY_BYTES };
        }
        if let Some((_, since)) = self.held {
            self.aged = now.saturating_sub(since) >= nanos(AGE_MAX);
            return if is_idle || self.aged { Due::Flush } else { Due::Nothing };
        }
        if is_idle && !self.sealed {
            self.sealed = true;
            return Due::Seal { from_bytes: LONG_SEGMENT_BYTES };
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

/// What is held back for less time is not noticed.
const HELD_LONG: Duration = Duration::from_secs(2);

/// Observations of earlier looks.
#[derive(Debug, Default)]
pub(crate) struct HeldBack {
    /// Up to here the log could be freed at an earlier look. It only rises: a member that is
    /// joining has promised nothing yet, and threads that look at the same time may come in any
    /// order.
    until: Glsn,
    /// The newest commit at a look at least [`HELD_LONG`] before this one.
    old: Glsn,
    /// The newest commit at a later look, and when that was.
    sample: (u64, Glsn),
}

impl HeldBack {
    /// Whether much of the log was held back until the last look, now that it may be freed up to
    /// `until`. `is_much` gets the bounds of it, which are in the wrong order if nothing was.
    pub(crate) fn lets_go(
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
        let lets_go = is_much(self.until, until.min(self.old));
        self.until = self.until.max(until);
        lets_go
    }
}

/// Bytes of the log that are much to let go of.
pub(crate) fn much_held_bytes(segment_bytes: u64) -> u64 {
    LET_GO_SEGMENTS * segment_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    #[test]
    fn a_memtable_is_small_beside_the_runs_while_rows_are_written_over() {
        assert_eq!(limit_bytes(GIB, 0, false), 16 * MIB);
        assert_eq!(limit_bytes(GIB, 120 * MIB, false), 40 * MIB);
        assert_eq!(limit_bytes(GIB, 120 * MIB, true), 20 * MIB);
        assert_eq!(limit_bytes(GIB, 60 * GIB, true), 64 * MIB, "what the budget allows is less");
        assert_eq!(limit_bytes(40 * MIB, 60 * GIB, true), 5 * MIB);
    }

    #[test]
    fn a_memtable_is_closed_for_others_once_all_that_they_want_is_applied() {
        let active = |oldest| Some(Unflushed { bytes: 1, log_bytes: 1, oldest: Glsn(oldest) });
        let none = Glsn::NONE;
        assert_eq!(for_others(active(5), Glsn(4), None, none), None, "no process asks for a flush");
        assert_eq!(for_others(active(5), Glsn(4), Some(Glsn(4)), none), None, "it is flushed");
        assert_eq!(for_others(active(5), Glsn(4), Some(Glsn(7)), none), Some(none));
        assert_eq!(for_others(active(5), Glsn(4), None, Glsn(4)), None, "it is younger");
        assert_eq!(for_others(active(5), Glsn(4), None, Glsn(9)), Some(Glsn(9)));
        assert_eq!(for_others(None, Glsn(4), Some(Glsn(7)), Glsn(9)), None, "another one waits");
    }

    const SECOND: u64 = 1_000_000_000;

    fn holding(oldest: u64) -> Option<Glsn> {
        Some(Glsn(oldest))
    }

    #[test]
    fn what_was_written_is_flushed_when_writers_rest_and_then_the_segment_is_sealed_once() {
        let mut watch = Watch::default();
        assert_eq!(watch.look(SECOND, Glsn(9), holding(1)), Due::Nothing);
        assert_eq!(watch.look(2 * SECOND, Glsn(12), holding(1)), Due::Nothing);
        assert_eq!(watch.look(3 * SECOND, Glsn(12), holding(1)), Due::Nothing);
        assert_eq!(watch.look(4 * SECOND, Glsn(12), holding(1)), Due::Flush);
        assert_eq!(
            watch.look(5 * SECOND, Glsn(12), None),
            Due::Seal { from_bytes: LONG_SEGMENT_BYTES }
        );
        assert!(!watch.is_watching());
        assert_eq!(watch.look(6 * SECOND, Glsn(12), None), Due::Nothing);
    }

    #[test]
    fn what_is_not_worth_a_run_stays() {
        let mut watch = Watch::default();
        for second in 1..100 {
            assert_ne!(watch.look(second * SECOND, Glsn(9), None), Due::Flush);
        }
    }

    #[test]
    fn writers_who_never_rest_leave_a_memtable_no_longer_than_its_age_and_then_a_segment() {
        let mut watch = Watch::default();
        let mut look =
            |second: u64, oldest| watch.look(second * SECOND, Glsn(10 + second), holding(oldest));
        // The first 30 seconds go into one memtable, the next into the one that follows it; then
        // each is full after 20.
        assert!((0..30).all(|second| look(second, 1) == Due::Nothing));
        assert_eq!((look(30, 1), look(31, 1)), (Due::Flush, Due::Flush), "until it is closed");
        assert_eq!(
            watch.look(32 * SECOND, Glsn(42), None),
            Due::Seal { from_bytes: LONG_SEGMENT_BUSY_BYTES }
        );
        let mut look =
            |second: u64, oldest| watch.look(second * SECOND, Glsn(10 + second), holding(oldest));
        assert!((33..200).all(|second| look(second, second / 20) == Due::Nothing));
    }

    /// How much is let go of and when, in half seconds: at looks twice a second, of 100 commits a
    /// second, under floors that lag behind as `floor` says.
    fn let_go(seconds: u64, floor: impl Fn(u64) -> u64) -> Vec<(u64, u64)> {
        let mut held = HeldBack::default();
        let mut look = |half: u64| {
            let (newest, mut bytes) = (half * 50, 0);
            let is_much = |from: Glsn, to: Glsn| {
                bytes = to.0.saturating_sub(from.0);
                bytes > 0
            };
            let until = Glsn(floor(newest).min(newest));
            held.lets_go(half * SECOND / 2, until, Glsn(newest), is_much).then_some((half, bytes))
        };
        (0..2 * seconds).filter_map(&mut look).collect()
    }

    #[test]
    fn a_floor_that_was_held_for_long_is_noticed_once() {
        let gone = let_go(30, |newest| if newest < 2000 { 100 } else { newest });
        assert_eq!(gone.len(), 1);
        assert!((1500..1900).contains(&gone[0].1), "{gone:?}");
    }

    #[test]
    fn what_is_let_go_of_soon_after_is_noticed_by_itself() {
        // After 20 and 22 seconds, of which the first five are held to the end.
        let floor = |newest| match newest {
            0..2000 => 100,
            2000..2200 => 1000,
            _ => 2000,
        };
        let gone = let_go(50, floor);
        assert_eq!(gone, [(40, 900), (44, 1000)]);
    }

    #[test]
    fn a_floor_that_is_unknown_at_one_look_is_not_noticed() {
        assert_eq!(let_go(30, |newest| if newest == 2000 { 0 } else { newest }), []);
    }

    #[test]
    fn transactions_of_a_second_are_not_noticed() {
        assert_eq!(let_go(30, |newest| newest.saturating_sub(100)), []);
        assert_eq!(let_go(30, |newest| newest / 100 * 100), []);
    }
}
