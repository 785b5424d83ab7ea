//! Frames: the unit in which bytes are sent and verified. A message is a sequence of frames.
//!
//! ```text
//! u8    kind: 1 part of a message; 2 the last part of a message; 3 an error, which ends the
//!       message; 4 alive; 5 received
//! u24   0
//! u32   length of the payload, at most 65,536
//! u64   checksum of the payload
//! u64   checksum of the previous 16 bytes; its seed includes the direction and the frame's number
//! ```
//!
//! Frames of each direction are numbered from 0, so that a frame that was lost, repeated or
//! reordered fails its checksum. The head has its own checksum, so that the receiver never waits
//! for a wrong length.

use std::io::{ErrorKind, Read, Write};
use std::sync::{Arc, Mutex};

use plimsoll_disk::checksum::{checksum, seed};
use plimsoll_disk::mutex::lock;

use crate::sync::wire::errors::{decode_error, encode_error};
use crate::types::error::{Error, Result};

/// The longest payload of a frame.
pub(super) const PAYLOAD_BYTES_MAX: usize = 64 << 10;

/// The length of a frame's head.
const HEAD_BYTES: usize = 24;

/// The receiver of a long message reports what it has received after this many bytes.
const REPORT_EVERY: u64 = 512 << 10;

/// The sender of a long message pauses while more than this many bytes are not reported.
const WINDOW_BYTES: u64 = 4 << 20;

/// While a long message is received, at most this many `Alive` frames are sent per
/// [`ALIVE_PER_BYTES`] of it, so that the unread ones fit into the 4 KiB that a transport buffers.
const ALIVE_UNREAD_MAX: u32 = 64;

/// See [`ALIVE_UNREAD_MAX`].
const ALIVE_PER_BYTES: u64 = 2 * WINDOW_BYTES;

const SEED: u64 = 0x7379_6e63_2066_726d;

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Client = 1,
    Server = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Part = 1,
    Last = 2,
    Error = 3,
    /// The sender is working on a request.
    Alive = 4,
    /// The number of bytes of the current message that the sender of this frame has received: u64.
    Received = 5,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        let all = [Self::Part, Self::Last, Self::Error, Self::Alive, Self::Received];
        all.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// The head of frame `number`.
fn head(role: Role, number: u64, kind: u8, payload: &[u8]) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[0] = kind;
    let len = u32::try_from(payload.len()).expect("a payload is short");
    head[4..8].copy_from_slice(&len.to_le_bytes());
    head[8..16].copy_from_slice(&checksum(SEED, payload).to_le_bytes());
    let sum = sum_of_head(role, number, &head[..16]);
    head[16..].copy_from_slice(&sum.to_le_bytes());
    head
}

fn sum_of_head(role: Role, number: u64, fields: &[u8]) -> u64 {
    checksum(seed(&[SEED, role as u64, number]), fields)
}

/// The error for bytes that violate the protocol.
pub(super) fn not_protocol(what: &str) -> Error {
    violated(what, "use the same version of Plimsoll on both sides, and try again")
}

/// The error for bytes that were changed in transit.
fn changed_in_transit(what: &str) -> Error {
    violated(what, "try again")
}

fn violated(what: &str, remedy: &str) -> Error {
    Error::Remote {
        message: format!("the other side violated the sync protocol: {what}; {remedy}"),
    }
}

/// The error for a connection that ended.
pub(super) fn ended() -> Error {
    Error::Remote {
        message: "the connection to the other store ended before the transfer did; try again"
            .to_owned(),
    }
}

fn of_io(error: std::io::Error) -> Error {
    match error.kind() {
        ErrorKind::UnexpectedEof
        | ErrorKind::BrokenPipe
        | ErrorKind::ConnectionReset
        | ErrorKind::ConnectionAborted => ended(),
        _ => {
            Error::Remote { message: format!("the connection to the other store failed: {error}") }
        }
    }
}

/// The sending side of a stream. The thread that sends `Alive` frames shares it.
pub(super) struct Sender {
    writer: Box<dyn Write + Send>,
    role: Role,
    number: u64,
    /// How many more `Alive` frames may be sent; `None`: any number. Limited while the other side
    /// sends a long message: it might not be reading then, and a write that waits for it would stop
    /// the transfer.
    alive_left: Option<u32>,
}

