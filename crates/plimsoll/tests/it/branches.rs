//! Branches: what they see of each other, conflicts, and the model.

use std::time::Duration;

use plimsoll::*;

pub(crate) fn options() -> Options {
    Options::new().memory_bytes(16 << 20).background(false)
}

fn open() -> (Db, Keyspace) {
    let db = Db::in_memory(options()).unwrap();
    let notes = notes_of(&db, Retention::Latest);
    (db, notes)
}

/// A keyspace with this retention. No other one retains more, because the versions on branches are
/// retained as long as those of any keyspace.
pub(crate) fn notes_of(db: &Db, retention: Retention) -> Keyspace {
    db.set_retention(&db.keyspace("default").unwrap(), Retention::Latest).unwrap();
    db.create_keyspace("notes", retention).unwrap()
}

fn value(branch: &Branch, keyspace: &Keyspace, key: &str) -> Option<String> {
    let value = branch.get(keyspace, key).unwrap();
    value.map(|value| String::from_utf8(value.to_vec()).unwrap())
}

fn keys(range: Result<Range<'_>>) -> Vec<String> {
    let keys = range.unwrap().map(|row| String::from_utf8(row.unwrap().0).unwrap());
    keys.collect()
}

/// Flushes and merges everything, so that versions which nothing retains are dropped.
pub(crate) fn settle(db: &Db) {
    db.flush().unwrap();
    db.compact().unwrap();
}

#[test]
fn a_branch_sees_its_own_writes_and_its_parent_up_to_the_fork() {
    let (db, notes) = open();
    db.put(&notes, "a", "main").unwrap();
    db.put(&notes, "b", "main").unwrap();
    let draft = db.create_branch("draft", &db.main()).unwrap();
    db.put(&notes, "a", "later").unwrap();
    db.put(&notes, "c", "later").unwrap();
    draft.put(&notes, "b", "draft").unwrap();
    draft.put(&notes, "d", "draft").unwrap();
    for _ in 0..2 {
        assert_eq!(value(&draft, &notes, "a").as_deref(), Some("main"));
        assert_eq!(value(&draft, &notes, "b").as_deref(), Some("draft"));
        assert_eq!(value(&draft, &notes, "c"), None);
        assert_eq!(value(&draft, &notes, "d").as_deref(), Some("draft"));
        assert_eq!(keys(draft.iter(&notes)), ["a", "b", "d"]);
        assert_eq!(keys(draft.iter(&notes).map(Range::reverse)), ["d", "b", "a"]);
        assert_eq!(value(&db.main(), &notes, "b").as_deref(), Some("main"));
        assert_eq!(keys(db.snapshot().iter(&notes)), ["a", "b", "c"]);
        assert_eq!(
            (draft.len(&notes).unwrap(), draft.last(&notes).unwrap().unwrap().0),
            (3, b"d".to_vec())
        );
        settle(&db);
    }
}

#[test]
fn a_version_of_a_sibling_or_of_an_ancestor_after_the_fork_is_not_seen() {
    let (db, notes) = open();
    db.put(&notes, "k", "main").unwrap();
    let a = db.create_branch("a", &db.main()).unwrap();
    a.put(&notes, "k", "a at the fork").unwrap();
    let b = db.create_branch("b", &a).unwrap();
    let sibling = db.create_branch("sibling", &a).unwrap();
    let later = db.create_branch("later", &sibling).unwrap();
    a.put(&notes, "k", "a after the fork").unwrap();
    a.put(&notes, "new", "a after the fork").unwrap();
    for branch in [&sibling, &later] {
        branch.put(&notes, "k", "sibling").unwrap();
        branch.put(&notes, "new", "sibling").unwrap();
    }
    for _ in 0..2 {
        assert_eq!(value(&b, &notes, "k").as_deref(), Some("a at the fork"));
        assert_eq!(value(&b, &notes, "new"), None);
        for range in [b.iter(&notes), b.iter(&notes).map(Range::reverse)] {
            let rows: Vec<_> = range.unwrap().map(Result::unwrap).collect();
            assert_eq!(rows.len(), 1);
            assert_eq!((&rows[0].0[..], &rows[0].1[..]), (&b"k"[..], &b"a at the fork"[..]));
        }
        assert_eq!(value(&a, &notes, "k").as_deref(), Some("a after the fork"));
        assert_eq!(value(&later, &notes, "new").as_deref(), Some("sibling"));
        settle(&db);
    }
}

