//! An archive or a cluster in a stream of NATS JetStream.
//!
//! ```text
//! plimsoll.STREAM.o.FOLDER.NAME     an object: the first message with this subject
//! plimsoll.STREAM.p.FOLDER.NAME.ID  the pieces of an object that is larger than a message
//! plimsoll.STREAM.b                 one message that proves that a majority answers
//! plimsoll.STREAM.w                 notifications of writers; not stored
//! ```
//!
//! Invariants:
//! 1. The object with a name is the first message with its subject, so that a later one, which no
//!    correct server stores, would never replace it.
//! 2. A message is stored under the condition that its subject is free *and* that the stream ends
//!    where this client believes. Only the leader checks the first condition; every replica
//!    checks the second one when it applies the message, so that both hold if the message is
//!    stored.
//! 3. [`Put::New`] is returned only if a majority has confirmed the message at the expected
//!    sequence, or if it was read back under its random id. [`Put::Exists`] is returned only if
//!    another message was read under the name. A refusal of the server alone proves neither:
//!    a leader that was cut off refuses because of messages that are never stored.
//! 4. [`Bucket::get`] returns `None` only if the object did not exist at some time during the
//!    call. [`Bucket::exists`] returns `false` only if it did not exist at the time of the newest
//!    message that this client has stored, read or counted, or later: what follows from an object
//!    that this client knows is never missed. `stream.rs` states why.
//! 5. No request that arrives late does harm: a message that is stored late is refused, because the
//!    stream has grown; a removal names the sequence of one message.
//!
//! The pieces of a large object are stored first, under a random id; the message with its name
//! is stored last. A sweep that removes old pieces stores a message among them before it looks
//! for the name once more, and a writer counts the messages after it has stored the name: so
//! one of the two notices the other. Callers verify what they read: batches, bases and archives
//! contain their hashes. An object of which pieces are lost therefore ends early, and its
//! callers name it.

mod address;
mod connection;
mod fitness;
mod settings;
mod stream;

use std::io::{self, Cursor, Read};
use std::sync::Arc;
use std::time::Duration;

use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::random::entropy;

use self::address::Address;
use self::connection::Connection;
use self::stream::{Attempts, Failure, Stored, Stream};
use crate::bucket::{Bucket, Object, Put};
use crate::error::{Error, Result};

/// The largest piece; a message has at most 1 MiB by default.
const PIECE_BYTES_MAX: usize = 1 << 20;

/// Room in a message for its headers.
const HEADER_BYTES: usize = 4 << 10;

/// The random id of a message.
const ID: &str = "Plimsoll-Id";

/// Of an object in pieces: their id, their number and the number of bytes.
const PIECES: &str = "Plimsoll-Pieces";

/// Of a piece: its number, and when the first one was sent, in microseconds since 1970 UTC.
const PIECE: &str = "Plimsoll-Piece";

/// Instead of the number of a piece: a sweep is about to remove the pieces.
const SWEPT: &str = "swept";

/// An object is asked for after this time even if no notification has arrived.
const REST: Duration = Duration::from_secs(2);

/// How often the pieces of an object are asked for that the server lists, but does not return.
const READS: usize = 5;

/// Objects in a stream of NATS JetStream. Many may use one stream, under different prefixes.
#[derive(Clone, Debug)]
pub struct Nats {
    address: Address,
    stream: Arc<Stream>,
    /// Whether a stream that is missing is an empty one, which is yet to be created.
    creates: bool,
}

impl Nats {
    /// The stream and the prefix that a URL such as `nats://a,b,c/stream` names. Credentials are
    /// those of the environment (`NATS_CREDS`, `NATS_USER` and `NATS_PASSWORD`, `NATS_TOKEN`). No
    /// request is made yet.
    ///
    /// Only [`Bucket::check`] and [`Bucket::lock`] create the stream, and only if `creates` is set:
    /// a stream that was deleted is not taken for an empty one.
    ///
    /// # Errors
    /// [`Error::Url`]: the URL lacks something, or contains credentials.
    pub fn open(url: &str, creates: bool) -> Result<Self> {
        let address = Address::parse(url)?;
        let subject = |kind: &str| format!("plimsoll.{}.{kind}", address.stream);
        let connection = Connection::new(address.clone(), subject("w"))
            .map_err(|error| Error::storage("the client of NATS", error))?;
        let stream =
            Stream::new(connection, address.stream.clone(), address.replicas, subject("b"));
        Ok(Self { address, stream: Arc::new(stream), creates })
    }

