//! An archive is read while an archiver goes on, which deletes objects.

use std::io::{self, Read};
use std::sync::{Arc, Mutex};

use plimsoll::{Db, Moment, Retention};
use plimsoll_archive::{Archive, Bucket, Folder, Object, Put};
use plimsoll_disk::os::OsDisk;

use crate::support::{World, options, rows_of};

/// An action that runs before the first segment is read.
type Event = Box<dyn FnOnce() + Send>;

struct Busy {
    folder: Folder,
    event: Mutex<Option<Event>>,
}

impl std::fmt::Debug for Busy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Busy")
    }
}

impl Bucket for Busy {
    fn put_new(&self, name: &str, bytes: &mut dyn Read) -> io::Result<Put> {
        self.folder.put_new(name, bytes)
    }

    fn get(&self, name: &str) -> io::Result<Option<Object>> {
        if name.starts_with("segments/") {
            let event = self.event.lock().unwrap().take();
            event.into_iter().for_each(|event| event());
        }
        self.folder.get(name)
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        self.folder.list(folder)
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        self.folder.delete(name)
    }
}

/// The archive of a world; many passes are made before it reads the first segment.
fn busy(world: &World) -> (Archive, Arc<Busy>) {
    let (db, keyspace, url) = (world.db().clone(), world.rows(), world.path("archive"));
    let event = move || {
        let mut archive = Archive::open(url.to_str().unwrap()).unwrap();
        for number in 0..40_u8 {
            db.put(&keyspace, "beside", [number]).unwrap();
            archive.push(&db).unwrap();
        }
    };
    let folder = Folder::new(Arc::new(OsDisk::new()), world.path("archive"));
    let bucket = Arc::new(Busy { folder, event: Mutex::new(Some(Box::new(event))) });
    (Archive::of(Arc::clone(&bucket) as _, "the archive"), bucket)
}

/// A world whose archive's only piece is replaced by each pass.
fn world() -> World {
    let mut world = World::new(50, Retention::Forever);
    // The segment is small, so each pass sends it again.
    world.write(3);
    world.archive().push(world.db()).unwrap();
    world
}

#[test]
fn a_restore_beside_an_archiver_goes_on_with_the_newer_archive() {
    let world = world();
    let (archive, bucket) = busy(&world);
    let dest = world.path("restored");
    let report = archive.restore(&dest, options(), Moment::Newest).unwrap();
    assert!(bucket.event.lock().unwrap().is_none());
    assert_eq!((report.is_whole, report.damage), (true, Vec::new()));
    let restored = Db::open(&dest, options()).unwrap();
    assert_eq!(restored.newest(), report.glsn);
    assert_eq!(report.glsn, world.db().newest());
    let rows = restored.keyspace("default").unwrap();
    assert!(rows_of(&restored, &rows) == rows_of(world.db(), &world.rows()));
}

#[test]
fn a_verification_beside_an_archiver_finds_no_damage() {
    let world = world();
    let (archive, bucket) = busy(&world);
    let report = archive.verify(&mut |_| {}).unwrap();
    assert!(bucket.event.lock().unwrap().is_none());
    assert_eq!((report.damage, report.notes), (Vec::new(), Vec::new()));
}

#[test]
fn an_object_that_the_newer_archive_needs_is_missed() {
    let mut world = World::new(51, Retention::Forever);
    // A segment that does not change again.
    world.write(300);
    world.archive().push(world.db()).unwrap();
    let first = crate::support::files(&world.path("archive"))
        .into_keys()
        .find(|name| name.starts_with("segments/"))
        .unwrap();
    std::fs::remove_file(world.path("archive").join(&first)).unwrap();
    let (archive, _) = busy(&world);
    let report = archive.verify(&mut |_| {}).unwrap();
    let damaged: Vec<_> = report.damage.iter().map(|damage| &damage.object).collect();
    assert_eq!(damaged, [&first]);
    let (archive, _) = busy(&world);
    match archive.restore(world.path("restored"), options(), Moment::Glsn(plimsoll::Glsn(5))) {
        Err(plimsoll_archive::Error::Damaged { damage }) => assert_eq!(damage[0].object, first),
        other => panic!("{other:?}"),
    }
}
