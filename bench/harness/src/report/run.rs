//! One run of the yardstick, read from its CSV. A row that was measured again and appended to the
//! file counts with its last measurement.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use crate::results::HEAD;

/// A parsed run.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) machine: String,
    /// When its first row was measured.
    pub(super) date: String,
    /// Rows in the order in which they were measured first.
    rows: Vec<String>,
    lines: Vec<Line>,
}

#[derive(Debug)]
struct Line {
    date: String,
    commit: String,
    row: String,
    settings: BTreeMap<String, String>,
    metric: String,
    value: f64,
}

/// Plimsoll's rate over a peer's, with the interval if there were enough pairs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ratio {
    pub(super) median: f64,
    pub(super) interval: Option<(f64, f64)>,
}

/// A mean over rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Mean {
    pub(super) ratio: f64,
    /// The number of rows; there is no ratio if one of the two failed.
    pub(super) rows: usize,
}

impl Run {
    /// Reads a CSV. It may come from an older or newer bench, so unknown fields are ignored and
    /// missing ones are optional.
    pub(super) fn read(file: &Path) -> Result<Self> {
        let text =
            fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        Self::parse(&text).with_context(|| format!("{} is no result", file.display()))
    }

    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines();
        ensure!(lines.next() == Some(HEAD.trim_end()), "its head is another");
        let mut run = Self {
            machine: String::new(),
            date: String::new(),
            rows: Vec::new(),
            lines: Vec::new(),
        };
        for line in lines {
            // An interrupted run may end in the middle of a line.
            let Ok([machine, date, commit, row, settings, metric, value]) =
                <[&str; 7]>::try_from(line.split(',').collect::<Vec<_>>())
            else {
                continue;
            };
            let Ok(value) = value.parse() else { continue };
            machine.clone_into(&mut run.machine);
            let settings = settings
                .split(' ')
                .filter_map(|pair| pair.split_once('='))
                .map(|(k, v)| (k.to_owned(), v.to_owned()));
            run.lines.push(Line {
                date: date.to_owned(),
                commit: commit.to_owned(),
                row: row.to_owned(),
                settings: settings.collect(),
                metric: metric.to_owned(),
                value,
            });
        }
        ensure!(!run.lines.is_empty(), "it is empty");
        run.lines[0].date.clone_into(&mut run.date);
        let rows = run
            .lines
            .iter()
            .filter(|line| line.setting("contestant").is_some())
            .map(|line| &*line.row);
        run.rows = unique(rows.filter(|row| !row.starts_with("build")))
            .into_iter()
            .map(str::to_owned)
            .collect();
        // Use the newest measurement of each row, but the first sample of the machine, which stands
        // before them.
        let dates: BTreeMap<String, String> =
            run.lines.iter().map(|line| (line.row.clone(), line.date.clone())).collect();
        run.lines
            .retain(|line| line.setting("contestant").is_none() || dates[&line.row] == line.date);
        Ok(run)
    }

    /// The commit that was measured; where rows were measured again at another, that one too, with
    /// their names.
    pub(super) fn commits(&self) -> String {
        let commits = unique(self.lines.iter().map(|line| &*line.commit));
        let (first, others) = commits.split_first().expect("a run has lines");
        let named = others.iter().map(|commit| {
            let rows = self
                .lines
                .iter()
                .filter(|line| line.commit == *commit && line.setting("contestant").is_some());
            let rows = unique(rows.map(|line| &*line.row).filter(|row| !row.starts_with("build")));
            format!(", {} at {commit}", rows.join(" and "))
        });
        std::iter::once((*first).to_owned()).chain(named).collect()
    }

    fn of<'run>(
        &'run self,
        row: &'run str,
        contestant: &'run str,
    ) -> impl Iterator<Item = &'run Line> + 'run {
        self.lines
            .iter()
            .filter(move |line| line.row == row && line.setting("contestant") == Some(contestant))
    }

    /// Rows in the order in which they ran, without those that made stores.
    pub(super) fn rows(&self) -> Vec<&str> {
        self.rows.iter().map(String::as_str).collect()
    }

    /// Contestants of a row, in the order of their first appearance.
    pub(super) fn contestants(&self, row: &str) -> Vec<&str> {
        unique(
            self.lines
                .iter()
                .filter(|line| line.row == row)
                .filter_map(|line| line.setting("contestant")),
        )
    }

    /// A number of a cell.
    pub(super) fn value(&self, row: &str, contestant: &str, metric: &str) -> Option<f64> {
        let own = |line: &&Line| line.setting("against").is_none() && line.metric == metric;
        self.of(row, contestant).find(own).map(|line| line.value)
    }

    /// A setting of a row.
    pub(super) fn setting(&self, row: &str, name: &str) -> Option<&str> {
        self.lines.iter().filter(|line| line.row == row).find_map(|line| line.setting(name))
    }

    /// A setting of any row.
    pub(super) fn any_setting(&self, name: &str) -> Option<&str> {
        self.lines.iter().find_map(|line| line.setting(name))
    }

    /// The fraction of the processors that others used when the run began.
    pub(super) fn busy_before(&self) -> Option<f64> {
        self.lines.iter().find(|line| line.metric == "busy_before").map(|line| line.value)
    }

    pub(super) fn ratio(&self, row: &str, ours: &str, peer: &str) -> Option<Ratio> {
        let of = |metric: &str| {
            let mut lines = self.of(row, ours).filter(|line| line.setting("against") == Some(peer));
            lines.find(|line| line.metric == metric).map(|line| line.value)
        };
        Some(Ratio { median: of("ratio")?, interval: of("ratio_low").zip(of("ratio_high")) })
    }

    /// The geometric mean of the ratios over rows; none if there is not one ratio.
    pub(super) fn mean(&self, rows: &[String], ours: &str, peer: &str) -> Option<Mean> {
        let ratios: Vec<f64> = rows
            .iter()
            .filter_map(|row| Some(self.ratio(row, ours, peer)?.median))
            .filter(|ratio| *ratio > 0.0)
            .collect();
        let sum: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
        (!ratios.is_empty())
            .then(|| Mean { ratio: (sum / ratios.len() as f64).exp(), rows: ratios.len() })
    }

    /// Memory over time: seconds and bytes.
    pub(super) fn memory(&self, row: &str, contestant: &str) -> Vec<(f64, f64)> {
        let point =
            |line: &Line| Some((line.metric.strip_prefix("memory_at_")?.parse().ok()?, line.value));
        self.of(row, contestant).filter_map(point).collect()
    }

    /// All values of a metric that begins with `prefix`, by the number that follows it in the name
    /// and by the rest of the name.
    pub(super) fn over_time(&self, row: &str, prefix: &str) -> Vec<(f64, &str, f64)> {
        let mut points = Vec::new();
        for line in self.lines.iter().filter(|line| line.row == row) {
            let Some((at, rest)) =
                line.metric.strip_prefix(prefix).and_then(|rest| rest.split_once('_'))
            else {
                continue;
            };
            points.extend(at.parse().map(|at| (at, rest, line.value)));
        }
        points
    }

    /// Why a cell has no rate.
    pub(super) fn failure(&self, row: &str, contestant: &str) -> &'static str {
        match (self.value(row, contestant, "out_of_memory"), self.value(row, contestant, "failed"))
        {
            (Some(killed), _) if killed > 0.0 => "out of memory",
            (_, Some(failed)) if failed > 0.0 => "failed",
            _ => "–",
        }
    }
}

