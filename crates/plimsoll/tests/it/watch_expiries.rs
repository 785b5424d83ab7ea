//! Watches that report expiries.

use std::time::{Duration, UNIX_EPOCH};

use plimsoll::{
    Change, Db, Durability, Error, Glsn, InvalidInput, Options, Retention, WatchEvent, WatchEvents,
};
use plimsoll_disk::clock::{Clock, ManualClock};
use plimsoll_disk::os::OsDisk;

use crate::expiry::{SECOND, START, World, options, options_on, world};

const LONG: Duration = Duration::from_secs(600);

fn watch(world: &World) -> WatchEvents {
    watch_prefix(&world.db, "")
}

fn watch_prefix(db: &Db, prefix: &str) -> WatchEvents {
    let space = db.keyspace("rows").unwrap();
    db.watch(&space, prefix, db.newest().next()).unwrap().with_expiries().unwrap()
}

fn key(change: &Change) -> String {
    String::from_utf8(change.key().to_vec()).unwrap()
}

/// An event as text: `+` and the keys of a commit (`-` if it deletes), or `!` and the key that
/// expired.
fn show(event: &WatchEvent) -> String {
    match event {
        WatchEvent::Commit(commit) => {
            let changes = commit.changes().unwrap().map(Result::unwrap);
            changes.map(|it| [if it.is_delete() { "-" } else { "+" }, &key(&it)].concat()).collect()
        }
        WatchEvent::Expiry(change) => {
            assert!(change.is_expiry() && change.is_delete());
            assert_eq!((change.value().unwrap(), change.value_len()), (None, None));
            assert!(change.value_reader().unwrap().is_none());
            assert_eq!(change.expires(), Some(change.time()));
            assert_eq!((change.keyspace(), change.branch()), (Some("rows"), None));
            format!("!{}", key(change))
        }
        other => panic!("{other:?}"),
    }
}

/// The events so far, as text.
fn seen(events: &mut WatchEvents) -> Vec<String> {
    events.map(|event| show(&event.unwrap())).collect()
}

#[test]
fn an_expiry_is_reported_once_when_its_time_has_come() {
    let world = world();
    world.put("before", "", 5);
    let mut events = watch(&world);
    let put = world.db.put_with_ttl(&world.space, "a", "1", SECOND * 10).unwrap();
    assert_eq!(seen(&mut events), ["+a"]);
    world.pass(4);
    assert!(events.next().is_none());
    world.pass(1);
    assert_eq!(seen(&mut events), ["!before"]);
    world.pass(5);
    let Some(WatchEvent::Expiry(change)) = events.next_timeout(Duration::ZERO).unwrap() else {
        panic!("it has expired");
    };
    assert_eq!((change.glsn(), key(&change)), (put, "a".to_owned()));
    let expires = change.expires().unwrap().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64;
    assert!((START + 10_000_000..START + 10_001_000).contains(&expires), "{expires}");
    assert!(events.next().is_none());
    world.pass(100);
    assert!(seen(&mut events).is_empty());
}

#[test]
fn a_waiting_feed_wakes_when_a_value_expires_in_an_idle_store() {
    let dir = tempfile::tempdir().unwrap();
    for shared in [false, true] {
        let options = Options::new().memory_bytes(16 << 20).shared(shared);
        let db = Db::open(dir.path().join("store"), options).unwrap();
        let rows = db.keyspace("rows").unwrap();
        let mut events = watch_prefix(&db, "");
        for ttl in [Duration::from_millis(300), Duration::from_millis(900)] {
            db.put_with_ttl(&rows, "a", "1", ttl).unwrap();
            assert_eq!(show(&events.next_timeout(LONG).unwrap().unwrap()), "+a");
            let event = events.next_timeout(LONG).unwrap().unwrap();
            assert_eq!(show(&event), "!a");
            assert!(db.get(&rows, "a").unwrap().is_none());
        }
        let handle = events.handle();
        handle.end_wait();
        assert!(events.next_timeout(LONG).unwrap().is_none());
        drop((events, handle));
        db.close().unwrap();
    }
}

#[test]
fn expiries_come_before_the_commits_with_a_later_time() {
    let world = world();
    world.put("c", "", 30);
    let mut events = watch(&world);
    world.put("a", "", 10);
    world.put("b", "", 20);
    world.pass(10);
    world.put("d", "", 1000);
    world.pass(10);
    world.put("b", "again", 1000);
    world.pass(10);
    world.put("e", "", 1000);
    // All of it is in the past when the feed reads it.
    assert_eq!(seen(&mut events), ["+a", "+b", "!a", "+d", "!b", "+b", "!c", "+e"]);
}

