//! Commits that no sender of ours would send.

use std::io::{Cursor, Write};
use std::sync::{Arc, Mutex};

use plimsoll_disk::mutex::lock;
use plimsoll_memory::budget::Kind;

use super::*;
use crate::api::db::Db;
use crate::sync::commit_id::ContentHash;
use crate::sync::contents::HashSink;
use crate::sync::local::Local;
use crate::sync::peer::{Move, Peer};
use crate::sync::wire::frames::{Output, Role, Sender};
use crate::types::options::Options;

#[derive(Clone, Default)]
struct Sent(Arc<Mutex<Vec<u8>>>);

impl Write for Sent {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        lock(&self.0).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The message that `write` sends.
fn message(write: impl FnOnce(&mut Output)) -> Input {
    let sent = Sent::default();
    let sender = Sender::new(Box::new(sent.clone()), Role::Client);
    let mut output = Output::new(Arc::new(Mutex::new(sender)));
    write(&mut output);
    output.end().unwrap();
    let bytes = lock(&sent.0).clone();
    let mut input = Input::new(Box::new(Cursor::new(bytes)), Role::Client);
    input.begin().unwrap();
    input
}

fn store() -> Db {
    Db::in_memory(Options::new().memory_bytes(16 << 20).background(false)).unwrap()
}

type Write1<'a> = &'a dyn Fn(&mut dyn Sink);

/// Pushes one commit with these changes, whose id is right, to an empty store. Returns the error.
fn pushed(db: &Db, changes: Write1<'_>) -> Result<u64> {
    let mut hash = HashSink { store: &db.store, hash: ContentHash::default() };
    changes(&mut hash);
    pushed_as(db, hash.hash.id(&[], 7, b""), changes)
}

fn pushed_as(db: &Db, id: CommitId, changes: Write1<'_>) -> Result<u64> {
    received(db, id, [false, false], changes)
}

/// As [`pushed_as`]; the flags: whether the commit is a boundary commit, and whether such commits
/// are accepted.
fn received(
    db: &Db,
    id: CommitId,
    [is_boundary, takes_boundary]: [bool; 2],
    changes: Write1<'_>,
) -> Result<u64> {
    let mut input = message(|output| {
        let mut encoder = Encoder::new(output);
        let (parents, micros, metadata, is_on_line) = (&[][..], 7, &b""[..], true);
        let head = Head { id, parents, micros, metadata, is_on_line, is_boundary };
        let mut write = |sink: &mut dyn Sink| {
            changes(sink);
            Ok(())
        };
        encoder.commit(&head, &mut write).unwrap();
        encoder.end().unwrap();
    });
    let mut lease = db.store.reader.budget.empty_lease(Kind::Staging);
    let boundary = takes_boundary.then_some(id);
    let change = Move { name: "main", before: None, last: id, is_forward: false, boundary };
    let mut feed = |sink: &mut dyn CommitSink| take_commits(&mut input, &mut lease, sink);
    let received = Local::new(db)?.receive(change, &mut feed);
    assert_eq!(lease.bytes(), 0);
    received
}

fn put(sink: &mut dyn Sink, keyspace: &str, key: &[u8]) {
    sink.put(keyspace, key, None, Bytes::Whole(b"1")).unwrap();
}

#[test]
fn changes_out_of_order_are_refused_although_their_id_is_right() {
    let cases: [(&str, Write1<'_>); 8] = [
        ("not in ascending order", &|sink| {
            put(sink, "notes", b"b");
            put(sink, "notes", b"a");
        }),
        ("not in ascending order", &|sink| {
            put(sink, "notes", b"a");
            put(sink, "notes", b"a");
        }),
        ("not in ascending order", &|sink| {
            put(sink, "notes", b"a");
            sink.delete("notes", b"a").unwrap();
        }),
        ("not contiguous", &|sink| {
            put(sink, "notes", b"a");
            put(sink, "films", b"a");
            put(sink, "notes", b"b");
        }),
        ("follows a key", &|sink| {
            put(sink, "notes", b"a");
            sink.range("notes", b"b", None).unwrap();
        }),
        ("not contiguous", &|sink| {
            put(sink, "notes", b"a");
            put(sink, "films", b"a");
            sink.range("notes", b"b", None).unwrap();
        }),
        ("in a range that the same commit deletes", &|sink| {
            sink.range("notes", b"a", Some(b"c")).unwrap();
            sink.delete("notes", b"b").unwrap();
        }),
        ("invalid expiry time 1", &|sink| {
            sink.put("notes", b"a", Some(Expiry::OF_DELETION), Bytes::Whole(b"1")).unwrap();
        }),
    ];
    for (part, changes) in cases {
        let db = store();
        let error = pushed(&db, changes).unwrap_err().to_string();
        assert!(error.contains(part), "{part}: {error}");
        assert_eq!(Local::new(&db).unwrap().tip("main").unwrap(), None, "nothing was committed");
    }
}

#[test]
fn changes_in_order_are_accepted() {
    let db = store();
    let changes = |sink: &mut dyn Sink| {
        put(sink, "films", b"b");
        sink.range("notes", b"a", Some(b"c")).unwrap();
        sink.range("notes", b"x", None).unwrap();
        sink.delete("notes", b"_").unwrap();
        put(sink, "notes", b"b");
        sink.delete("notes", b"d").unwrap();
        let mut left = 300_000_usize;
        let mut next = |piece: &mut [u8]| {
            let bytes = left.min(piece.len());
            piece[..bytes].fill(7);
            left -= bytes;
            Ok(bytes)
        };
        sink.put("notes", b"e", None, Bytes::Pieces(300_000, &mut next)).unwrap();
    };
    assert_eq!(pushed(&db, &changes), Ok(1));
    let notes = db.keyspace("notes").unwrap();
    assert_eq!(db.get(&notes, "e").unwrap().unwrap().len(), 300_000);
    // The store passes it on as it got it.
    let other = store();
    db.push_to(&other, "main").unwrap();
    assert_eq!(other.state_hash().unwrap(), db.state_hash().unwrap());
}

#[test]
fn a_commit_whose_contents_differ_from_its_id_is_refused() {
    let db = store();
    let id = ContentHash::default().id(&[], 7, b"");
    let error = pushed_as(&db, id, &|sink| put(sink, "notes", b"a")).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "{error:?}");
    assert_eq!(Local::new(&db).unwrap().tip("main").unwrap(), None);
    assert_eq!(db.get(&db.keyspace("notes").unwrap(), "a").unwrap(), None);
}

#[test]
fn lengths_beyond_the_limits_are_refused() {
    let id = ContentHash::default().id(&[], 7, b"");
    let begin = |output: &mut Output| {
        output.put(&[NEXT]).unwrap();
        output.put(id.as_bytes()).unwrap();
        output.put(&[1]).unwrap();
    };
    let change = |output: &mut Output, kind: u8| {
        begin(output);
        put_number(output, 0).unwrap();
        output.put(&7_u64.to_le_bytes()).unwrap();
        put_bytes(output, b"").unwrap();
        output.put(&[KEYSPACE]).unwrap();
        put_bytes(output, b"notes").unwrap();
        output.put(&[kind]).unwrap();
    };
    let cases: [&dyn Fn(&mut Output); 7] = [
        // Too many parents; too long metadata, name, key, bound and value; an unknown kind.
        &|output| {
            begin(output);
            put_number(output, PARENTS_MAX + 1).unwrap();
        },
        &|output| {
            begin(output);
            put_number(output, 0).unwrap();
            output.put(&7_u64.to_le_bytes()).unwrap();
            put_number(output, u64::MAX >> 1).unwrap();
        },
        &|output| {
            change(output, KEYSPACE);
            put_number(output, 256).unwrap();
        },
        &|output| {
            change(output, DELETE);
            put_number(output, MAX_KEY_BYTES as u64 + 1).unwrap();
        },
        &|output| {
            change(output, RANGE);
            put_number(output, BOUND_BYTES_MAX as u64 + 1).unwrap();
        },
        &|output| {
            change(output, PUT);
            put_bytes(output, b"key").unwrap();
            output.put(&0_u64.to_le_bytes()).unwrap();
            put_number(output, MAX_VALUE_BYTES + 1).unwrap();
        },
        &|output| change(output, 99),
    ];
    for (number, write) in cases.into_iter().enumerate() {
        let db = store();
        let mut input = message(write);
        let mut lease = db.store.reader.budget.empty_lease(Kind::Staging);
        let change =
            Move { name: "main", before: None, last: id, is_forward: false, boundary: None };
        let mut feed = |sink: &mut dyn CommitSink| take_commits(&mut input, &mut lease, sink);
        let error = Local::new(&db).unwrap().receive(change, &mut feed).unwrap_err().to_string();
        let parts = ["exceeds the limit of", "a change of unknown kind 99"];
        assert!(parts.iter().any(|part| error.contains(part)), "{number}: {error}");
    }
}

#[test]
fn a_boundary_commit_needs_the_hash_of_its_state() {
    let id = ContentHash::default().id(&[], 1, b"");
    let source = store();
    let notes = source.keyspace("notes").unwrap();
    source.put(&notes, "a", "1").unwrap();
    let hash = source.state_hash().unwrap();
    let whole = |sink: &mut dyn Sink| {
        put(sink, "notes", b"a");
        sink.state(hash).unwrap();
    };
    let refused = |flags, changes: Write1<'_>| {
        let db = store();
        let error = received(&db, id, flags, changes).unwrap_err();
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
        assert_eq!(db.main().tip().unwrap(), None);
    };
    // Boundary commits are not accepted by a push, or by a fetch into a complete store.
    refused([true, false], &whole);
    refused([true, true], &|sink| put(sink, "notes", b"a"));
    refused([true, true], &|sink| {
        put(sink, "notes", b"b");
        sink.state(hash).unwrap();
    });
    refused([true, true], &|sink| {
        put(sink, "notes", b"a");
        sink.delete("notes", b"b").unwrap();
        sink.state(hash).unwrap();
    });
    // An ordinary commit cannot have a state.
    refused([false, true], &whole);
    let db = store();
    assert_eq!(received(&db, id, [true, true], &whole), Ok(1));
    assert_eq!((db.main().tip().unwrap(), db.state_hash().unwrap()), (Some(id), hash));
    assert_eq!(db.boundary_commits().unwrap(), [id]);
}
