//! The contract of `Order`, checked on each implementation.

use std::collections::BTreeMap;
use std::io::{Cursor, Read};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use plimsoll::order::{Appended, Order, OrderError};
use plimsoll_archive::{Folders, bucket_at};
use plimsoll_replica::BucketOrder;

use crate::memory_bucket;

/// One order; each call makes another member of it.
pub(crate) type Members<'a> = dyn Fn() -> Arc<dyn Order> + Sync + 'a;

/// A check of one order.
type Check = fn(&Members<'_>);

/// All checks, each with a name.
pub(crate) const CHECKS: [(&str, Check); 6] = [
    ("a_position_is_written_once", a_position_is_written_once),
    ("of_two_equal_batches_one_is_appended", of_two_equal_batches_one_is_appended),
    ("racers_share_one_dense_log", racers_share_one_dense_log),
    ("batches_have_any_size", batches_have_any_size),
    ("a_wait_ends_with_the_batch_or_the_timeout", a_wait_ends_with_the_batch_or_the_timeout),
    ("blobs_are_stored_under_their_hash", blobs_are_stored_under_their_hash),
];

/// Runs a check on each order.
fn on_each(check: impl Fn(&Members<'_>)) {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("file://{}/bucket", dir.path().display());
    check(&|| {
        let bucket = bucket_at(&url, Folders::Create).unwrap();
        Arc::new(BucketOrder::new(bucket, &url).unwrap())
    });
    let objects = Arc::default();
    check(&|| Arc::new(memory_bucket::member(&objects, 1)));
    #[cfg(feature = "cloud")]
    {
        let cloud = plimsoll_archive::Cloud::open("memory:///prefix").unwrap();
        check(&|| Arc::new(BucketOrder::new(Arc::new(cloud.clone()), "the cloud").unwrap()));
    }
    // Where there is a server: in .ci/run.
    #[cfg(feature = "postgres")]
    if std::env::var_os("POSTGRES_BIN").is_some() {
        let server = crate::postgres_server::Server::start();
        let url = server.url("users");
        check(&|| {
            let bucket = bucket_at(&url, Folders::Create).unwrap();
            Arc::new(BucketOrder::new(bucket, &url).unwrap())
        });
    }
}

#[test]
fn every_order_keeps_the_contract() {
    for (name, check) in CHECKS {
        println!("{name}");
        on_each(check);
    }
}

fn a_position_is_written_once(members: &Members<'_>) {
    let (one, other) = (members(), members());
    assert_eq!(one.read(1), Ok(None));
    assert_eq!(one.append(1, b"first"), Ok(Appended::Done));
    assert_eq!(other.append(1, b"other"), Ok(Appended::Taken));
    assert_eq!(one.append(1, b"first"), Ok(Appended::Taken));
    assert_eq!(other.append(2, b""), Ok(Appended::Done));
    for order in [&one, &other, &members()] {
        assert_eq!(order.read(1).unwrap().unwrap(), b"first");
        assert_eq!(order.read(2).unwrap().unwrap(), b"");
        assert_eq!(order.read(3), Ok(None));
    }
}

fn of_two_equal_batches_one_is_appended(members: &Members<'_>) {
    assert_eq!(members().append(1, b"add 1"), Ok(Appended::Done));
    assert_eq!(members().append(1, b"add 1"), Ok(Appended::Taken));
}

fn racers_share_one_dense_log(members: &Members<'_>) {
    const RACERS: usize = 8;
    const BATCHES: usize = 200;
    let (done, barrier) = (Mutex::new(BTreeMap::new()), Barrier::new(RACERS));
    std::thread::scope(|scope| {
        for racer in 0..RACERS {
            let (done, barrier, order) = (&done, &barrier, members());
            scope.spawn(move || {
                barrier.wait();
                let (mut position, mut own) = (1, 0);
                while own < BATCHES / RACERS {
                    let batch = format!("{racer}: {own}").into_bytes();
                    if order.append(position, &batch).unwrap() == Appended::Done {
                        let taken = done.lock().unwrap().insert(position, batch);
                        assert_eq!(taken, None, "{position}");
                        own += 1;
                    } else {
                        assert!(order.read(position).unwrap().is_some());
                    }
                    position += 1;
                }
            });
        }
    });
    let (done, order) = (done.into_inner().unwrap(), members());
    assert_eq!(done.len(), BATCHES);
    for (expected, (position, batch)) in (1..).zip(done) {
        assert_eq!(position, expected);
        assert_eq!(order.read(position).unwrap().unwrap(), batch);
    }
    assert_eq!(order.read(BATCHES as u64 + 1), Ok(None));
}

fn batches_have_any_size(members: &Members<'_>) {
    let order = members();
    for (position, len) in (1..).zip([0, 1, 4 << 20, (4 << 20) + 1, 9 << 20]) {
        let batch = vec![position as u8; len];
        assert_eq!(order.append(position, &batch), Ok(Appended::Done));
        assert_eq!(members().append(position, &batch), Ok(Appended::Taken));
        assert!(members().read(position).unwrap().unwrap() == batch, "{len} bytes");
    }
}

fn a_wait_ends_with_the_batch_or_the_timeout(members: &Members<'_>) {
    let (one, other) = (members(), members());
    let begun = Instant::now();
    one.wait(1, Duration::from_millis(30)).unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(30));
    assert_eq!(one.read(1), Ok(None));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50));
            other.append(1, b"x").unwrap();
        });
        let begun = Instant::now();
        one.wait(1, Duration::from_secs(20)).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(10));
        assert_eq!(one.read(1).unwrap().unwrap(), b"x");
    });
    // Nothing to wait for.
    let begun = Instant::now();
    one.wait(1, Duration::from_secs(20)).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(10));
}

fn blobs_are_stored_under_their_hash(members: &Members<'_>) {
    let (one, other) = (members(), members());
    for len in [0, 1, 100_000, 9 << 20] {
        let content = vec![7; len];
        let hash = *blake3::hash(&content).as_bytes();
        assert!(other.get_blob(hash).unwrap().is_none());
        let wrong = one.put_blob(hash, &mut Cursor::new(b"something else"));
        assert!(matches!(wrong, Err(OrderError::Unavailable(_))), "{wrong:?}");
        assert!(other.get_blob(hash).unwrap().is_none());
        for order in [&one, &other] {
            order.put_blob(hash, &mut &content[..]).unwrap();
        }
        let mut read = Vec::new();
        other.get_blob(hash).unwrap().unwrap().read_to_end(&mut read).unwrap();
        assert!(read == content, "{len} bytes");
    }
}
