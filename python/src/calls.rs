//! Calls that may take long: the GIL is released, and Ctrl-C ends the call.
//!
//! Python runs signal handlers in its main thread only. Therefore long calls from the main thread
//! run on a separate thread, and the main thread waits at a Python queue, which a signal
//! interrupts; every other thread simply waits. No thread polls for signals.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TryRecvError, sync_channel};
use std::thread;

use pyo3::prelude::*;

use crate::errors;

/// Whether this thread runs signal handlers.
pub(crate) fn handles_signals(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import("threading")?;
    threading.call_method0("current_thread")?.eq(threading.call_method0("main_thread")?)
}

/// Runs `work` on a separate thread and waits for it. If a signal handler raises, that exception is
/// returned at once; the work continues in the background, and its result is dropped.
pub(crate) fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    interruptible_with(py, |_| work(), |()| Ok(()))
}

enum Message<P, T> {
    Progress(P),
    Done(T),
}

/// Like [`interruptible`], for work that reports progress: `see` is called with each report. An
/// error from `see` ends the call.
pub(crate) fn interruptible_with<P: Send + 'static, T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce(&mut dyn FnMut(P)) -> T + Send + 'static,
    mut see: impl FnMut(P) -> PyResult<()>,
) -> PyResult<T> {
    let bell = if handles_signals(py)? { Some(Arc::new(Bell::new(py)?)) } else { None };
    let (sender, mut messages) = sync_channel(16);
    let reports = Reports { sender: Some(sender), bell: bell.clone() };
    let body = move || {
        let done = work(&mut |progress| reports.send(Message::Progress(progress)));
        reports.send(Message::Done(done));
    };
    thread::Builder::new().name("plimsoll-call".into()).spawn(body)?;
    let mut wait = || loop {
        let message = match &bell {
            Some(bell) => match messages.try_recv() {
                Err(TryRecvError::Empty) => {
                    bell.wait(py)?;
                    continue;
                }
                received => received.ok(),
            },
            None => {
                let messages = &mut messages;
                py.detach(move || messages.recv().ok())
            }
        };
        match message {
            Some(Message::Done(done)) => return Ok(done),
            Some(Message::Progress(progress)) => see(progress)?,
            None => return Err(errors::invalid("the call failed; see stderr")),
        }
    };
    let done = wait();
    if let (Err(_), Some(bell)) = (&done, &bell) {
        bell.is_left.store(true, Ordering::Relaxed);
    }
    done
}

/// The messages of a call's thread.
struct Reports<P, T> {
    /// `None` at the end.
    sender: Option<SyncSender<Message<P, T>>>,
    bell: Option<Arc<Bell>>,
}

impl<P, T> Reports<P, T> {
    fn send(&self, message: Message<P, T>) {
        // After an interruption no thread receives it.
        if self.sender.as_ref().is_some_and(|sender| sender.send(message).is_ok()) {
            self.ring();
        }
    }

    fn ring(&self) {
        if let Some(bell) = &self.bell {
            bell.ring();
        }
    }
}

impl<P, T> Drop for Reports<P, T> {
    fn drop(&mut self) {
        // Wakes the caller of a call that panicked.
        self.sender = None;
        self.ring();
    }
}

/// A Python queue with an entry for each ring.
///
/// It uses the class of the C module `_queue`. gevent and eventlet replace the locks of `_thread`
/// and `threading` with locks that switch to another greenlet, and an engine thread cannot wake a
/// greenlet; they leave this class alone.
struct Bell {
    queue: Py<PyAny>,
    /// Whether the wait was interrupted: rings are ignored, and the interpreter may be shutting
    /// down.
    is_left: AtomicBool,
}

impl Bell {
    fn new(py: Python<'_>) -> PyResult<Self> {
        let queue = py.import("_queue")?.call_method0("SimpleQueue")?;
        Ok(Self { queue: queue.unbind(), is_left: AtomicBool::new(false) })
    }

    /// Waits for a ring, or until a signal handler raises.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        self.queue.bind(py).call_method0("get").map(drop)
    }

    fn ring(&self) {
        // Relaxed: a stale read causes only an unneeded ring.
        if self.is_left.load(Ordering::Relaxed) {
            return;
        }
        // Fails only if memory for the entry is missing; the waiting thread then receives the next
        // ring.
        let _ = Python::try_attach(|py| {
            self.queue.bind(py).call_method1("put", (py.None(),)).map(drop)
        });
    }
}
