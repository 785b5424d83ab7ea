//! Estimates the number of keys in a range without scanning it.
//!
//! A source adds the keys whose newest version in it is a value. It subtracts those of its keys
//! that are alive in the sources beneath it: keys that it overwrites, which must be counted once,
//! and keys that it deletes, which must not be counted. Both numbers are estimated. Keys and values
//! are counted from a sample of a memtable's entries, and from a table's metadata if the range
//! covers it, otherwise from some of its leaves. The keys alive beneath are estimated by looking up
//! to [`SAMPLED`] keys of the source up in the sources beneath it.
//!
//! The oldest source has nothing beneath it, so errors of the second estimate only concern the
//! younger sources, which are smaller.

use std::cmp::Reverse;
use std::ops::Bound;

use plimsoll_log::glsn::Glsn;
use plimsoll_memory::pool::Touch;
use plimsoll_memory::sorted::Entry;

use crate::index::run::leaf::comes_before;
use crate::index::run::table::Table;
use crate::index::sources::source::{Memtable, Run, Source, lookup_in_run};
use crate::index::sources::view::{KeyRange, View, tables_in};
use crate::types::error::Result;
use crate::types::version::Stored;

/// Maximum number of keys of a source that are looked up in the sources beneath it.
const SAMPLED: usize = 32;

/// Number of a memtable's keys that are counted exactly before sampling begins.
const KEYS_COUNTED: usize = 128;

/// Maximum number of deleted ranges that are excluded from a count.
const RANGES_ASKED: usize = 64;

/// One in this many keys of a leaf is a candidate for the sample, because adjacent keys are often
/// written together.
const LEAF_STEP: usize = 8;

/// Estimates the number of keys in a range that have a value now. Reads some pages of each run, and
/// looks up at most [`SAMPLED`] keys of each source.
pub(crate) fn keys_in(view: &View, range: KeyRange<'_>) -> Result<u64> {
    let sources: Vec<Source<'_>> = view.sources().collect();
    let mut alive = 0.0;
    for (at, source) in sources.iter().enumerate() {
        let beneath = &sources[at + 1..];
        let mut sample = Sample { is_wanted: !beneath.is_empty(), keys: Vec::new() };
        let count = in_source(source, range, &mut sample)?;
        let mut hidden = Count::default();
        for part in deleted_parts(view, range, source.max_glsn()) {
            let mut none = Sample { is_wanted: false, keys: Vec::new() };
            hidden = hidden.plus(in_source(source, part, &mut none)?);
        }
        let count = count.minus(hidden);
        alive += count.values - count.keys * sample.part_alive_in(beneath)?;
    }
    Ok(alive.max(0.0).round() as u64)
}

fn in_source(source: &Source<'_>, range: KeyRange<'_>, sample: &mut Sample) -> Result<Count> {
    match source {
        Source::Memtable(memtable) => Ok(in_memtable(memtable, range, sample)),
        Source::Run(run) => in_run(run, range, sample),
    }
}

/// The parts of a range that were deleted after everything in a source was written, up to
/// [`RANGES_ASKED`].
fn deleted_parts<'v>(
    view: &'v View,
    range: KeyRange<'v>,
    newest: Glsn,
) -> impl Iterator<Item = KeyRange<'v>> {
    let deleted = view.ranges.within(range).filter(move |part| part.glsns[0] > newest);
    deleted.take(RANGES_ASKED).map(move |part| {
        let lower = match range.0 {
            Bound::Included(key) | Bound::Excluded(key) if *key > *part.first => range.0,
            _ => Bound::Included(&*part.first),
        };
        let upper = match range.1 {
            Bound::Included(key) | Bound::Excluded(key) if *key < *part.end => range.1,
            _ => Bound::Excluded(&*part.end),
        };
        (lower, upper)
    })
}

/// The number of keys of a source in the range, and of those whose newest version in it is a value.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    keys: f64,
    values: f64,
}

impl Count {
    fn add(&mut self, is_value: bool, part: f64) {
        self.keys += part;
        self.values += if is_value { part } else { 0.0 };
    }

    fn scaled(self, by: f64) -> Self {
        Self { keys: self.keys * by, values: self.values * by }
    }

    fn minus(self, other: Self) -> Self {
        let left = |all: f64, part: f64| (all - part).max(0.0);
        Self { keys: left(self.keys, other.keys), values: left(self.values, other.values) }
    }

    fn plus(self, other: Self) -> Self {
        Self { keys: self.keys + other.keys, values: self.values + other.values }
    }
}

/// Keys of one source, each with the number of keys that it represents, up to a common factor.
struct Sample {
    /// Whether there is a source beneath.
    is_wanted: bool,
    keys: Vec<(Vec<u8>, f64)>,
}

impl Sample {
    fn take(&mut self, key: &[u8], weight: f64) {
        if self.is_wanted {
            self.keys.push((key.to_vec(), weight));
        }
    }

