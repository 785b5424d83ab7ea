//! Requests to one stream, and how fresh their answers are.
//!
//! Only the leader of the stream answers reads, but a server that was stopped or cut off may still
//! believe that it leads. Its answers are old, but never wrong: it has applied only messages that a
//! majority has stored, and none of those is taken back. Therefore:
//!
//! 1. A message that was read is in the stream, unless a client has removed it since.
//! 2. The absence of a message counts only if the answer states a last sequence that is at least
//!    the newest one that this client knows ([`Stream::known`]), because an old leader has not
//!    applied that far. The client knows the sequences of the messages that it has stored and read,
//!    and the last one of each such answer.
//! 3. Where an absence must hold at the time of the call, whatever others have been told, the
//!    client first stores a message of its own ([`Stream::barrier`]), which needs a majority.
//! 4. A stream that was created again begins a new count. The client notices the time of creation,
//!    and every later absence and every append fails, until the store is opened again.
//! 5. The configuration comes with each such answer. If it has changed since, so that the stream
//!    may lose messages, the request fails.

use std::io::{self, ErrorKind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::HeaderMap;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use plimsoll_disk::clock::{Clock, SystemClock};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::connection::{Connection, lock};
use super::settings::unfit_config;

/// Requests are repeated for this long: somewhat longer than most elections of a leader.
const PATIENCE: Duration = Duration::from_secs(7);

/// The first pause before a request is repeated, and the longest one.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(250)];

/// Codes of the server's errors.
const NO_MESSAGE: [u64; 2] = [10037, 10043];
const NO_STREAM: u64 = 10059;
const WRONG_LAST: [u64; 2] = [10071, 10164];
const FULL: [u64; 3] = [10023, 10028, 10047];
/// The leader may have failed to store what the others have stored.
const STORE_FAILED: u64 = 10077;
/// The replicas refused the sequence when they applied the message.
const SEQUENCE_AT_APPLY: u64 = 10063;
const NOT_NOW: [u64; 4] = [10007, 10008, 10009, 10118];

/// Why a request failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// There is no stream with this name.
    NoStream,
    NoMessage,
    /// The stream is at another sequence than expected, or the subject is in use; with the sequence
    /// that the server expects next, if it states one.
    WrongLast(Option<u64>),
    /// The server has refused the request, and done nothing.
    Refused(io::Error),
    /// It is unknown whether the request was executed.
    Unanswered(io::Error),
}

/// A message of the stream.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) sequence: u64,
    pub(super) data: Vec<u8>,
    headers: Vec<u8>,
}

impl Stored {
    /// The value of a header.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let text = str::from_utf8(&self.headers).ok()?;
        text.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key == name).then_some(value.trim())
        })
    }
}

/// The state of the stream.
#[derive(Debug, Deserialize)]
pub(super) struct Info {
    created: String,
    state: State,
    pub(super) config: Value,
    #[serde(default)]
    pub(super) cluster: Value,
    /// Subjects that match the filter.
    #[serde(default)]
    total: u64,
}

#[derive(Debug, Deserialize)]
struct State {
    last_seq: u64,
    messages: u64,
    /// The matching subjects; at most a page of them.
    #[serde(default)]
    subjects: Option<serde_json::Map<String, Value>>,
}

/// The count of sequences that this client knows.
#[derive(Debug, Default)]
struct Session {
    /// When the stream was created; empty before the first request.
    created: String,
    known: u64,
    /// The configuration then, or the one that was accepted last.
    config: Value,
}

/// The time for the attempts of one call.
pub(super) struct Attempts {
    clock: SystemClock,
    pause: Duration,
}

impl Attempts {
    pub(super) fn new() -> Self {
        Self { clock: SystemClock::new(), pause: PAUSES[0] }
    }

    /// Whether the time is not over.
    pub(super) fn has_time(&self) -> bool {
        self.clock.monotonic_nanos() < PATIENCE.as_nanos() as u64
    }

    /// Waits before the next attempt. False if the time is over.
    pub(super) fn again(&mut self) -> bool {
        if !self.has_time() {
            return false;
        }
        self.clock.sleep(self.pause);
        self.pause = (2 * self.pause).min(PAUSES[1]);
        true
    }
}

