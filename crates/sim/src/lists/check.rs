//! Checks a history of transactions over lists: each transaction by itself, and then their order.

use std::collections::{BTreeMap, HashMap};

use crate::failure::{Failure, Outcome, ensure};
use crate::lists::history::{End, ListName, Seen, Step, Transaction};
use crate::lists::order::{Cause, Order};

/// The final lists.
pub type Lists = BTreeMap<ListName, Vec<u64>>;

/// Counts of a checked history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistoryCounts {
    /// Committed transactions.
    pub committed: u64,
    /// Committed transactions whose process was killed before it could report them.
    pub of_killed: u64,
    /// Transactions refused or aborted.
    pub refused: u64,
    /// Values in all lists.
    pub values: u64,
    /// Dependencies between transactions.
    pub relations: u64,
}

/// Checks that a history is strictly serializable: some order of all committed transactions agrees
/// with their start and return times, and in it each transaction has seen exactly the effects of
/// those before it.
///
/// # Errors
/// The history is not strictly serializable; the message names the transactions.
pub fn check(history: &[Transaction], lists: &Lists) -> Outcome<HistoryCounts> {
    let prefixes = Prefixes::of(lists);
    let mut writers: HashMap<u64, usize> = HashMap::new();
    for (number, transaction) in history.iter().enumerate() {
        for value in transaction.steps.iter().filter_map(|step| step.value) {
            ensure(writers.insert(value, number).is_none(), || {
                format!("two transactions append {value:x}")
            })?;
        }
    }
    let mut checked = HistoryCounts::default();
    let mut committed = Vec::new();
    for transaction in history {
        let appended = transaction
            .steps
            .iter()
            .filter(|step| step.value.is_some_and(|value| prefixes.has(value)));
        let (found, appends) = (
            appended.count(),
            transaction.steps.iter().filter(|step| step.value.is_some()).count(),
        );
        let is_there = found > 0;
        match transaction.end {
            End::Refused => ensure(!is_there, || {
                format!("{transaction} was refused, but its values are present")
            })?,
            End::Committed(_) => ensure(found == appends, || format!("{transaction} is lost"))?,
            End::Unknown => ensure(found == 0 || found == appends, || {
                format!("{transaction} is partly present")
            })?,
        }
        let counts = matches!(transaction.end, End::Committed(_)) || is_there;
        if counts {
            prefixes.check(transaction)?;
        }
        checked.committed += u64::from(counts);
        checked.of_killed += u64::from(counts && transaction.end == End::Unknown);
        checked.refused += u64::from(transaction.end == End::Refused);
        committed.push(counts);
    }
    for (list, values) in lists {
        let unknown = values.iter().find(|value| !writers.contains_key(value));
        ensure(unknown.is_none(), || {
            format!("no transaction appended {unknown:x?} to the list {list}")
        })?;
        checked.values += values.len() as u64;
    }
    let mut order = Order::new(history, &committed);
    for (number, transaction) in history.iter().enumerate().filter(|(number, _)| committed[*number])
    {
        for (list, first, own) in spans(transaction) {
            let values = lists.get(&list).map_or(&[][..], |values| values);
            let at = first.len as usize;
            if let Some(before) = at.checked_sub(1) {
                order.add(writers[&values[before]], number, Cause::Seen(list));
            }
            if let Some(next) = values.get(at + own) {
                let cause = if own == 0 { Cause::NotSeen(list) } else { Cause::Appended(list) };
                order.add(number, writers[next], cause);
            }
        }
    }
    checked.relations = order.relations();
    order.check().map(|()| checked)
}

/// For each list of a transaction: the number of values that it saw before its changes, and the
/// number that it appended.
fn spans(transaction: &Transaction) -> Vec<(ListName, Seen, usize)> {
    let mut spans: Vec<(ListName, Seen, usize)> = Vec::new();
    for Step { list, seen, value } in &transaction.steps {
        let own = usize::from(value.is_some());
        match spans.iter_mut().find(|(known, _, _)| known == list) {
            Some(span) => span.2 += own,
            None => spans.push((*list, *seen, own)),
        }
    }
    spans
}

