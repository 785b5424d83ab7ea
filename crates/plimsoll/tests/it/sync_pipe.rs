//! Fetch, push and clone between two stores over pipes, and what happens when the bytes on the way
//! are cut, changed or repeated.

use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use plimsoll::{
    Branch, Db, Error, Glsn, InvalidInput, Keyspace, Options, Retention, SyncConnection,
};

type Served = JoinHandle<plimsoll::Result<()>>;

fn options() -> Options {
    Options::new().memory_bytes(16 << 20).background(false)
}

fn store() -> Db {
    Db::in_memory(options()).unwrap()
}

fn notes(db: &Db) -> Keyspace {
    db.keyspace("notes").unwrap()
}

/// A connection to a store that a thread serves.
fn connect(db: &Db) -> (SyncConnection, Served) {
    let (from_client, to_server) = io::pipe().unwrap();
    let (from_server, to_client) = io::pipe().unwrap();
    let db = db.clone();
    let served = spawn(move || db.serve_sync(from_client, to_client));
    (SyncConnection::new(from_server, to_server).unwrap(), served)
}

#[track_caller]
fn end(connection: SyncConnection, served: Served) {
    drop(connection);
    served.join().unwrap().unwrap();
}

#[track_caller]
fn assert_same(a: &Branch, b: &Branch) {
    assert_eq!(a.tip().unwrap(), b.tip().unwrap());
    assert_eq!(a.state_hash().unwrap(), b.state_hash().unwrap());
}

/// Commits of every kind: values of all sizes, expiries, deletions, ranges, metadata.
fn fill(db: &Db, rounds: u32) {
    let (notes, numbers) = (notes(db), db.keyspace("numbers").unwrap());
    for round in 0..rounds {
        let mut tx = db.begin();
        tx.put(&notes, format!("{round}"), vec![round as u8; 100]).unwrap();
        tx.put(&notes, "large", vec![round as u8; 700_000]).unwrap();
        tx.put(&numbers, "medium", vec![round as u8; 100_000]).unwrap();
        tx.put(&numbers, "empty", "").unwrap();
        tx.set_metadata(b"by Ada").unwrap();
        tx.commit().unwrap();
        db.put_with_ttl(&notes, "soon", "gone", Duration::from_secs(3600)).unwrap();
        db.bulk_load(&numbers, (0..300_u32).map(|n| (n.to_be_bytes(), "x"))).unwrap();
        db.transact(|tx| {
            tx.delete_range(&numbers, 10_u32.to_be_bytes()..250_u32.to_be_bytes())?;
            tx.put(&numbers, 20_u32.to_be_bytes(), "kept")
        })
        .unwrap();
        db.delete(&notes, format!("{round}")).unwrap();
    }
}

#[test]
fn commits_of_every_kind_pass_through_a_pipe() {
    let (here, there, third) = (store(), store(), store());
    fill(&here, 3);
    let draft = here.create_branch("draft", &here.main()).unwrap();
    draft.put(&notes(&here), "draft", "1").unwrap();
    here.merge(&draft).run().unwrap();
    let (mut connection, served) = connect(&there);
    assert_eq!(connection.store_id(), there.id());
    let pushed = here.push_over(&mut connection, "main").unwrap();
    assert!(pushed.commits >= 15, "{pushed:?}");
    assert_same(&here.main(), &there.main());
    assert!(here.push_over(&mut connection, "main").unwrap().is_up_to_date());
    here.put(&notes(&here), "more", "1").unwrap();
    assert_eq!(here.push_over(&mut connection, "main").unwrap().commits, 1);
    end(connection, served);

    // On, to a third store, by a fetch.
    let (mut connection, served) = connect(&there);
    assert_eq!(
        third.fetch_over(&mut connection, "main", "theirs").unwrap().to,
        pushed.to.and(here.main().tip().unwrap())
    );
    assert_same(&here.main(), &third.branch("theirs").unwrap());
    there.put(&notes(&there), "more", "2").unwrap();
    assert_eq!(third.fetch_over(&mut connection, "main", "theirs").unwrap().commits, 1);
    assert_same(&there.main(), &third.branch("theirs").unwrap());
    end(connection, served);
    let expires = |db: &Branch| db.ttl(&third.keyspace("notes").unwrap(), "soon").unwrap();
    let theirs = third.branch("theirs").unwrap();
    assert!(matches!(expires(&theirs), plimsoll::Ttl::Expires { .. }));
}

