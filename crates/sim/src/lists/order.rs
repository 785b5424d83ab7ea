//! The order of transactions, and the search for cycles in it.

use std::collections::{HashMap, VecDeque};
use std::fmt;

use crate::failure::{Failure, Outcome};
use crate::lists::history::{End, ListName, Transaction};

/// A reason that one transaction precedes another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The second transaction has seen a value that the first appended (write-read).
    Seen(ListName),
    /// The first transaction has not seen a value that the second appended (read-write).
    NotSeen(ListName),
    /// The second transaction appended after the first (write-write).
    Appended(ListName),
    /// The first transaction had returned when the second began.
    Time,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Seen(list) => {
                write!(f, "whose value in {list} was seen by")
            }
            Self::NotSeen(list) => write!(f, "which had not seen the value in {list} appended by"),
            Self::Appended(list) => write!(f, "after which in {list} appended"),
            Self::Time => f.write_str("which had returned before the start of"),
        }
    }
}

/// The known order of transactions.
pub struct Order<'h> {
    history: &'h [Transaction],
    /// Besides transactions, the graph has a node for each return time, in order of time. A
    /// transaction precedes the node of its return, each such node precedes the next one and the
    /// transactions that began after it. This avoids an edge for every pair of transactions.
    nodes: Vec<Vec<(usize, Cause)>>,
    relations: u64,
}

impl<'h> Order<'h> {
    /// The order implied by the start and return times of the committed transactions of a history.
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

    /// Adds an edge between two transactions.
    pub fn add(&mut self, before: usize, after: usize, cause: Cause) {
        if before != after {
            self.nodes[before].push((after, cause));
            self.relations += 1;
        }
    }

    /// Number of edges.
    pub fn relations(&self) -> u64 {
        self.relations
    }

    /// # Errors
    /// There is a cycle; the message has the shortest one found.
    pub fn check(&self) -> Outcome {
        let Some(left) = self.left_of_sorting() else { return Ok(()) };
        let circle = self.shortest_circle(&left).unwrap_or_default();
        let steps =
            circle.iter().map(|(number, cause)| format!("{}, {cause}", self.history[*number]));
        Err(Failure::new(format!(
            "not serializable: {} the first transaction again",
            steps.collect::<Vec<_>>().join(" ")
        )))
    }

    /// Repeatedly removes nodes without a predecessor. If any are left, they contain a cycle.
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

    /// The shortest cycle through one of the first thousand remaining transactions by time
    /// (successors of a cycle remain, too): each transaction with the reason that it precedes the
    /// next.
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
                    // Nodes of times are not transactions; report the transaction that led to them.
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
