//! The check of a whole leaf, for a verification.

use plimsoll_log::glsn::Glsn;

use crate::index::run::bytes::common_prefix;
use crate::index::run::leaf::{
    BRANCHES, Entry, HINT_BYTES, Leaf, RESTART_EVERY, comes_before, has_branches,
};
use crate::types::index_key::IndexKey;
use crate::types::version::Stored;

/// Decodes a whole leaf and passes each entry's key, GLSN and stored form to `each`, in order.
///
/// # Errors
/// The fault of the leaf.
pub(crate) fn check_leaf(
    payload: &[u8],
    fixed: Option<Glsn>,
    mut each: impl FnMut(&[u8], Glsn, Stored<'_>),
) -> Result<(), &'static str> {
    if has_branches(payload) {
        return Err(BRANCHES);
    }
    let leaf = Leaf::new(payload, fixed).ok_or("the leaf's head is invalid")?;
    let (mut key, mut last_key, mut last_glsn) = (Vec::new(), Vec::new(), Glsn::NONE);
    let (mut offset, mut body) = (leaf.shape.keys_start(), leaf.shape.bodies);
    for number in 0..leaf.entries() {
        let entry = leaf.entry(offset, body).ok_or("an entry is truncated")?;
        let shared_with = if number.is_multiple_of(RESTART_EVERY) {
            check_restart(&leaf, number / RESTART_EVERY, (offset, body), &entry)?;
            leaf.restart_key(&entry, &mut key);
            leaf.first_key()
        } else {
            if entry.shared > last_key.len() {
                return Err("an entry shares more bytes than the previous key has");
            }
            key.truncate(entry.shared);
            key.extend_from_slice(&leaf.payload[entry.rest..entry.next]);
            &last_key
        };
        if number > 0 && common_prefix(shared_with, &key) != entry.shared {
            return Err("an entry's shared length is not maximal");
        }
        if number > 0 && !comes_before(last_key.cmp(&key), last_glsn, entry.glsn) {
            return Err("entries are out of order");
        }
        if !IndexKey::is_valid_len(key.len()) {
            return Err("a key is too long, or shorter than a keyspace id");
        }
        each(
            &key,
            entry.glsn,
            leaf.stored(&entry).ok_or("a version's stored form cannot be decoded")?,
        );
        key.clone_into(&mut last_key);
        (last_glsn, offset, body) = (entry.glsn, entry.next, entry.end);
    }
    if (offset, body) != (leaf.shape.bodies, payload.len()) {
        return Err("the leaf's entries do not fill it");
    }
    if common_prefix(leaf.first_key(), &last_key) != leaf.shape.prefix {
        return Err("the leaf's prefix length differs from that of its keys");
    }
    Ok(())
}

/// Checks a restart. `offsets` are those of its entry and its body.
fn check_restart(
    leaf: &Leaf<'_>,
    block: usize,
    offsets: (usize, usize),
    entry: &Entry,
) -> Result<(), &'static str> {
    if leaf.restart_offsets(block) != Some(offsets) {
        return Err("a restart is not at the offset in the leaf's head");
    }
    if entry.shared > leaf.first_key().len() {
        return Err("a restart shares more bytes than the first key has");
    }
    let hint = leaf.hint_of(entry, leaf.shape.prefix).to_be_bytes();
    let stored =
        leaf.hints().and_then(|hints| hints.get(HINT_BYTES * block..HINT_BYTES * (block + 1)));
    if stored == Some(&hint[..]) { Ok(()) } else { Err("a restart's hint does not match its key") }
}
