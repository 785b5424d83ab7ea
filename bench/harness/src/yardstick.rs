//! `bench all`: twelve rows against the peers, at equal durability and under the same hard memory
//! limit, page cache included; and two additional rows.
//!
//! Contestants alternate. For a row measured in slices, each contestant has a process that
//! persists, is warmed up, and is stopped while the others work; a ratio is taken within a round.
//! Loads and cold opens are whole processes, one after the other. A failure fails one cell: the
//! rest continues, and earlier measurements are in the results.

mod cell;
pub(crate) mod data;
mod own_rows;
mod row;
mod scale;
mod session;
mod worker;
pub(crate) mod zipf;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Args;

use self::cell::Cell;
pub(crate) use self::row::Row;
use self::row::{Measure, Store};
use self::scale::Scale;
use self::session::Session;
pub(crate) use self::worker::Worker;
use crate::launch::Limit;
use crate::peer::{Commits, PeerKind};
use crate::quiet;
use crate::results::Results;
use crate::sizes::{mib, parse_size, show_size};
use crate::statistics::interval;
use crate::table::{self, number};
use crate::watch::End;
use crate::work_folder::{Places, WorkFolder, bytes_on_disk, drop_from_page_cache};

/// Ratios of fewer pairs than this have no interval of 95 %.
const PAIRS_FOR_INTERVAL: usize = 6;

/// Rows in the order in which they run: those that only read come before those that write on the
/// same store.
const ORDER: [Row; 13] = [
    Row::LoadSorted,
    Row::LoadRandom,
    Row::GetUniform,
    Row::GetZipf,
    Row::GetMissing,
    Row::ScanShort,
    Row::ScanFull,
    Row::ColdOpen,
    Row::CommitOne,
    Row::CommitThousand,
    Row::Mixed,
    Row::Values16k,
    Row::Pairs,
];

/// The peers that each contestant is compared with.
const OURS: [PeerKind; 2] = [PeerKind::Plimsoll, PeerKind::PlimsollForever];

#[derive(Args, Debug)]
pub(crate) struct All {
    /// A small limit and short slices: ends within a quarter of an hour on two cores, and is marked
    /// as quick
    #[arg(long)]
    quick: bool,
    /// Contestants
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "plimsoll,plimsoll-forever,rocksdb,lmdb,redb,fjall,sqlite"
    )]
    peer: Vec<PeerKind>,
    /// Rows [default: all]
    #[arg(long, value_delimiter = ',')]
    row: Vec<Row>,
    /// Another memory limit
    #[arg(long, value_parser = parse_size)]
    limit: Option<u64>,
    /// Threads that read [default: as many as there are cores, at most 8]
    #[arg(long)]
    threads: Option<u64>,
    /// A Python that can import kuzu
    #[arg(long, default_value = "python3")]
    kuzu: PathBuf,
    /// Add the rows to this run's CSV, in place of what it says of them: for a row that something
    /// else disturbed
    #[arg(long, requires = "row")]
    add_to: Option<PathBuf>,
    /// Leave out the pairs in Kùzu and the import of a Git history
    #[arg(long)]
    no_own_rows: bool,
}

impl All {
    /// Measures, prints a table for each row, stores the results after each.
    pub(crate) fn run(&self, places: &Places) -> Result<()> {
        let start = Instant::now();
        let missing: Vec<_> =
            self.peer.iter().filter(|peer| !peer.is_built()).map(|peer| peer.name()).collect();
        ensure!(
            missing.is_empty(),
            "this program was built without {}: leave it out with --peer, or build with --features rocksdb",
            missing.join(", ")
        );
        let suffix = if self.quick { "-quick" } else { "" };
        let mut results = match &self.add_to {
            Some(run) => Results::of_rows(run),
            None => Results::of_run(suffix, places.results().as_deref()),
        };
        quiet::check(&mut results);
        let work = places.work("all")?;
        let mut contest = Contest {
            peers: &self.peer,
            scale: self.scale()?,
            work,
            results,
            stores: None,
            without_store: Vec::new(),
        };
        for row in ORDER {
            if self.row.is_empty() || self.row.contains(&row) {
                contest.run(row)?;
            }
        }
        if !self.no_own_rows && self.row.is_empty() {
            contest.own_rows(&self.kuzu)?;
        }
        println!("{:.0} s", start.elapsed().as_secs_f64());
        contest.results.save()
    }

    fn scale(&self) -> Result<Scale> {
        let cores = std::thread::available_parallelism()?.get() as u64;
        let threads = self.threads.unwrap_or(cores.min(8));
        let scale = if self.quick { Scale::quick(threads) } else { Scale::full(threads) };
        Ok(Scale { limit_bytes: self.limit.unwrap_or(scale.limit_bytes), ..scale })
    }
}

/// A run: the contestants, the scale, the folder.
struct Contest<'all> {
    peers: &'all [PeerKind],
    scale: Scale,
    work: WorkFolder,
    results: Results,
    /// The stores in the work folder.
    stores: Option<Store>,
    /// Contestants whose store could not be created.
    without_store: Vec<PeerKind>,
}

