//! A follower that processes each order exactly once, however often it is restarted: `cargo run
//! --release -p plimsoll --example change_feed [FOLDER]`
//!
//! It watches the keys of a prefix in another thread, answers each order, and stores its position
//! in the same transaction as the answer. A cursor keeps the log from being trimmed before the
//! follower has read it.

use std::time::Duration;

use plimsoll::{Db, Glsn, Keyspace, Options, Read, Result};

fn main() -> Result<()> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "change-feed.plimsoll".into());
    let db = Db::open(&folder, Options::new().memory_bytes(64 << 20))?;
    let orders = db.keyspace("orders")?;
    let kitchen = Kitchen::open(&db)?;

    std::thread::scope(|scope| {
        let follower = scope.spawn(|| kitchen.work(&orders, 5));
        for number in 0..5 {
            let mut tx = db.begin();
            tx.put(&orders, format!("tea/{number}"), "two cups")?;
            tx.put(&orders, format!("cake/{number}"), "is baked elsewhere")?;
            tx.set_metadata(format!("waiter {}", number % 2).as_bytes())?;
            tx.commit()?;
        }
        follower.join().expect("the follower does not panic")
    })?;

    println!("what the kitchen wrote:");
    for answer in db.snapshot().iter(&kitchen.answers)? {
        let (order, answer) = answer?;
        println!("  {}: {}", String::from_utf8_lossy(&order), String::from_utf8_lossy(&answer));
    }
    db.close()
}

struct Kitchen<'db> {
    db: &'db Db,
    answers: Keyspace,
    positions: Keyspace,
}

impl<'db> Kitchen<'db> {
    fn open(db: &'db Db) -> Result<Self> {
        Ok(Self { db, answers: db.keyspace("answers")?, positions: db.keyspace("positions")? })
    }

    /// The GLSN of the first commit that has not been answered.
    fn position(&self, reads: &impl Read) -> Result<Option<Glsn>> {
        let stored = reads.get(&self.positions, "kitchen")?;
        Ok(stored.and_then(|bytes| Some(Glsn(u64::from_le_bytes(bytes[..].try_into().ok()?)))))
    }

    /// Answers orders of tea until `count` of them are answered, or none comes for ten seconds.
    fn work(&self, orders: &Keyspace, count: usize) -> Result<()> {
        let log = self.db.log();
        let kept = log.cursor("kitchen", log.bounds().first)?;
        let from = self.position(&self.db.snapshot())?.unwrap_or(kept);
        let mut watch = self.db.watch(orders, "tea/", from)?;
        let mut answered = 0;
        while answered < count {
            let Some(commit) = watch.next_timeout(Duration::from_secs(10))? else { break };
            let by = String::from_utf8_lossy(commit.metadata()?);
            let mut tx = self.db.begin();
            for change in commit.changes()? {
                let change = change?;
                let Some(value) = change.value()? else { continue };
                let answer = format!("{} of tea for {by}", String::from_utf8_lossy(&value));
                tx.put(&self.answers, change.key(), &answer)?;
                answered += 1;
            }
            // The results and the position are committed together, so neither exists without the
            // other.
            tx.put(&self.positions, "kitchen", watch.position().0.to_le_bytes())?;
            tx.commit()?;
        }
        log.advance_cursor("kitchen", watch.position())
    }
}
