//! Calls that may take long: the interpreter's lock is released, and Ctrl-C ends the call.
//!
//! Python runs handlers of signals in its main thread only. So there, what takes long runs on a
//! thread of its own, and the main thread waits at a queue of Python's, which a signal interrupts;
//! every other thread just waits. Nothing wakes to look whether a signal came.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TryRecvError, sync_channel};
use std::thread;

use pyo3::prelude::*;

use crate::errors;

/// Whether this thread is the one that runs handlers of signals.
pub(crate) fn handles_signals(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import("threading")?;
    threading.call_method0("current_thread")?.eq(threading.call_method0("main_thread")?)
}

/// Runs `work` on a thread of its own, and waits for it. If a signal's handler raises, that
/// exception is returned at once; the work then ends by itself, and its result is dropped.
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

/// As [`interruptible`], for work that reports progress: `see` is called with it, and may end the
/// call.
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

/// What the thread of a call tells.
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
        // Who waits for a call that panicked finds that nothing more comes.
        self.sender = None;
        self.ring();
    }
}

/// A queue of Python's with an entry for each ring.
///
/// It is the class of the C module `_queue`. gevent and eventlet replace the locks of `_thread` and
/// `threading` by locks that switch to another greenlet, and a thread of the engine cannot wake a
/// greenlet; they leave this class as it is.
struct Bell {
    queue: Py<PyAny>,
    /// Whether the wait was interrupted: nothing more is heard, and the interpreter may be ending.
    is_left: AtomicBool,
}

impl Bell {
    fn new(py: Python<'_>) -> PyResult<Self> {
        let queue = py.import("_queue")?.call_method0("SimpleQueue")?;
        Ok(Self { queue: queue.unbind(), is_left: AtomicBool::new(false) })
    }

    /// Waits for a ring, or until a signal's handler raises.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        self.queue.bind(py).call_method0("get").map(drop)
    }

    fn ring(&self) {
        // Relaxed: who looks too early does no more than it would have done before.
        if self.is_left.load(Ordering::Relaxed) {
            return;
        }
        // It fails only where there is no memory for the entry; the thread that waits then hears
        // the next ring.
        let _ = Python::try_attach(|py| {
            self.queue.bind(py).call_method1("put", (py.None(),)).map(drop)
        });
    }
}
