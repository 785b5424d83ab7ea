//! Opens a log: finds its segments, checks that they belong together, reads the last one, and decides what stands at its end.
//!
//! The decision, for a bad record at GLSN g, where D is the highest GLSN that anybody knows to be durable (the caller, any good record
//! before or behind, a mark):
//! - g > D: a torn tail. It was never acknowledged: cut at the record's start, zeros behind it, and the epoch rises.
//! - g ≤ D: corruption. Reported, never cut.
//!
//! Law: recovery may be killed anywhere and run again: zeros are written over what was cut before anything else happens, and a tail
//! that is partly zero is still torn.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use plimsoll_disk::random::entropy;
use plimsoll_disk::vfs::{Caching, DirLock, File, LockError, Open};
use plimsoll_memory::budget::{Budget, Kind};
use plimsoll_memory::chunk::CHUNK_BYTES;
use plimsoll_memory::page::{PAGE_BYTES, check_page, page_payload};

use crate::error::LogError;
use crate::file_log::append::{Order, entries_max};
use crate::file_log::blobs::registry::Sides;
use crate::file_log::durability::flusher::Signal;
use crate::file_log::durability::group_commit::Syncer;
use crate::file_log::durability::writer::Writer;
use crate::file_log::files::names::{FileName, UNFINISHED};
use crate::file_log::files::open_files::OpenFiles;
use crate::file_log::files::rewrite::{open_own, read_as_replay, read_twice};
use crate::file_log::open_log::{Core, Segments, Writing, describe};
use crate::file_log::options::{Cut, FileLogOptions, Mode, OpenReport};
use crate::file_log::segments::entry_offsets::Numbers;
use crate::file_log::segments::named_blobs::NamedSides;
use crate::file_log::segments::segment::{NotCreated, create_segment, has_no_room, write_zeros};
use crate::file_log::segments::table_writer::SortScratch;
use crate::file_log::segments::walk::{NoVisitor, Outcome, Visitor, replay};
use crate::file_log::tail::buffer::Buffer;
use crate::file_log::tail::{End, Tail, TailLock};
use crate::format::block::check_block;
use crate::format::layout::block_of;
use crate::format::offset_table::{NamedSide, TableHeader};
use crate::format::record::RecordHeader;
use crate::format::segment_header::{HeaderError, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::format::{BLOCK_BYTES, genesis_chain, segment_seed, table_seed};
use crate::glsn::{Glsn, Position, StreamId};
use crate::side::SideRef;

/// A timestamp further ahead of the clock is told.
const DAY_MICROS: u64 = 24 * HOUR_MICROS;

const HOUR_MICROS: u64 = 60 * 60 * 1_000_000;

/// The most memory for the numbers of the active segment, unless an option says otherwise.
const NUMBERS_BYTES_MAX: u64 = 4 << 20;

/// Files of which the beginning is read are open so many at a time: all are asked for before the first is waited for.
const FILES_AT_ONCE: usize = 32;

/// How often a reader looks again when a writer is at work.
const READ_ONLY_ROUNDS: usize = 8;

/// Opens a log.
pub(crate) fn open(options: FileLogOptions) -> Result<(Arc<Core>, OpenReport), LogError> {
    if options.mode == Mode::ReadOnly {
        return open_read_only(options);
    }
    let mut report = OpenReport::default();
    find_folder(&options)?;
    let lock = lock_folder(&options)?;
    // Nobody else changes the folder any more.
    let names = options.disk.names(&options.dir)?;
    sweep_unfinished(&options, &names)?;
    let mut found = find_named_files(&options, names)?;
    if found.headers.is_empty() {
        create_log(&options, &mut found, &mut report)?;
    }
    check_tables(&options, &found.headers)?;
    let active = read_active(&options, &found, true, &mut report)?;
    let active = enlarge_if_empty(&options, &mut found, active)?;
    let core = assemble(options, found, active, Some(lock), &mut report)?;
    check_known(&core)?;
    Ok((core, report))
}

/// Opens a log without changing anything. A writer may be at work: what looks bad in one round and has moved on in the next was
/// only being written.
fn open_read_only(options: FileLogOptions) -> Result<(Arc<Core>, OpenReport), LogError> {
    let mut bad_before = None;
    let mut rounds = 0;
    loop {
        rounds += 1;
        match try_read_only(options.clone()) {
            Err(LogError::Corrupt { glsn, .. }) if rounds < READ_ONLY_ROUNDS && bad_before != Some(glsn) => {
                bad_before = Some(glsn);
            }
            Err(LogError::Io { kind: io::ErrorKind::NotFound, .. }) if rounds < READ_ONLY_ROUNDS => {}
            opened => return opened,
        }
    }
}

fn try_read_only(options: FileLogOptions) -> Result<(Arc<Core>, OpenReport), LogError> {
    let mut report = OpenReport::default();
    find_folder(&options)?;
    let found = find_files(&options)?;
    if found.headers.is_empty() {
        return Err(no_log(&options.dir));
    }
    check_tables(&options, &found.headers)?;
    let active = read_active(&options, &found, false, &mut report)?;
    let core = assemble(options, found, active, None, &mut report)?;
    check_known(&core)?;
    Ok((core, report))
}

fn no_log(dir: &Path) -> LogError {
    LogError::Format { message: format!("there is no log in {}: check the path, or create one", dir.display()) }
}

fn find_folder(options: &FileLogOptions) -> Result<(), LogError> {
    match options.disk.entry(&options.dir)? {
        Some(entry) if entry.is_dir => Ok(()),
        Some(_) => {
            let message = format!("{} is a file, a log is a folder: check the path", options.dir.display());
            Err(LogError::Format { message })
        }
        None if options.mode == Mode::Create => {
            match options.disk.create_dir(&options.dir) {
                // Another process was faster; the lock decides between the two.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => made?,
            }
            match options.dir.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => Ok(options.disk.sync_dir(parent)?),
                _ => Ok(options.disk.sync_dir(Path::new("."))?),
            }
        }
        None => Err(no_log(&options.dir)),
    }
}

