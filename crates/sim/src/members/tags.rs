//! Tags: processes create and delete them, and read their moments.

use plimsoll::{Error, InvalidInput, Moment, Result};

use crate::members::life::{Answer, Life};

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

/// Tags the moment of the oldest snapshot of this process, or the newest one.
pub(super) fn create(life: &Life, name: u64) -> Result<Answer> {
    let oldest = life.snapshots.front();
    let moment = oldest.map_or(Moment::Newest, |snapshot| Moment::Glsn(snapshot.at()));
    match life.db.tag(name_of(name), moment) {
        Ok(tag) => Ok(Answer::Tag { name, at: Some(tag.glsn), is_changed: true }),
        Err(Error::InvalidInput(InvalidInput::TagExists { glsn, .. })) => {
            Ok(Answer::Tag { name, at: Some(glsn), is_changed: false })
        }
        Err(error) => Err(error),
    }
}

/// Deletes a tag.
pub(super) fn delete(life: &Life, name: u64) -> Result<Answer> {
    let is_changed = match life.db.delete_tag(name_of(name)) {
        Ok(()) => true,
        Err(Error::InvalidInput(InvalidInput::NoTag { .. })) => false,
        Err(error) => return Err(error),
    };
    Ok(Answer::Tag { name, at: None, is_changed })
}
