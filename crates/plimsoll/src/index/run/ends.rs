//! The first and the last pages of a table: header, list of blob files, footer.
//!
//! ```text
//! header (page 0):
//! | "PLIMRUN" 2 | compatible | incompatible | log id | place | id  | flags | zeros to 64 |
//!   8 bytes       u32          u32            u128     u8      u64   u8
//!
//! blobs (as many pages as they take, usually none): | count u16 | distances (varints) ... |
//!
//! footer (the last page):
//! | pages | root | versions | deletions | min glsn | max glsn | min pointer | blobs | blobs page
//!   u32     u32    u64        u64         u64        u64        u64           u32     u32
//!
//! | flags | first key     | last key      | log bytes | first expiry | last expiry | values
//!   u8      u16 and bytes   u16 and bytes   u64         u64            u64           u64
//!
//! | keyspace |
//!   u64
//! ```
//!
//! `place` is 0 for a file of the index and 1 for a blob file of the log. Flag 1 of header and
//! footer: versions have no GLSN of their own. Flag 2 of the footer: there is a min pointer. Flag
//! 4: the footer has `log bytes`. Flag 8: some values expire, and the footer has their expiries,
//! their number, and their keyspace (0 if they are of several). A blobs page holds ids of blob
//! files, ascending, each as its difference from the previous one (the first of a page, from 0).

use plimsoll_disk::codec::{Reader, put_varint, varint_len};
use plimsoll_log::blob::BlobId;
use plimsoll_log::glsn::Glsn;
use plimsoll_memory::page::PAGE_PAYLOAD_BYTES;

use crate::index::run::table::{TableId, TableInfo};
use crate::types::expiry::{Expiry, ExpiryRange};
use crate::types::index_key::MAX_INDEX_KEY_BYTES;
use crate::types::keyspaces::SIDE;

/// The kind byte of the footer.
pub(crate) const FOOTER_PAGE: u8 = 19;
/// The kind byte of the header.
pub(crate) const HEADER_PAGE: u8 = 20;
/// The kind byte of pages that list blob files.
pub(crate) const BLOBS_PAGE: u8 = 21;

/// `PLIMRUN` and the format number.
const MAGIC: &[u8; 8] = b"PLIMRUN\x02";

/// Features that a reader must know in order to return correct data; none is defined yet.
const KNOWN_INCOMPATIBLE: u32 = 0;

const HEADER_BYTES: usize = 64;

const PENDING_FLAG: u8 = 1;
const POINTER_FLAG: u8 = 2;
/// Set if the bytes of values in log entries are counted, which earlier versions did not do.
const LOG_BYTES_FLAG: u8 = 4;
const EXPIRIES_FLAG: u8 = 8;

/// The contents of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The table's id.
    pub(crate) id: TableId,
    /// The log whose commits the table holds.
    pub(crate) log_id: u128,
    /// Whether versions have no GLSN of their own.
    pub(crate) pending: bool,
}

impl Header {
    /// Writes the payload and returns its length.
    pub(crate) fn write(&self, payload: &mut [u8]) -> usize {
        let (place, id) = match self.id {
            TableId::Run(id) => (0, id),
            TableId::Blob(BlobId(id)) => (1, id),
        };
        payload[..HEADER_BYTES].fill(0);
        payload[..8].copy_from_slice(MAGIC);
        payload[16..32].copy_from_slice(&self.log_id.to_le_bytes());
        payload[32] = place;
        payload[33..41].copy_from_slice(&id.to_le_bytes());
        payload[41] = if self.pending { PENDING_FLAG } else { 0 };
        HEADER_BYTES
    }
}

