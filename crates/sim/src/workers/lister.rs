//! A process that appends to lists and reads them, in two threads, and prints each transaction. It
//! exits when its input is closed.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use plimsoll::{Db, Error, Keyspace, Result, Snapshot, Transaction};
use plimsoll_disk::mutex::lock;
use plimsoll_disk::random::Random;
use plimsoll_disk::thread::spawn;
use rustix::time::{ClockId, clock_gettime};

use crate::lists::check::Lists;
use crate::lists::history::{ListName, Seen, Step, line_of_begin, line_of_end};
use crate::workers::points::EndState;
use crate::workers::{leave, listen_for_the_end, open_among_others};

/// Lists in use at a time; few, so that transactions conflict.
const SLOTS: u64 = 6;

/// Values of a list, after which the next generation begins.
const FULL: u64 = 32;

/// Threads of a process.
const THREADS: u64 = 2;

/// The most steps of a transaction.
const STEPS_MAX: u64 = 4;

/// Nanoseconds of a clock that all processes of the machine share.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn values_in(value: Option<&[u8]>) -> impl Iterator<Item = u64> + '_ {
    value.unwrap_or_default().as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes))
}

fn seen_in(value: Option<&[u8]>) -> Seen {
    Seen::of(values_in(value))
}

/// All lists of a store.
///
/// # Errors
/// Any error of the store.
pub fn lists_in(db: &Db) -> Result<Lists> {
    let space = db.keyspace("lists")?;
    let mut lists = Lists::new();
    for row in db.snapshot().prefix(&space, "")? {
        let (key, value) = row?;
        if let Some(list) = ListName::of_key(&key) {
            lists.insert(list, values_in(Some(&value)).collect());
        }
    }
    Ok(lists)
}

/// Runs transactions until its input is closed.
///
/// # Errors
/// Any error of the store except conflicts and time-outs caused by another process.
pub fn live(
    store: &Path,
    number: u64,
    end_state: Option<&Arc<EndState>>,
) -> std::result::Result<(), String> {
    let over = listen_for_the_end()?;
    let db = Arc::new(open_among_others(store, end_state)?);
    let failed: Arc<Mutex<Option<String>>> = Arc::default();
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let (db, over, failed) = (Arc::clone(&db), Arc::clone(&over), Arc::clone(&failed));
            spawn("lists", move || {
                if let Err(error) =
                    ListWorker::new(&db, number, thread).and_then(|mut lister| lister.work(&over))
                {
                    *lock(&failed) = Some(format!("{error} [{error:?}]"));
                }
            })
        })
        .collect::<std::io::Result<_>>()
        .map_err(|error| error.to_string())?;
    for thread in threads {
        thread.join().map_err(|_| "a thread panicked")?;
    }
    if let Some(error) = lock(&failed).take() {
        return Err(error);
    }
    Arc::into_inner(db).map_or(Ok(()), |db| leave(db, end_state))
}

/// One thread.
struct ListWorker<'d> {
    db: &'d Db,
    space: Keyspace,
    number: u64,
    thread: u64,
    random: Random,
    /// The first generation of each slot not known to be full.
    generations: [u32; SLOTS as usize],
}

impl<'d> ListWorker<'d> {
    fn new(db: &'d Db, number: u64, thread: u64) -> Result<Self> {
        let space = db.keyspace("lists")?;
        let mut generations = [0; SLOTS as usize];
        let snapshot = db.snapshot();
        for (slot, generation) in (0..).zip(&mut generations) {
            let last =
                snapshot.prefix(&space, u32::to_be_bytes(slot))?.reverse().next().transpose()?;
            *generation =
                last.and_then(|(key, _)| ListName::of_key(&key)).map_or(0, |list| list.generation);
        }
        Ok(Self {
            db,
            space,
            number,
            thread,
            random: Random::new(now() ^ number << 8 ^ thread),
            generations,
        })
    }

