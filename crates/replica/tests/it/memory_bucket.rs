//! A bucket in memory that fails by seed: requests are lost before they arrive, answers are lost,
//! and objects arrive late.

use std::collections::BTreeMap;
use std::io::{self, Cursor, ErrorKind, Read};
use std::sync::{Arc, Mutex, MutexGuard};

use fastrand::Rng;
use plimsoll_archive::{Bucket, Object, Put};
use plimsoll_replica::BucketOrder;

/// A request of a writer that is still on its way.
type Late = (String, Vec<u8>);

/// The objects of a bucket.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    pub(crate) named: BTreeMap<String, Vec<u8>>,
    late: Vec<Late>,
}

/// One member's connection to a bucket.
#[derive(Debug)]
pub(crate) struct MemoryBucket {
    objects: Arc<Mutex<Objects>>,
    rng: Mutex<Rng>,
    /// The probability of each kind of fault.
    pub(crate) fault: Mutex<f64>,
    /// All writes fail in this way.
    pub(crate) refusal: Mutex<Option<ErrorKind>>,
    /// Refused writes were stored before, and reads are refused, too.
    pub(crate) stores_refused: Mutex<bool>,
    /// Whether it overwrites, as a service without conditional writes does.
    pub(crate) overwrites: bool,
    pub(crate) requests: Mutex<u64>,
}

impl MemoryBucket {
    pub(crate) fn new(objects: &Arc<Mutex<Objects>>, seed: u64) -> Self {
        Self {
            objects: Arc::clone(objects),
            rng: Mutex::new(Rng::with_seed(seed)),
            fault: Mutex::new(0.0),
            refusal: Mutex::new(None),
            stores_refused: Mutex::new(false),
            overwrites: false,
            requests: Mutex::new(0),
        }
    }

    fn objects(&self) -> MutexGuard<'_, Objects> {
        let mut objects = self.objects.lock().unwrap();
        *self.requests.lock().unwrap() += 1;
        // A late request arrives sometime, whether its writer waits or not.
        if !objects.late.is_empty() && self.rng.lock().unwrap().bool() {
            let (name, bytes) = objects.late.remove(0);
            objects.named.entry(name).or_insert(bytes);
        }
        objects
    }

    fn fails(&self) -> bool {
        self.rng.lock().unwrap().f64() < *self.fault.lock().unwrap()
    }

    fn lost<T>() -> io::Result<T> {
        Err(io::Error::new(ErrorKind::TimedOut, "the bucket does not answer"))
    }
}

impl Bucket for MemoryBucket {
    fn put_new(&self, name: &str, bytes: &mut dyn Read) -> io::Result<Put> {
        let mut object = Vec::new();
        bytes.read_to_end(&mut object)?;
        if let Some(kind) = *self.refusal.lock().unwrap() {
            if *self.stores_refused.lock().unwrap() {
                self.objects().named.entry(name.to_owned()).or_insert(object);
            }
            return Err(kind.into());
        }
        let mut objects = self.objects();
        if self.fails() {
            match self.rng.lock().unwrap().u8(0..3) {
                0 => {}
                1 => objects.late.push((name.to_owned(), object)),
                _ => drop(objects.named.entry(name.to_owned()).or_insert(object)),
            }
            return Self::lost();
        }
        if objects.named.contains_key(name) && !self.overwrites {
            return Ok(Put::Exists);
        }
        objects.named.insert(name.to_owned(), object);
        Ok(Put::New)
    }

    fn get(&self, name: &str) -> io::Result<Option<Object>> {
        if let Some(kind) = *self.refusal.lock().unwrap()
            && *self.stores_refused.lock().unwrap()
        {
            return Err(kind.into());
        }
        let objects = self.objects();
        if self.fails() {
            return Self::lost();
        }
        Ok(objects.named.get(name).map(|object| Object {
            bytes: object.len() as u64,
            reader: Box::new(Cursor::new(object.clone())),
        }))
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let objects = self.objects();
        let names = objects.named.keys().filter(|name| name.starts_with(&format!("{folder}/")));
        Ok(names.cloned().collect())
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        self.objects().named.remove(name);
        Ok(())
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut objects = self.objects();
        if self.fails() {
            return Self::lost();
        }
        objects.named.insert(name.to_owned(), bytes.to_vec());
        Ok(())
    }
}

/// An order over a connection.
pub(crate) fn order_over(bucket: &Arc<MemoryBucket>) -> BucketOrder {
    BucketOrder::new(Arc::clone(bucket) as _, "the bucket").unwrap()
}

/// A new member of the order in `objects`.
pub(crate) fn member(objects: &Arc<Mutex<Objects>>, seed: u64) -> BucketOrder {
    order_over(&Arc::new(MemoryBucket::new(objects, seed)))
}

/// Objects with a log of these batches.
pub(crate) fn log_of(batches: &[&[u8]]) -> Arc<Mutex<Objects>> {
    use plimsoll::order::Order;
    let objects = Arc::default();
    let order = member(&objects, 0);
    for (position, batch) in (1..).zip(batches) {
        order.append(position, batch).unwrap();
    }
    // It writes the hint.
    order.wait(1, std::time::Duration::ZERO).unwrap();
    objects
}
