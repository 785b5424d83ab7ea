//! Flip test: changes each byte of a small, cleanly closed store, one at a time.
//!
//! For each byte, the store then either reports damage (at open, at a read, or by `verify`), or
//! every answer is right. It never gives a wrong answer, loses a commit silently, panics, or
//! allocates without bound (the caller enforces the last one by a limit on the process).

use std::cell::Cell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use plimsoll::{Db, Error};
use plimsoll_disk::clock::Clock;
use plimsoll_disk::random::Random;
use plimsoll_disk::vfs::{Caching, Disk, Open};

use crate::content::Content;
use crate::driver::{CheckOptions, Driver, compare, guarded, inspect};
use crate::failure::{Failure, Outcome, ensure, same};
use crate::model::{Entry, Model, Writes};
use crate::op::Op;
use crate::op::text::parse;
use crate::world::{Setting, World};

/// Counts of the outcomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlipCounts {
    /// Bytes changed.
    pub bytes: u64,
    /// The store did not open.
    pub refused: u64,
    /// The store opened, and an answer or `verify` reported damage.
    pub reported: u64,
    /// Every answer was right and `verify` found nothing, because the byte is unused.
    pub harmless: u64,
}

/// A small store: one segment of the log and one run.
pub const PLAIN: &str = "
keyspace s2 latest
begin t0
put t0 s0 =a 10#1
put t0 s0 =b 2000#2
put t0 s2 =a 30#3
commit t0 20#5
begin t0
put t0 s0 =c 12#6
delete t0 s0 =d
commit t0 0#0
append 1 100#8 30#9
flush
";

/// A store with every kind of file: sealed segments and their tables, blob files of new and of
/// relocated values, current runs and history runs; some values and a run are compressed.
pub const RICH: &str = "
keyspace s2 latest
begin t0
put t0 s0 =a 10#1
put t0 s0 =b 2000#2
put t0 s2 =a 30#3
put t0 s2 =b 1500#4
commit t0 20#5
begin t0
put t0 s0 =a 12#6
delete t0 s0 =b
put t0 s0 =c 9000#7
delete t0 s2 =a
commit t0 0#0
append 1 100#8 30#9
begin t0
put t0 s0 =d 9000#10
put t0 s2 =b 900#11
commit t0 0#0
begin t0
put t0 s0 =e 9000#12
commit t0 0#0
begin t0
put t0 s0 =f 9000#13
commit t0 0#0
begin t0
put t0 s0 =c 9000#16
commit t0 0#0
begin t0
put t0 s0 =g 9000#17
commit t0 0#0
flush
compact
trim 3
compress s2 lz4
compress s0 zstd:3
begin t0
put t0 s2 =i 150000#18
put t0 s2 =j 1500#20
put t0 s0 =k 70000#22
put t0 s0 =h 100#14
commit t0 0#0
flush
append 2 7#15
";

/// At least this many consecutive zeros are filler: after the end of the log, at the end of a page.
const FILLER_BYTES: usize = 64;

/// The bytes to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Only every n-th of the bytes selected below, which divides the work among several processes.
    pub every: u64,
    /// The first of these bytes.
    pub from: u64,
    /// Every n-th byte in filler, every byte elsewhere.
    pub filler_every: u64,
}

/// A file and its bytes.
pub(crate) type Contents = (PathBuf, Vec<u8>);

/// Number of times that files are copied while a workload runs.
const EARLIER: usize = 8;

/// How a store's life ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The store was closed.
    Closed,
    /// The process was killed, so the log after the last manifest may be torn.
    Killed,
}

/// A store whose life has ended, and its contents.
pub struct ClosedStore {
    world: World,
    model: Model,
    /// The GLSN up to which the disk records acknowledged commits; no damage may remove these
    /// silently.
    sure: u64,
    proven: Option<Proven>,
    files: Vec<Contents>,
    earlier: Vec<Contents>,
}

