//! The records of a dump: `docs/reference/dump.md` specifies every byte.
//!
//! ```text
//! bytes   "PLIMDUMP"
//! records: u32 length of the payload, u8 kind, payload, u64 checksum
//! ```
//!
//! Invariant: the checksum of a record covers all bytes before it, so a stream that is cut, damaged
//! or put together from parts of others is recognised at the first record that is not as it was
//! written. The last record marks the end.

use plimsoll_disk::codec::{self, push_bytes, push_varint};
use plimsoll_log::glsn::Glsn;

use crate::types::error::{Error, Result};
use crate::types::expiry::Expiry;
use crate::types::keyspaces::{DROPPED, dropped_name};

/// The first bytes of a dump.
pub(super) const MAGIC: &[u8; 8] = b"PLIMDUMP";

/// The version of the format.
const VERSION: u16 = 2;

/// Feature bits that this version knows. A reader refuses a dump with others.
const KNOWN_FEATURES: u64 = 0;

/// The most bytes of a value in one record.
pub(crate) const PIECE_BYTES: usize = 64 << 10;

/// Maximum size of a payload: a piece of a value with its key, the metadata of a commit, or the
/// limits of all keyspaces.
pub(super) const PAYLOAD_BYTES_MAX: usize = 4 << 20;

/// The content of a dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// The newest value of each key.
    Newest,
    /// Every commit that the log holds.
    History,
}

/// The first record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) content: Content,
    /// The id of the store.
    pub(crate) store: u128,
    /// Random: the id of this dump.
    pub(crate) dump: u128,
    /// The first log entry in the dump; without history, the one after the dumped moment.
    pub(crate) first: Glsn,
    /// The moment of the dump.
    pub(crate) last: Glsn,
    /// The latest time of an entry before `first`, in microseconds; 0 if there is none.
    pub(crate) floor_micros: u64,
    /// The name of the only keyspace that is in the dump; empty if all are.
    pub(crate) keyspace: String,
}

/// One change of a key, or of a record of the store itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change<'a> {
    Delete {
        space: u32,
        key: &'a [u8],
    },
    /// `piece` is the beginning of the value; the rest follows in records of kind
    /// [`Record::Piece`].
    Put {
        space: u32,
        key: &'a [u8],
        expiry: Option<Expiry>,
        len: u64,
        piece: &'a [u8],
    },
    /// The deletion of all keys from `first` up to `end`; `None`: of all that follow.
    DeleteRange {
        space: u32,
        first: &'a [u8],
        end: Option<&'a [u8]>,
    },
    /// A record of the system keyspace, or its deletion.
    System {
        key: SystemKey<'a>,
        value: Option<&'a [u8]>,
    },
    /// The next GLSN of a cursor, or the drop of the cursor.
    Cursor {
        name: &'a [u8],
        next: Option<&'a [u8]>,
    },
    /// The record of a tag, or the deletion of the tag.
    Tag {
        name: &'a [u8],
        record: Option<&'a [u8]>,
    },
    /// The record of a branch, or its deletion.
    Branch {
        key: &'a [u8],
        record: Option<&'a [u8]>,
    },
}

