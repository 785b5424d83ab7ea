//! A file on a simulated disk: its visible state, its durable state, and the unsynced writes.

use crate::image::Image;
use crate::lying::Injected;
use crate::random::Random;

/// The unit that a disk writes atomically.
const SECTOR_BYTES: u64 = 512;

#[derive(Clone, Debug, Default)]
pub(crate) struct Bytes {
    current: Image,
    durable: Image,
    unsynced: Vec<Unsynced>,
}

#[derive(Clone, Debug)]
struct Unsynced {
    change: Change,
    len_after: u64,
}

#[derive(Clone, Debug)]
enum Change {
    Write { offset: u64, bytes: Vec<u8> },
    SetLen(u64),
}

/// The outcome of one unsynced write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteOutcome {
    Whole,
    Torn,
    Lost,
}

/// The outcome of all unsynced writes of a file.
#[derive(Debug)]
struct WriteOutcomes {
    writes: Vec<WriteOutcome>,
    /// The number of length changes that took effect: those of the first writes and truncations,
    /// because file systems keep the order of length changes.
    lens_kept: usize,
}

impl Bytes {
    /// The state visible to readers.
    pub(crate) fn current(&self) -> &Image {
        &self.current
    }

    pub(crate) fn write(&mut self, bytes: &[u8], offset: u64) {
        self.change(Change::Write { offset, bytes: bytes.to_vec() });
    }

    pub(crate) fn set_len(&mut self, len: u64) {
        self.change(Change::SetLen(len));
    }

    /// Makes every write durable.
    pub(crate) fn sync(&mut self) {
        for unsynced in self.unsynced.drain(..) {
            unsynced.change.apply(&mut self.durable);
        }
    }

    /// Decides now which writes a crash will leave. Readers see everything until then, and no later
    /// sync saves lost writes.
    pub(crate) fn fail_sync(&mut self, random: &mut Random, injected: &mut Injected) {
        let outcomes = choose_outcomes(self.unsynced.len(), random);
        self.durable = self.survivors(&outcomes, random, injected);
        self.unsynced.clear();
    }

    /// Applies a power cut: reduces the file to what survived.
    pub(crate) fn crash(&mut self, random: &mut Random, injected: &mut Injected) {
        self.fail_sync(random, injected);
        self.current = self.durable.clone();
    }

    /// Changes one byte permanently, in every copy of it.
    pub(crate) fn corrupt(&mut self, offset: u64, mask: u8) {
        for image in [&mut self.current, &mut self.durable] {
            let mut byte = [0];
            if image.read(&mut byte, offset) == 1 {
                image.write(&[byte[0] ^ mask], offset);
            }
        }
        for unsynced in &mut self.unsynced {
            if let Change::Write { offset: start, bytes } = &mut unsynced.change
                && let Some(byte) =
                    offset.checked_sub(*start).and_then(|at| bytes.get_mut(at as usize))
            {
                *byte ^= mask;
            }
        }
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.current);
        self.unsynced.push(Unsynced { change, len_after: self.current.len() });
    }

    fn survivors(
        &self,
        outcomes: &WriteOutcomes,
        random: &mut Random,
        injected: &mut Injected,
    ) -> Image {
        let mut image = self.durable.clone();
        for (i, (unsynced, outcome)) in self.unsynced.iter().zip(&outcomes.writes).enumerate() {
            match &unsynced.change {
                Change::SetLen(len) if i < outcomes.lens_kept => image.set_len(*len),
                Change::SetLen(_) => {}
                Change::Write { offset, bytes } => {
                    survive(&mut image, bytes, *offset, *outcome, random, injected)
                }
            }
        }
        let last_kept = outcomes.lens_kept.checked_sub(1).map(|i| &self.unsynced[i]);
        image.set_len(last_kept.map_or(self.durable.len(), |unsynced| unsynced.len_after));
        image
    }
}

impl Change {
    fn apply(&self, image: &mut Image) {
        match self {
            Self::Write { offset, bytes } => image.write(bytes, *offset),
            Self::SetLen(len) => image.set_len(*len),
        }
    }
}

/// Applies a write, or its surviving part, to `image`.
fn survive(
    image: &mut Image,
    bytes: &[u8],
    offset: u64,
    outcome: WriteOutcome,
    random: &mut Random,
    injected: &mut Injected,
) {
    match outcome {
        WriteOutcome::Whole => image.write(bytes, offset),
        WriteOutcome::Lost => injected.lost_writes += 1,
        WriteOutcome::Torn => {
            let kept: Vec<bool> =
                sectors(offset, bytes.len()).map(|_| random.chance(0.5)).collect();
            for ((start, end), _) in
                sectors(offset, bytes.len()).zip(&kept).filter(|(_, kept)| **kept)
            {
                image.write(&bytes[start..end], offset + start as u64);
            }
            match (kept.contains(&true), kept.contains(&false)) {
                (true, true) => injected.torn_writes += 1,
                (false, _) => injected.lost_writes += 1,
                (true, false) => {}
            }
        }
    }
}

