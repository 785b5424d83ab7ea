//! Commits: the operations of each with their expected results, derived from a seed.

use std::ops::Range;

use super::mix::{KINDS, Kind, counts};
use super::model::{Model, Place};

/// Recently used leaves, the target of many reads.
const RECENT: usize = 256;

/// Of 100 reads, how many go to a recently used leaf, and how many to a missing one.
const RECENT_READS: u32 = 40;
const ABSENT_READS: u32 = 10;

/// Adds of new leaves for each removal; the other adds overwrite.
const NEW_FOR_REMOVED: u64 = 2;

/// One operation and its expected result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Operation {
    pub(super) kind: Kind,
    key: Range<usize>,
    /// The data to add, or to find.
    value: Range<usize>,
    /// Whether the leaf, or something below the folder, exists.
    pub(super) there: bool,
}

/// The operations of one commit.
#[derive(Debug, Default)]
pub(super) struct Commit {
    pub(super) operations: Vec<Operation>,
    keys: String,
    values: Vec<u8>,
}

impl Commit {
    pub(super) fn key(&self, operation: &Operation) -> &[u8] {
        self.keys[operation.key.clone()].as_bytes()
    }

    pub(super) fn value(&self, operation: &Operation) -> &[u8] {
        &self.values[operation.value.clone()]
    }

    fn push(&mut self, kind: Kind, model: &Model, place: Place) {
        let (leaf, version) = model.look(place);
        let (key, value) = (self.keys.len(), self.values.len());
        match kind {
            Kind::MemTree => leaf.write_folder(&mut self.keys),
            _ => leaf.write_path(&mut self.keys),
        }
        if let (Kind::Add | Kind::Find, Some(version)) = (kind, version) {
            leaf.write_value(version, &mut self.values);
        }
        let (key, value) = (key..self.keys.len(), value..self.values.len());
        self.operations.push(Operation { kind, key, value, there: version.is_some() });
    }

    /// One read, for checks of a store outside a replay.
    pub(super) fn find(&mut self, model: &Model, place: Place) {
        self.push(Kind::Find, model, place);
    }

    pub(super) fn clear(&mut self) {
        self.operations.clear();
        self.keys.clear();
        self.values.clear();
    }
}

/// Makes commits.
#[derive(Debug)]
pub(super) struct Generator {
    model: Model,
    seed: u64,
    random: fastrand::Rng,
    next: u64,
    recent: Vec<Place>,
}

impl Generator {
    /// The state before the first commit on a tree with this many entries in its large folder.
    pub(super) fn new(entries: u64, seed: u64) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        Self {
            model: Model::new(entries, seed),
            seed,
            random,
            next: 0,
            recent: Vec::with_capacity(RECENT),
        }
    }

    /// The state of the tree after the commits made so far.
    pub(super) fn model(&self) -> &Model {
        &self.model
    }

    /// Recently used leaves.
    pub(super) fn recent(&self) -> &[Place] {
        &self.recent
    }

    /// Replaces `commit` with the next one.
    pub(super) fn make(&mut self, commit: &mut Commit) {
        commit.clear();
        let mut left = counts(self.next, self.seed);
        self.next += 1;
        let mut new = NEW_FOR_REMOVED * left[1];
        for all in (1..=left.iter().sum::<u64>()).rev() {
            let at = draw(&mut self.random, &left, all);
            let place = match KINDS[at] {
                // Spread new leaves over the remaining adds.
                Kind::Add if self.random.u64(..left[at]) < new => {
                    new -= 1;
                    Some(self.model.add())
                }
                Kind::Add => Some(self.model.overwrite(&mut self.random)),
                Kind::Remove => self.model.remove(),
                Kind::Find | Kind::Mem | Kind::MemTree => Some(self.read()),
            };
            left[at] -= 1;
            if let Some(place) = place {
                commit.push(KINDS[at], &self.model, place);
                self.touch(place);
            }
        }
    }

    fn read(&mut self) -> Place {
        match self.random.u32(..100) {
            n if n < RECENT_READS && !self.recent.is_empty() => {
                self.recent[self.random.usize(..self.recent.len())]
            }
            n if n < RECENT_READS + ABSENT_READS => self.model.nowhere(&mut self.random),
            _ => self.model.somewhere(&mut self.random),
        }
    }

    fn touch(&mut self, place: Place) {
        if self.recent.len() < RECENT {
            self.recent.push(place);
        } else {
            let at = self.random.usize(..RECENT);
            self.recent[at] = place;
        }
    }
}

