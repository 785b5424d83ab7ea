//! A contestant's process during a row, from outside: started within its limit, given tasks,
//! observed, and ended.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::cell::Cell;
use super::row::Row;
use super::scale::Scale;
use crate::launch::{Launched, Limit};
use crate::peer::PeerKind;

/// Longer than opening, closing, or one excess operation can take.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A process that may have failed; then it is not used any more.
pub(crate) struct Session {
    row: Row,
    time: Duration,
    pub(crate) cell: Cell,
    launched: Option<Launched>,
}

impl Session {
    /// Starts the process and waits until the store is open.
    pub(crate) fn start(cell: Cell, row: Row, scale: &Scale, store: &Path, limit: &Limit) -> Self {
        let mut session = Self { row, time: scale.time(row), cell, launched: None };
        if session.cell.failure.is_some() {
            return session;
        }
        let arguments = arguments(session.cell.contestant, row, scale, store);
        let started = std::env::current_exe()
            .map_err(Into::into)
            .and_then(|bench| Launched::start(&bench, &arguments, limit, true));
        match started {
            Ok(launched) => {
                session.launched = Some(launched);
                session.attempt(|_, launched| launched.process.hear(TIMEOUT).map(drop));
            }
            Err(error) => session.cell.fail(format!("{error:#}")),
        }
        session
    }

    /// Lets it work without being measured.
    pub(crate) fn warm(&mut self, time: Duration) {
        self.attempt(|_, launched| {
            launched.process.tell(&format!("warm {}", time.as_millis()))?;
            launched.process.hear(time + TIMEOUT).map(drop)
        });
    }

    /// One measured slice.
    pub(crate) fn slice(&mut self) {
        let time = self.time;
        self.attempt(|cell, launched| {
            let before = launched.process.counters()?;
            launched.process.tell(&format!("slice {}", time.as_millis()))?;
            let answer = launched.process.hear(time + TIMEOUT)?;
            anyhow::ensure!(
                cell.note_slice(&answer, before, launched.process.counters()?),
                "no answer: {answer:?}"
            );
            Ok(())
        });
    }

    /// Stops it while others are measured.
    pub(crate) fn pause(&mut self) {
        self.attempt(|_, launched| launched.process.pause());
    }

    pub(crate) fn resume(&mut self) {
        self.attempt(|_, launched| launched.process.resume());
    }

    /// Closes the store and ends the process.
    pub(crate) fn end(mut self) -> Cell {
        if let Some(launched) = self.launched.take() {
            // A build waits for its merges.
            let timeout =
                if matches!(self.row, Row::Build | Row::Build16k) { 5 * TIMEOUT } else { TIMEOUT };
            self.cell.end_of(launched.end(Some(timeout)));
        }
        self.cell
    }

    /// Runs an action with the process; if that fails, finds out how the process ended and releases
    /// it.
    fn attempt(&mut self, what: impl FnOnce(&mut Cell, &mut Launched) -> Result<()>) {
        let Some(launched) = &mut self.launched else { return };
        let Err(error) = what(&mut self.cell, launched) else { return };
        if let Some(launched) = self.launched.take() {
            // It has ended, or does not respond, so do not wait.
            self.cell.end_of(launched.end(Some(Duration::from_secs(1))));
        }
        self.cell.fail(format!("{error:#}"));
    }
}

impl Cell {
    fn end_of(&mut self, ended: Result<crate::launch::Outcome>) {
        match ended {
            Ok(outcome) => self.note_end(outcome),
            Err(error) => self.fail(format!("{error:#}")),
        }
    }
}

fn arguments(contestant: PeerKind, row: Row, scale: &Scale, store: &Path) -> Vec<String> {
    let numbers = [
        ("--memory", scale.memory(row, contestant)),
        ("--rows", scale.rows(row)),
        ("--batch", scale.batch(row, contestant)),
        ("--threads", scale.threads),
    ];
    let words = [
        ("--store", store.display().to_string()),
        ("--peer", contestant.name()),
        ("--row", row.name()),
    ];
    let numbers = numbers.map(|(name, number)| (name, number.to_string()));
    let settings =
        words.into_iter().chain(numbers).flat_map(|(name, value)| [name.to_owned(), value]);
    std::iter::once("worker".to_owned()).chain(settings).collect()
}