/// The part of a killed store's log that its last record proves to be durable.
pub(crate) struct Proven {
    /// The last proven GLSN.
    pub(crate) glsn: u64,
    /// The newest segment.
    pub(crate) segment: PathBuf,
    /// Where the last record begins in it.
    pub(crate) end: u64,
}

impl ClosedStore {
    /// Runs a workload and closes the store.
    ///
    /// # Errors
    /// The store differs from the model.
    pub fn new(workload: &str) -> Outcome<Self> {
        let ops = parse(workload).map_err(Failure::new)?;
        Self::after(World::new(1, Setting::SMALL), &ops, End::Closed)
    }

    /// Runs operations in a world and closes the store.
    ///
    /// # Errors
    /// The store differs from the model.
    pub fn after(world: World, ops: &[Op], end: End) -> Outcome<Self> {
        let (mut earlier, mut sure, mut proven) = (Vec::new(), 0, None);
        let driver = guarded(|| {
            let mut driver = Driver::open(world, CheckOptions::default())?;
            let pieces = ops.chunks(ops.len().div_ceil(EARLIER).max(1));
            let last = pieces.len().saturating_sub(1);
            for (number, some) in pieces.enumerate() {
                let noted = number == last && end == End::Killed;
                if noted {
                    sure = driver.note_all()?;
                }
                // This also removes the index's record of acknowledged commits.
                let some: Vec<Op> =
                    some.iter().filter(|op| !(noted && **op == Op::LoseIndex)).cloned().collect();
                driver.run(&some)?;
                earlier.extend(contents(driver.world())?);
            }
            match end {
                End::Closed => {
                    driver.finish()?;
                    sure = driver.model().newest();
                }
                End::Killed => proven = prove(&mut driver)?,
            }
            Ok(driver)
        })?;
        let world = driver.world().copy();
        let files = contents(&world)?;
        Ok(Self { world, model: driver.model().clone(), sure, proven, files, earlier })
    }

    /// A separate world with the store in it.
    pub(crate) fn world(&self) -> World {
        self.world.copy()
    }

    /// The part of the log that the last record proves to be durable; `None` if the store was
    /// closed.
    pub(crate) fn proven(&self) -> Option<&Proven> {
        self.proven.as_ref()
    }

    /// The files of the store, with their bytes.
    pub(crate) fn contents(&self) -> &[Contents] {
        &self.files
    }

    /// Earlier contents of files, copied while the store was running.
    pub(crate) fn earlier(&self) -> &[Contents] {
        &self.earlier
    }

    /// The files of the store, with their lengths.
    pub fn files(&self) -> impl Iterator<Item = (&Path, usize)> {
        self.files.iter().map(|(path, bytes)| (path.as_path(), bytes.len()))
    }

    /// Changes bytes, one at a time.
    ///
    /// # Errors
    /// A wrong answer, a lost commit, a panic: with the file, the offset and the mask.
    pub fn flip(&self, choice: Choice, random: &mut Random) -> Outcome<FlipCounts> {
        let mut flips = FlipCounts::default();
        let mut number = 0;
        for (file, bytes) in &self.files {
            for offset in chosen(bytes, choice.filler_every) {
                number += 1;
                if number % choice.every != choice.from {
                    continue;
                }
                let mask = 1 << random.below(8);
                self.flip_one(file, offset, mask, &mut flips).map_err(|failure| {
                    Failure::new(format!(
                        "{} with byte {offset} changed by {mask:#04x}: {failure}",
                        file.display()
                    ))
                })?;
            }
        }
        Ok(flips)
    }

    fn flip_one(&self, file: &Path, offset: u64, mask: u8, flips: &mut FlipCounts) -> Outcome {
        let world = self.world.copy();
        world
            .disk
            .corrupt(file, offset, mask)
            .map_err(|error| Failure::new(format!("cannot change the file: {error}")))?;
        flips.bytes += 1;
        self.look(&world, flips)
    }