/// Keeps other writers out.
pub(crate) fn lock_folder(options: &FileLogOptions) -> Result<Box<dyn DirLock>, LogError> {
    options.disk.lock(&options.dir).map_err(|error| match error {
        LockError::Held { pid, who } => LogError::Locked { path: options.dir.clone(), pid, who },
        LockError::Io(error) => error.into(),
    })
}

/// Removes files whose making was interrupted.
fn sweep_unfinished(options: &FileLogOptions, names: &[String]) -> Result<(), LogError> {
    for name in names {
        let of_log = name.strip_suffix(UNFINISHED).is_some_and(|name| FileName::parse(name).is_some());
        if of_log {
            options.disk.remove(&options.dir.join(name))?;
        }
    }
    Ok(())
}

/// What is in a log's folder.
#[derive(Debug)]
pub(crate) struct Found {
    /// Headers of the segments, oldest first.
    pub(crate) headers: Vec<SegmentHeader>,
    /// The highest id of a side file.
    pub(crate) side_mark: u64,
}

/// Reads the folder and the headers of all segments, and checks that they may belong together.
pub(crate) fn find_files(options: &FileLogOptions) -> Result<Found, LogError> {
    find_named_files(options, options.disk.names(&options.dir)?)
}

/// As [`find_files`], in a folder with these names.
fn find_named_files(options: &FileLogOptions, names: Vec<String>) -> Result<Found, LogError> {
    let mut found = Found { headers: Vec::new(), side_mark: 0 };
    let (mut segments, mut others) = (Vec::new(), None);
    for name in names {
        match FileName::parse(&name) {
            Some(FileName::Segment(first)) => segments.push(first),
            Some(FileName::Side(id)) => {
                found.side_mark = found.side_mark.max(id.0);
                others = Some(name);
            }
            Some(FileName::Table(_)) => others = Some(name),
            None => {}
        }
    }
    for some in segments.chunks(FILES_AT_ONCE) {
        let files = some.iter().map(|first| open_header(options, *first)).collect::<Result<Vec<_>, _>>()?;
        for (first, file) in some.iter().zip(files) {
            found.headers.push(read_header(&*file, *first)?);
        }
    }
    if found.headers.is_empty()
        && let Some(file) = others
    {
        let what = "the log's segments are missing, this file of it is there".to_owned();
        return Err(LogError::Corrupt { glsn: Glsn::FIRST, file, offset: 0, what });
    }
    found.headers.sort_unstable_by_key(|header| header.first);
    for pair in found.headers.windows(2) {
        if pair[0].log_id != pair[1].log_id || pair[0].epoch > pair[1].epoch {
            let what = "the segment belongs to another log than the one before it".to_owned();
            let file = FileName::Segment(pair[1].first).name();
            return Err(LogError::Corrupt { glsn: pair[1].first, file, offset: 0, what });
        }
    }
    Ok(found)
}

