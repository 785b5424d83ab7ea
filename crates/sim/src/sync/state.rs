//! Keys, values and states.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The names of the keyspaces.
pub(super) const NAMES: [&str; 3] = ["texts", "numbers", "blobs"];

/// The number of keys in each keyspace.
pub(super) const KEYS: u64 = 8;

/// The keyspace of numbers.
pub(super) const NUMBERS: usize = 1;

pub(super) const MAIN: &str = "main";

/// A keyspace and a key.
pub(super) type Place = (usize, u8);

/// A value, and when it expires, in microseconds since 1970 UTC.
pub(super) type Content = (Arc<[u8]>, Option<u64>);

/// The value of each key that was written, also if it has expired.
pub(super) type State = BTreeMap<Place, Content>;

/// The values of a state that have not expired.
pub(super) fn live(state: &State, now: u64) -> State {
    let lives = |(_, (_, expires)): &(&Place, &Content)| expires.is_none_or(|at| at > now);
    state.iter().filter(lives).map(|(place, content)| (*place, content.clone())).collect()
}
