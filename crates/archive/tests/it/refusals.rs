//! Places where a store must not be archived.

use plimsoll::{Db, Glsn, Moment, Retention};
use plimsoll_archive::{Archive, Error};

use crate::support::{World, files, options};

fn archived() -> World {
    let mut world = World::new(30, Retention::Forever);
    world.write(40);
    world.archive().push(world.db()).unwrap();
    world
}

#[test]
fn the_archive_of_another_store_is_refused() {
    let world = archived();
    let before = files(&world.path("archive"));
    let other = Db::open(world.path("other"), options()).unwrap();
    let refused = world.archive().push(&other);
    assert!(matches!(refused, Err(Error::OtherStore { .. })), "{refused:?}");
    assert!(before == files(&world.path("archive")));
}

#[test]
fn a_store_that_was_set_back_is_refused() {
    let mut world = archived();
    let back = world.path("back");
    world.archive().restore(&back, options(), Moment::Glsn(Glsn(30))).unwrap();
    let before = files(&world.path("archive"));
    world.db = Some(Db::open(&back, options()).unwrap());
    for base_bytes in [0, 1 << 40] {
        let refused = world.archive().base_every(base_bytes).push(world.db());
        assert!(matches!(refused, Err(Error::OtherHistory { .. })), "{refused:?}");
    }
    // The same after it has gone on differently.
    world.model.truncate(31);
    world.write(30);
    for base_bytes in [0, 1 << 40] {
        let refused = world.archive().base_every(base_bytes).push(world.db());
        assert!(matches!(refused, Err(Error::OtherHistory { .. })), "{refused:?}");
    }
    assert!(before == files(&world.path("archive")));
}

#[test]
fn a_second_archiver_is_refused() {
    let world = archived();
    let mut first = world.archive();
    first.push(world.db()).unwrap();
    let refused = world.archive().push(world.db());
    assert!(matches!(refused, Err(Error::OtherArchiver { .. })), "{refused:?}");
    drop(first);
    world.archive().push(world.db()).unwrap();
}

#[test]
fn places_that_are_no_archive_are_named() {
    let world = World::new(31, Retention::Forever);
    for refused in [Archive::open("ftp://bucket/a"), Archive::open("file://relative")] {
        assert!(matches!(refused, Err(Error::Url { .. })), "{refused:?}");
    }
    #[cfg(not(feature = "cloud"))]
    {
        let refused = Archive::open("s3://bucket/a").unwrap_err().to_string();
        assert!(refused.contains("build it with `--features cloud`"), "{refused}");
    }
    #[cfg(not(feature = "postgres"))]
    {
        let refused = Archive::open("postgres://ada:geheim@host/d/a").unwrap_err().to_string();
        assert!(refused.contains("build it with `--features postgres`"), "{refused}");
        assert!(!refused.contains("geheim"), "{refused}");
    }
    #[cfg(not(feature = "nats"))]
    {
        let refused = Archive::open("nats://ada:geheim@host/stream").unwrap_err().to_string();
        assert!(refused.contains("build it with `--features nats`"), "{refused}");
        assert!(!refused.contains("geheim"), "{refused}");
    }
    let nowhere = Archive::open(world.path("nowhere").to_str().unwrap()).unwrap();
    let refused = nowhere.restore(world.path("new"), options(), Moment::Newest);
    assert!(matches!(refused, Err(Error::NotAnArchive { .. })), "{refused:?}");
    let refused = nowhere.verify(&mut |_| {});
    assert!(matches!(refused, Err(Error::NotAnArchive { .. })), "{refused:?}");
    assert!(!world.path("nowhere").exists());
}

#[test]
fn a_folder_that_holds_something_else_is_refused() {
    let world = archived();
    Db::open(world.path("other"), options()).unwrap().close().unwrap();
    let mut archive = Archive::open(world.path("other").to_str().unwrap()).unwrap();
    let refused = archive.push(world.db());
    assert!(matches!(refused, Err(Error::NotEmpty { .. })), "{refused:?}");
    assert!(!world.path("other/tmp").exists());
}

#[test]
fn a_destination_in_use_is_refused() {
    let world = archived();
    let refused = world.archive().restore(world.path("store"), options(), Moment::Newest);
    assert!(matches!(refused, Err(Error::DestinationExists { .. })), "{refused:?}");
    std::fs::create_dir(world.path("empty")).unwrap();
    world.archive().restore(world.path("empty"), options(), Moment::Newest).unwrap();
}

#[test]
fn an_archive_in_its_store_or_around_it_is_refused() {
    let world = World::new(31, Retention::Forever);
    let store = world.path("store");
    let link = world.path("link");
    std::os::unix::fs::symlink(&store, &link).unwrap();
    let before = files(&store);
    for (place, inside) in [
        (store.clone(), true),
        (store.join("log"), true),
        (store.join("new/archive"), true),
        (link.join("archive"), true),
        (world.path("none/../store/archive"), true),
        (world.dir.path().to_owned(), false),
    ] {
        if place.to_str().unwrap().contains("none") {
            std::fs::create_dir(world.path("none")).unwrap();
        }
        let refused = Archive::open(place.to_str().unwrap()).unwrap().push(world.db());
        match refused {
            Err(Error::NotApart { is_inside, .. }) => assert_eq!(is_inside, inside, "{place:?}"),
            other => panic!("{place:?}: {other:?}"),
        }
    }
    assert!(before == files(&store));
    // A folder beside it, whose name begins alike.
    let mut beside = Archive::open(world.path("store-archive").to_str().unwrap()).unwrap();
    beside.push(world.db()).unwrap();
}
