//! Finds the blob files that are to be vacated: much of what they hold belongs to no version any
//! more, so a relocation moves the rest into a new file.
//!
//! A file of moved values is removed once no version points to it, and each version that is
//! overwritten leaves a hole. Where values are overwritten in any order, the last ones of each file
//! would keep it, and files several times as large as what is live.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use plimsoll_log::blob::BlobId;
use plimsoll_log::file_log::FileLog;
use plimsoll_memory::page::PAGE_BYTES;
use plimsoll_memory::pool::Touch;

use crate::index::run::cursor::{Feed, RunCursor};
use crate::index::run::table::{Table, TableId};
use crate::index::sources::view::View;
use crate::types::error::Result;
use crate::types::version::Stored;

/// A file is vacated if this part of it (a divisor) or more is dead.
const DEAD_PART: u64 = 4;

/// Files are vacated together as long as they hold at most this part of all that is live in blob
/// files (a divisor), or these bytes if that is more: the copies take space until the old files are
/// removed.
const TOGETHER_PART: u64 = 8;
const TOGETHER_BYTES: u64 = 4 << 20;

/// A blob file that versions point to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Used {
    blob: BlobId,
    file_bytes: u64,
    live_bytes: u64,
}

impl Used {
    fn dead_bytes(&self) -> u64 {
        self.file_bytes.saturating_sub(self.live_bytes)
    }
}

/// The blob files that the next relocation is to vacate, if that frees `worth_bytes` or more in
/// this and later calls.
pub(super) fn choose(log: &FileLog, view: &View, worth_bytes: u64) -> Result<BTreeSet<BlobId>> {
    Ok(choose_of(used_blobs(log, view)?, worth_bytes))
}

/// The blob files that versions in the runs point to.
fn used_blobs(log: &FileLog, view: &View) -> Result<Vec<Used>> {
    let mut live: BTreeMap<BlobId, u64> = BTreeMap::new();
    for run in view.all_runs() {
        let with_blobs = run.tables().iter().filter(|table| !table.info.blobs.is_empty());
        let tables: Arc<[Table]> = with_blobs.cloned().collect();
        if tables.is_empty() {
            continue;
        }
        let mut cursor = RunCursor::new(tables, Feed::Pool(Touch::Scan));
        cursor.seek_first()?;
        while let Some(version) = cursor.current() {
            if let Stored::InBlob { blob, len, .. } = version.stored {
                *live.entry(blob).or_default() += len;
            }
            cursor.next()?;
        }
    }
    let is_table = |blob: BlobId| view.infos().any(|info| info.id == TableId::Blob(blob));
    let used =
        live.into_iter().filter(|(blob, _)| !is_table(*blob)).filter_map(|(blob, live_bytes)| {
            // One that cannot be opened is left as it is: who reads from it is told.
            let pages = log.open_blob(blob).ok()?.pages;
            Some(Used { blob, file_bytes: u64::from(pages) * PAGE_BYTES as u64, live_bytes })
        });
    Ok(used.collect())
}

/// The files with the largest dead part, as many as may be vacated together. Pure.
fn choose_of(mut used: Vec<Used>, worth_bytes: u64) -> BTreeSet<BlobId> {
    let live_bytes: u64 = used.iter().map(|file| file.live_bytes).sum();
    used.retain(|file| file.dead_bytes() * DEAD_PART >= file.file_bytes);
    if used.iter().map(Used::dead_bytes).sum::<u64>() < worth_bytes {
        return BTreeSet::new();
    }
    used.sort_by_key(|file| {
        u128::from(file.live_bytes) * 1_000_000 / u128::from(file.file_bytes.max(1))
    });
    let most_bytes = (live_bytes / TOGETHER_PART).max(TOGETHER_BYTES);
    let mut together_bytes = 0;
    let fits = |file: &&Used| {
        let is_first = together_bytes == 0;
        together_bytes += file.live_bytes;
        is_first || together_bytes <= most_bytes
    };
    used.iter().take_while(fits).map(|file| file.blob).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn chosen(files: &[(u64, u64)], worth_bytes: u64) -> Vec<u64> {
        let used = files.iter().zip(1..).map(|(&(file_bytes, live_bytes), id)| Used {
            blob: BlobId(id),
            file_bytes: file_bytes * MIB,
            live_bytes: live_bytes * MIB,
        });
        choose_of(used.collect(), worth_bytes * MIB).into_iter().map(|blob| blob.0).collect()
    }

    #[test]
    fn files_with_the_largest_dead_part_are_vacated_as_long_as_the_copies_are_few() {
        assert_eq!(chosen(&[(8, 8), (8, 7)], 1), [0; 0], "none has enough that is dead");
        assert_eq!(
            chosen(&[(8, 8), (8, 1), (8, 6), (8, 2)], 1),
            [2, 4],
            "the third would copy more than 4 MiB"
        );
        assert_eq!(chosen(&[(8, 1)], 8), [0; 0], "it frees less than is worth the work");
        assert_eq!(chosen(&[(64, 40)], 1), [1], "one file is vacated however large it is");
        assert_eq!(chosen(&[(100, 90), (8, 6), (8, 4)], 1), [2, 3], "an eighth of what is live");
    }
}