/// Opens a segment whose header is going to be read.
fn open_header(options: &FileLogOptions, first: Glsn) -> Result<Arc<dyn File>, LogError> {
    let file = options.disk.open(&FileName::Segment(first).path(&options.dir), Open::Read, Caching::Buffered)?;
    file.will_read(0, SEGMENT_HEADER_BYTES as u64);
    Ok(file)
}

fn read_header(file: &dyn File, first: Glsn) -> Result<SegmentHeader, LogError> {
    let name = FileName::Segment(first);
    let mut bytes = [0; SEGMENT_HEADER_BYTES];
    let n = file.read_at(&mut bytes, 0)?;
    let corrupt = |what: &str| LogError::Corrupt { glsn: first, file: name.name(), offset: 0, what: what.to_owned() };
    let header = SegmentHeader::decode(&bytes[..n]).map_err(|error| match error {
        HeaderError::Bad(what) => corrupt(what),
        HeaderError::Newer(message) => LogError::Format { message },
    })?;
    if header.first != first || first == Glsn::NONE {
        return Err(corrupt("the segment stands under another name than its own"));
    }
    Ok(header)
}

fn create_log(options: &FileLogOptions, found: &mut Found, report: &mut OpenReport) -> Result<(), LogError> {
    if options.mode != Mode::Create {
        return Err(no_log(&options.dir));
    }
    if let Some(known) = options.known.filter(|known| known.glsn > Glsn::NONE) {
        return Err(LogError::Forked { glsn: known.glsn, what: "was known, and there is no log".to_owned() });
    }
    let log_id = match options.id {
        Some(id) => id,
        None => entropy()?,
    };
    let header = SegmentHeader {
        log_id,
        epoch: 1,
        first: Glsn::FIRST,
        previous_chain: genesis_chain(log_id),
        timestamp_floor: 0,
        side_mark: found.side_mark,
        segment_bytes: options.segment_size(),
        previous_end: 0,
    };
    create_segment(&*options.disk, &options.dir, &header, CHUNK_BYTES as u64).map_err(|error| match error {
        NotCreated::Cleanly(error) | NotCreated::Perhaps(error) => LogError::from(error),
    })?;
    found.headers.push(header);
    report.created = true;
    Ok(())
}

/// Looks for segments that are missing: each table names the place behind its segment. Where a table does not fit, its segment is
/// read; where one is missing, that waits until somebody needs it.
fn check_tables(options: &FileLogOptions, headers: &[SegmentHeader]) -> Result<(), LogError> {
    let mut staging = options.budget.take(Kind::Staging)?;
    let mut tables = VecDeque::with_capacity(FILES_AT_ONCE);
    let mut asked = 0;
    for (at, pair) in headers.windows(2).enumerate() {
        while asked + 1 < headers.len() && asked < at + FILES_AT_ONCE {
            tables.push_back(open_table(options, &headers[asked])?);
            asked += 1;
        }
        let Some(file) = tables.pop_front().flatten() else { continue };
        let Some(table) = read_table_header(&*file, &pair[0], &mut staging[..PAGE_BYTES])? else { continue };
        if leads_to(pair[0].first, table.count, table.chain, table.end, &pair[1]) {
            continue;
        }
        let name = FileName::Segment(pair[0].first);
        let file = options.disk.open(&name.path(&options.dir), Open::Read, Caching::Buffered)?;
        let outcome = replay(&*file, &pair[0], u64::MAX, &mut staging, &mut NoVisitor)?;
        let count = (outcome.next.0 - pair[0].first.0) as u32;
        if !leads_to(pair[0].first, count, outcome.chain, outcome.end, &pair[1]) {
            let what = match outcome.problem {
                Some(problem) => problem.what.to_owned(),
                None => format!("it does not lead to the next segment, which begins with {}", pair[1].first),
            };
            let offset = outcome.problem.map_or(u64::from(outcome.end), |problem| problem.at);
            return Err(LogError::Corrupt { glsn: outcome.next, file: name.name(), offset, what });
        }
    }
    Ok(())
}