    /// The subject of an object (`o`) or of its pieces (`p`), or a filter that ends with `last`.
    fn subject(&self, kind: &str, name: &str, last: Option<&str>) -> String {
        let mut subject = format!("plimsoll.{}.{kind}", self.address.stream);
        let parts = self.address.prefix.iter().map(String::as_str).chain(name.split('/'));
        for part in parts.filter(|part| !part.is_empty()) {
            subject.push('.');
            encode(part, &mut subject);
        }
        if let Some(last) = last {
            subject.push('.');
            subject.push_str(last);
        }
        subject
    }

    fn failed(&self, failure: Failure) -> io::Error {
        failure.into_io(&self.address.stream)
    }

    /// `empty` if the stream is missing, and yet to be created.
    fn or_empty<T>(&self, answer: std::result::Result<T, Failure>, empty: T) -> io::Result<T> {
        match answer {
            Err(Failure::NoStream) if self.creates => Ok(empty),
            answer => answer.map_err(|failure| self.failed(failure)),
        }
    }

    fn find(&self, subject: &str) -> std::result::Result<Option<Stored>, Failure> {
        self.stream.known()?;
        for _ in 0..READS {
            match self.stream.next(subject, 1) {
                Err(Failure::NoMessage) => {}
                found => return found.map(Some),
            }
            self.stream.barrier()?;
            if self.stream.count(subject)? == 0 {
                return Ok(None);
            }
            // It has arrived meanwhile.
        }
        let what = "the stream lists this object, but cannot read it; its file may be damaged: \
                    restore the server's copy from the other servers";
        Err(Failure::Refused(io::Error::new(io::ErrorKind::InvalidData, what)))
    }

    /// Stores a message under a name. If `replaces` is not set, the name must be free.
    fn store(
        &self,
        subject: &str,
        header: Option<(&str, &str)>,
        bytes: &[u8],
        replaces: bool,
    ) -> std::result::Result<Put, Failure> {
        let id = format!("{:032x}", entropy().map_err(Failure::Refused)?);
        let mut expected = self.stream.known()?;
        let (mut attempts, mut in_doubt) = (Attempts::new(), false);
        loop {
            let last = expected.to_string();
            let mut headers = vec![(ID, id.as_str()), ("Nats-Expected-Last-Sequence", &last)];
            headers.push(match replaces {
                true => ("Nats-Rollup", "sub"),
                false => ("Nats-Expected-Last-Subject-Sequence", "0"),
            });
            headers.extend(header);
            let failure = match self.stream.publish(subject, &headers, bytes.to_vec()) {
                Ok(sequence) => {
                    self.stream.saw(sequence);
                    if sequence == expected + 1 {
                        return Ok(Put::New);
                    }
                    Failure::WrongLast(None)
                }
                Err(Failure::WrongLast(Some(next))) if next > expected && attempts.has_time() => {
                    // Others have stored messages; a refusal is free of doubt.
                    expected = next;
                    continue;
                }
                Err(failure @ Failure::WrongLast(_)) => failure,
                Err(failure @ Failure::Refused(_)) if !in_doubt => return Err(failure),
                Err(failure) => {
                    in_doubt = true;
                    failure
                }
            };
            match self.stream.next(subject, 1) {
                Ok(found) if found.header(ID) == Some(&id) => return Ok(Put::New),
                Ok(_) if !replaces => return Ok(Put::Exists),
                Ok(_) | Err(Failure::NoMessage) => {}
                Err(Failure::Refused(error)) | Err(Failure::Unanswered(error)) => {
                    return Err(Failure::Unanswered(doubtful(error)));
                }
                Err(failure) => return Err(failure),
            }
            if !attempts.again() {
                return Err(match failure {
                    Failure::Refused(error) | Failure::Unanswered(error) => {
                        Failure::Unanswered(doubtful(error))
                    }
                    failure => failure,
                });
            }
            expected = self.stream.last()?;
        }
    }

