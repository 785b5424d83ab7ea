//! Rules that decide the value of a key that both sides changed.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use plimsoll_memory::budget::Budget;

use crate::merge::{json, text};
use crate::read::point::ValueReader;
use crate::types::error::Result;
use crate::types::invalid_input::InvalidInput;
use crate::types::value::Value;

/// The result for a key that both sides of a merge changed in different ways. A key that only one
/// side changed gets that side's value, without a rule.
///
/// In [`Db::revert`](crate::Db::revert) of a commit, *base* is the state right after the commit,
/// *theirs* the state right before it, and *ours* the present state. In [`Db::merge`] of a branch,
/// *theirs* is that branch, *ours* the one into which it is merged, and *base* the newest state
/// that both contain.
///
/// [`Db::merge`]: crate::Db::merge
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # use plimsoll::*;
/// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
/// let visits = db.keyspace("visits")?;
/// db.add(&visits, "home", 5, Overflow::Checked)?;
/// let wrong = db.newest();
/// db.add(&visits, "home", 2, Overflow::Checked)?;
/// // The key was changed since, so that a revert needs a rule to keep the later change.
/// assert!(matches!(db.revert(wrong).run()?, MergeOutcome::Conflicts(_)));
/// db.revert(wrong).rule(&visits, MergeRule::Counter).run()?;
/// assert_eq!(db.get(&visits, "home")?.unwrap(), 2i64.to_le_bytes());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum MergeRule {
    /// The key is a conflict. The default.
    #[default]
    Conflict,
    /// The key keeps our value.
    Ours,
    /// The key gets their value.
    Theirs,
    /// The values are numbers, as for [`Db::add`](crate::Db::add), and the changes of both sides
    /// are added: the result is `ours + theirs - base`. Equal changes are added too, so a commit
    /// that is reverted twice is subtracted twice. A key that base or theirs does not have counts
    /// as 0. A key that was deleted in ours, a value that is not a number, and a sum that does not
    /// fit into 64 bits are conflicts.
    Counter,
    /// The values are texts, and the changed lines of both sides apply. Changes of the same lines
    /// or of neighbouring ones are a conflict, and so are a key that one of the three states does
    /// not have, a text above 1 MiB, and texts with more than 65,536 lines together.
    Text,
    /// The version whose commit is the younger one stays, also if that commit deleted the key. A
    /// value that a merge wrote is as young as the merge. If ranges with the key were deleted
    /// several times after its last value, the first deletion counts. If one side has no version
    /// of the key, ours stays if it is younger than the state of theirs; otherwise it is a
    /// conflict.
    Newest,
    /// The values are JSON objects, and the changed fields of both sides apply, also within objects
    /// in fields. Arrays and other values are one whole. Different changes of a field are a
    /// conflict, and so are a key that one side deleted, a value that is not a JSON object, has a
    /// name twice or is nested more than 128 deep, a text above 1 MiB, and texts with more than
    /// 32,768 fields and elements together.
    ///
    /// Parts of the values are copied as they are, so that numbers stay exact; white space, escapes
    /// and the order of fields do not count as changes. The fields of the base come first, in its
    /// order, and the white space between fields is the base's, unless it would make the value
    /// longer than the three together. The result is the same whichever side is ours; it expires as
    /// our value does.
    Json,
    /// The values are JSON arrays, which stand for sets: elements that one side removed are
    /// removed, and elements that one side added are added. Conflicts, the comparison of elements
    /// and their order are as for `Json`. Elements that a set has twice are written once.
    JsonSet,
    /// A function decides: see [`MergeRule::function`].
    Function(MergeFunction),
}

/// A function that decides; made by [`MergeRule::function`].
#[derive(Clone)]
pub struct MergeFunction(Arc<dyn Fn(&MergeInput<'_>) -> MergeDecision + Send + Sync>);

impl fmt::Debug for MergeFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MergeFunction")
    }
}

