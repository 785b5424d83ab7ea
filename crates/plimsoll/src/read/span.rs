//! Ranges of index keys.

use std::borrow::Cow;
use std::ops::{Bound, RangeBounds};

use crate::index::sources::view::{KeyRange as KeyBounds, OwnRange};
use crate::types::index_key::{KeptKey, MAX_KEY_BYTES, Prefix, bound_heap_bytes};
use crate::types::key_range::KeyRange;

/// A range of index keys within one keyspace.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    lower: Bound<KeptKey>,
    upper: Bound<KeptKey>,
}

impl Span {
    /// The span of a user's range. A bound that is longer than a key may be is replaced by an
    /// equivalent bound of [`MAX_KEY_BYTES`] bytes.
    pub(crate) fn new(keyspace: u32, range: &impl KeyRange) -> Self {
        let key = |key: &[u8]| index_key(keyspace, key);
        let lower = match range.start_key() {
            Bound::Included(start) | Bound::Excluded(start) if start.len() > MAX_KEY_BYTES => {
                Bound::Excluded(key(&start[..MAX_KEY_BYTES]))
            }
            Bound::Included(start) => Bound::Included(key(start)),
            Bound::Excluded(start) => Bound::Excluded(key(start)),
            Bound::Unbounded => Bound::Included(key(b"")),
        };
        let upper = match range.end_key() {
            Bound::Included(end) | Bound::Excluded(end) if end.len() > MAX_KEY_BYTES => {
                Bound::Included(key(&end[..MAX_KEY_BYTES]))
            }
            Bound::Included(end) => Bound::Included(key(end)),
            Bound::Excluded(end) => Bound::Excluded(key(end)),
            Bound::Unbounded => keyspace_end(keyspace),
        };
        Self { lower, upper }
    }

    /// The span of all keys of a keyspace.
    pub(crate) fn of_keyspace(keyspace: u32) -> Self {
        Self { lower: Bound::Included(index_key(keyspace, b"")), upper: keyspace_end(keyspace) }
    }

    /// The span of all keyspaces before one.
    pub(crate) fn before(keyspace: u32) -> Self {
        Self { lower: Bound::Unbounded, upper: Bound::Excluded(index_key(keyspace, b"")) }
    }

    /// The span of all keyspaces after one.
    pub(crate) fn after(keyspace: u32) -> Self {
        let lower = match keyspace_end(keyspace) {
            Bound::Excluded(next) => Bound::Included(next),
            end => end,
        };
        Self { lower, upper: Bound::Unbounded }
    }

    /// The span of the keys that begin with `prefix`; empty if the prefix is longer than a key may
    /// be.
    pub(crate) fn prefix(keyspace: u32, prefix: &[u8]) -> Self {
        if prefix.len() > MAX_KEY_BYTES {
            return Self::new(keyspace, &(prefix..=prefix));
        }
        let lower = index_key(keyspace, prefix);
        let upper = match successor(prefix) {
            Some(end) => Bound::Excluded(index_key(keyspace, &end)),
            None => keyspace_end(keyspace),
        };
        Self { lower: Bound::Included(lower), upper }
    }

    /// The span with these bounds.
    pub(crate) fn between(lower: Bound<KeptKey>, upper: Bound<KeptKey>) -> Self {
        Self { lower, upper }
    }

    /// The bounds of the span.
    pub(crate) fn into_range(self) -> OwnRange {
        (self.lower, self.upper)
    }

    pub(crate) fn lower(&self) -> Bound<&[u8]> {
        self.lower.as_ref().map(|key| &key[..])
    }

    pub(crate) fn upper(&self) -> Bound<&[u8]> {
        self.upper.as_ref().map(|key| &key[..])
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        bound_heap_bytes(&self.lower) + bound_heap_bytes(&self.upper)
    }

    /// Whether no key can lie in the span.
    pub(crate) fn is_empty(&self) -> bool {
        is_empty((self.lower(), self.upper()))
    }

    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        (self.lower(), self.upper()).contains(key)
    }

    /// The part of a range that lies in the span; `None` if no key can lie there.
    pub(crate) fn overlap<'a>(&'a self, (lower, upper): KeyBounds<'a>) -> Option<KeyBounds<'a>> {
        let is_lower_within = match (lower, self.lower()) {
            (Bound::Unbounded, _) => false,
            (_, Bound::Unbounded) => true,
            (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) => {
                (a, matches!(lower, Bound::Excluded(_)))
                    > (b, matches!(self.lower(), Bound::Excluded(_)))
            }
        };
        let is_upper_within = match (upper, self.upper()) {
            (Bound::Unbounded, _) => false,
            (_, Bound::Unbounded) => true,
            (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) => {
                (a, matches!(upper, Bound::Included(_)))
                    < (b, matches!(self.upper(), Bound::Included(_)))
            }
        };
        let lower = if is_lower_within { lower } else { self.lower() };
        let upper = if is_upper_within { upper } else { self.upper() };
        Some((lower, upper)).filter(|overlap| !is_empty(*overlap))
    }

    /// The first key that can lie in the span.
    pub(crate) fn first(&self) -> Cow<'_, [u8]> {
        match &self.lower {
            Bound::Included(key) => Cow::Borrowed(key),
            // No key lies between a key and the same key with a zero byte appended.
            Bound::Excluded(key) => Cow::Owned([key, &[0][..]].concat()),
            Bound::Unbounded => Cow::Borrowed(&[]),
        }
    }

    /// The first key after all keys of the span; `None` if there is none.
    pub(crate) fn end(&self) -> Option<Cow<'_, [u8]>> {
        match &self.upper {
            Bound::Excluded(key) => Some(Cow::Borrowed(key)),
            Bound::Included(key) => Some(Cow::Owned([key, &[0][..]].concat())),
            Bound::Unbounded => None,
        }
    }
}

