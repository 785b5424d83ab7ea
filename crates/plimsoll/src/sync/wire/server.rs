//! The server: answers the requests of a client with a store that is open in this process.

use std::io::{Read, Write};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use plimsoll_disk::mutex::lock;
use plimsoll_disk::thread::spawn;
use plimsoll_memory::budget::Kind;

use crate::api::db::Db;
use crate::sync::local::{Local, open_folder};
use crate::sync::peer::{DEPTH_MAX, Move, Peer, Wanted};
use crate::sync::send::CommitSink;
use crate::sync::wire::commits::{Encoder, take_commits};
use crate::sync::wire::frames::{Input, Output, Put, Role, Sender, ended, not_protocol};
use crate::sync::wire::hello::{send_hello, take_hello};
use crate::sync::wire::items::{
    END, NEXT, put_bytes, put_haves, put_id, put_keyspaces, put_line, put_number, take_flag,
    take_haves, take_id, take_name, take_number, take_optional_id, take_u8,
};
use crate::types::error::{Error, Result};
use crate::types::options::Options;

/// If the server has worked on a request for this long without sending anything, it sends an
/// `Alive` frame. The write fails if the client is gone.
const ALIVE_EVERY: Duration = Duration::from_secs(5);

/// The requests of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    Branches = 1,
    Keyspaces = 2,
    Tip = 3,
    Haves = 4,
    Send = 5,
    Receive = 6,
    Line = 7,
    SendLine = 8,
    Has = 9,
}

impl Request {
    fn of(byte: u8) -> Option<Self> {
        let all = [
            Self::Branches,
            Self::Keyspaces,
            Self::Tip,
            Self::Haves,
            Self::Send,
            Self::Receive,
            Self::Line,
            Self::SendLine,
            Self::Has,
        ];
        all.into_iter().find(|request| *request as u8 == byte)
    }
}

impl Db {
    /// Serves the store to a client over a connection, until the client ends it. `reader` has the
    /// bytes that the client writes; `writer` sends the answers.
    /// [`SyncConnection::new`](crate::SyncConnection::new) is the client, and states the
    /// requirements of the transport. Authenticate the client before this call, because it can
    /// fetch every branch and push to every branch, also with force.
    ///
    /// An error of a request is sent to the client, which returns it to its caller. A transfer that
    /// is interrupted loses no commits; the next one continues it.
    ///
    /// # Errors
    /// [`Error::Remote`] if the connection ends in the middle of a request, or the client does not
    /// follow the protocol; [`Error::Format`] if it speaks only other versions of it;
    /// [`Error::Io`] if a thread cannot be started.
    pub fn serve_sync(
        &self,
        reader: impl Read + Send + 'static,
        writer: impl Write + Send + 'static,
    ) -> Result<()> {
        serve(Ok((self.clone(), false)), Box::new(reader), Box::new(writer))
    }

    /// As [`Db::serve_sync`], but refuses pushes with [`Error::ReadOnly`].
    ///
    /// ```
    /// # fn main() -> plimsoll::Result<()> {
    /// # use plimsoll::*;
    /// # let [here, there] = [(); 2].map(|()| {
    /// #     Db::in_memory(Options::new().memory_bytes(16 << 20)).expect("there is memory")
    /// # });
    /// # here.put(&here.keyspace("notes")?, "a", "one")?;
    /// let (from_client, to_server) = std::io::pipe()?;
    /// let (from_server, to_client) = std::io::pipe()?;
    /// let server = std::thread::spawn(move || there.serve_sync_read_only(from_client, to_client));
    ///
    /// let mut connection = SyncConnection::new(from_server, to_server)?;
    /// assert_eq!(here.push_over(&mut connection, "main"), Err(Error::ReadOnly));
    /// drop(connection);
    /// server.join().expect("it does not panic")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Db::serve_sync`].
    pub fn serve_sync_read_only(
        &self,
        reader: impl Read + Send + 'static,
        writer: impl Write + Send + 'static,
    ) -> Result<()> {
        serve(Ok((self.clone(), true)), Box::new(reader), Box::new(writer))
    }

    /// Opens the store in a folder, serves it as [`Db::serve_sync`] does, and closes it. If
    /// `refuses_pushes`, serves it as [`Db::serve_sync_read_only`] does. If the store cannot be
    /// opened, the client gets the error as well.
    ///
    /// # Errors
    /// As for [`Db::open`], [`Db::serve_sync`] and [`Db::close`].
    pub fn serve_sync_at(
        path: impl AsRef<Path>,
        options: Options,
        refuses_pushes: bool,
        reader: impl Read + Send + 'static,
        writer: impl Write + Send + 'static,
    ) -> Result<()> {
        let db = match open_folder(path.as_ref(), options) {
            Ok(db) => db,
            Err(error) => {
                serve(Err(error.clone()), Box::new(reader), Box::new(writer))?;
                return Err(error);
            }
        };
        let served = serve(Ok((db.clone(), refuses_pushes)), Box::new(reader), Box::new(writer));
        let closed = db.close();
        served.and(closed)
    }
}

