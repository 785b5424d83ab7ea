//! Creates and deletes tags.
//!
//! Other members of the store create and delete tags as well, so each change reads the tag that it
//! changes, and is retried if another change came first.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_log::glsn::Glsn;

use crate::engine::Engine;
use crate::index::sources::view::Direction;
use crate::read::span::Span;
use crate::read::system_records::STREAMS_MARK;
use crate::txn::shared::floors::NAMED_AGE_MAX;
use crate::txn::transaction::Transaction;
use crate::types::as_of::AsOf;
use crate::types::error::{Error, Result};
use crate::types::invalid_input::InvalidInput;
use crate::types::keyspaces::{DEFAULT, Keyspace, Record, SYSTEM, TAGS, dropped_name};
use crate::types::retention::Retention;
use crate::types::tags::{TagInfo, Tagged, check_tag_name};
use crate::types::version::Stored;

/// The most tags of a store.
const MAX_TAGS: usize = 1000;

fn keyspace(store: &Engine) -> Keyspace {
    store.reader.keyspaces.handle(TAGS, "".into())
}

/// Creates a tag of a moment, which the caller keeps open until this returns.
pub(crate) fn create(store: &Arc<Engine>, name: &str, at: Glsn) -> Result<TagInfo> {
    check_tag_name(name)?;
    store.check_writable()?;
    // Read in this order: if the log is trimmed in between, the kept time is the exact one.
    let later = store.committer.as_of_past(at)?.micros();
    let exact = store.reader.time_of(at)?;
    let tag = Tagged { at, micros: exact.unwrap_or(later), is_exact: exact.is_some() };
    check_known_to_replicas(store, at, tag.micros)?;
    let _changing = store.reader.snapshots.tags.lock_changing();
    change(store, name, |now| match now {
        Some(now) => Err(InvalidInput::TagExists { name: name.to_owned(), glsn: now.at }.into()),
        None if store.reader.snapshots.tags.count() >= MAX_TAGS => {
            Err(InvalidInput::TooManyTags { limit: MAX_TAGS as u64 }.into())
        }
        // Checked last: everything readable now stays readable, because the moment is open.
        None => check_readable(store, at).map(|()| Some(tag)),
    })?;
    Ok(tag.info(name))
}

/// Fails if other replicas may have dropped versions of a moment, whose time is `micros`: the
/// moment is old and has no tag, and not every keyspace keeps its whole history.
pub(crate) fn check_known_to_replicas(store: &Engine, at: Glsn, micros: u64) -> Result<()> {
    let age = Duration::from_micros(store.reader.log.now_micros().saturating_sub(micros));
    if store.options.order.is_none()
        || age <= NAMED_AGE_MAX
        || store.reader.snapshots.tags.all().iter().any(|tag| tag.glsn == at)
    {
        return Ok(());
    }
    let records = store.reader.keyspaces.records();
    match records.iter().all(|record| record.retention == Retention::Forever) {
        true => Ok(()),
        false => Err(InvalidInput::MomentTooOld { glsn: at, limit: NAMED_AGE_MAX }.into()),
    }
}

/// Deletes a tag.
pub(crate) fn delete(store: &Arc<Engine>, name: &str) -> Result<()> {
    store.check_writable()?;
    let _changing = store.reader.snapshots.tags.lock_changing();
    change(store, name, |now| match now {
        Some(_) => Ok(None),
        None => Err(no_tag(name)),
    })
}

/// The moment of a tag.
pub(crate) fn find(store: &Engine, name: &str) -> Result<Tagged> {
    store.check_open()?;
    store.committer.fresh()?;
    let newest = store.newest()?;
    let tag = store.reader.snapshots.tags.find(name).filter(|tag| tag.at <= newest);
    tag.ok_or_else(|| no_tag(name))
}

/// All tags, by name.
pub(crate) fn all(store: &Engine) -> Result<Vec<TagInfo>> {
    store.check_open()?;
    store.committer.fresh()?;
    // A tag may be known here before its commit, and that of its moment, are durable.
    let newest = store.newest()?;
    let mut all = store.reader.snapshots.tags.all();
    all.retain(|tag| tag.glsn <= newest);
    Ok(all)
}

fn no_tag(name: &str) -> Error {
    InvalidInput::NoTag { name: name.to_owned() }.into()
}

/// Fails unless every keyspace that existed at a moment can be read there.
pub(crate) fn check_readable(store: &Engine, at: Glsn) -> Result<()> {
    let view = store.reader.index.sources.view();
    let check = |id| view.check_readable(&Span::of_keyspace(id).first(), at);
    check(DEFAULT.1)?;
    let span = Span::of_keyspace(SYSTEM);
    let mut keys =
        view.visible(span.lower(), span.upper(), AsOf::unexpiring(at), Direction::Forward)?;
    let mut key = Vec::new();
    while let Some(version) = keys.next(&mut key)? {
        let name = version.user_key();
        if name == STREAMS_MARK.as_bytes() || dropped_name(name).is_some() {
            continue;
        }
        if let Stored::Inline(record) = version.stored {
            check(Record::decode(record)?.id)?;
        }
    }
    Ok(())
}

/// Commits the tag that `to` computes from the present one (`None`: there is none).
fn change(
    store: &Arc<Engine>,
    name: &str,
    to: impl Fn(Option<Tagged>) -> Result<Option<Tagged>>,
) -> Result<()> {
    loop {
        // Changes that another member has ordered are known here, whether durable or not.
        let mut tx = Transaction::ordered(&store.committer);
        let now = tx.get(&keyspace(store), name.as_bytes())?;
        let tag = to(now.map(|record| Tagged::decode(&record)).transpose()?)?;
        match tag {
            Some(tag) => tx.put(&keyspace(store), name.as_bytes(), &tag.encode())?,
            None => tx.delete(&keyspace(store), name.as_bytes())?,
        }
        let ticket = match tx.commit_submit() {
            Err(Error::Conflict { .. }) => continue,
            ordered => ordered?,
        };
        // Note the tag before the wait, which may fail (`Stalled`) although the commit stays.
        let snapshots = &store.reader.snapshots;
        snapshots.tags.changed(name, tag, ticket.glsn());
        snapshots.branches.tags_changed(&snapshots.tags);
        ticket.wait()?;
        return Ok(());
    }
}
