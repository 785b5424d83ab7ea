//! Who came before whom, and the search for a circle in it.

use std::collections::{HashMap, VecDeque};
use std::fmt;

use crate::failure::{Failure, Outcome};
use crate::lists::history::{End, ListName, Transaction};

/// Why one transaction came before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The second one has seen what the first one appended to a list.
    Seen(ListName),
    /// The first one has not seen what the second one appended to it.
    NotSeen(ListName),
    /// The second one appended behind the first one.
    Appended(ListName),
    /// The first one had returned when the second one began.
    Time,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Seen(list) => {
                write!(f, "whose value in {list} was seen, as the next one had seen it, by")
            }
            Self::NotSeen(list) => write!(f, "which had not seen in {list} what was appended by"),
            Self::Appended(list) => write!(f, "behind which in {list} appended"),
            Self::Time => f.write_str("which had returned before there began"),
        }
    }
}

/// The order of transactions, as far as it is known.
pub struct Order<'h> {
    history: &'h [Transaction],
    /// Nodes behind those of transactions stand for the moments at which transactions returned, in
    /// the order of time: who returned comes before that moment, that moment before the next one,
    /// and before all who began after it. So there are not as many relations as pairs.
    nodes: Vec<Vec<(usize, Cause)>>,
    relations: u64,
}

impl<'h> Order<'h> {
    /// The order that follows from the times of those transactions of a history that were
    /// committed.
    pub fn new(history: &'h [Transaction], committed: &[bool]) -> Self {
        let mut ends: Vec<(u64, usize)> = Vec::new();
        let mut begins: Vec<(u64, usize)> = Vec::new();
        for (number, transaction) in
            history.iter().enumerate().filter(|(number, _)| committed[*number])
        {
            begins.push((transaction.begin, number));
            if let End::Committed(end) = transaction.end {
                ends.push((end, number));
            }
        }
        ends.sort_unstable();
        begins.sort_unstable();
        let mut nodes = vec![Vec::new(); history.len() + ends.len()];
        for (at, (_, number)) in ends.iter().enumerate() {
            nodes[*number].push((history.len() + at, Cause::Time));
            if at + 1 < ends.len() {
                nodes[history.len() + at].push((history.len() + at + 1, Cause::Time));
            }
        }
        let mut over = 0;
        for (begin, number) in begins {
            while ends.get(over).is_some_and(|(end, _)| *end < begin) {
                over += 1;
            }
            if let Some(last) = over.checked_sub(1) {
                nodes[history.len() + last].push((number, Cause::Time));
            }
        }
        Self { history, nodes, relations: 0 }
    }

    /// The transaction with one number came before that with another one.
    pub fn add(&mut self, before: usize, after: usize, cause: Cause) {
        if before != after {
            self.nodes[before].push((after, cause));
            self.relations += 1;
        }
    }

    /// How many relations were added.
    pub fn relations(&self) -> u64 {
        self.relations
    }

    /// # Errors
    /// A transaction came before itself; the message has the shortest way that was found.
    pub fn check(&self) -> Outcome {
        let Some(left) = self.left_of_sorting() else { return Ok(()) };
        let circle = self.shortest_circle(&left).unwrap_or_default();
        let told =
            circle.iter().map(|(number, cause)| format!("{}, {cause}", self.history[*number]));
        Err(Failure::new(format!(
            "not serializable: {} the first one again",
            told.collect::<Vec<_>>().join(" ")
        )))
    }

    /// Removes transactions that none of the others comes before, again and again. If any are left,
    /// there is a circle among them.
    fn left_of_sorting(&self) -> Option<Vec<bool>> {
        let mut before = vec![0u32; self.nodes.len()];
        self.nodes.iter().flatten().for_each(|(after, _)| before[*after] += 1);
        let mut free: Vec<usize> =
            (0..self.nodes.len()).filter(|node| before[*node] == 0).collect();
        let mut left = vec![true; self.nodes.len()];
        while let Some(node) = free.pop() {
            left[node] = false;
            for (after, _) in &self.nodes[node] {
                before[*after] -= 1;
                if before[*after] == 0 {
                    free.push(*after);
                }
            }
        }
        left.contains(&true).then_some(left)
    }

    /// The shortest way from one of the transactions that are left back to it, among the first
    /// thousand by time (what comes after a circle is left, too): each with the cause for which it
    /// came before the next one.
    fn shortest_circle(&self, left: &[bool]) -> Option<Vec<(usize, Cause)>> {
        let mut starts: Vec<usize> = (0..self.history.len()).filter(|node| left[*node]).collect();
        starts.sort_unstable_by_key(|node| self.history[*node].begin);
        let ways = starts.into_iter().take(1000).filter_map(|start| self.way_back(start, left));
        ways.min_by_key(Vec::len)
    }

    fn way_back(&self, start: usize, left: &[bool]) -> Option<Vec<(usize, Cause)>> {
        let mut from: HashMap<usize, (usize, Cause)> = HashMap::new();
        let mut next = VecDeque::from([start]);
        while let Some(node) = next.pop_front() {
            for (after, cause) in self.nodes[node].iter().filter(|(after, _)| left[*after]) {
                if *after == start {
                    let mut way = vec![(node, *cause)];
                    while way.last().is_some_and(|(node, _)| *node != start) {
                        way.push(from[&way[way.len() - 1].0]);
                    }
                    way.reverse();
                    // Moments are no transactions; what led to one is told.
                    way.retain(|(node, _)| *node < self.history.len());
                    return Some(way);
                }
                if !from.contains_key(after) {
                    from.insert(*after, (node, *cause));
                    next.push_back(*after);
                }
            }
        }
        None
    }
}
