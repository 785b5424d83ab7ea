//! Removals: compares the keys that a transaction deletes by a scan with the model's, call by call.

use plimsoll::{Error, InvalidInput, Keyspace};

use crate::content::Content;
use crate::driver::Driver;
use crate::driver::failing::span_of;
use crate::driver::step::{answered, said};
use crate::driver::transactions::OpenTx;
use crate::failure::{Outcome, same};
use crate::judge::{bound, is_value, show};
use crate::model::{Entry, Writes, space_name};
use crate::op::{Edge, Key, Removal, Span};

impl Driver {
    /// Reads a key by the calls of the store that take no snapshot.
    pub(super) fn get_now(&mut self, space: u8, key: &Key) -> Outcome<String> {
        let Some(keyspace) = self.keyspace(space)? else { return said("failed") };
        let place = self.place(space, &keyspace);
        answered(self.judge(&|error| self.excused(error)).get_now(place, key)?)
    }

    /// Deletes keys by a scan. After a failed call, reads the keys that it has deleted.
    pub(super) fn remove(
        &mut self,
        tx: u8,
        space: u8,
        span: &Span,
        how: Removal,
        limit: u32,
    ) -> Outcome<String> {
        let Some(keyspace) = self.keyspace(space)? else { return said("failed") };
        let Some(mut open) = self.txs.remove(&tx) else { return said("no transaction") };
        let span = span_of(how, span);
        match how {
            Removal::First | Removal::Last => open.compute_updates(),
            Removal::Retain(_) | Removal::Extract(_) | Removal::Range => {
                open.reads_updates(space, &span);
            }
        }
        let wanted = self.model.walk(space, &span, open.handle.at().0, &open.writes);
        let what = format!("{how:?} of {span} at {} in {}", open.handle.at(), space_name(space));
        let taken = match how {
            Removal::First | Removal::Last => {
                let reverse = how == Removal::Last;
                self.pop(&mut open, (space, &keyspace), reverse, &wanted, &what)?
            }
            Removal::Retain(_) => {
                self.retain(&mut open, (space, &keyspace), (&span, how), &wanted, &what)?
            }
            Removal::Range => {
                self.delete_range(&mut open, (space, &keyspace), &span, &wanted, &what)?
            }
            Removal::Extract(_) => {
                self.extract(&mut open, (space, &keyspace), (&span, how), limit, &wanted, &what)?
            }
        };
        let answer_of_failed = taken.is_none();
        let taken = match taken {
            Some(taken) => taken,
            None => {
                open.may_be_spoiled = true;
                let keys: Vec<Key> = wanted.into_iter().map(|(key, _)| key).collect();
                let of = (&span, how);
                match self.taken_by_a_failed_one(&mut open, (space, &keyspace), of, &keys)? {
                    Some(taken) => taken,
                    None => return said("failed"),
                }
            }
        };
        let answer = match answer_of_failed {
            true => "failed".to_owned(),
            false => format!("{} keys", taken.len()),
        };
        taken.iter().for_each(|key| open.overwrites(space, key));
        open.writes.extend(taken.into_iter().map(|key| ((space, key), None)));
        self.txs.insert(tx, open);
        said(answer)
    }

    fn pop(
        &self,
        open: &mut OpenTx,
        (space, keyspace): (u8, &Keyspace),
        reverse: bool,
        wanted: &[(Key, Content)],
        what: &str,
    ) -> Outcome<Option<Vec<Key>>> {
        let popped =
            if reverse { open.handle.pop_last(keyspace) } else { open.handle.pop_first(keyspace) };
        let Some(popped) = self.expect(what, popped)? else { return Ok(None) };
        let wanted = if reverse { wanted.last() } else { wanted.first() };
        let all = Span::Range(Edge::Open, Edge::Open);
        same(what, &popped.as_ref().map(|(key, _)| show(key)), &wanted.map(|(key, _)| show(key)))?;
        let (Some((key, value)), Some((_, content))) = (popped, wanted) else {
            open.reads.whole(space, &all);
            return Ok(Some(Vec::new()));
        };
        is_value(|| format!("{what}: value of {}", show(&key)), Some(&value), Some(*content))?;
        open.reads.part(space, &all, reverse, &key);
        Ok(Some(vec![key]))
    }

