//! A commit's ticket: waits for durability, by blocking or as a future.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use plimsoll_log::glsn::Glsn;

use crate::read::open_moments::OpenMoment;
use crate::txn::commit::Ordered;
use crate::txn::committer::Committer;
use crate::txn::durable_wakers::{DurableWakers, Registration};
use crate::types::error::Result;
use crate::types::options::Durability;

/// A commit that is ordered but may not be durable yet, returned by
/// [`Transaction::commit_submit`](crate::Transaction::commit_submit).
///
/// Wait for it with [`CommitTicket::wait`], or await it: it is a future for any runtime. One sync
/// serves all waiting tickets. Dropping a ticket does not affect the commit.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("store");
/// # use plimsoll::*;
/// # let db = Db::open(&path, Options::new().memory_bytes(16 << 20))?;
/// let notes = db.keyspace("notes")?;
/// // One sync for all of them.
/// let mut tickets = Vec::new();
/// for number in 0..100u32 {
///     let mut tx = db.begin();
///     tx.put(&notes, number.to_be_bytes(), "x")?;
///     tickets.push(tx.commit_submit()?);
/// }
/// for ticket in tickets {
///     ticket.wait()?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// In asynchronous code:
///
/// ```
/// # use plimsoll::*;
/// async fn store(db: &Db, notes: &Keyspace, text: &str) -> Result<Glsn> {
///     let mut tx = db.begin();
///     tx.put(notes, "a", text)?;
///     tx.commit_submit()?.await
/// }
/// # fn main() -> Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let db = Db::open(dir.path().join("store"), Options::new().memory_bytes(16 << 20))?;
/// # let notes = db.keyspace("notes")?;
/// # struct Unpark(std::thread::Thread);
/// # impl std::task::Wake for Unpark {
/// #     fn wake(self: std::sync::Arc<Self>) {
/// #         self.0.unpark();
/// #     }
/// # }
/// # let waker = std::sync::Arc::new(Unpark(std::thread::current())).into();
/// # let mut stored = std::pin::pin!(store(&db, &notes, "one"));
/// # let glsn = loop {
/// #     match stored.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
/// #         std::task::Poll::Ready(glsn) => break glsn?,
/// #         std::task::Poll::Pending => std::thread::park(),
/// #     }
/// # };
/// # assert_eq!(glsn, db.newest());
/// # Ok(())
/// # }
/// ```
#[must_use = "wait for the ticket, or the commit may not be durable"]
pub struct CommitTicket {
    wakers: Arc<DurableWakers>,
    glsn: Glsn,
    /// Whether to wait for durability.
    wait: bool,
    /// Whether the commit was durable before it had a ticket.
    was_durable: bool,
    /// The registration of the task that last polled the ticket.
    registration: Option<Registration>,
}

impl CommitTicket {
    /// The ticket of a transaction that wrote nothing.
    pub(crate) fn of_snapshot(committer: &Committer, moment: &OpenMoment) -> Self {
        // A transaction of `Db::begin_ordered` may have read commits that are not durable yet. A
        // transaction that has read nothing would only have seen commits that were readable when it
        // began, so it waits for none.
        let is_readable = moment.readable().is_ok();
        let is_behind =
            is_readable && moment.is_applied() && moment.at() > committer.sequencer.visible();
        let is_synced = committer.options.durability == Durability::Sync;
        let (wait, was_durable) = (is_synced && is_behind, is_synced && is_readable && !is_behind);
        Self {
            wakers: Arc::clone(&committer.wakers),
            glsn: moment.at(),
            wait,
            was_durable,
            registration: None,
        }
    }

    /// The ticket of a commit.
    pub(crate) fn of_commit(committer: &Committer, ordered: Ordered) -> Self {
        Self {
            wakers: Arc::clone(&committer.wakers),
            glsn: ordered.glsn,
            wait: !ordered.is_durable && committer.options.durability == Durability::Sync,
            was_durable: ordered.is_durable,
            registration: None,
        }
    }

    /// The commit's GLSN.
    pub fn glsn(&self) -> Glsn {
        self.glsn
    }

    /// Whether the commit is durable now. Neither waits nor triggers a sync.
    pub fn is_durable(&self) -> bool {
        self.was_durable || self.wakers.is_durable(self.glsn)
    }

    /// Waits until the commit is visible and durable according to the store's durability. May be
    /// called again, also by several threads at once.
    ///
    /// # Errors
    /// After [`Error::Poisoned`](crate::Error::Poisoned), it is unknown until the store is reopened
    /// whether the commit survives. After [`Error::Stalled`](crate::Error::Stalled), the commit is
    /// ordered, and becomes durable once the other process continues or ends.
    pub fn wait(&self) -> Result<Glsn> {
        if self.wait {
            self.wakers.wait(self.glsn)?;
        }
        Ok(self.glsn)
    }
}

/// Ready when [`CommitTicket::wait`] would return, with the same result. In a store without
/// background threads, as in simulations, `poll` blocks.
impl Future for CommitTicket {
    type Output = Result<Glsn>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if !self.wait {
            return Poll::Ready(Ok(self.glsn));
        }
        let ticket = &mut *self;
        let glsn = ticket.glsn;
        ticket.wakers.poll(glsn, &mut ticket.registration, context.waker()).map_ok(|()| glsn)
    }
}

impl Drop for CommitTicket {
    fn drop(&mut self) {
        if let Some(registration) = self.registration.take() {
            self.wakers.forget(registration);
        }
    }
}

impl fmt::Debug for CommitTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CommitTicket({})", self.glsn)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::engine::Engine;
    use crate::engine::open::open;
    use crate::txn::transaction::Transaction;
    use crate::types::options::Options;

    #[test]
    fn a_commit_synced_by_another_process_is_durable() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let join = || {
            open(&path, Options::new().memory_bytes(16 << 20).background(false).shared(true))
                .unwrap()
        };
        let (one, other) = (join(), join());
        let submit = |store: &Arc<Engine>| {
            let mut tx = Transaction::new(&store.committer);
            tx.put(&store.reader.keyspaces.find("default").unwrap().0, b"row", b"value").unwrap();
            tx.commit_submit().unwrap()
        };
        let ticket = submit(&one);
        assert!(!ticket.is_durable());
        submit(&other).wait().unwrap();
        assert!(ticket.is_durable());
    }
}
