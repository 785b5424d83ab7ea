//! Restarts the log's time, after commits under a clock that was ahead.

use std::sync::Arc;

use plimsoll_log::glsn::Glsn;

use crate::engine::Engine;
use crate::engine::keyspace_commits::system;
use crate::txn::transaction::Transaction;
use crate::types::error::{Lift, Result};
use crate::types::invalid_input::InvalidInput;
use crate::types::keyspaces::TIME_MARK;

/// Restarts the log's time at the clock; does nothing if it is not ahead. Returns the last commit
/// before the restart.
pub(crate) fn restart(store: &Arc<Engine>) -> Result<Option<Glsn>> {
    store.check_writable()?;
    if store.options.order.is_some() {
        return Err(InvalidInput::RestartOfOrderedTime.into());
    }
    if store.reader.log.time_lead_micros().lift()? == 0 {
        return Ok(None);
    }
    let marker = {
        let _lead = store.reader.log.allow_time_lead();
        // Append an entry first: a segment can end only after an entry, and the active one may have
        // none.
        let mut tx = Transaction::new(&store.committer);
        tx.delete(&system(store), TIME_MARK)?;
        tx.set_metadata(br#"{"time_restarted":true}"#)?;
        tx.commit()?
    };
    store.reader.log.restart_time().lift()?;
    // Rows may hold values that merges have dropped because they had expired before the restart.
    store.reader.row_cache.clear();
    Ok(Some(marker))
}