impl Sender {
    pub(super) fn new(writer: Box<dyn Write + Send>, role: Role) -> Self {
        Self { writer, role, number: 0, alive_left: None }
    }

    /// Sends bytes outside of frames.
    pub(super) fn raw(&mut self, bytes: &[u8]) -> Result<()> {
        self.writer.write_all(bytes).and_then(|()| self.writer.flush()).map_err(of_io)
    }

    fn frame(&mut self, kind: Kind, payload: &[u8]) -> Result<()> {
        let head = head(self.role, self.number, kind as u8, payload);
        self.number += 1;
        self.writer.write_all(&head).and_then(|()| self.writer.write_all(payload)).map_err(of_io)
    }

    fn flush(&mut self) -> Result<()> {
        self.writer.flush().map_err(of_io)
    }

    /// Sends an `Alive` frame, unless the other side may have too many of them to read.
    pub(super) fn alive(&mut self) -> Result<()> {
        if let Some(left) = &mut self.alive_left {
            let Some(fewer) = left.checked_sub(1) else { return Ok(()) };
            *left = fewer;
        }
        self.frame(Kind::Alive, &[])?;
        self.flush()
    }

    /// The number of frames that were sent.
    pub(super) fn sent(&self) -> u64 {
        self.number
    }
}

/// A destination of the bytes of a message.
pub(super) trait Put {
    fn put(&mut self, bytes: &[u8]) -> Result<()>;
}

/// Sends messages.
pub(super) struct Output {
    sender: Arc<Mutex<Sender>>,
    buffer: Vec<u8>,
    /// The bytes of the current message that are in sent frames.
    sent: u64,
    /// Whether a frame could not be sent.
    has_failed: bool,
}

impl Output {
    pub(super) fn new(sender: Arc<Mutex<Sender>>) -> Self {
        let buffer = Vec::with_capacity(PAYLOAD_BYTES_MAX);
        Self { sender, buffer, sent: 0, has_failed: false }
    }

    fn frame(&mut self, kind: Kind) -> Result<()> {
        let mut sender = lock(&self.sender);
        let mut sent = sender.frame(kind, &self.buffer);
        if kind != Kind::Part {
            sent = sent.and_then(|()| sender.flush());
        }
        self.has_failed |= sent.is_err();
        sent?;
        self.sent += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        lock(&self.sender).flush()
    }

    /// Ends the message.
    pub(super) fn end(&mut self) -> Result<()> {
        self.frame(Kind::Last)?;
        self.sent = 0;
        Ok(())
    }

    /// Ends the message with an error, and discards the bytes that are not sent yet.
    pub(super) fn fail(&mut self, error: &Error) -> Result<()> {
        self.buffer.clear();
        encode_error(error, &mut self.buffer);
        self.buffer.truncate(PAYLOAD_BYTES_MAX);
        self.frame(Kind::Error)?;
        self.sent = 0;
        Ok(())
    }

    /// Drops the part of a message that is not sent yet. Returns whether nothing of it was sent.
    pub(super) fn take_back(&mut self) -> bool {
        self.buffer.clear();
        self.sent == 0 && !self.has_failed
    }
}

impl Put for Output {
    fn put(&mut self, mut bytes: &[u8]) -> Result<()> {
        while self.buffer.len() + bytes.len() > PAYLOAD_BYTES_MAX {
            let (now, later) = bytes.split_at(PAYLOAD_BYTES_MAX - self.buffer.len());
            self.buffer.extend_from_slice(now);
            self.frame(Kind::Part)?;
            bytes = later;
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }
}

/// Sends a long message whose receiver reports what it has received, and may answer with an error
/// before the end.
pub(super) struct Windowed<'a> {
    output: &'a mut Output,
    input: &'a mut Input,
}

impl<'a> Windowed<'a> {
    pub(super) fn new(output: &'a mut Output, input: &'a mut Input) -> Self {
        input.reported = 0;
        Self { output, input }
    }
}

impl Put for Windowed<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        for piece in bytes.chunks(PAYLOAD_BYTES_MAX) {
            self.output.put(piece)?;
            while self.output.sent.saturating_sub(self.input.reported) > WINDOW_BYTES {
                self.output.flush()?;
                self.input.read_report()?;
            }
        }
        Ok(())
    }
}