/// Serves a store; the flag is whether pushes are refused. If `store` is an error, answers each
/// request with it.
fn serve(
    store: Result<(Db, bool)>,
    reader: Box<dyn Read + Send>,
    writer: Box<dyn Write + Send>,
) -> Result<()> {
    let sender = Arc::new(Mutex::new(Sender::new(writer, Role::Server)));
    let mut input = Input::new(reader, Role::Client);
    let id = store.as_ref().map_or(0, |(db, _)| db.id());
    send_hello(&mut lock(&sender), Role::Server, id)?;
    if take_hello(&mut input, Role::Client)?.is_none() {
        return Ok(());
    }
    let mut server = Server { store, input, output: Output::new(Arc::clone(&sender)), sender };
    let pulse = Pulse::start(Arc::clone(&server.sender), ALIVE_EVERY)?;
    while server.input.begin()? {
        pulse.set(true);
        server.answer()?;
        pulse.set(false);
    }
    Ok(())
}

struct Server {
    store: Result<(Db, bool)>,
    input: Input,
    output: Output,
    sender: Arc<Mutex<Sender>>,
}

impl Server {
    /// Answers a request. If the request fails, the answer is the error.
    ///
    /// # Errors
    /// [`Error::Remote`] if the connection fails, or the client violates the protocol.
    fn answer(&mut self) -> Result<()> {
        let performed = self.perform().and_then(|()| self.input.end());
        self.input.report_to(None);
        match performed {
            Ok(()) => self.output.end(),
            // End the connection: the client violates the protocol, or is gone.
            Err(error @ Error::Remote { .. }) => {
                // The client may still read the error. If not, return this error, not that of the
                // write.
                let _ = self.output.fail(&error);
                Err(error)
            }
            Err(error) => {
                self.output.fail(&error)?;
                // The client may still be sending its request. It stops when it gets the error.
                match self.input.skip_rest() {
                    Err(cut) if cut == ended() => Ok(()),
                    skipped => skipped,
                }
            }
        }
    }

    fn perform(&mut self) -> Result<()> {
        let (input, output) = (&mut self.input, &mut self.output);
        let byte = take_u8(input)?;
        let request = Request::of(byte)
            .ok_or_else(|| not_protocol(&format!("it sent a request of unknown kind {byte}")))?;
        let (db, refuses_pushes) = self.store.as_ref().map_err(Error::clone)?;
        let mut local = Local::new(db)?;
        match request {
            Request::Branches => {
                for name in local.branches()? {
                    output.put(&[NEXT])?;
                    put_bytes(output, name.as_bytes())?;
                }
                output.put(&[END])
            }
            Request::Keyspaces => put_keyspaces(output, &local.keyspaces()?),
            Request::Tip => {
                let tip = local.tip(&take_name(input)?)?;
                put_id(output, tip.as_ref())
            }
            Request::Haves => put_haves(output, &local.haves(&take_name(input)?)?),
            Request::Send => {
                let (branch, id, haves) = (take_name(input)?, take_id(input)?, take_haves(input)?);
                let mut encoder = Encoder::new(output);
                local.send(Wanted { branch: &branch, id }, &haves, &mut encoder)?;
                encoder.end()
            }
            Request::Line => {
                let (branch, id) = (take_name(input)?, take_id(input)?);
                let (depth, haves) = (take_number(input, DEPTH_MAX)?, take_haves(input)?);
                put_line(output, &local.line(Wanted { branch: &branch, id }, depth, &haves)?)
            }
            Request::SendLine => {
                let (branch, id) = (take_name(input)?, take_id(input)?);
                let base = (take_optional_id(input)?, take_flag(input)?);
                let mut encoder = Encoder::new(output);
                local.send_line(Wanted { branch: &branch, id }, base, &mut encoder)?;
                encoder.end()
            }
            Request::Has => output.put(&[u8::from(local.has(&take_id(input)?)?)]),
            Request::Receive => {
                if *refuses_pushes {
                    return Err(Error::ReadOnly);
                }
                let name = take_name(input)?;
                let (before, last) = (take_optional_id(input)?, take_id(input)?);
                input.report_to(Some(Arc::clone(&self.sender)));
                let mut lease = db.store.reader.budget.empty_lease(Kind::Staging);
                let change = Move { name: &name, before, last, is_forward: false, boundary: None };
                let mut feed = |sink: &mut dyn CommitSink| take_commits(input, &mut lease, sink);
                let commits = local.receive(change, &mut feed)?;
                put_number(output, commits)
            }
        }
    }
}

