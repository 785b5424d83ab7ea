//! A change of the set of runs, as a flush or a merge makes it.

use std::sync::Arc;

use plimsoll_log::glsn::{Glsn, Position};

use crate::index::manifest::limits::Limits;
use crate::index::sources::source::Run;
use crate::index::sources::view::{Closed, View};

/// A change of the set of runs.
pub(crate) struct Change {
    /// Runs that are no longer used, except for tables that `added` runs share.
    pub(crate) removed: Vec<Arc<Run>>,
    /// Runs that are added.
    pub(crate) added: Vec<Arc<Run>>,
    /// The current and the history runs afterwards.
    pub(crate) runs: Vec<Arc<Run>>,
    pub(crate) history: Vec<Arc<Run>>,
    /// The new limits of readable GLSNs, after versions were dropped or moved.
    pub(crate) limits: Limits,
    /// The new checkpoint, if it changed.
    pub(crate) checkpoint: Option<Position>,
    /// The oldest closed source, if the change replaces it by runs.
    pub(crate) takes_closed: Option<Closed>,
    /// The GLSN below which the log is about to be trimmed.
    pub(crate) log_begins: Option<Glsn>,
}

impl Change {
    /// No change of the runs.
    pub(super) fn none(view: &View) -> Self {
        Self {
            removed: Vec::new(),
            added: Vec::new(),
            runs: view.runs.clone(),
            history: view.history.clone(),
            limits: Limits::default(),
            checkpoint: None,
            takes_closed: None,
            log_begins: None,
        }
    }
}
