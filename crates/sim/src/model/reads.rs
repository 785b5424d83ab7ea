//! The model's read set of a transaction, and whether its commit must be refused.
//!
//! Invariant: a commit is refused if and only if a key or span that it read has a version newer
//! than its snapshot. There are two exceptions. A transaction whose read set was too large to be
//! kept in detail may also be refused because of other keys. A transaction with a failed read may
//! be refused because of keys that the read may have read and did not return.

use crate::model::Model;
use crate::op::{Edge, Key, Span};

/// The size of a read set under the smallest budget.
const LEAST_BYTES: u64 = 128 << 10;

/// The longest key.
const MAX_KEY_BYTES: usize = 4096;

/// The reads of a transaction.
#[derive(Clone, Debug, Default)]
pub struct Reads {
    spans: Vec<(u8, Span)>,
    /// Keys that a failed read may have read beyond those it returned.
    perhaps: Vec<(u8, Span)>,
    bytes: usize,
    /// The read set may have been refused memory, so that everything counts as read.
    may_be_all: bool,
}

impl Reads {
    /// Records a read key.
    pub fn key(&mut self, space: u8, key: &[u8]) {
        self.add(space, span_of_key(key), 2 * key.len());
    }

    /// Records that a key may count as read, because its read returned no answer.
    pub fn perhaps_key(&mut self, space: u8, key: &[u8]) {
        self.perhaps(space, &span_of_key(key));
    }

    /// Records a completed scan of a span.
    pub fn whole(&mut self, space: u8, span: &Span) {
        self.add(space, span.clone(), span_bytes(span));
    }

    /// Records a scan of a span that was abandoned after it returned `reached`.
    pub fn part(&mut self, space: u8, span: &Span, reverse: bool, reached: &Key) {
        let (lower, upper) = match span {
            Span::Range(lower, upper) => (lower.clone(), upper.clone()),
            // Keys that follow `reached` and have the prefix are above it. Keys without the prefix
            // are excluded by the upper edge.
            Span::Prefix(prefix) => (Edge::At(prefix.clone()), Edge::Open),
        };
        let read = match (reverse, span) {
            (false, _) => Span::Range(lower, Edge::At(reached.clone())),
            (true, Span::Range(..)) => Span::Range(Edge::At(reached.clone()), upper),
            (true, Span::Prefix(prefix)) => {
                Span::Range(Edge::At(reached.clone()), behind_prefix(prefix))
            }
        };
        let bytes = span_bytes(&read);
        self.add(space, read, bytes);
    }

    /// Records a failed scan of a span, which may have read more than it returned.
    pub fn perhaps(&mut self, space: u8, span: &Span) {
        self.perhaps.push((space, span.clone()));
        self.bytes += span_bytes(span) + 100;
    }

    /// The read set may be refused memory from here on.
    pub fn may_be_refused(&mut self) {
        self.may_be_all = true;
    }

    fn add(&mut self, space: u8, span: Span, bytes: usize) {
        self.spans.push((space, span));
        self.bytes += bytes + 100;
    }

    /// Whether the set may have been too large to be kept in detail, if it is limited to this many
    /// bytes (`None`: the budget's share) and the longest key that an iterator could reach has
    /// `longest` bytes.
    pub fn may_be_coarse(&self, limit_bytes: Option<u64>, longest: usize) -> bool {
        // During a scan, the set holds the key reached so far, even if the scan later reaches the
        // end.
        let is_empty = self.spans.is_empty() && self.perhaps.is_empty();
        let on_the_way = if is_empty { 0 } else { longest };
        // The store's representation of a range has a header.
        self.may_be_all
            || (self.bytes + on_the_way) as u64 > limit_bytes.unwrap_or(LEAST_BYTES) / 8 * 3
    }

    /// Whether the set certainly covers a key.
    pub fn covers(&self, key: &[u8]) -> bool {
        self.spans.iter().any(|(_, span)| span.contains(key))
    }

    /// A read key with a version newer than `at`, unless it had no value then and has none now: the
    /// store may have dropped the versions in between.
    pub fn conflict(&self, model: &Model, at: u64) -> Option<(u8, Key)> {
        let is_changed = |space, key: &[u8]| {
            let has_value = |at| model.get(space, key, at).is_some();
            model.changed(space, key, at).next().is_some()
                && (has_value(at) || has_value(model.newest()))
        };
        self.spans.iter().find_map(|(space, span)| {
            let keys = model.keys(*space).into_iter();
            keys.filter(|key| span.contains(key))
                .find(|key| is_changed(*space, key))
                .map(|key| (*space, key))
        })
    }

