//! The steps of a merge, key by key.

use std::fmt;
use std::sync::Arc;

use crate::api::snapshot::Snapshot;
use crate::engine::{Engine, branch_commits};
use crate::merge::bases::Bases;
use crate::merge::keys::{Keys, Scope};
use crate::merge::rule::{MergeRule, Resolved, Values};
use crate::read::point::ValueReader;
use crate::types::branches::MAIN_CHAIN;
use crate::types::error::{Result, show_key};
use crate::types::expiry::Expiry;
use crate::types::invalid_input::InvalidInput;
use crate::types::keyspaces::Keyspace;
use crate::types::value::Value;

/// A state of a three-way merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeSide {
    /// The state from which both others come. In a revert: right after the commit. In a merge of
    /// branches: the newest state that both contain.
    Base,
    /// The state that is changed: the newest.
    Ours,
    /// The state whose changes are applied. In a revert: right before the commit; in a reset: the
    /// moment to which the store is reset.
    Theirs,
}

const SIDES: [MergeSide; 3] = [MergeSide::Base, MergeSide::Ours, MergeSide::Theirs];

/// The effect of a merge on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergeAction {
    /// The merge puts a value.
    Put,
    /// The merge deletes the key.
    Delete,
    /// Nothing, because both sides changed the key in different ways: as long as there is a
    /// conflict, the merge writes nothing at all.
    Conflict,
}

/// The three states.
pub(crate) struct Sides {
    /// `None`: ours.
    pub(crate) bases: Option<Bases>,
    pub(crate) ours: Snapshot,
    pub(crate) theirs: Snapshot,
    /// Whether the three are states of branches. Keyspaces belong to the store, so in each of the
    /// states, a keyspace is then the one that exists now.
    pub(crate) are_branches: bool,
}

impl Sides {
    /// Fails if a base is no longer readable. Otherwise it stays readable, because it is open.
    pub(crate) fn check_bases(&self, store: &Engine) -> Result<()> {
        let mut bases = self.bases.iter().flat_map(Bases::states);
        bases.try_for_each(|state| {
            let chain = state.lens().map_or(MAIN_CHAIN, |lens| lens.ancestry().chain);
            branch_commits::check_readable(store, chain, state.at())
        })
    }

    fn get(&self, side: MergeSide) -> &Snapshot {
        match side {
            MergeSide::Base => self.bases.as_ref().map_or(&self.ours, Bases::first),
            MergeSide::Ours => &self.ours,
            MergeSide::Theirs => &self.theirs,
        }
    }
}

/// The rules of some keyspaces; the last one of a keyspace counts.
pub(crate) type Rules = Arc<[(Keyspace, MergeRule)]>;

/// A keyspace in the three states; `None` where it does not exist.
pub(crate) struct Part {
    scope: Scope,
    keyspaces: [Option<Keyspace>; 3],
    rule: MergeRule,
}

impl Part {
    /// `None` if the keyspace exists in none of the states.
    fn new(sides: &Sides, scope: Scope, rules: &Rules) -> Result<Option<Self>> {
        let mut keyspaces = [const { None }; 3];
        for side in SIDES {
            let state = if sides.are_branches { &sides.ours } else { sides.get(side) };
            keyspaces[side as usize] = state.keyspace(&scope.name)?;
        }
        let is_known = keyspaces.iter().any(Option::is_some);
        let rule = rules.iter().rev().find(|(of, _)| *of.name() == *scope.name);
        let rule = rule.map(|(_, rule)| rule.clone()).unwrap_or_default();
        Ok(is_known.then_some(Self { scope, keyspaces, rule }))
    }

    /// The keys that may differ between base and theirs.
    fn keys(&self, store: &Engine, sides: &Sides) -> Result<Keys> {
        let base = self.keyspace(MergeSide::Base);
        let bases: Vec<_> = match &sides.bases {
            None => vec![(base, &sides.ours)],
            Some(bases) => bases.states().map(|state| (base, state)).collect(),
        };
        let theirs = (self.keyspace(MergeSide::Theirs), &sides.theirs);
        Keys::new(store, &self.scope.source, &bases, theirs)
    }