#[test]
fn a_deletion_and_an_expired_value_hide_the_ancestors_after_compaction() {
    let (db, notes) = open();
    for key in ["a", "b", "c"] {
        db.put(&notes, key, "main").unwrap();
    }
    let draft = db.create_branch("draft", &db.main()).unwrap();
    draft.delete(&notes, "a").unwrap();
    draft.put_with_ttl(&notes, "b", "draft", Duration::from_micros(1)).unwrap();
    draft.put(&notes, "c", "draft").unwrap();
    let child = db.create_branch("child", &draft).unwrap();
    child.delete(&notes, "c").unwrap();
    std::thread::sleep(Duration::from_millis(2));
    // Log time has passed the expiry.
    db.put(&notes, "z", "later").unwrap();
    for _ in 0..3 {
        assert_eq!(keys(draft.iter(&notes)), ["c"]);
        assert_eq!(keys(child.iter(&notes)), [""; 0]);
        assert_eq!(keys(child.iter(&notes).map(Range::reverse)), [""; 0]);
        for key in ["a", "b", "c"] {
            assert_eq!(value(&child, &notes, key), None);
            assert!(!child.contains_key(&notes, key).unwrap());
            assert_eq!(child.ttl(&notes, key).unwrap(), Ttl::Absent);
            assert!(child.snapshot().get_reader(&notes, key).unwrap().is_none());
        }
        // Around the others, so that the runs are merged.
        draft.delete(&notes, "0").unwrap();
        draft.delete(&notes, "y").unwrap();
        db.put(&notes, "z", "later").unwrap();
        settle(&db);
    }
}

#[test]
fn a_value_of_main_expires_on_a_branch() {
    let (db, notes) = open();
    db.put_with_ttl(&notes, "a", "main", Duration::from_millis(300)).unwrap();
    let draft = db.create_branch("draft", &db.main()).unwrap();
    let then = draft.snapshot();
    assert_eq!(keys(draft.iter(&notes)), ["a"]);
    assert!(matches!(draft.ttl(&notes, "a").unwrap(), Ttl::Expires { .. }));
    std::thread::sleep(Duration::from_millis(310));
    assert_eq!((value(&draft, &notes, "a"), keys(draft.iter(&notes))), (None, vec![]));
    assert_eq!(then.get(&notes, "a").unwrap().unwrap(), b"main");
}

#[test]
fn transactions_on_one_branch_conflict_and_on_different_branches_do_not() {
    let (db, notes) = open();
    db.put(&notes, "a", "0").unwrap();
    let one = db.create_branch("one", &db.main()).unwrap();
    let two = db.create_branch("two", &one).unwrap();
    type Reads = fn(&Transaction, &Keyspace);
    let reads: [Reads; 4] = [
        |tx, space| drop(tx.get(space, "a").unwrap()),
        |tx, space| _ = tx.len(space).unwrap(),
        |tx, space| _ = tx.iter(space).unwrap().reverse().count(),
        // More than the read set has room for.
        |tx, space| (0..40_000u32).for_each(|n| drop(tx.get(space, n.to_be_bytes()).unwrap())),
    ];
    for (number, read) in reads.into_iter().enumerate() {
        let key = if number < 3 { b"a".to_vec() } else { 7u32.to_be_bytes().to_vec() };
        for (reader, writer) in [(&one, &one), (&one, &two), (&two, &one), (&two, &two)] {
            let mut tx = reader.begin();
            read(&tx, &notes);
            writer.put(&notes, &key, "1").unwrap();
            db.put(&notes, &key, "2").unwrap();
            tx.put(&notes, "other", "").unwrap();
            let committed = tx.commit();
            let is_same = reader.name() == writer.name();
            match committed {
                Ok(_) => assert!(!is_same, "{number}"),
                Err(Error::Conflict { key: met, .. }) => assert!(is_same && met == key, "{number}"),
                Err(error) => panic!("{number}: {error}"),
            }
        }
        // Main and branches do not conflict either.
        let mut tx = db.begin();
        read(&tx, &notes);
        one.put(&notes, &key, "3").unwrap();
        tx.put(&notes, "other", "").unwrap();
        tx.commit().unwrap();
    }
}