/// The thread that sends `Alive` frames while the server works on a request.
struct Pulse {
    shared: Arc<(Mutex<State>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    is_working: bool,
    has_ended: bool,
}

impl Pulse {
    fn start(sender: Arc<Mutex<Sender>>, every: Duration) -> Result<Self> {
        let shared = Arc::<(Mutex<State>, Condvar)>::default();
        let seen = Arc::clone(&shared);
        let thread = spawn("plimsoll-alive", move || beat(&seen, &sender, every))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    fn set(&self, is_working: bool) {
        lock(&self.shared.0).is_working = is_working;
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        lock(&self.shared.0).has_ended = true;
        self.shared.1.notify_all();
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, the panic has been printed.
            let _ = thread.join();
        }
    }
}

fn beat((state, changed): &(Mutex<State>, Condvar), sender: &Mutex<Sender>, every: Duration) {
    let mut sent = 0;
    let mut held = lock(state);
    while !held.has_ended {
        let woken = changed.wait_timeout(held, every);
        held = woken.unwrap_or_else(PoisonError::into_inner).0;
        let is_working = held.is_working && !held.has_ended;
        drop(held);
        {
            let mut sender = lock(sender);
            // If this write fails, the next write of the answer fails as well and is reported.
            if is_working && sender.sent() == sent && sender.alive().is_err() {
                return;
            }
            sent = sender.sent();
        }
        held = lock(state);
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the tests wait for the real clock")]
mod tests {
    use super::*;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            lock(&self.0).extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_server_that_works_says_so_and_the_client_skips_it() {
        let bytes = Shared::default();
        let sender = Sender::new(Box::new(bytes.clone()), Role::Server);
        let sender = Arc::new(Mutex::new(sender));
        let pulse = Pulse::start(Arc::clone(&sender), Duration::from_millis(1)).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert!(lock(&bytes.0).is_empty(), "no request is in work");
        pulse.set(true);
        while lock(&bytes.0).len() < 100 {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(pulse);
        let sent = lock(&bytes.0).len();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(lock(&bytes.0).len(), sent, "the thread has ended");
        let mut output = Output::new(sender);
        output.put(b"answer").unwrap();
        output.end().unwrap();
        let all = lock(&bytes.0).clone();
        let mut input = Input::new(Box::new(std::io::Cursor::new(all)), Role::Server);
        input.begin_answer().unwrap();
        let mut answer = [0; 6];
        input.take(&mut answer).unwrap();
        input.end().unwrap();
        assert_eq!(&answer, b"answer");
        assert_eq!(input.begin(), Ok(false));
    }
    #[test]
    fn random_messages_cause_no_panic_and_no_change() {
        use plimsoll_disk::random::Random;

        let options = Options::new().memory_bytes(16 << 20).background(false);
        let db = Db::in_memory(options).unwrap();
        db.put(&db.keyspace("notes").unwrap(), "a", "1").unwrap();
        let (tip, state) = (db.main().tip().unwrap(), db.state_hash().unwrap());
        let mut random = Random::new(7);
        for _ in 0..2000 {
            let bytes = Shared::default();
            let sender = Sender::new(Box::new(bytes.clone()), Role::Client);
            let mut output = Output::new(Arc::new(Mutex::new(sender)));
            for _ in 0..1 + random.below(3) {
                let mut message = vec![random.below(11) as u8];
                // The name of an existing branch, small numbers, and random bytes.
                if random.below(2) == 0 {
                    message.extend_from_slice(b"\x04main\x00");
                }
                for _ in 0..random.below(200) {
                    let byte =
                        if random.below(2) == 0 { random.below(5) } else { random.below(256) };
                    message.push(byte as u8);
                }
                output.put(&message).unwrap();
                output.end().unwrap();
            }
            let sent = lock(&bytes.0).clone();
            let answers = Shared::default();
            let sender = Sender::new(Box::new(answers), Role::Server);
            let sender = Arc::new(Mutex::new(sender));
            let mut server = Server {
                store: Ok((db.clone(), false)),
                input: Input::new(Box::new(std::io::Cursor::new(sent)), Role::Client),
                output: Output::new(Arc::clone(&sender)),
                sender,
            };
            while server.input.begin() == Ok(true) && server.answer().is_ok() {}
        }
        assert_eq!((db.main().tip().unwrap(), db.state_hash().unwrap()), (tip, state));
    }
}
