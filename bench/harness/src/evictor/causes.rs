//! The causes of slow operations: from the store's counters, and from the thread's own processor
//! time and misses.
//!
//! An operation is slow if it took more than a millisecond from its start or from its due time. The
//! store's counters are read after each operation that took that long itself: exact for one thread,
//! an estimate if several wait at once.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use anyhow::Result;
use plimsoll::{Db, StallStats};

use crate::cpu_time;
use crate::table;

/// Operations of at least this duration are slow.
const SLOW: Duration = Duration::from_millis(1);

/// Why an operation was slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Room,
    FlushPace,
    MergePace,
    Depth,
    /// It missed a page, and was waiting most of the time.
    Load,
    /// It missed a page, and was computing most of the time.
    Evicting,
    /// It was computing most of the time.
    Computing,
    /// It wrote without a miss, computing or an index stall.
    PutWaited,
    /// The same for a read.
    GetWaited,
}

const NAMES: [&str; 9] = [
    "put: room in the memtable",
    "put: paced by a flush",
    "put: paced by merges",
    "put: too many runs",
    "a page's load",
    "computing, in a miss",
    "computing",
    "put: a lock, the log, the processor",
    "get: a lock, the processor",
];

/// Slow operations by cause.
#[derive(Debug, Default)]
pub(super) struct Causes {
    by_cause: [Tally; NAMES.len()],
}

#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    /// Operations that were slow themselves.
    operations: u64,
    nanos: u64,
    longest_nanos: u64,
    /// Operations that came due meanwhile or later, and were slow because of it.
    behind: u64,
}

impl Causes {
    pub(super) fn add(&mut self, other: &Causes) {
        for (sum, one) in self.by_cause.iter_mut().zip(other.by_cause) {
            sum.operations += one.operations;
            sum.nanos += one.nanos;
            sum.longest_nanos = sum.longest_nanos.max(one.longest_nanos);
            sum.behind += one.behind;
        }
    }

    pub(super) fn print(&self) {
        let there = NAMES
            .iter()
            .zip(self.by_cause)
            .filter(|(_, tally)| tally.operations + tally.behind > 0);
        let rows: Vec<_> = there
            .map(|(name, tally)| {
                let millis = |nanos: u64| table::number(nanos as f64 / 1e6);
                let [operations, behind] =
                    [tally.operations, tally.behind].map(|count| count.to_string());
                vec![
                    (*name).to_owned(),
                    operations,
                    millis(tally.nanos),
                    millis(tally.longest_nanos),
                    behind,
                ]
            })
            .collect();
        table::print(
            &["waited for", "operations", "ms in all", "longest ms", "operations behind them"],
            &rows,
        );
    }
}

/// Watches the operations of one thread.
#[derive(Debug)]
pub(super) struct Watch<'a> {
    db: &'a Db,
    stalls: StallStats,
    causes: Causes,
    /// Why the last slow operation was slow.
    last: Option<Cause>,
    /// A slow operation that is not classified yet.
    slow: Option<Slow>,
    /// Bytes this thread has read from devices; `None` if the system does not report it.
    io: Option<File>,
}

#[derive(Clone, Copy, Debug)]
struct Slow {
    is_read: bool,
    missed: bool,
    took: Duration,
    computed: Duration,
}

impl<'a> Watch<'a> {
    /// A watch for operations of the calling thread.
    pub(super) fn new(db: &'a Db) -> Self {
        let io = File::open("/proc/thread-self/io").ok();
        Self {
            db,
            stalls: db.stats().index.stalls,
            causes: Causes::default(),
            last: None,
            slow: None,
            io,
        }
    }

    /// Runs an operation that starts `late` after its due time.
    pub(super) fn operate(
        &mut self,
        is_read: bool,
        late: Duration,
        operate: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let read_before = self.bytes_read();
        let (began, computed) = (Instant::now(), cpu_time::thread_nanos());
        operate()?;
        let took = began.elapsed();
        if took >= SLOW {
            let computed = Duration::from_nanos(cpu_time::thread_nanos() - computed);
            let missed = self.bytes_read() > read_before;
            self.slow = Some(Slow { is_read, missed, took, computed });
        } else if late + took >= SLOW
            && let Some(last) = self.last
        {
            self.causes.by_cause[last as usize].behind += 1;
        }
        Ok(())
    }