    /// Stores an object that begins with `piece` and continues with `bytes`, in pieces.
    fn store_pieces(
        &self,
        name: &str,
        mut piece: Vec<u8>,
        bytes: &mut dyn Read,
        most: usize,
    ) -> io::Result<Put> {
        let id = format!("{:032x}", entropy()?);
        let pieces = self.subject("p", name, Some(&id));
        let begun = SystemClock::new().wall_micros();
        let (mut number, mut total) = (0_u64, 0);
        while !piece.is_empty() {
            total += piece.len() as u64;
            let header = format!("{number} {begun}");
            // If an answer is lost, a piece may be there twice: readers skip the second one.
            let stored = self
                .stream
                .repeat(|| self.stream.publish(&pieces, &[(PIECE, &header)], piece.clone()));
            let sequence = stored.map_err(|failure| self.failed(failure))?;
            self.stream.saw(sequence);
            number += 1;
            piece = read_piece(bytes, most)?;
        }
        let header = format!("{id} {number} {total}");
        let subject = self.subject("o", name, None);
        let put = self.store(&subject, Some((PIECES, &header)), &[], false);
        if put.map_err(|failure| self.failed(failure))? == Put::Exists {
            // If this fails, a sweep removes them.
            let _ = self.stream.purge(&pieces);
            return Ok(Put::Exists);
        }
        let found = self.stream.messages(&pieces).map_err(|failure| self.failed(failure))?;
        if found == number {
            return Ok(Put::New);
        }
        // There are more if a sweep has marked them, or a piece was sent twice.
        self.delete(name)?;
        let what = "pieces of the object were swept while it was written; repeat this";
        Err(io::Error::other(what))
    }

    fn put(&self, name: &str, bytes: &mut dyn Read) -> io::Result<Put> {
        let most = self.piece_bytes()?;
        let piece = read_piece(bytes, most)?;
        // A message of exactly that length may be all, or not.
        if piece.len() < most {
            let put = self.store(&self.subject("o", name, None), None, &piece, false);
            return put.map_err(|failure| self.failed(failure));
        }
        match self.exists(name)? {
            true => Ok(Put::Exists),
            false => self.store_pieces(name, piece, bytes, most),
        }
    }

    /// The bytes of a message of these servers, without its headers.
    fn piece_bytes(&self) -> io::Result<usize> {
        let most = self.stream.connection.client()?.max_payload();
        Ok(most.min(PIECE_BYTES_MAX).saturating_sub(HEADER_BYTES).max(1))
    }
}

impl Bucket for Nats {
    fn put_new(&self, name: &str, bytes: &mut dyn Read) -> io::Result<Put> {
        let put = self.put(name, bytes)?;
        if put == Put::New {
            self.stream.connection.notify(&self.subject("o", name, None));
        }
        Ok(put)
    }