#[test]
fn a_phantom_is_a_conflict_on_its_branch() {
    let (db, notes) = open();
    let one = db.create_branch("one", &db.main()).unwrap();
    let two = db.create_branch("two", &db.main()).unwrap();
    for (writer, is_conflict) in [(&one, true), (&two, false)] {
        let mut tx = one.begin();
        assert_eq!(tx.range(&notes, "b".."d").unwrap().count(), 0);
        tx.put(&notes, "x", "").unwrap();
        writer.put(&notes, "c", "").unwrap();
        assert_eq!(matches!(tx.commit(), Err(Error::Conflict { .. })), is_conflict);
        one.delete(&notes, "c").unwrap();
        let mut tx = one.begin();
        assert_eq!(tx.range(&notes, "b".."d").unwrap().count(), 0);
        tx.put(&notes, "x", "").unwrap();
        for key in ["a", "d"] {
            writer.put(&notes, key, "").unwrap();
        }
        tx.commit().unwrap();
        one.delete(&notes, "a").unwrap();
        one.delete(&notes, "d").unwrap();
    }
}

#[test]
fn a_deleted_branch_is_neither_read_nor_written() {
    let (db, notes) = open();
    let is_gone = |error: Error| match error {
        Error::InvalidInput(InvalidInput::NoBranch { name }) => name == "draft",
        _ => false,
    };
    for has_child in [false, true] {
        let draft = db.create_branch("draft", &db.main()).unwrap();
        draft.put(&notes, "a", "draft").unwrap();
        let child = has_child.then(|| db.create_branch("child", &draft).unwrap());
        let (before, mut blind, mut read) = (draft.snapshot(), draft.begin(), draft.begin());
        blind.put(&notes, "b", "").unwrap();
        read.put(&notes, "b", "").unwrap();
        assert_eq!(read.get(&notes, "a").unwrap().unwrap(), b"draft");
        db.delete_branch("draft").unwrap();
        assert!(is_gone(blind.commit().unwrap_err()));
        assert!(is_gone(read.commit().unwrap_err()));
        assert!(is_gone(draft.get(&notes, "a").unwrap_err()));
        assert!(is_gone(draft.iter(&notes).unwrap_err()));
        assert!(is_gone(draft.put(&notes, "a", "").unwrap_err()));
        assert!(is_gone(draft.begin().get(&notes, "a").unwrap_err()));
        assert!(is_gone(draft.add(&notes, "n", 1, Overflow::Checked).unwrap_err()));
        assert!(is_gone(draft.snapshot_at(Moment::Newest).unwrap_err()));
        settle(&db);
        assert_eq!(before.get(&notes, "a").unwrap().unwrap(), b"draft");
        if let Some(child) = child {
            assert_eq!(value(&child, &notes, "a").as_deref(), Some("draft"));
        }
        // Another branch may have the name.
        let other = db.create_branch("draft", &db.main()).unwrap();
        assert_eq!(value(&other, &notes, "a"), None);
        assert!(is_gone(draft.get(&notes, "a").unwrap_err()));
        db.delete_branch("draft").unwrap();
    }
}

#[test]
fn a_renamed_branch_is_used_by_its_old_handle() {
    let (db, notes) = open();
    let draft = db.create_branch("draft", &db.main()).unwrap();
    let mut tx = draft.begin();
    tx.put(&notes, "a", "1").unwrap();
    db.rename_branch("draft", "final").unwrap();
    tx.commit().unwrap();
    assert_eq!(value(&draft, &notes, "a").as_deref(), Some("1"));
    assert_eq!(value(&db.branch("final").unwrap(), &notes, "a").as_deref(), Some("1"));
}

