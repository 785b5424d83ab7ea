//! The events of the feature `tracing`: each kind is seen by a subscriber, with its fields.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, Once};

use plimsoll::{Compression, Db, Glsn, Retention};
use plimsoll_disk::lying::LyingDisk;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::warm_world::{STORE, World, reopen, settled_store};

/// An event: its level and its fields, including the message.
type Seen = (Level, BTreeMap<&'static str, String>);

/// Keeps the store's events of this thread.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<Seen>>>);

/// The subscriber of threads that keep no events. If there is only one subscriber, `tracing` asks
/// the first thread that reaches an event whether it is wanted, and caches the answer for all
/// threads; a thread of another test would answer no.
struct Everywhere;

impl Subscriber for Everywhere {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "plimsoll"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The events of `work`, in this thread.
fn collect(work: impl FnOnce()) -> Collector {
    static IS_SET: Once = Once::new();
    IS_SET.call_once(|| tracing::subscriber::set_global_default(Everywhere).unwrap());
    let collector = Collector::default();
    tracing::subscriber::with_default(collector.clone(), || {
        tracing::callsite::rebuild_interest_cache();
        work();
    });
    collector
}

struct Fields<'a>(&'a mut BTreeMap<&'static str, String>);

impl Visit for Fields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "plimsoll"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut fields = BTreeMap::new();
        event.record(&mut Fields(&mut fields));
        self.0.lock().unwrap().push((*event.metadata().level(), fields));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Collector {
    /// The events with this message, which have this level and these fields.
    #[track_caller]
    fn all(
        &self,
        message: &str,
        level: Level,
        fields: &[&str],
    ) -> Vec<BTreeMap<&'static str, String>> {
        let seen = self.0.lock().unwrap();
        let of_kind = seen.iter().filter(|(_, fields)| fields["message"] == message);
        let found: Vec<_> = of_kind
            .map(|(found, event)| {
                let mut names: Vec<_> =
                    event.keys().copied().filter(|name| *name != "message").collect();
                let mut wanted = fields.to_vec();
                names.sort_unstable();
                wanted.sort_unstable();
                assert_eq!((*found, names), (level, wanted), "{message}");
                event.clone()
            })
            .collect();
        let messages: Vec<_> = seen.iter().map(|(_, fields)| &fields["message"]).collect();
        assert!(!found.is_empty(), "{message} is not among {messages:?}");
        found
    }
}

fn number(event: &BTreeMap<&'static str, String>, field: &str) -> u64 {
    event[field].parse().unwrap()
}

/// Keys of a thousand bytes each, in commits of ten.
fn fill(db: &Db, name: &str, keys: std::ops::Range<u32>, value_bytes: usize) {
    let keyspace = db.create_keyspace(name, Retention::Latest).unwrap();
    for first in keys.step_by(10) {
        let mut tx = db.begin();
        for number in first..first + 10 {
            tx.put(&keyspace, number.to_be_bytes(), vec![number as u8; value_bytes]).unwrap();
        }
        tx.commit().unwrap();
    }
}

fn stores_life(world: &World) -> Collector {
    collect(|| {
        let db = world.open();
        // More than the memory, so that pages are evicted, the writer flushes memtables, and runs
        // are merged.
        for round in 0..3 {
            fill(&db, "pages", 0..30_000, 700 + round);
            let (keyspace, snapshot) = (db.keyspace("pages").unwrap(), db.snapshot());
            assert!(
                (0..30_000_u32)
                    .all(|key| snapshot.get(&keyspace, key.to_be_bytes()).unwrap().is_some())
            );
            drop(snapshot);
            world.work(&db);
        }
        db.compact().unwrap();
        db.set_compression(&db.keyspace("pages").unwrap(), Compression::Lz4).unwrap();
        db.log().trim(db.newest()).unwrap();
        world.pass_an_interval(&db);
        db.close().unwrap();
        let db = world.open();
        world.work(&db);
        db.close().unwrap();
    })
}

#[test]
fn a_subscriber_sees_each_kind_of_event() {
    let world = World::new(1);
    let seen = stores_life(&world);
    let opened = [
        "path",
        "nanos",
        "log_nanos",
        "replay_nanos",
        "replayed_transactions",
        "replayed_bytes",
        "log_files",
        "tables",
    ];
    let opened = seen.all("store opened", Level::INFO, &opened);
    assert_eq!((opened.len(), &opened[0]["path"][..]), (2, STORE));
    assert_eq!((number(&opened[0], "tables"), number(&opened[1], "tables") > 0), (0, true));
    assert!(number(&opened[1], "log_files") > 0);
    let flushed = seen.all("flushed", Level::DEBUG, &["upto_glsn", "tables", "bytes", "nanos"]);
    assert!(flushed.iter().any(|event| number(event, "bytes") > 0 && number(event, "tables") > 0));
    let merged =
        seen.all("compacted", Level::DEBUG, &["tables_in", "bytes_in", "tables_out", "bytes_out"]);
    assert!(merged.iter().any(|event| number(event, "bytes_in") > number(event, "bytes_out")));
    let stalled = seen.all("writer stalled", Level::INFO, &["cause", "nanos"]);
    assert!(stalled.iter().all(|event| event["cause"] == "room" && number(event, "nanos") > 0));
    let evicted = seen.all("memory evicted", Level::TRACE, &["pages", "bytes"]);
    assert!(evicted.iter().any(|event| number(event, "pages") > 1), "batches, not pages");
    let trimmed = seen.all("log trimmed", Level::INFO, &["first_glsn", "entries", "nanos"]);
    assert!(number(&trimmed[0], "entries") > 0 && number(&trimmed[0], "first_glsn") > 1);
    let changed = seen.all("compression changed", Level::INFO, &["keyspace", "compression"]);
    assert_eq!((&changed[0]["keyspace"][..], &changed[0]["compression"][..]), ("pages", "lz4"));
    let warmed = seen.all("warm image restored", Level::INFO, &["pages", "rows", "nanos"]);
    assert!(number(warmed.last().unwrap(), "pages") > 0);
}

#[test]
fn a_subscriber_sees_that_a_torn_tail_was_cut() {
    let world = World::new(3);
    let db = world.open();
    let keyspace = db.create_keyspace("notes", Retention::Forever).unwrap();
    db.put(&keyspace, "a", "kept").unwrap();
    let torn = db.put(&keyspace, "b", "torn").unwrap();
    let world = world.after_a_kill();
    let segment = Path::new(STORE).join("log").join("00000000000000000001.seg");
    let last = world.read(&segment).iter().rposition(|byte| *byte != 0).unwrap();
    world.disk.corrupt(&segment, last as u64, 0xff).unwrap();
    let read_only = Db::open(STORE, world.options().read_only(true)).unwrap();
    assert_eq!(read_only.stats().opening.torn_bytes, 0, "nothing was cut");
    read_only.close().unwrap();
    let mut torn_bytes = 0;
    let seen = collect(|| {
        let db = world.open();
        torn_bytes = db.stats().opening.torn_bytes;
        assert_eq!(db.newest(), Glsn(torn.0 - 1));
        db.close().unwrap();
        assert_eq!(world.open().stats().opening.torn_bytes, 0, "it was cut once");
    });
    let cut = seen.all("torn tail cut", Level::INFO, &["glsn", "bytes", "offset", "why"]);
    assert_eq!((cut.len(), number(&cut[0], "glsn")), (1, torn.0));
    assert!(torn_bytes > 0 && number(&cut[0], "bytes") == torn_bytes, "{cut:?}, {torn_bytes}");
    assert!(number(&cut[0], "offset") + torn_bytes == last as u64 + 1, "{cut:?}, {last}");
}

#[test]
fn a_subscriber_sees_a_failed_sync_once() {
    let disk = LyingDisk::new(1);
    let world = World { disk: disk.clone(), ..World::new(1) };
    let seen = collect(|| {
        let db = world.open();
        let keyspace = db.keyspace("notes").unwrap();
        disk.fail_sync(1);
        for _ in 0..2 {
            assert!(db.put(&keyspace, "a", "one").is_err());
        }
    });
    let poisoned = seen.all("store poisoned", Level::ERROR, &["cause"]);
    assert_eq!(poisoned.len(), 1, "{poisoned:?}");
}

#[test]
fn a_subscriber_sees_why_a_warm_image_is_ignored() {
    let world = World::new(2);
    let (db, _) = settled_store(&world, Retention::Latest, 0..1000, |_| vec![1; 100]);
    world.pass_an_interval(&db);
    db.close().unwrap();
    for path in world.image() {
        world.disk.corrupt(&path, 20, 4).unwrap();
    }
    let seen = collect(|| drop(reopen(&world)));
    let ignored = seen.all("warm image ignored", Level::WARN, &["why"]);
    assert!(ignored[0]["why"].contains("warm"), "{ignored:?}");
}
