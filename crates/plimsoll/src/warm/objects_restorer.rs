//! Takes the objects of an image in, round by round, those that were touched most first, until there is no room without anybody leaving.
//!
//! An image may consist of several generations, if a process ended before it had written all of its own: the newest comes first, and what it
//! has is not taken from an older one.

use std::sync::atomic::Ordering;

use plimsoll_log::glsn::Position;
use plimsoll_log::log::Log;
use plimsoll_memory::budget::{Kind as Memory, Lease};
use plimsoll_memory::cache::BroughtBack;

use crate::warm::belief::is_true_still;
use crate::warm::image::{self, Name, ObjectsName, OpenFile, Past, SEGMENT_BYTES_MAX};
use crate::warm::objects::{Note, Round, read_at};
use crate::warm::restorer::Step;
use crate::warm::segment::{Distrust, Header, Kind, open};
use crate::warm::{Counts, Ground};

/// A step reads so many segments at most.
const SEGMENTS_AT_ONCE: usize = 16;

/// How far it has come.
#[derive(Debug)]
pub(super) struct ObjectsRestorer {
    /// The files there are; `None` before the first step.
    files: Option<Vec<Part>>,
    _lease: Option<Lease>,
    /// Which of them is read, in which round.
    at: usize,
    round: Round,
    /// A file that is open.
    open: Option<OpenFile>,
    /// The place that was compared with the log last.
    past: Option<(Position, Past)>,
}

/// A file of the image.
#[derive(Clone, Copy, Debug)]
struct Part {
    name: ObjectsName,
    /// The segment that is read next.
    place: u32,
}

/// What came of a segment.
enum Taken {
    All,
    /// There is no room for more.
    NoRoom,
    /// It is for a later round.
    Later,
    /// Younger versions are just coming into the runs: it is looked at again in what comes then.
    Again,
}

impl ObjectsRestorer {
    pub(super) fn new() -> Self {
        Self { files: None, _lease: None, at: 0, round: Round::Often, open: None, past: None }
    }

    /// Reads some segments and takes in what they hold.
    pub(super) fn step(&mut self, ground: &Ground, counts: &Counts) -> Result<Step, Distrust> {
        let mut step = Step::default();
        if self.files.is_none() && !self.find_files(ground)? {
            return Ok(Step::end(false));
        }
        let Some(mut bytes) = ground.budget.try_take(Memory::Staging) else { return Ok(Step::end(false)) };
        for _ in 0..SEGMENTS_AT_ONCE {
            let Some((name, place, len)) = self.next_segment(ground, &mut bytes)? else {
                step.ended = Some(true);
                break;
            };
            step.bytes += len as u64;
            let (header, body) = open(&bytes[..len], Kind::Objects, name.segment_number(place))?;
            match self.take_in(ground, counts, &header, body)? {
                Taken::All => {}
                Taken::Later => self.next_file(),
                Taken::Again => break,
                Taken::NoRoom => {
                    step.ended = Some(false);
                    break;
                }
            }
        }
        Ok(step)
    }

    /// Lists what there is; false where there is no memory for that.
    fn find_files(&mut self, ground: &Ground) -> Result<bool, Distrust> {
        let found = image::list_objects(&*ground.disk, &ground.dir).map_err(image::unread)?;
        let Ok(lease) = ground.budget.lease(Memory::Metadata, (found.len() * size_of::<Part>()) as u64) else {
            return Ok(false);
        };
        self.files = Some(found.into_iter().map(|(name, _)| Part { name, place: 0 }).collect());
        self._lease = Some(lease);
        Ok(true)
    }

    /// Reads the next segment; its file, its place and its length, or `None` behind the last.
    fn next_segment(
        &mut self,
        ground: &Ground,
        bytes: &mut [u8],
    ) -> Result<Option<(ObjectsName, u32, usize)>, Distrust> {
        loop {
            let files = self.files.as_mut().expect("they were listed before");
            let Some(part) = files.get_mut(self.at) else {
                match self.round.next().filter(|_| !files.is_empty()) {
                    None => return Ok(None),
                    Some(round) => (self.round, self.at) = (round, 0),
                }
                continue;
            };
            if self.open.is_none() {
                self.open = image::open_to_read(&*ground.disk, &ground.dir, Name::Objects(part.name))?;
            }
            let begin = u64::from(part.place) * SEGMENT_BYTES_MAX as u64;
            // An empty file is damage, and one that is not there is none.
            let rest = self.open.as_ref().and_then(|open| Some((&open.file, open.len.checked_sub(begin)?)));
            let Some((file, len)) = rest.filter(|(_, len)| *len > 0 || part.place == 0) else {
                self.next_file();
                continue;
            };
            let len = usize::try_from(len).map_or(SEGMENT_BYTES_MAX, |len| len.min(SEGMENT_BYTES_MAX));
            file.read_exact_at(&mut bytes[..len], begin).map_err(image::unread)?;
            let place = part.place;
            part.place += 1;
            return Ok(Some((part.name, place, len)));
        }
    }

    fn next_file(&mut self) {
        self.open = None;
        self.at += 1;
    }

    fn take_in(&mut self, ground: &Ground, counts: &Counts, header: &Header, body: &[u8]) -> Result<Taken, Distrust> {
        let note = Note::of(header);
        if note.round > self.round {
            self.back();
            return Ok(Taken::Later);
        }
        if self.past_of(ground, header)? == Past::Trimmed {
            // Nobody can say any more whether it is of this log's past.
            counts.doubted.fetch_add(header.entries, Ordering::Relaxed);
            return Ok(Taken::All);
        }
        ground.objects.expect_share(u64::from(note.share));
        let view = ground.index.view();
        let mut at = 0;
        while let Some((object, next)) = read_at(body, at) {
            at = next;
            if !is_true_still(&view, object.key, header.position.glsn) {
                counts.doubted.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let what = (object.glsn, object.value);
            match ground.objects.bring_back((view.set, &view.shelf), object.key, what, object.touches) {
                BroughtBack::Entered => _ = counts.objects.fetch_add(1, Ordering::Relaxed),
                BroughtBack::LeftOut => {}
                BroughtBack::NoRoom => return Ok(Taken::NoRoom),
                BroughtBack::NotCurrent => {
                    self.back();
                    return Ok(Taken::Again);
                }
            }
        }
        Ok(Taken::All)
    }

    /// The segment that was read is read again.
    fn back(&mut self) {
        self.files.as_mut().expect("they were listed before")[self.at].place -= 1;
    }

    fn past_of(&mut self, ground: &Ground, header: &Header) -> Result<Past, Distrust> {
        match self.past {
            Some((position, past)) if position == header.position && header.log_id == ground.log.id() => Ok(past),
            _ => {
                let past = image::check_past(header, &*ground.log)?;
                self.past = Some((header.position, past));
                Ok(past)
            }
        }
    }
}
