//! The manifests of an archive: each pass writes the next one, in two copies. It names all objects
//! of the archive.
//!
//! Invariant: a manifest is written after the objects that it names, so that stopping a pass at any
//! point does not change what the archive restores.

use std::collections::BTreeSet;
use std::io;

use plimsoll::LogPosition;
use plimsoll_disk::checksum::Running;
use serde::{Deserialize, Serialize};

use crate::bucket::{Bucket, Put};
use crate::error::{Damage, Error, MISSING, Result};
use crate::object::{self, ObjectRef};

/// The format of manifests.
const FORMAT: u32 = 1;

/// The folder of the manifests.
pub(crate) const FOLDER: &str = "manifests";

/// The end of the name of a manifest's second copy.
const COPY: &str = ".copy";

/// The first word of a manifest.
const TITLE: &str = "plimsoll-archive";

/// The most entries of a list.
pub(crate) const LIST_ENTRIES: usize = 1024;

/// The number of manifests that are kept, in case both copies of the newest are damaged.
pub(crate) const KEPT: u64 = 16;

/// A position in the log, and the time of its record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct End {
    pub(crate) glsn: u64,
    #[serde(with = "hex64")]
    pub(crate) chain: u64,
    /// Microseconds since 1970 UTC.
    pub(crate) micros: u64,
}

impl End {
    pub(crate) fn position(&self) -> LogPosition {
        LogPosition { glsn: self.glsn.into(), chain: self.chain }
    }
}

/// A part of a segment of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Piece {
    /// The first GLSN of the segment, which is its name.
    pub(crate) segment: u64,
    /// The bytes of the segment. A piece that begins at 0 replaces all earlier pieces of its
    /// segment. Otherwise the first block of the piece replaces the last block of the piece before
    /// it.
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// The GLSN of its first record, and that record's time; beyond `end` if it has no record.
    pub(crate) first: u64,
    pub(crate) first_micros: u64,
    /// The position after its last record.
    pub(crate) end: End,
    /// Whether the segment ends with it.
    pub(crate) sealed: bool,
    /// The end of the records in the previous segment, as stated in the header of this one.
    pub(crate) previous_end: u64,
    pub(crate) object: ObjectRef,
}

impl Piece {
    /// Whether a segment that begins with this GLSN and has this `previous_end` comes directly
    /// after this piece.
    pub(crate) fn is_before(&self, segment: u64, previous_end: u64) -> bool {
        segment == self.end.glsn + 1 && (self.sealed || self.to == previous_end)
    }

    pub(crate) fn has_records(&self) -> bool {
        self.first <= self.end.glsn
    }
}

/// A blob file that records of the log name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Blob {
    pub(crate) id: u64,
    /// The segment whose records name it.
    pub(crate) segment: u64,
    /// The end of the piece of that segment that was archived with the blob file. All records that
    /// name the file are before this end.
    pub(crate) glsn: u64,
    pub(crate) object: ObjectRef,
}

/// The index of the store at one moment. A restore replays the log from there to reach later
/// moments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Base {
    /// The first moment that can be restored with it, and the time of that entry of the log.
    pub(crate) glsn: u64,
    pub(crate) micros: u64,
    /// The first GLSN of the log that it needs, with which a segment begins.
    pub(crate) log_first: u64,
    /// Bytes of its files.
    pub(crate) bytes: u64,
    /// The list of its files: JSON, an array of [`BaseFile`].
    pub(crate) list: ObjectRef,
}

