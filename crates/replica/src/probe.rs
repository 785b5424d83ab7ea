//! Tests whether a bucket stores one of several objects with the same name, and always the same
//! one: what decides between members.

use std::io::{self, Read};
use std::sync::Barrier;
use std::thread;

use plimsoll_archive::{Bucket, Put};
use plimsoll_disk::random::entropy;

use crate::blobs;
use crate::bucket_order::LOG;
use crate::error::{Error, Result};

/// Writers that race for one name.
const RACERS: usize = 8;

/// Names that they race for.
const ROUNDS: usize = 4;

/// Fails if the bucket does not decide between writers. Creates its folders, and leaves no object.
///
/// # Errors
/// [`Error::Unfit`] names the bucket and what it did; the storage.
pub(crate) fn probe(bucket: &dyn Bucket, place: &str) -> Result<()> {
    let failed = |error| Error::bucket(place, "the first objects of the bucket", error);
    for _ in 0..ROUNDS {
        let name = format!("{LOG}/probe-{:032x}", entropy().map_err(failed)?);
        let verdict = race(bucket, &name);
        bucket.delete(&name).map_err(failed)?;
        if let Some(what) = verdict.map_err(failed)? {
            return Err(Error::Unfit { place: place.to_owned(), what });
        }
    }
    let name = format!("{}/probe-{:032x}", blobs::FOLDER, entropy().map_err(failed)?);
    let stored = bucket.put_new(&name, &mut &b"probe"[..]);
    bucket.delete(&name).map_err(failed)?;
    stored.map_err(failed)?;
    Ok(())
}

/// Lets writers race for a name. Returns what is wrong with the outcome.
fn race(bucket: &dyn Bucket, name: &str) -> io::Result<Option<String>> {
    let objects: Vec<Vec<u8>> = (0..RACERS).map(|racer| vec![racer as u8; 64 + racer]).collect();
    let barrier = Barrier::new(RACERS);
    let put = |object: &[u8]| {
        barrier.wait();
        bucket.put_new(name, &mut &*object)
    };
    let put = &put;
    let outcomes: Vec<io::Result<Put>> = thread::scope(|scope| {
        let racers: Vec<_> =
            objects.iter().map(|object| scope.spawn(move || put(object))).collect();
        let ended = racers.into_iter().map(|racer| racer.join());
        ended
            .map(|end| end.unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))))
            .collect()
    });
    let mut winners = Vec::new();
    for (racer, outcome) in outcomes.into_iter().enumerate() {
        if outcome? == Put::New {
            winners.push(racer);
        }
    }
    let &[winner] = &winners[..] else {
        return Ok(Some(format!(
            "{} of {RACERS} writers were told that they stored an object under one name, instead \
             of one",
            winners.len()
        )));
    };
    let mut found = Vec::new();
    match bucket.get(name)? {
        Some(mut object) => object.reader.read_to_end(&mut found)?,
        None => return Ok(Some("an object that was stored cannot be read".to_owned())),
    };
    if found != objects[winner] {
        return Ok(Some("it has replaced an object that exists".to_owned()));
    }
    match bucket.put_new(name, &mut &b"late"[..])? {
        Put::New => Ok(Some("it replaces an object that exists".to_owned())),
        Put::Exists => Ok(None),
    }
}