/// A stream.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) connection: Connection,
    pub(super) name: String,
    /// The replicas that the stream must have at least.
    replicas: u64,
    /// The subject of the messages that only prove that a majority answers.
    barrier: String,
    session: Mutex<Session>,
    /// Held while a barrier is stored.
    barriers: Mutex<()>,
    /// The number of barriers that were stored.
    stored: AtomicU64,
}

impl Stream {
    pub(super) fn new(
        connection: Connection,
        name: String,
        replicas: u64,
        barrier: String,
    ) -> Self {
        let (session, barriers) = (Mutex::default(), Mutex::default());
        Self { connection, name, replicas, barrier, session, barriers, stored: AtomicU64::new(0) }
    }

    /// One request to the interface of JetStream.
    pub(super) fn api<T: DeserializeOwned>(&self, verb: &str, body: &Value) -> Result<T, Failure> {
        let subject = format!("$JS.API.STREAM.{verb}.{}", self.name);
        let answer = self.connection.request(&subject, None, body.to_string().into_bytes());
        parse(&answer.map_err(Failure::of)?.payload)
    }

    /// A request that can be repeated, because it only reads, or does nothing the second time.
    pub(super) fn repeat<T>(&self, request: impl Fn() -> Result<T, Failure>) -> Result<T, Failure> {
        let mut attempts = Attempts::new();
        loop {
            match request() {
                Err(Failure::Unanswered(error)) if !attempts.again() => {
                    return Err(Failure::Unanswered(error));
                }
                Err(Failure::Unanswered(_)) => {}
                done => return done,
            }
        }
    }

    /// The state of the stream, as any server sees it that believes to lead it.
    pub(super) fn info(&self, filter: &str, offset: u64) -> Result<Info, Failure> {
        let body = match filter {
            "" => json!({}),
            _ => json!({ "subjects_filter": filter, "offset": offset }),
        };
        self.repeat(|| self.api("INFO", &body))
    }

    /// The newest sequence that this client knows. Begins to count with the first request.
    pub(super) fn known(&self) -> Result<u64, Failure> {
        if let Some(known) = self.counted() {
            return Ok(known);
        }
        self.begin()?;
        Ok(lock(&self.session).known)
    }

    /// The newest sequence that this client knows; `None` before the first request.
    fn counted(&self) -> Option<u64> {
        let session = lock(&self.session);
        (!session.created.is_empty()).then_some(session.known)
    }

    /// Begins to count, at the end of the stream as a majority sees it.
    fn begin(&self) -> Result<(), Failure> {
        // Its configuration is checked by `Bucket::check`.
        let Info { created, config, .. } = self.info("", 0)?;
        let known = self.store_barrier()?;
        let mut session = lock(&self.session);
        if session.created.is_empty() {
            *session = Session { created, known, config };
        }
        Ok(())
    }

    /// Records that the stream has reached a sequence.
    pub(super) fn saw(&self, sequence: u64) {
        let mut session = lock(&self.session);
        session.known = session.known.max(sequence);
    }