/// A key that both sides of a merge changed, with its values; `None`: the key has none. The values
/// are in memory, within the budget.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct MergeInput<'a> {
    /// The name of the keyspace.
    pub keyspace: &'a str,
    /// The key.
    pub key: &'a [u8],
    /// The value in the base.
    pub base: Option<&'a [u8]>,
    /// False if branches were merged crosswise, so that both sides come from several states, and
    /// these changed the key in different ways; the base is then `None`.
    pub is_one_base: bool,
    /// Our value.
    pub ours: Option<&'a [u8]>,
    /// Their value.
    pub theirs: Option<&'a [u8]>,
}

/// The decision about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MergeDecision {
    /// The key gets this value.
    Put(Vec<u8>),
    /// The key is deleted.
    Delete,
    /// The key is a conflict.
    Conflict,
}

/// The decision about a key whose sides differ.
#[derive(Clone, Debug)]
pub(crate) enum Resolved {
    /// The key keeps our value.
    Keep,
    /// The key gets their value, or is deleted if it has none there.
    Theirs,
    Put(Value),
    Delete,
    Conflict,
}

/// The values of a key in the base, in ours and in theirs.
pub(crate) type Values = [Option<ValueReader>; 3];

impl MergeRule {
    /// A rule that calls `decide` for each key that both sides changed. `decide` may be called
    /// several times for one key, because the merge is repeated if another transaction interferes.
    /// If `decide` panics, nothing is written, and the merge returns
    /// [`InvalidInput::MergeFunctionPanicked`].
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let db = Db::in_memory(Options::new().memory_bytes(16 << 20))?;
    /// let tags = db.keyspace("tags")?;
    /// db.put(&tags, "page", "a")?;
    /// let wrong = db.put(&tags, "page", "a b")?;
    /// db.put(&tags, "page", "a b c")?;
    /// // Tags are words: those that theirs does not have and base has are removed from ours.
    /// let words = |text: Option<&[u8]>| -> Vec<Vec<u8>> {
    ///     text.unwrap_or_default().split(|byte| *byte == b' ').map(<[u8]>::to_vec).collect()
    /// };
    /// let rule = MergeRule::function(move |key| {
    ///     let (base, theirs) = (words(key.base), words(key.theirs));
    ///     let mut tags = words(key.ours);
    ///     tags.retain(|tag| theirs.contains(tag) || !base.contains(tag));
    ///     MergeDecision::Put(tags.join(&b' '))
    /// });
    /// db.revert(wrong).rule(&tags, rule).run()?;
    /// assert_eq!(db.get(&tags, "page")?.unwrap(), b"a c");
    /// # Ok(())
    /// # }
    /// ```
    pub fn function(
        decide: impl Fn(&MergeInput<'_>) -> MergeDecision + Send + Sync + 'static,
    ) -> Self {
        Self::Function(MergeFunction(Arc::new(decide)))
    }

    /// Whether it also decides about keys that both sides changed to the same value.
    pub(crate) fn counts_equal_changes(&self) -> bool {
        matches!(self, Self::Counter)
    }

    /// Decides about a key that both sides changed. `is_one_base`: whether they changed it from one
    /// value.
    ///
    /// # Errors
    /// Disk errors, the budget, corruption, or a function that panicked.
    pub(crate) fn decide(
        &self,
        budget: &Budget,
        (keyspace, key): (&str, &[u8]),
        values: &mut Values,
        is_one_base: bool,
    ) -> Result<Resolved> {
        Ok(match self {
            Self::Conflict => Resolved::Conflict,
            Self::Ours => Resolved::Keep,
            Self::Theirs => Resolved::Theirs,
            Self::Counter if !is_one_base => Resolved::Conflict,
            Self::Counter if values[0].is_some() && values[1].is_none() => Resolved::Conflict,
            Self::Counter => sum(values)?
                .map_or(Resolved::Conflict, |sum| Resolved::Put(sum.to_le_bytes().to_vec().into())),
            Self::Text if values.iter().any(Option::is_none) => Resolved::Conflict,
            Self::Text if !text::are_in_bounds(lens(values)) => Resolved::Conflict,
            Self::Text => {
                let [base, ours, theirs] = read_all(budget, values)?.map(Option::unwrap_or_default);
                match text::merge(budget, &base, &ours, &theirs)? {
                    None => Resolved::Conflict,
                    Some(merged) if *merged == *ours => Resolved::Keep,
                    Some(merged) => Resolved::Put(merged),
                }
            }
            Self::Newest => unreachable!("the versions of the key are compared, not its values"),
            Self::Json | Self::JsonSet if !is_one_base => Resolved::Conflict,
            Self::Json | Self::JsonSet if values[1..].iter().any(Option::is_none) => {
                Resolved::Conflict
            }
            Self::Json | Self::JsonSet if !json::are_in_bounds(lens(values)) => Resolved::Conflict,
            Self::Json | Self::JsonSet => {
                let kinds = match self {
                    Self::Json => json::Kinds::Objects,
                    _ => json::Kinds::Sets,
                };
                let [base, ours, theirs] = read_all(budget, values)?;
                let [ours, theirs] = [ours, theirs].map(Option::unwrap_or_default);
                match json::merge(budget, kinds, base.as_deref(), [&ours, &theirs])? {
                    None => Resolved::Conflict,
                    Some(merged) if *merged == *ours => Resolved::Keep,
                    Some(merged) => Resolved::Put(merged),
                }
            }
            Self::Function(MergeFunction(decide)) => {
                let values = read_all(budget, values)?;
                let [base, ours, theirs] = values.each_ref().map(Option::as_deref);
                let input = MergeInput { keyspace, key, base, is_one_base, ours, theirs };
                // Nothing that the function could leave half changed is used after a panic.
                let decided = catch_unwind(AssertUnwindSafe(|| decide(&input)));
                match decided.map_err(|panic| panicked(keyspace, key, &*panic))? {
                    MergeDecision::Put(value) if Some(&value[..]) == ours => Resolved::Keep,
                    MergeDecision::Put(value) => Resolved::Put(value.into()),
                    MergeDecision::Delete if ours.is_none() => Resolved::Keep,
                    MergeDecision::Delete => Resolved::Delete,
                    MergeDecision::Conflict => Resolved::Conflict,
                }
            }
        })
    }
}

fn panicked(keyspace: &str, key: &[u8], panic: &(dyn Any + Send)) -> InvalidInput {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let message = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    InvalidInput::MergeFunctionPanicked {
        keyspace: keyspace.to_owned(),
        key: key.to_vec(),
        message,
    }
}

fn lens(values: &Values) -> [u64; 3] {
    values.each_ref().map(|value| value.as_ref().map_or(0, ValueReader::len))
}

/// ours + theirs - base; `None` if one is not a number, or the sum does not fit.
fn sum(values: &mut Values) -> Result<Option<i64>> {
    let mut numbers = [0; 3];
    for (value, number) in values.iter_mut().zip(&mut numbers) {
        let Some(value) = value else { continue };
        let mut bytes = [0; size_of::<i64>()];
        if value.len() != bytes.len() as u64 {
            return Ok(None);
        }
        value.read_piece(&mut bytes)?;
        *number = i128::from(i64::from_le_bytes(bytes));
    }
    let [base, ours, theirs] = numbers;
    Ok(i64::try_from(ours + theirs - base).ok())
}

/// The three values, charged to the budget.
fn read_all(budget: &Budget, values: &mut Values) -> Result<[Option<Value>; 3]> {
    let mut all = [const { None }; 3];
    for (value, read) in values.iter_mut().zip(&mut all) {
        if let Some(value) = value {
            *read = Some(read_whole(budget, value)?);
        }
    }
    Ok(all)
}

/// The whole value of a reader from which nothing was read.
pub(crate) fn read_whole(budget: &Budget, value: &mut ValueReader) -> Result<Value> {
    Value::of_len(budget, value.len(), |bytes| {
        bytes.resize(value.len() as usize);
        value.read_piece(bytes).map(drop)
    })
}

impl fmt::Debug for MergeRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Conflict => "Conflict",
            Self::Ours => "Ours",
            Self::Theirs => "Theirs",
            Self::Counter => "Counter",
            Self::Text => "Text",
            Self::Newest => "Newest",
            Self::Json => "Json",
            Self::JsonSet => "JsonSet",
            Self::Function(_) => "Function",
        })
    }
}