/// Receives messages.
pub(super) struct Input {
    reader: Box<dyn Read + Send>,
    /// The role of the other side.
    role: Role,
    number: u64,
    buffer: Vec<u8>,
    /// The position in `buffer` of the first byte that was not taken.
    at: usize,
    /// Whether the current message continues after `buffer`.
    has_more: bool,
    /// The bytes that the other side reported as received.
    reported: u64,
    /// If set, reports are sent here: the sender, the bytes of the message that were received, and
    /// their number at the last report.
    reporter: Option<(Arc<Mutex<Sender>>, u64, u64)>,
    /// Whether a frame could not be received.
    has_failed: bool,
}

impl Input {
    pub(super) fn new(reader: Box<dyn Read + Send>, role: Role) -> Self {
        Self {
            reader,
            role,
            number: 0,
            buffer: Vec::with_capacity(PAYLOAD_BYTES_MAX),
            at: 0,
            has_more: false,
            reported: 0,
            reporter: None,
            has_failed: false,
        }
    }

    /// Receives bytes outside of frames. Returns their number, which is less than the length of
    /// `bytes` only at the end of the stream.
    pub(super) fn raw(&mut self, bytes: &mut [u8]) -> Result<usize> {
        let mut got = 0;
        while got < bytes.len() {
            match self.reader.read(&mut bytes[got..]) {
                Ok(0) => break,
                Ok(more) => got += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(of_io(error)),
            }
        }
        Ok(got)
    }

    /// Receives a frame into the buffer; `None` at the end of the stream.
    fn frame(&mut self) -> Result<Option<Kind>> {
        let taken = self.take_frame();
        self.has_failed |= !matches!(taken, Ok(Some(_)));
        taken
    }

    fn take_frame(&mut self) -> Result<Option<Kind>> {
        let mut head = [0; HEAD_BYTES];
        match self.raw(&mut head)? {
            0 => return Ok(None),
            HEAD_BYTES => {}
            _ => return Err(ended()),
        }
        let (fields, sum) = head.split_at(16);
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let is_whole = number(sum) == sum_of_head(self.role, self.number, fields);
        let len = u32::from_le_bytes(fields[4..8].try_into().expect("four bytes")) as usize;
        let kind =
            Kind::of(fields[0]).filter(|_| len <= PAYLOAD_BYTES_MAX && fields[1..4] == [0; 3]);
        let Some(kind) = kind.filter(|_| is_whole) else {
            return Err(changed_in_transit(&format!(
                "the header of frame {} is invalid (\"{}\"): bytes were changed, lost or repeated \
                 in transit, or another program sent them",
                self.number,
                head.escape_ascii()
            )));
        };
        self.at = 0;
        self.buffer.clear();
        self.buffer.resize(len, 0);
        let mut buffer = std::mem::take(&mut self.buffer);
        let got = self.raw(&mut buffer);
        self.buffer = buffer;
        if got? < len {
            return Err(ended());
        }
        if checksum(SEED, &self.buffer) != number(&fields[8..]) {
            return Err(changed_in_transit(&format!(
                "the checksum of frame {} does not match: bytes were changed in transit",
                self.number
            )));
        }
        self.number += 1;
        Ok(Some(kind))
    }

    /// Receives the next part of a message; `false` at the end of the stream.
    ///
    /// # Errors
    /// The error that the other side sent; [`Error::Remote`].
    fn part(&mut self) -> Result<bool> {
        loop {
            let Some(kind) = self.frame()? else { return Ok(false) };
            match kind {
                Kind::Part => self.has_more = true,
                Kind::Last => self.has_more = false,
                Kind::Error => {
                    self.has_more = false;
                    return Err(self.take_error());
                }
                Kind::Alive => continue,
                Kind::Received => {
                    self.take_report()?;
                    continue;
                }
            }
            self.report()?;
            return Ok(true);
        }
    }

    fn take_error(&mut self) -> Error {
        let error = decode_error(&self.buffer);
        self.buffer.clear();
        error.unwrap_or_else(|| not_protocol("it sent an error of an unknown kind"))
    }

    fn take_report(&mut self) -> Result<()> {
        let report = self.buffer.as_slice().try_into().map(u64::from_le_bytes);
        self.reported =
            report.map_err(|_| not_protocol("its progress report has the wrong length"))?;
        self.buffer.clear();
        Ok(())
    }