/// A kind, with probability proportional to its remaining count.
fn draw(random: &mut fastrand::Rng, left: &[u64; 5], all: u64) -> usize {
    let mut at = random.u64(..all);
    for (kind, &count) in left.iter().enumerate() {
        match at.checked_sub(count) {
            Some(rest) => at = rest,
            None => return kind,
        }
    }
    unreachable!("the number is below the sum")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::mix::{PUBLISHED, PUBLISHED_COMMITS};
    use super::*;

    fn commits(entries: u64, seed: u64, count: u64, mut each: impl FnMut(&Commit)) -> Generator {
        let mut generator = Generator::new(entries, seed);
        let mut commit = Commit::default();
        for _ in 0..count {
            generator.make(&mut commit);
            each(&commit);
        }
        generator
    }

    #[test]
    fn the_mix_is_the_published_one_to_a_hundredth() {
        let mut totals = [0_u64; 5];
        commits(20_000, 1, 500, |commit| {
            commit.operations.iter().for_each(|operation| totals[operation.kind as usize] += 1);
        });
        for (total, published) in totals.into_iter().zip(PUBLISHED) {
            let expected = published as f64 * 500.0 / PUBLISHED_COMMITS as f64;
            assert!((total as f64 / expected - 1.0).abs() < 0.01, "{total} {expected}");
        }
    }

    #[test]
    fn a_seed_makes_the_same_commits_and_another_seed_others() {
        let all = |seed| {
            let mut all = Vec::new();
            commits(1000, seed, 20, |commit| {
                all.extend(commit.operations.iter().map(|operation| {
                    (
                        operation.kind,
                        commit.key(operation).to_vec(),
                        commit.value(operation).to_vec(),
                        operation.there,
                    )
                }));
            });
            all
        };
        assert!(all(1) == all(1));
        assert!(all(1) != all(2));
    }

    #[test]
    fn few_values_are_longer_than_512_bytes() {
        let (mut adds, mut long) = (0, 0);
        commits(20_000, 1, 600, |commit| {
            for operation in
                commit.operations.iter().filter(|operation| operation.kind == Kind::Add)
            {
                adds += 1;
                long += u32::from(commit.value(operation).len() > 512);
            }
        });
        assert!(long > 0 && long < adds / 1000, "{long} of {adds}");
    }

    #[test]
    fn expected_results_match_a_map() {
        let mut map: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        let mut all = Commit::default();
        let model = Model::new(300, 4);
        for leaf in model.population() {
            let (mut path, mut value) = (String::new(), Vec::new());
            leaf.write_path(&mut path);
            leaf.write_value(0, &mut value);
            map.insert(path.into_bytes(), value);
        }
        let mut absent = 0;
        let generator = commits(300, 4, 40, |commit| {
            for operation in &commit.operations {
                let (key, value) = (commit.key(operation), commit.value(operation));
                match operation.kind {
                    Kind::Add => _ = map.insert(key.to_vec(), value.to_vec()),
                    Kind::Remove => assert!(map.remove(key).is_some()),
                    Kind::Find => assert_eq!(
                        map.get(key).map(Vec::as_slice),
                        operation.there.then_some(value)
                    ),
                    Kind::Mem => assert_eq!(map.contains_key(key), operation.there),
                    Kind::MemTree => {
                        let below = map
                            .range(key.to_vec()..)
                            .next()
                            .is_some_and(|(path, _)| path.starts_with(key));
                        assert_eq!(below, operation.there);
                    }
                }
                absent += u32::from(!operation.there);
            }
        });
        assert!(absent > 500, "{absent} of 15,000 operations found nothing");
        generator.recent().iter().for_each(|&place| all.find(generator.model(), place));
        let right = |operation| {
            map.get(all.key(operation)).map(Vec::as_slice)
                == operation.there.then(|| all.value(operation))
        };
        assert!(all.operations.iter().all(right) && all.operations.len() == RECENT);
    }
}
