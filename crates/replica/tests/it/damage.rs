//! Damaged, missing, swapped and rolled-back objects: each is named, and none is applied.

use std::sync::{Arc, Mutex};

use plimsoll::order::{Order, OrderError};

use crate::memory_bucket::{Objects, log_of, member};

const BATCHES: [&[u8]; 4] = [b"one", b"two", b"three", b"four"];

fn name(position: u64) -> String {
    format!("log/{position:016x}")
}

/// Fails unless reading a position names the object.
fn is_named(objects: &Arc<Mutex<Objects>>, position: u64, object: &str) {
    match member(objects, 1).read(position) {
        Err(OrderError::Corrupt(what)) => {
            assert!(what.contains(object) && what.contains("the bucket"), "{what}");
        }
        read => panic!("{read:?}"),
    }
}

#[test]
fn every_cut_and_every_changed_byte_of_a_batch_is_named() {
    let objects = log_of(&BATCHES);
    let whole = objects.lock().unwrap().named[&name(2)].clone();
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 1 << (at % 8);
        for damaged in [whole[..at].to_vec(), changed] {
            objects.lock().unwrap().named.insert(name(2), damaged);
            is_named(&objects, 2, &name(2));
        }
    }
    let longer = [&whole[..], b"x"].concat();
    objects.lock().unwrap().named.insert(name(2), longer);
    is_named(&objects, 2, &name(2));
    let order = member(&objects, 1);
    assert_eq!(order.read(1).unwrap().unwrap(), b"one");
    assert_eq!(order.read(3).unwrap().unwrap(), b"three");
}

#[test]
fn a_batch_under_another_position_is_named() {
    for (from, to) in [(1, 2), (2, 1), (3, 4), (1, 5)] {
        let objects = log_of(&BATCHES);
        let moved = objects.lock().unwrap().named[&name(from)].clone();
        objects.lock().unwrap().named.insert(name(to), moved);
        is_named(&objects, to, &name(to));
    }
}

#[test]
fn a_missing_batch_in_the_middle_is_named_and_not_replaced() {
    for position in 1..4 {
        let objects = log_of(&BATCHES);
        objects.lock().unwrap().named.remove(&name(position));
        is_named(&objects, position, &name(position));
        let refused = member(&objects, 1).append(position, b"fork").unwrap_err();
        assert!(matches!(&refused, OrderError::Corrupt(what) if what.contains(&name(position))));
        // The batch after the missing one is there, the next one is not appended to a log with a
        // hole in it by a member that comes to it there.
        assert!(!objects.lock().unwrap().named.contains_key(&name(position)));
    }
}

#[test]
fn a_log_that_was_rolled_back_is_not_continued() {
    let objects = log_of(&BATCHES);
    let order = member(&objects, 1);
    assert_eq!(order.read(4).unwrap().unwrap(), b"four");
    for position in [3, 4] {
        objects.lock().unwrap().named.remove(&name(position));
    }
    // A member that has seen them.
    assert!(matches!(order.read(4), Err(OrderError::Corrupt(what)) if what.contains(&name(4))));
    // One that knows from its store that there were four, and has just been opened.
    for refused in
        [member(&objects, 1).read(5).unwrap_err(), member(&objects, 1).append(5, b"x").unwrap_err()]
    {
        assert!(matches!(&refused, OrderError::Corrupt(what) if what.contains(&name(4))));
    }
    assert!(!objects.lock().unwrap().named.contains_key(&name(5)));
}

#[test]
fn a_batch_of_a_newer_format_is_named() {
    let objects = log_of(&BATCHES);
    // As the next version writes it: with its own checksum.
    let mut newer = objects.lock().unwrap().named[&name(1)].clone();
    newer[8] = 2;
    let end = newer.len() - 16;
    let mut sum = plimsoll_disk::checksum::Running::new(0);
    sum.take(&newer[..end]);
    newer.splice(end.., sum.sum128().to_le_bytes());
    objects.lock().unwrap().named.insert(name(1), newer);
    is_named(&objects, 1, "use the version of Plimsoll that wrote it");
}

#[test]
fn every_damaged_blob_is_named() {
    let content = vec![5; 5 << 20];
    let objects = log_of(&[&content]);
    let hash = *blake3::hash(&content).as_bytes();
    let blob = format!("blob/{}", blake3::Hash::from_bytes(hash).to_hex());
    let damages: [fn(&mut Vec<u8>); 4] = [
        |bytes| bytes.truncate(100),
        |bytes| bytes[4 << 20] ^= 4,
        |bytes| bytes.push(1),
        |bytes| *bytes = b"of another blob".to_vec(),
    ];
    for damage in damages {
        let whole = objects.lock().unwrap().named[&blob].clone();
        damage(objects.lock().unwrap().named.get_mut(&blob).unwrap());
        is_named(&objects, 1, &blob);
        let order = member(&objects, 1);
        let mut reader = order.get_blob(hash).unwrap().unwrap();
        let error = std::io::copy(&mut reader, &mut std::io::sink()).unwrap_err();
        assert!(error.to_string().contains(&blob), "{error}");
        // The damaged copy is not taken for the value.
        let refused = order.put_blob(hash, &mut &content[..]).unwrap_err();
        assert!(matches!(&refused, OrderError::Corrupt(what) if what.contains(&blob)));
        objects.lock().unwrap().named.insert(blob.clone(), whole);
    }
    objects.lock().unwrap().named.remove(&blob);
    is_named(&objects, 1, &blob);
    assert!(member(&objects, 1).get_blob(hash).unwrap().is_none());
}