    fn retain(
        &self,
        open: &mut OpenTx,
        (space, keyspace): (u8, &Keyspace),
        (span, how): (&Span, Removal),
        wanted: &[(Key, Content)],
        what: &str,
    ) -> Outcome<Option<Vec<Key>>> {
        let mut seen = Vec::new();
        let retained = open.handle.retain(keyspace, range_of(span), |key, value| {
            let content = wanted.get(seen.len()).map(|(_, content)| *content);
            seen.push((show(key), content.is_some_and(|content| content.is(value))));
            !how.takes(key)
        });
        let Some(deleted) = self.expect(what, retained)? else { return Ok(None) };
        let all: Vec<_> = wanted.iter().map(|(key, _)| (show(key), true)).collect();
        same(format!("{what}: keys passed to the closure, with values"), &seen, &all)?;
        let taken: Vec<Key> =
            wanted.iter().map(|(key, _)| key.clone()).filter(|key| how.takes(key)).collect();
        same(format!("{what}: number of deleted keys"), &deleted, &(taken.len() as u64))?;
        open.reads.whole(space, span);
        Ok(Some(taken))
    }

    /// Deletes the keys of a span in a separate commit.
    pub(super) fn delete_range_now(&mut self, space: u8, span: &Span) -> Outcome<String> {
        let Some(keyspace) = self.keyspace(space)? else { return said("failed") };
        let read_at = self.db().newest().0;
        if read_at != self.model.newest() {
            return said("not all commits are visible");
        }
        let wanted = self.model.walk(space, span, read_at, &Writes::new());
        let deleted = self.db().delete_range(&keyspace, range_of(span)).map(|glsn| glsn.0);
        let what = "deletion of a range";
        if let Err(Error::InvalidInput(InvalidInput::EmptyRange)) = &deleted {
            same(format!("{what}: keys of a refused range"), &wanted.len(), &0)?;
            return said("refused");
        }
        if wanted.is_empty() {
            let Some(glsn) = self.expect(what, deleted)? else { return said("failed") };
            same(format!("{what} without keys"), &glsn, &read_at)?;
            return said("nothing");
        }
        let writes = wanted.into_iter().map(|(key, _)| ((space, key), None)).collect();
        let entry = Entry::Commit { writes, metadata: Content::default(), read_at };
        self.model.deletes_ranges_next(vec![(space, span.clone())]);
        self.submitted(what, vec![entry], deleted, true)
    }

    /// Deletes the keys of a span by a range record, unless they are few.
    fn delete_range(
        &self,
        open: &mut OpenTx,
        (space, keyspace): (u8, &Keyspace),
        span: &Span,
        wanted: &[(Key, Content)],
        what: &str,
    ) -> Outcome<Option<Vec<Key>>> {
        let deleted = open.handle.delete_range(keyspace, range_of(span));
        open.ranges.push((space, span.clone()));
        if let Err(Error::InvalidInput(InvalidInput::EmptyRange)) = &deleted {
            same(format!("{what}: keys of a refused range"), &wanted.len(), &0)?;
            return Ok(Some(Vec::new()));
        }
        let Some(()) = self.expect(what, deleted)? else { return Ok(None) };
        open.reads.whole(space, span);
        Ok(Some(wanted.iter().map(|(key, _)| key.clone()).collect()))
    }

    fn extract(
        &self,
        open: &mut OpenTx,
        (space, keyspace): (u8, &Keyspace),
        (span, how): (&Span, Removal),
        limit: u32,
        wanted: &[(Key, Content)],
        what: &str,
    ) -> Outcome<Option<Vec<Key>>> {
        let mut wanted = wanted.iter().filter(|(key, _)| how.takes(key));
        let (mut taken, mut ended) = (Vec::new(), false);
        let extracted = open.handle.extract_if(keyspace, range_of(span), |key, _| how.takes(key));
        let Some(mut extracted) = self.expect(what, extracted)? else { return Ok(None) };
        for _ in 0..limit {
            let Some(next) = self.expect(what, extracted.next().transpose())? else {
                return Ok(None);
            };
            let wanted = wanted.next();
            same(
                what,
                &next.as_ref().map(|(key, _)| show(key)),
                &wanted.map(|(key, _)| show(key)),
            )?;
            let (Some((key, value)), Some((_, content))) = (next, wanted) else {
                ended = true;
                break;
            };
            is_value(|| format!("{what}: value of {}", show(&key)), Some(&value), Some(*content))?;
            taken.push(key);
        }
        drop(extracted);
        match taken.last() {
            _ if ended => open.reads.whole(space, span),
            // The call reads ahead.
            Some(last) => {
                open.reads.part(space, span, false, last);
                open.reads.perhaps(space, span);
            }
            None => open.reads.perhaps(space, span),
        }
        Ok(Some(taken))
    }
}

fn range_of(span: &Span) -> (std::ops::Bound<&[u8]>, std::ops::Bound<&[u8]>) {
    match span {
        Span::Range(lower, upper) => (bound(lower), bound(upper)),
        Span::Prefix(prefix) => (std::ops::Bound::Included(prefix), std::ops::Bound::Unbounded),
    }
}