impl Line {
    fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }
}

fn unique<'run>(names: impl Iterator<Item = &'run str>) -> Vec<&'run str> {
    let mut all = Vec::new();
    names.for_each(|name| {
        if !all.contains(&name) {
            all.push(name);
        }
    });
    all
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A small run: one row won, one lost, one in which the peer was killed.
    pub(in crate::report) const EXAMPLE: &str = "machine,date,commit,workload,settings,metric,value
m,2026-01-01T00:00:00Z,abc,machine,,busy_before,0.25
m,2026-01-01T00:00:00Z,abc,build,contestant=plimsoll mode=full,per_second,9
m,2026-01-01T00:00:00Z,abc,get-zipf,contestant=plimsoll mode=full limit=256MiB cgroup=256MiB,per_second,4000000
m,2026-01-01T00:00:00Z,abc,get-zipf,contestant=plimsoll mode=full limit=256MiB cgroup=256MiB,p50_ns,700
m,2026-01-01T00:00:00Z,abc,get-zipf,contestant=plimsoll mode=full limit=256MiB cgroup=256MiB,max_ns,70000
m,2026-01-01T00:00:00Z,abc,get-zipf,contestant=plimsoll mode=full limit=256MiB cgroup=256MiB,memory_at_0.1,1000000
m,2026-01-01T00:00:00Z,abc,get-zipf,contestant=plimsoll mode=full limit=256MiB cgroup=256MiB,memory_at_0.9,2000000
m,2026-01-01T00:00:00Z,abc,get-zipf,contestant=lmdb mode=full limit=256MiB cgroup=256MiB,per_second,1000000
m,2026-01-01T00:00:00Z,abc,get-zipf,contestant=plimsoll mode=full limit=256MiB against=lmdb,ratio,4
m,2026-01-01T00:00:00Z,abc,get-zipf,contestant=plimsoll mode=full limit=256MiB against=lmdb,ratio_low,3.5
m,2026-01-01T00:00:00Z,abc,get-zipf,contestant=plimsoll mode=full limit=256MiB against=lmdb,ratio_high,4.5
m,2026-01-01T00:00:00Z,abc,scan-full,contestant=plimsoll mode=full limit=256MiB cgroup=256MiB,per_second,1000
m,2026-01-01T00:00:00Z,abc,scan-full,contestant=lmdb mode=full limit=256MiB cgroup=256MiB,per_second,4000
m,2026-01-01T00:00:00Z,abc,scan-full,contestant=lmdb mode=full limit=256MiB cgroup=256MiB,cut,1
m,2026-01-01T00:00:00Z,abc,scan-full,contestant=plimsoll mode=full limit=256MiB against=lmdb,ratio,0.25
m,2026-01-01T00:00:00Z,abc,load-random,contestant=plimsoll mode=full limit=256MiB cgroup=256MiB,per_second,5
m,2026-01-01T00:00:00Z,abc,load-random,contestant=lmdb mode=full limit=256MiB cgroup=256MiB,failed,1
m,2026-01-01T00:00:00Z,abc,load-random,contestant=lmdb mode=full limit=256MiB cgroup=256MiB,out_of_memory,1
m,2026-01-01T00:00:00Z,abc,load-ran";

    #[test]
    fn a_run_is_read_back_up_to_where_it_was_stopped() {
        let run = Run::parse(EXAMPLE).unwrap();
        assert_eq!(run.rows(), ["get-zipf", "scan-full", "load-random"]);
        assert_eq!(run.contestants("scan-full"), ["plimsoll", "lmdb"]);
        assert_eq!(run.value("get-zipf", "lmdb", "per_second"), Some(1e6));
        assert_eq!(
            run.ratio("get-zipf", "plimsoll", "lmdb"),
            Some(Ratio { median: 4.0, interval: Some((3.5, 4.5)) })
        );
        assert_eq!(
            run.ratio("scan-full", "plimsoll", "lmdb"),
            Some(Ratio { median: 0.25, interval: None })
        );
        assert_eq!(run.memory("get-zipf", "plimsoll"), [(0.1, 1e6), (0.9, 2e6)]);
        assert_eq!(run.failure("load-random", "lmdb"), "out of memory");
        assert_eq!((run.busy_before(), run.any_setting("mode")), (Some(0.25), Some("full")));
        assert!(Run::parse("a,b\n").is_err());
    }

    #[test]
    fn a_row_that_was_measured_again_counts_with_its_last_measurement() {
        let again = "\nm,2026-01-01T09:00:00Z,def,machine,,busy_before,0.5
m,2026-01-01T09:00:00Z,def,build,contestant=plimsoll mode=full,per_second,8
m,2026-01-01T09:00:00Z,def,scan-full,contestant=plimsoll mode=full,per_second,3000
m,2026-01-01T09:00:00Z,def,scan-full,contestant=lmdb mode=full,per_second,1000
m,2026-01-01T09:00:00Z,def,scan-full,contestant=plimsoll mode=full against=lmdb,ratio,3\n";
        let run = Run::parse(&format!("{EXAMPLE}{again}")).unwrap();
        assert_eq!(run.value("scan-full", "plimsoll", "per_second"), Some(3000.0));
        assert_eq!(run.value("scan-full", "lmdb", "cut"), None);
        assert_eq!(run.ratio("scan-full", "plimsoll", "lmdb").map(|ratio| ratio.median), Some(3.0));
        assert_eq!(run.value("get-zipf", "lmdb", "per_second"), Some(1e6));
        assert_eq!(run.rows(), ["get-zipf", "scan-full", "load-random"]);
        assert_eq!((run.busy_before(), &*run.commits()), (Some(0.25), "abc, scan-full at def"));
        assert!(run.date.starts_with("2026-01-01T00"));
        assert_eq!(Run::parse(EXAMPLE).unwrap().commits(), "abc");
    }

    #[test]
    fn the_mean_counts_wins_and_losses_alike_and_leaves_out_what_failed() {
        let run = Run::parse(EXAMPLE).unwrap();
        let rows = ["get-zipf", "scan-full", "load-random"].map(str::to_owned);
        let mean = run.mean(&rows, "plimsoll", "lmdb").unwrap();
        assert!((mean.ratio - 1.0).abs() < 1e-9 && mean.rows == 2);
        assert_eq!(run.mean(&rows, "plimsoll", "redb"), None);
    }
}
