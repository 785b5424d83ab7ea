//! Chunks of neighbouring intervals of a set, and the search for the interval around a key. The
//! search compares key prefixes, which lie side by side as numbers. If it compared whole keys, it
//! would miss the processor's caches at each of them.

use std::sync::Arc;

use plimsoll_log::glsn::Glsn;

use crate::index::gaps::key_prefix::prefix;
use crate::index::ranges::Fragment;

/// The most intervals in a chunk. To add a range, the chunks that it touches are copied, so they
/// are kept small.
pub(super) const MOST: usize = 64;

/// The first keys of intervals or of chunks, in key order, for searches.
#[derive(Clone, Debug, Default)]
pub(super) struct Directory {
    /// Bytes that all first keys begin with.
    common: Vec<u8>,
    /// The beginning of the rest of each key.
    prefixes: Vec<u128>,
}

impl Directory {
    /// A directory of first keys, in ascending order.
    pub(super) fn new<'k>(firsts: impl DoubleEndedIterator<Item = &'k [u8]> + Clone) -> Self {
        let mut ends = firsts.clone();
        let Some(first) = ends.next() else { return Self::default() };
        let last = ends.next_back().unwrap_or(first);
        let len = first.iter().zip(last).take_while(|(a, b)| a == b).count();
        let prefixes = firsts.map(|key| prefix(&key[len..])).collect();
        Self { common: first[..len].to_vec(), prefixes }
    }

    /// Number of first keys at or before `key`. `first_of` returns the whole first key at a place.
    #[inline]
    pub(super) fn begun<'k>(&self, key: &[u8], first_of: impl Fn(usize) -> &'k [u8]) -> usize {
        let len = self.common.len().min(key.len());
        match key[..len].cmp(&self.common[..]) {
            std::cmp::Ordering::Less => return 0,
            std::cmp::Ordering::Greater => return self.prefixes.len(),
            std::cmp::Ordering::Equal => {}
        }
        let wanted = prefix(&key[len..]);
        let mut begun = self.prefixes.partition_point(|prefix| *prefix < wanted);
        // Keys with the same beginning are compared as a whole.
        let same = self.prefixes[begun..].iter().take_while(|prefix| **prefix == wanted).count();
        if same > 0 {
            let (mut from, mut to) = (begun, begun + same);
            while from < to {
                let middle = from + (to - from) / 2;
                if first_of(middle) <= key { from = middle + 1 } else { to = middle }
            }
            begun = from;
        }
        begun
    }

    pub(super) fn bytes(&self) -> usize {
        self.common.capacity() + self.prefixes.capacity() * size_of::<u128>()
    }
}

/// Neighbouring intervals: at least one.
#[derive(Debug)]
pub(super) struct Chunk {
    pub(super) fragments: Vec<Fragment>,
    directory: Directory,
    pub(super) bytes: usize,
    pub(super) newest: Glsn,
}

impl Chunk {
    pub(super) fn new(mut fragments: Vec<Fragment>) -> Self {
        // A copy of a list may have room for more than it holds.
        fragments.iter_mut().for_each(|fragment| fragment.glsns.shrink_to_fit());
        let directory = Directory::new(fragments.iter().map(|fragment| &*fragment.first));
        let bytes = fragments.iter().map(Fragment::bytes).sum::<usize>()
            + size_of::<Self>()
            + directory.bytes();
        let newest = fragments.iter().map(|fragment| fragment.glsns[0]).max();
        Self { fragments, directory, bytes, newest: newest.unwrap_or(Glsn::NONE) }
    }

    pub(super) fn first(&self) -> &[u8] {
        self.fragments.first().map_or(&[], |fragment| &fragment.first)
    }

    /// The end of its last interval.
    pub(super) fn end(&self) -> &[u8] {
        self.fragments.last().map_or(&[], |fragment| &fragment.end)
    }

    /// Number of its intervals that begin at or before `key`.
    #[inline]
    pub(super) fn begun(&self, key: &[u8]) -> usize {
        self.directory.begun(key, |at| &self.fragments[at].first)
    }
}

/// The chunks of a new set, which shares some chunks with another set.
#[derive(Default)]
pub(super) struct Chunks {
    done: Vec<Arc<Chunk>>,
    /// The next intervals, which are in no chunk yet.
    pub(super) changed: Vec<Fragment>,
}

impl Chunks {
    /// Adds a chunk of the other set.
    pub(super) fn share(&mut self, chunk: &Arc<Chunk>) {
        self.divide();
        self.done.push(Arc::clone(chunk));
    }

    /// Puts the next intervals into new chunks.
    fn divide(&mut self) {
        self.done.extend(chunks_of(joined(std::mem::take(&mut self.changed))));
    }

    pub(super) fn finish(mut self) -> Vec<Arc<Chunk>> {
        self.divide();
        self.done
    }
}

/// Intervals in chunks of about the same length.
pub(super) fn chunks_of(fragments: Vec<Fragment>) -> Vec<Arc<Chunk>> {
    if fragments.is_empty() {
        return Vec::new();
    }
    let count = fragments.len().div_ceil(MOST);
    let each = fragments.len().div_ceil(count);
    let mut fragments = fragments.into_iter().peekable();
    let mut chunks = Vec::with_capacity(count);
    while fragments.peek().is_some() {
        chunks.push(Arc::new(Chunk::new(fragments.by_ref().take(each).collect())));
    }
    chunks
}

/// Neighbours with the same deletions become one interval.
pub(super) fn joined(fragments: Vec<Fragment>) -> Vec<Fragment> {
    let mut joined: Vec<Fragment> = Vec::with_capacity(fragments.len());
    for fragment in fragments {
        match joined.last_mut() {
            Some(last) if last.end == fragment.first && last.glsns == fragment.glsns => {
                last.end = fragment.end;
            }
            _ => joined.push(fragment),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use plimsoll_disk::random::Random;

    use super::*;

    #[test]
    fn a_directory_finds_what_a_search_of_the_keys_finds() {
        for seed in 0..300 {
            let mut random = Random::new(seed);
            let mut key = || {
                let common = [&b""[..], b"abc", b"abcdefghijklmnopqrstuvwxyz"];
                let mut key = common[random.below(3).min(seed % 4) as usize].to_vec();
                key.extend((0..random.below(4)).map(|_| random.below(3) as u8));
                key.extend_from_slice(&[0; 20][..random.below(20) as usize]);
                key
            };
            let mut keys: Vec<Vec<u8>> = (0..seed % 30).map(|_| key()).collect();
            keys.sort_unstable();
            keys.dedup();
            let directory = Directory::new(keys.iter().map(|key| &key[..]));
            for wanted in (0..30).map(|_| key()).chain(keys.clone()) {
                let begun = keys.partition_point(|key| *key <= wanted);
                assert_eq!(directory.begun(&wanted, |at| &keys[at]), begun, "seed {seed}");
            }
        }
    }
}