#[test]
fn a_change_before_the_expiry_cancels_it() {
    let world = world();
    let (db, space) = (&world.db, &world.space);
    for key in ["deleted", "later", "over", "persisted", "ranged", "stays"] {
        world.put(key, "1", 10);
    }
    let mut events = watch(&world);
    for drained in [true, false] {
        if drained {
            assert!(seen(&mut events).is_empty());
            db.delete(space, "deleted").unwrap();
            db.put(space, "over", "2").unwrap();
        }
        db.persist(space, "persisted").unwrap();
        db.expire_at(space, "later", world.time(1000)).unwrap();
        db.delete_range(space, "r".."s").unwrap();
    }
    world.pass(10);
    let got = seen(&mut events);
    let expired: Vec<_> = got.iter().filter(|event| event.starts_with('!')).collect();
    assert_eq!(expired, ["!stays"], "{got:?}");
    world.pass(1000);
    assert_eq!(seen(&mut events), ["!later"]);
}

#[test]
fn a_dropped_keyspace_reports_nothing() {
    let world = world();
    world.put("a", "1", 10);
    let mut events = watch(&world);
    assert!(seen(&mut events).is_empty());
    world.db.drop_keyspace(&world.space).unwrap();
    world.pass(20);
    assert!(seen(&mut events).iter().all(|event| !event.starts_with('!')));
}

#[test]
fn values_of_a_keyspace_with_a_time_to_live_are_reported() {
    let world = world();
    world.db.set_ttl(&world.space, Some(SECOND * 5)).unwrap();
    let mut events = watch_prefix(&world.db, "in/");
    world.db.put(&world.space, "in/a", "1").unwrap();
    world.db.put(&world.space, "out/a", "1").unwrap();
    world.pass(3);
    world.db.append(&world.space, "in/a", "2").unwrap();
    world.pass(2);
    assert_eq!(seen(&mut events), ["+in/a", "+in/a", "!in/a"]);
}

#[test]
fn more_values_than_the_window_holds_expire_in_order_each_once() {
    const KEYS: u64 = 3000;
    for (window_bytes, has_feed_first) in [(2000, true), (2000, false), (64 << 10, false)] {
        let world = world();
        world.db.set_retention(&world.space, Retention::Latest).unwrap();
        let mut events = has_feed_first.then(|| watch(&world));
        // Their order is not that of the keys.
        let at = |number: u64| 1 + number * 7919 % KEYS;
        let mut tx = world.db.begin();
        for number in 0..KEYS {
            let key = format!("{number:05}");
            let ttl = Duration::from_millis(10 * at(number));
            tx.put_with_ttl(&world.space, key, "v", ttl).unwrap();
        }
        tx.commit().unwrap();
        let mut events = events.take().unwrap_or_else(|| watch(&world));
        events.limit_window(window_bytes);
        world.db.flush().unwrap();
        let mut expired = Vec::new();
        for step in 0..40 {
            world.clock.advance(Duration::from_millis(1000));
            if step % 4 == 1 {
                world.db.put(&world.space, "other", "").unwrap();
            }
            if step % 8 < 4 {
                continue;
            }
            for event in &mut events {
                if let WatchEvent::Expiry(change) = event.unwrap() {
                    expired.push(key(&change).parse::<u64>().unwrap());
                }
            }
            world.db.compact().unwrap();
        }
        let mut wanted: Vec<u64> = (0..KEYS).collect();
        wanted.sort_by_key(|number| at(*number));
        assert_eq!(expired.len(), wanted.len());
        assert!(expired == wanted, "not in order");
    }
}

