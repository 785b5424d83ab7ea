//! Finds the values that a merge with the oldest run may drop because they have expired.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex};

use plimsoll_log::glsn::Glsn;

use crate::index::env::Horizon;
use crate::index::env::moment_set::MomentSet;
use crate::index::run::table::TableInfo;
use crate::index::sources::view::{View, tables_in};
use crate::types::lock::lock;

/// The horizon's answers about expired values, looked up once for each keyspace and moment.
pub(super) struct Lookups<'h> {
    horizon: &'h dyn Horizon,
    retained: Mutex<BTreeMap<u32, MomentSet>>,
    expired: Mutex<BTreeMap<Glsn, (Glsn, u64)>>,
}

impl<'h> Lookups<'h> {
    pub(super) fn new(horizon: &'h dyn Horizon) -> Self {
        Self { horizon, retained: Mutex::default(), expired: Mutex::default() }
    }

    fn retained(&self, keyspace: u32) -> MomentSet {
        let look_up = || self.horizon.retained(keyspace);
        lock(&self.retained).entry(keyspace).or_insert_with(look_up).clone()
    }

    fn expired(&self, oldest: Glsn) -> (Glsn, u64) {
        *lock(&self.expired).entry(oldest).or_insert_with(|| self.horizon.expired(oldest))
    }

    /// Whether values of this keyspace in a table may be dropped at some time after they have
    /// expired.
    pub(super) fn may_drop(&self, keyspace: u32, info: &TableInfo) -> bool {
        let retained = self.retained(keyspace);
        // A pin at or after the table's first commit may see the values as long as it is retained,
        // so they may not be dropped.
        retained.floor > Glsn::NONE && retained.oldest_from(info.min_glsn) == retained.floor
    }
}

/// The values of a table that a merge with the oldest run may drop, because they have expired.
pub(super) struct Expired {
    pub(super) keyspace: u32,
    /// Once the values are dropped, the moments before this one cannot be read, except the pins.
    pub(super) since: Glsn,
    pub(super) pins: Arc<[Glsn]>,
    /// An estimate of the number of these values; exact if it equals the table's number of
    /// versions.
    pub(super) values: u64,
}

/// The expired values of a table in which one keyspace has such values; `None` if there are none,
/// or if something keeps them: history below them, or a retained moment that sees only a part of
/// the table.
pub(super) fn expired_in(lookups: &Lookups<'_>, view: &View, info: &TableInfo) -> Option<Expired> {
    let expiries = info.expiries?;
    let keyspace = expiries.keyspace;
    let retained = lookups.retained(keyspace);
    let (since, micros) = lookups.expired(retained.oldest_from(info.min_glsn));
    let values = expiries.expired(micros);
    if values == 0 {
        return None;
    }
    let keys = (Bound::Included(&info.first_key[..]), Bound::Included(&info.last_key[..]));
    let is_kept =
        info.max_glsn > since || view.history.iter().any(|run| !tables_in(run, keys).is_empty());
    (!is_kept).then_some(Expired { keyspace, since, pins: retained.pins, values })
}