    pub(crate) fn name(&self) -> &str {
        &self.scope.name
    }

    fn keyspace(&self, side: MergeSide) -> Option<&Keyspace> {
        self.keyspaces[side as usize].as_ref()
    }

    /// The keyspace that is written; `None` if it does not exist now.
    pub(crate) fn ours(&self) -> Option<&Keyspace> {
        self.keyspace(MergeSide::Ours)
    }
}

/// The value of a key on one side.
fn reader(sides: &Sides, part: &Part, side: MergeSide, key: &[u8]) -> Result<Option<ValueReader>> {
    match part.keyspace(side) {
        Some(keyspace) => sides.get(side).get_reader(keyspace, key),
        None => Ok(None),
    }
}

/// Whether a key of `part` has the same value on two sides, with the same expiry.
fn is_same(
    part: &Part,
    (a_side, a): (MergeSide, &mut Option<ValueReader>),
    (b_side, b): (MergeSide, &mut Option<ValueReader>),
) -> Result<bool> {
    let (a, b) = match (a, b) {
        (None, None) => return Ok(true),
        (Some(a), Some(b)) => (a, b),
        _ => return Ok(false),
    };
    if a.glsn() == b.glsn() && part.keyspace(a_side) == part.keyspace(b_side) {
        return Ok(true);
    }
    if a.expiry() != b.expiry() {
        return Ok(false);
    }
    a.has_bytes_of(b)
}

/// A key that a merge puts, deletes, or reports as a conflict, with its values on all sides. It
/// keeps the moments of the merge readable, and reads values only when they are asked for.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # use plimsoll::*;
/// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
/// let notes = db.keyspace("notes")?;
/// db.put(&notes, "a", "one")?;
/// let wrong = db.put(&notes, "a", "two")?;
/// db.put(&notes, "a", "three")?;
/// let MergeOutcome::Conflicts(mut conflicts) = db.revert(wrong).run()? else { panic!() };
/// let conflict: MergeStep = conflicts.next().expect("there is one")?;
/// assert_eq!((conflict.keyspace(), conflict.key()), ("notes", &b"a"[..]));
/// assert_eq!(conflict.value(MergeSide::Base)?.unwrap(), b"two");
/// assert_eq!(conflict.value(MergeSide::Ours)?.unwrap(), b"three");
/// assert_eq!(conflict.value(MergeSide::Theirs)?.unwrap(), b"one");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MergeStep {
    sides: Arc<Sides>,
    part: Arc<Part>,
    key: Vec<u8>,
    action: MergeAction,
    resolved: Resolved,
    /// The expiry of the value that is put: that of theirs, or that of ours if a rule keeps it.
    /// `None` if ours has no value; the value then gets the expiry of any new value.
    expiry: Option<Option<Expiry>>,
}

impl MergeStep {
    /// The name of the keyspace.
    pub fn keyspace(&self) -> &str {
        self.part.name()
    }

    /// The key.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The effect of the merge on the key.
    pub fn action(&self) -> MergeAction {
        self.action
    }

    /// The value on one side; `None` if the key has none there.
    ///
    /// # Errors
    /// [`Error::Trimmed`](crate::Error::Trimmed) if the moment is no longer retained, disk errors,
    /// the budget, or corruption.
    pub fn value(&self, side: MergeSide) -> Result<Option<Value>> {
        match self.part.keyspace(side) {
            Some(keyspace) => self.sides.get(side).get(keyspace, &self.key),
            None => Ok(None),
        }
    }

    /// A reader of the value on one side, for values too large for memory.
    ///
    /// # Errors
    /// As for [`MergeStep::value`].
    pub fn reader(&self, side: MergeSide) -> Result<Option<ValueReader>> {
        reader(&self.sides, &self.part, side, &self.key)
    }