/// A file of a base.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BaseFile {
    pub(crate) kind: BaseKind,
    /// The id of a run or blob file, or the manifest's number.
    pub(crate) id: u64,
    pub(crate) object: ObjectRef,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BaseKind {
    Run,
    /// The manifest of the store's index.
    Index,
    Blob,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Entry {
    Piece(Piece),
    Blob(Blob),
    Base(Base),
}

/// A manifest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) format: u32,
    /// Counts the manifests, from 1; as in the name.
    pub(crate) number: u64,
    /// The id of the archived log.
    #[serde(with = "hex128")]
    pub(crate) log_id: u128,
    /// The hash of the manifest before it; 0 for the first.
    #[serde(with = "hex128")]
    pub(crate) previous: u128,
    /// The newest archived position.
    pub(crate) end: End,
    /// Lists of earlier entries: JSON, arrays of [`Entry`].
    pub(crate) lists: Vec<ObjectRef>,
    /// The entries after those of the lists, oldest first.
    pub(crate) entries: Vec<Entry>,
    /// Objects that are not needed any more.
    pub(crate) dropped: Vec<Dropped>,
}

/// An object that the manifests before a number need, and none from that number on. It is deleted
/// once the manifests that need it are gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Dropped {
    pub(crate) number: u64,
    pub(crate) object: ObjectRef,
}

impl Manifest {
    /// The manifest before the first.
    pub(crate) fn empty(log_id: u128) -> Self {
        Self {
            format: FORMAT,
            number: 0,
            log_id,
            previous: 0,
            end: End::default(),
            lists: Vec::new(),
            entries: Vec::new(),
            dropped: Vec::new(),
        }
    }

    /// The manifest after this one, without the objects that can be deleted before it is written.
    pub(crate) fn next(&self, number: u64, hash: u128) -> (Self, Vec<Dropped>) {
        let mut next = Self { number, previous: hash, ..self.clone() };
        let is_over = |dropped: &mut Dropped| dropped.number + KEPT <= number;
        let over = next.dropped.extract_if(.., is_over).collect();
        (next, over)
    }

    /// Adds objects that are not needed from this manifest on.
    pub(crate) fn drop_objects(&mut self, objects: impl IntoIterator<Item = ObjectRef>) {
        let number = self.number;
        self.dropped.extend(objects.into_iter().map(|object| Dropped { number, object }));
    }

    /// Moves the entries into another list; returns the bytes that were sent.
    pub(crate) fn list_entries(&mut self, bucket: &dyn Bucket) -> Result<u64> {
        let entries = std::mem::take(&mut self.entries);
        self.list(bucket, &entries)
    }

    fn list(&mut self, bucket: &dyn Bucket, entries: &[Entry]) -> Result<u64> {
        let (list, bytes) = write_json(bucket, &format!("lists/{:020}", self.number), &entries)?;
        self.lists.push(list);
        Ok(bytes)
    }

    /// Names all entries in lists, and drops the earlier ones. Returns how many lists and bytes
    /// were sent.
    pub(crate) fn rewrite_lists(
        &mut self,
        bucket: &dyn Bucket,
        entries: impl Iterator<Item = Entry>,
    ) -> Result<(u64, u64)> {
        let old = std::mem::take(&mut self.lists);
        self.drop_objects(old);
        self.entries.clear();
        let mut sent = 0;
        let mut entries = entries.peekable();
        while entries.peek().is_some() {
            let next: Vec<Entry> = entries.by_ref().take(LIST_ENTRIES).collect();
            sent += self.list(bucket, &next)?;
        }
        Ok((self.lists.len() as u64, sent))
    }

    fn encode(&self) -> (Vec<u8>, u128) {
        let body = serde_json::to_vec(self).expect("a manifest has no maps and no failing parts");
        let hash = hash_of(&body);
        let mut text = format!("{TITLE} {hash:032x}\n").into_bytes();
        text.extend_from_slice(&body);
        (text, hash)
    }

