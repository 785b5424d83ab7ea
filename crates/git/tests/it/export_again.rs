//! Exports of commits made in the store, of clones, and into repositories with other commits.

use std::path::Path;

use plimsoll::{Db, Options};
use plimsoll_git::{Error, Export, Repository as Opened, WholeImport};

use crate::repository::{Change, Repository, Script, put};
use crate::round_trip::{all_of, export, import_all, open, round_trip};
use crate::run::Folder;

#[test]
fn own_commits_become_git_commits() {
    let folder = Folder::new();
    let repository = folder.repository("repository");
    let stream = {
        let mut script = Script::new(13);
        let changes = [
            put(b"a", b"1"),
            put(b"d/b", b"2"),
            Change::Put { mode: "100755", path: b"run".to_vec(), content: b"#!".to_vec() },
            Change::Submodule { path: b"module".to_vec() },
            put(b"gone/x", b"3"),
        ];
        script.commit("main", None, None, "first", &changes);
        script.into_stream()
    };
    repository.fast_import(&stream);
    let store = folder.at("store");
    import_all(repository.path(), &store).unwrap();
    let db = open(&store);
    let files = db.keyspace("default").unwrap();
    let topic = db.create_branch("topic", &db.main()).unwrap();
    topic.put(&files, "topic/x", "on topic").unwrap();
    let mut tx = db.begin();
    tx.put(&files, "run", "#!/bin/sh").unwrap();
    tx.put(&files, "new/deep/er", vec![7; 2 << 20]).unwrap();
    tx.delete(&files, "a").unwrap();
    tx.delete_prefix(&files, "gone/").unwrap();
    tx.set_metadata(br#"{"author": "Ada <x>", "email": "ada@x", "message": "own work"}"#).unwrap();
    tx.commit().unwrap();
    for bad in ["d/b/c", "x//y", "../up", ".git/config", ""] {
        db.put(&files, bad, "no path").unwrap();
    }
    db.merge(&topic).into(&db.main()).run().unwrap();
    drop(topic);
    db.close().unwrap();
    let (one, two) = (folder.at("one.git"), folder.at("two.git"));
    let counts = export(&store, &one);
    assert_eq!((counts.unfit.count, counts.branches.count), (5, 0), "{:?}", counts.unfit);
    export(&store, &two);
    let copy = Repository::at(&one);
    copy.git(&["fsck", "--full", "--strict"]);
    assert_eq!(all_of(&copy), all_of(&Repository::at(&two)));
    let list = copy.ask(&["ls-tree", "-r", "--format=%(objectmode) %(path)", "main"]);
    assert_eq!(
        list.lines().collect::<Vec<_>>(),
        ["100644 d/b", "160000 module", "100644 new/deep/er", "100755 run", "100644 topic/x"]
    );
    assert_eq!(copy.ask(&["rev-parse", "main^2"]), copy.ask(&["rev-parse", "topic"]));
    assert_eq!(
        copy.ask(&["rev-list", "--max-parents=0", "main"]),
        repository.ask(&["rev-parse", "main"])
    );
    let log = copy.ask(&["log", "--format=%an <%ae> %s", "main"]);
    assert!(log.contains("Ada  x <ada@x> own work"), "{log}");
    // The copy's history goes on, and comes back into the store.
    let work = Repository::at(&folder.at("work"));
    copy.git(&["clone", "--quiet", ".", work.path()]);
    work.commit("in git", &[("a", b"again")]);
    work.git(&["push", "--quiet", "origin", "main"]);
    assert_eq!(import_all(&one, &store).unwrap().transactions, 1);
    let db = open(&store);
    assert_eq!(db.get(&files_of(&db), "a").unwrap().unwrap(), b"again"[..]);
    db.close().unwrap();
    assert_eq!(export(&store, &one).commits, 0);
    export(&store, &two);
    assert_eq!(Repository::at(&two).ask(&["rev-parse", "main"]), copy.ask(&["rev-parse", "main"]));
}

pub(crate) fn files_of(db: &Db) -> plimsoll::Keyspace {
    db.keyspace("default").unwrap()
}

#[test]
fn clone_of_the_store_exports_the_same_commits() {
    let folder = Folder::new();
    let repository = folder.repository("repository");
    let mut script = Script::new(14);
    script.awkward_history(25);
    repository.fast_import(&script.into_stream());
    let (store, copy) = (folder.at("store"), folder.at("copy.git"));
    import_all(repository.path(), &store).unwrap();
    // A commit whose metadata is that of another one.
    let db = open(&store);
    let newest = db.main().tip().unwrap().unwrap();
    let newest = db.find_commit(&newest).unwrap().unwrap();
    let metadata = db.log().commit(newest).unwrap().unwrap().metadata().unwrap().to_vec();
    let mut tx = db.begin();
    tx.put(&files_of(&db), "added", "here").unwrap();
    tx.set_metadata(&metadata).unwrap();
    tx.commit().unwrap();
    db.close().unwrap();
    // The clone's log has later times. Those of Git commits are whole seconds.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let options = Options::new().memory_bytes(32 << 20);
    drop(Db::clone_store(&store, folder.at("clone"), options).unwrap());
    for store in [&store, &folder.at("clone")] {
        assert_eq!(export(store, &copy).unfit.count, 0);
        let copy = Repository::at(&copy);
        assert_eq!(copy.ask(&["rev-parse", "main~1"]), repository.ask(&["rev-parse", "main"]));
        assert_eq!(copy.ask(&["show", "main:added"]), "here");
    }
}

#[test]
fn import_refuses_incomplete_repositories_and_other_stores() {
    let folder = Folder::new();
    let repository = folder.repository("repository");
    for number in 0..3_u8 {
        repository.commit("c", &[("a", &[number])]);
    }
    let shallow = folder.at("shallow");
    let url = format!("file://{}", repository.path());
    repository.git(&["clone", "--quiet", "--depth=1", &url, &shallow]);
    let error = |path: &str, store: &str| {
        let opened = Opened::open(Path::new(path), "HEAD").unwrap();
        WholeImport::open(&open(store), &opened).unwrap_err()
    };
    let refused = error(&shallow, &folder.at("store"));
    assert!(matches!(refused, Error::Incomplete { .. }), "{refused}");
    crate::run::import(repository.path(), "HEAD", &folder.at("lines"));
    let refused = error(repository.path(), &folder.at("lines"));
    assert!(matches!(refused, Error::NotEmpty { .. }), "{refused}");
    import_all(repository.path(), &folder.at("store")).unwrap();
    let other = folder.repository("other");
    other.commit("other", &[("b", b"1")]);
    let refused = error(other.path(), &folder.at("store"));
    assert!(matches!(refused, Error::OtherRepository { .. }), "{refused}");
    let refused = crate::run::import_into(repository.path(), "HEAD", &folder.at("store"), "k");
    assert!(matches!(refused.unwrap_err(), Error::NotEmpty { .. }));
}

#[test]
fn export_refuses_to_replace_foreign_commits() {
    let folder = Folder::new();
    let repository = folder.repository("repository");
    repository.commit("one", &[("a", b"1")]);
    let (store, copy) = round_trip(&folder, &repository);
    let work = Repository::at(&folder.at("work"));
    repository.git(&["clone", "--quiet", &copy, work.path()]);
    work.commit("foreign", &[("a", b"2")]);
    work.git(&["push", "--quiet", "origin", "main"]);
    let db = open(&store);
    db.put(&files_of(&db), "a", "3").unwrap();
    for is_forced in [false, true] {
        let mut export = Export::open(&db, Path::new(&copy)).unwrap();
        while export.next_commit().unwrap() {}
        match (export.finish(is_forced), is_forced) {
            (Err(Error::Diverged { .. }), false) | (Ok(_), true) => {}
            (other, _) => panic!("{other:?}"),
        }
    }
    assert_eq!(Repository::at(&copy).ask(&["show", "main:a"]), "3");
    // A branch that is checked out, and folders that are no repositories.
    let to = |path: &str| {
        let mut export = Export::open(&db, Path::new(path))?;
        while export.next_commit()? {}
        export.finish(true)
    };
    for path in [work.path().to_owned(), folder.at("."), store.clone()] {
        let refused = to(&path).unwrap_err();
        assert!(
            matches!(refused, Error::Destination { .. } | Error::NotARepository { .. }),
            "{refused}"
        );
    }
}
