//! The items of messages: integers, texts, ids and lists.

use plimsoll_disk::codec::push_varint;
use plimsoll_memory::budget::Lease;

use crate::sync::commit_id::CommitId;
use crate::sync::peer::{HAVES_MAX, Haves, Line, LineEnd};
use crate::sync::wire::frames::{Input, Put, not_protocol};
use crate::types::error::{Error, Result};
use crate::types::keyspaces::{FIRST_ID, KeyspaceInfo, MAX_KEYSPACES, MAX_NAME_BYTES, Record};

/// The longest name.
pub(super) const NAME_BYTES_MAX: usize = MAX_NAME_BYTES;

/// The longest record of a keyspace's settings.
const SETTINGS_BYTES_MAX: usize = 64;

/// Before each item of a list.
pub(super) const NEXT: u8 = 1;
/// At the end of a list.
pub(super) const END: u8 = 0;

pub(super) fn put_bytes(out: &mut dyn Put, bytes: &[u8]) -> Result<()> {
    put_number(out, bytes.len() as u64)?;
    out.put(bytes)
}

pub(super) fn put_number(out: &mut dyn Put, number: u64) -> Result<()> {
    let mut digits = Vec::with_capacity(10);
    push_varint(&mut digits, number);
    out.put(&digits)
}

pub(super) fn put_id(out: &mut dyn Put, id: Option<&CommitId>) -> Result<()> {
    out.put(&[u8::from(id.is_some())])?;
    id.map_or(Ok(()), |id| out.put(id.as_bytes()))
}

pub(super) fn take_u8(input: &mut Input) -> Result<u8> {
    let mut byte = [0];
    input.take(&mut byte)?;
    Ok(byte[0])
}

pub(super) fn take_u64(input: &mut Input) -> Result<u64> {
    let mut bytes = [0; 8];
    input.take(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Receives a varint of at most `max`.
pub(super) fn take_number(input: &mut Input, max: u64) -> Result<u64> {
    let mut number = 0_u64;
    for shift in (0..63).step_by(7) {
        let byte = take_u8(input)?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            let fits = number <= max && (byte != 0 || shift == 0);
            return if fits { Ok(number) } else { Err(beyond(number, max)) };
        }
    }
    Err(beyond(number, max))
}

fn beyond(number: u64, max: u64) -> Error {
    not_protocol(&format!("a length of {number} exceeds the limit of {max}"))
}

/// Receives a flag: in a list, whether another item follows.
pub(super) fn take_flag(input: &mut Input) -> Result<bool> {
    match take_u8(input)? {
        END => Ok(false),
        NEXT => Ok(true),
        other => Err(not_protocol(&format!("a flag has the invalid value {other}"))),
    }
}

/// Receives a sequence of at most `max` bytes, and replaces the contents of `bytes` with it.
pub(super) fn take_bytes(input: &mut Input, bytes: &mut Vec<u8>, max: usize) -> Result<()> {
    let len = take_number(input, max as u64)? as usize;
    bytes.clear();
    bytes.resize(len, 0);
    input.take(bytes)
}

pub(super) fn take_name(input: &mut Input) -> Result<String> {
    let mut bytes = Vec::new();
    take_bytes(input, &mut bytes, NAME_BYTES_MAX)?;
    String::from_utf8(bytes).map_err(|_| not_protocol("a name is not valid UTF-8"))
}

pub(super) fn take_id(input: &mut Input) -> Result<CommitId> {
    let mut bytes = [0; 32];
    input.take(&mut bytes)?;
    Ok(CommitId::from_bytes(bytes))
}

pub(super) fn take_optional_id(input: &mut Input) -> Result<Option<CommitId>> {
    if take_flag(input)? { take_id(input).map(Some) } else { Ok(None) }
}

pub(super) fn put_haves(out: &mut dyn Put, haves: &Haves) -> Result<()> {
    put_number(out, haves.commits.len() as u64)?;
    for (id, begins) in &haves.commits {
        out.put(&[u8::from(*begins)])?;
        out.put(id.as_bytes())?;
    }
    Ok(())
}

pub(super) fn take_haves(input: &mut Input) -> Result<Haves> {
    let count = take_number(input, HAVES_MAX as u64)?;
    let mut haves = Haves::default();
    for _ in 0..count {
        let begins = take_flag(input)?;
        haves.commits.push((take_id(input)?, begins));
    }
    Ok(haves)
}

pub(super) fn put_line(out: &mut dyn Put, line: &Line) -> Result<()> {
    out.put(&[line.end as u8])?;
    put_number(out, line.ids.len() as u64)?;
    line.ids.iter().try_for_each(|id| out.put(id.as_bytes()))
}

/// Receives a line of at most `max` commits. `lease` charges its ids.
pub(super) fn take_line(
    input: &mut Input,
    max: u64,
    mut lease: Option<&mut Lease>,
) -> Result<Line> {
    let ends = [LineEnd::Root, LineEnd::Boundary, LineEnd::Known];
    let byte = take_u8(input)?;
    let end = ends.into_iter().find(|end| *end as u8 == byte);
    let end = end.ok_or_else(|| not_protocol(&format!("a line has an end of kind {byte}")))?;
    let count = take_number(input, max)?;
    if count == 0 {
        return Err(not_protocol("a line has no commits"));
    }
    let mut ids = Vec::new();
    for _ in 0..count {
        if let Some(lease) = &mut lease {
            lease.grow(2 * size_of::<CommitId>() as u64)?;
        }
        ids.push(take_id(input)?);
    }
    Ok(Line { ids, end })
}

pub(super) fn put_keyspaces(out: &mut dyn Put, keyspaces: &[KeyspaceInfo]) -> Result<()> {
    for info in keyspaces {
        out.put(&[NEXT])?;
        put_bytes(out, info.name.as_bytes())?;
        let record = Record::new(FIRST_ID, info.retention, info.compression).with_ttl(info.ttl);
        put_bytes(out, &record.encode())?;
    }
    out.put(&[END])
}

pub(super) fn take_keyspaces(input: &mut Input) -> Result<Vec<KeyspaceInfo>> {
    let (mut keyspaces, mut record) = (Vec::new(), Vec::new());
    while take_flag(input)? {
        let name = take_name(input)?;
        take_bytes(input, &mut record, SETTINGS_BYTES_MAX)?;
        let settings = Record::decode(&record).map_err(|error| match error {
            Error::Corrupt { .. } => not_protocol("the settings of a keyspace cannot be decoded"),
            error => error,
        });
        let Record { retention, compression, ttl, .. } = settings?;
        if keyspaces.len() == MAX_KEYSPACES {
            return Err(not_protocol("it listed too many keyspaces"));
        }
        keyspaces.push(KeyspaceInfo { name, retention, compression, ttl });
    }
    Ok(keyspaces)
}
