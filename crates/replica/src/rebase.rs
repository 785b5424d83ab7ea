//! Restores a member from the newest base: a new one, and one whose next batch was removed.
//!
//! ```text
//! MEMBER/base.new/    the restored base: its `log/` and `index/`
//! MEMBER/base.ready   an empty file: the base is complete, and replaces the files of the member
//! MEMBER/base.old/    the replaced `log/` and `index/`, if their history could not be compared
//! ```
//!
//! Each commit of a member was in the log of its cluster before it was applied; so its files may be
//! replaced, unless the bucket was set back. Therefore the history is compared with that of the
//! base, and if the base lacks that part of the log, the old files are kept. The member gets a new
//! number, because the names of its blob files begin again. A call that is killed before
//! `base.ready` is there begins again, and one that is killed later continues.

use std::cmp::Ordering;
use std::path::Path;

use plimsoll::{Db, FileScope, Glsn, LogPosition, Moment, Options, recorded_order_place};
use plimsoll_disk::os::OsDisk;
use plimsoll_disk::vfs::{Caching, Disk, LockError, Open};

use crate::bases::{self, Healed, Numbered, line_of};
use crate::blobs::PUT_BACK;
use crate::cluster::{BASE, Place};
use crate::error::{Error, Result};
use crate::membership::{CHECK, NEW_BASE, READY, REPLACED, remove_place};
use crate::opening::remove_folder;

/// A restored base.
pub(crate) struct Restored {
    pub(crate) glsn: Glsn,
    pub(crate) bytes: u64,
}

/// Restores the newest base at `dest`.
pub(crate) fn restore_base(place: &Place, dest: &Path, options: Options) -> Result<Restored> {
    let options = options.shared(false).read_only(false);
    loop {
        let newest = place.newest_base()?;
        place.check_no_fence(newest.as_ref())?;
        let archive = newest.as_ref().map_or(BASE, |it| &it.base.archive);
        let restored = place.archive(archive)?.restore(dest, options.clone(), Moment::Newest);
        let failed = match restored {
            Ok(restored) if !restored.is_whole => {
                Error::Archive(plimsoll_archive::Error::Damaged { damage: restored.damage })
            }
            Ok(restored) if !restored.problems.is_empty() => {
                let place = format!("{}: {archive}", place.url);
                Error::Damaged {
                    place,
                    what: format!("{}; {PUT_BACK}", restored.problems.join("; ")),
                }
            }
            Ok(restored) if newest.as_ref().is_some_and(|it| restored.glsn.0 < it.base.glsn) => {
                let what =
                    format!("it was set back: it ends with GLSN {}; {PUT_BACK}", restored.glsn);
                Error::Damaged { place: format!("{}: {archive}", place.url), what }
            }
            Ok(restored) => return Ok(Restored { glsn: restored.glsn, bytes: restored.bytes }),
            Err(error) => error.into(),
        };
        remove_folder(&OsDisk::new(), dest).map_err(Error::file(dest))?;
        // An older base is removed once there are two newer ones.
        if place.newest_base()? == newest {
            return Err(failed);
        }
    }
}

/// Whether the batch after the recorded place of a member is no part of the log any more.
pub(crate) fn is_behind(path: &Path, first: u64) -> Result<bool> {
    Ok(recorded_order_place(path)?.is_some_and(|at| at.position + 1 < first))
}

/// Continues a replacement of a member's files that was interrupted.
pub(crate) fn continue_rebase(path: &Path) -> Result<()> {
    let (disk, ready) = (OsDisk::new(), path.join(READY));
    match disk.entry(&ready).map_err(Error::file(&ready))? {
        Some(_) => {
            let _lock = locked(path)?;
            // Another process may have done it before it released the lock.
            match disk.entry(&ready).map_err(Error::file(&ready))? {
                Some(_) => replace_files(path),
                None => Ok(()),
            }
        }
        None => Ok(()),
    }
}

