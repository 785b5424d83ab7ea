//! Tickets as futures, on minimal executors.

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use plimsoll::{CommitTicket, Db, Durability, Error, Glsn, Keyspace, Options, Result};
use plimsoll_disk::clock::SystemClock;
use plimsoll_disk::lying::LyingDisk;

fn options() -> Options {
    Options::new().memory_bytes(16 << 20)
}

fn submit(db: &Db, ks: &Keyspace, key: u32) -> CommitTicket {
    let mut tx = db.begin();
    tx.put(ks, key.to_be_bytes(), "x").unwrap();
    tx.commit_submit().unwrap()
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let (mut future, mut context) = (pin!(future), Context::from_waker(&waker));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// Awaits all tickets together.
struct All(Vec<CommitTicket>, Vec<Result<Glsn>>);

impl Future for All {
    type Output = Vec<Result<Glsn>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self(tickets, done) = &mut *self;
        tickets.retain_mut(|ticket| match Pin::new(ticket).poll(context) {
            Poll::Ready(result) => {
                done.push(result);
                false
            }
            Poll::Pending => true,
        });
        if tickets.is_empty() { Poll::Ready(std::mem::take(done)) } else { Poll::Pending }
    }
}

/// Calls a function when it is woken.
struct Call<F>(F);

impl<F: Fn() + Send + Sync + 'static> Wake for Call<F> {
    fn wake(self: Arc<Self>) {
        self.0();
    }
}

#[test]
fn awaited_tickets_are_durable() {
    let dir = tempfile::tempdir().unwrap();
    for background in [true, false] {
        let db = Db::open(dir.path().join("store"), options().background(background)).unwrap();
        let ks = db.keyspace("default").unwrap();
        let ticket = submit(&db, &ks, 0);
        let glsn = ticket.glsn();
        assert_eq!(block_on(ticket), Ok(glsn));
        assert!(db.log().bounds().durable >= glsn);
        let threads: Vec<_> = (0..4u32)
            .map(|number| {
                let (db, ks) = (db.clone(), ks.clone());
                thread::spawn(move || {
                    let tickets: Vec<_> =
                        (0..1000).map(|key| submit(&db, &ks, 1000 * number + key)).collect();
                    let last = tickets.last().unwrap().glsn();
                    let done = block_on(All(tickets, Vec::new()));
                    assert_eq!((done.len(), done.iter().all(Result::is_ok)), (1000, true));
                    assert!(db.log().bounds().durable >= last && db.newest() >= last);
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let ticket = submit(&db, &ks, 0);
        db.flush().unwrap();
        assert!(ticket.is_durable());
        assert!(ticket.wait().is_ok());
        db.close().unwrap();
    }
}

#[test]
fn a_ticket_of_a_buffered_store_is_ready_before_it_is_durable() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(
        dir.path().join("store"),
        options().durability(Durability::Buffered).background(false),
    )
    .unwrap();
    let ks = db.keyspace("default").unwrap();
    let mut ticket = pin!(submit(&db, &ks, 1));
    assert!(!ticket.is_durable());
    assert!(ticket.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    db.sync().unwrap();
    assert!(ticket.is_durable());
}

#[test]
fn wakers_are_called_outside_of_every_lock() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    let ks = db.keyspace("default").unwrap();
    let (told, woken) = std::sync::mpsc::channel();
    // Each waker commits, polls a ticket, drops another one, and finally closes the store, in the
    // thread that calls it.
    let others: Arc<Mutex<Vec<CommitTicket>>> = Arc::default();
    for number in 0..50u32 {
        let mut ticket = Box::pin(submit(&db, &ks, number));
        let waker = {
            let (db, ks, others, told) =
                (db.clone(), ks.clone(), Arc::clone(&others), told.clone());
            Waker::from(Arc::new(Call(move || {
                db.put(&ks, "from a waker", "x").map(drop).or_else(unless_closed).unwrap();
                others.lock().unwrap().pop();
                if number == 49 {
                    db.clone().close().unwrap();
                }
                told.send(number).unwrap();
            })))
        };
        let mut other = submit(&db, &ks, number);
        let _ = Pin::new(&mut other).poll(&mut Context::from_waker(Waker::noop()));
        others.lock().unwrap().push(other);
        match ticket.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => {
                result.unwrap();
                waker.wake();
            }
            // The waker must be called although the ticket is dropped after this.
            Poll::Pending => assert_eq!(woken.recv().unwrap(), number),
        }
        while woken.try_recv().is_ok() {}
    }
    assert!(matches!(db.put(&ks, "a", "b"), Err(Error::Closed)));
}

fn unless_closed(error: Error) -> Result<()> {
    if error == Error::Closed { Ok(()) } else { Err(error) }
}

#[test]
fn dropped_tickets_are_not_woken_and_their_commits_stay() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let db = Db::open(&path, options()).unwrap();
    let ks = db.keyspace("default").unwrap();
    let wakers: Vec<_> = (0..200u32)
        .map(|key| {
            let called = Arc::new(Call(|| {}));
            let waker = Waker::from(Arc::clone(&called));
            let mut ticket = submit(&db, &ks, key);
            let _ = Pin::new(&mut ticket).poll(&mut Context::from_waker(&waker));
            called
        })
        .collect();
    db.close().unwrap();
    assert!(wakers.iter().all(|waker| Arc::strong_count(waker) == 1), "no waker is kept");
    let db = Db::open(&path, options()).unwrap();
    assert_eq!(db.snapshot().len(&db.keyspace("default").unwrap()).unwrap(), 200);
}

#[test]
fn every_waiting_ticket_gets_the_error_of_a_failed_sync() {
    let disk = LyingDisk::new(1);
    let options = options().world(Arc::new(disk.clone()), Arc::new(SystemClock::new()));
    let db = Db::open("/store", options).unwrap();
    let ks = db.keyspace("default").unwrap();
    disk.fail_next_sync();
    let tickets: Vec<_> = (0..100).map(|key| submit(&db, &ks, key)).collect();
    let threads: Vec<_> =
        tickets.into_iter().map(|ticket| thread::spawn(move || block_on(ticket))).collect();
    for thread in threads {
        let result = thread.join().unwrap();
        assert!(matches!(result, Err(Error::Poisoned { .. })), "{result:?}");
    }
    drop(db);
}

#[test]
fn closing_the_store_wakes_every_ticket_and_makes_its_commit_durable() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    let ks = db.keyspace("default").unwrap();
    let woken = Arc::new(AtomicUsize::new(0));
    let mut pending = Vec::new();
    for key in 0..100 {
        let mut ticket = submit(&db, &ks, key);
        let count = Arc::clone(&woken);
        let waker = Waker::from(Arc::new(Call(move || _ = count.fetch_add(1, Ordering::SeqCst))));
        if Pin::new(&mut ticket).poll(&mut Context::from_waker(&waker)).is_pending() {
            pending.push(ticket);
        }
    }
    db.close().unwrap();
    assert_eq!(woken.load(Ordering::SeqCst), pending.len());
    for ticket in pending {
        assert!(ticket.is_durable());
        assert!(block_on(ticket).is_ok());
    }
}

