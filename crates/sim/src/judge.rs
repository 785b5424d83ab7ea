//! Queries the store and compares each answer with the model's.
//!
//! Invariant: an answer equals the model's, or is an error that the current faults excuse. A moment
//! that is not retained may be refused, but not at or above the keyspace's floor, nor at its pins.

mod feeds;
mod log;
mod view;

use std::collections::BTreeSet;
use std::io::Read;
use std::ops::ControlFlow;
use std::time::{SystemTime, UNIX_EPOCH};

use plimsoll::{Db, Error, Glsn, Keyspace, Resident, ValueReader, VersionInfo};

use crate::content::Content;
use crate::failure::{Failure, Outcome, ensure, same};
pub(crate) use crate::judge::feeds::only_deletes_ranges;
pub(crate) use crate::judge::view::{ReadResult, View, bound};
use crate::model::{Model, Version, Writes, space_name};
use crate::op::{Edge, Get, Key, Span};

/// Retries of a failed read that can resume.
const TRIES: usize = 8;

/// The result of a walk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WalkResult {
    /// The last key returned.
    pub(crate) reached: Option<Key>,
    /// Whether the walk reached its end.
    pub(crate) ended: bool,
    /// Whether the walk was refused or failed.
    pub(crate) failed: bool,
}

/// The parameters of a walk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WalkOptions {
    pub(crate) reverse: bool,
    pub(crate) limit: u32,
    pub(crate) keys_only: bool,
    pub(crate) replace_after: Option<u32>,
}

impl WalkOptions {
    /// Whether the rows are passed to a closure, instead of returned one by one.
    fn is_visit(self) -> bool {
        if self.limit == u32::MAX { self.reverse } else { self.limit % 3 == 1 }
    }

    /// Over everything.
    pub(crate) fn whole(reverse: bool) -> Self {
        Self { reverse, limit: u32::MAX, keys_only: false, replace_after: None }
    }
}

/// The store's error inside an I/O error of a value's reader.
pub(crate) fn cause_of(error: &std::io::Error) -> Option<&Error> {
    error.get_ref().and_then(|cause| cause.downcast_ref::<Error>())
}

/// A time in the model's unit.
pub(crate) fn micros_of(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |age| age.as_micros() as u64)
}

/// A key, in a keyspace by number and by handle.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) space: u8,
    pub(crate) keyspace: &'a Keyspace,
}

/// Compares answers.
pub(crate) struct Judge<'a> {
    pub(crate) db: &'a Db,
    pub(crate) model: &'a Model,
    /// Whether the present faults excuse an error.
    pub(crate) excuse: &'a dyn Fn(&Error) -> bool,
}