#[test]
fn updates_on_a_branch_begin_with_what_it_sees() {
    let (db, notes) = open();
    db.add(&notes, "n", 5, Overflow::Checked).unwrap();
    let draft = db.create_branch("draft", &db.main()).unwrap();
    assert_eq!(draft.add(&notes, "n", 2, Overflow::Checked).unwrap(), 7);
    assert_eq!(draft.max(&notes, "n", 9).unwrap(), 9);
    assert_eq!(db.add(&notes, "n", 1, Overflow::Checked).unwrap(), 6);
    assert_eq!(draft.append(&notes, "text", "ab").unwrap(), 2);
    assert!(!draft.set_if_absent(&notes, "text", "x").unwrap());
    assert!(draft.compare_and_swap(&notes, "text", Some(b"ab"), None).unwrap());
    assert_eq!(value(&draft, &notes, "text"), None);
    assert!(!draft.set_bit(&notes, "bits", 3).unwrap());
    let mut tx = draft.begin();
    tx.add(&notes, "n", 1, Overflow::Checked).unwrap();
    tx.append(&notes, "text", "cd").unwrap();
    assert_eq!(tx.get(&notes, "text").unwrap().unwrap(), b"cd");
    tx.commit().unwrap();
    assert_eq!(draft.get(&notes, "n").unwrap().unwrap()[..], 10i64.to_le_bytes());
    assert_eq!(draft.insert(&notes, "text", "ef").unwrap().unwrap(), b"cd");
    assert_eq!(draft.take(&notes, "text").unwrap().unwrap(), b"ef");
    assert_eq!(draft.pop_first(&notes).unwrap().unwrap().0, b"bits");
    assert_eq!(draft.pop_last(&notes).unwrap().unwrap().0, b"n");
    assert!(draft.is_empty(&notes).unwrap() && db.main().len(&notes).unwrap() == 1);
}

#[test]
fn concurrent_additions_on_a_branch_all_count() {
    let (db, notes) = open();
    let draft = db.create_branch("draft", &db.main()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    draft.add(&notes, "n", 1, Overflow::Checked).unwrap();
                }
            });
        }
    });
    assert_eq!(draft.get(&notes, "n").unwrap().unwrap()[..], 200i64.to_le_bytes());
}

#[test]
fn large_values_of_all_kinds_are_read_on_a_branch() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    let notes = notes_of(&db, Retention::Latest);
    let sizes = [0, 1000, 2000, 100 << 10, 300 << 10, 2 << 20];
    let bytes = |size: usize, fill: u8| vec![fill; size];
    for (number, size) in sizes.into_iter().enumerate() {
        db.put(&notes, [number as u8], bytes(size, 1)).unwrap();
    }
    let draft = db.create_branch("draft", &db.main()).unwrap();
    for (number, size) in sizes.into_iter().enumerate().filter(|(number, _)| number % 2 == 0) {
        draft.put(&notes, [number as u8], bytes(size, 2)).unwrap();
        db.put(&notes, [number as u8], "later").unwrap();
    }
    let child = db.create_branch("child", &draft).unwrap();
    for _ in 0..2 {
        let mut rows = 0;
        let mut range = child.iter(&notes).unwrap();
        while let Some((key, value)) = range.advance().unwrap() {
            let number = usize::from(key[0]);
            let fill = if number % 2 == 0 { 2 } else { 1 };
            assert!(*value == bytes(sizes[number], fill), "{number}");
            rows += 1;
        }
        assert_eq!(rows, sizes.len());
        for (number, size) in sizes.into_iter().enumerate() {
            let mut reader = child.snapshot().get_reader(&notes, [number as u8]).unwrap().unwrap();
            let (mut read, fill) = (Vec::new(), if number % 2 == 0 { 2 } else { 1 });
            std::io::copy(&mut reader, &mut read).unwrap();
            assert!(read == bytes(size, fill));
        }
        settle(&db);
    }
}

