//! The scenes and their sizes.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use clap::ValueEnum;

use super::{commits, gets, held, overwrites, queue, scans, values};
use crate::peer::{Commits, Peer, PeerKind, Setup};

/// The scenes, each in one store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scene {
    /// Loads and point reads
    Gets,
    /// Loads with rising keys, and walks over rows of 1 KB
    Scans,
    /// Deletes at the head, and what finds the head after them
    Queue,
    /// Values of 100 KB and 1 MB
    Values,
    /// Commits of one put of 1 KB
    Commits,
    /// Space and rate while rows are written over
    Overwrites,
    /// Reads of a moment that is held while rows are written over
    Held,
}

/// The size of a scene.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    /// Rows of 24 + 150 bytes; scenes with larger rows use proportionally fewer.
    pub(crate) rows: u64,
    /// Seconds that a rate is measured for.
    pub(crate) seconds: f64,
    /// Seconds in which a store may clean up after a load.
    pub(crate) rest_seconds: f64,
}

impl Scale {
    pub(crate) fn time(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }

    /// Lets background work end.
    pub(crate) fn rest(&self) {
        std::thread::sleep(Duration::from_secs_f64(self.rest_seconds));
    }
}

/// Takes a metric's name and value.
pub(crate) type Note<'scene> = dyn FnMut(&str, f64) + 'scene;

impl Scene {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        Self::value_variants().iter().copied()
    }

    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    pub(crate) fn about(self) -> String {
        self.to_possible_value()
            .and_then(|value| value.get_help().map(ToString::to_string))
            .unwrap_or_default()
    }

    /// Runs the scene in a new store. Commits are relaxed.
    pub(crate) fn play(
        self,
        peer: PeerKind,
        folder: &Path,
        memory_bytes: u64,
        scale: &Scale,
        note: &mut Note<'_>,
    ) -> Result<()> {
        let value_bytes = match self {
            Self::Values => values::SIZES[0],
            Self::Scans | Self::Commits | Self::Overwrites | Self::Held => 1000,
            Self::Gets | Self::Queue => 150,
        };
        let peer =
            peer.open(folder, &Setup { memory_bytes, commits: Commits::Relaxed, value_bytes })?;
        let store: &dyn Peer = &*peer;
        match self {
            Self::Gets => gets::play(store, scale, note),
            Self::Scans => scans::play(store, scale, note),
            Self::Queue => queue::play(store, scale, note),
            Self::Values => values::play(store, scale, note),
            Self::Commits => commits::play(store, scale, note),
            Self::Overwrites => overwrites::play(store, folder, scale, note),
            Self::Held => held::play(store, scale, note),
        }?;
        peer.close()
    }
}
