//! Tags: processes create and delete them, and read their moments.

use plimsoll::{Db, Error, Glsn, InvalidInput, Moment, Result};

/// Names of tags.
const TAGS: [&str; 3] = ["first tag", "second tag", "third tag"];

/// Its name.
fn name_of(tag: u64) -> &'static str {
    TAGS[tag as usize % TAGS.len()]
}

/// The number of a tag.
pub(super) fn number_of(name: &str) -> u64 {
    TAGS.iter().position(|known| *known == name).map_or(u64::MAX, |at| at as u64)
}

/// Tags a moment, or the newest one. Returns the moment of the tag, and whether it is new.
pub(super) fn create(db: &Db, name: u64, at: Option<Glsn>) -> Result<(Glsn, bool)> {
    match db.tag(name_of(name), at.map_or(Moment::Newest, Moment::Glsn)) {
        Ok(tag) => Ok((tag.glsn, true)),
        Err(Error::InvalidInput(InvalidInput::TagExists { glsn, .. })) => Ok((glsn, false)),
        Err(error) => Err(error),
    }
}

/// Deletes a tag. Returns whether there was one.
pub(super) fn delete(db: &Db, name: u64) -> Result<bool> {
    match db.delete_tag(name_of(name)) {
        Ok(()) => Ok(true),
        Err(Error::InvalidInput(InvalidInput::NoTag { .. })) => Ok(false),
        Err(error) => Err(error),
    }
}
