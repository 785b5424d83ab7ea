//! Requests and answers that are lost, refusals, and hints.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use plimsoll::order::{Appended, Order, OrderError};

use crate::memory_bucket::{MemoryBucket, Objects, log_of, member, order_over};

/// Members race over a bucket that loses requests and answers. Every batch that was `Done` is in
/// the log once, every one that was `Taken` or `Unavailable` is not, and one in doubt may be.
#[test]
fn no_batch_is_lost_or_doubled_when_answers_are_lost() {
    let seed = std::env::var("SEED").ok().map(|seed| seed.parse::<u64>().unwrap());
    for seed in seed.map_or(0..30, |seed| seed..seed + 1) {
        let objects = Arc::<Mutex<Objects>>::default();
        let (done, gone) = (Mutex::new(BTreeMap::new()), Mutex::new(Vec::new()));
        let doubts = Mutex::new(0);
        std::thread::scope(|scope| {
            for racer in 0..4 {
                let bucket = Arc::new(MemoryBucket::new(&objects, seed * 4 + racer));
                *bucket.fault.lock().unwrap() = 0.3;
                let (done, gone, doubts) = (&done, &gone, &doubts);
                // Some give up at once.
                let patience = Duration::from_millis(if racer % 2 == 0 { 200 } else { 0 });
                let order = order_over(&bucket).patience(patience);
                scope.spawn(move || {
                    let mut position = 1;
                    for number in 0..30 {
                        let batch = format!("{racer}: {number}").into_bytes();
                        match order.append(position, &batch) {
                            Ok(Appended::Done) => {
                                let before = done.lock().unwrap().insert(position, batch);
                                assert_eq!(before, None, "seed {seed}, {position}");
                                position += 1;
                            }
                            Ok(Appended::Taken) => {
                                gone.lock().unwrap().push(batch);
                                position += 1;
                            }
                            Err(OrderError::Unavailable(_)) => gone.lock().unwrap().push(batch),
                            Err(OrderError::InDoubt(what)) => {
                                assert!(what.contains(&format!("log/{position:016x}")), "{what}");
                                *doubts.lock().unwrap() += 1;
                            }
                            Err(error) => panic!("seed {seed}: {error}"),
                        }
                        // Go on where the log ends.
                        while let Ok(Some(_)) = order.read(position) {
                            position += 1;
                        }
                    }
                });
            }
        });
        let (done, gone) = (done.into_inner().unwrap(), gone.into_inner().unwrap());
        let reader = member(&objects, seed);
        let end = reader.end().unwrap();
        let mut log = BTreeMap::new();
        for position in 1..=end {
            log.insert(position, reader.read(position).unwrap().unwrap());
        }
        for (position, batch) in &done {
            assert_eq!(log.get(position), Some(batch), "seed {seed}, position {position}");
        }
        for batch in &gone {
            assert!(log.values().all(|other| other != batch), "seed {seed}: {batch:?}");
        }
        let mut batches: Vec<_> = log.values().collect();
        batches.sort();
        batches.dedup();
        assert_eq!(batches.len() as u64, end, "seed {seed}: each batch is there once");
        assert!(done.len() > 20, "seed {seed}: {} done", done.len());
        assert!(*doubts.lock().unwrap() > 0, "seed {seed}: some are in doubt");
    }
}