    /// Bytes that this thread has read from devices.
    fn bytes_read(&self) -> u64 {
        let mut text = [0; 512];
        let len = self.io.as_ref().and_then(|io| io.read_at(&mut text, 0).ok()).unwrap_or(0);
        let text = str::from_utf8(&text[..len]).unwrap_or_default();
        let bytes = text.lines().find_map(|line| line.strip_prefix("read_bytes: "));
        bytes.and_then(|bytes| bytes.parse().ok()).unwrap_or(0)
    }

    /// Classifies the last operation if it was slow.
    pub(super) fn look(&mut self) {
        let Some(slow) = self.slow.take() else { return };
        let stalls = self.db.stats().index.stalls;
        let cause = cause_of(slow, &self.stalls, &stalls);
        (self.stalls, self.last) = (stalls, Some(cause));
        let tally = &mut self.causes.by_cause[cause as usize];
        let nanos = slow.took.as_nanos() as u64;
        tally.operations += 1;
        tally.nanos += nanos;
        tally.longest_nanos = tally.longest_nanos.max(nanos);
    }

    pub(super) fn causes(&self) -> &Causes {
        &self.causes
    }
}

fn cause_of(slow: Slow, before: &StallStats, now: &StallStats) -> Cause {
    let stalls = [
        (Cause::Room, before.room, now.room),
        (Cause::FlushPace, before.flush_pace, now.flush_pace),
        (Cause::MergePace, before.merge_pace, now.merge_pace),
        (Cause::Depth, before.depth, now.depth),
    ];
    let longest = stalls.into_iter().max_by_key(|(_, before, now)| now.nanos - before.nanos);
    match longest {
        Some((cause, before, now)) if !slow.is_read && now.times > before.times => cause,
        _ if slow.missed && slow.computed * 2 > slow.took => Cause::Evicting,
        _ if slow.missed => Cause::Load,
        _ if slow.computed * 2 > slow.took => Cause::Computing,
        _ if slow.is_read => Cause::GetWaited,
        _ => Cause::PutWaited,
    }
}

#[cfg(test)]
mod tests {
    use plimsoll::Options;

    use super::*;

    #[test]
    fn a_slow_operation_is_attributed_to_its_cause() {
        let slow = |is_read, missed, computed_ms| Slow {
            is_read,
            missed,
            took: Duration::from_millis(10),
            computed: Duration::from_millis(computed_ms),
        };
        let none = StallStats::default();
        let mut paced = none;
        (paced.flush_pace.times, paced.flush_pace.nanos) = (1, 9_000_000);
        (paced.room.times, paced.room.nanos) = (1, 1_000_000);
        assert_eq!(cause_of(slow(false, true, 0), &none, &paced), Cause::FlushPace);
        assert_eq!(cause_of(slow(true, true, 0), &none, &paced), Cause::Load, "others were paced");
        assert_eq!(cause_of(slow(false, true, 9), &paced, &paced), Cause::Evicting);
        assert_eq!(cause_of(slow(false, false, 9), &paced, &paced), Cause::Computing);
        assert_eq!(cause_of(slow(false, false, 1), &paced, &paced), Cause::PutWaited);
        assert_eq!(cause_of(slow(true, false, 1), &paced, &paced), Cause::GetWaited);
    }

    #[test]
    fn operations_behind_a_slow_one_count_for_its_cause() {
        let folder = tempfile::tempdir().unwrap();
        let db =
            Db::open(folder.path().join("store"), Options::new().memory_bytes(16 << 20)).unwrap();
        let sleep = || {
            std::thread::sleep(2 * SLOW);
            Ok(())
        };
        let watch = loop {
            let mut watch = Watch::new(&db);
            watch.operate(true, Duration::ZERO, sleep).unwrap();
            watch.look();
            watch.operate(true, 2 * SLOW, || Ok(())).unwrap();
            // If another thread had the processor, the second operation was slow itself.
            if watch.slow.is_none() {
                break watch;
            }
        };
        let tally = watch.causes().by_cause[Cause::GetWaited as usize];
        assert_eq!((tally.operations, tally.behind), (1, 1));
        assert!(tally.nanos >= 2_000_000 && tally.longest_nanos == tally.nanos);
    }
}