#[test]
fn errors_of_the_server_arrive_as_local_ones_and_leave_the_connection_usable() {
    let (here, there) = (store(), store());
    here.put(&notes(&here), "a", "1").unwrap();
    let (mut connection, served) = connect(&there);
    let refused = here.fetch_over(&mut connection, "none", "theirs").unwrap_err();
    assert_eq!(refused, InvalidInput::NoBranch { name: "none".into() }.into());
    let long = "x".repeat(300);
    here.fetch_over(&mut connection, &long, "theirs").unwrap_err();
    end_with(connection, served, |served| assert!(served.is_err()));

    there.put(&notes(&there), "b", "1").unwrap();
    let (mut connection, served) = connect(&there);
    let refused = here.push_over(&mut connection, "main").unwrap_err();
    assert_eq!(refused, InvalidInput::NotFastForward { branch: "main".into() }.into());
    here.fetch_over(&mut connection, "main", "theirs").unwrap();
    let forced = here.push_forced_over(&mut connection, "main").unwrap();
    assert_eq!(forced.to, here.main().tip().unwrap());
    end(connection, served);
    assert_same(&here.main(), &there.main());
    assert_eq!(there.history(&notes(&there), "b").unwrap().count(), 2, "the past stays");
}

fn end_with(connection: SyncConnection, served: Served, check: impl FnOnce(plimsoll::Result<()>)) {
    drop(connection);
    check(served.join().unwrap());
}

#[test]
fn a_read_only_server_refuses_pushes_only() {
    let (here, there) = (store(), store());
    there.put(&notes(&there), "a", "1").unwrap();
    let (from_client, to_server) = io::pipe().unwrap();
    let (from_server, to_client) = io::pipe().unwrap();
    let of_server = there.clone();
    let served = spawn(move || of_server.serve_sync_read_only(from_client, to_client));
    let mut connection = SyncConnection::new(from_server, to_server).unwrap();
    here.fetch_over(&mut connection, "main", "main").unwrap();
    here.put(&notes(&here), "b", "1").unwrap();
    assert_eq!(here.push_over(&mut connection, "main"), Err(Error::ReadOnly));
    // Nothing of the push was sent before the refusal reached the client, so that it can go on.
    there.put(&notes(&there), "c", "1").unwrap();
    here.fetch_over(&mut connection, "main", "theirs").unwrap();
    end(connection, served);
    assert_same(&here.branch("theirs").unwrap(), &there.main());
}

#[test]
fn a_store_that_cannot_be_opened_is_reported_to_the_client() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("none");
    let (from_client, to_server) = io::pipe().unwrap();
    let (from_server, to_client) = io::pipe().unwrap();
    let served = spawn({
        let options = options().create(false);
        let path = path.clone();
        move || Db::serve_sync_at(path, options, false, from_client, to_client)
    });
    let mut connection = SyncConnection::new(from_server, to_server).unwrap();
    assert_eq!(connection.store_id(), 0);
    let refused = store().fetch_over(&mut connection, "main", "main").unwrap_err();
    assert!(matches!(&refused, Error::NotAStore { path: at, .. } if *at == path), "{refused:?}");
    drop(connection);
    assert_eq!(served.join().unwrap().unwrap_err(), refused);
}

#[test]
fn trimmed_history_is_reported_on_either_side() {
    let (here, there) = (store(), store());
    for db in [&here, &there] {
        let notes = notes(db);
        for n in 0..3000 {
            db.put(&notes, format!("{n}"), vec![n as u8; 500]).unwrap();
        }
        db.set_retention(&notes, Retention::Latest).unwrap();
        db.set_retention(&db.keyspace("default").unwrap(), Retention::Latest).unwrap();
        db.checkpoint_and_trim();
    }
    let (mut connection, served) = connect(&there);
    let trimmed = |error: Error| {
        assert!(
            matches!(error, Error::InvalidInput(InvalidInput::HistoryTrimmed { .. })),
            "{error:?}"
        );
    };
    trimmed(here.push_forced_over(&mut connection, "main").unwrap_err());
    trimmed(here.fetch_over(&mut connection, "main", "theirs").unwrap_err());
    end(connection, served);
}

trait Trim {
    fn checkpoint_and_trim(&self);
}

impl Trim for Db {
    fn checkpoint_and_trim(&self) {
        self.compact().unwrap();
        self.log().trim(self.newest()).unwrap();
        assert!(self.log().bounds().first > Glsn(1), "the log was trimmed");
    }
}

/// A fault in the bytes of one direction.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// The connection ends after this many bytes.
    Cut(usize),
    /// A bit of this byte is flipped.
    Flip(usize),
    /// The chunk of 100 bytes that ends here is sent twice.
    Repeat(usize),
    /// Instead of the rest, zeros are sent, without an end.
    Zeros(usize),
}

