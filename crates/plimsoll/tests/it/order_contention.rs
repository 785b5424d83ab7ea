//! Replicas that append at the same time to an order that takes time: none of them starves, and no
//! commit waits without end.

use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll::order::memory::MemoryOrder;
use plimsoll::order::{Appended, Order, OrderError};
use plimsoll::{Db, Error};

use crate::order::options;

/// An order that takes its time for each request of one replica.
#[derive(Debug)]
struct Remote {
    order: MemoryOrder,
    /// The time of an append; a read takes an eighth of it.
    delay: Duration,
}

impl Remote {
    fn travel(&self, part: u32) {
        thread::sleep(self.delay / part);
    }
}

impl Order for Remote {
    fn append(&self, position: u64, batch: &[u8]) -> Result<Appended, OrderError> {
        self.travel(2);
        let appended = self.order.append(position, batch);
        self.travel(2);
        appended
    }

    fn read(&self, position: u64) -> Result<Option<Vec<u8>>, OrderError> {
        self.travel(16);
        let found = self.order.read(position);
        self.travel(16);
        found
    }

    fn wait(&self, position: u64, timeout: Duration) -> Result<(), OrderError> {
        self.order.wait(position, timeout)
    }

    fn put_blob(&self, hash: [u8; 32], bytes: &mut dyn Read) -> Result<(), OrderError> {
        self.order.put_blob(hash, bytes)
    }

    fn get_blob(&self, hash: [u8; 32]) -> Result<Option<Box<dyn Read + Send>>, OrderError> {
        self.order.get_blob(hash)
    }
}

/// Commits of each replica within some seconds, if four committers of each commit all the time.
/// `delays` are the times of an append of each of them, in milliseconds.
fn commits_of(delays: &[u64], seconds: u64) -> Vec<u64> {
    const COMMITTERS: u64 = 4;
    let (dir, order) = (tempfile::tempdir().unwrap(), MemoryOrder::new(5));
    let open = |(number, delay): (usize, &u64)| {
        let delay = Duration::from_millis(*delay);
        let remote = Remote { order: order.clone(), delay };
        let options = options(&order).background(true).order(Arc::new(remote));
        let options = options.order_timeout(Duration::from_secs(60));
        Db::open(dir.path().join(number.to_string()), options).unwrap()
    };
    let replicas: Vec<Db> = delays.iter().enumerate().map(open).collect();
    let done: Vec<AtomicU64> = delays.iter().map(|_| AtomicU64::new(0)).collect();
    let until = Instant::now() + Duration::from_secs(seconds);
    thread::scope(|scope| {
        for (number, db) in replicas.iter().enumerate() {
            for committer in 0..COMMITTERS {
                let done = &done[number];
                scope.spawn(move || {
                    let space = db.keyspace("default").unwrap();
                    while Instant::now() < until {
                        db.put(&space, format!("{number} {committer}"), "x").unwrap();
                        if Instant::now() < until {
                            done.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        }
    });
    done.into_iter().map(AtomicU64::into_inner).collect()
}

#[test]
fn a_replica_far_from_the_order_does_not_starve() {
    let delays = [15, 15, 15, 15, 60];
    let done = commits_of(&delays, 10);
    eprintln!("{delays:?}: {done:?}");
    let fair = done.iter().sum::<u64>() / done.len() as u64;
    // On an idle machine it gets more than a tenth; a loaded one changes the ratio of the delays.
    assert!(done.iter().all(|done| *done >= (fair / 40).max(1)), "{delays:?}: {done:?}");
}

/// An order in which another replica is always faster.
#[derive(Debug)]
struct Outrun {
    order: MemoryOrder,
    /// The replica that commits before each append of this one.
    winner: Mutex<Option<Db>>,
}

impl Order for Outrun {
    fn append(&self, position: u64, batch: &[u8]) -> Result<Appended, OrderError> {
        if let Some(db) = &*self.winner.lock().unwrap() {
            db.put(&db.keyspace("default").unwrap(), "winner", "x").unwrap();
            thread::sleep(Duration::from_millis(2));
        }
        self.order.append(position, batch)
    }

    fn read(&self, position: u64) -> Result<Option<Vec<u8>>, OrderError> {
        self.order.read(position)
    }

    fn wait(&self, position: u64, timeout: Duration) -> Result<(), OrderError> {
        self.order.wait(position, timeout)
    }

    fn put_blob(&self, hash: [u8; 32], bytes: &mut dyn Read) -> Result<(), OrderError> {
        self.order.put_blob(hash, bytes)
    }

    fn get_blob(&self, hash: [u8; 32]) -> Result<Option<Box<dyn Read + Send>>, OrderError> {
        self.order.get_blob(hash)
    }
}

#[test]
fn a_commit_that_loses_every_race_fails_in_time_and_is_not_made() {
    let (dir, order) = (tempfile::tempdir().unwrap(), MemoryOrder::new(5));
    let open = |path: &Path, order: Arc<dyn Order>| {
        let options = options(&MemoryOrder::new(0)).order(order);
        Db::open(path, options.order_timeout(Duration::from_millis(300))).unwrap()
    };
    let winner = open(&dir.path().join("winner"), Arc::new(order.clone()));
    let outrun = Arc::new(Outrun { order: order.clone(), winner: Mutex::new(None) });
    let db = open(&dir.path().join("loser"), Arc::clone(&outrun) as _);
    *outrun.winner.lock().unwrap() = Some(winner.clone());
    let space = db.keyspace("default").unwrap();
    let error = db.put(&space, "loser", "1").unwrap_err();
    let Error::Unavailable { cause, .. } = &error else { panic!("{error:?}") };
    assert!(cause.contains("other replicas"), "{cause}");
    *outrun.winner.lock().unwrap() = None;
    db.put(&space, "later", "1").unwrap();
    winner.sync().unwrap();
    let space = winner.keyspace("default").unwrap();
    assert!(winner.get(&space, "loser").unwrap().is_none(), "it was not made");
    assert!(winner.get(&space, "later").unwrap().is_some());
}
