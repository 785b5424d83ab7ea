//! Writes the image of pages: the resident pages, hottest first. Only segments that changed are
//! written. [`crate::Options::warm_interval`] sets how often.
//!
//! A round scans the frames of the pool once and then produces one segment after the other. Between
//! two steps it holds eight bytes for each page, under a lease.

use std::io;
use std::sync::atomic::Ordering;

use plimsoll_log::glsn::Position;
use plimsoll_memory::budget::Kind as Memory;
use plimsoll_memory::buffer::Buffer;

use crate::borders::{Border, hit};
use crate::types::error::Result;
use crate::warm::files::{FileName, Files};
use crate::warm::image::{self, Name, NewFile, SEGMENT_BYTES_MAX};
use crate::warm::pages::{BodyWriter, PageRun};
use crate::warm::segment::{HEADER_BYTES, Header, Kind, SegmentOnDisk, body_sum, seal};
use crate::warm::{Context, Counts, nanos};

/// The schedule of the image of pages, and the known state of the one on disk.
#[derive(Debug)]
pub(super) struct Saver {
    due: u64,
    /// By number: the segments that this process wrote, or read.
    written: Vec<Option<SegmentOnDisk>>,
    round: Option<Round>,
}

/// A round in progress.
#[derive(Debug)]
struct Round {
    position: Position,
    /// The file names that `pages` refers to.
    names: Buffer<FileName>,
    /// Sorted: 1 bit cold, 31 bits the file's index in `names`, 32 bits the page.
    pages: Buffer<u64>,
    next: usize,
    /// The next segment to produce.
    number: u32,
    changed: bool,
}

const COLD: u64 = 1 << 63;
const FILES_MAX: usize = 1 << 31;

/// The result for a segment.
enum Made {
    /// There was none left.
    None,
    /// The segment on disk is current.
    Same,
    /// It was written; its bytes.
    Wrote(u64),
}

impl Saver {
    /// The first round is due at `due`, by the monotonic clock.
    pub(super) fn new(due: u64) -> Self {
        Self { due, written: Vec::new(), round: None }
    }

    /// The time at which the next work is due.
    pub(super) fn due(&self) -> u64 {
        if self.round.is_some() { 0 } else { self.due }
    }

    pub(super) fn is_due(&self, now: u64) -> bool {
        self.due() <= now
    }

    /// Records a segment that is on disk.
    pub(super) fn note_on_disk(&mut self, segment: SegmentOnDisk) {
        let at = segment.number as usize;
        if self.written.len() <= at {
            self.written.resize(at + 1, None);
        }
        self.written[at] = Some(segment);
    }

    /// Starts a round, or continues one until a segment was written; returns the bytes written.
    pub(super) fn step(&mut self, context: &Context, counts: &Counts, now: u64) -> Result<u64> {
        let wrote = self.run_step(context, counts);
        if self.round.is_none() {
            self.due = now.saturating_add(nanos(context.interval));
        }
        wrote
    }

    /// Writes the complete, current image.
    pub(super) fn finish(&mut self, context: &Context, counts: &Counts) -> Result<()> {
        // Discard the round in progress, because a new one is more current.
        self.round = None;
        loop {
            self.run_step(context, counts)?;
            if self.round.is_none() {
                return Ok(());
            }
        }
    }

    fn run_step(&mut self, context: &Context, counts: &Counts) -> Result<u64> {
        let round = match self.round.take() {
            Some(round) => round,
            None => {
                self.compare_with_disk(context)?;
                match Round::begin(context)? {
                    Some(round) => round,
                    // An empty cache does not justify removing the image.
                    None => return Ok(0),
                }
            }
        };
        let wrote = self.make_segments(round, context, counts);
        if wrote.is_err() {
            // Make the next step read the segments on disk again.
            self.written.clear();
        }
        wrote
    }

    /// Produces segments until one was written; puts the round back unless it is finished.
    fn make_segments(
        &mut self,
        mut round: Round,
        context: &Context,
        counts: &Counts,
    ) -> Result<u64> {
        loop {
            match self.make_segment(&mut round, context)? {
                Made::Same => {}
                Made::Wrote(bytes) => {
                    counts.segments.fetch_add(1, Ordering::Relaxed);
                    counts.bytes.fetch_add(bytes, Ordering::Relaxed);
                    self.round = Some(round);
                    return Ok(bytes);
                }
                Made::None => {
                    let (disk, dir) = (&*context.disk, &context.dir);
                    self.written.truncate(round.number as usize);
                    let removed = image::remove_pages_from(disk, dir, round.number)?;
                    if removed || round.changed {
                        disk.sync_dir(dir)?;
                    }
                    return Ok(0);
                }
            }
        }
    }

