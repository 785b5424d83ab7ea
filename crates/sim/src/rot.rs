//! Bit rot: damages the bytes of a store that was closed or killed. Each seed chooses several
//! damages, and applies each one to a separate copy.
//!
//! Kinds of damage: flipped bits; sectors or blocks of zeros or noise; misdirected writes (bytes of
//! another file or of another place); lost writes, which leave an older version of a block;
//! truncated files, at any byte or at a block boundary. In each case the store either reports the
//! damage, or every answer is right (`flip`).

use std::path::{Path, PathBuf};

use plimsoll_disk::random::Random;
use plimsoll_disk::vfs::{Caching, Disk, Open};

use crate::case::Case;
use crate::failure::{Failure, Outcome};
use crate::flip::{ClosedStore, Contents, End, FlipCounts, end_of_log};
use crate::op::Op;
use crate::world::World;

/// Number of damaged copies per store.
const DAMAGES: u64 = 16;

/// Number of copies of a killed store that are damaged before the last record of the log.
const PROVEN: u64 = 4;

/// Sector size of a disk.
const SECTOR_BYTES: u64 = 512;

/// Block size in which the store reads and checks.
const BLOCK_BYTES: u64 = 16 << 10;

/// The most consecutive blocks that are damaged.
const MOST_BLOCKS: u64 = 4;

/// Runs a workload, closes the store, and damages copies of it.
///
/// # Errors
/// A wrong answer, a lost commit, a panic: with the damage.
pub fn damage(case: &Case, ops: &[Op]) -> Outcome<FlipCounts> {
    // Alternate by seed, so that tests cover closed and killed stores.
    let end = if case.seed % 2 == 1 { End::Killed } else { End::Closed };
    let store = ClosedStore::after(case.world(), ops, end)?;
    let mut random = Random::new(case.seed ^ 0x0726_f2ad);
    let mut flips = FlipCounts::default();
    for number in 0..DAMAGES {
        let world = store.world();
        let twice = number % 5 == 4;
        let description = damage_some(&world, &store, twice, &mut random)
            .map_err(|error| Failure::new(format!("cannot apply damage {number}: {error}")))?;
        store
            .look(&world, &mut flips)
            .and_then(|()| match number % 4 {
                0 | 2 => store.look_after_work(&world),
                1 => store.look_after_a_kill(&world),
                _ => Ok(()),
            })
            .map_err(|failure| {
                Failure::new(format!("damage {number} ({description}): {}", failure.message))
            })?;
    }
    (0..PROVEN).try_for_each(|_| flip_proven(&store, &mut random, &mut flips))?;
    Ok(flips)
}

fn damage_some(
    world: &World,
    store: &ClosedStore,
    twice: bool,
    random: &mut Random,
) -> std::io::Result<String> {
    let once = damage_once(world, store, twice, random)?;
    // The first damage may have removed the target of the second.
    let again = if twice { damage_once(world, store, twice, random).ok() } else { None };
    Ok(again.into_iter().fold(once, |description, again| format!("{description}; {again}")))
}

fn damage_once(
    world: &World,
    store: &ClosedStore,
    twice: bool,
    random: &mut Random,
) -> std::io::Result<String> {
    let files: Vec<_> = store.contents().iter().filter(|(_, bytes)| !bytes.is_empty()).collect();
    let any = |random: &mut Random| files[random.below(files.len() as u64) as usize];
    let (path, bytes) = any(random);
    let len = bytes.len() as u64;
    let (at, piece_len) = piece(len, SECTOR_BYTES, 1, random);
    let (block, blocks_len) = piece(len, BLOCK_BYTES, 1 + random.below(MOST_BLOCKS), random);
    // Combine only kinds of damage that are detectable together. A lost manifest with an older log
    // is not.
    match random.below(if twice { 14 } else { 16 }) {
        0 => {
            let count = 1 + random.below(4);
            for _ in 0..count {
                world.disk.corrupt(path, random.below(len), 1 << random.below(8))?;
            }
            Ok(format!("{count} bits of {}", path.display()))
        }
        1 => flip_at_end_of_log(world, store, random),
        2 => overwrite(world, path, at, &vec![0; piece_len], "zeros"),
        3 => {
            let noise: Vec<u8> = (0..piece_len).map(|_| random.below(256) as u8).collect();
            overwrite(world, path, at, &noise, "noise")
        }
        4 => misplace(world, (path, at, piece_len), any(random), SECTOR_BYTES, random),
        5 => cut(world, path, len, random.below(len)),
        6 | 7 => overwrite(world, path, block, &vec![0; blocks_len], "whole blocks of zeros"),
        8 => misplace(world, (path, block, blocks_len), any(random), BLOCK_BYTES, random),
        9 => cut(world, path, len, random.below(len.div_ceil(BLOCK_BYTES)) * BLOCK_BYTES),
        10 | 11 => lose_writes(world, store, random),
        12 | 13 => lose_end_of_log(world, store, random),
        14 => lose_file(world, store, random),
        _ => older_file(world, store, random),
    }
}

/// A place in a file of `len` bytes, in units of `unit`, and the length of `count` of them there.
fn piece(len: u64, unit: u64, count: u64, random: &mut Random) -> (u64, usize) {
    let at = random.below(len.div_ceil(unit)) * unit;
    (at, (count * unit).min(len - at) as usize)
}

fn overwrite(
    world: &World,
    path: &Path,
    at: u64,
    bytes: &[u8],
    what: &str,
) -> std::io::Result<String> {
    world.disk.open(path, Open::ReadWrite, Caching::Buffered)?.write_at(bytes, at)?;
    Ok(format!("{} at {at}, {} bytes: {what}", path.display(), bytes.len()))
}

