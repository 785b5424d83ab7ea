//! Reads the past: versions of a key, the store as it was, and what changed in between:
//! `cargo run --release -p plimsoll --example time_travel [FOLDER]`

use plimsoll::{Db, Moment, Options, Result};

fn main() -> Result<()> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "time-travel.plimsoll".into());
    let db = Db::open(&folder, Options::new().memory_bytes(64 << 20))?;
    let prices = db.keyspace("prices")?;

    let mut moments = Vec::new();
    for (tea, coffee) in [("3.10", Some("4.00")), ("3.20", Some("4.00")), ("3.40", None)] {
        let mut tx = db.begin();
        tx.put(&prices, b"tea", tea.as_bytes())?;
        match coffee {
            Some(price) => tx.put(&prices, b"coffee", price.as_bytes())?,
            None => tx.delete(&prices, b"coffee")?,
        }
        moments.push(tx.commit()?);
    }

    for &glsn in &moments {
        let then = db.snapshot_at(Moment::Glsn(glsn))?;
        println!(
            "at {glsn}: tea {:?}, coffee {:?}",
            then.get(&prices, b"tea")?,
            then.get(&prices, b"coffee")?
        );
    }
    println!("every version of tea, newest first:");
    for version in db.history(&prices, b"tea")? {
        let version = version?;
        println!("  GLSN {}, {} bytes", version.glsn, version.bytes.unwrap_or(0));
    }
    println!("between {} and {}:", moments[1], moments[2]);
    for change in db.diff(&prices, moments[1], moments[2], b"")? {
        let change = change?;
        let what = if change.after.is_none() { "removed" } else { "changed" };
        println!("  {} {what}", String::from_utf8_lossy(&change.key));
    }
    db.close()
}
