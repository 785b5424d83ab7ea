//! Tags: checks that their moments stay readable.

use plimsoll::{Error, Glsn, InvalidInput, Moment, Snapshot};

use crate::driver::Driver;
use crate::driver::check::tags_of;
use crate::driver::step::said;
use crate::failure::{Failure, Outcome, same};
use crate::judge::{Place, View, WalkOptions};
use crate::model::{Entry, space_name};
use crate::op::{Edge, Span};

fn tag_name(name: u8) -> String {
    format!("tag{name}")
}

impl Driver {
    pub(super) fn tag(&mut self, name: u8, back: u64) -> Outcome<String> {
        let at = self.back(back);
        if self.in_doubt {
            // After a reopen, the store shows whether the last change of a tag succeeded.
            return said("in doubt");
        }
        let moment = if back == 0 { Moment::Newest } else { Moment::Glsn(Glsn(at)) };
        let made = self.db().tag(&tag_name(name), moment);
        let exists = self.model.tags().contains_key(&name);
        match &made {
            Err(Error::InvalidInput(InvalidInput::TagExists { .. })) if exists => {
                return said("exists");
            }
            Ok(_) if exists => {
                return Err(Failure::new(format!("tag {name} was created although it exists")));
            }
            Err(Error::Trimmed { .. }) => {
                let lives =
                    (0..u8::MAX).filter(|space| self.model.space_at(*space, at) == Some(*space));
                let must = lives.into_iter().all(|space| self.model.must_answer(space, at));
                return match must {
                    true => Err(Failure::new(format!("{at} was refused although it is retained"))),
                    false => said("trimmed"),
                };
            }
            _ => {}
        }
        self.committed_unseen(&made, Entry::Tag { name, at: Some(at) });
        let Some(tag) = self.expect("tag", made)? else { return said("failed") };
        same("moment of a tag", &tag.glsn.0, &at)?;
        said(format!("at {at}"))
    }

    pub(super) fn read_tag(&mut self, name: u8) -> Outcome<String> {
        let found = self.db().tag_at(&tag_name(name));
        if self.in_doubt {
            return said("in doubt");
        }
        let Some(at) = self.model.tags().get(&name).copied() else {
            return self.refused_tag("a missing tag", found).map(|()| String::new());
        };
        let Some(tag) = self.expect("tag_at", found)? else { return said("failed") };
        same("moment of a tag", &tag.glsn.0, &at)?;
        let opened = self.db().snapshot_at(tag.into());
        let Some(snapshot) = self.expect("snapshot_at", opened)? else { return said("failed") };
        for space in 0..u8::MAX {
            if self.model.space_at(space, at) == Some(space) {
                self.read_space_at(space, &snapshot)?;
            }
        }
        said(format!("at {at}"))
    }

    fn read_space_at(&self, space: u8, snapshot: &Snapshot) -> Outcome {
        let found = snapshot.keyspace(&space_name(space));
        let Some(Some(keyspace)) = self.expect("keyspace", found)? else { return Ok(()) };
        let excuse = |error: &Error| self.excused(error);
        let place = Place { space, keyspace: &keyspace };
        let all = Span::Range(Edge::Open, Edge::Open);
        self.judge(&excuse).walk(
            View::Snapshot(snapshot),
            place,
            &all,
            WalkOptions::whole(false),
        )?;
        Ok(())
    }

    pub(super) fn delete_tag(&mut self, name: u8) -> Outcome<String> {
        if self.in_doubt {
            return said("in doubt");
        }
        let deleted = self.db().delete_tag(&tag_name(name));
        if self.model.tags().contains_key(&name) {
            self.committed_unseen(&deleted, Entry::Tag { name, at: None });
            self.expect("delete_tag", deleted)?;
        } else {
            self.refused_tag("a missing tag", deleted)?;
        }
        said("")
    }

    fn refused_tag<T>(&self, what: &str, answer: plimsoll::Result<T>) -> Outcome {
        match answer {
            Err(Error::InvalidInput(InvalidInput::NoTag { .. })) => Ok(()),
            Err(error) if self.excused(&error) => Ok(()),
            Err(error) => Err(Failure::new(format!("{what} failed with another error: {error}"))),
            Ok(_) => Err(Failure::new(format!("{what} was not refused"))),
        }
    }

    /// Checks that all tags are at their moments.
    pub(super) fn check_tags(&self) -> Outcome {
        if self.in_doubt {
            return Ok(());
        }
        let Some(found) = self.expect("tags", self.db().tags())? else { return Ok(()) };
        same("tags", &tags_of(&found), &self.model.tags())
    }
}