/// Copies bytes, with a fault. Counts the bytes that it gets.
fn carry(mut from: PipeReader, to: PipeWriter, fault: Option<Fault>, count: &AtomicUsize) {
    let (mut at, mut to) = (0, Some(to));
    let mut last = Vec::new();
    let mut bytes = [0; 4096];
    loop {
        let got = match from.read(&mut bytes) {
            Ok(0) | Err(_) => break,
            Ok(got) => got,
        };
        let mut piece = bytes[..got].to_vec();
        let has = |position: usize| (at..at + got).contains(&position);
        match fault {
            Some(Fault::Cut(position)) if has(position) => piece.truncate(position - at),
            Some(Fault::Flip(position)) if has(position) => piece[position - at] ^= 0x10,
            Some(Fault::Repeat(position)) if has(position) => {
                let sent = [&last[..], &piece[..position - at]].concat();
                let again = &sent[sent.len().saturating_sub(100)..];
                piece = [&piece[..position - at], again, &piece[position - at..]].concat();
            }
            Some(Fault::Zeros(position)) if has(position) => {
                piece.truncate(position - at);
                piece.resize(piece.len() + 100_000, 0);
            }
            _ => {}
        }
        at += got;
        last = piece.clone();
        let sent = to.as_mut().is_none_or(|to| to.write_all(&piece).is_ok());
        let is_over = matches!(fault, Some(Fault::Cut(at_most)) if at > at_most);
        if is_over || !sent {
            // Both ends get to know it.
            to = None;
            break;
        }
    }
    drop(to);
    count.store(at, Ordering::SeqCst);
}

struct Line {
    connection: plimsoll::Result<SyncConnection>,
    served: Served,
    carriers: [JoinHandle<()>; 2],
    counts: [Arc<AtomicUsize>; 2],
}

/// A connection whose bytes to and from the server pass through threads with faults.
fn connect_through(db: &Db, faults: [Option<Fault>; 2]) -> Line {
    let (from_client, to_first) = io::pipe().unwrap();
    let (first, to_server) = io::pipe().unwrap();
    let (from_server, to_second) = io::pipe().unwrap();
    let (second, to_client) = io::pipe().unwrap();
    let counts = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let [up, down] = counts.clone();
    let carriers = [
        spawn(move || carry(from_client, to_server, faults[0], &up)),
        spawn(move || carry(from_server, to_client, faults[1], &down)),
    ];
    let db = db.clone();
    let served = spawn(move || db.serve_sync(first, to_second));
    Line { connection: SyncConnection::new(second, to_first), served, carriers, counts }
}

impl Line {
    /// Runs a transfer, ends the connection, and returns the results of both sides, and the numbers
    /// of bytes that were sent.
    fn run<T>(
        self,
        transfer: impl FnOnce(&mut SyncConnection) -> plimsoll::Result<T>,
    ) -> (plimsoll::Result<T>, plimsoll::Result<()>, [usize; 2]) {
        let done = self.connection.and_then(|mut connection| transfer(&mut connection));
        let served = self.served.join().unwrap();
        self.carriers.into_iter().for_each(|carrier| carrier.join().unwrap());
        (done, served, self.counts.map(|count| count.load(Ordering::SeqCst)))
    }
}

/// Positions in `0..len`: all of the first bytes, and some of the others.
fn positions(len: usize) -> impl Iterator<Item = usize> {
    let step = (len / 40).max(1) | 1;
    (0..len.min(120)).step_by(7).chain((120..len).step_by(step))
}

fn faults(len: usize) -> impl Iterator<Item = Fault> {
    positions(len).flat_map(|at| {
        [Fault::Cut(at), Fault::Flip(at), Fault::Repeat(at.max(1)), Fault::Zeros(at)]
    })
}

fn source() -> Db {
    let db = store();
    let notes = notes(&db);
    for n in 0..6_u8 {
        db.put(&notes, [n], vec![n; 3000]).unwrap();
    }
    db.put(&notes, "large", vec![7; 400_000]).unwrap();
    db.put(&notes, "end", "1").unwrap();
    db
}

/// After a fault, what the target has is a part of the source's history, and the next transfer
/// completes it.
#[track_caller]
fn check(fault: Fault, failed: bool, source: &Db, target: &Db, branch: &str) {
    if let Ok(found) = target.branch(branch)
        && let Some(tip) = found.tip().unwrap()
    {
        let glsn = source.find_commit(&tip).unwrap().unwrap_or_else(|| panic!("{fault:?}"));
        let then = source.snapshot_at(plimsoll::Moment::Glsn(glsn)).unwrap();
        let (ours, theirs) = (found.state_hash().unwrap(), then.state_hash().unwrap());
        assert_eq!(ours, theirs, "{fault:?}");
        assert!(failed || glsn == source.newest() || tip == source.main().tip().unwrap().unwrap());
    } else {
        assert!(failed, "{fault:?}");
    }
}