/// Splits `len` bytes at `offset` at sector boundaries: starts and ends within the bytes.
fn sectors(offset: u64, len: usize) -> impl Iterator<Item = (usize, usize)> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let within = ((offset + start as u64) % SECTOR_BYTES) as usize;
        let end = len.min(start + SECTOR_BYTES as usize - within);
        let sector = (start, end);
        start = end;
        (sector.0 < sector.1).then_some(sector)
    })
}

/// Draws the outcomes of `count` writes: all lost, all kept, a prefix kept with a torn write after
/// it, or each independently.
///
/// Most real crashes look like the first three, which would hardly ever occur if each of many
/// writes were drawn independently.
fn choose_outcomes(count: usize, random: &mut Random) -> WriteOutcomes {
    let any = |random: &mut Random| random.below(count as u64 + 1) as usize;
    match random.below(8) {
        0 => WriteOutcomes { writes: vec![WriteOutcome::Lost; count], lens_kept: any(random) },
        1 => WriteOutcomes { writes: vec![WriteOutcome::Whole; count], lens_kept: count },
        2 | 3 => {
            let whole = any(random);
            let mut writes = vec![WriteOutcome::Lost; count];
            writes[..whole].fill(WriteOutcome::Whole);
            let torn = (whole + 1).min(count);
            writes[whole..torn].fill(WriteOutcome::Torn);
            WriteOutcomes { writes, lens_kept: torn }
        }
        _ => {
            let writes = (0..count)
                .map(|_| {
                    [WriteOutcome::Whole, WriteOutcome::Torn, WriteOutcome::Lost]
                        [random.below(3) as usize]
                })
                .collect();
            WriteOutcomes { writes, lens_kept: any(random) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(bytes: &Bytes, writes: &[WriteOutcome], lens_kept: usize) -> Vec<u8> {
        let outcomes = WriteOutcomes { writes: writes.to_vec(), lens_kept };
        bytes.survivors(&outcomes, &mut Random::new(1), &mut Injected::default()).to_vec()
    }

    #[test]
    fn lengths_and_bytes_survive_independently() {
        let mut bytes = Bytes::default();
        bytes.write(b"old", 0);
        bytes.sync();
        bytes.write(b"new", 3);
        assert_eq!(after(&bytes, &[WriteOutcome::Whole], 1), b"oldnew");
        assert_eq!(after(&bytes, &[WriteOutcome::Whole], 0), b"old");
        assert_eq!(after(&bytes, &[WriteOutcome::Lost], 1), b"old\0\0\0");
        assert_eq!(after(&bytes, &[WriteOutcome::Lost], 0), b"old");
    }

    #[test]
    fn truncation_then_growth_reads_zeros() {
        let mut bytes = Bytes::default();
        bytes.write(b"abcdef", 0);
        bytes.sync();
        bytes.set_len(2);
        bytes.write(b"F", 5);
        assert_eq!(bytes.current().to_vec(), b"ab\0\0\0F");
        assert_eq!(after(&bytes, &[WriteOutcome::Whole, WriteOutcome::Lost], 2), b"ab\0\0\0\0");
        assert_eq!(after(&bytes, &[WriteOutcome::Whole, WriteOutcome::Lost], 1), b"ab");
        assert_eq!(after(&bytes, &[WriteOutcome::Whole, WriteOutcome::Whole], 0), b"abcdeF");
    }

    #[test]
    fn a_later_write_may_survive_an_earlier_one() {
        let mut bytes = Bytes::default();
        bytes.write(b"first", 0);
        bytes.write(b"second", 5);
        assert_eq!(
            after(&bytes, &[WriteOutcome::Lost, WriteOutcome::Whole], 2),
            b"\0\0\0\0\0second"
        );
    }

    #[test]
    fn torn_write_ends_at_a_sector() {
        assert_eq!(sectors(500, 600).collect::<Vec<_>>(), [(0, 12), (12, 524), (524, 600)]);
        assert_eq!(sectors(512, 512).collect::<Vec<_>>(), [(0, 512)]);
        assert_eq!(sectors(7, 0).count(), 0);
    }

    #[test]
    fn outcomes_depend_only_on_the_seed() {
        let draw = |seed| format!("{:?}", choose_outcomes(20, &mut Random::new(seed)));
        assert!((0..50).all(|seed| draw(seed) == draw(seed)));
        assert!((1..50).any(|seed| draw(seed) != draw(0)));
    }
}