#[test]
fn a_spilled_transaction_on_a_branch_reads_its_own_writes() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    let notes = notes_of(&db, Retention::Latest);
    db.transact(|tx| (0..1000u32).try_for_each(|n| tx.put(&notes, n.to_be_bytes(), "main")))
        .unwrap();
    let draft = db.create_branch("draft", &db.main()).unwrap();
    let mut tx = draft.begin();
    for n in (0..60_000u32).rev() {
        tx.put(&notes, n.to_be_bytes(), vec![n as u8; 200]).unwrap();
    }
    for n in (0..60_000u32).step_by(10) {
        tx.delete(&notes, n.to_be_bytes()).unwrap();
    }
    let check = |range: Range<'_>, is_reverse: bool| {
        let mut wanted: Vec<u32> = (0..60_000).filter(|n| n % 10 > 0).collect();
        if is_reverse {
            wanted.reverse();
        }
        let range = if is_reverse { range.reverse() } else { range };
        let mut rows = range.map(Result::unwrap);
        for n in wanted {
            let (key, value) = rows.next().unwrap();
            assert!(key == n.to_be_bytes() && value[..] == vec![n as u8; 200], "{n}");
        }
        assert!(rows.next().is_none());
    };
    check(tx.iter(&notes).unwrap(), false);
    check(tx.iter(&notes).unwrap(), true);
    assert!(!tx.contains_key(&notes, 10u32.to_be_bytes()).unwrap());
    tx.set_metadata(b"many").unwrap();
    let glsn = tx.commit().unwrap();
    assert_eq!(db.log().commit(glsn).unwrap().unwrap().metadata().unwrap(), b"many");
    check(draft.iter(&notes).unwrap(), false);
    settle(&db);
    check(draft.iter(&notes).unwrap(), true);
    assert_eq!(db.main().len(&notes).unwrap(), 1000);
}

