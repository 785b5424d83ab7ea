//! Two additional rows: the pairs of integers in Kùzu as well, and the import of a Git history.
//!
//! The pairs exist for Kùzu: it is killed or refuses if its buffer pool is as small as the limit.
//! It is tried twice: under the limit, and without one but with a buffer pool of that size. The
//! import is Plimsoll's alone; git's own processes are not limited, so there is no limit.

use std::path::Path;

use anyhow::Result;

use super::{Contest, Row};
use crate::launch::{Limit, Outcome, launch};
use crate::line::{build_plimsoll, top_of_checkout};
use crate::sizes::mib;
use crate::table::{self, number};
use crate::watch::End;
use crate::{child, kuzu, quiet};

impl Contest<'_> {
    /// Both rows. An unavailable row states the reason.
    pub(super) fn own_rows(&mut self, python: &Path) -> Result<()> {
        println!("\nrows of our own");
        let rows = [self.kuzu(python, true), self.kuzu(python, false), self.import()];
        let rows: Vec<_> = rows
            .into_iter()
            .filter_map(|row| {
                row.inspect_err(|error| eprintln!("a row is skipped: {error:#}")).ok()
            })
            .collect();
        if !rows.is_empty() {
            table::print(
                &["row", "per second", "seconds", "CPU s", "peak MiB", "written MiB", "outcome"],
                &rows,
            );
        }
        quiet::check(&mut self.results);
        self.results.keep()
    }

    fn kuzu(&mut self, python: &Path, is_limited: bool) -> Result<Vec<String>> {
        let bytes = self.scale.pairs_limit_bytes;
        let limit = if is_limited { Limit::hard(bytes) } else { Limit::None };
        let outcome = kuzu::load_pairs(&self.work, python, self.scale.pairs, bytes, &limit)?;
        let name = if is_limited { "kuzu" } else { "kuzu-without-limit" };
        let settings = self.settings(Row::Pairs, name, &limit);
        Ok(self.own_row(&Row::Pairs.name(), &settings, name, &outcome))
    }

    fn import(&mut self) -> Result<Vec<String>> {
        let (program, repository) = (build_plimsoll()?, top_of_checkout()?);
        let store = self.work.path().join("history");
        let places = [&repository, &store].map(|path| path.display().to_string());
        let arguments = ["import", "git"].map(str::to_owned).into_iter().chain(places);
        let memory = ["--memory".to_owned(), self.scale.pairs_limit_bytes.to_string()];
        let outcome = launch(&program, &arguments.chain(memory).collect::<Vec<_>>(), &Limit::None)?;
        self.work.remove("history");
        let settings = format!(
            "contestant=plimsoll mode={} limit={}",
            self.scale.mode,
            crate::sizes::show_size(self.scale.pairs_limit_bytes)
        );
        Ok(self.own_row("import-git", &settings, "import-git", &outcome))
    }

    fn own_row(&mut self, row: &str, settings: &str, name: &str, outcome: &Outcome) -> Vec<String> {
        let seen = &outcome.seen;
        seen.note(&mut self.results, row, settings);
        let numbers = child::numbers(seen.output.lines().last().unwrap_or_default());
        let of = |wanted: &str| {
            numbers.iter().find(|(metric, _)| metric == wanted).map(|(_, value)| *value)
        };
        let rate =
            of("operations").zip(of("seconds")).map(|(operations, seconds)| operations / seconds);
        let is_out_of_memory = f64::from(u8::from(seen.end == End::OutOfMemory));
        self.results.note(row, settings, "out_of_memory", is_out_of_memory);
        if let Some(rate) = rate {
            self.results.note(row, settings, "per_second", rate);
        }
        if let Some(peak) = outcome.cgroup_peak_bytes {
            self.results.note(row, settings, "cgroup_peak_bytes", peak as f64);
        }
        vec![
            name.to_owned(),
            rate.map_or_else(|| "-".to_owned(), number),
            number(seen.seconds),
            number(seen.counters.cpu_seconds),
            number(mib(seen.peak_line_bytes)),
            number(mib(seen.counters.written_bytes)),
            seen.end.to_string(),
        ]
    }
}