    fn get(&self, name: &str) -> io::Result<Option<Object>> {
        let found = self.or_empty(self.find(&self.subject("o", name, None)), None)?;
        let Some(found) = found else { return Ok(None) };
        let Some((id, count, bytes)) = pieces_of(&found) else {
            let bytes = found.data.len() as u64;
            return Ok(Some(Object { bytes, reader: Box::new(Cursor::new(found.data)) }));
        };
        let reader = PieceReader {
            bucket: self.clone(),
            subject: self.subject("p", name, Some(id)),
            count,
            number: 0,
            sequence: 0,
            piece: Cursor::default(),
        };
        Ok(Some(Object { bytes, reader: Box::new(reader) }))
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let filter = self.subject("o", folder, Some("*"));
        let found = self.or_empty(self.stream.subjects(&filter), Vec::new())?;
        let mut names = Vec::new();
        for subject in found {
            let last = subject.rsplit('.').next().unwrap_or_default();
            names.extend(decode(last).map(|name| format!("{folder}/{name}")));
        }
        names.sort_unstable();
        Ok(names)
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        let found = self.or_empty(self.find(&self.subject("o", name, None)), None)?;
        let Some(found) = found else { return Ok(()) };
        let removed = self.stream.delete(found.sequence).and_then(|()| match pieces_of(&found) {
            Some((id, ..)) => self.stream.purge(&self.subject("p", name, Some(id))),
            None => Ok(()),
        });
        removed.map_err(|failure| self.failed(failure))
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        let count = self.stream.count(&self.subject("o", name, None));
        self.or_empty(count.map(|count| count > 0), false)
    }

    fn wait_for(&self, name: &str, timeout: Duration) -> Option<io::Result<()>> {
        let (clock, hints) = (SystemClock::new(), &self.stream.connection.hints);
        let subject = self.subject("o", name, None);
        let elapsed = || Duration::from_nanos(clock.monotonic_nanos());
        loop {
            let count = hints.count();
            match self.exists(name) {
                Ok(false) => {}
                found => return Some(found.map(drop)),
            }
            let left = timeout.saturating_sub(elapsed());
            if left.is_zero() || hints.wait(count, &subject, left.min(REST)) {
                return Some(Ok(()));
            }
        }
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let subject = self.subject("o", name, None);
        self.store(&subject, None, bytes, true).map(drop).map_err(|failure| self.failed(failure))
    }

