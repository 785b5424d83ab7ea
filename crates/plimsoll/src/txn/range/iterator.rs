//! A range as an [`Iterator`], from both ends.
//!
//! The other end is a second iterator over the keys that the first has not passed. Each records its
//! reads; both end where they meet.

use std::iter::FusedIterator;
use std::ops::Bound;

use super::Range;
use crate::index::sources::view::Direction;
use crate::read::span::Span;
use crate::types::error::Result;
use crate::types::index_key::{IndexKey, KeptKey};
use crate::types::value::Value;

impl<'t> Range<'t> {
    /// Whether the key returned last from this end is at or past the one from the other end.
    pub(super) fn have_ends_met(&self) -> bool {
        let Some(back) = self.back.as_ref().filter(|back| back.has_any && self.has_any) else {
            return false;
        };
        match self.direction {
            Direction::Forward => self.given_key() >= back.given_key(),
            Direction::Backward => self.given_key() <= back.given_key(),
        }
    }

    /// An iterator from the other end over the keys that this one has not passed.
    fn other_end(&mut self) -> Result<Range<'t>> {
        let rest = self.rest()?;
        let mut back = Range::new(&self.committer, rest, self.when.clone());
        back.direction = match self.direction {
            Direction::Forward => Direction::Backward,
            Direction::Backward => Direction::Forward,
        };
        (back.keys_only, back.has_expired) = (self.keys_only, self.has_expired);
        back.own.clone_from(&self.own);
        (back.reads, back.gaps) = (self.reads, self.gaps);
        back.branch = self.branch.as_ref().map(|branch| Box::new(branch.restarted()));
        Ok(back)
    }

    /// The part of the span after the key returned last.
    fn rest(&mut self) -> Result<Span> {
        let kept = self.span.clone().map(Span::into_range);
        let (lower, upper) = match (kept, &mut self.state) {
            (Some(range), _) => range,
            (None, Some(state)) => {
                let mut key = self.key.take();
                let reader = &self.committer.reader;
                let range = reader.step(&mut state.base, &mut key, |base, _| Ok(base.range()));
                self.key.put(key);
                range?
            }
            (None, None) => unreachable!("an iterator that has not begun has its span"),
        };
        let key = self.has_any.then(|| Bound::Excluded(KeptKey::from_slice(&self.given_key())));
        Ok(match (key, self.direction) {
            (None, _) => Span::between(lower, upper),
            (Some(key), Direction::Forward) => Span::between(key, upper),
            (Some(key), Direction::Backward) => Span::between(lower, key),
        })
    }
}

impl Iterator for Range<'_> {
    type Item = Result<(Vec<u8>, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.find_next() {
            Ok(false) => None,
            Err(error) => Some(Err(error)),
            Ok(true) => {
                // Move the value out; a large one takes its charge along.
                let value = std::mem::take(&mut self.value);
                if let Err(error) = self.charge() {
                    return Some(Err(error));
                }
                Some(Ok(match self.rows.current() {
                    Some((key, value)) => {
                        (IndexKey::new(key).user_key().to_vec(), Value::new(value.to_vec().into()))
                    }
                    None => (self.key.user_key().to_vec(), Value::new(value)),
                }))
            }
        }
    }
}

/// `next_back` returns the last key that no call has returned yet; in a reversed range, the first.
/// The other end takes as much memory as a second iterator.
impl DoubleEndedIterator for Range<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.finished {
            return None;
        }
        if self.back.is_none() {
            match self.other_end() {
                Ok(back) => self.back = Some(Box::new(back)),
                Err(error) => {
                    self.finish();
                    return Some(Err(error));
                }
            }
        }
        let item = self.back.as_mut().and_then(|back| back.next());
        if !matches!(item, Some(Ok(_))) {
            self.remember(false);
            self.finish();
            return item;
        }
        if self.have_ends_met() {
            self.remember(false);
            self.finish();
            return None;
        }
        item
    }
}

impl FusedIterator for Range<'_> {}
