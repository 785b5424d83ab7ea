//! Tests whether a bucket supports put-if-absent: of several writers of one name, exactly one
//! succeeds, and its object stays.

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

/// Fails if the bucket does not support put-if-absent. Creates its folders, and leaves no object.
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Cursor;
    use std::sync::Mutex;

    use plimsoll_archive::{Folders, Object, bucket_at};

    use super::*;

    /// The fault of a bucket.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Fault {
        /// It replaces an object that exists, and says that it is new.
        Overwrites,
        /// It replaces an object that exists, and says that it exists.
        OverwritesSecretly,
        /// It checks and stores in two steps.
        Races,
        /// It says that an object exists which it does not store.
        StoresNothing,
        None,
    }

    #[derive(Debug)]
    struct Faulty {
        objects: Mutex<BTreeMap<String, Vec<u8>>>,
        fault: Fault,
    }

    impl Bucket for Faulty {
        fn put_new(&self, name: &str, bytes: &mut dyn Read) -> io::Result<Put> {
            let mut object = Vec::new();
            bytes.read_to_end(&mut object)?;
            let exists = self.objects.lock().unwrap().contains_key(name);
            if exists && matches!(self.fault, Fault::Races | Fault::None) {
                return Ok(Put::Exists);
            }
            if self.fault == Fault::Races {
                thread::yield_now();
                std::thread::park_timeout(std::time::Duration::from_millis(5));
            }
            let mut objects = self.objects.lock().unwrap();
            match self.fault {
                Fault::None if objects.contains_key(name) => return Ok(Put::Exists),
                Fault::StoresNothing => return Ok(if exists { Put::Exists } else { Put::New }),
                _ => {}
            }
            objects.insert(name.to_owned(), object);
            let says_exists = exists && self.fault == Fault::OverwritesSecretly;
            Ok(if says_exists { Put::Exists } else { Put::New })
        }

        fn get(&self, name: &str) -> io::Result<Option<Object>> {
            let objects = self.objects.lock().unwrap();
            Ok(objects.get(name).map(|object| Object {
                bytes: object.len() as u64,
                reader: Box::new(Cursor::new(object.clone())),
            }))
        }

        fn list(&self, _: &str) -> io::Result<Vec<String>> {
            Ok(self.objects.lock().unwrap().keys().cloned().collect())
        }

        fn delete(&self, name: &str) -> io::Result<()> {
            self.objects.lock().unwrap().remove(name);
            Ok(())
        }
    }

    #[test]
    fn a_bucket_that_does_not_decide_between_writers_is_refused_by_name() {
        let faults =
            [Fault::Overwrites, Fault::OverwritesSecretly, Fault::Races, Fault::StoresNothing];
        for fault in faults {
            let bucket = Faulty { objects: Mutex::default(), fault };
            let refused = probe(&bucket, "s3://careless/prefix").unwrap_err();
            assert!(matches!(&refused, Error::Unfit { .. }), "{fault:?}: {refused}");
            assert!(refused.to_string().starts_with("s3://careless/prefix: "), "{refused}");
            assert_eq!(bucket.list("").unwrap(), Vec::<String>::new(), "{fault:?}");
        }
        let bucket = Faulty { objects: Mutex::default(), fault: Fault::None };
        probe(&bucket, "sound").unwrap();
        assert_eq!(bucket.list("").unwrap(), Vec::<String>::new());
    }

    #[test]
    fn a_folder_decides_between_writers() {
        let dir = tempfile::tempdir().unwrap();
        let bucket = bucket_at(dir.path().to_str().unwrap(), Folders::Create).unwrap();
        probe(&*bucket, "folder").unwrap();
        for folder in ["log", "blob", "tmp"] {
            assert!(bucket.list(folder).unwrap().is_empty(), "{folder}");
            assert!(dir.path().join(folder).is_dir(), "{folder}");
        }
    }
}