fn leads_to(first: Glsn, count: u32, chain: u64, end: u32, next: &SegmentHeader) -> bool {
    let is_next = first.0.checked_add(u64::from(count)) == Some(next.first.0);
    is_next && chain == next.previous_chain && end == next.previous_end
}

/// Opens a segment's table whose header is going to be read; `None` if it is not there.
fn open_table(options: &FileLogOptions, segment: &SegmentHeader) -> Result<Option<Arc<dyn File>>, LogError> {
    let path = FileName::Table(segment.first).path(&options.dir);
    match options.disk.open(&path, Open::Read, Caching::Buffered) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => {
            let file = opened?;
            file.will_read(0, PAGE_BYTES as u64);
            Ok(Some(file))
        }
    }
}

/// The header of a segment's table; `None` if it cannot be used.
fn read_table_header(
    file: &dyn File,
    segment: &SegmentHeader,
    page: &mut [u8],
) -> Result<Option<TableHeader>, LogError> {
    let n = file.read_at(page, 0)?;
    if check_page(&page[..n], table_seed(segment.log_id, segment.first), 0).is_err() {
        return Ok(None);
    }
    Ok(TableHeader::decode(page_payload(page)).ok().filter(|table| table.first == segment.first))
}

/// The active segment as it was found.
struct Active {
    file: Arc<dyn File>,
    header: SegmentHeader,
    outcome: Outcome,
    numbers: Numbers,
    sides: NamedSides,
    /// The entries' numbers do not fit into the memory that they may have.
    too_many: bool,
    epoch: u32,
}

fn read_active(
    options: &FileLogOptions,
    found: &Found,
    may_cut: bool,
    report: &mut OpenReport,
) -> Result<Active, LogError> {
    let header = *found.headers.last().expect("a log has at least one segment");
    let mut staging = options.budget.take(Kind::Staging)?;
    let path = FileName::Segment(header.first).path(&options.dir);
    let file = match may_cut {
        true => open_own(options, &header, &mut staging)?,
        false => options.disk.open(&path, Open::Read, Caching::Buffered)?,
    };
    let most = if may_cut { most_entries(options) } else { u32::MAX };
    let mut gather = Gather::new(&options.budget, most)?;
    let outcome = replay(&*file, &header, u64::MAX, &mut staging, &mut gather)?;
    let mut epoch = outcome.epoch;
    if let Some(cut) = decide(options, &header, &outcome)? {
        if may_cut {
            write_zeros(&*file, cut.offset, outcome.used)?;
        }
        epoch = epoch.saturating_add(1);
        report.cut = Some(cut);
    }
    if may_cut {
        let synced = outcome.durable.max(options.known.map_or(Glsn::NONE, |known| known.glsn));
        let last_synced = synced.0.checked_sub(header.first.0).and_then(|index| u32::try_from(index).ok());
        let from = last_synced.and_then(|index| gather.numbers.offset(index)).unwrap_or(0);
        make_durable(options, &*file, &outcome, from, &mut staging)?;
    }
    report.replayed = outcome.next.0 - header.first.0;
    if let Some(at) = outcome.dirty_padding {
        report.warnings.push(format!(
            "{} has bytes at offset {at} where only padding should be; no entry is concerned",
            FileName::Segment(header.first).name()
        ));
    }
    Ok(Active { file, header, outcome, numbers: gather.numbers, sides: gather.sides, too_many: gather.too_many, epoch })
}

