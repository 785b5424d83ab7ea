//! Compares tags, and their moments, with the committed history.

use std::collections::BTreeMap;

use plimsoll::Glsn;
use plimsoll_disk::mutex::lock;

use crate::failure::{Outcome, ensure, same};
use crate::members::driver::Driver;
use crate::members::driver::judge::error_in;
use crate::members::life::{Answer, Life, Order, read_in};
use crate::members::model::Span;
use crate::members::process_slot::ProcessSlot;
use crate::members::tags::number_of;
use crate::op::process_op::Act;

/// The known state of the tags.
#[derive(Debug, Default)]
pub(super) struct KnownTags {
    /// Their moments; `None`: unknown, or there may be no such tag.
    moments: BTreeMap<u64, Option<u64>>,
    /// The previous moment of the tag that is being changed.
    before: Option<Option<u64>>,
}

impl KnownTags {
    /// A tag is being created or deleted.
    pub(super) fn changes(&mut self, name: u64) {
        self.before = self.moments.insert(name, None);
    }

    /// Changes may have been lost.
    pub(super) fn forget(&mut self) {
        (0..3).for_each(|name| _ = self.moments.insert(name, None));
    }
}

impl Driver {
    /// Checks the answer of a process that was to create or delete a tag.
    pub(super) fn judge_tag(
        &mut self,
        order: &Order,
        name: u64,
        at: Option<Glsn>,
        is_changed: bool,
    ) -> Outcome {
        let before = self.known.tags.before.take();
        if self.known.was_stopped || self.are_tags_disturbed() {
            return Ok(());
        }
        let at = at.map(|at| at.0);
        match (order.act, before) {
            (_, Some(None)) => {}
            (Act::Tag { .. }, Some(Some(before))) => {
                same(format!("moment of the existing tag {name}"), &at, &Some(before))?;
                ensure(!is_changed, || format!("tag {name} was created although it exists"))?;
            }
            (_, before) => same(
                format!("whether tag {name} has changed"),
                &is_changed,
                &(matches!(order.act, Act::Tag { .. }) || before.is_some()),
            )?,
        }
        match at {
            Some(at) => _ = self.known.tags.moments.insert(name, Some(at)),
            None => _ = self.known.tags.moments.remove(&name),
        }
        Ok(())
    }

    /// Whether processes may know different tags.
    fn are_tags_disturbed(&self) -> bool {
        self.is_mixed() || self.slots.values().any(ProcessSlot::is_stopped)
    }

    /// Checks that a process knows all tags and can read their moments.
    pub(super) fn check_tags(&mut self, member: u8) -> Outcome {
        let Some(slot) = self.slots.get(&member).filter(|slot| !slot.is_stopped()) else {
            return Ok(());
        };
        let life = slot.life_handle();
        let life = lock(&life);
        let Some(life) = life.as_ref() else { return Ok(()) };
        let checked = self.compare_tags(&format!("process {member}"), life);
        if self.may_die(member) { Ok(()) } else { checked }
    }

    /// Compares the tags as one store knows them.
    pub(super) fn compare_tags(&mut self, who: &str, life: &Life) -> Outcome {
        let tags = life.db.tags().map_err(|error| error_in(who, &error))?;
        self.resolve(life)?;
        for tag in &tags {
            let who = format!("{who}, tag {:?}", tag.name);
            let opened = life.db.snapshot_at(tag.clone().into());
            let snapshot = opened.map_err(|error| error_in(&who, &error))?;
            for space in [0, 1] {
                let span = Span { space, from: 0, to: u64::MAX };
                let rows = read_in(&snapshot, &life.spaces[space as usize], span);
                if let Answer::Rows { at, rows, .. } =
                    rows.map_err(|error| error_in(&who, &error))?
                {
                    self.judge_rows(&who, span, at, &[], rows)?;
                }
            }
        }
        // A backup has the tags of its own moment.
        if self.are_tags_disturbed() || who.starts_with("/backup") {
            return Ok(());
        }
        let found: BTreeMap<u64, u64> =
            tags.iter().map(|tag| (number_of(&tag.name), tag.glsn.0)).collect();
        for name in 0..3 {
            let known = self.known.tags.moments.get(&name).copied();
            let moment = match known {
                Some(None) => continue,
                known => known.flatten(),
            };
            same(format!("{who}: moment of tag {name}"), &found.get(&name).copied(), &moment)?;
        }
        Ok(())
    }
}
