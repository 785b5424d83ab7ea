//! The connection to the servers, on a runtime in a thread of its own.
//!
//! Every request ends: with its answer, or with an error after [`REQUEST`]. The client connects
//! again by itself, to any server of the cluster. Nothing is buffered beyond the requests of the
//! threads that wait for them.

use std::fmt;
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::client::{RequestError, RequestErrorKind};
use async_nats::{Client, ConnectErrorKind, HeaderMap, Message, Request, Subscriber};
use futures_util::StreamExt;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use super::address::{Address, connect_options};

/// The longest time of one request.
pub(super) const REQUEST: Duration = Duration::from_secs(2);

/// The longest time to connect to any of the servers.
const CONNECT: Duration = Duration::from_secs(6);

/// After as many requests without an answer of the stream since a message was stored, the client
/// connects again, possibly to another server: this one may be cut off.
const UNANSWERED_MAX: u32 = 2;

/// Notifications of other writers.
#[derive(Debug, Default)]
pub(super) struct Hints {
    state: Mutex<Hint>,
    arrived: Condvar,
}

/// The newest notification.
#[derive(Debug, Default)]
struct Hint {
    count: u64,
    name: String,
}

impl Hints {
    /// The number of notifications so far.
    pub(super) fn count(&self) -> u64 {
        lock(&self.state).count
    }

    /// Waits for a notification after the first `count`, at the latest until `timeout`. Returns
    /// whether the newest one names `name`.
    pub(super) fn wait(&self, count: u64, name: &str, timeout: Duration) -> bool {
        let state = lock(&self.state);
        let waited = self.arrived.wait_timeout_while(state, timeout, |hint| hint.count == count);
        let (hint, _) = waited.unwrap_or_else(PoisonError::into_inner);
        hint.count != count && hint.name == name
    }

    fn note(&self, name: &[u8]) {
        let mut hint = lock(&self.state);
        hint.count += 1;
        hint.name = String::from_utf8_lossy(name).into_owned();
        self.arrived.notify_all();
    }
}

/// A connection that is made by the first request.
pub(super) struct Connection {
    address: Address,
    runtime: Handle,
    /// Ends the thread when it is dropped.
    _stop: oneshot::Sender<()>,
    client: Mutex<Option<Client>>,
    /// Requests without an answer since a message was stored.
    unanswered: AtomicU32,
    /// The subject of notifications.
    wake: String,
    pub(super) hints: Arc<Hints>,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address.url)
    }
}

impl Connection {
    /// A connection to the servers of an address. Makes no request yet.
    pub(super) fn new(address: Address, wake: String) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (handle, (stop, stopped)) = (runtime.handle().clone(), oneshot::channel::<()>());
        // Not joined: a runtime that is dropped ends its tasks, and holds nothing of the caller.
        drop(plimsoll_disk::thread::spawn("nats", move || {
            let _ = runtime.block_on(stopped);
        })?);
        Ok(Self {
            address,
            runtime: handle,
            _stop: stop,
            client: Mutex::new(None),
            unanswered: AtomicU32::new(0),
            wake,
            hints: Arc::default(),
        })
    }

    /// Runs a future on the thread of the connection.
    fn run<T: Send + 'static>(
        &self,
        future: impl Future<Output = io::Result<T>> + Send + 'static,
    ) -> io::Result<T> {
        let (send, receive) = sync_channel(1);
        self.runtime.spawn(async move {
            let _ = send.send(future.await);
        });
        let ended = |_| io::Error::other("the thread of the connection has ended");
        receive.recv().map_err(ended)?
    }

    /// The client, connected at the first call.
    pub(super) fn client(&self) -> io::Result<Client> {
        let mut client = lock(&self.client);
        if let Some(client) = &*client {
            return Ok(client.clone());
        }
        let (servers, wake) = (self.address.servers.clone(), self.wake.clone());
        let (connected, subscriber) = self.run(async move {
            let options = connect_options(&servers).await?;
            let connecting = tokio::time::timeout(CONNECT, options.connect(&servers[..])).await;
            let connected = connecting.map_err(|_| unreachable_error("no server answers"))?;
            let connected = connected.map_err(|error| match error.kind() {
                ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
                    let what = format!(
                        "{error}; set NATS_CREDS, NATS_USER and NATS_PASSWORD, or NATS_TOKEN in \
                         the environment"
                    );
                    io::Error::new(ErrorKind::PermissionDenied, what)
                }
                _ => unreachable_error(&error.to_string()),
            })?;
            let subscriber = connected.subscribe(wake).await.map_err(io::Error::other)?;
            Ok((connected, subscriber))
        })?;
        self.runtime.spawn(note_hints(subscriber, Arc::clone(&self.hints)));
        *client = Some(connected.clone());
        Ok(connected)
    }

    /// Sends a message, and returns the answer. An error of kind `TimedOut`, `NotConnected` or
    /// `ConnectionReset` leaves open whether the message arrived.
    pub(super) fn request(
        &self,
        subject: &str,
        headers: Option<HeaderMap>,
        payload: Vec<u8>,
    ) -> io::Result<Message> {
        let client = self.client()?;
        let mut request = Request::new().payload(payload.into()).timeout(Some(REQUEST));
        if let Some(headers) = headers {
            request = request.headers(headers);
        }
        let is_read = subject.starts_with('$');
        let (sender, subject) = (client.clone(), subject.to_owned());
        let answer = self.run(async move {
            // The client's own timeout does not cover its queue.
            match tokio::time::timeout(2 * REQUEST, sender.send_request(subject, request)).await {
                Ok(answer) => answer.map_err(|error| request_error(&error)),
                Err(_) => Err(ErrorKind::TimedOut.into()),
            }
        });
        // Relaxed: the number passes nothing but itself.
        match &answer {
            Err(error)
                if [ErrorKind::TimedOut, ErrorKind::NotConnected].contains(&error.kind()) =>
            {
                let before = self.unanswered.fetch_add(1, Ordering::Relaxed);
                if before + 1 >= UNANSWERED_MAX {
                    self.unanswered.store(0, Ordering::Relaxed);
                    self.runtime.spawn(async move {
                        let _ = client.force_reconnect().await;
                    });
                }
            }
            // A server that is cut off still answers reads.
            Ok(_) if !is_read => self.unanswered.store(0, Ordering::Relaxed),
            _ => {}
        }
        answer
    }

    /// Tells other writers that an object is stored. They may miss it.
    pub(super) fn notify(&self, name: &str) {
        if let Ok(client) = self.client() {
            let (subject, name) = (self.wake.clone(), name.to_owned());
            self.runtime.spawn(async move {
                let _ = client.publish(subject, name.into()).await;
            });
        }
    }
}

async fn note_hints(mut subscriber: Subscriber, hints: Arc<Hints>) {
    while let Some(message) = subscriber.next().await {
        hints.note(&message.payload);
    }
}

fn unreachable_error(what: &str) -> io::Error {
    io::Error::new(ErrorKind::NotConnected, what)
}

fn request_error(error: &RequestError) -> io::Error {
    match error.kind() {
        RequestErrorKind::TimedOut => {
            io::Error::new(ErrorKind::TimedOut, "the servers did not answer in time")
        }
        RequestErrorKind::NoResponders => unreachable_error(
            "no server answers for the stream: its replicas have no leader, or too few are running",
        ),
        RequestErrorKind::MaxPayloadExceeded | RequestErrorKind::InvalidSubject => {
            io::Error::new(ErrorKind::InvalidInput, error.to_string())
        }
        RequestErrorKind::Other => io::Error::new(ErrorKind::ConnectionReset, error.to_string()),
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