/// Makes what was read as durable as it looks. What a killed process wrote may be in memory only; and after a failed sync the system may
/// hold bytes that it takes for written, so that a further sync would pass over them: they are written again first. `from` is the offset
/// of the last entry that is known to have been synced, 0 if none is: all before it was, too. Behind a mark everything but the mark itself was.
fn make_durable(
    options: &FileLogOptions,
    file: &dyn File,
    outcome: &Outcome,
    from: u32,
    staging: &mut [u8],
) -> Result<(), LogError> {
    let end = u64::from(outcome.end);
    let block = BLOCK_BYTES as u64;
    let from = if outcome.marked { end.saturating_sub(1) } else { u64::from(from) } / block * block;
    write_again(file, from, end, staging)?;
    file.sync()?;
    // The same holds for the segment's name.
    Ok(options.disk.sync_dir(&options.dir)?)
}

/// Writes what a segment holds between two offsets once more, so that the next sync has to save it. Not synced.
fn write_again(file: &dyn File, from: u64, end: u64, staging: &mut [u8]) -> Result<(), LogError> {
    let mut at = from;
    let (bytes, again) = staging.split_at_mut(staging.len() / 2);
    while at < end {
        let piece = (end - at).min(bytes.len() as u64) as usize;
        read_twice(file, &mut bytes[..piece], &mut again[..piece], at)?;
        file.write_at(&bytes[..piece], at)?;
        at += piece as u64;
    }
    Ok(())
}

fn most_entries(options: &FileLogOptions) -> u32 {
    entries_max(options.numbers_bytes.unwrap_or((options.budget.limit_bytes() / 32).min(NUMBERS_BYTES_MAX)))
}

/// Decides what the end of the log means: `None` if it is clean.
fn decide(options: &FileLogOptions, header: &SegmentHeader, outcome: &Outcome) -> Result<Option<Cut>, LogError> {
    let file = FileName::Segment(header.first).name();
    let known = options.known.map_or(Glsn::NONE, |known| known.glsn);
    let durable = outcome.durable.max(known);
    match outcome.problem {
        Some(problem) if problem.newer => {
            let message = format!("{file}, offset {}: {}: use a newer version of Plimsoll", problem.at, problem.what);
            Err(LogError::Format { message })
        }
        Some(problem) if outcome.next <= durable => {
            let what = problem.what.to_owned();
            Err(LogError::Corrupt { glsn: outcome.next, file, offset: problem.at, what })
        }
        Some(problem) => Ok(Some(Cut {
            from: outcome.next,
            offset: u64::from(outcome.end),
            bytes: outcome.used.saturating_sub(u64::from(outcome.end)),
            why: problem.what.to_owned(),
        })),
        None if outcome.next <= known => {
            let what = format!("was known to be durable, and the log ends with {}", outcome.next.0 - 1);
            Err(LogError::Forked { glsn: known, what })
        }
        None => Ok(None),
    }
}

/// Collects the numbers of the active segment.
struct Gather<'a> {
    budget: &'a Budget,
    most: u32,
    numbers: Numbers,
    sides: NamedSides,
    too_many: bool,
    /// Entries and side files of complete records.
    complete: (u32, usize),
}

impl<'a> Gather<'a> {
    fn new(budget: &'a Budget, most: u32) -> Result<Self, LogError> {
        let sides = NamedSides::new(budget)?;
        Ok(Self { budget, most, numbers: Numbers::default(), sides, too_many: false, complete: (0, 0) })
    }

    /// From now on the entries are only counted: a sealed segment finds them by its table.
    fn give_up(&mut self) {
        self.too_many = true;
        self.numbers.clear();
        self.sides.clear();
        self.complete = (0, 0);
    }
}

impl Visitor for Gather<'_> {
    fn entry(&mut self, offset: u32, stream: StreamId) -> Result<(), LogError> {
        if self.too_many {
            return Ok(());
        }
        if self.numbers.len() >= self.most {
            self.give_up();
            return Ok(());
        }
        match self.numbers.reserve(1, self.budget) {
            Ok(()) => self.numbers.push(offset, stream),
            Err(_) if self.most < u32::MAX => self.give_up(),
            Err(refusal) => return Err(refusal.into()),
        }
        Ok(())
    }

    fn record(&mut self, header: &RecordHeader, sides: &[SideRef]) -> Result<(), LogError> {
        if self.too_many {
            return Ok(());
        }
        self.sides.reserve(sides.len())?;
        for side in sides {
            self.sides.push(NamedSide { record_first: header.first, record_count: header.count, side: *side });
        }
        self.complete = (self.numbers.len(), self.sides.list().len());
        Ok(())
    }

    fn abandon(&mut self) {
        self.numbers.truncate(self.complete.0);
        self.sides.truncate(self.complete.1);
    }
}