    /// The keyspace and a key at an edge of the reads: on the edge, next to it, or the last key
    /// within it. `None` if nothing was read.
    pub fn key_at_edge(&self, model: &Model, pick: u32) -> Option<(u8, Key)> {
        let (pick, count) = (pick as usize, self.spans.len());
        // Mostly choose the last read.
        let at =
            if pick.is_multiple_of(3) { pick / 3 % count.max(1) } else { count.checked_sub(1)? };
        let (space, span) = self.spans.get(at)?;
        let mut keys = model.keys(*space);
        keys.sort();
        let inside: Vec<&Key> = keys.iter().filter(|key| span.contains(key)).collect();
        let (lower, upper) = match span {
            Span::Range(lower, upper) => (lower.clone(), upper.clone()),
            Span::Prefix(prefix) => (Edge::At(prefix.clone()), behind_prefix(prefix)),
        };
        let is_upper = pick / 7 % 3 > 0;
        let (edge, last) =
            if is_upper { (&upper, inside.last()) } else { (&lower, inside.first()) };
        let mut choices: Vec<Key> =
            last.into_iter().flat_map(|key| [(*key).clone(), behind(key), before(key)]).collect();
        match edge {
            Edge::At(key) | Edge::Beside(key) => {
                choices.extend([key.clone(), behind(key), before(key)]);
                let beyond = match is_upper {
                    true => keys.iter().find(|other| *other > key),
                    false => keys.iter().rfind(|other| *other < key),
                };
                choices.extend(beyond.cloned());
            }
            Edge::Open => choices.push(if is_upper { vec![0xff, 0xff, 0xff] } else { Vec::new() }),
        }
        choices.retain(|key| key.len() <= MAX_KEY_BYTES);
        let key = choices.get(pick / 21 % choices.len().max(1))?;
        Some((*space, key.clone()))
    }

    /// Whether commit `by` changed `key`, in a keyspace where the key was or may have been read.
    pub fn changed_by(&self, model: &Model, key: &[u8], by: u64) -> bool {
        self.spans.iter().chain(&self.perhaps).any(|(space, span)| {
            let is_changed = model.changed(*space, key, by - 1).next() == Some(by);
            // The deletion of a range also conflicts with a read of a key that had no value.
            span.contains(key) && (is_changed || model.deletes_in_range(*space, key, by))
        })
    }
}

fn span_of_key(key: &[u8]) -> Span {
    Span::Range(Edge::At(key.to_vec()), Edge::At(key.to_vec()))
}

fn span_bytes(span: &Span) -> usize {
    let edge = |edge: &Edge| match edge {
        Edge::Open => 0,
        Edge::At(key) | Edge::Beside(key) => key.len(),
    };
    match span {
        Span::Prefix(prefix) => 2 * prefix.len(),
        Span::Range(lower, upper) => edge(lower) + edge(upper),
    }
}

/// The immediate successor of a key.
fn behind(key: &[u8]) -> Key {
    [key, &[0]].concat()
}

/// A key slightly before another one.
fn before(key: &[u8]) -> Key {
    match key.split_last() {
        None => Vec::new(),
        Some((0, rest)) => rest.to_vec(),
        Some((last, rest)) => [rest, &[last - 1, 0xff]].concat(),
    }
}

/// The exclusive end of the keys with `prefix`.
fn behind_prefix(prefix: &[u8]) -> Edge {
    let Some(keep) = prefix.iter().rposition(|&byte| byte < u8::MAX) else { return Edge::Open };
    let mut end = prefix[..=keep].to_vec();
    end[keep] += 1;
    Edge::Beside(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::Content;
    use crate::model::{Entry, Writes};

    fn model_with(keys: &[&str]) -> Model {
        let mut model = Model::default();
        for key in keys {
            let writes =
                Writes::from([((0, key.as_bytes().to_vec()), Some(Content { bytes: 1, seed: 1 }))]);
            model.submit(vec![Entry::Commit { writes, metadata: Content::default(), read_at: 0 }]);
        }
        model
    }

    #[test]
    fn abandoned_walk_has_read_up_to_its_position() {
        let model = model_with(&["ab", "ad", "b"]);
        let span = Span::Prefix(b"a".to_vec());
        let mut forward = Reads::default();
        forward.part(0, &span, false, &b"ac".to_vec());
        assert_eq!(forward.conflict(&model, 0), Some((0, b"ab".to_vec())));
        assert_eq!(forward.conflict(&model, 1), None);
        let mut backward = Reads::default();
        backward.part(0, &span, true, &b"ac".to_vec());
        assert_eq!(backward.conflict(&model, 1), Some((0, b"ad".to_vec())));
        assert_eq!(backward.conflict(&model, 2), None);
        assert!(backward.changed_by(&model, b"ad", 2) && !backward.changed_by(&model, b"ad", 3));
    }

    #[test]
    fn reads_of_a_failed_walk_may_conflict() {
        let model = model_with(&["ab", "ad", "b"]);
        let mut reads = Reads::default();
        reads.perhaps(0, &Span::Prefix(b"a".to_vec()));
        assert_eq!(reads.conflict(&model, 0), None);
        assert!(reads.changed_by(&model, b"ad", 2));
        assert!(!reads.changed_by(&model, b"b", 3));
    }

    #[test]
    fn unread_keys_do_not_conflict() {
        let model = model_with(&["a", "b"]);
        let mut reads = Reads::default();
        reads.key(0, b"a");
        reads.key(1, b"b");
        assert_eq!(reads.conflict(&model, 1), None);
        assert_eq!(reads.conflict(&model, 0), Some((0, b"a".to_vec())));
    }
}