    /// Decodes manifest `number`; also returns its hash.
    fn decode(name: &str, number: u64, text: &[u8]) -> Result<std::result::Result<Found, String>> {
        let damaged = |what: &str| Ok(Err(what.to_owned()));
        let Some(line) = text.iter().position(|byte| *byte == b'\n') else {
            return damaged("its first line is not terminated");
        };
        let (line, body) = (&text[..line], &text[line + 1..]);
        let hash = hash_of(body);
        if line != format!("{TITLE} {hash:032x}").as_bytes() {
            return damaged("its checksum does not match: it is damaged or truncated");
        }
        #[derive(Deserialize)]
        struct Formatted {
            format: u32,
        }
        match serde_json::from_slice(body) {
            Ok(Formatted { format }) if format != FORMAT => {
                return Err(Error::Format { object: name.to_owned(), format });
            }
            _ => {}
        }
        match serde_json::from_slice::<Self>(body) {
            Ok(manifest) if manifest.number == number => Ok(Ok(Found { manifest, hash })),
            Ok(manifest) => Ok(Err(format!(
                "it contains manifest {}: the file was exchanged or rolled back",
                manifest.number
            ))),
            Err(error) => Ok(Err(format!("it is malformed: {error}"))),
        }
    }
}

/// A manifest that was read, and the hash of its text.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) manifest: Manifest,
    pub(crate) hash: u128,
}

impl Found {
    /// Whether it can come after another one.
    pub(crate) fn follows(&self, before: &Self) -> bool {
        let is_next = self.manifest.number == before.manifest.number + 1;
        let is_same_log = self.manifest.log_id == before.manifest.log_id;
        is_same_log && (!is_next || self.manifest.previous == before.hash)
    }
}

pub(crate) fn hash_of(bytes: &[u8]) -> u128 {
    let mut sum = Running::new(0);
    sum.take(bytes);
    sum.sum128()
}

pub(crate) fn name_of(number: u64) -> String {
    format!("{FOLDER}/{number:020}")
}

/// The numbers of the manifests in the archive, in order.
pub(crate) fn numbers(bucket: &dyn Bucket) -> Result<BTreeSet<u64>> {
    let names = bucket.list(FOLDER).map_err(|error| Error::storage(FOLDER, error))?;
    let number = |name: &String| -> Option<u64> {
        let digits = name.strip_prefix(FOLDER)?.strip_prefix('/')?;
        digits.strip_suffix(COPY).unwrap_or(digits).parse().ok()
    };
    Ok(names.iter().filter_map(number).collect())
}

/// Reads both copies of a manifest; `None` if neither can be used. Adds the damage that it finds to
/// `damage`.
///
/// # Errors
/// The error of the storage, if it fails to read one copy and the other copy cannot be used.
pub(crate) fn read(
    bucket: &dyn Bucket,
    number: u64,
    damage: &mut Vec<Damage>,
) -> Result<Option<Found>> {
    let mut found: Option<Found> = None;
    let mut failure = None;
    let mut failed = |object: &str, error: io::Error| {
        let what = format!("it cannot be read: {error}");
        failure = Some(Error::storage(object, error));
        what
    };
    let name = name_of(number);
    for object in [name.clone(), name + COPY] {
        let mut text = Vec::new();
        let what = match bucket.get(&object) {
            Ok(Some(mut stored)) => match stored.reader.read_to_end(&mut text) {
                Ok(_) => match Manifest::decode(&object, number, &text)? {
                    Ok(read) if found.as_ref().is_none_or(|other| other.hash == read.hash) => {
                        found.get_or_insert(read);
                        continue;
                    }
                    Ok(_) => "it differs from the manifest that it is a copy of".to_owned(),
                    Err(what) => what,
                },
                Err(error) => failed(&object, error),
            },
            Ok(None) => MISSING.to_owned(),
            Err(error) => failed(&object, error),
        };
        damage.push(Damage { object, what });
    }
    match (found, failure) {
        (None, Some(failure)) => Err(failure),
        (found, _) => Ok(found),
    }
}