    fn make_segment(&mut self, round: &mut Round, context: &Context) -> Result<Made> {
        if round.next == round.pages.len() {
            return Ok(Made::None);
        }
        let mut bytes = context.budget.take(Memory::Staging)?;
        let bytes = &mut bytes[..SEGMENT_BYTES_MAX];
        let (len, entries) = round.fill(&mut bytes[HEADER_BYTES..]);
        let bytes = &mut bytes[..HEADER_BYTES + len];
        let number = round.number;
        let sum = body_sum(Kind::Pages, u64::from(number), &bytes[HEADER_BYTES..]);
        let written = SegmentOnDisk { number, sum, bytes: bytes.len() as u64 };
        round.number += 1;
        let at = number as usize;
        if self.written.get(at) == Some(&Some(written)) {
            return Ok(Made::Same);
        }
        let header = Header {
            kind: Kind::Pages,
            log_id: context.log.id(),
            position: round.position,
            entries,
            note: 0,
        };
        seal(&header, u64::from(number), bytes);
        hit(Border::ImageMade);
        put(context, number, bytes)?;
        round.changed = true;
        self.note_on_disk(written);
        Ok(Made::Wrote(written.bytes))
    }

    /// Forgets segments that are no longer on disk as written.
    fn compare_with_disk(&mut self, context: &Context) -> io::Result<()> {
        let there = image::list_pages(&*context.disk, &context.dir)?;
        for (number, written) in self.written.iter_mut().enumerate() {
            let bytes =
                there.iter().find(|(found, _)| *found as usize == number).map(|(_, bytes)| *bytes);
            *written = written.filter(|written| Some(written.bytes) == bytes);
        }
        Ok(())
    }
}

fn put(context: &Context, number: u32, bytes: &[u8]) -> io::Result<()> {
    let file = NewFile::begin(&*context.disk, &context.dir, Name::Pages(number))?;
    file.write(bytes, 0)?;
    file.finish(&*context.disk)
}

impl Round {
    /// Scans the pool; `None` if it has no page worth saving.
    fn begin(context: &Context) -> Result<Option<Self>> {
        let position = context.log.position();
        let files = Files::now(context)?;
        let count = files.all().len().min(FILES_MAX);
        let frames = context.pool.frames_held();
        // Maps the pool's id of the file to its index among the names.
        let mut places = Buffer::with_capacity(&context.budget, Memory::Metadata, count)?;
        let mut names = Buffer::with_capacity(&context.budget, Memory::Metadata, count)?;
        let mut pages = Buffer::with_capacity(&context.budget, Memory::Metadata, frames)?;
        for (file, place) in files.all()[..count].iter().zip(0u32..) {
            places.push((file.file.id(), place));
            names.push(file.name);
        }
        places.sort_unstable();
        context.pool.residents(&mut |page| {
            let place = places.binary_search_by_key(&page.file, |place| place.0);
            // The pool may have grown since.
            if let Ok(at) = place
                && pages.len() < frames
            {
                let cold = if page.hot { 0 } else { COLD };
                pages.push(cold | u64::from(places[at].1) << 32 | u64::from(page.number));
            }
        });
        pages.sort_unstable();
        // A page that moved to another frame in between was seen twice.
        pages.dedup();
        let round = Self { position, names, pages, next: 0, number: 0, changed: false };
        Ok(Some(round).filter(|round| !round.pages.is_empty()))
    }

    /// Fills the body of a segment; returns its length and the number of pages that it names.
    fn fill(&mut self, body: &mut [u8]) -> (usize, u64) {
        let mut writer = BodyWriter::new(body);
        while let Some(run) = self.run_at(self.next) {
            if !writer.push(run) {
                break;
            }
            self.next += run.count as usize;
        }
        writer.finish()
    }

    /// The consecutive pages from the one at `at` on.
    fn run_at(&self, at: usize) -> Option<PageRun> {
        let first = *self.pages.get(at)?;
        let count = self.pages[at..]
            .iter()
            .zip(first..)
            .take_while(|(page, wanted)| **page == *wanted)
            .count();
        Some(PageRun {
            file: self.names[(first >> 32) as usize & (FILES_MAX - 1)],
            hot: first & COLD == 0,
            first: first as u32,
            count: count as u32,
        })
    }
}
