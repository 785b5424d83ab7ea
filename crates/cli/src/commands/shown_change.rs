//! The display of the changes of a commit by `watch` and `log`.

use std::ops::Bound;

use plimsoll::Change;
use serde_json::{Map, Value};

use crate::bytes::{put_json, show_key};

/// The end of the range that a change deletes; `Some(None)`: it is the end of the keyspace.
pub(super) fn deleted_range_end(change: &Change) -> Option<Option<&[u8]>> {
    change.deleted_range().map(|(_, end)| match end {
        Bound::Included(end) | Bound::Excluded(end) => Some(end),
        Bound::Unbounded => None,
    })
}

/// The key of a change, or its range, for people.
pub(super) fn show_keys(change: &Change, hex: bool) -> String {
    let key = show_key(change.key(), hex);
    match deleted_range_end(change) {
        None => key,
        Some(end) => {
            let end = end.map_or_else(String::new, |end| format!(" {}", show_key(end, hex)));
            format!("{key} ..{end}")
        }
    }
}

/// The name of the operation in JSON.
pub(super) fn op_of(change: &Change) -> &'static str {
    match (deleted_range_end(change), change.is_delete()) {
        _ if change.is_expiry() => "expire",
        (Some(_), _) => "delete_range",
        (None, true) => "delete",
        (None, false) => "put",
    }
}

/// Adds the key of a change, and the end of its range, to a JSON object.
pub(super) fn put_keys(object: &mut Map<String, Value>, change: &Change, hex: bool) {
    let mut put = |name: &str, key: &[u8]| match hex {
        true => drop(object.insert(format!("{name}_hex"), hex::encode(key).into())),
        false => put_json(object, name, key),
    };
    put("key", change.key());
    if let Some(Some(end)) = deleted_range_end(change) {
        put("end", end);
    }
}
