//! The body of a segment of pages: names of pages, hottest first, as ranges of consecutive pages.
//!
//! Groups, one for each file and heat: 1 byte (kind of the file × 2, plus 1 if its pages are hot),
//! varint id of the file, then ranges of consecutive pages: varint length, varint gap from the end
//! of the previous range (the first: from page 0). A length of 0 ends the group.

use plimsoll_disk::codec::{Reader, put_varint};

use crate::warm::files::FileName;

/// Consecutive pages of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageRun {
    pub(crate) file: FileName,
    pub(crate) hot: bool,
    pub(crate) first: u32,
    pub(crate) count: u32,
}

impl PageRun {
    fn end(&self) -> u64 {
        u64::from(self.first) + u64::from(self.count)
    }

    fn group(&self) -> (FileName, bool) {
        (self.file, self.hot)
    }
}

/// The most bytes that a range adds: the end of a group, a new group's head, and two numbers of 32
/// bits.
const RUN_BYTES_MAX: usize = 1 + 1 + 10 + 5 + 5;

/// Writes ranges of pages into the body of a segment.
pub(crate) struct BodyWriter<'a> {
    bytes: &'a mut [u8],
    len: usize,
    last: Option<PageRun>,
    pages: u64,
}

impl<'a> BodyWriter<'a> {
    /// Begins a body, which is written into `bytes`.
    pub(crate) fn new(bytes: &'a mut [u8]) -> Self {
        Self { bytes, len: 0, last: None, pages: 0 }
    }

    /// Appends a range; false if there is no room for it.
    pub(crate) fn push(&mut self, run: PageRun) -> bool {
        assert!(run.count > 0);
        if self.len + RUN_BYTES_MAX + 1 > self.bytes.len() {
            return false;
        }
        let before = self.last.filter(|last| last.group() == run.group());
        if before.is_none() {
            if self.last.is_some() {
                self.put(0);
            }
            self.put(u64::from(run.file.kind) * 2 + u64::from(run.hot));
            self.put(run.file.id);
        }
        let end = before.map_or(0, |last| last.end());
        self.put(u64::from(run.count));
        self.put(u64::from(run.first).checked_sub(end).expect("runs of a group are sorted"));
        self.pages += u64::from(run.count);
        self.last = Some(run);
        true
    }

    /// Ends the body; returns its length and the number of pages that it names.
    pub(crate) fn finish(mut self) -> (usize, u64) {
        if self.last.is_some() {
            self.put(0);
        }
        (self.len, self.pages)
    }

    fn put(&mut self, value: u64) {
        self.len += put_varint(&mut self.bytes[self.len..], value);
    }
}

/// Reads a body, one range at a time. Its checksum was verified before, so unreadable bytes end it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BodyReader {
    at: usize,
    group: Option<(FileName, bool)>,
    end: u64,
}

impl BodyReader {
    /// The next range of `body`; every call passes the same body.
    pub(crate) fn next(&mut self, body: &[u8]) -> Option<PageRun> {
        let mut reader = Reader::new(body.get(self.at..)?);
        loop {
            let (file, hot) = match self.group {
                Some(group) => group,
                None => {
                    let kind = u8::try_from(reader.varint()?).ok()?;
                    let group = (FileName { kind: kind / 2, id: reader.varint()? }, kind % 2 == 1);
                    (self.group, self.end) = (Some(group), 0);
                    group
                }
            };
            let count = u32::try_from(reader.varint()?).ok()?;
            if count == 0 {
                self.group = None;
                continue;
            }
            let first = u32::try_from(self.end.checked_add(reader.varint()?)?).ok()?;
            let run = PageRun { file, hot, first, count };
            if run.end() > 1 << 32 {
                // No file has such pages.
                return None;
            }
            self.end = run.end();
            self.at += reader.position();
            return Some(run);
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_disk::random::Random;

    use super::*;

    fn read(body: &[u8]) -> Vec<PageRun> {
        let mut reader = BodyReader::default();
        std::iter::from_fn(|| reader.next(body)).collect()
    }

    fn run(id: u64, hot: bool, first: u32, count: u32) -> PageRun {
        PageRun { file: FileName { kind: (id % 3) as u8, id }, hot, first, count }
    }

    #[test]
    fn runs_are_read_as_they_were_written() {
        let runs = [
            run(3, true, 0, 1),
            run(3, true, 2, 7),
            run(u64::MAX, true, u32::MAX, 1),
            run(3, false, 1, 1),
            run(4, false, 9, u32::MAX - 9),
        ];
        let mut bytes = [0; 200];
        let mut writer = BodyWriter::new(&mut bytes);
        assert!(runs.iter().all(|&run| writer.push(run)));
        let (len, pages) = writer.finish();
        assert_eq!(pages, runs.iter().map(|run| u64::from(run.count)).sum::<u64>());
        assert_eq!(read(&bytes[..len]), runs);
        assert_eq!(read(&[]), []);
    }

    #[test]
    fn a_run_without_room_is_left_out_and_the_others_are_read() {
        for room in 0..300 {
            let mut bytes = vec![0; room];
            let mut writer = BodyWriter::new(&mut bytes);
            let taken = (0..)
                .take_while(|&i| writer.push(run(u64::MAX - 3 * i, true, u32::MAX - 1, 1)))
                .count();
            let (len, _) = writer.finish();
            assert!(len <= room);
            assert_eq!(read(&bytes[..len]).len(), taken);
        }
    }

    #[test]
    fn a_run_beyond_the_last_possible_page_ends_the_reading() {
        // A run file with the id 7, its pages cold: two pages, starting at the highest page number.
        let mut body = vec![0, 7, 2];
        plimsoll_disk::codec::push_varint(&mut body, u64::from(u32::MAX));
        assert_eq!(read(&body), []);
        body[2] = 1;
        assert_eq!(
            read(&body),
            [PageRun { file: FileName { kind: 0, id: 7 }, hot: false, first: u32::MAX, count: 1 }]
        );
    }

    #[test]
    fn reading_arbitrary_bytes_terminates() {
        let mut random = Random::new(7);
        for _ in 0..2000 {
            let body: Vec<u8> = (0..random.below(60)).map(|_| random.below(256) as u8).collect();
            assert!(read(&body).len() <= 60);
        }
    }
}