    /// Receives a report about the message that is being sent.
    ///
    /// # Errors
    /// As for [`Input::part`].
    fn read_report(&mut self) -> Result<()> {
        match self.frame()? {
            None => Err(ended()),
            Some(Kind::Received) => self.take_report(),
            Some(Kind::Alive) => Ok(()),
            Some(Kind::Error) => Err(self.take_error()),
            Some(Kind::Part | Kind::Last) => {
                Err(not_protocol("it answered before the message was complete"))
            }
        }
    }

    /// From now on, reports the received bytes of the current message to `sender`; with `None`,
    /// reports nothing.
    pub(super) fn report_to(&mut self, sender: Option<Arc<Mutex<Sender>>>) {
        let before = self.reporter.take();
        if let Some((sender, ..)) = before {
            lock(&sender).alive_left = None;
        }
        if let Some(sender) = sender {
            lock(&sender).alive_left = Some(ALIVE_UNREAD_MAX);
            self.reporter = Some((sender, 0, 0));
        }
    }

    fn report(&mut self) -> Result<()> {
        let Some((sender, received, last)) = &mut self.reporter else { return Ok(()) };
        *received += self.buffer.len() as u64;
        if *received - *last >= REPORT_EVERY {
            let mut sender = lock(sender);
            // The other side has read what was sent two windows ago, so more may be sent.
            if *received / ALIVE_PER_BYTES != *last / ALIVE_PER_BYTES {
                sender.alive_left = Some(ALIVE_UNREAD_MAX);
            }
            *last = *received;
            sender.frame(Kind::Received, &received.to_le_bytes())?;
            sender.flush()?;
        }
        Ok(())
    }

    /// Receives the beginning of a message; `false` at the end of the stream.
    ///
    /// # Errors
    /// As for [`Input::part`].
    pub(super) fn begin(&mut self) -> Result<bool> {
        self.part()
    }

    /// Receives the beginning of an answer.
    ///
    /// # Errors
    /// As for [`Input::part`], also at the end of the stream.
    pub(super) fn begin_answer(&mut self) -> Result<()> {
        if self.begin()? { Ok(()) } else { Err(ended()) }
    }

    /// Receives the next bytes of the message.
    ///
    /// # Errors
    /// As for [`Input::part`], and if the message has fewer bytes.
    pub(super) fn take(&mut self, mut bytes: &mut [u8]) -> Result<()> {
        while !bytes.is_empty() {
            let here = (self.buffer.len() - self.at).min(bytes.len());
            if here == 0 {
                self.next_part()?;
                continue;
            }
            let (now, later) = bytes.split_at_mut(here);
            now.copy_from_slice(&self.buffer[self.at..self.at + here]);
            self.at += here;
            bytes = later;
        }
        Ok(())
    }

    fn next_part(&mut self) -> Result<()> {
        if !self.has_more {
            return Err(not_protocol("its message ends too early"));
        }
        if self.part()? { Ok(()) } else { Err(ended()) }
    }

    /// Checks that the message has no more bytes.
    ///
    /// # Errors
    /// As for [`Input::part`], and if it has more bytes.
    pub(super) fn end(&mut self) -> Result<()> {
        while self.at == self.buffer.len() && self.has_more {
            self.next_part()?;
        }
        match self.at == self.buffer.len() {
            true => Ok(()),
            false => Err(not_protocol("its message has extra bytes")),
        }
    }

    /// Receives the rest of the message, and drops it.
    ///
    /// # Errors
    /// As for [`Input::part`].
    pub(super) fn skip_rest(&mut self) -> Result<()> {
        while self.has_more {
            self.next_part()?;
        }
        self.at = self.buffer.len();
        Ok(())
    }

    /// The error that the other side sent before it ended the connection, if there is one.
    pub(super) fn last_words(&mut self) -> Option<Error> {
        loop {
            match self.frame() {
                Ok(Some(Kind::Error)) => return decode_error(&self.buffer),
                Ok(Some(Kind::Alive | Kind::Received)) => {}
                Ok(_) | Err(_) => return None,
            }
        }
    }