fn cut(world: &World, path: &Path, from: u64, to: u64) -> std::io::Result<String> {
    world.disk.open(path, Open::ReadWrite, Caching::Buffered)?.set_len(to)?;
    Ok(format!("{} cut from {from} to {to} bytes", path.display()))
}

/// Writes bytes to the wrong place.
fn misplace(
    world: &World,
    (path, at, len): (&Path, u64, usize),
    (from, other): &(PathBuf, Vec<u8>),
    unit: u64,
    random: &mut Random,
) -> std::io::Result<String> {
    let start = (random.below((other.len() as u64).div_ceil(unit)) * unit) as usize;
    let bytes = &other[start..(start + len).min(other.len())];
    overwrite(world, path, at, bytes, &format!("bytes of {} at {start}", from.display()))
}

/// Overwrites the end of the newest segment with zeros, from any sector on, including the record of
/// the clean close.
fn lose_end_of_log(
    world: &World,
    store: &ClosedStore,
    random: &mut Random,
) -> std::io::Result<String> {
    let Some((path, used)) = end_of_log(store.contents()) else {
        return Ok("nothing: there is no segment".to_owned());
    };
    // Mostly a short part.
    let reach = 1 << random.below(12);
    let lost = (1 + random.below(reach)).min(used);
    overwrite(world, &path, used - lost, &vec![0; lost as usize], "the end of the log lost")
}

/// Changes a bit near the end of the log: of the last records, or of that of the clean close.
fn flip_at_end_of_log(
    world: &World,
    store: &ClosedStore,
    random: &mut Random,
) -> std::io::Result<String> {
    let Some((path, used)) = end_of_log(store.contents()).filter(|(_, used)| *used > 0) else {
        return Ok("nothing: there is no segment".to_owned());
    };
    let reach = 1 << (4 + random.below(8));
    let at = used - 1 - random.below(used.min(reach));
    world.disk.corrupt(&path, at, 1 << random.below(8))?;
    Ok(format!("a bit of {} at {at}, of {used} bytes", path.display()))
}

/// Changes a bit of the last records that the newest one proves to be durable. Such a record is
/// never taken for a torn tail.
fn flip_proven(store: &ClosedStore, random: &mut Random, flips: &mut FlipCounts) -> Outcome {
    let Some(proven) = store.proven().filter(|proven| proven.end > 0) else { return Ok(()) };
    let world = store.world();
    let reach = 1 << (4 + random.below(8));
    let at = proven.end - 1 - random.below(proven.end.min(reach));
    let flipped = world.disk.corrupt(&proven.segment, at, 1 << random.below(8));
    flipped.map_err(|error| Failure::new(format!("cannot change the log: {error}")))?;
    store.look_from(proven.glsn, &world, flips).map_err(|failure| {
        failure.within(&format!("a bit at {at}, before the last record at {}", proven.end))
    })
}

/// Removes a file.
fn lose_file(world: &World, store: &ClosedStore, random: &mut Random) -> std::io::Result<String> {
    let files = store.contents();
    let (path, _) = &files[random.below(files.len() as u64) as usize];
    world.disk.remove(path)?;
    Ok(format!("{} lost", path.display()))
}

/// Reverts a whole file to an earlier state.
fn older_file(world: &World, store: &ClosedStore, random: &mut Random) -> std::io::Result<String> {
    let now =
        |path: &Path| store.contents().iter().find(|(of, _)| of == path).map(|(_, bytes)| bytes);
    let is_other = |(path, before): &&Contents| {
        now(path).is_some_and(|bytes| bytes != before) && is_written_in_place(path)
    };
    let older: Vec<_> = store.earlier().iter().filter(is_other).collect();
    if older.is_empty() {
        return Ok("nothing: no file has changed".to_owned());
    }
    let (path, before) = older[random.below(older.len() as u64) as usize];
    let file = world.disk.open(path, Open::ReadWrite, Caching::Buffered)?;
    file.set_len(before.len() as u64)?;
    file.write_at(before, 0)?;
    Ok(format!("{} reverted to an earlier state of {} bytes", path.display(), before.len()))
}

/// Reverts blocks of a file of the log or of the index's runs to an earlier state.
fn lose_writes(world: &World, store: &ClosedStore, random: &mut Random) -> std::io::Result<String> {
    let older = older_blocks(store);
    if older.is_empty() {
        return Ok("nothing: no block was ever written twice".to_owned());
    }
    let (path, before, at) = &older[random.below(older.len() as u64) as usize];
    let end = (at + (BLOCK_BYTES * (1 + random.below(MOST_BLOCKS))) as usize).min(before.len());
    overwrite(world, path, *at as u64, &before[*at..end], "reverted to an earlier state")
}

/// Blocks that changed over time: the file, its earlier bytes, and the offset of the block.
fn older_blocks(store: &ClosedStore) -> Vec<(&Path, &[u8], usize)> {
    let mut older = Vec::new();
    for (path, now) in store.contents().iter().filter(|(path, _)| is_written_in_place(path)) {
        let same_file = |contents: &&Contents| contents.0 == *path;
        for (_, before) in store.earlier().iter().filter(same_file) {
            let starts = (0..before.len().min(now.len())).step_by(BLOCK_BYTES as usize);
            let block = |bytes: &[u8], at: usize| {
                bytes[at..bytes.len().min(at + BLOCK_BYTES as usize)].to_vec()
            };
            older.extend(
                starts
                    .filter(|at| block(before, *at) != block(now, *at))
                    .map(|at| (path.as_path(), &before[..], at)),
            );
        }
    }
    older
}

/// Whether a file is written in place; other files are renamed into place when complete.
fn is_written_in_place(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ["seg", "blob", "run"].iter().any(|one| ending == *one))
}
