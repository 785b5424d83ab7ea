//! Calls that may take long: the interpreter's lock is released, and Ctrl-C ends the call.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use pyo3::prelude::*;

use crate::errors;

/// How long a call goes on before it looks whether it was interrupted.
pub(crate) const SLICE: Duration = Duration::from_millis(100);

/// Runs `work` on a thread of its own, and waits for it. If a signal's handler raises, that exception is returned at once; the work then
/// ends by itself, and its result is dropped.
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

/// As [`interruptible`], for work that reports progress: `see` is called with it, and may end the call.
pub(crate) fn interruptible_with<P: Send + 'static, T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce(&mut dyn FnMut(P)) -> T + Send + 'static,
    mut see: impl FnMut(P) -> PyResult<()>,
) -> PyResult<T> {
    let (sender, mut receiver) = sync_channel(16);
    let body = move || {
        let done = work(&mut |progress| drop(sender.send(Message::Progress(progress))));
        // After an interruption no thread receives it.
        let _ = sender.send(Message::Done(done));
    };
    thread::Builder::new().name("plimsoll-call".into()).spawn(body)?;
    loop {
        let message;
        (receiver, message) = py.detach(move || {
            let message = receiver.recv_timeout(SLICE);
            (receiver, message)
        });
        match message {
            Ok(Message::Done(done)) => return Ok(done),
            Ok(Message::Progress(progress)) => see(progress)?,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(errors::invalid("the call failed; see stderr")),
        }
        py.check_signals()?;
    }
}