/// Replaces the files of a member by those of the newest base. No other process may have the member
/// open for writing.
pub(crate) fn rebase(path: &Path, place: &Place, options: Options) -> Result<()> {
    let (disk, draft) = (OsDisk::new(), path.join(NEW_BASE));
    let _lock = locked(path)?;
    let ready = path.join(READY);
    if disk.entry(&ready).map_err(Error::file(&ready))?.is_some() {
        // Another process was killed meanwhile, and the draft is complete.
        return replace_files(path);
    }
    remove_folder(&disk, &draft).map_err(Error::file(&draft))?;
    remove_folder(&disk, &path.join(CHECK)).map_err(Error::file(path.join(CHECK)))?;
    let at = recorded_order_place(path)?;
    let (own, is_sure) = match &at {
        Some(at) => match cross(path, place, at.position, &options)? {
            Crossing::Done => return Ok(()),
            Crossing::Same => (Some(LogPosition { glsn: at.glsn, chain: at.chain }), true),
            Crossing::From { end, is_sure } => (Some(end), is_sure),
        },
        None => (None, true),
    };
    restore_base(place, &draft, options.clone())?;
    let compared = match own {
        Some(own) => match check_history(&draft, own, options) {
            Ok(false) if !is_sure => {
                Err(Error::Incomparable { path: path.to_owned(), newest: own.glsn })
            }
            compared => compared,
        },
        None => Ok(false),
    };
    let is_known = compared.or_else(|error| {
        remove_folder(&disk, &draft).map_err(Error::file(&draft))?;
        Err(error)
    })?;
    let replaced = path.join(REPLACED);
    if !is_known && disk.entry(&replaced).map_err(Error::file(&replaced))?.is_none() {
        let made = disk.create_dir(&replaced).and_then(|()| disk.sync_dir(path));
        made.map_err(Error::file(&replaced))?;
    }
    let made = disk
        .open(&ready, Open::CreateNew, Caching::Buffered)
        .and_then(|file| file.sync())
        .and_then(|()| disk.sync_dir(path));
    made.map_err(Error::file(&ready))?;
    replace_files(path)
}

/// How the line of the log that a member knows continues.
enum Crossing {
    /// It is that of the newest base.
    Same,
    /// Another one began at the end of the member's history: the member goes on there.
    Done,
    /// Another one began later.
    From {
        /// The end of the member's history.
        end: LogPosition,
        /// Whether that can only be a part of the history of the new line.
        is_sure: bool,
    },
}

/// Passes a member to the newest line of the log. Its whole history counts, not only up to its
/// recorded place: everything after that was in the old line, too.
fn cross(path: &Path, place: &Place, position: u64, options: &Options) -> Result<Crossing> {
    let Some(newest) = place.newest_base()? else { return Ok(Crossing::Same) };
    let (own, mut line, mut next) = (line_of(position), line_of(newest.base.first), None);
    let mut is_sure = true;
    // Back through the heals from which the newest line comes, to that which left the own line, or
    // a line before it.
    for number in (1..=newest.number).rev() {
        let found = bases::read(&*place.bucket, number).map_err(|it| place.refused(it))?;
        let Some(Numbered { base, .. }) = found else {
            let object = format!("{}: {}", place.url, bases::name_of(number));
            let what = format!("it is missing; {PUT_BACK}");
            return Err(Error::Damaged { place: object, what });
        };
        if line <= own || line_of(base.first) <= own {
            break;
        }
        if let Some(healed) = base.healed.filter(|_| line_of(base.first) == line) {
            (next, line) = (Some((number, healed)), healed.line);
            is_sure &= healed.is_sure;
        }
    }
    let Some((number, healed)) = next else { return Ok(Crossing::Same) };
    let end = end_of(&open_to_read(path, options)?)?;
    match compare(end, healed) {
        History::Longer => Err(Error::Ahead {
            path: path.to_owned(),
            newest: end.glsn,
            position,
            healed: Glsn(healed.glsn),
        }),
        History::Other => {
            let glsn = Some(end.glsn);
            let message =
                format!("the cluster was healed with another history up to GLSN {}", end.glsn);
            Err(plimsoll::Error::Forked { glsn, message }.into())
        }
        // The first batch of the line continues this history.
        History::Equal if number == newest.number => {
            remove_place(path)?;
            Ok(Crossing::Done)
        }
        History::Equal | History::Shorter => Ok(Crossing::From { end, is_sure }),
    }
}