/// Reads a header.
///
/// # Errors
/// The fault of the header.
pub(crate) fn check_header(payload: &[u8]) -> Result<Header, &'static str> {
    let mut reader = Reader::new(payload);
    if payload.len() != HEADER_BYTES || reader.take(7) != Some(&MAGIC[..7]) {
        return Err("the page is not the header of a run");
    }
    if reader.u8() != Some(MAGIC[7]) {
        return Err("the run is of a format that this version does not know");
    }
    let broken = "the header is truncated";
    let _compatible = reader.u32().ok_or(broken)?;
    if reader.u32().ok_or(broken)? & !KNOWN_INCOMPATIBLE != 0 {
        return Err("the run has features that this version does not know");
    }
    let log_id = reader.u128().ok_or(broken)?;
    let place = reader.u8().ok_or(broken)?;
    let number = reader.u64().ok_or(broken)?;
    let pending = reader.u8().ok_or(broken)? & PENDING_FLAG != 0;
    let id = match place {
        0 => TableId::Run(number),
        1 => TableId::Blob(BlobId(number)),
        _ => return Err("the header names a place that this version does not know"),
    };
    Ok(Header { id, log_id, pending })
}

/// The contents of the footer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Footer {
    pub(crate) pages: u32,
    pub(crate) root: u32,
    pub(crate) versions: u64,
    pub(crate) deletions: u64,
    pub(crate) min_glsn: Glsn,
    pub(crate) max_glsn: Glsn,
    pub(crate) min_pointer: Option<Glsn>,
    /// Bytes of values in log entries; `None` if an earlier version wrote the table.
    pub(crate) log_bytes: Option<u64>,
    /// The expiries of the values that expire.
    pub(crate) expiries: Option<ExpiryRange>,
    /// The number of blob files that values point to.
    pub(crate) blobs: u32,
    /// The first page of their list, which ends before the footer.
    pub(crate) blobs_page: u32,
    pub(crate) pending: bool,
    pub(crate) first_key: Vec<u8>,
    pub(crate) last_key: Vec<u8>,
}

impl Footer {
    /// Writes the payload and returns its length.
    pub(crate) fn write(&self, payload: &mut [u8]) -> usize {
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            payload[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        put(&self.pages.to_le_bytes());
        put(&self.root.to_le_bytes());
        put(&self.versions.to_le_bytes());
        put(&self.deletions.to_le_bytes());
        put(&self.min_glsn.0.to_le_bytes());
        put(&self.max_glsn.0.to_le_bytes());
        put(&self.min_pointer.unwrap_or(Glsn::NONE).0.to_le_bytes());
        put(&self.blobs.to_le_bytes());
        put(&self.blobs_page.to_le_bytes());
        let pointer_flag = if self.min_pointer.is_some() { POINTER_FLAG } else { 0 };
        let pending_flag = if self.pending { PENDING_FLAG } else { 0 };
        let counted_flag = if self.log_bytes.is_some() { LOG_BYTES_FLAG } else { 0 };
        let expiries_flag = if self.expiries.is_some() { EXPIRIES_FLAG } else { 0 };
        put(&[pointer_flag | pending_flag | counted_flag | expiries_flag]);
        for key in [&self.first_key, &self.last_key] {
            put(&(key.len() as u16).to_le_bytes());
            put(key);
        }
        self.log_bytes.iter().for_each(|bytes| put(&bytes.to_le_bytes()));
        let expiries = self.expiries.iter().flat_map(ExpiryRange::numbers);
        expiries.for_each(|number| put(&number.to_le_bytes()));
        at
    }

    /// The metadata as kept in the manifest.
    pub(crate) fn into_info(self, id: TableId, blobs: Vec<BlobId>) -> TableInfo {
        TableInfo {
            id,
            pages: self.pages,
            root: self.root,
            versions: self.versions,
            deletions: self.deletions,
            first_key: self.first_key,
            last_key: self.last_key,
            min_glsn: self.min_glsn,
            max_glsn: self.max_glsn,
            min_pointer: self.min_pointer,
            log_bytes: self.log_bytes,
            expiries: self.expiries,
            blobs,
            fixed_glsn: None,
            absorbed: Glsn::NONE,
            packed: None,
        }
    }
}

/// Reads a footer.
///
/// # Errors
/// The fault of the footer.
pub(crate) fn check_footer(payload: &[u8]) -> Result<Footer, &'static str> {
    let footer = read_footer(payload).ok_or("the footer is truncated")?;
    let last = footer.pages.checked_sub(1).ok_or("the footer's page count is 0")?;
    if footer.root == 0
        || footer.root >= last
        || footer.blobs_page > last
        || footer.blobs_page <= footer.root
    {
        return Err("the footer refers to nonexistent pages");
    }
    if (footer.blobs == 0) != (footer.blobs_page == last) {
        return Err("the footer's count of blob files does not match their pages");
    }
    let expiring = footer.expiries.map_or(0, |expiries| expiries.values);
    if footer.versions == 0 || footer.deletions.saturating_add(expiring) > footer.versions {
        return Err("the footer's counts are impossible");
    }
    if footer.first_key > footer.last_key || footer.min_glsn > footer.max_glsn {
        return Err("the footer's bounds are out of order");
    }
    Ok(footer)
}

