//! Iterates over the tables of several runs in key order and finds those that overlap with no
//! other: they need not be merged.

use crate::index::run::table::TableInfo;

/// The next table, or group of tables, in key order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    /// A table that overlaps with no other.
    Alone { input: usize, table: usize },
    /// Tables that overlap, directly or through others.
    Cluster { first_key: Vec<u8>, last_key: Vec<u8> },
}

/// The position of the sweep in each run.
#[derive(Debug)]
pub(crate) struct Sweep {
    at: Vec<usize>,
}

impl Sweep {
    /// A sweep over `inputs` runs, before their first tables.
    pub(crate) fn new(inputs: usize) -> Self {
        Self { at: vec![0; inputs] }
    }

    /// A sweep that has passed this many tables of each run.
    pub(crate) fn begin_at(passed: Vec<usize>) -> Self {
        Self { at: passed }
    }

    /// How many tables of each run are in the segments so far.
    pub(crate) fn passed(&self) -> &[usize] {
        &self.at
    }

    /// The next segment; `info` returns a table of a run, or `None` past the last one.
    pub(crate) fn next<'a>(
        &mut self,
        info: impl Fn(usize, usize) -> Option<&'a TableInfo>,
    ) -> Option<Segment> {
        let waiting = (0..self.at.len())
            .filter_map(|input| info(input, self.at[input]).map(|info| (input, info)));
        let (input, first) = waiting.min_by(|a, b| a.1.first_key.cmp(&b.1.first_key))?;
        let table = self.at[input];
        self.at[input] += 1;
        let mut last_key = &first.last_key;
        let mut alone = true;
        let mut grown = true;
        while grown {
            grown = false;
            for (other, at) in self.at.iter_mut().enumerate() {
                while let Some(next) = info(other, *at).filter(|next| next.first_key <= *last_key) {
                    last_key = last_key.max(&next.last_key);
                    *at += 1;
                    (alone, grown) = (false, true);
                }
            }
        }
        Some(if alone {
            Segment::Alone { input, table }
        } else {
            Segment::Cluster { first_key: first.first_key.clone(), last_key: last_key.clone() }
        })
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_log::glsn::Glsn;

    use super::*;
    use crate::index::run::table::TableId;

    fn run(spans: &[(&str, &str)]) -> Vec<TableInfo> {
        let info = |(first, last): &(&str, &str)| TableInfo {
            id: TableId::Run(1),
            pages: 4,
            root: 1,
            versions: 1,
            deletions: 0,
            first_key: first.as_bytes().to_vec(),
            last_key: last.as_bytes().to_vec(),
            min_glsn: Glsn(1),
            max_glsn: Glsn(1),
            min_pointer: None,
            log_bytes: None,
            expiries: None,
            blobs: Vec::new(),
            fixed_glsn: None,
            absorbed: Glsn::NONE,
            packed: None,
        };
        spans.iter().map(info).collect()
    }

    fn swept(runs: &[Vec<TableInfo>]) -> Vec<Segment> {
        let mut sweep = Sweep::new(runs.len());
        std::iter::from_fn(|| sweep.next(|input, at| runs[input].get(at))).collect()
    }

    fn cluster(first: &str, last: &str) -> Segment {
        Segment::Cluster { first_key: first.into(), last_key: last.into() }
    }

    #[test]
    fn tables_without_overlap_are_separate_segments() {
        let runs = [run(&[("c", "d"), ("g", "h")]), run(&[("a", "b"), ("e", "f")])];
        let alone = |input, table| Segment::Alone { input, table };
        assert_eq!(swept(&runs), [alone(1, 0), alone(0, 0), alone(1, 1), alone(0, 1)]);
    }

    #[test]
    fn tables_that_overlap_through_others_are_one_cluster() {
        let runs = [
            run(&[("a", "c"), ("d", "f")]),
            run(&[("c", "d"), ("x", "z")]),
            run(&[("f", "g"), ("z", "zz")]),
        ];
        assert_eq!(swept(&runs), [cluster("a", "g"), cluster("x", "zz")]);
    }

    #[test]
    fn a_table_that_spans_many_makes_one_cluster() {
        let runs = [
            run(&[("a", "b"), ("c", "d"), ("e", "f")]),
            run(&[("b", "y")]),
            run(&[("m", "n"), ("z", "z")]),
        ];
        assert_eq!(swept(&runs), [cluster("a", "y"), Segment::Alone { input: 2, table: 1 }]);
    }
}