/// Puts the open log together.
fn assemble(
    options: FileLogOptions,
    mut found: Found,
    mut active: Active,
    lock: Option<Box<dyn DirLock>>,
    report: &mut OpenReport,
) -> Result<Arc<Core>, LogError> {
    let timestamp = active.outcome.last_timestamp;
    tell_of_the_future(&options, timestamp, report);
    let side_mark = found.side_mark.max(active.outcome.side_mark);
    if active.too_many {
        active = follow_with_new_segment(&options, &mut found, active, timestamp, side_mark)?;
    }
    let end = End { offset: active.outcome.end, next: active.outcome.next, chain: active.outcome.chain, timestamp };
    let buffer = fill_buffer(&options.budget, &*active.file, &active.header, end)?;
    let log_id = active.header.log_id;
    let files = Arc::new(OpenFiles::new(Arc::clone(&options.disk), options.dir.clone()));
    let writing = match lock {
        Some(lock) => Some(writing(&options, &mut active, end, lock)?),
        None => None,
    };
    let syncer = Syncer::new(Position { glsn: Glsn(end.next.0 - 1), chain: end.chain });
    let tail = Arc::new_cyclic(|tail| {
        let segment = describe(&options, &files, tail.clone(), active.header);
        TailLock::new(Tail {
            first: active.header.first,
            segment,
            first_timestamp: active.outcome.first_timestamp,
            numbers: active.numbers,
            sides: active.sides,
            buffer,
            end,
        })
    });
    let mut list = Vec::with_capacity(found.headers.len());
    for pair in found.headers.windows(2) {
        let segment = describe(&options, &files, Arc::downgrade(&tail), pair[0]);
        segment.seal(&pair[1]);
        list.push(segment);
    }
    list.push(Arc::clone(&tail.read().segment));
    Ok(Arc::new(Core {
        id: log_id,
        files,
        segments: Segments::new(list, &options)?,
        syncer,
        sides: Sides::new(side_mark, &options.budget)?,
        next: AtomicU64::new(end.next.0),
        trimming: Mutex::new(()),
        rebuilding: Mutex::new(SortScratch::new(&options.budget)?),
        writing,
        background: Signal::new(options.background),
        tail,
        options,
    }))
}

fn writing(
    options: &FileLogOptions,
    active: &mut Active,
    end: End,
    lock: Box<dyn DirLock>,
) -> Result<Writing, LogError> {
    active.numbers.reserve(1, &options.budget)?;
    let order = Order {
        file: Arc::clone(&active.file),
        header: active.header,
        epoch: active.epoch,
        end,
        zeroed: active.file.len()?.min(u64::from(active.header.segment_bytes)).max(u64::from(end.offset)),
        zero_step: crate::file_log::append::ZERO_STEP_MIN,
        entries_max: most_entries(options),
        marked: active.outcome.marked,
    };
    let group_bytes = Arc::new(AtomicU64::new(0));
    let writer = Writer {
        file: Arc::clone(&active.file),
        written: u64::from(end.offset),
        unsynced: 0,
        failed: None,
        staging: options.budget.take(Kind::LogBuffer)?,
        group_bytes: Arc::clone(&group_bytes),
    };
    Ok(Writing { order: Mutex::new(order), writer: Mutex::new(writer), group_bytes, lock: Mutex::new(Some(lock)) })
}

/// Tells of a timestamp far ahead of the clock. It counts all the same: timestamps rise with GLSNs, always, or a moment could not be found by
/// its time.
fn tell_of_the_future(options: &FileLogOptions, last: u64, report: &mut OpenReport) {
    let now = options.clock.wall_micros();
    if last <= now.saturating_add(DAY_MICROS) {
        return;
    }
    let hours = (last - now) / HOUR_MICROS;
    report.warnings.push(format!(
        "the last commit's time is {hours} hours ahead of this machine's clock (by {} µs): until the clock gets there, each new commit's time is \
         one microsecond after the one before; check the clock",
        last - now
    ));
}

