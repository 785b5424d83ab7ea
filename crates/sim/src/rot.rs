//! A closed store whose bytes rot: chosen by seed, several times over, each time in a copy of its own.
//!
//! Bits change, sectors turn to zeros or to noise, a write goes to the wrong place (bytes of another file, or of another place of the same
//! one, stand where they do not belong), a file loses its end. Whatever it was, the store says so, or every answer is right (`flip`).

use std::path::Path;

use plimsoll_disk::random::Random;
use plimsoll_disk::vfs::{Caching, Disk, Open};

use crate::case::Case;
use crate::failure::{Failure, Outcome};
use crate::flip::{ClosedStore, Flips};
use crate::op::Op;
use crate::world::World;

/// How often a store is damaged.
const DAMAGES: u64 = 12;

/// What a disk writes at once.
const SECTOR_BYTES: u64 = 512;

/// Runs a workload, closes the store, and damages copies of it.
///
/// # Errors
/// A wrong answer, a lost commit, a panic: with what was damaged.
pub fn damage(case: &Case, ops: &[Op]) -> Outcome<Flips> {
    let store = ClosedStore::after(case.world(), ops)?;
    let mut random = Random::new(case.seed ^ 0x0726_f2ad);
    let mut flips = Flips::default();
    for number in 0..DAMAGES {
        let world = store.world();
        let told = damage_once(&world, &store, &mut random)
            .map_err(|error| Failure::new(format!("damage {number} cannot be done: {error}")))?;
        store
            .look(&world, &mut flips)
            .map_err(|failure| Failure::new(format!("damage {number} ({told}): {}", failure.message)))?;
    }
    Ok(flips)
}

fn damage_once(world: &World, store: &ClosedStore, random: &mut Random) -> std::io::Result<String> {
    let files: Vec<_> = store.contents().iter().filter(|(_, bytes)| !bytes.is_empty()).collect();
    let any = |random: &mut Random| files[random.below(files.len() as u64) as usize];
    let (path, bytes) = any(random);
    let len = bytes.len() as u64;
    let sector = random.below(len.div_ceil(SECTOR_BYTES)) * SECTOR_BYTES;
    let sector_len = SECTOR_BYTES.min(len - sector) as usize;
    match random.below(6) {
        0 | 1 => {
            let count = 1 + random.below(4);
            for _ in 0..count {
                world.disk.corrupt(path, random.below(len), 1 << random.below(8))?;
            }
            Ok(format!("{count} bits of {}", path.display()))
        }
        2 => overwrite(world, path, sector, &vec![0; sector_len], "zeros"),
        3 => {
            let noise: Vec<u8> = (0..sector_len).map(|_| random.below(256) as u8).collect();
            overwrite(world, path, sector, &noise, "noise")
        }
        4 => {
            let (from, other) = any(random);
            let start = random.below((other.len() as u64).div_ceil(SECTOR_BYTES)) * SECTOR_BYTES;
            let piece = &other[start as usize..(start as usize + sector_len).min(other.len())];
            overwrite(world, path, sector, piece, &format!("bytes of {} at {start}", from.display()))
        }
        _ => {
            let to = random.below(len);
            world.disk.open(path, Open::ReadWrite, Caching::Buffered)?.set_len(to)?;
            Ok(format!("{} cut from {len} to {to} bytes", path.display()))
        }
    }
}

fn overwrite(world: &World, path: &Path, at: u64, bytes: &[u8], what: &str) -> std::io::Result<String> {
    world.disk.open(path, Open::ReadWrite, Caching::Buffered)?.write_at(bytes, at)?;
    Ok(format!("{} at {at}: {what}", path.display()))
}
