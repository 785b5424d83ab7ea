//! Selects blob files to vacate: a relocation moves their live values into a new file, because much
//! of their space belongs to no version any more.
//!
//! A file of moved values is removed once no version points to it; until then each overwritten
//! value leaves a hole. With overwrites in random order, a few live values would keep every file,
//! and the files would be several times as large as the live data.

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

/// Files are vacated together while they hold at most this part (a divisor) of all live blob bytes,
/// or this many bytes if that is more. The copies take space until the old files are removed.
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

/// The blob files that the next relocation vacates, if this and later calls together free at least
/// `worth_bytes`.
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
            if let Stored::InBlob { blob, len, .. } = version.stored.value() {
                *live.entry(blob).or_default() += len;
            }
            cursor.next()?;
        }
    }
    let is_table = |blob: BlobId| view.infos().any(|info| info.id == TableId::Blob(blob));
    let used =
        live.into_iter().filter(|(blob, _)| !is_table(*blob)).filter_map(|(blob, live_bytes)| {
            // Skip a file that cannot be opened; a read of it reports the error.
            let pages = log.open_blob(blob).ok()?.pages;
            Some(Used { blob, file_bytes: u64::from(pages) * PAGE_BYTES as u64, live_bytes })
        });
    Ok(used.collect())
}

/// The files with the largest dead part, up to the limit for one call. Pure.
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
    fn files_with_the_largest_dead_part_are_vacated_while_copies_are_small() {
        assert_eq!(chosen(&[(8, 8), (8, 7)], 1), [0; 0], "no file has a large enough dead part");
        assert_eq!(
            chosen(&[(8, 8), (8, 1), (8, 6), (8, 2)], 1),
            [2, 4],
            "the third would copy more than 4 MiB"
        );
        assert_eq!(chosen(&[(8, 1)], 8), [0; 0], "it frees less than `worth_bytes`");
        assert_eq!(chosen(&[(64, 40)], 1), [1], "a single file is vacated at any size");
        assert_eq!(chosen(&[(100, 90), (8, 6), (8, 4)], 1), [2, 3], "an eighth of the live bytes");
    }
}