/// Writes the copies of a manifest that are missing, because the pass that wrote it was stopped.
pub(crate) fn complete(bucket: &dyn Bucket, found: &Found) -> Result<()> {
    let (text, hash) = found.manifest.encode();
    let name = name_of(found.manifest.number);
    if hash == found.hash {
        for object in [name.clone(), name + COPY] {
            let put = bucket.put_new(&object, &mut &text[..]);
            put.map_err(|error| Error::storage(&object, error))?;
        }
    }
    Ok(())
}

/// Whether damage is only the missing second copy of a manifest. A pass that was stopped before it
/// wrote that copy leaves this damage.
pub(crate) fn is_unfinished(damage: &[Damage]) -> bool {
    matches!(damage, [only] if only.object.ends_with(COPY) && only.what == MISSING)
}

/// As [`read`], but takes a copy that the storage fails to read for damaged.
pub(crate) fn read_if_possible(
    bucket: &dyn Bucket,
    number: u64,
    damage: &mut Vec<Damage>,
) -> Result<Option<Found>> {
    match read(bucket, number, damage) {
        Err(Error::Storage { .. }) => Ok(None),
        found => found,
    }
}

/// Reads the newest manifest that can be used, each by `read`; `None` if the archive has none at
/// all. Adds the damage of newer ones to `damage`.
pub(crate) fn newest(
    bucket: &dyn Bucket,
    read: impl Fn(&dyn Bucket, u64, &mut Vec<Damage>) -> Result<Option<Found>>,
    damage: &mut Vec<Damage>,
) -> Result<Option<Found>> {
    for number in numbers(bucket)?.into_iter().rev() {
        if let Some(found) = read(bucket, number, damage)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Writes the next manifest, and removes one that is no longer kept. Returns its hash; `None` if
/// another archiver has written one with this number.
pub(crate) fn write(bucket: &dyn Bucket, manifest: &Manifest) -> Result<Option<u128>> {
    let (text, hash) = manifest.encode();
    let name = name_of(manifest.number);
    for object in [name.clone(), name + COPY] {
        let put = bucket.put_new(&object, &mut &text[..]);
        if put.map_err(|error| Error::storage(&object, error))? == Put::Exists {
            return Ok(None);
        }
    }
    if let Some(old) = manifest.number.checked_sub(KEPT) {
        let name = name_of(old);
        for object in [name.clone(), name + COPY] {
            bucket.delete(&object).map_err(|error| Error::storage(&object, error))?;
        }
    }
    Ok(Some(hash))
}

/// Reads an object that is JSON.
pub(crate) fn read_json<T: for<'de> Deserialize<'de>>(
    bucket: &dyn Bucket,
    object: &ObjectRef,
) -> Result<std::result::Result<T, String>> {
    Ok(object::read_whole(bucket, object)?.and_then(|bytes| {
        serde_json::from_slice(&bytes).map_err(|error| format!("it is malformed: {error}"))
    }))
}

/// Writes an object that is JSON; returns its reference and the bytes that were sent.
pub(crate) fn write_json<T: Serialize>(
    bucket: &dyn Bucket,
    name: &str,
    value: &T,
) -> Result<(ObjectRef, u64)> {
    let failed = |error: io::Error| Error::storage(name, error);
    let bytes = serde_json::to_vec(value).map_err(|error| failed(error.into()))?;
    let object = ObjectRef::of(name, &mut &bytes[..]).map_err(failed)?;
    let mut encoder = object::Encoder::new(&object, &bytes[..]).map_err(failed)?;
    bucket.put_new(&object.name, &mut encoder).map_err(failed)?;
    Ok((object, encoder.bytes))
}

/// A number of 64 bits as hexadecimal digits: JSON readers round large numbers.
mod hex64 {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(number: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{number:016x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        let text = String::deserialize(from)?;
        u64::from_str_radix(&text, 16).map_err(D::Error::custom)
    }
}

/// The same with 128 bits.
mod hex128 {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(number: &u128, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{number:032x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u128, D::Error> {
        let text = String::deserialize(from)?;
        u128::from_str_radix(&text, 16).map_err(D::Error::custom)
    }
}
