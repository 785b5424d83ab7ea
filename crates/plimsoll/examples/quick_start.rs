//! Opens a store, writes, reads, walks: `cargo run --release -p plimsoll --example quick_start
//! [FOLDER]`

use plimsoll::{Db, Options, Result};

fn main() -> Result<()> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "quick-start.plimsoll".into());
    // One number: everything that grows with data stays below it.
    let db = Db::open(&folder, Options::new().memory_bytes(64 << 20))?;
    let fruits = db.keyspace("fruits")?;

    let mut tx = db.begin();
    for (name, colour) in
        [("apple", "red"), ("banana", "yellow"), ("cherry", "dark red"), ("blueberry", "blue")]
    {
        tx.put(&fruits, name.as_bytes(), colour.as_bytes())?;
    }
    let glsn = tx.commit()?;
    println!("four fruits committed at GLSN {glsn}, durable");

    let snapshot = db.snapshot();
    println!("banana is {:?}", snapshot.get(&fruits, b"banana")?);
    for item in snapshot.prefix(&fruits, b"b")?.reverse() {
        let (name, colour) = item?;
        println!("  {} is {colour:?}", String::from_utf8_lossy(&name));
    }
    println!("memory held now: {} bytes of {}", held(&db), db.stats().memory.limit_bytes);
    db.close()
}

fn held(db: &Db) -> u64 {
    let memory = db.stats().memory;
    memory.limit_bytes - memory.free_bytes
}
