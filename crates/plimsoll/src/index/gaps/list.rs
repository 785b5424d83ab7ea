//! A bounded list of gaps: intervals of index keys in which no key is alive.
//!
//! Each gap holds from a GLSN on (`since`). Gaps do not overlap. Neighbours that touch are joined
//! if both hold since the same GLSN, or if both have held for long (see [`GapList::add`]). This
//! file only keeps the list; its users (`index::gaps`, `txn::own_gaps`) decide which intervals are
//! gaps.
//!
//! Invariant: an interval is in the list only if it was added and nothing was put into it since.
//! Forgetting any part of it changes no answer.

use std::borrow::Cow;

use plimsoll_log::glsn::Glsn;

use crate::index::gaps::key_prefix::prefix;

/// Size of a gap without its keys.
const GAP_BYTES: usize = size_of::<Gap>();

/// An interval of index keys: from `first` up to `end`, exclusive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    pub(crate) first: Vec<u8>,
    pub(crate) end: Vec<u8>,
    /// The oldest GLSN at which no key in it is alive.
    pub(crate) since: Glsn,
    /// Number of deleted keys in it that a scan stepped over: the steps that the gap saves.
    pub(crate) dead: u64,
}

impl Gap {
    fn bytes(&self) -> usize {
        GAP_BYTES + self.first.len() + self.end.len()
    }

    fn is_empty(&self) -> bool {
        self.first >= self.end
    }
}

/// The list, in the order of the keys.
#[derive(Debug)]
pub(crate) struct GapList {
    gaps: Vec<Gap>,
    bytes: usize,
    limit_bytes: usize,
}

/// The immediate successor of `key`.
pub(crate) fn successor(key: &[u8]) -> Vec<u8> {
    let mut successor = Vec::with_capacity(key.len() + 1);
    successor.extend_from_slice(key);
    successor.push(0);
    successor
}

/// Whether `key` is the immediate successor of `before`.
fn is_successor(key: &[u8], before: &[u8]) -> bool {
    key.len() == before.len() + 1 && key.starts_with(before) && key.ends_with(&[0])
}