    /// Whether no message is received in part.
    pub(super) fn is_between_messages(&self) -> bool {
        !self.has_failed && !self.has_more && self.at == self.buffer.len()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn input(bytes: Vec<u8>) -> Input {
        Input::new(Box::new(Cursor::new(bytes)), Role::Client)
    }

    fn frame(number: u64, kind: Kind, payload: &[u8]) -> Vec<u8> {
        [&head(Role::Client, number, kind as u8, payload), payload].concat()
    }

    #[track_caller]
    fn refused(bytes: Vec<u8>, part: &str) {
        let error = input(bytes).begin().unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }

    /// A transport whose other side does not read: it counts the bytes.
    #[derive(Clone, Default)]
    struct Unread(Arc<Mutex<usize>>);

    impl Write for Unread {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            *lock(&self.0) += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn alive_frames_fit_into_the_transport_while_a_message_is_received() {
        let unread = Unread::default();
        let sender = Sender::new(Box::new(unread.clone()), Role::Server);
        let sender = Arc::new(Mutex::new(sender));
        let mut input = input(Vec::new());
        input.report_to(Some(Arc::clone(&sender)));
        input.buffer = vec![0; PAYLOAD_BYTES_MAX];
        // The client reads nothing until a window is full.
        for _ in 0..WINDOW_BYTES / PAYLOAD_BYTES_MAX as u64 {
            (0..100).for_each(|_| lock(&sender).alive().unwrap());
            input.report().unwrap();
        }
        assert!(*lock(&unread.0) < 4096, "{}", *lock(&unread.0));
        let before = *lock(&unread.0);
        for _ in 0..2 * WINDOW_BYTES / PAYLOAD_BYTES_MAX as u64 {
            input.report().unwrap();
        }
        lock(&sender).alive().unwrap();
        assert!(*lock(&unread.0) > before, "later ones are sent");
        input.report_to(None);
        let before = *lock(&unread.0);
        (0..1000).for_each(|_| lock(&sender).alive().unwrap());
        assert_eq!(*lock(&unread.0) - before, 1000 * HEAD_BYTES);
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_it_is_allocated() {
        let mut bytes = frame(0, Kind::Last, b"");
        for len in [PAYLOAD_BYTES_MAX as u32 + 1, u32::MAX] {
            bytes[4..8].copy_from_slice(&len.to_le_bytes());
            let sum = sum_of_head(Role::Client, 0, &bytes[..16]);
            bytes[16..24].copy_from_slice(&sum.to_le_bytes());
            refused(bytes.clone(), "the header of frame 0 is invalid");
        }
    }

    #[test]
    fn frames_are_accepted_only_in_their_place() {
        let (first, last) = (frame(0, Kind::Part, b"ab"), frame(1, Kind::Last, b"c"));
        let mut good = input([&first[..], &last].concat());
        assert_eq!(good.begin(), Ok(true));
        let mut bytes = [0; 3];
        good.take(&mut bytes).unwrap();
        assert_eq!(&bytes, b"abc");
        good.end().unwrap();
        assert!(good.is_between_messages());
        assert_eq!(good.begin(), Ok(false));

        let twice = [&first[..], &first, &last].concat();
        let mut twice = input(twice);
        twice.begin().unwrap();
        assert!(twice.skip_rest().is_err() && !twice.is_between_messages());
        refused(last, "the header of frame 0 is invalid");
        refused(frame(0, Kind::Last, b"x").into_iter().chain([1]).skip(1).collect(), "frame 0");
        let mut other_side = Input::new(Box::new(Cursor::new(first.clone())), Role::Server);
        assert!(other_side.begin().is_err(), "it was sent back");
        for at in 0..first.len() {
            let mut changed = first.clone();
            changed[at] ^= 1;
            assert!(input(changed).begin().is_err(), "{at}");
            let cut = input(first[..at].to_vec()).begin();
            assert!(if at == 0 { cut == Ok(false) } else { cut == Err(ended()) }, "{at}");
        }
    }

    #[test]
    fn a_message_has_the_bytes_that_are_taken_from_it() {
        let message = || input(frame(0, Kind::Last, b"abc"));
        let mut short = message();
        short.begin().unwrap();
        assert!(short.take(&mut [0; 4]).unwrap_err().to_string().contains("too early"));
        let mut long = message();
        long.begin().unwrap();
        long.take(&mut [0; 2]).unwrap();
        assert!(long.end().unwrap_err().to_string().contains("extra bytes"));
        let mut unknown = input(frame(0, Kind::Error, &[250]));
        assert!(unknown.begin().unwrap_err().to_string().contains("an error of an unknown kind"));
    }
}