    /// Checks that a damaged copy of the store reports damage or answers right.
    pub(crate) fn look(&self, world: &World, flips: &mut FlipCounts) -> Outcome {
        self.look_from(self.sure, world, flips)
    }

    /// As [`ClosedStore::look`], and no commit up to `sure` may be missing silently.
    pub(crate) fn look_from(&self, sure: u64, world: &World, flips: &mut FlipCounts) -> Outcome {
        let excused = Cell::new(0u64);
        let excuse = |error: &Error| {
            let damage = is_damage(error);
            excused.set(excused.get() + u64::from(damage));
            damage
        };
        match guarded(|| inspect(world, &self.model, sure, &excuse))? {
            Err(error) => {
                flips.refused += 1;
                ensure(is_damage(&error), || {
                    format!("the store fails to open with another error: {error} [{error:?}]")
                })
            }
            Ok(problems) if problems.is_empty() => {
                flips.harmless += 1;
                let silent = excused.get();
                ensure(silent == 0, || format!("{silent} answers failed, but verify finds nothing"))
            }
            Ok(_) => {
                flips.reported += 1;
                Ok(())
            }
        }
    }
}

impl ClosedStore {
    /// Checks again after a damaged copy was fully merged and its log trimmed, because copying must
    /// not make damaged data look sound.
    pub(crate) fn look_after_work(&self, world: &World) -> Outcome {
        guarded(|| {
            let Ok(db) = world.open() else { return Ok(()) };
            let newest = db.newest();
            for work in [Db::compact, |db: &Db| db.log().trim(db.newest()).map(|_| ()), Db::compact]
            {
                if let Err(error) = work(&db) {
                    ensure(is_damage(&error), || {
                        format!("work on a damaged store: {error} [{error:?}]")
                    })?;
                }
            }
            let mut model = self.model.clone();
            model.cut_behind(newest.0);
            model.raise_floors(&BTreeSet::new(), newest.0, world.clock.wall_micros());
            model.trimmed(db.log().bounds().first.0);
            compare(&db, &model, &is_damage)
        })
        .map_err(|failure| Failure {
            message: format!("after a compaction: {}", failure.message),
            ..failure
        })
    }
}

impl ClosedStore {
    /// Checks that a commit to a damaged copy survives a kill, or that damage is reported.
    pub(crate) fn look_after_a_kill(&self, world: &World) -> Outcome {
        guarded(|| {
            let Ok(db) = world.open() else { return Ok(()) };
            let mut model = self.model.clone();
            let newest = db.newest();
            model.cut_behind(newest.0);
            let (key, value) = (b"after the damage".to_vec(), Content { bytes: 700, seed: 77 });
            let committed =
                db.keyspace("default").and_then(|keyspace| db.put(&keyspace, &key, value.make()));
            let committed = committed.and_then(|glsn| db.sync().map(|_| glsn));
            match committed {
                Ok(glsn) => {
                    let writes = Writes::from([((0, key), Some(value))]);
                    let (metadata, read_at) = (Content::default(), newest.0);
                    let wanted = model.submit(vec![Entry::Commit { writes, metadata, read_at }]);
                    same("GLSN of a commit to a damaged store", &glsn.0, &wanted)?;
                }
                Err(error) => ensure(is_damage(&error), || {
                    format!("a commit to a damaged store: {error} [{error:?}]")
                })?,
            }
            let mut after = world.copy();
            world.disk.cut_power();
            drop(db);
            after.setting = world.setting;
            let db = match after.open() {
                Ok(db) => db,
                Err(error) => {
                    return ensure(is_damage(&error), || {
                        format!("the store does not open: {error} [{error:?}]")
                    });
                }
            };
            ensure(db.newest().0 == model.newest(), || {
                format!(
                    "the newest moment is {} after a kill, but was {} before",
                    db.newest(),
                    model.newest()
                )
            })?;
            model.raise_floors(&BTreeSet::new(), model.newest(), after.clock.wall_micros());
            model.trimmed(db.log().bounds().first.0);
            compare(&db, &model, &is_damage)
        })
        .map_err(|failure| Failure {
            message: format!("after a kill: {}", failure.message),
            ..failure
        })
    }
}