    fn work(&mut self, over: &AtomicBool) -> Result<()> {
        while !over.load(Ordering::Acquire) {
            match self.transaction() {
                // The transaction was refused, or timed out because of a stopped process, so its
                // outcome is unknown.
                Err(Error::Conflict { .. } | Error::Stalled { .. } | Error::Behind { .. }) => {}
                done => done?,
            }
        }
        Ok(())
    }

    /// Runs one transaction.
    fn transaction(&mut self) -> Result<()> {
        let begin = now();
        if self.random.chance(0.3) {
            let snapshot = self.db.snapshot();
            let steps = self.only_read(&snapshot)?;
            print(&line_of_begin(self.thread, begin, &steps));
            print(&line_of_end(self.thread, Some(now())));
            return Ok(());
        }
        let mut tx = self.db.begin();
        let mut steps = Vec::new();
        for _ in 0..=self.random.below(STEPS_MAX) {
            self.step(&mut tx, &mut steps)?;
        }
        print(&line_of_begin(self.thread, begin, &steps));
        let done = match self.random.below(20) {
            0 => {
                drop(tx);
                print(&line_of_end(self.thread, None));
                return Ok(());
            }
            1..10 => tx.commit_submit().and_then(|ticket| ticket.wait().map(drop)),
            _ => tx.commit().map(drop),
        };
        match &done {
            Ok(()) => print(&line_of_end(self.thread, Some(now()))),
            Err(Error::Conflict { .. }) => print(&line_of_end(self.thread, None)),
            Err(_) => {}
        }
        done
    }

    /// A list that this thread does not know to be full.
    fn list(&mut self) -> ListName {
        let slot = self.random.below(SLOTS) as u32;
        ListName { slot, generation: self.generations[slot as usize] }
    }

    fn note(&mut self, list: ListName, len: u64) {
        let generation = &mut self.generations[list.slot as usize];
        if len >= FULL && *generation == list.generation {
            *generation += 1;
        }
    }

    /// Reads a list, and appends to it in half of all cases.
    fn step(&mut self, tx: &mut Transaction, steps: &mut Vec<Step>) -> Result<()> {
        let list = self.list();
        // Reads it by a scan or by its key.
        let found = match self.random.chance(0.3) {
            true => tx.prefix(&self.space, list.key())?.next().transpose()?.map(|(_, value)| value),
            false => tx.get(&self.space, list.key())?,
        };
        let seen = seen_in(found.as_deref());
        self.note(list, seen.len);
        let mut value = None;
        if seen.len < FULL && self.random.chance(0.5) {
            // Unique and nonzero, because no two threads with the same number make one in the same
            // nanosecond.
            let new = now() << 8 | (self.number & 0x3f) << 2 | self.thread;
            let all = [found.as_deref().unwrap_or_default(), &new.to_le_bytes()].concat();
            tx.put(&self.space, list.key(), all)?;
            value = Some(new);
        }
        steps.push(Step { list, seen, value });
        Ok(())
    }

    /// Reads a few lists, or the newest of every slot.
    fn only_read(&mut self, snapshot: &Snapshot) -> Result<Vec<Step>> {
        let lists: Vec<ListName> = match self.random.chance(0.3) {
            true => (0..)
                .zip(self.generations)
                .map(|(slot, generation)| ListName { slot, generation })
                .collect(),
            false => (0..=self.random.below(STEPS_MAX)).map(|_| self.list()).collect(),
        };
        let mut steps = Vec::with_capacity(lists.len());
        for list in lists {
            let seen = seen_in(snapshot.get(&self.space, list.key())?.as_deref());
            self.note(list, seen.len);
            steps.push(Step { list, seen, value: None });
        }
        Ok(steps)
    }
}

fn print(line: &str) {
    // Without a parent, nobody reads the error.
    let _ = std::io::stdout().lock().write_all(line.as_bytes());
}