/// The history of a member, compared with that which a new line of the log continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum History {
    Equal,
    /// It may also be another one.
    Shorter,
    Longer,
    Other,
}

fn compare(end: LogPosition, healed: Healed) -> History {
    match end.glsn.0.cmp(&healed.glsn) {
        Ordering::Less => History::Shorter,
        Ordering::Greater => History::Longer,
        Ordering::Equal if end.chain == healed.chain => History::Equal,
        Ordering::Equal => History::Other,
    }
}

/// Opens a member without its bucket.
pub(crate) fn open_to_read(path: &Path, options: &Options) -> Result<Db> {
    let options = options.clone().create(false).shared(false).read_only(true).warm(false);
    Ok(Db::open(path, options)?)
}

/// The end of the log of a store.
pub(crate) fn end_of(db: &Db) -> Result<LogPosition> {
    Ok(db.files(FileScope::Whole, &mut |_| Ok(()))?)
}

/// Fails if the member has another history than the base. False if they cannot be compared.
fn check_history(draft: &Path, after: LogPosition, options: Options) -> Result<bool> {
    if after.chain == 0 {
        return Ok(false);
    }
    let db = open_to_read(draft, &options)?;
    let scope = FileScope::LogFrom { segment: Glsn(u64::MAX), after };
    match db.files(scope, &mut |_| Ok(())) {
        Ok(_) => Ok(true),
        // The base lacks that part of the log.
        Err(plimsoll::Error::Trimmed { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Once `base.ready` is there.
fn replace_files(path: &Path) -> Result<()> {
    let (disk, draft) = (OsDisk::new(), path.join(NEW_BASE));
    // The place is that of the old files, and the hot pages are theirs.
    remove_place(path)?;
    let replaced = path.join(REPLACED);
    let swapped = || {
        remove_folder(&disk, &path.join("warm"))?;
        for name in ["index", "log"] {
            let new = draft.join(name);
            if disk.entry(&new)?.is_some() {
                let (old, kept) = (path.join(name), replaced.join(name));
                let keeps = disk.entry(&replaced)?.is_some() && disk.entry(&kept)?.is_none();
                match keeps && disk.entry(&old)?.is_some() {
                    true => {
                        disk.rename(&old, &kept)?;
                        disk.sync_dir(&replaced)?;
                    }
                    false => remove_folder(&disk, &old)?,
                }
                disk.rename(&new, &path.join(name))?;
                disk.sync_dir(path)?;
            }
        }
        disk.sync_dir(path)?;
        remove_folder(&disk, &draft)?;
        disk.remove(&path.join(READY))?;
        disk.sync_dir(path)
    };
    swapped().map_err(Error::file(path))
}

/// Excludes other processes that open the member for writing.
pub(crate) fn locked(path: &Path) -> Result<impl Send + use<>> {
    OsDisk::new().lock(path).map_err(|error| match error {
        LockError::Held { pid, who } => {
            Error::Store(plimsoll::Error::Locked { path: path.to_owned(), pid, who })
        }
        LockError::Io(error) => Error::file(path)(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_commit_of_an_old_line_is_taken_for_one_of_the_new_line() {
        let healed = Healed { line: 0, glsn: 7, chain: 70, is_sure: true, accepts_loss: false };
        for (glsn, chain, found) in [
            (6, 70, History::Shorter),
            (7, 70, History::Equal),
            (7, 71, History::Other),
            (8, 70, History::Longer),
            (9, 80, History::Longer),
        ] {
            assert_eq!(compare(LogPosition { glsn: Glsn(glsn), chain }, healed), found, "{glsn}");
        }
    }
}
