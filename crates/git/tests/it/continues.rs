//! An import continues where the last one ended, and rejects a history that does not continue it.

use std::path::Path;

use plimsoll::{Db, Options};
use plimsoll_git::{Error, Import, Repository};

use crate::comparison::assert_equal;
use crate::repository::{Script, put};
use crate::run::{Folder, import, import_into};

#[test]
fn second_import_adds_only_new_commits() {
    let folder = Folder::new();
    let repository = folder.repository("repository");
    let mut script = Script::new(8);
    script.awkward_history(80);
    repository.fast_import(&script.into_stream());
    let (store, commits) = (folder.at("store"), repository.commits("main"));
    assert_eq!(import(repository.path(), &commits[29], &store).transactions, 30);
    assert_eq!(import(repository.path(), "main", &store).transactions, 50);
    assert!(import_into(repository.path(), "main", &store, "default").unwrap().is_none());
    assert_equal(&repository, "main", &store, "default", 50);
}

#[test]
fn merge_of_the_imported_tip_matches_git() {
    // The imported tip becomes the second parent of the next commit.
    let folder = Folder::new();
    let repository = folder.repository("repository");
    let mut script = Script::new(9);
    let root = script.commit("main", None, None, "root", &[put(b"a", b"1"), put(b"b", b"1")]);
    let left = script.commit("main", Some(root), None, "left", &[put(b"a", b"left")]);
    let right = script.commit("right", Some(root), None, "right", &[put(b"b", b"right")]);
    script.commit("right", Some(right), Some(left), "merge", &[put(b"a", b"left")]);
    repository.fast_import(&script.into_stream());
    let store = folder.at("store");
    import(repository.path(), "main", &store);
    import(repository.path(), "right", &store);
    assert_equal(&repository, "right", &store, "default", 50);
}

#[test]
fn two_repositories_import_into_two_keyspaces() {
    let folder = Folder::new();
    let store = folder.at("store");
    for (name, content) in [("one", &b"1"[..]), ("two", b"2")] {
        let repository = folder.repository(name);
        repository.commit("first", &[("a", content)]);
        import_into(repository.path(), "HEAD", &store, name).unwrap().unwrap();
        repository.commit("second", &[("b", content)]);
        import_into(repository.path(), "HEAD", &store, name).unwrap().unwrap();
        assert_equal(&repository, "main", &store, name, 2);
    }
    let two = folder.at("two");
    let refused = import_into(&two, "HEAD", &store, "one").unwrap_err();
    assert!(matches!(refused, Error::OtherRepository { .. }), "{refused}");
}

#[test]
fn a_rewritten_history_is_refused() {
    let folder = Folder::new();
    let repository = folder.repository("repository");
    let store = folder.at("store");
    repository.commit("one", &[("a", b"1")]);
    repository.commit("two", &[("a", b"2")]);
    import(repository.path(), "HEAD", &store);
    repository.git(&["commit", "--quiet", "--amend", "-m", "two, but better"]);
    let refused = import_into(repository.path(), "HEAD", &store, "default").unwrap_err();
    assert!(matches!(refused, Error::Rewritten { .. }), "{refused}");
}

#[test]
fn concurrent_import_stops_and_resumes() {
    let folder = Folder::new();
    let repository = folder.repository("repository");
    let mut script = Script::new(10);
    script.awkward_history(60);
    repository.fast_import(&script.into_stream());
    let (store, commits) = (folder.at("store"), repository.commits("main"));
    // The keyspace is empty in the first round; both imports continue in the second.
    for (branch, alone) in [(&commits[29][..], 10), ("main", 5)] {
        let opened = Repository::open(Path::new(repository.path()), branch).unwrap();
        let db = Db::open(&store, Options::new().memory_bytes(32 << 20)).unwrap();
        let [mut first, mut second] =
            [(); 2].map(|()| Import::open(&db, &opened, "default").unwrap().unwrap());
        for _ in 0..alone {
            assert!(first.next_commit().unwrap());
        }
        let refused = second.next_commit().unwrap_err();
        assert!(matches!(refused, Error::AnotherImport { .. }), "{refused}");
        assert_eq!(second.counts().transactions, 0);
        // The second import has not stopped the first, which may be stopped in turn.
        let mut third = Import::open(&db, &opened, "default").unwrap().unwrap();
        assert!(first.next_commit().unwrap());
        assert!(matches!(third.next_commit().unwrap_err(), Error::AnotherImport { .. }));
        let mut fourth = Import::open(&db, &opened, "default").unwrap().unwrap();
        while fourth.next_commit().unwrap() {}
        assert!(matches!(first.next_commit().unwrap_err(), Error::AnotherImport { .. }));
        drop((first, second, third, fourth));
        db.close().unwrap();
    }
    assert_equal(&repository, "main", &store, "default", 60);
}

#[test]
fn dropped_keyspace_is_imported_again() {
    let folder = Folder::new();
    let repository = folder.repository("repository");
    for number in 0..3_u8 {
        repository.commit("c", &[("a", &[number])]);
    }
    let store = folder.at("store");
    import_into(repository.path(), "HEAD", &store, "history").unwrap().unwrap();
    let db = Db::open(&store, Options::new().memory_bytes(32 << 20)).unwrap();
    db.drop_keyspace(&db.keyspace("history").unwrap()).unwrap();
    db.close().unwrap();
    let counts = import_into(repository.path(), "HEAD", &store, "history").unwrap();
    assert_eq!(counts.map(|counts| counts.transactions), Some(3));
    assert_equal(&repository, "main", &store, "history", 3);
    assert!(import_into(repository.path(), "HEAD", &store, "history").unwrap().is_none());
}