    /// The value that the merge puts; `None` for a deletion and for a conflict.
    ///
    /// # Errors
    /// As for [`MergeStep::value`].
    pub fn merged(&self) -> Result<Option<Value>> {
        match &self.resolved {
            Resolved::Put(value) => Ok(Some(value.clone())),
            Resolved::Theirs if self.action == MergeAction::Put => self.value(MergeSide::Theirs),
            // `Theirs` without a put: their value has expired since, or there is none.
            Resolved::Theirs | Resolved::Keep | Resolved::Delete | Resolved::Conflict => Ok(None),
        }
    }

    /// The keyspace that is written.
    ///
    /// # Errors
    /// The keyspace does not exist now.
    pub(crate) fn target(&self) -> Result<&Keyspace> {
        self.part
            .ours()
            .ok_or_else(|| InvalidInput::KeyspaceGone { name: self.part.name().to_owned() }.into())
    }

    pub(crate) fn into_resolved(self) -> (Vec<u8>, Resolved, Option<Option<Expiry>>) {
        (self.key, self.resolved, self.expiry)
    }
}

impl fmt::Debug for MergeStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("MergeStep");
        shown.field("keyspace", &self.keyspace()).field("action", &self.action);
        shown.field("key", &show_key(&self.key)).finish_non_exhaustive()
    }
}