impl Contest<'_> {
    fn run(&mut self, row: Row) -> Result<()> {
        let limit = Limit::hard(self.scale.limit(row));
        self.prepare(row)?;
        println!("\n{} ({}, limit {})", row.name(), row.unit(), show_size(self.scale.limit(row)));
        let cells = match row.measure() {
            Measure::WholeLoads => self.in_turns(row, &limit, self.scale.loads),
            Measure::WholeProcesses => self.in_turns(row, &limit, self.scale.slices),
            Measure::Slices => self.in_slices(row, &limit),
        };
        self.note(row, &limit, &cells);
        self.print(&cells);
        self.results.keep()
    }

    fn store(&self, peer: PeerKind) -> PathBuf {
        self.work.path().join(peer.name())
    }

    /// Makes exactly those stores exist that a row works on.
    fn prepare(&mut self, row: Row) -> Result<()> {
        let wanted = row.store();
        if self.stores == Some(wanted) {
            return Ok(());
        }
        self.peers.iter().for_each(|peer| self.work.remove(&peer.name()));
        self.stores = Some(wanted);
        self.without_store.clear();
        let build = match wanted {
            Store::Empty => return Ok(()),
            Store::Small => Row::Build,
            Store::Large => Row::Build16k,
        };
        println!("\n{} ({}, no limit)", build.name(), build.unit());
        // Without the limit, because only the same contents are needed, not a measurement.
        let cells = self.in_turns(build, &Limit::None, 1);
        let is_unfinished = |cell: &&Cell| cell.rate().is_none() || cell.is_cut;
        self.without_store =
            cells.iter().filter(is_unfinished).map(|cell| cell.contestant).collect();
        self.note(build, &Limit::None, &cells);
        self.print(&cells);
        self.results.keep()
    }

    /// Whole processes, one contestant after the other, each as often as specified.
    fn in_turns(&self, row: Row, limit: &Limit, times: usize) -> Vec<Cell> {
        let mut cells: Vec<_> = self.peers.iter().map(|&peer| self.cell(peer, row)).collect();
        for turn in 0..times {
            for i in self.rotated(turn) {
                let cell = std::mem::replace(&mut cells[i], Cell::new(self.peers[i]));
                cells[i] = if cell.failure.is_some() { cell } else { self.whole(cell, row, limit) };
            }
        }
        cells
    }

    /// An empty cell; one that has failed already if there is no store to work on.
    fn cell(&self, contestant: PeerKind, row: Row) -> Cell {
        let mut cell = Cell::new(contestant);
        if self.without_store.contains(&contestant) && row.measure() != Measure::WholeLoads {
            cell.fail("its store was not finished".to_owned());
        }
        cell
    }

    fn whole(&self, cell: Cell, row: Row, limit: &Limit) -> Cell {
        let store = self.store(cell.contestant);
        let is_new = row.measure() == Measure::WholeLoads;
        if is_new {
            self.work.remove(&cell.contestant.name());
        } else if let Err(error) = drop_from_page_cache(&store) {
            return failed(cell, &error);
        }
        let mut session = Session::start(cell, row, &self.scale, &store, limit);
        session.slice();
        let mut cell = session.end();
        cell.disk_bytes = bytes_on_disk(&store);
        if row.store() == Store::Empty {
            self.work.remove(&cell.contestant.name());
        }
        cell
    }

    /// All contestants at once, of which one works at a time.
    fn in_slices(&self, row: Row, limit: &Limit) -> Vec<Cell> {
        let start = |&peer: &PeerKind| {
            let (store, cell) = (self.store(peer), self.cell(peer, row));
            let cell = match drop_from_page_cache(&store) {
                Ok(()) => cell,
                Err(error) => failed(cell, &error),
            };
            let mut session = Session::start(cell, row, &self.scale, &store, limit);
            session.warm(self.scale.warm);
            session.pause();
            session
        };
        let mut sessions: Vec<_> = self.peers.iter().map(start).collect();
        for turn in 0..self.scale.slices {
            for i in self.rotated(turn) {
                sessions[i].resume();
                sessions[i].slice();
                sessions[i].pause();
            }
        }
        let end = |mut session: Session| {
            session.resume();
            let mut cell = session.end();
            cell.disk_bytes = bytes_on_disk(&self.store(cell.contestant));
            cell
        };
        sessions.into_iter().map(end).collect()
    }

    /// The order of the contestants, with a different first one in each turn.
    fn rotated(&self, turn: usize) -> impl Iterator<Item = usize> + use<> {
        let count = self.peers.len();
        (0..count).map(move |i| (i + turn) % count)
    }

    fn settings(&self, row: Row, contestant: &str, limit: &Limit) -> String {
        let scale = &self.scale;
        let commits = match row.commits() {
            Commits::Durable => "durable",
            Commits::Relaxed => "relaxed",
        };
        format!(
            "contestant={contestant} mode={} limit={} cgroup={} rows={} value_bytes={} commits={commits} batch={} threads={}",
            scale.mode,
            show_size(scale.limit(row)),
            limit.name(),
            scale.rows(row),
            row.value_bytes(),
            scale.batch,
            scale.threads,
        )
    }

    fn note(&mut self, row: Row, limit: &Limit, cells: &[Cell]) {
        for cell in cells {
            let settings = self.settings(row, &cell.contestant.name(), limit);
            cell.note(&mut self.results, &row.name(), &settings);
        }
        for ours in cells.iter().filter(|cell| OURS.contains(&cell.contestant)) {
            for peer in cells.iter().filter(|cell| !OURS.contains(&cell.contestant)) {
                let settings = self.settings(row, &ours.contestant.name(), limit);
                let settings = format!("{settings} against={}", peer.contestant.name());
                self.note_ratio(row, &settings, ours, peer);
            }
        }
    }

    fn note_ratio(&mut self, row: Row, settings: &str, ours: &Cell, peer: &Cell) {
        let Some(ratios) = ratios(ours, peer) else { return };
        let interval = interval(&ratios);
        let mut note = |metric, value| self.results.note(&row.name(), settings, metric, value);
        note("ratio", interval.median);
        note("ratio_pairs", ratios.len() as f64);
        if ratios.len() >= PAIRS_FOR_INTERVAL {
            note("ratio_low", interval.low);
            note("ratio_high", interval.high);
        }
    }

    fn print(&self, cells: &[Cell]) {
        let head = [
            "contestant",
            "per second",
            "Plimsoll's over it",
            "p50 us",
            "p99 us",
            "p99.9 us",
            "max us",
            "CPU s",
            "peak MiB",
            "cgroup MiB",
            "read MiB",
            "written MiB",
            "on disk MiB",
            "outcome",
        ];
        let ours = cells.iter().find(|cell| cell.contestant == PeerKind::Plimsoll);
        let rows: Vec<_> = cells.iter().map(|cell| printed(cell, ours)).collect();
        table::print(&head, &rows);
    }
}