    fn sweep(&self, age: Duration) -> io::Result<u64> {
        let pieces = self.subject("p", "", Some(""));
        let found = self.or_empty(self.stream.subjects(&format!("{pieces}>")), Vec::new())?;
        let now = SystemClock::new().wall_micros();
        let mut removed = 0;
        for subject in found {
            let rest = subject.strip_prefix(&pieces).and_then(|rest| rest.rsplit_once('.'));
            let Some((name, id)) = rest else { continue };
            let begun = match self.stream.next(&subject, 1) {
                Ok(piece) => begun_of(&piece),
                Err(Failure::NoMessage) => None,
                Err(failure) => return Err(self.failed(failure)),
            };
            let is_old =
                begun.is_some_and(|begun| u128::from(now.saturating_sub(begun)) >= age.as_micros());
            if !is_old {
                continue;
            }
            let object = self.subject("o", "", Some(name));
            let is_unused = || {
                let found = self.find(&object).map_err(|failure| self.failed(failure))?;
                let used = found.as_ref().and_then(pieces_of);
                Ok::<_, io::Error>(used.is_none_or(|(used, ..)| used != id))
            };
            if !is_unused()? {
                continue;
            }
            let marked = self.stream.publish(&subject, &[(PIECE, SWEPT)], Vec::new());
            self.stream.saw(marked.map_err(|failure| self.failed(failure))?);
            // A writer that stores the name later notices the mark.
            if is_unused()? {
                self.stream.purge(&subject).map_err(|failure| self.failed(failure))?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    fn check(&self) -> io::Result<Option<String>> {
        fitness::check(&self.stream, &self.address, self.creates)
    }

    /// Does not exclude other archivers, because [`Bucket::put_new`] refuses the second one that
    /// writes a manifest. Creates the stream if there is none, and checks that it keeps objects.
    fn lock(&self) -> Result<Option<Box<dyn Send + Sync>>> {
        let what = || self.address.url.clone();
        match self.check() {
            Ok(None) => Ok(None),
            Ok(Some(unfit)) => {
                let source = io::Error::new(io::ErrorKind::Unsupported, unfit);
                Err(Error::Storage { what: what(), source })
            }
            Err(source) => Err(Error::Storage { what: what(), source }),
        }
    }
}

/// Says that a message may be stored.
fn doubtful(error: io::Error) -> io::Error {
    // Not a kind that says that nothing was stored.
    io::Error::new(io::ErrorKind::TimedOut, error.to_string())
}

/// The id, the number and the bytes of the pieces of an object; `None` if it is one message.
fn pieces_of(object: &Stored) -> Option<(&str, u64, u64)> {
    let mut parts = object.header(PIECES)?.split(' ');
    let id = parts.next().filter(|id| id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit()));
    Some((id?, parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn number_of(piece: &Stored) -> Option<u64> {
    piece.header(PIECE)?.split(' ').next()?.parse().ok()
}

fn begun_of(piece: &Stored) -> Option<u64> {
    piece.header(PIECE)?.split(' ').nth(1)?.parse().ok()
}

/// Reads up to a whole piece.
fn read_piece(bytes: &mut dyn Read, most: usize) -> io::Result<Vec<u8>> {
    let mut piece = Vec::new();
    bytes.take(most as u64).read_to_end(&mut piece)?;
    Ok(piece)
}

/// The bytes of an object in pieces, one piece in memory.
struct PieceReader {
    bucket: Nats,
    subject: String,
    count: u64,
    /// The number of the next piece.
    number: u64,
    /// The sequence of the last piece.
    sequence: u64,
    piece: Cursor<Vec<u8>>,
}

impl PieceReader {
    /// The next piece; `None` if it is lost.
    fn next(&mut self) -> std::result::Result<Option<Vec<u8>>, Failure> {
        let stream = &self.bucket.stream;
        let mut reads = 0;
        loop {
            match stream.next(&self.subject, self.sequence + 1) {
                Ok(found) => {
                    self.sequence = found.sequence;
                    match number_of(&found) {
                        Some(number) if number == self.number => return Ok(Some(found.data)),
                        // It was sent twice.
                        Some(number) if number < self.number => {}
                        _ => return Ok(None),
                    }
                }
                // An old leader may not have it yet; otherwise it is lost.
                Err(Failure::NoMessage) if reads < READS => {
                    reads += 1;
                    stream.barrier()?;
                    stream.count(&self.subject)?;
                }
                Err(Failure::NoMessage) => return Ok(None),
                Err(failure) => return Err(failure),
            }
        }
    }
}

impl Read for PieceReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let n = self.piece.read(into)?;
            if n > 0 || into.is_empty() || self.number == self.count {
                return Ok(n);
            }
            let next = self.next();
            match next.map_err(|failure| self.bucket.failed(failure))? {
                Some(piece) => (self.piece, self.number) = (Cursor::new(piece), self.number + 1),
                None => return Ok(0),
            }
        }
    }
}

/// Appends a part of a name to a subject, in which `.`, `*`, `>`, space and controls have meanings.
fn encode(part: &str, subject: &mut String) {
    for byte in part.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => subject.push(byte as char),
            _ => subject.push_str(&format!("%{byte:02X}")),
        }
    }
}

/// The part of a name; `None` if [`encode`] has not made it.
fn decode(token: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::new(), token.bytes());
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_subjects_and_back() {
        let nats = Nats::open("nats://127.0.0.1:1/users/base", true).unwrap();
        let subject = nats.subject("o", "log/00a.idx", None);
        assert_eq!(subject, "plimsoll.users.o.base.log.00a%2Eidx");
        assert_eq!(nats.subject("o", "log", Some("*")), "plimsoll.users.o.base.log.*");
        for part in ["00ff", "a.b-c", "*", ">", "a b", "é%"] {
            let mut token = String::new();
            encode(part, &mut token);
            assert!(!token.contains(['.', '*', '>', ' ']), "{token}");
            assert_eq!(decode(&token).as_deref(), Some(part));
        }
        assert_eq!(decode("%4"), None);
    }

    #[test]
    fn servers_that_cannot_be_reached_are_an_error() {
        let nats = Nats::open("nats://127.0.0.1:1/users", true).unwrap();
        assert!(nats.get("log/1").is_err());
        assert!(nats.put_new("log/1", &mut &b"x"[..]).is_err());
    }
}