/// The possible views of each list: nothing, its first value, its first two values, ...
struct Prefixes {
    seen: BTreeMap<ListName, Vec<Seen>>,
    places: HashMap<u64, (ListName, u64)>,
}

impl Prefixes {
    fn of(lists: &Lists) -> Self {
        let mut places = HashMap::new();
        let mut seen = BTreeMap::new();
        for (list, values) in lists {
            places.extend(values.iter().zip(0..).map(|(value, at)| (*value, (*list, at))));
            let prefixes = values.iter().scan(Seen::default(), |seen, value| {
                *seen = seen.with(*value);
                Some(*seen)
            });
            seen.insert(*list, std::iter::once(Seen::default()).chain(prefixes).collect());
        }
        Self { seen, places }
    }

    fn has(&self, value: u64) -> bool {
        self.places.contains_key(&value)
    }

    /// Checks that each step saw a prefix of the final list, that this prefix includes all values
    /// that earlier steps had appended, and that the value that the step appended follows the
    /// prefix.
    fn check(&self, transaction: &Transaction) -> Outcome {
        let mut last: Vec<(ListName, Seen)> = Vec::new();
        for Step { list, seen, value } in &transaction.steps {
            let is_seen = match self.seen.get(list) {
                Some(prefixes) => prefixes.get(seen.len as usize) == Some(seen),
                None => *seen == Seen::default(),
            };
            ensure(is_seen, || {
                format!("{transaction} has seen values in the list {list} that were never in it")
            })?;
            if let Some(value) = value {
                ensure(self.places.get(value) == Some(&(*list, seen.len)), || {
                    let place = self
                        .places
                        .get(value)
                        .map(|(list, at)| format!("at {at} of the list {list}"));
                    format!("{transaction} appended {value:x}, whose place is {place:?}")
                })?;
            }
            let after = value.map_or(*seen, |value| seen.with(value));
            match last.iter_mut().find(|(known, _)| known == list) {
                Some((_, before)) if before != seen => {
                    return Err(Failure::new(format!(
                        "{transaction} has seen the list {list} change under it"
                    )));
                }
                Some((_, before)) => *before = after,
                None => last.push((*list, after)),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ListName = ListName { slot: 0, generation: 0 };
    const B: ListName = ListName { slot: 1, generation: 0 };

    fn reads(list: ListName, values: &[u64]) -> Step {
        Step { list, seen: Seen::of(values.iter().copied()), value: None }
    }

    fn appends(list: ListName, values: &[u64], value: u64) -> Step {
        Step { value: Some(value), ..reads(list, values) }
    }

    fn done(begin: u64, end: u64, steps: &[Step]) -> Transaction {
        Transaction { begin, end: End::Committed(end), steps: steps.to_vec() }
    }

    fn ended(end: End, steps: &[Step]) -> Transaction {
        Transaction { begin: 0, end, steps: steps.to_vec() }
    }

    fn lists<const N: usize>(lists: [(ListName, &[u64]); N]) -> Lists {
        lists.into_iter().map(|(list, values)| (list, values.to_vec())).collect()
    }

    fn refusal(history: &[Transaction], lists: &Lists) -> String {
        check(history, lists).expect_err("it is not serializable").message
    }

    #[test]
    fn serial_history_passes() {
        let history = [
            done(0, 10, &[appends(A, &[], 1), reads(A, &[1]), appends(A, &[1], 2)]),
            // At the same time as the first one, and before it.
            done(5, 30, &[reads(A, &[]), appends(B, &[], 3)]),
            ended(End::Refused, &[appends(B, &[3], 4)]),
            ended(End::Unknown, &[appends(B, &[3], 5)]),
            ended(End::Unknown, &[appends(B, &[3], 6)]),
            done(40, 50, &[reads(B, &[3, 5]), reads(A, &[1, 2])]),
        ];
        let checked = check(&history, &lists([(A, &[1, 2]), (B, &[3, 5])])).unwrap();
        assert_eq!(
            (checked.committed, checked.of_killed, checked.refused, checked.values),
            (4, 1, 1, 4)
        );
    }

    #[test]
    fn lost_torn_and_phantom_writes_are_found() {
        let one = done(0, 10, &[appends(A, &[], 1), appends(B, &[], 2)]);
        assert!(refusal(std::slice::from_ref(&one), &lists([])).contains("is lost"));
        assert!(refusal(std::slice::from_ref(&one), &lists([(A, &[1])])).contains("is lost"));
        let killed = Transaction { end: End::Unknown, ..one.clone() };
        assert!(
            refusal(std::slice::from_ref(&killed), &lists([(A, &[1])])).contains("partly present")
        );
        let refused = Transaction { end: End::Refused, ..one.clone() };
        assert!(refusal(&[refused], &lists([(B, &[2])])).contains("was refused"));
        assert!(refusal(&[], &lists([(A, &[1])])).contains("no transaction"));
        // Both saw an empty list.
        let other = done(0, 10, &[appends(A, &[], 3)]);
        assert!(
            refusal(&[one.clone(), other], &lists([(A, &[1, 3]), (B, &[2])]))
                .contains("whose place")
        );
        // Seen, but not in the final list.
        let reader = done(0, 10, &[reads(A, &[1, 9])]);
        assert!(
            refusal(&[one.clone(), reader], &lists([(A, &[1]), (B, &[2])])).contains("never in it")
        );
        let twice = done(0, 10, &[reads(A, &[]), reads(A, &[1])]);
        assert!(refusal(&[one, twice], &lists([(A, &[1]), (B, &[2])])).contains("change under it"));
    }

    #[test]
    fn cycles_are_found() {
        // Write skew: each transaction has read the list that the other then appended to.
        let one = done(0, 10, &[reads(A, &[]), appends(B, &[], 1)]);
        let two = done(0, 10, &[reads(B, &[]), appends(A, &[], 2)]);
        let skew = refusal(&[one, two], &lists([(A, &[2]), (B, &[1])]));
        assert!(skew.contains("had not seen"), "{skew}");
        // A read that sees part of another transaction.
        let writer = done(0, 10, &[appends(A, &[], 1), appends(B, &[], 2)]);
        let half = done(0, 10, &[reads(A, &[1]), reads(B, &[])]);
        let fractured = refusal(&[writer.clone(), half], &lists([(A, &[1]), (B, &[2])]));
        assert!(fractured.contains("was seen by"), "{fractured}");
        // A long fork: two readers see two writers in opposite orders.
        let writers = [done(0, 10, &[appends(A, &[], 1)]), done(0, 10, &[appends(B, &[], 2)])];
        let readers = [
            done(0, 10, &[reads(A, &[1]), reads(B, &[])]),
            done(0, 10, &[reads(A, &[]), reads(B, &[2])]),
        ];
        let history: Vec<Transaction> = writers.into_iter().chain(readers).collect();
        refusal(&history, &lists([(A, &[1]), (B, &[2])]));
        // A stale read: the writer had returned before the reader began.
        let stale = done(11, 20, &[reads(A, &[])]);
        let late = refusal(&[writer.clone(), stale], &lists([(A, &[1]), (B, &[2])]));
        assert!(late.contains("had returned"), "{late}");
        // If the reader began at the same moment, the read is not stale.
        let early = done(10, 20, &[reads(A, &[])]);
        check(&[writer, early], &lists([(A, &[1]), (B, &[2])])).unwrap();
        // Transitive: a sees b, b returned before c began, c had not seen a.
        let chain = [
            done(0, 10, &[appends(A, &[], 1)]),
            done(0, 12, &[reads(A, &[1]), appends(B, &[], 2)]),
            done(13, 20, &[reads(A, &[])]),
        ];
        refusal(&chain, &lists([(A, &[1]), (B, &[2])]));
    }
}