#[test]
fn values_put_by_another_process_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let clock = std::sync::Arc::new(ManualClock::new(START));
    let open = || {
        let options = options_on(std::sync::Arc::new(OsDisk::new()), &clock);
        let options = options.durability(Durability::Sync).shared(true);
        Db::open(dir.path().join("store"), options).unwrap()
    };
    let (one, two) = (open(), open());
    let rows = two.keyspace("rows").unwrap();
    let mut events = watch_prefix(&one, "");
    two.put_with_ttl(&rows, "a", "1", SECOND * 5).unwrap();
    two.put_with_ttl(&rows, "b", "1", SECOND * 5).unwrap();
    assert_eq!(seen(&mut events), ["+a", "+b"]);
    two.persist(&rows, "b").unwrap();
    clock.advance(SECOND * 6);
    // It drops what has expired.
    two.put(&rows, "c", "").unwrap();
    one.flush().unwrap();
    one.compact().unwrap();
    assert_eq!(seen(&mut events), ["+b", "!a", "+c"]);
    drop(events);
    one.close().unwrap();
    two.close().unwrap();
}

#[test]
fn a_watch_that_continues_at_a_position_reports_the_expiries_from_then_on() {
    let mut world = world();
    world.put("a", "", 10);
    world.put("b", "", 30);
    let mut events = watch(&world);
    world.put("c", "", 1000);
    assert_eq!(seen(&mut events), ["+c"]);
    let position = events.position();
    drop(events);
    world.put("d", "", 12);
    world.put("e", "", 40);
    world = world.reopen();
    world.pass(20);
    let watch = world.db.watch(&world.space, "", position).unwrap();
    let mut events = watch.with_expiries().unwrap();
    assert_eq!(events.position(), position);
    world.pass(10);
    assert_eq!(seen(&mut events), ["+d", "+e", "!b"]);
    // The position stays before a commit that was not returned yet.
    world.pass(10);
    let put = world.db.put(&world.space, "f", "").unwrap();
    let event = events.next_timeout(Duration::ZERO).unwrap().unwrap();
    assert_eq!((show(&event), events.position()), ("!e".to_owned(), put));
    assert_eq!((seen(&mut events), events.position()), (vec!["+f".to_owned()], put.next()));
}

#[test]
fn a_watch_from_a_commit_that_does_not_exist_yet_knows_the_values_before_it() {
    let world = world();
    let from = Glsn(world.db.newest().0 + 3);
    let mut events = world.db.watch(&world.space, "", from).unwrap().with_expiries().unwrap();
    for key in ["a", "b", "c"] {
        world.put(key, "", 5);
    }
    world.db.persist(&world.space, "b").unwrap();
    world.pass(5);
    assert_eq!(seen(&mut events), ["+c", "+b", "!a", "!c"]);
}

#[test]
fn a_clock_that_is_set_back_repeats_no_expiry_and_loses_none() {
    let world = world();
    let mut events = watch(&world);
    events.limit_window(500);
    for number in 0..10 {
        world.put(&format!("a{number}"), "", 100);
    }
    let start = world.clock.wall_micros();
    world.pass(150);
    assert_eq!(seen(&mut events).len(), 20);
    world.clock.set_wall_micros(start);
    for number in 0..10 {
        world.put(&format!("b{number}"), "", 20 + number);
    }
    assert!(seen(&mut events).iter().all(|event| event.starts_with("+b")), "they are not due");
    world.pass(50);
    let expired = seen(&mut events).into_iter().filter(|event| event.starts_with('!'));
    let wanted: Vec<_> = (0..10).map(|number| format!("!b{number}")).collect();
    assert_eq!(expired.collect::<Vec<_>>(), wanted);
    world.pass(500);
    assert!(seen(&mut events).is_empty());
}

#[test]
fn a_feed_retains_no_old_versions_once_it_is_polled() {
    let world = world();
    world.db.set_retention(&world.space, Retention::Latest).unwrap();
    let mut events = watch(&world);
    for _ in 0..3 {
        for number in 0..200 {
            world.put(&format!("{number:04}"), vec![7; 1000], 1000);
        }
        world.db.flush().unwrap();
    }
    assert_eq!(seen(&mut events).len(), 600);
    world.db.compact().unwrap();
    assert_eq!(world.db.history(&world.space, "0000").unwrap().count(), 1);
}

#[test]
fn a_feed_of_everything_or_of_a_branch_is_refused() {
    let world = world();
    let next = world.db.newest().next();
    let draft = world.db.create_branch("draft", &world.db.main()).unwrap();
    for feed in [world.db.log().commits(next), draft.watch(&world.space, "", next)] {
        match feed.unwrap().with_expiries() {
            Err(Error::InvalidInput(InvalidInput::ExpiriesNotWatched)) => {}
            other => panic!("{other:?}"),
        }
    }
    world.db.main().watch(&world.space, "", next).unwrap().with_expiries().unwrap();
}