/// A key of the system keyspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SystemKey<'a> {
    /// A keyspace's name.
    Live(&'a [u8]),
    /// The id and the name of a dropped keyspace.
    Dropped(u32, &'a [u8]),
    /// A mark of the store: the key as it is.
    Mark(&'a [u8]),
}

/// One record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record<'a> {
    /// A keyspace, and its settings as its record has them.
    Keyspace { name: &'a [u8], settings: &'a [u8] },
    /// The limits on the moments at which the versions that follow can be read.
    Limits(&'a [u8]),
    /// A version that is older than the first commit.
    Version { glsn: Glsn, change: Change<'a> },
    /// The end of the versions that are older than the first commit, and their number.
    VersionsEnd { versions: u64 },
    /// The beginning of a commit.
    Commit { glsn: Glsn, micros: u64, read_at: Glsn, metadata: &'a [u8] },
    /// A change of the commit, or a row.
    Change(Change<'a>),
    /// The next bytes of a value or of an entry.
    Piece(&'a [u8]),
    /// The end of the commit, and the number of its changes.
    CommitEnd { changes: u64 },
    /// The beginning of entries of a stream that were appended together.
    Entries { first: Glsn, count: u64, micros: u64, stream: u32 },
    /// One of these entries; `piece` is the beginning of its payload.
    Entry { len: u64, piece: &'a [u8] },
    /// Entries that are lost in the store itself.
    Lost { first: Glsn, count: u64, micros: u64 },
    /// Entries that a dump of one keyspace leaves out: commits of other keyspaces, and the user's
    /// own streams.
    Empty { first: Glsn, count: u64, micros: u64 },
    /// The end: the numbers of records before it, and of changes in them.
    End { records: u64, changes: u64 },
}

pub(super) const HEADER: u8 = 1;
const KEYSPACE: u8 = 2;
const LIMITS: u8 = 3;
const OLD_VERSION: u8 = 4;
const COMMIT: u8 = 5;
const CHANGE: u8 = 6;
const PIECE: u8 = 7;
const COMMIT_END: u8 = 8;
const ENTRIES: u8 = 9;
const ENTRY: u8 = 10;
const LOST: u8 = 11;
const EMPTY: u8 = 12;
const VERSIONS_END: u8 = 13;
pub(super) const END: u8 = 255;

const DELETE: u8 = 0;
const PUT: u8 = 1;
const DELETE_RANGE: u8 = 2;
const PUT_EXPIRING: u8 = 3;
// 4 to 15 are reserved for further changes of keys, such as a merge.
const SYSTEM_LIVE: u8 = 16;
const SYSTEM_DROPPED: u8 = 17;
const SYSTEM_MARK: u8 = 18;
const CURSOR: u8 = 19;
const TAG: u8 = 20;
const BRANCH: u8 = 21;

impl<'a> SystemKey<'a> {
    /// The meaning of a key of the system keyspace.
    pub(crate) fn of(key: &'a [u8]) -> Self {
        let id = || key.get(1..5).and_then(|id| id.try_into().ok()).map(u32::from_be_bytes);
        match (dropped_name(key), id()) {
            (Some(name), Some(id)) => Self::Dropped(id, name),
            // A name has no control characters.
            _ if key.first().is_some_and(|byte| *byte < b' ') => Self::Mark(key),
            _ => Self::Live(key),
        }
    }

    /// The key of the system keyspace.
    pub(crate) fn key(&self) -> Vec<u8> {
        match self {
            Self::Live(name) => name.to_vec(),
            Self::Dropped(id, name) => [&[DROPPED], &id.to_be_bytes()[..], name].concat(),
            Self::Mark(key) => key.to_vec(),
        }
    }
}

impl<'a> Change<'a> {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let optional = |out: &mut Vec<u8>, value: &Option<&[u8]>| {
            out.push(u8::from(value.is_some()));
            push_bytes(out, value.unwrap_or_default());
        };
        match self {
            Self::Delete { space, key } => {
                out.push(DELETE);
                push_varint(out, u64::from(*space));
                push_bytes(out, key);
            }
            Self::Put { space, key, expiry, len, piece } => {
                out.push(if expiry.is_some() { PUT_EXPIRING } else { PUT });
                push_varint(out, u64::from(*space));
                push_bytes(out, key);
                expiry.iter().for_each(|expiry| push_varint(out, expiry.micros()));
                push_varint(out, *len);
                push_bytes(out, piece);
            }
            Self::DeleteRange { space, first, end } => {
                out.push(DELETE_RANGE);
                push_varint(out, u64::from(*space));
                push_bytes(out, first);
                optional(out, end);
            }
            Self::System { key, value } => {
                match key {
                    SystemKey::Live(name) => {
                        out.push(SYSTEM_LIVE);
                        push_bytes(out, name);
                    }
                    SystemKey::Dropped(id, name) => {
                        out.push(SYSTEM_DROPPED);
                        push_varint(out, u64::from(*id));
                        push_bytes(out, name);
                    }
                    SystemKey::Mark(key) => {
                        out.push(SYSTEM_MARK);
                        push_bytes(out, key);
                    }
                }
                optional(out, value);
            }
            Self::Cursor { name, next } => {
                out.push(CURSOR);
                push_bytes(out, name);
                optional(out, next);
            }
            Self::Tag { name, record } => {
                out.push(TAG);
                push_bytes(out, name);
                optional(out, record);
            }
            Self::Branch { key, record } => {
                out.push(BRANCH);
                push_bytes(out, key);
                optional(out, record);
            }
        }
    }

    pub(super) fn decode(from: &mut codec::Reader<'a>) -> Result<Self> {
        let kind = from.u8().ok_or_else(malformed)?;
        if !matches!(kind, DELETE..=PUT_EXPIRING | SYSTEM_LIVE..=BRANCH) {
            return Err(Error::format(format!(
                "the dump holds a change of kind {kind} that this version does not know; use a \
                 newer Plimsoll"
            )));
        }
        Self::decode_as(kind, from).ok_or_else(malformed)
    }

    fn decode_as(kind: u8, from: &mut codec::Reader<'a>) -> Option<Self> {
        let optional = |from: &mut codec::Reader<'a>| {
            let is_there = from.u8()?;
            let value = from.bytes()?;
            match is_there {
                0 if value.is_empty() => Some(None),
                1 => Some(Some(value)),
                _ => None,
            }
        };
        let number = |from: &mut codec::Reader<'a>| u32::try_from(from.varint()?).ok();
        Some(match kind {
            DELETE => Self::Delete { space: number(from)?, key: from.bytes()? },
            PUT | PUT_EXPIRING => {
                let (space, key) = (number(from)?, from.bytes()?);
                let expiry = match kind {
                    PUT_EXPIRING => Some(Expiry::from_micros(from.varint()?)?),
                    _ => None,
                };
                let (len, piece) = (from.varint()?, from.bytes()?);
                if piece.len() as u64 != len.min(PIECE_BYTES as u64) {
                    return None;
                }
                Self::Put { space, key, expiry, len, piece }
            }
            DELETE_RANGE => {
                let (space, first) = (number(from)?, from.bytes()?);
                Self::DeleteRange { space, first, end: optional(from)? }
            }
            SYSTEM_LIVE => {
                Self::System { key: SystemKey::Live(from.bytes()?), value: optional(from)? }
            }
            SYSTEM_DROPPED => {
                let key = SystemKey::Dropped(number(from)?, from.bytes()?);
                Self::System { key, value: optional(from)? }
            }
            SYSTEM_MARK => {
                Self::System { key: SystemKey::Mark(from.bytes()?), value: optional(from)? }
            }
            CURSOR => Self::Cursor { name: from.bytes()?, next: optional(from)? },
            TAG => Self::Tag { name: from.bytes()?, record: optional(from)? },
            BRANCH => Self::Branch { key: from.bytes()?, record: optional(from)? },
            _ => return None,
        })
    }
}

impl<'a> Record<'a> {
    pub(super) fn kind(&self) -> u8 {
        match self {
            Self::Keyspace { .. } => KEYSPACE,
            Self::Limits(_) => LIMITS,
            Self::Version { .. } => OLD_VERSION,
            Self::VersionsEnd { .. } => VERSIONS_END,
            Self::Commit { .. } => COMMIT,
            Self::Change(_) => CHANGE,
            Self::Piece(_) => PIECE,
            Self::CommitEnd { .. } => COMMIT_END,
            Self::Entries { .. } => ENTRIES,
            Self::Entry { .. } => ENTRY,
            Self::Lost { .. } => LOST,
            Self::Empty { .. } => EMPTY,
            Self::End { .. } => END,
        }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let numbers = |out: &mut Vec<u8>, numbers: &[u64]| {
            numbers.iter().for_each(|number| push_varint(out, *number));
        };
        match self {
            Self::Keyspace { name, settings } => {
                push_bytes(out, name);
                push_bytes(out, settings);
            }
            Self::Limits(bytes) | Self::Piece(bytes) => out.extend_from_slice(bytes),
            Self::Version { glsn, change } => {
                push_varint(out, glsn.0);
                change.encode(out);
            }
            Self::Commit { glsn, micros, read_at, metadata } => {
                numbers(out, &[glsn.0, *micros, read_at.0]);
                push_bytes(out, metadata);
            }
            Self::Change(change) => change.encode(out),
            Self::CommitEnd { changes: number } | Self::VersionsEnd { versions: number } => {
                push_varint(out, *number);
            }
            Self::Entries { first, count, micros, stream } => {
                numbers(out, &[first.0, *count, *micros, u64::from(*stream)]);
            }
            Self::Entry { len, piece } => {
                push_varint(out, *len);
                push_bytes(out, piece);
            }
            Self::Lost { first, count, micros } | Self::Empty { first, count, micros } => {
                numbers(out, &[first.0, *count, *micros]);
            }
            Self::End { records, changes } => numbers(out, &[*records, *changes]),
        }
    }

    pub(super) fn decode(kind: u8, payload: &'a [u8]) -> Result<Self> {
        let mut from = codec::Reader::new(payload);
        let record = match kind {
            OLD_VERSION => {
                let glsn = Glsn(from.varint().ok_or_else(malformed)?);
                Self::Version { glsn, change: Change::decode(&mut from)? }
            }
            CHANGE => Self::Change(Change::decode(&mut from)?),
            LIMITS => return Ok(Self::Limits(payload)),
            PIECE => return Ok(Self::Piece(payload)),
            KEYSPACE | COMMIT | COMMIT_END..=VERSIONS_END | END => {
                Self::decode_numbers(kind, &mut from).ok_or_else(malformed)?
            }
            _ => {
                return Err(Error::format(format!(
                    "the dump holds a record of kind {kind} that this version does not know; use \
                     a newer Plimsoll"
                )));
            }
        };
        if from.remaining() == 0 { Ok(record) } else { Err(malformed()) }
    }

    fn decode_numbers(kind: u8, from: &mut codec::Reader<'a>) -> Option<Self> {
        Some(match kind {
            KEYSPACE => Self::Keyspace { name: from.bytes()?, settings: from.bytes()? },
            COMMIT => {
                let (glsn, micros) = (Glsn(from.varint()?), from.varint()?);
                let (read_at, metadata) = (Glsn(from.varint()?), from.bytes()?);
                Self::Commit { glsn, micros, read_at, metadata }
            }
            COMMIT_END => Self::CommitEnd { changes: from.varint()? },
            VERSIONS_END => Self::VersionsEnd { versions: from.varint()? },
            ENTRIES => {
                let (first, count) = (Glsn(from.varint()?), from.varint()?);
                let (micros, stream) = (from.varint()?, from.varint()?.try_into().ok()?);
                Self::Entries { first, count, micros, stream }
            }
            ENTRY => {
                let (len, piece) = (from.varint()?, from.bytes()?);
                if piece.len() as u64 != len.min(PIECE_BYTES as u64) {
                    return None;
                }
                Self::Entry { len, piece }
            }
            LOST | EMPTY => {
                let (first, count) = (Glsn(from.varint()?), from.varint()?);
                let micros = from.varint()?;
                match kind {
                    LOST => Self::Lost { first, count, micros },
                    _ => Self::Empty { first, count, micros },
                }
            }
            END => Self::End { records: from.varint()?, changes: from.varint()? },
            _ => return None,
        })
    }
}

impl Header {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&0u64.to_le_bytes());
        out.push(match self.content {
            Content::Newest => 0,
            Content::History => 1,
        });
        out.extend_from_slice(&self.store.to_le_bytes());
        out.extend_from_slice(&self.dump.to_le_bytes());
        [self.first.0, self.last.0, self.floor_micros]
            .iter()
            .for_each(|number| push_varint(out, *number));
        push_bytes(out, self.keyspace.as_bytes());
    }

    pub(super) fn decode(payload: &[u8]) -> Result<Self> {
        let mut from = codec::Reader::new(payload);
        let version = from.u16().ok_or_else(malformed)?;
        let features = from.u64().ok_or_else(malformed)?;
        if !(1..=VERSION).contains(&version) || features & !KNOWN_FEATURES != 0 {
            return Err(Error::format(format!(
                "the dump is of format {version} with features {features:#x}; this version reads \
                 formats 1 to {VERSION}: use a newer Plimsoll"
            )));
        }
        let mut rest = || {
            let content = match from.u8()? {
                0 => Content::Newest,
                1 => Content::History,
                _ => return None,
            };
            let (store, dump) = (from.u128()?, from.u128()?);
            let (first, last) = (Glsn(from.varint()?), Glsn(from.varint()?));
            let floor_micros = from.varint()?;
            let keyspace = String::from_utf8(from.bytes()?.to_vec()).ok()?;
            let is_end = from.remaining() == 0 && first > Glsn::NONE && first <= last.next();
            is_end.then_some(Self { content, store, dump, first, last, floor_micros, keyspace })
        };
        rest().ok_or_else(malformed)
    }
}

pub(super) fn malformed() -> Error {
    Error::corrupt(
        "a record of the dump cannot be decoded although its checksum is right; take another dump",
    )
}

/// The error for a dump that is damaged `at` bytes from its beginning.
pub(super) fn damaged(at: u64, what: &str) -> Error {
    Error::corrupt(format!("the dump is damaged at offset {at}: {what}; take another dump"))
}

pub(super) fn cut_short(at: u64) -> Error {
    Error::corrupt(format!(
        "the dump is truncated at offset {at}; copy it again, or take another dump"
    ))
}
