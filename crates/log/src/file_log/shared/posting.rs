//! Commits by posts ([`crate::members::posts`]): one process orders and syncs the records of
//! several.
//!
//! Each commit posts its record and waits. One of the waiting threads gathers the others, orders
//! all posts in one turn, and syncs them. A group costs one turn, one write and one sync, however
//! many processes and threads it serves.

use plimsoll_disk::borders::{Border, hit};

use crate::draft::{Draft, DraftEntry};
use crate::error::LogError;
use crate::file_log::append::{place, publish};
use crate::file_log::open_log::OpenLog;
use crate::file_log::shared::catch_up::catch_up;
use crate::file_log::shared::turn::{Turn, check};
use crate::file_log::tail::order::Order;
use crate::glsn::{Glsn, StreamId};
use crate::members::Members;
use crate::members::lock::Got;
use crate::members::posts::{Answer, Cell, POST_BYTES_MAX, Post};

/// A commit of one entry, by a transaction that has read nothing.
#[derive(Clone, Copy, Debug)]
pub struct Posted<'a> {
    /// The payload, in parts.
    pub parts: &'a [&'a [u8]],
    /// As in [`Draft`].
    pub read_at: Glsn,
    /// The newest GLSN that the caller has applied. The commit is not ordered after a younger
    /// record that all members must apply first
    /// ([`crate::members::marks::Marks::must_apply_upto`]).
    pub known: Glsn,
}

/// Posts a commit and waits until it is durable. `None` if the caller must order it itself, because
/// it is too large, no cell is free, it could not be ordered, or the caller must first apply a
/// newer record.
///
/// # Errors
/// `Stalled` if it may still be ordered and become durable once another process continues;
/// `Poisoned`.
pub(crate) fn commit(
    log: &OpenLog,
    members: &Members,
    commit: &Posted<'_>,
) -> Result<Option<Glsn>, LogError> {
    let Some(post) = members.posts.post(commit.parts, commit.read_at, commit.known) else {
        return Ok(None);
    };
    let is_over = || post.answer() != Answer::None || check(log, members).is_err();
    let outcome = || is_over().then_some(Ok(()));
    let lead = || lead(log, members, &post, &is_over);
    let waited = log.durability.posts.wait(&outcome, &*log.env.options.clock, &lead);
    match post.answer() {
        Answer::Ordered(glsn) => return Ok(Some(glsn)),
        Answer::Refused => return Ok(None),
        Answer::None | Answer::Claimed => {}
    }
    if members.posts.withdraw_post(&post) {
        return check(log, members).map(|()| None);
    }
    let outcome = match waited {
        Ok(()) | Err(LogError::Stalled { .. }) => wait_for_claimed(log, members, &post),
        // Whether the post is committed is unknown.
        Err(error) => Err(log.durability.group.poison(&error)),
    };
    if outcome.is_err() {
        members.posts.leave_post(&post);
    }
    outcome
}

/// Waits until a post that was claimed is durable, if it has been ordered.
fn wait_for_claimed(
    log: &OpenLog,
    members: &Members,
    post: &Post<'_>,
) -> Result<Option<Glsn>, LogError> {
    check(log, members)?;
    let Answer::Ordered(glsn) = members.posts.post_answer(post.cell) else {
        return Err(members.posts.posting.stalled());
    };
    let taken_in = log.tail.order().and_then(|mut order| catch_up(log, members, &mut order));
    // If the record is not published yet, this fails with `NotYet`, as for a record that was never
    // submitted.
    let durable = taken_in.and_then(|()| log.durability.wait_if_there(glsn));
    durable.map(|()| Some(glsn)).map_err(|error| match error {
        poisoned @ LogError::Poisoned { .. } => poisoned,
        // Return no other error, because the caller would conclude that the commit can be retried.
        _ => members.posts.posting.stalled(),
    })
}

/// Makes sure that this process's posts are ordered and synced, with those of all members, unless
/// another process does so.
fn lead(
    log: &OpenLog,
    members: &Members,
    post: &Post<'_>,
    is_over: &dyn Fn() -> bool,
) -> Result<(), LogError> {
    members.posts.gathering.arrive();
    let got = members
        .posts
        .take_posting(post.cell, is_over)
        .inspect_err(|_| members.posts.note_posting_stalled())?;
    if got == Got::Needless {
        return Ok(());
    }
    let group = members.posts.gathering.gather(&*log.env.options.clock);
    let led = order(log, members, post).and_then(|()| log.durability.sync_to_end());
    members.posts.gathering.expect(group);
    // This wake-up is also needed if another process has synced, because that process may have
    // checked for waiters before these were waiting.
    members.posts.wake_group();
    members.posts.release_posting();
    led.map(drop)
}

/// Orders the posts of all members in one write.
fn order(log: &OpenLog, members: &Members, own: &Post<'_>) -> Result<(), LogError> {
    let mut turn = Turn::take(log, members)?;
    if turn.begin().is_ok() {
        return order_all(log, members, turn.order_mut()?);
    }
    turn.discard_if_abandoned();
    // The owner of this post retries by itself and gets the error. The other posts are left to the
    // next leader.
    if members.posts.withdraw_post(own) { Ok(()) } else { Err(members.posts.posting.stalled()) }
}

/// Orders all posts. A post that cannot be ordered is refused; its owner retries by itself and gets
/// the error.
fn order_all(log: &OpenLog, members: &Members, order: &mut Order) -> Result<(), LogError> {
    let must_apply_upto = members.marks.must_apply_upto();
    let mut bytes = [0; POST_BYTES_MAX];
    let mut done: Vec<Cell> = Vec::with_capacity(64);
    let (mut is_any_placed, mut has_failed) = (false, false);
    members.posts.begin_group();
    for cell in members.posts.pending() {
        // If the claim fails, the post was withdrawn, or a member ordered and published it and was
        // killed before it cleared the bit.
        if members.posts.claim_post(cell) {
            let (payload, read_at, known) = members.posts.read_post(cell, &mut bytes);
            let entries = [DraftEntry { stream: StreamId::TRANSACTIONS, parts: &[payload] }];
            let draft = Draft { read_at, ..Draft::of(&entries) };
            let mut answer = Answer::Refused;
            // After a failure the remaining posts are not tried, because each could wait as long as
            // the one that failed, while the turn is held.
            if !has_failed && known >= must_apply_upto && members.posts.is_owner_there(cell) {
                match place(log, order, &draft, None) {
                    Ok(placed) => {
                        (answer, is_any_placed) = (Answer::Ordered(placed.ticket.last), true)
                    }
                    Err(_) => has_failed = true,
                }
            }
            members.posts.answer_post(cell, answer);
        }
        done.push(cell);
    }
    members.posts.end_group();
    if is_any_placed {
        hit(Border::PostsPlaced);
        publish(log, order)?;
    }
    done.iter().for_each(|cell| members.posts.clear_post(*cell));
    Ok(())
}
