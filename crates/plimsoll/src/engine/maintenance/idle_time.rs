//! Advances the log's time in an idle store, so that the space of values that have expired since
//! the last commit is freed.
//!
//! Only commits advance the time by which expired values are dropped (decision 23), so an idle
//! store makes a commit. It does so
//! - if most values of a table, or all that expire, have expired since the newest commit;
//! - in the process that writes the index, if several processes share the store;
//! - once the clock has been steady ([`Steady`]) since the newest commit, or for an hour: a clock
//!   that is ahead for a while must neither destroy values nor take the log's time along;
//! - in one replica, if the store has several: each waits a different time;
//! - unless a keyspace retains a number of GLSNs, of which each commit uses up one.

use std::fmt;
use std::sync::{Arc, Mutex};

use plimsoll_disk::clock::Clock;

use crate::engine::retention::RetentionHorizon;
use crate::txn::committer::Committer;
use crate::txn::transaction::Transaction;
use crate::types::error::Result;
use crate::types::keyspaces::TIME_MARK;
use crate::types::keyspaces::{CURSORS, Record};
use crate::types::lock::lock;
use crate::types::retention::Retention;

/// If the clock and the monotonic clock differ by more than this since the last check, the clock
/// has jumped.
const JUMP_MICROS: u64 = 1_000_000;

/// The longest time between two checks in which the clock counts as observed. In a longer time it
/// may have jumped twice.
const GAP_MICROS: u64 = 20_000_000;

/// The minimum and the maximum time without a jump after which the clock is trusted.
const STEADY_MICROS: std::ops::RangeInclusive<u64> = 60_000_000..=3_600_000_000;

/// Advances the log's time.
pub(crate) struct IdleTime {
    committer: Arc<Committer>,
    horizon: Arc<RetentionHorizon>,
    clock: Arc<dyn Clock>,
    steady: Mutex<Steady>,
}

impl IdleTime {
    pub(crate) fn new(
        committer: &Arc<Committer>,
        horizon: &Arc<RetentionHorizon>,
        clock: &Arc<dyn Clock>,
    ) -> Self {
        Self {
            committer: Arc::clone(committer),
            horizon: Arc::clone(horizon),
            clock: Arc::clone(clock),
            steady: Mutex::default(),
        }
    }

    /// Makes a commit if that allows space to be freed; returns whether it did. To be called in an
    /// idle store every few seconds, while it has values that expire.
    ///
    /// # Errors
    /// As for [`Transaction::commit`]. A later call tries again.
    pub(crate) fn advance(&self) -> Result<bool> {
        let now = self.clock.wall_micros();
        let steady_micros = lock(&self.steady).check(now, self.clock.monotonic_nanos());
        let reader = &self.committer.reader;
        // A clock that has been watched since the newest commit cannot be ahead of it by a jump.
        // The first check comes some seconds after that commit.
        let unseen = now.saturating_sub(reader.log.last_micros()).saturating_sub(GAP_MICROS);
        let is_steady = steady_micros >= unseen.clamp(*STEADY_MICROS.start(), *STEADY_MICROS.end());
        let until = now.saturating_sub(self.committer.peers.idle_delay_micros());
        let is_due = || reader.index.compaction.expires_between(reader.log.last_micros(), until);
        // The keyspaces are known once the horizon is ready.
        if !is_steady
            || self.horizon.ready.get().is_none()
            || !reader.index.env.role().may_write()
            || !is_due()
            || reader.keyspaces.records().iter().any(counts_glsns)
        {
            return Ok(false);
        }
        // Another process, or another replica, may have committed meanwhile.
        self.committer.fresh()?;
        self.committer.caught_up(|| self.committer.peers.catch_up_with_replicas())?;
        if !is_due() {
            return Ok(false);
        }
        let mut tx = Transaction::new(&self.committer);
        // A commit must write something, and no keyspace retains the deletion of a cursor.
        tx.delete(&reader.keyspaces.handle(CURSORS, "".into()), TIME_MARK)?;
        tx.set_metadata(br#"{"time_advanced":true}"#)?;
        // If the clock jumps meanwhile, the commit is refused.
        tx.must_commit_before(now.saturating_add(GAP_MICROS));
        tx.commit()?;
        Ok(true)
    }
}

/// Whether a keyspace retains a number of GLSNs.
fn counts_glsns(record: &Record) -> bool {
    matches!(record.retention, Retention::Glsns(1..))
}

impl fmt::Debug for IdleTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdleTime")
    }
}

/// Compares the clock with the monotonic clock to find jumps. A suspended machine counts as one.
#[derive(Debug, Default)]
struct Steady {
    /// Both clocks at the last check.
    last: Option<(u64, u64)>,
    /// Monotonic time since which the clock has not jumped.
    since: u64,
}

