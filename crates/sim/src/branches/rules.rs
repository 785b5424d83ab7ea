//! The results of merge rules, computed independently of the store.

use std::sync::Arc;

use plimsoll::{MergeDecision, MergeRule};
use plimsoll_disk::random::Random;

use crate::branches::json;
use crate::branches::model::{Content, JSON, NUMBERS, TEXTS};

/// The lines of a text that change. Each is followed by a line that never changes, so that changes
/// of different lines do not touch.
const LINES: usize = 4;

/// A text with these numbers in its lines.
pub(super) fn text_of(numbers: [u16; LINES]) -> Vec<u8> {
    let lines = numbers.iter().enumerate();
    let lines = lines.map(|(line, number)| format!("{line}: {number}\nafter {line}\n"));
    lines.collect::<String>().into_bytes()
}

/// The numbers in a text.
fn numbers_of(text: &[u8]) -> Option<[u16; LINES]> {
    let text = std::str::from_utf8(text).ok()?;
    let lines = text.lines().step_by(2);
    let numbers: Vec<u16> =
        lines.map(|line| line.split_once(": ")?.1.parse().ok()).collect::<Option<_>>()?;
    numbers.try_into().ok()
}

/// Another text, with one line changed.
pub(super) fn changed_text(text: Option<&[u8]>, random: &mut Random) -> Vec<u8> {
    let mut numbers = text.and_then(numbers_of).unwrap_or_default();
    numbers[random.below(LINES as u64) as usize] = random.below(5) as u16;
    text_of(numbers)
}

/// Runs while a merge decides about a key.
pub(super) type Before = Arc<dyn Fn() + Send + Sync>;

/// A rule that the model knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    Conflict,
    Ours,
    Theirs,
    Counter,
    Text,
    Newest,
    Json,
    JsonSet,
    Function,
}

/// The result for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeyOutcome {
    Keep,
    Put(Content),
    Delete,
    Conflict,
}

impl Rule {
    /// A rule for a keyspace.
    pub(super) fn of_space(space: usize, random: &mut Random) -> Self {
        match (space, random.below(8)) {
            (_, 6 | 7) if space != JSON => Self::Newest,
            (JSON, 4) => Self::Newest,
            (JSON, 5..) => Self::JsonSet,
            (JSON, 2 | 3) => Self::Json,
            (NUMBERS, 0..4) => Self::Counter,
            (TEXTS, 0..3) => Self::Text,
            (_, 0) | (TEXTS, 3) => Self::Conflict,
            (_, 1) | (TEXTS, 4) => Self::Ours,
            // A function would not write a text.
            (_, 2 | 3) | (TEXTS, _) => Self::Theirs,
            _ => Self::Function,
        }
    }

    /// The store's rule. A function calls `before` first.
    pub(super) fn of_store(self, before: &Before) -> MergeRule {
        match self {
            Self::Conflict => MergeRule::Conflict,
            Self::Ours => MergeRule::Ours,
            Self::Theirs => MergeRule::Theirs,
            Self::Counter => MergeRule::Counter,
            Self::Text => MergeRule::Text,
            Self::Newest => MergeRule::Newest,
            Self::Json => MergeRule::Json,
            Self::JsonSet => MergeRule::JsonSet,
            Self::Function => {
                let before = Arc::clone(before);
                MergeRule::function(move |key| {
                    before();
                    decide(key.base, key.is_one_base, key.ours, key.theirs)
                })
            }
        }
    }