/// Stores in which nothing becomes durable unless it is waited for: one that a process has alone,
/// and one with two members.
fn ordered_worlds(check: impl Fn(&Db, &Db)) {
    for shared in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let open = || {
            Db::open(dir.path().join("store"), options().shared(shared).background(false)).unwrap()
        };
        let one = open();
        let other = if shared { open() } else { one.clone() };
        check(&one, &other);
    }
}

/// By one process alone, and by one member for another, which may have the other durability mode.
#[test]
fn commits_before_a_sync_survive_a_power_cut() {
    for beside in [None, Some(Durability::Buffered), Some(Durability::Sync)] {
        let disk = LyingDisk::new(2);
        let open = |durability| {
            let options =
                options().shared(beside.is_some()).background(false).durability(durability);
            Db::open("/store", options.world(Arc::new(disk.clone()), Arc::new(SystemClock::new())))
                .unwrap()
        };
        let one = open(Durability::Buffered);
        let other = beside.map_or(one.clone(), open);
        let ks = one.keyspace("default").unwrap();
        let ticket = submit(&one, &ks, 1);
        assert!(one.log().bounds().durable < ticket.glsn());
        let before = disk.sync_count();
        assert_eq!(other.sync().unwrap(), ticket.glsn());
        assert_eq!(disk.sync_count() - before, 1, "the log's file alone");
        disk.cut_power();
        drop((one, other, ks));
        disk.restore_power();
        let db = open(Durability::Sync);
        assert!(db.get(&db.keyspace("default").unwrap(), 1u32.to_be_bytes()).unwrap().is_some());
    }
}

#[test]
fn an_ordered_transaction_reads_commits_that_are_not_durable_yet() {
    ordered_worlds(|one, other| {
        let (of_one, of_other) =
            (one.keyspace("default").unwrap(), other.keyspace("default").unwrap());
        let first = submit(one, &of_one, 1);
        assert!(!first.is_durable());
        assert_eq!(other.get(&of_other, 1u32.to_be_bytes()).unwrap(), None);
        let mut tx = other.begin_ordered();
        assert_eq!(tx.at(), first.glsn());
        assert!(tx.get(&of_other, 1u32.to_be_bytes()).unwrap().is_some());
        tx.put(&of_other, "next", "2").unwrap();
        // It does not conflict with the commit that it has read, and its own wait makes both
        // durable.
        let second = tx.commit_submit().unwrap();
        assert!(!second.is_durable());
        second.wait().unwrap();
        assert!(other.stats().log.durable >= first.glsn());
        assert_eq!(one.get(&of_one, "next").unwrap().unwrap(), b"2");
        first.wait().unwrap();
    });
}

#[test]
fn the_commit_of_a_read_only_ordered_transaction_makes_its_reads_durable() {
    ordered_worlds(|one, other| {
        let (of_one, of_other) =
            (one.keyspace("default").unwrap(), other.keyspace("default").unwrap());
        let written = submit(one, &of_one, 1);
        let tx = other.begin_ordered();
        assert!(tx.get(&of_other, 1u32.to_be_bytes()).unwrap().is_some());
        assert!(other.stats().log.durable < written.glsn());
        assert_eq!(tx.commit().unwrap(), written.glsn());
        assert!(other.stats().log.durable >= written.glsn());
        written.wait().unwrap();
    });
}
