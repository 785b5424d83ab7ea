//! What members of a store take over from each other, and give back: the warm image, files that were removed, holds of files.

use plimsoll::{Db, Options, Retention};
use plimsoll_disk::vfs::Disk;

use crate::warm_world::{self, STORE, World, key};

const KEYS: u32 = 12_000;

fn shared(world: &World) -> Options {
    world.options().shared(true)
}

fn value(number: u32, round: u8) -> Vec<u8> {
    vec![number as u8 ^ round; 300]
}

/// Reads every sixth key twice.
fn read_hot(db: &Db, round: u8) {
    let space = db.keyspace("objects").unwrap();
    for number in (0..KEYS).filter(|number| key(*number)[0] < 40).flat_map(|number| [number, number]) {
        assert_eq!(db.get(&space, &key(number)).unwrap().unwrap(), &value(number, round)[..]);
    }
}

#[test]
fn the_warm_image_is_written_by_whoever_keeps() {
    let world = World::new(3);
    let one = Db::open(STORE, shared(&world)).unwrap();
    let space = one.create_keyspace("objects", Retention::Latest).unwrap();
    warm_world::put(&one, &space, 0..KEYS, |number| value(number, 0));
    one.compact().unwrap();
    world.work(&one);
    let two = Db::open(STORE, shared(&world)).unwrap();
    world.work(&two);
    read_hot(&two, 0);
    one.close().unwrap();
    let images = world.image();
    images.iter().for_each(|path| world.disk.remove(path).unwrap());
    assert!(!two.members().unwrap()[0].is_keeper);
    world.pass_an_interval(&two);
    assert!(two.members().unwrap()[0].is_keeper);
    assert!(two.stats().warm.segments_written > 0, "{:?}", two.stats().warm);
    // At its end, too.
    world.image().iter().for_each(|path| world.disk.remove(path).unwrap());
    read_hot(&two, 0);
    two.close().unwrap();
    let three = Db::open(STORE, shared(&world)).unwrap();
    world.work(&three);
    let before = three.stats();
    assert!(before.warm.rows_restored + before.warm.pages_restored > 50, "{:?}", before.warm);
    read_hot(&three, 0);
    let loads = three.stats().pool.loads - before.pool.loads;
    assert!(loads < 40, "{loads} pages were read");
}

#[test]
fn an_image_of_a_new_keeper_holds_no_row_that_its_memtable_knows_to_be_older() {
    let world = World::new(4);
    let one = Db::open(STORE, shared(&world)).unwrap();
    let space = one.create_keyspace("objects", Retention::Latest).unwrap();
    warm_world::put(&one, &space, 0..KEYS, |number| value(number, 0));
    one.compact().unwrap();
    world.work(&one);
    let two = Db::open(STORE, shared(&world)).unwrap();
    world.work(&two);
    read_hot(&two, 0);
    world.pass_an_interval(&two);
    // Newer versions are in its memtable, and in a run of the other one, who then leaves. Its rows are older than both.
    warm_world::put(&one, &space, 0..600, |number| value(number, 1));
    one.compact().unwrap();
    warm_world::put(&one, &space, 600..601, |number| value(number, 1));
    assert!(two.newest() == one.newest());
    one.close().unwrap();
    two.close().unwrap();
    let three = Db::open(STORE, shared(&world)).unwrap();
    let space = three.keyspace("objects").unwrap();
    world.work(&three);
    for number in 0..KEYS {
        let wanted = value(number, u8::from(number <= 600));
        assert_eq!(three.get(&space, &key(number)).unwrap().unwrap(), &wanted[..], "{number}");
    }
}