impl Steady {
    /// Microseconds for which the clock has been checked and has not jumped.
    fn check(&mut self, wall_micros: u64, monotonic_nanos: u64) -> u64 {
        let may_have_jumped = self.last.is_none_or(|(wall, monotonic)| {
            let measured = monotonic_nanos.saturating_sub(monotonic) / 1000;
            wall_micros.abs_diff(wall.saturating_add(measured)) > JUMP_MICROS
                || measured > GAP_MICROS
        });
        if may_have_jumped {
            self.since = monotonic_nanos;
        }
        self.last = Some((wall_micros, monotonic_nanos));
        monotonic_nanos.saturating_sub(self.since) / 1000
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use plimsoll_disk::clock::ManualClock;
    use plimsoll_disk::mem::MemDisk;
    use plimsoll_log::glsn::Glsn;

    use crate::engine::open::open;
    use crate::types::error::Error;
    use crate::types::options::Options;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn the_background_work_of_an_idle_store_advances_its_time_once() {
        let clock = Arc::new(ManualClock::new(1_780_000_000_000_000));
        let options = Options::new()
            .memory_bytes(16 << 20)
            .retention(Retention::Latest)
            .world(Arc::new(MemDisk::new()), clock.clone());
        let store = open("/store".as_ref(), options).unwrap();
        let space = store.reader.keyspaces.find("default").unwrap().0;
        let mut tx = Transaction::new(&store.committer);
        tx.put_with_ttl(&space, "key", "value", Duration::from_secs(80)).unwrap();
        let written = tx.commit().unwrap();
        store.flush().unwrap();
        let idle_time = &store.maintenance.idle_time;
        for _ in 0..4 {
            assert!(!idle_time.advance().unwrap());
            clock.advance(Duration::from_secs(20));
        }
        // The background work waits in real time.
        let real = plimsoll_disk::clock::SystemClock::new();
        while store.visible() == written {
            assert!(real.monotonic_nanos() < 60 * SECOND, "nothing was committed");
            real.sleep(Duration::from_millis(50));
        }
        let has_expiries = || store.reader.index.compaction.has_expiries();
        while has_expiries() {
            assert!(real.monotonic_nanos() < 60 * SECOND, "nothing was freed");
            real.sleep(Duration::from_millis(50));
        }
        assert_eq!(store.visible(), Glsn(written.0 + 1));
    }

    /// Lets values of five minutes expire in a store that checks the clock every five seconds.
    /// Returns the seconds until a commit was made; `None` if none was made in two hours.
    fn seconds_until_a_commit(
        other: Retention,
        seconds_before_the_first_check: u64,
    ) -> Option<u64> {
        let clock = Arc::new(ManualClock::new(1_780_000_000_000_000));
        let options = Options::new()
            .memory_bytes(16 << 20)
            .retention(Retention::Latest)
            .background(false)
            .world(Arc::new(MemDisk::new()), clock.clone());
        let store = open("/store".as_ref(), options).unwrap();
        crate::engine::keyspace_commits::create(&store, "other", other).unwrap();
        let space = store.reader.keyspaces.find("default").unwrap().0;
        let mut tx = Transaction::new(&store.committer);
        for number in 0..10 {
            tx.put_with_ttl(&space, [number], "value", Duration::from_secs(300)).unwrap();
        }
        tx.commit().unwrap();
        store.flush().unwrap();
        clock.advance(Duration::from_secs(seconds_before_the_first_check));
        (seconds_before_the_first_check..7200).step_by(5).find(|_| {
            clock.advance(Duration::from_secs(5));
            store.maintenance.idle_time.advance().unwrap()
        })
    }

    #[test]
    fn a_clock_that_was_not_watched_since_the_newest_commit_is_trusted_after_an_hour() {
        let when = seconds_until_a_commit(Retention::Latest, 0).unwrap();
        assert!((295..310).contains(&when), "{when}");
        let when = seconds_until_a_commit(Retention::Latest, 600).unwrap();
        assert!((4195..4210).contains(&when), "{when}");
    }

    #[test]
    fn a_store_that_retains_a_number_of_glsns_uses_up_none() {
        assert_eq!(seconds_until_a_commit(Retention::Glsns(10), 0), None);
    }

    #[test]
    fn a_commit_after_its_latest_time_is_refused() {
        let clock = Arc::new(ManualClock::new(1_780_000_000_000_000));
        let options = Options::new()
            .memory_bytes(16 << 20)
            .background(false)
            .world(Arc::new(MemDisk::new()), clock.clone());
        let store = open("/store".as_ref(), options).unwrap();
        let space = store.reader.keyspaces.find("default").unwrap().0;
        for (seconds, is_refused) in [(1, false), (3, true)] {
            let mut tx = Transaction::new(&store.committer);
            tx.put(&space, "key", "value").unwrap();
            tx.must_commit_before(clock.wall_micros() + 2_000_000);
            clock.advance(Duration::from_secs(seconds));
            let committed = tx.commit();
            assert_eq!(matches!(committed, Err(Error::Conflict { .. })), is_refused);
        }
    }

    #[test]
    fn a_clock_is_trusted_a_minute_after_its_last_jump() {
        let mut steady = Steady::default();
        let mut check = |wall_seconds: u64, seconds: u64| {
            steady.check(wall_seconds * 1_000_000, seconds * SECOND) >= *STEADY_MICROS.start()
        };
        assert!(!check(5000, 100), "the first check has nothing to compare with");
        assert!(!check(5020, 120) && !check(5040, 140) && !check(5059, 159));
        assert!(check(5061, 160), "a second is not a jump");
        assert!(check(5081, 180));
        for (wall, there) in [(9081, 190), (30, 200), (60, 230)] {
            assert!(!check(wall, there), "a jump, or a time without checks");
            assert!(!check(wall + 20, there + 20));
            assert!(!check(wall + 40, there + 40) && !check(wall + 59, there + 59));
            assert!(check(wall + 60, there + 60));
        }
    }
}