/// A read of our state on which a merge depends.
#[derive(Clone, Copy)]
pub(crate) enum Read<'k> {
    /// The keyspace of the part.
    Keyspace,
    /// A key of it.
    Key(&'k [u8]),
    /// A key whose value in our state will expire.
    Expiring(&'k [u8]),
}

/// The stream of the steps of a merge.
pub(crate) struct Stream {
    store: Arc<Engine>,
    sides: Arc<Sides>,
    rules: Rules,
    /// The keyspaces that are left, the last one first.
    scopes: Vec<Scope>,
    current: Option<(Arc<Part>, Keys)>,
    /// Whether theirs has changed a key.
    has_changes: bool,
}

impl Stream {
    /// The steps in `scopes`, in that order.
    pub(crate) fn new(
        store: &Arc<Engine>,
        sides: Arc<Sides>,
        rules: Rules,
        mut scopes: Vec<Scope>,
    ) -> Self {
        scopes.reverse();
        Self { store: Arc::clone(store), sides, rules, scopes, current: None, has_changes: false }
    }

    pub(crate) fn sides(&self) -> &Sides {
        &self.sides
    }

    /// Whether theirs has changed a key that was passed.
    pub(crate) fn has_changes(&self) -> bool {
        self.has_changes
    }

    /// The next step, and their value. Passes each read of our state to `note`: a keyspace or a key
    /// before it is read, an expiry afterwards.
    pub(crate) fn next(
        &mut self,
        mut note: impl FnMut(&Part, Read<'_>) -> Result<()>,
    ) -> Result<Option<(MergeStep, Option<ValueReader>)>> {
        self.store.check_open()?;
        loop {
            let Some((part, keys)) = &mut self.current else {
                let Some(scope) = self.scopes.pop() else { return Ok(None) };
                if let Some(part) = Part::new(&self.sides, scope, &self.rules)? {
                    note(&part, Read::Keyspace)?;
                    let keys = part.keys(&self.store, &self.sides);
                    let keys = keys.map_err(|error| error.in_keyspace(part.name()))?;
                    self.current = Some((Arc::new(part), keys));
                }
                continue;
            };
            let key = keys.next(&self.store).map_err(|error| error.in_keyspace(part.name()))?;
            let Some(key) = key else {
                self.current = None;
                continue;
            };
            let part = Arc::clone(part);
            let step = self.step(&part, key, &mut note);
            if let Some(step) = step.map_err(|error| error.in_keyspace(part.name()))? {
                return Ok(Some(step));
            }
        }
    }

    /// The base of a key; `None` if it has none because several disagree.
    fn base(&self, part: &Part, key: &[u8]) -> Result<Option<Option<ValueReader>>> {
        let Some(keyspace) = part.keyspace(MergeSide::Base) else { return Ok(Some(None)) };
        let Some(bases) = &self.sides.bases else {
            return Ok(Some(self.sides.ours.get_reader(keyspace, key)?));
        };
        let is_same = |a: &mut Option<ValueReader>, b: &mut Option<ValueReader>| {
            is_same(part, (MergeSide::Base, a), (MergeSide::Base, b))
        };
        bases.merged(&|state| state.get_reader(keyspace, key), &is_same)
    }

    /// Decides for the side that wrote or deleted a key last.
    fn newest(&self, part: &Part, key: &[u8]) -> Result<Resolved> {
        let written = |side| match part.keyspace(side) {
            Some(keyspace) => self.sides.get(side).written_by(keyspace, key),
            None => Ok(None),
        };
        Ok(match (written(MergeSide::Ours)?, written(MergeSide::Theirs)?) {
            (Some(ours), Some(theirs)) if theirs > ours => Resolved::Theirs,
            (Some(_), Some(_)) => Resolved::Keep,
            // Theirs never had it, or its deletion there is no longer stored.
            (Some(ours), None) if ours > self.sides.theirs.at() => Resolved::Keep,
            _ => Resolved::Conflict,
        })
    }

    /// Whether the base has the version of a key that our state has. This is so if both are states
    /// of main, and the version is old enough.
    fn is_in_base(&self, part: &Part, ours: &ValueReader) -> bool {
        let base = self.sides.bases.as_ref().and_then(Bases::only_on_main);
        let is_newer = |base: &Snapshot| base.at() <= self.sides.ours.at();
        self.sides.ours.lens().is_none()
            && part.keyspace(MergeSide::Base) == part.ours()
            && base.is_some_and(|base| is_newer(base) && ours.glsn() <= base.at())
    }

    /// The step for a key; `None` if the merge leaves it as it is.
    fn step(
        &mut self,
        part: &Arc<Part>,
        key: Vec<u8>,
        note: &mut impl FnMut(&Part, Read<'_>) -> Result<()>,
    ) -> Result<Option<(MergeStep, Option<ValueReader>)>> {
        let read = |side| reader(&self.sides, part, side, &key);
        let mut theirs = read(MergeSide::Theirs)?;
        // In a reset, ours is the base.
        let is_reset = self.sides.bases.is_none();
        note(part, Read::Key(&key))?;
        let mut ours = if is_reset { None } else { read(MergeSide::Ours)? };
        let our_expiry = ours.as_ref().map(ValueReader::expiry);
        // Most keys of a merge are unchanged in our state, so one read finds ours and the base.
        let is_in_base = ours.as_ref().is_some_and(|ours| self.is_in_base(part, ours));
        let base = if is_in_base { Some(None) } else { self.base(part, &key)? };
        // Without a common base, a rule decides.
        let is_one_base = base.is_some();
        let mut base = base.flatten();
        let (base_side, before) = match is_in_base {
            true => (MergeSide::Ours, &mut ours),
            false => (MergeSide::Base, &mut base),
        };
        let is_untouched =
            is_one_base && is_same(part, (base_side, before), (MergeSide::Theirs, &mut theirs))?;
        if is_untouched {
            return Ok(None);
        }
        self.has_changes = true;
        // A value that has expired since is not put back.
        let expiry = theirs.as_ref().and_then(ValueReader::expiry);
        let now = self.sides.ours.read_at()?.micros();
        let mut theirs = theirs.filter(|_| expiry.is_none_or(|expiry| !expiry.has_passed(now)));
        if base.is_none() && !is_in_base && theirs.is_none() && is_one_base {
            return Ok(None);
        }
        if our_expiry.flatten().is_some() {
            note(part, Read::Expiring(&key))?;
        }
        let is_done = !is_reset
            && !is_in_base
            && is_same(part, (MergeSide::Ours, &mut ours), (MergeSide::Theirs, &mut theirs))?;
        if is_done && !part.rule.counts_equal_changes() {
            return Ok(None);
        }
        let budget = &self.store.reader.budget;
        let is_unchanged = is_reset
            || is_in_base
            || (is_one_base
                && is_same(part, (MergeSide::Base, &mut base), (MergeSide::Ours, &mut ours))?);
        let (resolved, theirs) = if is_unchanged {
            (Resolved::Theirs, theirs)
        } else if matches!(part.rule, MergeRule::Newest) {
            (self.newest(part, &key)?, theirs)
        } else {
            let mut values: Values = [base, ours, theirs];
            let place = (part.name(), &key[..]);
            let resolved = part.rule.decide(budget, place, &mut values, is_one_base)?;
            let [.., theirs] = values;
            (resolved, theirs)
        };
        let action = match (&resolved, &theirs) {
            (Resolved::Keep, _) => return Ok(None),
            // Equal values that the rule for counters cannot add are no conflict.
            (Resolved::Conflict, _) if is_done => return Ok(None),
            (Resolved::Theirs, None) | (Resolved::Delete, _) => MergeAction::Delete,
            (Resolved::Theirs, Some(_)) | (Resolved::Put(_), _) => MergeAction::Put,
            (Resolved::Conflict, _) => MergeAction::Conflict,
        };
        let expiry = match &resolved {
            Resolved::Theirs => Some(expiry),
            _ => our_expiry,
        };
        let (sides, part) = (Arc::clone(&self.sides), Arc::clone(part));
        let step = MergeStep { sides, part, key, action, resolved, expiry };
        if action != MergeAction::Conflict {
            step.target()?;
        }
        Ok(Some((step, theirs)))
    }
}

/// The steps of a merge, ordered by keyspace and key, or only its conflicts. They are computed as
/// they are read, and not held in memory. After an error the iterator ends.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # use plimsoll::*;
/// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
/// let notes = db.keyspace("notes")?;
/// let before = db.put(&notes, "a", "one")?;
/// db.put(&notes, "b", "two")?;
/// for step in db.reset_to(before).preview()? {
///     let step = step?;
///     assert_eq!((step.action(), step.key()), (MergeAction::Delete, &b"b"[..]));
/// }
/// # Ok(())
/// # }
/// ```
pub struct MergeSteps {
    /// `None` past the end.
    stream: Option<Box<Stream>>,
    /// A conflict that was found before.
    found: Option<Box<MergeStep>>,
    only_conflicts: bool,
}

impl MergeSteps {
    pub(crate) fn all(stream: Stream) -> Self {
        Self { stream: Some(Box::new(stream)), found: None, only_conflicts: false }
    }

    /// The conflict that a stream has found first, and those that follow.
    pub(crate) fn conflicts(first: MergeStep, stream: Stream) -> Self {
        let (stream, found) = (Some(Box::new(stream)), Some(Box::new(first)));
        Self { stream, found, only_conflicts: true }
    }
}

impl Iterator for MergeSteps {
    type Item = Result<MergeStep>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(found) = self.found.take() {
            return Some(Ok(*found));
        }
        let next = loop {
            match self.stream.as_mut()?.next(|_, _| Ok(())) {
                Ok(Some((step, _)))
                    if self.only_conflicts && step.action != MergeAction::Conflict => {}
                next => break next.map(|next| next.map(|(step, _)| step)).transpose(),
            }
        };
        if !matches!(next, Some(Ok(_))) {
            self.stream = None;
        }
        next
    }
}

impl fmt::Debug for MergeSteps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MergeSteps")
    }
}