/// Makes everything durable, and appends a record that says so.
fn prove(driver: &mut Driver) -> Outcome<Option<Proven>> {
    let glsn = driver.sync_all()?;
    let end = end_of_log(&contents(driver.world())?);
    driver.run(&parse("begin t0\nput t0 s0 =proof 9#1\ncommit t0 0#0").map_err(Failure::new)?)?;
    driver.sync_all()?;
    let Some((segment, end)) = end else { return Ok(None) };
    let newest = end_of_log(&contents(driver.world())?).map(|(newest, _)| newest);
    // The record may begin a new segment.
    Ok((newest.as_ref() == Some(&segment)).then_some(Proven { glsn, segment, end }))
}

/// The newest segment of the log, and the bytes of it that are used.
pub(crate) fn end_of_log(files: &[Contents]) -> Option<(PathBuf, u64)> {
    let is_segment = |path: &Path| path.extension().is_some_and(|ending| ending == "seg");
    let (path, bytes) = files.iter().rfind(|(path, _)| is_segment(path))?;
    let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
    Some((path.clone(), used as u64))
}

/// Every file of the store in a world.
fn contents(world: &World) -> Outcome<Vec<Contents>> {
    let read = |(path, len): (PathBuf, u64)| {
        let mut bytes = vec![0; len as usize];
        world.disk.open(&path, Open::Read, Caching::Buffered)?.read_exact_at(&mut bytes, 0)?;
        Ok((path, bytes))
    };
    let files =
        world.files(&world.store_path()).and_then(|files| files.into_iter().map(read).collect());
    files.map_err(|error: std::io::Error| Failure::new(format!("reading the store: {error}")))
}

/// Whether an error reports damage.
fn is_damage(error: &Error) -> bool {
    matches!(
        error,
        Error::Corrupt { .. }
            | Error::Format { .. }
            | Error::Forked { .. }
            | Error::NotAStore { .. }
    )
}

/// Offsets of the bytes to change: in filler only some.
fn chosen(bytes: &[u8], filler_every: u64) -> Vec<u64> {
    let mut zeros_before = 0;
    let mut zeros = vec![0; bytes.len()];
    for (at, byte) in bytes.iter().enumerate() {
        zeros_before = if *byte == 0 { zeros_before + 1 } else { 0 };
        zeros[at] = zeros_before;
    }
    let mut stretch = 0;
    let mut chosen = Vec::new();
    for (at, byte) in bytes.iter().enumerate().rev() {
        stretch = if *byte == 0 { zeros[at].max(stretch) } else { 0 };
        if stretch < FILLER_BYTES || (at as u64).is_multiple_of(filler_every) {
            chosen.push(at as u64);
        }
    }
    chosen.reverse();
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_some_filler_bytes_are_chosen() {
        let mut bytes = vec![0; 300];
        bytes[10] = 1;
        bytes[100] = 1;
        assert_eq!(chosen(&bytes, 1).len(), 300);
        let some = chosen(&bytes, 50);
        assert!((0..=10).all(|at| some.contains(&at)));
        assert!(
            some.contains(&100)
                && some.contains(&50)
                && some.contains(&250)
                && !some.contains(&251)
                && !some.contains(&60)
        );
    }

    #[test]
    fn rich_store_has_every_kind_of_file() {
        let store = ClosedStore::new(RICH).unwrap_or_else(|failure| panic!("{failure}"));
        let names: Vec<String> =
            store.files().map(|(path, _)| path.display().to_string()).collect();
        for part in [".run", "MANIFEST.", ".seg", ".idx", ".blob"] {
            assert!(names.iter().any(|name| name.contains(part)), "{part} is missing in {names:?}");
        }
    }
}
