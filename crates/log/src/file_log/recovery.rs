//! Opens a log: finds its segments, checks that they belong together, reads the last one, and
//! decides whether its end is clean, torn or corrupt.
//!
//! Invariant: recovery is idempotent, even if it is killed at any point. It overwrites cut bytes
//! with zeros before any other change, and a partly zeroed tail still counts as torn.

mod active;
mod assemble;
mod beside;
mod decide;
mod find;

use std::io;

use plimsoll_disk::random::entropy;
use plimsoll_memory::chunk::CHUNK_BYTES;

use crate::error::LogError;
use crate::file_log::env::lock_folder;
use crate::file_log::open_log::OpenLog;
use crate::file_log::open_report::OpenReport;
use crate::file_log::options::{FileLogOptions, Mode};
use crate::file_log::recovery::active::{enlarge_if_empty, read_active};
use crate::file_log::recovery::assemble::assemble;
use crate::file_log::recovery::beside::{open_beside, publish};
use crate::file_log::recovery::find::{
    LogFiles, check_tables, find_files, find_folder, find_named_files, no_log, sweep_unfinished,
};
use crate::file_log::segments::create::create_segment;
use crate::format::genesis_chain;
use crate::format::segment_header::SegmentHeader;
use crate::glsn::Glsn;

/// Retries of a read-only opening while another process writes.
const READ_ONLY_ROUNDS: usize = 8;

/// Opens a log.
pub(crate) fn open(options: FileLogOptions) -> Result<(OpenLog, OpenReport), LogError> {
    if options.mode == Mode::ReadOnly {
        return match options.shared.as_ref().filter(|shared| !shared.is_first) {
            Some(beside) => open_beside(&options, &beside.members),
            None => open_read_only(options),
        };
    }
    if let Some(beside) = options.shared.as_ref().filter(|shared| !shared.is_first) {
        return open_beside(&options, &beside.members);
    }
    let mut report = OpenReport::default();
    find_folder(&options)?;
    // The store's lock keeps members apart from other processes.
    let lock = if options.shared.is_some() { None } else { Some(lock_folder(&options)?) };
    // From here on, no other process changes the folder.
    let names = options.disk.names(&options.dir)?;
    sweep_unfinished(&options, &names)?;
    let mut found = find_named_files(&options, names)?;
    if found.headers.is_empty() {
        create_log(&options, &mut found, &mut report)?;
    }
    check_tables(&options, &found.headers)?;
    let active = read_active(&options, &found, true, &mut report)?;
    let active = enlarge_if_empty(&options, &mut found, active)?;
    let left_as_found = active.left_as_found;
    let log = assemble(options, found, active, lock, &mut report)?;
    check_known(&log)?;
    if let Some(members) = log.env.members() {
        publish(&log, members, left_as_found)?;
    }
    Ok((log, report))
}

/// Opens a log without changing anything. Another process may be writing. Damage that moves between
/// two rounds was a write in progress.
fn open_read_only(options: FileLogOptions) -> Result<(OpenLog, OpenReport), LogError> {
    let mut bad_before = None;
    let mut rounds = 0;
    loop {
        rounds += 1;
        match try_read_only(options.clone()) {
            Err(LogError::Corrupt { glsn, .. })
                if rounds < READ_ONLY_ROUNDS && bad_before != Some(glsn) =>
            {
                bad_before = Some(glsn);
            }
            Err(LogError::Io { kind: io::ErrorKind::NotFound, .. })
                if rounds < READ_ONLY_ROUNDS => {}
            opened => return opened,
        }
    }
}

fn try_read_only(options: FileLogOptions) -> Result<(OpenLog, OpenReport), LogError> {
    let mut report = OpenReport::default();
    find_folder(&options)?;
    let found = find_files(&options)?;
    if found.headers.is_empty() {
        return Err(no_log(&options.dir));
    }
    check_tables(&options, &found.headers)?;
    let active = read_active(&options, &found, false, &mut report)?;
    let log = assemble(options, found, active, None, &mut report)?;
    check_known(&log)?;
    Ok((log, report))
}

fn create_log(
    options: &FileLogOptions,
    found: &mut LogFiles,
    report: &mut OpenReport,
) -> Result<(), LogError> {
    if options.mode != Mode::Create {
        return Err(no_log(&options.dir));
    }
    if let Some(known) = options.known.filter(|known| known.glsn > Glsn::NONE) {
        return Err(LogError::Forked {
            glsn: known.glsn,
            what: "the log is missing, although it is known to have had this entry".to_owned(),
        });
    }
    let log_id = match options.id {
        Some(id) => id,
        None => entropy()?,
    };
    let header = SegmentHeader {
        log_id,
        epoch: 1,
        first: options.begin.0,
        previous_chain: genesis_chain(log_id),
        timestamp_floor: options.begin.1,
        last_blob_id: found.last_blob_id,
        segment_bytes: options.segment_size(),
        previous_end: 0,
    };
    create_segment(&*options.disk, &options.dir, &header, CHUNK_BYTES as u64)?;
    found.headers.push(header);
    report.created = true;
    Ok(())
}

/// Compares the log with the position that the caller knows.
fn check_known(log: &OpenLog) -> Result<(), LogError> {
    let Some(known) =
        log.env.options.known.filter(|known| known.glsn.next() >= log.segments.first())
    else {
        return Ok(());
    };
    if log.chain_after(known.glsn)? == Some(known.chain) {
        return Ok(());
    }
    Err(LogError::Forked {
        glsn: known.glsn,
        what: "the chain hash of the log differs from the recorded one".to_owned(),
    })
}