    /// Makes sure that the answers that follow are not older than this call.
    pub(super) fn barrier(&self) -> Result<(), Failure> {
        let before = self.stored.load(Ordering::SeqCst);
        let _one = lock(&self.barriers);
        // The first one that was stored since may have begun before this call; the second has not.
        if self.stored.load(Ordering::SeqCst) >= before + 2 {
            return Ok(());
        }
        let sequence = self.store_barrier()?;
        self.saw(sequence);
        self.stored.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn store_barrier(&self) -> Result<u64, Failure> {
        // Only the newest is kept.
        self.repeat(|| self.publish(&self.barrier, &[("Nats-Rollup", "sub")], Vec::new()))
    }

    /// The state of the stream, not older than this client knows it.
    pub(super) fn fresh_info(&self, filter: &str, offset: u64) -> Result<Info, Failure> {
        let mut attempts = Attempts::new();
        loop {
            let known = self.known()?;
            let info = self.info(filter, offset)?;
            let mut session = lock(&self.session);
            if info.created != session.created {
                let what = "the stream was created again while it was in use; see \
                            docs/how-to/after-the-loss-of-a-bucket.md, and open the store again";
                return Err(Failure::Unanswered(io::Error::other(what)));
            }
            if info.config != session.config {
                if let Some(what) = unfit_config(&info.config, &self.name, self.replicas) {
                    return Err(Failure::Unanswered(io::Error::other(what)));
                }
                session.config = info.config.clone();
            }
            if info.state.last_seq >= known {
                // Later answers must be at least as new as this one.
                session.known = session.known.max(info.state.last_seq);
                return Ok(info);
            }
            drop(session);
            if !attempts.again() {
                let what = format!(
                    "the stream is at message {}, but has reached {known} before: its leader does \
                     not reach the other servers, or they have lost messages; if this goes on, \
                     see docs/how-to/after-the-loss-of-a-bucket.md",
                    info.state.last_seq
                );
                return Err(Failure::Unanswered(io::Error::other(what)));
            }
        }
    }

    /// The last sequence of the stream, not older than this client knows it.
    pub(super) fn last(&self) -> Result<u64, Failure> {
        Ok(self.fresh_info("", 0)?.state.last_seq)
    }

    /// The number of subjects that match a filter, not older than this client knows.
    pub(super) fn count(&self, filter: &str) -> Result<u64, Failure> {
        Ok(self.fresh_info(filter, 0)?.total)
    }

    /// The number of messages with a subject, not fewer than this client knows.
    pub(super) fn messages(&self, subject: &str) -> Result<u64, Failure> {
        let subjects = self.fresh_info(subject, 0)?.state.subjects.unwrap_or_default();
        Ok(subjects.get(subject).and_then(Value::as_u64).unwrap_or(0))
    }

    /// The subjects that match a filter.
    pub(super) fn subjects(&self, filter: &str) -> Result<Vec<String>, Failure> {
        self.known()?;
        self.barrier()?;
        let mut attempts = Attempts::new();
        'again: loop {
            let (mut subjects, mut state) = (Vec::new(), None);
            loop {
                let info = self.fresh_info(filter, subjects.len() as u64)?;
                // The pages must be of one state.
                let of_page = (info.state.last_seq, info.state.messages, info.total);
                if *state.get_or_insert(of_page) != of_page {
                    if attempts.again() {
                        continue 'again;
                    }
                    let what = "the stream changes faster than it can be listed";
                    return Err(Failure::Unanswered(io::Error::other(what)));
                }
                let page = info.state.subjects.unwrap_or_default();
                let is_last = page.is_empty() || subjects.len() + page.len() >= info.total as usize;
                subjects.extend(page.into_iter().map(|(subject, _)| subject));
                if is_last {
                    return Ok(subjects);
                }
            }
        }
    }

    /// The first message with a subject from a sequence on.
    pub(super) fn next(&self, subject: &str, sequence: u64) -> Result<Stored, Failure> {
        #[derive(Deserialize)]
        struct Answer {
            message: Message,
        }
        #[derive(Deserialize)]
        struct Message {
            seq: u64,
            #[serde(default)]
            data: String,
            #[serde(default)]
            hdrs: String,
        }
        let body = json!({ "seq": sequence, "next_by_subj": subject });
        let Answer { message } = self.repeat(|| self.api::<Answer>("MSG.GET", &body))?;
        let decode = |text: String| {
            STANDARD.decode(text).map_err(|error| Failure::Unanswered(io::Error::other(error)))
        };
        let (data, headers) = (decode(message.data)?, decode(message.hdrs)?);
        self.saw(message.seq);
        Ok(Stored { sequence: message.seq, data, headers })
    }

    /// Stores a message, and returns its sequence once a majority has it.
    pub(super) fn publish(
        &self,
        subject: &str,
        headers: &[(&str, &str)],
        payload: Vec<u8>,
    ) -> Result<u64, Failure> {
        #[derive(Deserialize)]
        struct Ack {
            stream: String,
            seq: u64,
        }
        let mut map = HeaderMap::new();
        headers.iter().for_each(|(name, value)| map.insert(*name, *value));
        let answer = self.connection.request(subject, Some(map), payload).map_err(Failure::of)?;
        let ack: Ack = parse(&answer.payload)?;
        match ack.stream == self.name {
            true => Ok(ack.seq),
            false => {
                let what = format!("its subject belongs to the stream {}", ack.stream);
                Err(Failure::Unanswered(io::Error::other(what)))
            }
        }
    }