#[test]
fn a_key_that_is_too_long_for_a_branch_is_read_and_not_written() {
    let (db, notes) = open();
    let keys = [vec![7; 4082], vec![7; 4083], vec![0; 2042], vec![7; MAX_KEY_BYTES]];
    keys.iter().for_each(|key| _ = db.put(&notes, key, "main").unwrap());
    let draft = db.create_branch("draft", &db.main()).unwrap();
    let mut found = Vec::new();
    for key in &keys {
        assert_eq!(draft.get(&notes, key).unwrap().unwrap(), b"main");
        for written in [draft.put(&notes, key, "draft"), draft.delete(&notes, key)] {
            match written {
                Ok(_) => {}
                Err(Error::InvalidInput(InvalidInput::KeyTooLongForBranch {
                    bytes,
                    limit_bytes,
                })) => {
                    assert!(bytes > limit_bytes && limit_bytes == 4082);
                    found.push(bytes);
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert_eq!(found, [4083, 4083, 4084, 4084, 4096, 4096]);
    assert_eq!(draft.len(&notes).unwrap(), 3);
    let mut tx = draft.begin();
    assert!(tx.delete_range(&notes, ..).is_err());
    tx.commit().unwrap_err();
    assert!(draft.get(&notes, vec![7; MAX_KEY_BYTES + 1]).is_err());
    assert_eq!(draft.range(&notes, vec![7; 5000]..).unwrap().count(), 0);
}

#[test]
fn a_hot_key_of_many_siblings_is_read_in_both_directions() {
    let (db, notes) = open();
    let trunk = db.create_branch("trunk", &db.main()).unwrap();
    trunk.put(&notes, "k", "trunk").unwrap();
    trunk.put(&notes, "l", "trunk").unwrap();
    let mut branches: Vec<Branch> = Vec::new();
    for n in 0..60 {
        let parent = if n % 3 == 0 { &trunk } else { branches.last().unwrap() };
        let branch = db.create_branch(&format!("b{n}"), parent).unwrap();
        if n % 2 == 0 {
            branch.put(&notes, "k", n.to_string()).unwrap();
        }
        branches.push(branch);
    }
    for _ in 0..2 {
        for (n, branch) in branches.iter().enumerate() {
            let line = (n - n % 3..=n).rev().find(|n| n % 2 == 0);
            let wanted = line.map_or("trunk".to_owned(), |n| n.to_string());
            assert_eq!(value(branch, &notes, "k"), Some(wanted.clone()), "{n}");
            for is_reverse in [false, true] {
                let range = branch.iter(&notes).unwrap();
                let range = if is_reverse { range.reverse() } else { range };
                let mut rows: Vec<_> = range.map(Result::unwrap).collect();
                rows.sort();
                let rows: Vec<_> = rows.iter().map(|(key, value)| (&key[..], &value[..])).collect();
                assert_eq!(rows, [(&b"k"[..], wanted.as_bytes()), (b"l", b"trunk")], "{n}");
            }
        }
        settle(&db);
    }
}

#[test]
fn a_branch_of_a_moment_before_its_parents_fork_is_what_main_was() {
    let (db, notes) = open();
    let first = db.put(&notes, "a", "1").unwrap();
    db.tag("first", Moment::Newest).unwrap();
    db.put(&notes, "a", "2").unwrap();
    let draft = db.create_branch("draft", &db.main()).unwrap();
    draft.put(&notes, "a", "3").unwrap();
    assert_eq!(draft.snapshot_at(first.into()).unwrap().get(&notes, "a").unwrap().unwrap(), b"1");
    let early = db.create_branch_at("early", &draft, first.into()).unwrap();
    db.delete_tag("first").unwrap();
    for _ in 0..2 {
        assert_eq!(value(&early, &notes, "a").as_deref(), Some("1"));
        settle(&db);
    }
}

#[test]
fn both_ends_of_a_range_on_a_branch_meet() {
    let (db, notes) = open();
    for n in 0..10u8 {
        db.put(&notes, [n], "main").unwrap();
    }
    let draft = db.create_branch("draft", &db.main()).unwrap();
    for n in 5..15u8 {
        draft.put(&notes, [n], "draft").unwrap();
    }
    let mut range = draft.iter(&notes).unwrap();
    let mut found = Vec::new();
    while let Some(front) = range.next() {
        found.push(front.unwrap().0[0]);
        if let Some(back) = range.next_back() {
            found.push(back.unwrap().0[0]);
        }
    }
    found.sort_unstable();
    assert_eq!(found, (0..15).collect::<Vec<u8>>());
    let mut visited = 0;
    let broke = draft.iter(&notes).unwrap().visit(|_, _| {
        visited += 1;
        std::ops::ControlFlow::<()>::Continue(())
    });
    assert_eq!((broke.unwrap(), visited), (None, 15));
}

#[test]
fn a_deep_lineage_beside_many_siblings_is_read() {
    let (db, notes) = open();
    db.put(&notes, "m", "main").unwrap();
    let mut line = vec![db.create_branch("b0", &db.main()).unwrap()];
    for n in 1..40 {
        let parent = line.last().unwrap();
        parent.put(&notes, format!("k{n}"), "before").unwrap();
        let child = db.create_branch(&format!("b{n}"), parent).unwrap();
        for key in ["hot", "k1"] {
            let sibling = db.create_branch(&format!("s{n}{key}"), parent).unwrap();
            sibling.put(&notes, key, "sibling").unwrap();
        }
        parent.put(&notes, format!("k{n}"), "after").unwrap();
        parent.put(&notes, "hot", "after").unwrap();
        line.push(child);
    }
    for _ in 0..2 {
        for (n, branch) in line.iter().enumerate() {
            // Its own writes are those for its child.
            let is_last = n + 1 == line.len();
            assert_eq!(value(branch, &notes, "hot").is_some(), !is_last);
            for key in 1..40 {
                let wanted = match key {
                    key if key <= n => Some("before"),
                    key if key == n + 1 => Some("after"),
                    _ => None,
                };
                assert_eq!(value(branch, &notes, &format!("k{key}")).as_deref(), wanted);
            }
            let forward = keys(branch.iter(&notes));
            let mut backward = keys(branch.iter(&notes).map(Range::reverse));
            backward.reverse();
            assert_eq!(forward, backward);
            assert_eq!(forward.len(), if is_last { n + 1 } else { n + 3 }, "{n}: {forward:?}");
        }
        settle(&db);
    }
}

#[test]
fn expiries_on_a_branch_are_those_of_the_calls_and_of_the_keyspace() {
    let (db, notes) = open();
    let long = Duration::from_secs(1000);
    db.put(&notes, "main", "").unwrap();
    db.put(&notes, "kept", vec![7; 3000]).unwrap();
    let draft = db.create_branch("draft", &db.main()).unwrap();
    let expires = |branch: &Branch, key: &str| match branch.ttl(&notes, key).unwrap() {
        Ttl::Absent => None,
        Ttl::Unlimited => Some(false),
        Ttl::Expires { .. } => Some(true),
    };
    draft.put_with_ttl(&notes, "a", "", long).unwrap();
    assert_eq!(expires(&draft, "a"), Some(true));
    assert!(draft.persist(&notes, "a").unwrap() && !draft.persist(&notes, "b").unwrap());
    assert_eq!(expires(&draft, "a"), Some(false));
    let later = std::time::SystemTime::now() + long;
    assert!(draft.expire_at(&notes, "kept", later).unwrap());
    assert_eq!(draft.get(&notes, "kept").unwrap().unwrap().len(), 3000);
    assert_eq!((expires(&draft, "kept"), expires(&db.main(), "kept")), (Some(true), Some(false)));
    db.set_ttl(&notes, Some(long)).unwrap();
    draft.put(&notes, "c", "").unwrap();
    draft.add(&notes, "n", 1, Overflow::Checked).unwrap();
    assert_eq!([expires(&draft, "c"), expires(&draft, "n")], [Some(true); 2]);
    assert_eq!(expires(&draft, "main"), Some(false));
    let mut tx = draft.begin();
    tx.put_with_ttl(&notes, "soon", "", Duration::from_millis(20)).unwrap();
    tx.commit().unwrap();
    let mut tx = draft.begin();
    assert!(tx.contains_key(&notes, "soon").unwrap());
    tx.put(&notes, "other", "").unwrap();
    std::thread::sleep(Duration::from_millis(30));
    assert!(matches!(tx.commit(), Err(Error::Conflict { key, .. }) if key == b"soon"));
}

#[test]
fn changes_on_a_branch_are_logged_with_its_name_and_not_watched() {
    let (db, notes) = open();
    db.put(&notes, "a", "main").unwrap();
    let draft = db.create_branch("draft", &db.main()).unwrap();
    let mut watch = db.watch(&notes, "", Glsn(1)).unwrap();
    let mut tx = draft.begin();
    tx.put(&notes, "a\0", "draft").unwrap();
    tx.delete(&notes, "b").unwrap();
    let glsn = tx.commit().unwrap();
    let changes: Vec<_> =
        db.log().commit(glsn).unwrap().unwrap().changes().unwrap().map(Result::unwrap).collect();
    let shown: Vec<_> = changes
        .iter()
        .map(|change| (change.branch(), change.keyspace(), change.key(), change.is_delete()))
        .collect();
    let (draft_name, space) = (Some("draft"), Some("notes"));
    assert_eq!(shown, [(draft_name, space, &b"a\0"[..], false), (draft_name, space, b"b", true)]);
    assert_eq!(changes[0].value().unwrap().unwrap(), b"draft");
    assert_eq!((changes[1].expires(), changes[1].value().unwrap()), (None, None));
    assert!(db.keyspaces().iter().all(|info| ["default", "notes"].contains(&&*info.name)));
    let watched: Vec<_> = std::iter::from_fn(|| {
        watch.next_timeout(Duration::ZERO).unwrap().map(|commit| commit.glsn())
    })
    .collect();
    assert_eq!(watched.len(), 1, "{watched:?}");
}

#[test]
fn copies_of_a_store_have_its_branches() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let db = Db::open(path("store"), options()).unwrap();
    let notes = notes_of(&db, Retention::Latest);
    db.put(&notes, "a", "main").unwrap();
    db.put(&notes, "b", "main").unwrap();
    let draft = db.create_branch("draft", &db.main()).unwrap();
    draft.put(&notes, "a", vec![7; 5000]).unwrap();
    draft.delete(&notes, "b").unwrap();
    db.put(&notes, "c", "later").unwrap();
    db.flush().unwrap();
    let refused = db.dump(DumpOptions::new(), std::io::sink());
    assert!(matches!(refused, Err(Error::InvalidInput(InvalidInput::DumpWithoutBranches))));
    let mut dump = Vec::new();
    db.dump(DumpOptions::new().history(true), &mut dump).unwrap();
    Db::restore(path("restored"), options(), &dump[..]).unwrap();
    db.backup(path("backup")).unwrap();
    drop(draft);
    db.close().unwrap();
    Db::recover(path("store"), path("recovered"), options(), &mut |_, _| {}).unwrap();
    for copy in ["restored", "backup", "recovered", "store"] {
        let db = Db::open(path(copy), options()).unwrap();
        let (notes, draft) = (db.keyspace("notes").unwrap(), db.branch("draft").unwrap());
        for _ in 0..2 {
            assert_eq!(keys(draft.iter(&notes)), ["a"], "{copy}");
            assert_eq!(draft.get(&notes, "a").unwrap().unwrap().len(), 5000);
            assert_eq!(keys(db.snapshot().iter(&notes)), ["a", "b", "c"]);
            settle(&db);
        }
        assert!(db.verify(&mut |_| {}).unwrap().problems.is_empty());
    }
}

#[test]
fn processes_that_share_a_store_see_each_others_writes_on_a_branch() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Db::open(dir.path().join("store"), options().shared(true)).unwrap();
    let (one, two) = (open(), open());
    let [of_one, of_two] = [&one, &two].map(|db| db.keyspace("notes").unwrap());
    one.put(&of_one, "a", "main").unwrap();
    let draft = one.create_branch("draft", &one.main()).unwrap();
    let theirs = two.branch("draft").unwrap();
    draft.put(&of_one, "a", "one").unwrap();
    assert_eq!(value(&theirs, &of_two, "a").as_deref(), Some("one"));
    let mut tx = theirs.begin();
    assert_eq!(tx.len(&of_two).unwrap(), 1);
    draft.put(&of_one, "b", "one").unwrap();
    tx.put(&of_two, "c", "two").unwrap();
    assert!(matches!(tx.commit(), Err(Error::Conflict { key, .. }) if key == b"b"));
    theirs.put(&of_two, "c", "two").unwrap();
    theirs.put(&of_two, "d", "two").unwrap();
    assert_eq!(keys(draft.iter(&of_one)), ["a", "b", "c", "d"]);
    let mut tx = theirs.begin();
    tx.put(&of_two, "e", "").unwrap();
    one.delete_branch("draft").unwrap();
    assert!(matches!(tx.commit(), Err(Error::InvalidInput(InvalidInput::NoBranch { .. }))));
    assert!(theirs.get(&of_two, "a").is_err());
}

#[test]
fn an_iterator_on_a_branch_charges_what_it_holds() {
    let (db, notes) = open();
    for n in 0..100u8 {
        db.put(&notes, vec![n; 900], vec![n; 2000]).unwrap();
    }
    let draft = db.create_branch("draft", &db.main()).unwrap();
    for n in (0..100u8).step_by(3) {
        draft.put(&notes, vec![n; 900], vec![n; 900]).unwrap();
    }
    for is_reverse in [false, true] {
        let range = draft.iter(&notes).unwrap();
        let mut range = if is_reverse { range.reverse() } else { range };
        let mut rows = 0;
        while range.advance().unwrap().is_some() {
            let (charged, held) = range.charges();
            assert!(charged >= held, "{charged} of {held}");
            rows += 1;
        }
        assert_eq!(rows, 100);
    }
}