impl GapList {
    /// An empty list of at most `limit_bytes`; beyond that, the least useful gaps are forgotten.
    pub(crate) fn new(limit_bytes: usize) -> Self {
        Self { gaps: Vec::new(), bytes: 0, limit_bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.gaps.is_empty()
    }

    /// Bytes of all gaps.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The gaps, in key order.
    pub(crate) fn into_gaps(self) -> Vec<Gap> {
        self.gaps
    }

    /// Forgets every gap.
    pub(crate) fn clear(&mut self) {
        (self.gaps, self.bytes) = (Vec::new(), 0);
    }

    /// Number of gaps that begin at or before `key`.
    fn begun(&self, key: &[u8]) -> usize {
        self.gaps.partition_point(|gap| *gap.first <= *key)
    }

    /// The end of the adjoining gaps that begin with the one around `from`. For a reader at
    /// snapshot `at`, no key from `from` up to this end is alive.
    pub(crate) fn past(&self, from: &[u8], at: Glsn) -> Option<&[u8]> {
        let start =
            self.begun(from).checked_sub(1).filter(|&start| *self.gaps[start].end > *from)?;
        let usable = self.gaps[start..].iter().take_while(|gap| gap.since <= at);
        let mut past: Option<&[u8]> = None;
        for gap in usable {
            if past.is_some_and(|past| past != gap.first) {
                break;
            }
            past = Some(&gap.end);
        }
        past
    }

    /// The beginning of the adjoining gaps that reach up to `upto`. For a reader at snapshot `at`,
    /// no key from this beginning up to `upto` is alive.
    pub(crate) fn before(&self, upto: &[u8], at: Glsn) -> Option<&[u8]> {
        let end = self.gaps.partition_point(|gap| *gap.first < *upto);
        self.gaps[..end].last().filter(|gap| *gap.end >= *upto)?;
        let mut before: Option<&[u8]> = None;
        for gap in self.gaps[..end].iter().rev().take_while(|gap| gap.since <= at) {
            if before.is_some_and(|before| before != gap.end) {
                break;
            }
            before = Some(&gap.first);
        }
        before
    }

    /// Whether a gap may hold a key whose prefix is between `first` and `last` (see [`prefix`]).
    pub(crate) fn touches(&self, first: u128, last: u128) -> bool {
        let begun = self.gaps.partition_point(|gap| prefix(&gap.first) <= last);
        begun.checked_sub(1).is_some_and(|at| prefix(&self.gaps[at].end) >= first)
    }

    /// Adds a gap. It is joined with neighbours that touch it if both are known since `settled` or
    /// earlier, or since the same GLSN.
    pub(crate) fn add(&mut self, first: &[u8], end: &[u8], since: Glsn, dead: u64, settled: Glsn) {
        if first >= end {
            return;
        }
        if self.extend(first, end, since, dead) {
            return self.limit();
        }
        // The new gap replaces those known since a later GLSN. Those known since an earlier one
        // stay and split the new one.
        let mut begin = self.gaps.partition_point(|gap| *gap.end < *first);
        let mut stop = self.gaps.partition_point(|gap| *gap.first <= *end).max(begin);
        // Include all neighbours that touch each other, because some of them may be joined now.
        let touch = |at: usize| self.gaps[at - 1].end == self.gaps[at].first;
        while begin > 0 && begin < stop && touch(begin) {
            begin -= 1;
        }
        while begin < stop && stop < self.gaps.len() && touch(stop) {
            stop += 1;
        }
        let old: Vec<Gap> = self.gaps.drain(begin..stop).collect();
        self.bytes -= old.iter().map(Gap::bytes).sum::<usize>();
        let mut list: Vec<Gap> = Vec::with_capacity(2 * old.len() + 1);
        let mut from: Cow<'_, [u8]> = Cow::Borrowed(first);
        let mut left = dead;
        let piece = |first: &[u8], end: &[u8], since, dead| Gap {
            first: first.to_vec(),
            end: end.to_vec(),
            since,
            dead,
        };
        for gap in old {
            if *gap.end <= *first {
                list.push(gap);
            } else if *gap.first >= *end {
                if *from < *end {
                    list.push(piece(&from, end, since, std::mem::take(&mut left)));
                    from = Cow::Borrowed(end);
                }
                list.push(gap);
            } else if gap.since > since {
                // Keep the parts outside the new gap.
                let (before, after) = (*gap.first < *first, *gap.end > *end);
                left += gap.dead;
                if before {
                    list.push(piece(&gap.first, first, gap.since, 0));
                }
                if after {
                    list.push(piece(&from, end, since, std::mem::take(&mut left)));
                    from = Cow::Borrowed(end);
                    list.push(piece(end, &gap.end, gap.since, 0));
                }
            } else {
                if *from < *gap.first {
                    list.push(piece(&from, &gap.first, since, std::mem::take(&mut left)));
                }
                if *gap.end > *from {
                    from = Cow::Owned(gap.end.clone());
                }
                list.push(gap);
            }
        }
        if *from < *end {
            list.push(piece(&from, end, since, std::mem::take(&mut left)));
        }
        let mut joined: Vec<Gap> = Vec::with_capacity(list.len());
        for gap in list.into_iter().filter(|gap| !gap.is_empty()) {
            match joined.last_mut() {
                Some(last)
                    if last.end == gap.first
                        && (last.since == gap.since || last.since.max(gap.since) <= settled) =>
                {
                    last.since = last.since.max(gap.since);
                    last.dead += gap.dead;
                    last.end = gap.end;
                }
                _ => joined.push(gap),
            }
        }
        if let Some(last) = joined.last_mut() {
            last.dead += left;
        }
        self.bytes += joined.iter().map(Gap::bytes).sum::<usize>();
        self.gaps.splice(begin..begin, joined);
        self.limit();
    }

    /// The common case of [`GapList::add`]: the new gap extends one of the same `since`, and
    /// touches no other.
    fn extend(&mut self, first: &[u8], end: &[u8], since: Glsn, dead: u64) -> bool {
        let begun = self.begun(first);
        if let Some(at) = begun.checked_sub(1)
            && self.gaps[at].since == since
            && *self.gaps[at].end >= *first
            && self.gaps.get(begun).is_none_or(|next| *next.first > *end)
        {
            let gap = &mut self.gaps[at];
            gap.dead += dead;
            if *gap.end < *end {
                self.bytes = self.bytes - gap.end.len() + end.len();
                gap.end.clear();
                gap.end.extend_from_slice(end);
            }
            return true;
        }
        if let Some(gap) = self.gaps.get(begun)
            && gap.since == since
            && (&gap.first[..]..=&gap.end[..]).contains(&end)
            && begun.checked_sub(1).is_none_or(|before| *self.gaps[before].end < *first)
        {
            let gap = &mut self.gaps[begun];
            gap.dead += dead;
            self.bytes = self.bytes - gap.first.len() + first.len();
            gap.first.clear();
            gap.first.extend_from_slice(first);
            return true;
        }
        false
    }

    /// Extends a gap over an adjacent key that is dead at every GLSN from the gap's `since` on.
    pub(crate) fn delete(&mut self, key: &[u8]) {
        let begun = self.begun(key);
        if let Some(gap) = begun.checked_sub(1).and_then(|at| self.gaps.get_mut(at))
            && gap.end == key
        {
            gap.end.push(0);
            gap.dead += 1;
            self.bytes += 1;
        } else if let Some(gap) = self.gaps.get_mut(begun)
            && is_successor(&gap.first, key)
        {
            gap.first.pop();
            gap.dead += 1;
            self.bytes -= 1;
        }
    }

    /// Removes the keys from `first` up to `end` from the gaps, because something may be put there.
    pub(crate) fn cut(&mut self, first: &[u8], end: &[u8]) {
        let begin = self.gaps.partition_point(|gap| *gap.end <= *first);
        let stop = self.gaps.partition_point(|gap| *gap.first < *end).max(begin);
        let cut: Vec<Gap> = self.gaps.drain(begin..stop).collect();
        self.bytes -= cut.iter().map(Gap::bytes).sum::<usize>();
        let mut kept = Vec::with_capacity(2);
        for gap in cut {
            let (before, after) = (*gap.first < *first, *gap.end > *end);
            let dead = if before && after { gap.dead / 2 } else { gap.dead };
            if before {
                kept.push(Gap {
                    first: gap.first.clone(),
                    end: first.to_vec(),
                    since: gap.since,
                    dead,
                });
            }
            if after {
                kept.push(Gap { first: end.to_vec(), dead, ..gap });
            }
        }
        self.bytes += kept.iter().map(Gap::bytes).sum::<usize>();
        self.gaps.splice(begin..begin, kept);
        self.limit();
    }

    /// Removes a key from its gap, because it is put.
    pub(crate) fn put(&mut self, key: &[u8]) {
        let covers = self.begun(key).checked_sub(1).is_some_and(|at| *self.gaps[at].end > *key);
        if covers {
            self.cut(key, &successor(key));
        }
    }

    /// Forgets the gaps that save the fewest steps until the rest fits.
    fn limit(&mut self) {
        while self.bytes > self.limit_bytes {
            let least = (0..self.gaps.len())
                .min_by_key(|&at| self.gaps[at].dead)
                .expect("bytes are only counted for gaps in the list");
            self.bytes -= self.gaps.remove(least).bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_disk::random::Random;

    use super::*;

    fn list(gaps: &[(&str, &str, u64)]) -> GapList {
        let mut list = GapList::new(1 << 20);
        gaps.iter().for_each(|(first, end, since)| add(&mut list, first, end, *since));
        list
    }

    fn add(list: &mut GapList, first: &str, end: &str, since: u64) {
        list.add(first.as_bytes(), end.as_bytes(), Glsn(since), 1, Glsn::NONE);
    }

    fn text(key: Option<&[u8]>) -> Option<&str> {
        key.map(|key| std::str::from_utf8(key).unwrap())
    }

    #[test]
    fn a_reader_skips_adjacent_gaps_known_at_its_snapshot() {
        let list = list(&[("b", "d", 5), ("d", "f", 7), ("g", "h", 1)]);
        let past = |from: &str, at| text(list.past(from.as_bytes(), Glsn(at)));
        assert_eq!(
            [past("a", 9), past("b", 9), past("c", 6), past("e", 9)],
            [None, Some("f"), Some("d"), Some("f")]
        );
        assert_eq!(
            [past("d", 6), past("f", 9), past("gg", 1), past("b", 4)],
            [None, None, Some("h"), None]
        );
        let before = |upto: &str, at| text(list.before(upto.as_bytes(), Glsn(at)));
        assert_eq!(
            [before("f", 9), before("e", 9), before("e", 6), before("d", 6)],
            [Some("b"), Some("b"), None, Some("b")]
        );
        assert_eq!(
            [before("b", 9), before("g", 9), before("h", 1), before("i", 9)],
            [None, None, Some("g"), None]
        );
    }

    #[test]
    fn a_gap_grows_over_an_adjacent_deleted_key_and_is_split_by_a_put() {
        let mut list = list(&[("b", "d", 0)]);
        list.delete(b"d");
        assert_eq!(list.past(b"b", Glsn(0)), Some(&b"d\0"[..]));
        list.put(b"c");
        assert_eq!((list.past(b"b", Glsn(0)), list.past(b"c", Glsn(0))), (Some(&b"c"[..]), None));
        assert_eq!(list.past(b"c\0", Glsn(0)), Some(&b"d\0"[..]));
        list.delete(b"c");
        assert_eq!(list.past(b"b", Glsn(0)), Some(&b"d\0"[..]));
    }

    #[test]
    fn gaps_that_save_the_fewest_steps_are_forgotten_first() {
        let mut list = GapList::new(3 * GAP_BYTES);
        for (first, end, dead) in [("a", "b", 9), ("c", "d", 1), ("e", "f", 7), ("g", "h", 8)] {
            list.add(first.as_bytes(), end.as_bytes(), Glsn::NONE, dead, Glsn::NONE);
            assert!(list.bytes() <= 3 * GAP_BYTES);
        }
        let left: Vec<_> = list.into_gaps().iter().map(|gap| gap.dead).collect();
        assert_eq!(left, [9, 8]);
    }

    #[test]
    fn a_growing_gap_counts_against_the_limit() {
        let mut list = GapList::new(4 << 10);
        for number in 0..20 {
            add(&mut list, &format!("{number:02}a"), &format!("{number:02}b"), 1);
        }
        for number in 0..20 {
            add(
                &mut list,
                &format!("{number:02}b"),
                &format!("{number:02}{}", "c".repeat(1000)),
                1,
            );
            assert!(list.bytes() <= 4 << 10, "{}", list.bytes());
        }
    }

    #[test]
    fn gaps_hold_only_added_intervals_without_later_puts() {
        for seed in 0..60 {
            let mut random = Random::new(seed);
            let mut list = GapList::new(1 << 20);
            let mut model = [None::<u64>; 40];
            let same_since = seed % 3 == 0;
            let settled = if seed % 3 == 1 { 3 } else { 0 };
            for _ in 0..60 {
                let (one, other) = (random.below(40) as usize, random.below(40) as usize);
                let (first, last) = (one.min(other), one.max(other));
                let name = |at: usize| format!("{at:02}").into_bytes();
                match random.below(4) {
                    0 => {
                        list.put(&name(one));
                        model[one] = None;
                    }
                    1 => {
                        list.cut(&name(first), &name(last));
                        model[first..last].fill(None);
                    }
                    _ => {
                        let since = if same_since { 2 } else { 1 + random.below(6) };
                        list.add(&name(first), &name(last), Glsn(since), 1, Glsn(settled));
                        let older =
                            |known: Option<u64>| known.map_or(since, |known| known.min(since));
                        model[first..last]
                            .iter_mut()
                            .for_each(|known| *known = Some(older(*known)));
                    }
                }
                let bytes: usize = list.gaps.iter().map(Gap::bytes).sum();
                assert_eq!(list.bytes(), bytes);
                assert!(list.gaps.iter().all(|gap| !gap.is_empty()));
                assert!(
                    list.gaps.windows(2).all(|pair| pair[0].end <= pair[1].first),
                    "{seed}: {list:?}"
                );
                for at in 1..8 {
                    for key in 0..40 {
                        let known = model[key].is_some_and(|since| since <= at);
                        let past = list.past(&name(key), Glsn(at));
                        assert!(past.is_none() || known, "{seed}: {key} at {at}: {list:?}");
                        assert_eq!(
                            past.is_some(),
                            list.before(&successor(&name(key)), Glsn(at)).is_some()
                        );
                        // Joining below `settled` raises the GLSN since which a gap is known.
                        assert!(
                            past.is_some() || !known || at < settled,
                            "{seed}: {key} at {at}: {list:?}"
                        );
                        let upto = past.map_or(key, |past| {
                            std::str::from_utf8(&past[..2]).unwrap().parse().unwrap()
                        });
                        assert!(
                            model[key..upto]
                                .iter()
                                .all(|since| since.is_some_and(|since| since <= at)),
                            "{seed}"
                        );
                    }
                }
            }
        }
    }
}