/// Ratios of two contestants' rates, round by round; none if one of them failed.
fn ratios(ours: &Cell, peer: &Cell) -> Option<Vec<f64>> {
    ours.rate().zip(peer.rate())?;
    Some(ours.rates.iter().zip(&peer.rates).map(|(ours, peer)| ours / peer).collect())
}

fn failed(mut cell: Cell, error: &anyhow::Error) -> Cell {
    cell.fail(format!("{error:#}"));
    cell
}

fn printed(cell: &Cell, ours: Option<&Cell>) -> Vec<String> {
    let ratios =
        ours.filter(|ours| ours.contestant != cell.contestant).and_then(|ours| ratios(ours, cell));
    let micros = |name: &str| {
        cell.reported(name).map_or_else(|| "-".to_owned(), |nanos| number(nanos / 1000.0))
    };
    let outcome = match (&cell.failure, cell.end) {
        (_, End::OutOfMemory) => End::OutOfMemory.to_string(),
        (Some(failure), _) => failure.clone(),
        (None, _) if cell.is_cut => "cut".to_owned(),
        (None, _) => "ok".to_owned(),
    };
    vec![
        cell.contestant.name(),
        cell.rate().map_or_else(|| "-".to_owned(), number),
        ratios.map_or_else(|| "-".to_owned(), |ratios| shown_ratio(&ratios)),
        micros("p50_ns"),
        micros("p99_ns"),
        micros("p999_ns"),
        micros("max_ns"),
        number(cell.used.cpu_seconds),
        number(mib(cell.peak_line_bytes())),
        cell.cgroup_peak_bytes().map_or_else(|| "-".to_owned(), |bytes| number(mib(bytes))),
        number(mib(cell.used.read_bytes)),
        number(mib(cell.used.written_bytes)),
        number(mib(cell.disk_bytes)),
        outcome,
    ]
}

fn shown_ratio(ratios: &[f64]) -> String {
    let ratio = interval(ratios);
    if ratios.len() < PAIRS_FOR_INTERVAL {
        return number(ratio.median);
    }
    format!("{} ({} to {})", number(ratio.median), number(ratio.low), number(ratio.high))
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;
    use crate::watch::Counters;

    fn cell(rates: &[u32]) -> Cell {
        let mut cell = Cell::new(PeerKind::Btree);
        for rate in rates {
            let answer = format!("{{\"operations\":{rate},\"seconds\":1,\"cut\":0}}");
            cell.note_slice(&answer, Counters::default(), Counters::default());
        }
        cell
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        assert_eq!(ratios(&cell(&[10, 40]), &cell(&[5, 10])), Some(vec![2.0, 4.0]));
        assert_eq!(ratios(&cell(&[10]), &cell(&[])), None);
    }

    #[test]
    fn every_row_of_the_twelve_runs_and_no_build_does() {
        assert!(Row::TWELVE.iter().all(|row| ORDER.contains(row)));
        assert!(!ORDER.contains(&Row::Build) && !ORDER.contains(&Row::Build16k));
        assert!(
            Row::value_variants()
                .iter()
                .all(|row| !row.name().is_empty() && !row.unit().is_empty())
        );
    }
}