impl Judge<'_> {
    /// The answer; `None` after an excused error or a permitted refusal.
    pub(crate) fn settle<T>(
        &self,
        what: impl FnOnce() -> String,
        at: Option<(u8, u64)>,
        answer: plimsoll::Result<T>,
    ) -> Outcome<Option<T>> {
        match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(Error::Trimmed { asked, first, .. }) if at.is_some() => {
                let (space, at) = at.unwrap_or_default();
                let floor = self.model.floor(space);
                let may_refuse = !self.model.must_answer(space, at);
                let right = asked == at && may_refuse && first <= floor;
                ensure(right, || {
                    format!(
                        "{} was refused (requested {asked}, first {first}), but {space} is \
                         retained from {floor} on or at {at}",
                        what()
                    )
                })?;
                Ok(None)
            }
            Err(error) if (self.excuse)(&error) => Ok(None),
            Err(error) => Err(Failure::new(format!("{} failed: {error} [{error:?}]", what()))),
        }
    }

    /// Reads one key.
    pub(crate) fn get(
        &self,
        view: View<'_>,
        place: Place<'_>,
        key: &[u8],
        how: Get,
    ) -> Outcome<ReadResult> {
        let at = view.at();
        let what = || format!("get {} at {at} in {}", show(key), space_name(place.space));
        let own = view.own().and_then(|own| own.get(&(place.space, key.to_vec())));
        let wanted = own.copied().unwrap_or_else(|| self.model.get(place.space, key, at));
        let moment = Some((place.space, at));
        match how {
            Get::Value => {
                let Some(value) = self.settle(what, moment, view.get(place.keyspace, key))? else {
                    return Ok(ReadResult::Refused);
                };
                is_value(what, value.as_deref(), wanted)?;
            }
            Get::Streamed => {
                let answer = view.get_reader(place.keyspace, key);
                let Some(reader) = self.settle(what, moment, answer)? else {
                    return Ok(ReadResult::Refused);
                };
                let Some(bytes) = self.drain(what, reader)? else { return Ok(ReadResult::Part) };
                is_value(what, bytes.as_deref(), wanted)?;
            }
            Get::Lent | Get::Now => {
                let answer = view.get_lent(place.keyspace, key);
                let Some(value) = self.settle(what, moment, answer)? else {
                    return Ok(ReadResult::Refused);
                };
                is_value(what, value.as_deref(), wanted)?;
            }
            Get::Resident => {
                let answer = view.get_resident(place.keyspace, key);
                let Some(found) = self.settle(what, moment, answer)? else {
                    return Ok(ReadResult::Refused);
                };
                match found {
                    Resident::Value(value) => is_value(what, Some(&value), wanted)?,
                    Resident::Absent => is_value(what, None, wanted)?,
                    Resident::NotResident => return Ok(ReadResult::NotResident),
                }
            }
            Get::Contains => {
                let Some(there) = self.settle(what, moment, view.contains(place.keyspace, key))?
                else {
                    return Ok(ReadResult::Refused);
                };
                same(what(), &there, &wanted.is_some())?;
            }
        }
        Ok(ReadResult::Answer)
    }

    /// Reads one key at the newest moment, without a snapshot; returns whether all calls were
    /// answered.
    pub(crate) fn get_now(&self, place: Place<'_>, key: &[u8]) -> Outcome<bool> {
        let wanted = self.model.get(place.space, key, self.db.newest().0);
        let what = |call: &'static str| {
            move || format!("{call} of {} in {} now", show(key), space_name(place.space))
        };
        let lent = self.db.get_with(place.keyspace, key, <[u8]>::to_vec);
        let Some(value) = self.settle(what("get_with"), None, lent)? else { return Ok(false) };
        is_value(what("get_with"), value.as_deref(), wanted)?;
        let Some(value) = self.settle(what("get"), None, self.db.get(place.keyspace, key))? else {
            return Ok(false);
        };
        is_value(what("get"), value.as_deref(), wanted)?;
        Ok(true)
    }

    /// Compares the first and the last key of a keyspace; returns whether both calls were answered.
    pub(crate) fn ends(&self, view: View<'_>, place: Place<'_>) -> Outcome<bool> {
        let (at, nothing) = (view.at(), Writes::new());
        let what = || format!("the first and the last key at {at} in {}", space_name(place.space));
        let Some(found) = self.settle(what, Some((place.space, at)), view.ends(place.keyspace))?
        else {
            return Ok(false);
        };
        let all = Span::Range(Edge::Open, Edge::Open);
        let wanted = self.model.walk(place.space, &all, at, view.own().unwrap_or(&nothing));
        let wanted = [wanted.first(), wanted.last()].map(|pair| pair.map(|(key, _)| show(key)));
        same(what(), &found.map(|key| key.map(|key| show(&key))), &wanted)?;
        Ok(true)
    }

    /// Counts a keyspace; returns whether the store answered.
    pub(crate) fn size(&self, place: Place<'_>) -> Outcome<bool> {
        let what = || format!("size of {}", space_name(place.space));
        let counted = self.db.keyspace_size(place.keyspace, u64::MAX);
        let Some(size) = self.settle(what, None, counted)? else { return Ok(false) };
        let all = Span::Range(Edge::Open, Edge::Open);
        let rows = self.model.walk(place.space, &all, self.db.newest().0, &Writes::new());
        let bytes =
            rows.iter().map(|(key, content)| key.len() as u64 + u64::from(content.bytes)).sum();
        same(what(), &(size.keys, size.bytes, size.exact), &(rows.len() as u64, bytes, true))?;
        let floor = self.model.floor(place.space);
        ensure(size.oldest <= floor, || {
            format!("{}: readable from {} on, must be from {floor} on", what(), size.oldest)
        })?;
        Ok(true)
    }

    /// Reads a value to its end.
    fn drain(
        &self,
        what: impl Fn() -> String,
        reader: Option<ValueReader>,
    ) -> Outcome<Option<Option<Vec<u8>>>> {
        let Some(mut reader) = reader else { return Ok(Some(None)) };
        let (len, mut bytes) = (reader.len(), Vec::new());
        for _ in 0..TRIES {
            let Err(error) = reader.read_to_end(&mut bytes) else {
                same(format!("{}: length", what()), &len, &(bytes.len() as u64))?;
                return Ok(Some(Some(bytes)));
            };
            let excused = cause_of(&error).is_some_and(|cause| (self.excuse)(cause));
            ensure(excused, || format!("{} failed half-way: {error}", what()))?;
        }
        Ok(None)
    }

    /// Walks over keys.
    pub(crate) fn walk(
        &self,
        view: View<'_>,
        place: Place<'_>,
        span: &Span,
        how: WalkOptions,
    ) -> Outcome<WalkResult> {
        let WalkOptions { reverse, limit, keys_only, replace_after } = how;
        let at = view.at();
        let what =
            || format!("walk {span} at {at} in {} (reverse: {reverse})", space_name(place.space));
        let mut wanted =
            self.model.walk(place.space, span, at, view.own().unwrap_or(&Writes::new()));
        if reverse {
            wanted.reverse();
        }
        let mut walked = WalkResult::default();
        let answer = view.walk(place.keyspace, span);
        let Some(mut range) = self.settle(what, Some((place.space, at)), answer)? else {
            walked.failed = true;
            return Ok(walked);
        };
        range = if reverse { range.reverse() } else { range };
        range = if keys_only { range.keys_only() } else { range };
        let mut wanted = wanted.into_iter();
        let mut rows = 0;
        // Compares a row with the next expected one.
        let mut take = |walked: &mut WalkResult, key: &[u8], value: &[u8]| -> Outcome<()> {
            let wanted = wanted.next();
            same(
                format!("{}: key", what()),
                &Some(show(key)),
                &wanted.as_ref().map(|(key, _)| show(key)),
            )?;
            let content = wanted.map(|(_, content)| content);
            if keys_only {
                ensure(value.is_empty(), || {
                    format!("{}: unexpected value with {}", what(), show(key))
                })?;
            } else {
                is_value(|| format!("{}: value of {}", what(), show(key)), Some(value), content)?;
            }
            walked.reached = Some(key.to_vec());
            Ok(())
        };
        let ended = if how.is_visit() {
            let visited = range.visit(|key, value| {
                if replace_after == Some(rows) {
                    self.exchange_sources();
                }
                rows += 1;
                match take(&mut walked, key, value) {
                    Ok(()) if rows < limit => ControlFlow::Continue(()),
                    taken => ControlFlow::Break(taken),
                }
            });
            match self.settle(what, Some((place.space, at)), visited)? {
                Some(Some(taken)) => {
                    taken?;
                    false
                }
                Some(None) => true,
                None => {
                    walked.failed = true;
                    return Ok(walked);
                }
            }
        } else {
            let mut ended = false;
            while rows < limit && !ended {
                if replace_after == Some(rows) {
                    self.exchange_sources();
                }
                rows += 1;
                let Some(item) = self.settle(what, Some((place.space, at)), range.advance())?
                else {
                    let next = range.advance();
                    ensure(matches!(next, Ok(None)), || {
                        format!("{}: continues after an error", what())
                    })?;
                    walked.failed = true;
                    return Ok(walked);
                };
                match item {
                    Some((key, value)) => take(&mut walked, key, value)?,
                    None => ended = true,
                }
            }
            ended
        };
        if ended {
            walked.ended = true;
            let wanted = wanted.next();
            ensure(wanted.is_none(), || {
                format!("{} ended before {:?}", what(), wanted.map(|(key, _)| show(&key)))
            })?;
        }
        Ok(walked)
    }

    /// Moves everything into new files and trims the log. Later reads show any errors.
    fn exchange_sources(&self) {
        let _ = self.db.compact();
        let _ = self.db.log().trim(self.db.newest());
        self.db.drop_caches();
    }

    /// Lists the versions of a key.
    pub(crate) fn history(&self, place: Place<'_>, key: &[u8]) -> Outcome<bool> {
        let what = || format!("history of {} in {}", show(key), space_name(place.space));
        let Some(history) = self.settle(what, None, self.db.history(place.keyspace, key))? else {
            return Ok(false);
        };
        let newest = self.db.newest();
        let mut found = Vec::new();
        for info in history {
            let Some(info) = self.settle(what, None, info)? else { return Ok(false) };
            self.time(what, &info)?;
            found.push((info.glsn.0, info.bytes));
        }
        let short = |versions: Vec<Version>| -> Vec<(u64, Option<u64>)> {
            let visible = versions.into_iter().filter(|(glsn, _)| *glsn <= newest.0);
            visible.map(|(glsn, value)| (glsn, value.map(|content| content.bytes.into()))).collect()
        };
        let lives = self.model.lives(place.space);
        let all = short(lives.iter().flat_map(|life| self.model.history(*life, key)).collect());
        let kept =
            short(lives.iter().flat_map(|life| self.model.history_kept(*life, key)).collect());
        let mut rest = all.iter();
        let in_order = found.iter().all(|version| rest.any(|other| other == version));
        let complete = kept.iter().all(|version| found.contains(version));
        ensure(in_order && complete, || {
            format!(
                "{}: the store has {found:?}, of the versions {all:?} it must have {kept:?}",
                what()
            )
        })?;
        Ok(true)
    }

    /// Checks that a time equals the log's, or that the log is trimmed there.
    fn time(&self, what: impl Fn() -> String, info: &VersionInfo) -> Outcome {
        let known = self.model.entry(info.glsn.0).and_then(|placed| placed.micros);
        match (info.time.map(micros_of), known) {
            (Some(time), Some(known)) => {
                same(format!("{}: time of {}", what(), info.glsn), &time, &known)
            }
            (Some(_), None) => Ok(()),
            (None, _) => ensure(info.glsn < self.model.first(), || {
                format!(
                    "{}: {} has no time although the log begins at {}",
                    what(),
                    info.glsn,
                    self.model.first()
                )
            }),
        }
    }

    /// Compares two moments.
    pub(crate) fn diff(
        &self,
        place: Place<'_>,
        from: u64,
        to: u64,
        prefix: &[u8],
    ) -> Outcome<bool> {
        let what =
            || format!("diff {from} {to} of {} in {}", show(prefix), space_name(place.space));
        // If the name had two keyspaces, the later one is read only at the later moment.
        let (before, after) = (from.min(to), from.max(to));
        let (first, last) =
            (self.model.life_at(place.space, before), self.model.life_at(place.space, after));
        let moment = |error: &Error| match (error, last) {
            (Error::Trimmed { asked, .. }, Some(last))
                if *asked == after && Some(last) != first =>
            {
                Some((last, after))
            }
            (Error::Trimmed { asked, .. }, _) if *asked == after => {
                Some((first.unwrap_or(place.space), after))
            }
            _ => Some((first.unwrap_or(place.space), before)),
        };
        let refused =
            |error: Error| self.settle::<()>(what, moment(&error), Err(error)).map(|_| false);
        let diff = match self.db.diff(place.keyspace, Glsn(from), Glsn(to), prefix) {
            Ok(diff) => diff,
            Err(error) => return refused(error),
        };
        let mut found = Vec::new();
        for change in diff {
            let change = match change {
                Ok(change) => change,
                Err(error) => return refused(error),
            };
            for info in change.before.iter().chain(&change.after) {
                self.time(what, info)?;
            }
            let short = |info: Option<VersionInfo>| info.map(|info| (info.glsn.0, info.bytes));
            found.push((show(&change.key), short(change.before), short(change.after)));
        }
        let short = |version: Option<Version>| {
            version.map(|(glsn, value)| (glsn, value.map(|content| content.bytes.into())))
        };
        let wanted = self.model.diff(place.space, from, to, prefix).into_iter();
        let wanted: Vec<_> =
            wanted.map(|(key, before, after)| (show(&key), short(before), short(after))).collect();
        same(what(), &found, &wanted)?;
        Ok(true)
    }

    /// Compares the keyspaces with the model's.
    pub(crate) fn keyspaces(&self) -> Outcome {
        let found: BTreeSet<String> = self
            .db
            .keyspaces()
            .into_iter()
            .map(|info| format!("{} {:?}", info.name, info.retention))
            .collect();
        let spaces = self.model.spaces();
        let wanted =
            spaces.map(|(space, keep)| format!("{} {:?}", space_name(space), keep.retention()));
        same("keyspaces", &found, &wanted.collect())
    }
}

/// A key in readable form.
pub(crate) fn show(key: &[u8]) -> String {
    if key.len() > 64 {
        format!("{} ({} bytes)", key[..24].escape_ascii(), key.len())
    } else {
        key.escape_ascii().to_string()
    }
}

fn fits(found: Option<&[u8]>, wanted: Option<Content>) -> bool {
    match (found, wanted) {
        (None, None) => true,
        (Some(bytes), Some(content)) => content.is(bytes),
        _ => false,
    }
}

pub(crate) fn is_value(
    what: impl Fn() -> String,
    found: Option<&[u8]>,
    wanted: Option<Content>,
) -> Outcome {
    ensure(fits(found, wanted), || {
        let begin = |bytes: &[u8]| {
            format!(
                "{} bytes beginning {}",
                bytes.len(),
                bytes[..bytes.len().min(16)].escape_ascii()
            )
        };
        let (found, wanted) = (found.map(begin), wanted.map(|content| begin(&content.make())));
        format!("{}: the store says {found:?}, the model {wanted:?}", what())
    })
}