    /// The fraction of the keys that have a value in the sources beneath, which are listed newest
    /// first.
    fn part_alive_in(&self, beneath: &[Source<'_>]) -> Result<f64> {
        let count = self.keys.len().min(SAMPLED);
        let (mut all, mut alive) = (0.0, 0.0);
        for number in 0..count {
            let (key, weight) = &self.keys[number * self.keys.len() / count];
            all += weight;
            alive += if is_alive_in(beneath, key)? { *weight } else { 0.0 };
        }
        Ok(if all > 0.0 { alive / all } else { 0.0 })
    }
}

/// Whether the newest version of a key in these sources is a value.
fn is_alive_in(sources: &[Source<'_>], key: &[u8]) -> Result<bool> {
    for source in sources {
        let answer = match source {
            Source::Memtable(_) => source.lookup(key, Glsn::MAX)?,
            Source::Run(run) => lookup_in_run(run, key, Glsn::MAX, Touch::Scan)?,
        };
        if let Some(place) = answer.found {
            return Ok(place.stored() != Stored::Deleted);
        }
    }
    Ok(false)
}

fn in_memtable(memtable: &Memtable, range: KeyRange<'_>, sample: &mut Sample) -> Count {
    let map = memtable.map();
    let from = place_of_lower(range.0).unwrap_or((b"", Glsn::MAX));
    let to = place_of_upper(range.1);
    let is_within = |entry: &Entry<'_>| {
        to.is_none_or(|to| comes_before(entry.key.cmp(to.0), Glsn(entry.order), to.1))
    };
    // Count the first keys exactly.
    let (mut seen, mut count) = (0, Count::default());
    let mut next = map.seek(from.0, from.1.0);
    while let Some(newest) = next.map(|at| map.at(at)).filter(is_within) {
        if seen == KEYS_COUNTED {
            return count.plus(estimate_memtable(memtable, newest.key, to, sample));
        }
        seen += 1;
        count.add(is_value(newest.value), 1.0);
        sample.take(newest.key, 1.0);
        next = next.and_then(|at| map.next(at)).filter(|at| map.at(*at).key != newest.key);
        if next.is_none() {
            next = map.seek(newest.key, Glsn::NONE.0);
        }
    }
    count
}

/// Estimates the keys of a memtable from `first` up to `to` by a sample of its versions, each of
/// which represents a fraction of a key. The keys before `first` were counted exactly and are not
/// sampled.
fn estimate_memtable(
    memtable: &Memtable,
    first: &[u8],
    to: Option<(&[u8], Glsn)>,
    sample: &mut Sample,
) -> Count {
    let map = memtable.map();
    sample.keys.clear();
    let mut seen = Count::default();
    // Samples of one key are consecutive.
    let (mut key, mut part, mut is_alive) = (Vec::new(), 0.0, false);
    let keys = map.estimate((first, u64::MAX), to.map(|(key, glsn)| (key, glsn.0)), |entry| {
        if key != entry.key {
            entry.key.clone_into(&mut key);
            is_alive = is_value(map.seek(entry.key, u64::MAX).map_or(entry, |at| map.at(at)).value);
            let versions =
                map.estimate((entry.key, u64::MAX), Some((entry.key, Glsn::NONE.0)), |_| 1.0);
            part = 1.0 / versions.max(1.0);
        }
        seen.add(is_alive, part);
        sample.take(entry.key, part);
        part
    });
    seen.scaled(if seen.keys > 0.0 { keys / seen.keys } else { 0.0 })
}

fn in_run(run: &Run, range: KeyRange<'_>, sample: &mut Sample) -> Result<Count> {
    let tables = tables_in(run, range);
    let keys_each = (SAMPLED / tables.len().max(1)).max(1);
    let mut count = Count::default();
    for table in tables {
        count = count.plus(in_table(table, range, keys_each, sample)?);
    }
    Ok(count)
}

/// The keys of a table of current versions, which has one version per key.
fn in_table(
    table: &Table,
    range: KeyRange<'_>,
    keys_each: usize,
    sample: &mut Sample,
) -> Result<Count> {
    let info = &table.info;
    let from = place_of_lower(range.0)
        .filter(|(key, glsn)| (*key, Reverse(*glsn)) > (&info.first_key, Reverse(Glsn::MAX)));
    let to = place_of_upper(range.1)
        .filter(|(key, glsn)| (*key, Reverse(*glsn)) < (&info.last_key, Reverse(Glsn::NONE)));
    if from.is_none() && to.is_none() {
        if sample.is_wanted {
            // Leaves at equal intervals; a leaf with short versions represents more keys.
            let leaves: Vec<_> = (0..keys_each)
                .map(|part| table.sample_leaf(part, keys_each))
                .collect::<Result<_>>()?;
            let of_leaves: usize = leaves.iter().map(|(_, keys)| keys).sum();
            for (key, keys) in leaves {
                sample.take(&key, info.versions as f64 * keys as f64 / of_leaves as f64);
            }
        }
        return Ok(Count {
            keys: info.versions as f64,
            values: (info.versions - info.deletions) as f64,
        });
    }
    let (mut seen, mut of_table) = (Count::default(), Vec::new());
    let keys = table.estimate(from, to, |key, stored| {
        if sample.is_wanted && (seen.keys as usize).is_multiple_of(LEAF_STEP) {
            of_table.push(key.to_vec());
        }
        seen.add(stored != Stored::Deleted, 1.0);
        1.0
    })?;
    let each = keys / of_table.len().max(1) as f64;
    of_table.into_iter().for_each(|key| sample.take(&key, each));
    Ok(seen.scaled(if seen.keys > 0.0 { keys / seen.keys } else { 0.0 }))
}

fn is_value(stored: &[u8]) -> bool {
    Stored::decode(stored) != Some(Stored::Deleted)
}

/// The first position of the range in the order of versions.
fn place_of_lower(bound: Bound<&[u8]>) -> Option<(&[u8], Glsn)> {
    match bound {
        Bound::Included(key) => Some((key, Glsn::MAX)),
        Bound::Excluded(key) => Some((key, Glsn::NONE)),
        Bound::Unbounded => None,
    }
}

/// The first position after the range.
fn place_of_upper(bound: Bound<&[u8]>) -> Option<(&[u8], Glsn)> {
    match bound {
        Bound::Included(key) => Some((key, Glsn::NONE)),
        Bound::Excluded(key) => Some((key, Glsn::MAX)),
        Bound::Unbounded => None,
    }
}
