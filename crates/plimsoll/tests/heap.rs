//! Measures the largest heap allocation of a store: never more than 64 KiB, however large values,
//! entries and transactions are. An allocator may retain freed memory, so larger allocations could
//! exceed the memory limit.
#![allow(unsafe_code, reason = "a global allocator that records sizes")]
#![allow(clippy::disallowed_methods, reason = "a test with files of its own")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use plimsoll::{Db, Glsn, MergeOutcome, MergeRule, Options, Result, Retention};

struct Sizes;

static COUNTS: AtomicBool = AtomicBool::new(false);
static LARGEST: AtomicUsize = AtomicUsize::new(0);

fn note(bytes: usize) {
    if COUNTS.load(Ordering::Relaxed) {
        LARGEST.fetch_max(bytes, Ordering::Relaxed);
    }
}

// SAFETY: every call is forwarded to the system's allocator.
unsafe impl GlobalAlloc for Sizes {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller upholds the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller upholds the contract of `GlobalAlloc::alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new: usize) -> *mut u8 {
        note(new);
        // SAFETY: the caller upholds the contract of `GlobalAlloc::realloc`.
        unsafe { System.realloc(block, layout, new) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static SIZES: Sizes = Sizes;

/// The largest heap allocation of any thread during `work`.
fn largest(work: impl FnOnce() -> Result<()>) -> usize {
    LARGEST.store(0, Ordering::Relaxed);
    COUNTS.store(true, Ordering::Relaxed);
    work().expect("a store in a folder of its own");
    COUNTS.store(false, Ordering::Relaxed);
    LARGEST.load(Ordering::Relaxed)
}

#[test]
fn a_store_makes_no_heap_allocation_above_64_kib() {
    let counted = largest(|| {
        std::hint::black_box(vec![1u8; 100_000]);
        Ok(())
    });
    assert_eq!(counted, 100_000, "the counter counts");
    let dir = tempfile::tempdir().expect("a folder");
    // The user's own allocation.
    let large = vec![7; 2 << 20];
    let mut piece = vec![0; 64 << 10];
    let db = Db::open(dir.path().join("store"), Options::new().memory_bytes(32 << 20))
        .expect("a new store");
    let values = db.create_keyspace("values", Retention::Latest).expect("a new keyspace");
    let small = db.keyspace("small").expect("a new keyspace");
    let mut check = |what: &str, work: &mut dyn FnMut(&mut [u8]) -> Result<()>| {
        let taken = largest(|| work(&mut piece));
        assert!(taken <= 64 << 10, "{what}: {taken} bytes in one piece");
    };
    check("large values", &mut |_| {
        for (key, bytes) in [(b"a", 2 << 20), (b"b", 300_000), (b"c", 200_000), (b"d", 100_000)] {
            let mut tx = db.begin();
            tx.put(&values, key, &large[..bytes])?;
            assert_eq!(tx.get(&values, key)?.map(|value| value.len()), Some(bytes));
            tx.commit()?;
        }
        Ok(())
    });
    check("a streamed value, and many in one transaction", &mut |_| {
        let mut tx = db.begin();
        tx.put_reader(&values, b"e", &mut large.as_slice())?;
        for key in 0..9u8 {
            tx.put(&values, &[b'f', key], &large[..100_000])?;
        }
        tx.commit().map(drop)
    });
    check("transactions of many small values", &mut |_| {
        for round in 0..3u32 {
            let mut tx = db.begin();
            for key in 0..8000 {
                tx.put(&small, &(key * 3 + round).to_be_bytes(), &large[..100])?;
            }
            tx.commit()?;
        }
        let mut tx = db.begin();
        for key in 0..60_000u32 {
            tx.put(&small, &key.to_be_bytes(), &large[..200])?;
        }
        tx.commit().map(drop)
    });
    check("entries of a stream", &mut |_| db.log().append(1, &[&large[..1 << 20]]).map(drop));
    check("flush and compaction", &mut |_| {
        db.flush()?;
        db.compact()
    });
    check("reverts and resets", &mut |_| {
        let put = |value: u8, keys: u32| {
            let mut tx = db.begin();
            for key in 0..keys {
                tx.put(&small, &(key * 7).to_be_bytes(), &[value; 100])?;
            }
            tx.commit()
        };
        let before = db.newest();
        // The read set of a transaction with more keys takes more in one piece.
        let wrong = put(10, 1000)?;
        assert!(matches!(db.revert(wrong).run()?, MergeOutcome::Merged(_)));
        put(11, 1000)?;
        let theirs = db.revert(wrong).rule(&small, MergeRule::Theirs);
        assert!(matches!(theirs.run()?, MergeOutcome::Merged(_)));
        let wrong = put(20, 100_000)?;
        assert_eq!(db.revert(wrong).preview()?.count(), 100_000);
        put(21, 100_000)?;
        let MergeOutcome::Conflicts(conflicts) = db.revert(wrong).run()? else { panic!() };
        assert_eq!(conflicts.count(), 100_000);
        assert!(db.reset_to(before).keyspace(&small).run()?.is_some());
        Ok(())
    });
    let line = format!("{}\n", "long ".repeat(9000));
    let text = |last: &str| format!("{}{}{last}\n", "\n".repeat(20), line.repeat(20));
    let (base, wrong) = (text("end"), text("wrong"));
    let (ours, merged) = (format!("begin\n{wrong}"), format!("begin\n{base}"));
    check("a merge of long texts with few lines, of which the first are short", &mut |_| {
        db.put(&small, "text", &base)?;
        let wrong = db.put(&small, "text", &wrong)?;
        db.put(&small, "text", &ours)?;
        let revert = db.revert(wrong).rule(&small, MergeRule::Text);
        assert!(matches!(revert.run()?, MergeOutcome::Merged(_)));
        assert!(db.get(&small, "text")?.is_some_and(|value| value == merged.as_bytes()));
        Ok(())
    });
    for caches in ["warm", "cold"] {
        check(&format!("reads, {caches}"), &mut |piece| {
            let snapshot = db.snapshot();
            for (key, bytes) in [(b"a", 2 << 20), (b"b", 300_000), (b"c", 200_000), (b"d", 100_000)]
            {
                assert_eq!(snapshot.get(&values, key)?.map(|value| value.len()), Some(bytes));
                let mut reader = snapshot.get_reader(&values, key)?.expect("it is there");
                while reader.read(piece)? > 0 {}
            }
            let mut range = snapshot.range(&values, ..)?;
            while range.advance()?.is_some() {}
            let lens = snapshot.range(&values, ..)?.map(|pair| pair.map(|(_, value)| value.len()));
            lens.sum::<Result<usize>>()?;
            snapshot.range(&small, ..)?.reverse().try_for_each(|pair| pair.map(drop))
        });
        check(&format!("the log, {caches}"), &mut |_| {
            let bounds = db.log().bounds();
            for glsn in (bounds.first.0..bounds.next.0).map(Glsn) {
                let _ = (db.log().read(glsn)?.payload().len(), db.log().commit(glsn)?);
            }
            let mut scan = db.log().scan(.., None)?;
            while let Some(entry) = scan.next() {
                entry?;
            }
            Ok(())
        });
        db.drop_caches();
    }
    check("verify, backup, trim", &mut |_| {
        assert_eq!(db.verify(&mut |_| {})?.problems, Vec::<String>::new());
        db.backup_copy(dir.path().join("copy"))?;
        db.log().trim(db.log().bounds().next - 1).map(drop)
    });
    let closed = largest(|| db.close());
    assert!(closed <= 64 << 10, "closing: {closed} bytes in one piece");
}