#[test]
fn a_store_that_is_open_read_only_reports_the_expiries_of_what_it_sees() {
    let world = world();
    world.put("a", "", 10);
    world.db.close().unwrap();
    let db = Db::open("/store", options(&world.disk, &world.clock).read_only(true)).unwrap();
    let mut events = watch_prefix(&db, "");
    assert!(seen(&mut events).is_empty());
    world.clock.advance(SECOND * 11);
    assert_eq!(seen(&mut events), ["!a"]);
    drop(events);
    db.close().unwrap();
}

#[test]
fn a_full_budget_is_an_error_and_nothing_is_lost() {
    let world = world();
    world.put("a", "", 10);
    let mut events = watch(&world);
    world.put("b", "", 12);
    assert_eq!(seen(&mut events), ["+b"]);
    world.pass(20);
    world.db.put(&world.space, "c", "").unwrap();
    let (mut got, mut failures) = (Vec::new(), 0);
    for nth in 0..60 {
        world.db.refuse_after(nth, 1);
        match events.next_timeout(Duration::ZERO) {
            Ok(event) => got.extend(event.as_ref().map(show)),
            Err(Error::OutOfBudget { .. }) => failures += 1,
            Err(error) => panic!("{error:?}"),
        }
    }
    world.db.refuse_after(u64::MAX, 0);
    got.extend(seen(&mut events));
    assert!(failures > 0);
    assert_eq!(got, ["!a", "!b", "+c"]);
}

#[test]
fn a_merge_behind_a_commit_elsewhere_takes_no_expiry_from_a_slow_reader() {
    let world = world();
    let other = world.db.keyspace("other").unwrap();
    world.db.set_retention(&world.space, Retention::Latest).unwrap();
    world.put("a", "1", 10);
    world.put("b", "1", 11);
    let mut events = watch(&world);
    assert!(seen(&mut events).is_empty());
    world.pass(20);
    world.db.put(&other, "x", "").unwrap();
    assert_eq!(show(&events.next().unwrap().unwrap()), "!a");
    world.db.flush().unwrap();
    world.db.compact().unwrap();
    assert_eq!(seen(&mut events), ["!b"]);
}

#[test]
fn an_expiry_is_reported_beside_commits_in_progress_elsewhere() {
    let world = world();
    let other = world.db.keyspace("other").unwrap();
    world.put("a", "1", 10);
    let mut events = watch(&world);
    assert!(seen(&mut events).is_empty());
    world.pass(20);
    world.db.put(&other, "x", "").unwrap();
    // Not durable, so the feed cannot exclude that a commit with an earlier time follows.
    let mut tx = world.db.begin();
    tx.put(&other, "y", "").unwrap();
    let ticket = tx.commit_submit().unwrap();
    assert_eq!(seen(&mut events), ["!a"]);
    ticket.wait().unwrap();
    assert!(seen(&mut events).is_empty());
}

#[test]
fn a_commit_before_the_expiry_cancels_it_although_the_clock_was_set_back_between_two_polls() {
    let world = world();
    world.put("x", "", 5);
    let mut events = watch(&world);
    world.pass(10);
    assert_eq!(seen(&mut events), ["!x"]);
    world.clock.set_wall_micros(START + 1_000_000);
    world.put("k", "", 5);
    world.pass(1);
    world.db.persist(&world.space, "k").unwrap();
    world.clock.set_wall_micros(START + 20_000_000);
    assert_eq!(seen(&mut events), ["+k", "+k"]);
}

#[test]
fn an_expiry_that_had_passed_when_its_value_was_put_is_reported_once() {
    let world = world();
    let mut events = watch(&world);
    events.limit_window(1000);
    let mut early = world.db.begin();
    early.put_with_ttl(&world.space, "a", "", SECOND).unwrap();
    let mut many = world.db.begin();
    for number in 0..200 {
        many.put_with_ttl(&world.space, format!("m{number:03}"), "", SECOND / 2).unwrap();
    }
    world.put("x", "", 3);
    world.pass(5);
    assert_eq!(seen(&mut events), ["+x", "!x"]);
    early.commit().unwrap();
    assert_eq!(seen(&mut events), ["+a", "!a"]);
    many.commit().unwrap();
    let after = seen(&mut events);
    assert_eq!(after.len(), 201, "{after:?}");
    assert!(!after.contains(&"!a".to_owned()), "{after:?}");
}