#[test]
fn a_fault_in_a_push_fails_it_and_the_next_push_completes_it() {
    let source = source();
    let (done, served, counts) =
        connect_through(&store(), [None; 2]).run(|it| source.push_over(it, "main"));
    assert!(done.unwrap().commits >= 8 && served.is_ok());
    let directions = [(0, counts[0]), (1, counts[1])];
    for (direction, fault) in
        directions.into_iter().flat_map(|(way, len)| faults(len).map(move |it| (way, it)))
    {
        let target = store();
        let mut both = [None; 2];
        both[direction] = Some(fault);
        let line = connect_through(&target, both);
        let (done, ..) = line.run(|it| source.push_over(it, "main"));
        let shown = done.as_ref().err().map(ToString::to_string).unwrap_or_default();
        check(fault, done.is_err(), &source, &target, "main");
        assert!(done.is_err(), "{direction} {fault:?}");
        assert!(
            ["the connection to", "violated the sync protocol", "instead of the greeting"]
                .iter()
                .any(|part| shown.contains(part)),
            "{direction} {fault:?}: {shown}"
        );
        let (again, served, _) =
            connect_through(&target, [None; 2]).run(|it| source.push_over(it, "main"));
        again.unwrap();
        served.unwrap();
        assert_same(&source.main(), &target.main());
        assert_eq!(target.branches().unwrap(), []);
    }
}

#[test]
fn a_fault_in_a_fetch_fails_it_and_the_next_fetch_completes_it() {
    let source = source();
    let (done, served, counts) =
        connect_through(&source, [None; 2]).run(|it| store().fetch_over(it, "main", "theirs"));
    assert!(done.unwrap().commits >= 8 && served.is_ok());
    let directions = [(0, counts[0]), (1, counts[1])];
    for (direction, fault) in
        directions.into_iter().flat_map(|(way, len)| faults(len).map(move |it| (way, it)))
    {
        let target = store();
        let mut both = [None; 2];
        both[direction] = Some(fault);
        let line = connect_through(&source, both);
        let (done, ..) = line.run(|it| target.fetch_over(it, "main", "theirs"));
        check(fault, done.is_err(), &source, &target, "theirs");
        assert!(done.is_err(), "{direction} {fault:?}");
        let (again, served, _) =
            connect_through(&source, [None; 2]).run(|it| target.fetch_over(it, "main", "theirs"));
        again.unwrap();
        served.unwrap();
        assert_same(&source.main(), &target.branch("theirs").unwrap());
        assert_eq!(target.branches().unwrap().len(), 1);
    }
}

/// Answers each read with the next bytes of `bytes`, then the end.
struct Bytes(Mutex<io::Cursor<Vec<u8>>>);

impl Read for Bytes {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.lock().unwrap().read(into)
    }
}

/// Accepts and drops everything.
struct Gone;

impl Write for Gone {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A writer whose reader is gone.
struct Broken;

impl Write for Broken {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn of(bytes: impl Into<Vec<u8>>) -> Bytes {
    Bytes(Mutex::new(io::Cursor::new(bytes.into())))
}

#[test]
fn something_else_at_the_other_end_is_named() {
    let shown = |bytes: &[u8]| SyncConnection::new(of(bytes), Gone).unwrap_err().to_string();
    let motd = shown(b"Welcome to Ubuntu 24.04 LTS, where everything is fine");
    assert!(motd.contains("sent \"Welcome to Ubuntu 24.04 LTS"), "{motd}");
    assert!(motd.contains("shell on that machine prints nothing"), "{motd}");
    assert!(shown(b"").contains("the connection to the other store ended"));
    assert!(shown(b"plimsy").contains("ended"));
    let ended = SyncConnection::new(of(b""), Broken).unwrap_err().to_string();
    assert!(ended.contains("ended"), "{ended}");
    let db = store();
    assert_eq!(db.serve_sync(of(b""), Gone), Ok(()), "no client came");
    assert!(db.serve_sync(of(b"GET / HTTP/1.1\r\n\r\n and so on ........"), Gone).is_err());
    db.serve_sync(of(vec![0xff; 1000]), Gone).unwrap_err();
    db.serve_sync(of(vec![0xff; 1000]), Broken).unwrap_err();
}

#[test]
fn a_clone_over_a_program_is_refused_without_permission() {
    let folder = tempfile::tempdir().unwrap();
    let dest = folder.path().join("clone");
    let refused = Db::clone_store("exec:touch /tmp/never", &dest, options()).unwrap_err();
    assert!(
        matches!(&refused, Error::InvalidInput(InvalidInput::ExecAddress { .. })),
        "{refused:?}"
    );
    assert!(!dest.exists());
    let db = store();
    db.add_remote("other", "exec:touch /tmp/never").unwrap();
    assert!(matches!(
        db.fetch("other", "main"),
        Err(Error::InvalidInput(InvalidInput::ExecAddress { .. }))
    ));
    db.add_remote("bad", "ssh://-oProxyCommand=x/hub").unwrap_err();
}