/// Whether no key can lie in a range.
fn is_empty(range: KeyBounds<'_>) -> bool {
    match range {
        (Bound::Included(a), Bound::Included(b)) => a > b,
        (Bound::Included(a) | Bound::Excluded(a), Bound::Included(b) | Bound::Excluded(b)) => {
            a >= b
        }
        _ => false,
    }
}

fn index_key(keyspace: u32, key: &[u8]) -> KeptKey {
    KeptKey::join(Prefix::of(keyspace), key)
}

fn keyspace_end(keyspace: u32) -> Bound<KeptKey> {
    let next = Prefix::of(keyspace).next();
    next.map_or(Bound::Unbounded, |next| Bound::Excluded(KeptKey::join(next, b"")))
}

/// The first byte string after all strings that begin with `prefix`; `None` if there is none.
fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let keep = prefix.iter().rposition(|&byte| byte < u8::MAX)?;
    let mut end = prefix[..=keep].to_vec();
    end[keep] += 1;
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_successor_of_a_prefix_follows_all_keys_that_begin_with_it() {
        assert_eq!(successor(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(successor(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(successor(b"\xff"), None);
        assert_eq!(successor(b""), None);
    }

    #[test]
    fn a_span_stays_within_its_keyspace() {
        let span = Span::new(3, &(..));
        assert!(span.contains(&[0, 0, 0, 3]) && span.contains(&[0, 0, 0, 3, 255, 255]));
        assert!(!span.contains(&[0, 0, 0, 4]) && !span.contains(&[0, 0, 0, 2, 255]));
        let span = Span::prefix(u32::MAX, b"\xff");
        assert!(span.contains(&[255, 255, 255, 255, 255, 1]));
    }

    #[test]
    fn an_overlap_has_the_keys_that_are_in_both() {
        let keys: [&[u8]; 5] = [b"", b"a", b"a\0", b"b", b"c"];
        let bounds: Vec<Bound<&[u8]>> = keys
            .iter()
            .flat_map(|key| [Bound::Included(*key), Bound::Excluded(*key)])
            .chain([Bound::Unbounded])
            .collect();
        let all = || bounds.iter().flat_map(|a| bounds.iter().map(move |b| (*a, *b)));
        for range in all() {
            for (lower, upper) in all() {
                let span =
                    Span::between(lower.map(KeptKey::from_slice), upper.map(KeptKey::from_slice));
                let overlap = span.overlap(range);
                for key in keys {
                    let is_in_both = span.contains(key) && range.contains(key);
                    let is_found = overlap.is_some_and(|overlap| overlap.contains(key));
                    assert_eq!(is_found, is_in_both, "{span:?} {range:?} {key:?}");
                }
            }
        }
    }

    #[test]
    fn a_span_that_ends_before_it_begins_is_empty() {
        let key = |byte: u8| vec![byte];
        let (low, high) = (key(1), key(2));
        let span = Span::new(1, &(Bound::Included(&high[..]), Bound::Excluded(&low[..])));
        assert!(span.is_empty());
    }

    #[test]
    fn a_bound_longer_than_a_key_separates_the_same_keys() {
        let longest = vec![7; MAX_KEY_BYTES];
        let (shorter, next) = (&longest[1..], [&longest[1..], &[8]].concat());
        let behind = [&longest[..], b"\0"].concat();
        let is_in = |span: &Span, key: &[u8]| span.contains(&index_key(1, key));
        for bound in [Bound::Included(&behind[..]), Bound::Excluded(&behind[..])] {
            let span = Span::new(1, &(bound, Bound::Unbounded));
            assert!(!is_in(&span, shorter) && !is_in(&span, &longest) && is_in(&span, &next));
            let span = Span::new(1, &(Bound::Unbounded, bound));
            assert!(is_in(&span, shorter) && is_in(&span, &longest) && !is_in(&span, &next));
        }
        assert!(Span::prefix(1, &behind).is_empty());
        assert!(Span::new(1, &(&behind..&behind)).is_empty());
    }
}