#[test]
fn a_bucket_without_answers_leaves_a_commit_in_doubt() {
    let bucket = Arc::new(MemoryBucket::new(&Arc::default(), 1));
    *bucket.fault.lock().unwrap() = 1.0;
    let order = order_over(&bucket).patience(Duration::from_millis(50));
    let begun = Instant::now();
    // The check before the first append fails, and nothing is sent.
    let refused = order.append(2, b"x").unwrap_err();
    assert!(matches!(&refused, OrderError::Unavailable(what) if what.contains("check that the")));
    *bucket.fault.lock().unwrap() = 0.0;
    assert_eq!(order.append(1, b"x"), Ok(Appended::Done));
    *bucket.fault.lock().unwrap() = 1.0;
    let refused = order.append(2, b"x").unwrap_err();
    assert!(matches!(&refused, OrderError::InDoubt(what) if what.contains("log/0000000000000002")));
    assert!(matches!(order.read(2), Err(OrderError::Unavailable(_))));
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[test]
fn refused_writes_are_unavailable_and_say_what_to_do() {
    for (kind, remedy) in [
        (ErrorKind::StorageFull, "free space"),
        (ErrorKind::QuotaExceeded, "free space"),
        (ErrorKind::PermissionDenied, "permissions"),
        (ErrorKind::ReadOnlyFilesystem, "mount it for writing"),
        (ErrorKind::NotFound, "is mounted"),
        (ErrorKind::Unsupported, "hard links"),
    ] {
        let bucket = Arc::new(MemoryBucket::new(&Arc::default(), 1));
        let order = order_over(&bucket);
        assert_eq!(order.append(1, b"x"), Ok(Appended::Done));
        *bucket.refusal.lock().unwrap() = Some(kind);
        let begun = Instant::now();
        match order.append(2, b"y").unwrap_err() {
            OrderError::Unavailable(what) => assert!(what.contains(remedy), "{what}"),
            error => panic!("{error:?}"),
        }
        assert!(begun.elapsed() < Duration::from_secs(2), "it is not repeated");
        *bucket.refusal.lock().unwrap() = None;
        assert_eq!(order.read(2), Ok(None));
        assert_eq!(order.append(2, b"y"), Ok(Appended::Done));
    }
}

/// As a client of a cloud that repeats a request by itself, after it was stored.
#[test]
fn a_refusal_after_the_object_was_stored_leaves_a_commit_in_doubt() {
    let bucket = Arc::new(MemoryBucket::new(&Arc::default(), 1));
    let order = order_over(&bucket).patience(Duration::from_millis(50));
    assert_eq!(order.append(1, b"x"), Ok(Appended::Done));
    *bucket.stores_refused.lock().unwrap() = true;
    *bucket.refusal.lock().unwrap() = Some(ErrorKind::PermissionDenied);
    let refused = order.append(2, b"y").unwrap_err();
    assert!(matches!(refused, OrderError::InDoubt(_)), "{refused:?}");
    *bucket.refusal.lock().unwrap() = None;
    assert_eq!(order.read(2).unwrap().unwrap(), b"y");
}

#[test]
fn a_wrong_hint_costs_only_time() {
    let batches: Vec<Vec<u8>> = (0..150_u8).map(|number| vec![number]).collect();
    let batches: Vec<&[u8]> = batches.iter().map(Vec::as_slice).collect();
    for hint in ["", "0", "1", "64", "149", "150", "151", "5000", "-3", "18446744073709551615", "x"]
    {
        let objects = log_of(&batches);
        assert_eq!(objects.lock().unwrap().named["hint"], b"150\n");
        objects.lock().unwrap().named.insert("hint".to_owned(), hint.into());
        let bucket = Arc::new(MemoryBucket::new(&objects, 1));
        let order = order_over(&bucket);
        assert_eq!(order.end(), Ok(150), "hint {hint:?}");
        let requests = *bucket.requests.lock().unwrap();
        assert!(requests < 140, "hint {hint:?}: {requests} requests");
        let order = member(&objects, 1);
        assert_eq!(order.read(151), Ok(None), "hint {hint:?}");
        assert_eq!(order.append(151, b"next"), Ok(Appended::Done), "hint {hint:?}");
        objects.lock().unwrap().named.remove("hint");
        assert_eq!(member(&objects, 1).end(), Ok(151));
    }
}

#[test]
fn a_member_at_rest_asks_rarely() {
    let objects = log_of(&[b"one"]);
    let bucket = Arc::new(MemoryBucket::new(&objects, 1));
    let order = order_over(&bucket);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(400) {
        order.wait(2, Duration::from_millis(1)).unwrap();
    }
    // The interval grows by an eighth: log(400) / log(9 / 8) = 51.
    let requests = *bucket.requests.lock().unwrap();
    assert!((5..70).contains(&requests), "{requests} requests");
}

/// The store alone repeats requests: no layer of this crate adds its own time.
#[test]
fn a_commit_fails_about_when_its_time_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let bucket = Arc::new(MemoryBucket::new(&Arc::default(), 1));
    let options = plimsoll::Options::new().memory_bytes(16 << 20).warm(false);
    let options = options.order_timeout(Duration::from_millis(300));
    let options = options.order(Arc::new(order_over(&bucket)));
    let db = plimsoll::Db::open(dir.path().join("store"), options).unwrap();
    let space = db.keyspace("default").unwrap();
    db.put(&space, "a", "1").unwrap();
    *bucket.fault.lock().unwrap() = 1.0;
    let begun = Instant::now();
    let refused = db.put(&space, "b", "1").unwrap_err();
    assert!(matches!(refused, plimsoll::Error::InDoubt { .. }), "{refused:?}");
    let refused = db.put(&space, "c", "1").unwrap_err();
    assert!(matches!(refused, plimsoll::Error::Unavailable { .. }), "{refused:?}");
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    *bucket.fault.lock().unwrap() = 0.0;
    db.put(&space, "d", "1").unwrap();
}