    /// The result for a key that both sides changed; `base`: `None` if the bases differ. White
    /// space and the order of fields and elements in JSON may differ.
    pub(super) fn key_outcome(
        self,
        base: Option<Option<&Content>>,
        ours: Option<&Content>,
        theirs: Option<&Content>,
    ) -> KeyOutcome {
        let put = |value: Vec<u8>| {
            KeyOutcome::Put(Content::new(value, ours.and_then(|content| content.expires)))
        };
        let is_one_base = base.is_some();
        let base = base.flatten();
        match self {
            Self::Conflict => KeyOutcome::Conflict,
            Self::Ours => KeyOutcome::Keep,
            Self::Theirs => {
                theirs.map_or(KeyOutcome::Delete, |content| KeyOutcome::Put(content.clone()))
            }
            Self::Counter if !is_one_base || (base.is_some() && ours.is_none()) => {
                KeyOutcome::Conflict
            }
            Self::Counter => {
                let number = |content: Option<&Content>| {
                    let bytes = content.map_or(Ok([0; 8]), |it| it.value[..].try_into());
                    bytes.map(|bytes| i128::from(i64::from_le_bytes(bytes)))
                };
                let sum = match (number(base), number(ours), number(theirs)) {
                    (Ok(base), Ok(ours), Ok(theirs)) => i64::try_from(ours + theirs - base).ok(),
                    _ => None,
                };
                sum.map_or(KeyOutcome::Conflict, |sum| put(sum.to_le_bytes().to_vec()))
            }
            Self::Text => {
                let numbers =
                    |content: Option<&Content>| content.and_then(|it| numbers_of(&it.value));
                let (Some(base), Some(ours), Some(theirs)) =
                    (numbers(base), numbers(ours), numbers(theirs))
                else {
                    return KeyOutcome::Conflict;
                };
                let mut merged = ours;
                for line in 0..LINES {
                    let [base, ours, theirs] = [base[line], ours[line], theirs[line]];
                    merged[line] = match () {
                        () if ours == base => theirs,
                        () if theirs == base || ours == theirs => ours,
                        () => return KeyOutcome::Conflict,
                    };
                }
                if merged == ours { KeyOutcome::Keep } else { put(text_of(merged)) }
            }
            Self::Newest => unreachable!("the commits of the versions are compared"),
            Self::Json | Self::JsonSet => {
                let (Some(ours), Some(theirs), true) = (ours, theirs, is_one_base) else {
                    return KeyOutcome::Conflict;
                };
                let merge = if self == Self::Json { json::merged } else { json::merged_set };
                let base = base.map(|base| &base.value[..]);
                merge(base, &ours.value, &theirs.value).map_or(KeyOutcome::Conflict, put)
            }
            Self::Function => {
                let bytes = |content: Option<&'_ Content>| content.map(|it| it.value.to_vec());
                let [base, ours, theirs] = [bytes(base), bytes(ours), bytes(theirs)];
                let decided =
                    decide(base.as_deref(), is_one_base, ours.as_deref(), theirs.as_deref());
                match decided {
                    MergeDecision::Put(value) if Some(&value) == ours.as_ref() => KeyOutcome::Keep,
                    MergeDecision::Put(value) => put(value),
                    MergeDecision::Delete if ours.is_none() => KeyOutcome::Keep,
                    MergeDecision::Delete => KeyOutcome::Delete,
                    MergeDecision::Conflict => KeyOutcome::Conflict,
                }
            }
        }
    }
}

/// The function of [`Rule::Function`].
fn decide(
    base: Option<&[u8]>,
    is_one_base: bool,
    ours: Option<&[u8]>,
    theirs: Option<&[u8]>,
) -> MergeDecision {
    let first = |value: Option<&[u8]>| value.map(|it| [it[0], it.len() as u8]);
    let sides = [first(base), first(ours), first(theirs)];
    let sum = sides.iter().flatten().flatten().fold(u32::from(is_one_base), |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(u32::from(*byte))
    });
    match sum % 16 {
        0 => MergeDecision::Conflict,
        1 | 2 => MergeDecision::Delete,
        3 | 4 => MergeDecision::Put(ours.unwrap_or(&[0; 8]).to_vec()),
        // A number, so that a later counter can continue from it.
        _ => MergeDecision::Put(u64::from(sum).to_le_bytes().to_vec()),
    }
}