    /// Removes one message.
    pub(super) fn delete(&self, sequence: u64) -> Result<(), Failure> {
        let body = json!({ "seq": sequence, "no_erase": true });
        match self.repeat(|| self.api::<Value>("MSG.DELETE", &body)) {
            Ok(_) | Err(Failure::NoMessage) => Ok(()),
            // An earlier attempt may have removed it; the server has no code for this.
            Err(Failure::Refused(error)) if error.to_string().contains("no message found") => {
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    }

    /// Removes all messages with a subject.
    pub(super) fn purge(&self, subject: &str) -> Result<(), Failure> {
        let body = json!({ "filter": subject });
        self.repeat(|| self.api::<Value>("PURGE", &body)).map(drop)
    }
}

/// The answer, or the error in it.
fn parse<T: DeserializeOwned>(answer: &[u8]) -> Result<T, Failure> {
    let invalid = |error: serde_json::Error| {
        Failure::Unanswered(io::Error::other(format!("the answer is no JSON of a server: {error}")))
    };
    let value: Value = serde_json::from_slice(answer).map_err(invalid)?;
    let Some(error) = value.get("error") else {
        return serde_json::from_value(value).map_err(invalid);
    };
    let code = error.get("err_code").and_then(Value::as_u64).unwrap_or(0);
    let what = error.get("description").and_then(Value::as_str).unwrap_or_default();
    Err(match code {
        NO_STREAM => Failure::NoStream,
        _ if NO_MESSAGE.contains(&code) => Failure::NoMessage,
        _ if WRONG_LAST.contains(&code) => {
            Failure::WrongLast(what.rsplit_once(": ").and_then(|(_, last)| last.parse().ok()))
        }
        _ if FULL.contains(&code) => {
            Failure::Refused(io::Error::new(ErrorKind::StorageFull, what.to_owned()))
        }
        _ if NOT_NOW.contains(&code) || [STORE_FAILED, SEQUENCE_AT_APPLY].contains(&code) => {
            Failure::Unanswered(io::Error::new(ErrorKind::NotConnected, what.to_owned()))
        }
        _ => Failure::Refused(io::Error::other(format!("{what} (error {code})"))),
    })
}

impl Failure {
    fn of(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::TimedOut | ErrorKind::NotConnected | ErrorKind::ConnectionReset => {
                Self::Unanswered(error)
            }
            _ => Self::Refused(error),
        }
    }

    /// The error for callers.
    pub(super) fn into_io(self, stream: &str) -> io::Error {
        match self {
            Self::NoStream => missing(stream),
            Self::NoMessage => io::Error::new(ErrorKind::InvalidData, "a message is missing"),
            Self::WrongLast(_) => io::Error::other("the stream changes faster than it is written"),
            Self::Refused(error) | Self::Unanswered(error) => error,
        }
    }
}

fn missing(stream: &str) -> io::Error {
    let what = format!(
        "there is no stream {stream} on these servers; check the URL; if it was deleted, see \
         docs/how-to/after-the-loss-of-a-bucket.md"
    );
    io::Error::other(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_server_say_what_is_known() {
        let of = |code: u64, what: &str| {
            let answer = json!({ "error": { "code": 400, "err_code": code, "description": what } });
            parse::<Value>(answer.to_string().as_bytes()).unwrap_err()
        };
        assert!(matches!(of(10071, "wrong last sequence: 17"), Failure::WrongLast(Some(17))));
        assert!(matches!(of(10164, "wrong last sequence"), Failure::WrongLast(None)));
        assert!(matches!(of(10059, "stream not found"), Failure::NoStream));
        assert!(matches!(of(10037, "no message found"), Failure::NoMessage));
        assert!(matches!(of(10008, "not available"), Failure::Unanswered(_)));
        assert!(matches!(of(10077, "no space left"), Failure::Unanswered(_)));
        assert!(matches!(of(10063, "expected sequence"), Failure::Unanswered(_)));
        assert!(matches!(of(10052, "no"), Failure::Refused(_)));
        let Failure::Refused(full) = of(10023, "insufficient resources") else { panic!() };
        assert_eq!(full.kind(), ErrorKind::StorageFull);
        assert!(matches!(parse::<Value>(b"<html>").unwrap_err(), Failure::Unanswered(_)));
    }

    #[test]
    fn headers_of_a_message_are_found_by_name() {
        let headers = b"NATS/1.0\r\nNats-Expected-Last-Sequence: 4\r\nPlimsoll-Id: ab\r\n\r\n";
        let stored = Stored { sequence: 5, data: Vec::new(), headers: headers.to_vec() };
        assert_eq!(stored.header("Plimsoll-Id"), Some("ab"));
        assert_eq!(stored.header("Plimsoll"), None);
    }
}
