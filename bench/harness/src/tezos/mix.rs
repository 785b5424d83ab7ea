//! The number of operations of each kind in a commit: the published totals of a replay of 10,310
//! commits, spread over commits of varying size.

use crate::payload::mix;

/// The operations of a commit on the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Add,
    Remove,
    Find,
    Mem,
    MemTree,
}

/// Kinds, in the order in which they are counted.
pub(super) const KINDS: [Kind; 5] = [Kind::Add, Kind::Remove, Kind::Find, Kind::Mem, Kind::MemTree];

/// Commits of the published replay, and its operations by kind (irmin-server, pull request 4). Its
/// 47 `Copy` are left out.
pub(super) const PUBLISHED_COMMITS: u64 = 10_310;
pub(super) const PUBLISHED: [u64; 5] = [734_063, 47_231, 2_312_283, 545_590, 340_164];

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Remove => "remove",
            Self::Find => "find",
            Self::Mem => "mem",
            Self::MemTree => "mem_tree",
        }
    }
}

/// Parts of a commit.
const PARTS: u64 = 1024;
/// How many parts a boundary between two commits may be moved by, in either direction: commits have
/// from 0.2 to 1.8 times the mean.
const UNEVEN: u64 = 410;

/// Operations of commit `number`, by kind.
pub(super) fn counts(number: u64, seed: u64) -> [u64; 5] {
    let (from, to) = (boundary(number, seed), boundary(number + 1, seed));
    PUBLISHED.map(|total| {
        total * to / (PUBLISHED_COMMITS * PARTS) - total * from / (PUBLISHED_COMMITS * PARTS)
    })
}

/// The start of commit `number`, in parts.
fn boundary(number: u64, seed: u64) -> u64 {
    if number == 0 {
        return 0;
    }
    number * PARTS + mix(seed ^ mix(number)) % (2 * UNEVEN + 1) - UNEVEN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_together_have_the_published_mix() {
        for (commits, seed) in [(1000, 1), (1000, 2), (PUBLISHED_COMMITS, 3)] {
            let mut totals = [0; 5];
            for number in 0..commits {
                counts(number, seed)
                    .iter()
                    .zip(&mut totals)
                    .for_each(|(count, total)| *total += count);
            }
            for (total, published) in totals.into_iter().zip(PUBLISHED) {
                let expected = published as f64 * commits as f64 / PUBLISHED_COMMITS as f64;
                assert!((total as f64 / expected - 1.0).abs() < 0.01, "{total} {expected}");
            }
        }
    }

    #[test]
    fn commits_are_of_uneven_size() {
        let sizes: Vec<u64> = (0..1000).map(|number| counts(number, 1).iter().sum()).collect();
        let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
        assert!((60..150).contains(least) && (620..700).contains(most), "{least} {most}");
    }
}
