//! Follows the log: a second thread hears of each commit as it becomes durable, and answers into a stream of its own:
//! `cargo run --release -p plimsoll --example change_feed [FOLDER]`

use std::time::Duration;

use plimsoll::{Db, Glsn, OpChange, Options, Result};

/// The stream that the listener answers into.
const ANSWERS: u32 = 1;

fn main() -> Result<()> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "change-feed.plimsoll".into());
    let db = Db::open(&folder, Options::new().memory_bytes(64 << 20))?;
    let orders = db.keyspace("orders")?;
    let from = db.newest() + 1;

    std::thread::scope(|scope| {
        let listener = scope.spawn(|| listen(&db, from.0, 5));
        for number in 0..5 {
            let mut tx = db.begin();
            tx.put(&orders, format!("order {number}").as_bytes(), b"two teas")?;
            tx.set_metadata(format!("waiter {}", number % 2).as_bytes())?;
            tx.commit()?;
        }
        listener.join().expect("the listener does not panic")
    })?;

    println!("what the listener wrote:");
    let mut answers = db.log().scan(from.., Some(ANSWERS))?;
    while let Some(answer) = answers.next() {
        let answer = answer?;
        println!("  GLSN {}: {}", answer.glsn, String::from_utf8_lossy(answer.payload));
    }
    drop(answers);
    db.close()
}

fn listen(db: &Db, from: u64, commits: usize) -> Result<()> {
    let log = db.log();
    let mut feed = log.follow(Glsn(from), Some(0))?;
    let mut heard = 0;
    while heard < commits {
        let Some(entry) = feed.next(Duration::from_secs(10))? else { break };
        let Some(commit) = log.changes(entry.glsn)? else { continue };
        commit.for_each(|op| {
            let OpChange::Put { bytes } = op.change else { return Ok(()) };
            if op.keyspace.as_deref() == Some("orders") {
                let key = String::from_utf8_lossy(op.key);
                let by = String::from_utf8_lossy(commit.metadata()?);
                println!("GLSN {}: {key} ({bytes} bytes) by {by}", commit.glsn());
                log.append(ANSWERS, &[format!("{key} is ready").as_bytes()])?;
                heard += 1;
            }
            Ok(())
        })?;
    }
    Ok(())
}