fn read_footer(payload: &[u8]) -> Option<Footer> {
    let mut reader = Reader::new(payload);
    let (pages, root) = (reader.u32()?, reader.u32()?);
    let (versions, deletions) = (reader.u64()?, reader.u64()?);
    let (min_glsn, max_glsn) = (Glsn(reader.u64()?), Glsn(reader.u64()?));
    let pointer = Glsn(reader.u64()?);
    let (blobs, blobs_page) = (reader.u32()?, reader.u32()?);
    let flags = reader.u8()?;
    let mut key = || {
        let len = usize::from(reader.u16()?);
        let key = reader.take(len)?;
        (len <= MAX_INDEX_KEY_BYTES).then(|| key.to_vec())
    };
    let (first_key, last_key) = (key()?, key()?);
    let log_bytes = if flags & LOG_BYTES_FLAG != 0 { Some(reader.u64()?) } else { None };
    let expiries = match flags & EXPIRIES_FLAG {
        0 => None,
        _ => {
            let numbers = [reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?];
            Some(ExpiryRange::of_numbers(numbers)?)
        }
    };
    let min_pointer = (flags & POINTER_FLAG != 0).then_some(pointer);
    let pending = flags & PENDING_FLAG != 0;
    (reader.remaining() == 0).then_some(Footer {
        pages,
        root,
        versions,
        deletions,
        min_glsn,
        max_glsn,
        min_pointer,
        log_bytes,
        expiries,
        blobs,
        blobs_page,
        pending,
        first_key,
        last_key,
    })
}

/// Writes as many ids of blob files as fit into a payload. Returns its length.
pub(crate) fn write_blobs(
    ids: &mut std::iter::Peekable<impl Iterator<Item = u64>>,
    payload: &mut [u8],
) -> usize {
    let (mut at, mut count, mut before) = (2, 0u16, 0);
    while let Some(id) = ids.next_if(|id| at + varint_len(id - before) <= PAGE_PAYLOAD_BYTES) {
        at += put_varint(&mut payload[at..], id - before);
        before = id;
        count += 1;
    }
    payload[..2].copy_from_slice(&count.to_le_bytes());
    at
}

/// Reads a page of ids of blob files and passes each to `each`.
///
/// # Errors
/// The fault of the page.
pub(crate) fn check_blobs(
    payload: &[u8],
    mut each: impl FnMut(BlobId),
) -> Result<(), &'static str> {
    let mut reader = Reader::new(payload);
    let broken = "the list of blob files cannot be decoded";
    let mut id = 0u64;
    for number in 0..reader.u16().ok_or(broken)? {
        let distance = reader.varint().ok_or(broken)?;
        if distance == 0 && number > 0 {
            return Err("a blob file is listed twice");
        }
        id = id.checked_add(distance).ok_or(broken)?;
        each(BlobId(id));
    }
    if reader.remaining() == 0 { Ok(()) } else { Err(broken) }
}

/// The expiries with that of one more value, unless it is on a branch: an expired value there hides
/// those of the branch's ancestors, so it is never dropped for its expiry.
pub(super) fn with_expiry(
    expiries: Option<ExpiryRange>,
    expiry: Expiry,
    keyspace: u32,
) -> Option<ExpiryRange> {
    if keyspace == SIDE { expiries } else { Some(ExpiryRange::with(expiries, expiry, keyspace)) }
}
