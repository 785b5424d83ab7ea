//! One cell of the yardstick: one contestant in one row.

use crate::child;
use crate::launch::Outcome;
use crate::peer::PeerKind;
use crate::results::Results;
use crate::statistics::median;
use crate::watch::{Counters, End};

/// Points of the plot of memory over time.
const MEMORY_POINTS: usize = 40;

/// The measurements. A cell without rates failed.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) contestant: PeerKind,
    /// Operations a second, of each slice or process.
    pub(crate) rates: Vec<f64>,
    /// Resource usage during the slices.
    pub(crate) used: Counters,
    /// Whether a load or a scan was cut short; then the rate covers its first, easier part.
    pub(crate) is_cut: bool,
    /// The last process's own report.
    report: Vec<(String, f64)>,
    /// The last process from outside.
    outcome: Option<Outcome>,
    pub(crate) end: End,
    pub(crate) disk_bytes: u64,
    /// The error, for people.
    pub(crate) failure: Option<String>,
}

impl Cell {
    pub(crate) fn new(contestant: PeerKind) -> Self {
        Self {
            contestant,
            rates: Vec::new(),
            used: Counters::default(),
            is_cut: false,
            report: Vec::new(),
            outcome: None,
            end: End::Well,
            disk_bytes: 0,
            failure: None,
        }
    }

    /// Records a slice: its report, and the counters before and after it.
    pub(crate) fn note_slice(&mut self, answer: &str, before: Counters, after: Counters) -> bool {
        let numbers = child::numbers(answer);
        let of =
            |name: &str| numbers.iter().find(|(metric, _)| metric == name).map(|(_, value)| *value);
        let (Some(operations), Some(seconds)) = (of("operations"), of("seconds")) else {
            return false;
        };
        self.rates.push(operations / seconds.max(1e-9));
        self.is_cut |= of("cut") == Some(1.0);
        self.used.cpu_seconds += after.cpu_seconds - before.cpu_seconds;
        self.used.read_bytes += after.read_bytes - before.read_bytes;
        self.used.written_bytes += after.written_bytes.saturating_sub(before.written_bytes);
        true
    }

    /// Records the end of a process; of several, the largest peaks count.
    pub(crate) fn note_end(&mut self, mut outcome: Outcome) {
        if outcome.seen.end != End::Well {
            self.end = outcome.seen.end;
            self.failure.get_or_insert_with(|| outcome.seen.end.to_string());
        }
        let last_line = outcome.seen.output.lines().last().unwrap_or_default();
        self.report = child::numbers(last_line);
        if let Some(before) = &self.outcome {
            outcome.seen.peak_line_bytes =
                outcome.seen.peak_line_bytes.max(before.seen.peak_line_bytes);
            outcome.cgroup_peak_bytes = outcome.cgroup_peak_bytes.max(before.cgroup_peak_bytes);
        }
        self.outcome = Some(outcome);
    }

    pub(crate) fn fail(&mut self, reason: String) {
        self.failure.get_or_insert(reason);
    }

    /// Operations a second; none if it failed.
    pub(crate) fn rate(&self) -> Option<f64> {
        (self.failure.is_none() && !self.rates.is_empty()).then(|| median(&self.rates))
    }

    /// A number of the process's own report.
    pub(crate) fn reported(&self, name: &str) -> Option<f64> {
        self.report.iter().find(|(metric, _)| metric == name).map(|(_, value)| *value)
    }

    pub(crate) fn peak_line_bytes(&self) -> u64 {
        self.outcome.as_ref().map_or(0, |outcome| outcome.seen.peak_line_bytes)
    }

    pub(crate) fn cgroup_peak_bytes(&self) -> Option<u64> {
        self.outcome.as_ref()?.cgroup_peak_bytes
    }

    /// Notes everything that has a number.
    pub(crate) fn note(&self, results: &mut Results, row: &str, settings: &str) {
        let mut note = |metric: &str, value: f64| results.note(row, settings, metric, value);
        if let Some(rate) = self.rate() {
            note("per_second", rate);
            self.rates
                .iter()
                .enumerate()
                .for_each(|(i, &rate)| note(&format!("per_second_{}", i + 1), rate));
            self.report.iter().for_each(|(metric, value)| note(metric, *value));
        }
        note("failed", f64::from(u8::from(self.failure.is_some())));
        note("out_of_memory", f64::from(u8::from(self.end == End::OutOfMemory)));
        note("cut", f64::from(u8::from(self.is_cut)));
        note("cpu_seconds", self.used.cpu_seconds);
        note("device_read_bytes", self.used.read_bytes as f64);
        note("device_written_bytes", self.used.written_bytes as f64);
        note("disk_bytes", self.disk_bytes as f64);
        let Some(outcome) = &self.outcome else { return };
        note("peak_line_bytes", outcome.seen.peak_line_bytes as f64);
        note("process_cpu_seconds", outcome.seen.counters.cpu_seconds);
        note("process_device_read_bytes", outcome.seen.counters.read_bytes as f64);
        note("process_device_written_bytes", outcome.seen.counters.written_bytes as f64);
        if let Some(peak) = outcome.cgroup_peak_bytes {
            note("cgroup_peak_bytes", peak as f64);
        }
        let memory = &outcome.seen.memory;
        for part in memory.chunks(memory.len().div_ceil(MEMORY_POINTS).max(1)) {
            let most = part.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
            note(&format!("memory_at_{:.1}", part[0].0.as_secs_f64()), most as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::Seen;

    fn ended(end: End, peak: u64) -> Outcome {
        let output = "{\"p50_ns\":7}\n".to_owned();
        Outcome {
            seen: Seen { end, output, peak_line_bytes: peak, ..Seen::default() },
            cgroup_peak_bytes: Some(peak),
        }
    }

    #[test]
    fn a_cell_has_the_median_of_its_slices_and_the_largest_peak() {
        let mut cell = Cell::new(PeerKind::Btree);
        for operations in [10, 30, 20] {
            let answer = format!("{{\"operations\":{operations},\"seconds\":2.0,\"cut\":0}}");
            assert!(cell.note_slice(
                &answer,
                Counters::default(),
                Counters { cpu_seconds: 1.5, ..Counters::default() }
            ));
        }
        cell.note_end(ended(End::Well, 5));
        cell.note_end(ended(End::Well, 3));
        assert_eq!((cell.rate(), cell.used.cpu_seconds, cell.is_cut), (Some(10.0), 4.5, false));
        assert_eq!((cell.peak_line_bytes(), cell.cgroup_peak_bytes()), (5, Some(5)));
        assert_eq!(cell.reported("p50_ns"), Some(7.0));
    }

    #[test]
    fn a_cell_whose_process_was_killed_has_no_rate_and_says_why() {
        let mut cell = Cell::new(PeerKind::Btree);
        assert!(!cell.note_slice("", Counters::default(), Counters::default()));
        cell.note_slice(
            "{\"operations\":1,\"seconds\":1,\"cut\":1}",
            Counters::default(),
            Counters::default(),
        );
        cell.note_end(ended(End::OutOfMemory, 1));
        cell.fail("it has ended".to_owned());
        assert_eq!(cell.rate(), None);
        assert_eq!(cell.failure.as_deref(), Some("killed for want of memory"));
    }
}
