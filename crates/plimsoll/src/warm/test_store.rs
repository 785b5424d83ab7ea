//! A small store for the tests of the image: without threads, on a disk in memory and with a
//! stopped clock.

use std::path::Path;
use std::sync::Arc;

use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::lying::LyingDisk;

use crate::engine::Engine;
use crate::types::keyspaces::Keyspace;
use crate::types::options::Options;
use crate::types::sizes::Sizes;

/// Opens or creates the store on a disk.
pub(super) fn open(disk: &LyingDisk) -> Arc<Engine> {
    let clock = Arc::new(ManualClock::new(1_780_000_000_000_000));
    let sizes = Sizes { restore_loads: 2, ..Sizes::USUAL };
    let options = Options::new().memory_bytes(32 << 20).background(false).sizes(sizes);
    crate::engine::open::open(Path::new("/store"), options.world(Arc::new(disk.clone()), clock))
        .unwrap()
}

/// The default keyspace.
pub(super) fn default(store: &Engine) -> Keyspace {
    store.reader.keyspaces.find("default").unwrap().0
}
