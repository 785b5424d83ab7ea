//! Which values a merge with the oldest run may drop because they have expired.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Mutex;

use plimsoll_log::glsn::Glsn;

use crate::index::env::Horizon;
use crate::index::run::table::TableInfo;
use crate::index::sources::view::{View, tables_in};
use crate::types::lock::lock;

/// What a horizon says has expired, looked up once for each keyspace.
pub(super) struct Lookups<'h> {
    horizon: &'h dyn Horizon,
    known: Mutex<BTreeMap<u32, (Glsn, u64)>>,
}

impl<'h> Lookups<'h> {
    pub(super) fn new(horizon: &'h dyn Horizon) -> Self {
        Self { horizon, known: Mutex::default() }
    }

    /// Whether expired values of a keyspace are ever dropped.
    pub(super) fn may_drop(&self, keyspace: u32) -> bool {
        self.of(keyspace).0 > Glsn::NONE
    }

    fn of(&self, keyspace: u32) -> (Glsn, u64) {
        let look_up = || self.horizon.expired(&self.horizon.retained(keyspace));
        *lock(&self.known).entry(keyspace).or_insert_with(look_up)
    }
}

/// The values of a table that a merge with the oldest run may drop, because they have expired.
pub(super) struct Expired {
    pub(super) keyspace: u32,
    /// Moments before this one become unreadable.
    pub(super) since: Glsn,
    /// An estimate of their number. Exact if it is that of all versions.
    pub(super) values: u64,
}

/// The expired values of a table in which one keyspace has such values; `None` if there are none,
/// or if something keeps them.
pub(super) fn expired_in(lookups: &Lookups<'_>, view: &View, info: &TableInfo) -> Option<Expired> {
    let expiries = info.expiries?;
    let keyspace = expiries.keyspace;
    let (since, micros) = lookups.of(keyspace);
    let values = expiries.expired(micros);
    if values == 0 {
        return None;
    }
    let keys = (Bound::Included(&info.first_key[..]), Bound::Included(&info.last_key[..]));
    let is_kept =
        info.max_glsn > since || view.history.iter().any(|run| !tables_in(run, keys).is_empty());
    (!is_kept).then_some(Expired { keyspace, since, values })
}