/// An active segment without a record that is smaller than the options say is made anew in its size: a record that needs it could not
/// turn to another segment, which would begin with the same GLSN.
fn enlarge_if_empty(options: &FileLogOptions, found: &mut Found, active: Active) -> Result<Active, LogError> {
    let is_empty = active.outcome.next == active.header.first;
    if !is_empty || active.header.segment_bytes >= options.segment_size() {
        return Ok(active);
    }
    let header = SegmentHeader { segment_bytes: options.segment_size(), epoch: active.epoch, ..active.header };
    let file = match create_segment(&*options.disk, &options.dir, &header, CHUNK_BYTES as u64) {
        Ok(file) => file,
        // Without room for it the small one has to do.
        Err(NotCreated::Cleanly(error)) if has_no_room(&error) => return Ok(active),
        // The file that is open may no longer be the one under its name.
        Err(NotCreated::Cleanly(error) | NotCreated::Perhaps(error)) => return Err(error.into()),
    };
    *found.headers.last_mut().expect("the active segment is in it") = header;
    let outcome = Outcome { end: SEGMENT_HEADER_BYTES as u32, marked: false, ..active.outcome };
    Ok(Active { file, header, outcome, ..active })
}

/// The active segment has more entries than numbers may be held: it is sealed, and another begins.
fn follow_with_new_segment(
    options: &FileLogOptions,
    found: &mut Found,
    full: Active,
    timestamp: u64,
    side_mark: u64,
) -> Result<Active, LogError> {
    let mut outcome = full.outcome;
    let header = SegmentHeader {
        log_id: full.header.log_id,
        epoch: full.epoch,
        first: outcome.next,
        previous_chain: outcome.chain,
        timestamp_floor: timestamp,
        side_mark,
        segment_bytes: options.segment_size(),
        previous_end: outcome.end,
    };
    let file =
        create_segment(&*options.disk, &options.dir, &header, CHUNK_BYTES as u64).map_err(|error| match error {
            NotCreated::Cleanly(error) | NotCreated::Perhaps(error) => LogError::from(error),
        })?;
    found.headers.push(header);
    outcome.end = SEGMENT_HEADER_BYTES as u32;
    outcome.first_timestamp = 0;
    outcome.marked = false;
    let numbers = Numbers::default();
    let sides = NamedSides::new(&options.budget)?;
    Ok(Active { file, header, outcome, numbers, sides, too_many: false, epoch: full.epoch })
}

/// The buffer with the bytes of the last chunk up to `end`. They were checked before, and are checked again: this time they are kept.
fn fill_buffer(budget: &Budget, file: &dyn File, header: &SegmentHeader, end: End) -> Result<Buffer, LogError> {
    let mut buffer = Buffer::new(budget)?;
    buffer.restart(u64::from(end.offset));
    let start = buffer.base();
    let filled = (u64::from(end.offset) - start) as usize;
    let bytes = buffer.current_mut();
    read_as_replay(file, &mut bytes[..filled], start)?;
    let seed = segment_seed(header.log_id, header.first);
    for (number, block) in
        (block_of(start) as u32..).zip(bytes[..filled.next_multiple_of(BLOCK_BYTES)].chunks(BLOCK_BYTES))
    {
        check_block(block, number, seed).map_err(|bad| LogError::Corrupt {
            glsn: end.next,
            file: FileName::Segment(header.first).name(),
            offset: u64::from(number) * BLOCK_BYTES as u64 + bad.at as u64,
            what: format!("{}, and a moment ago it was sound: the disk or the memory is failing", bad.what),
        })?;
    }
    Ok(buffer)
}

/// Compares the log with what the caller knows of it.
fn check_known(core: &Core) -> Result<(), LogError> {
    let Some(known) = core.options.known.filter(|known| known.glsn.next() >= core.segments.first()) else {
        return Ok(());
    };
    if core.chain_behind(known.glsn)? == Some(known.chain) {
        return Ok(());
    }
    Err(LogError::Forked { glsn: known.glsn, what: "its chain hash is not the one that was known".to_owned() })
}

const _: () = assert!(CHUNK_BYTES.is_multiple_of(BLOCK_BYTES));
