//! The records of an imported or exported repository. They belong to the store, not to a branch
//! ([`Db::put_import_record`]).
//!
//! ```text
//! "git/begun"              id of the tip of main when the first import began
//! "git/head"               JSON: "ref", "commit": the source of main in the last finished import
//! "git/ref/" name          JSON: "id"; "symref"; "branch": the branch in the store
//! "git/object/" id         kind (u8), bytes: a tag, or an object that only tags lead to
//! "git/own/" commit id     the Git id that an export gave a commit not imported by this store
//! "git/made/" id           the inverse: the commit id for this Git id
//! ```
//!
//! Ids are binary in keys and values, and hexadecimal in JSON.
//!
//! On each branch, two keyspaces hold the parts of a tree that its paths and contents do not
//! determine:
//!
//! ```text
//! git.entries   path -> mode in octal digits, unless it is 100644; "160000 ID" for a submodule
//!               path "/" -> id of the directory's irregular tree; for the root, the key is "\0"
//! git.objects   id -> kind (u8), bytes: irregular trees, objects that only those lead to, and
//!                     commits that cannot be rebuilt from their metadata
//! ```
//!
//! A tree is irregular if the files below it do not determine its bytes, for example if its entries
//! are not sorted.

use plimsoll::{CommitId, Db};
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::object::Kind;
use crate::object_id::ObjectId;

/// The keyspace of contents.
pub(crate) const FILES: &str = "default";
/// The keyspace of modes, submodules and irregular trees.
pub(crate) const ENTRIES: &str = "git.entries";
/// The keyspace of whole objects.
pub(crate) const OBJECTS: &str = "git.objects";

/// The key of the irregular root tree. It is less than every path.
pub(crate) const ROOT_KEY: &[u8] = b"\0";

const BEGUN: &[u8] = b"git/begun";
const HEAD: &[u8] = b"git/head";
const REF: &str = "git/ref/";
const OBJECT: &[u8] = b"git/object/";
const OWN: &[u8] = b"git/own/";
const MADE: &[u8] = b"git/made/";

/// The source of main.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// The name of the branch; `None` if main was imported from a tag or a commit.
    pub(crate) name: Option<String>,
    pub(crate) commit: ObjectId,
}

/// A ref of the repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ref {
    pub(crate) name: String,
    /// The object that the ref points to.
    pub(crate) id: ObjectId,
    /// The ref that it points to, if it is symbolic.
    pub(crate) symref: Option<String>,
    /// The branch of the store that it is imported to.
    pub(crate) branch: Option<String>,
}

fn damaged() -> Error {
    Error::Bookmark { keyspace: "the store's own records" }
}

/// The tip of main when the first import began.
pub(crate) fn begun(db: &Db) -> Result<Option<ObjectId>> {
    let value = db.import_record(BEGUN)?;
    value.map(|value| ObjectId::of_bytes(&value).ok_or_else(damaged)).transpose()
}

pub(crate) fn put_begun(db: &Db, commit: &ObjectId) -> Result<()> {
    Ok(db.put_import_record(BEGUN, Some(&commit.to_bytes()))?)
}

pub(crate) fn head(db: &Db) -> Result<Option<Head>> {
    let Some(value) = db.import_record(HEAD)? else { return Ok(None) };
    let value: Value = serde_json::from_slice(&value).unwrap_or_default();
    let commit = value["commit"].as_str().and_then(|id| ObjectId::parse(id.as_bytes()));
    let name = value["ref"].as_str().map(str::to_owned);
    Ok(Some(Head { name, commit: commit.ok_or_else(damaged)? }))
}

pub(crate) fn put_head(db: &Db, head: &Head) -> Result<()> {
    let value = json!({ "ref": head.name, "commit": head.commit.as_str() }).to_string();
    Ok(db.put_import_record(HEAD, Some(value.as_bytes()))?)
}

/// All refs, ordered by name.
pub(crate) fn refs(db: &Db) -> Result<Vec<Ref>> {
    let rows = db.import_records(REF.as_bytes())?;
    rows.iter().map(|(key, value)| decode(key, value).ok_or_else(damaged)).collect()
}

fn decode(key: &[u8], value: &[u8]) -> Option<Ref> {
    let value: Value = serde_json::from_slice(value).ok()?;
    let text = |name: &str| value[name].as_str().map(str::to_owned);
    Some(Ref {
        name: std::str::from_utf8(key).ok()?.strip_prefix(REF)?.to_owned(),
        id: ObjectId::parse(text("id")?.as_bytes())?,
        symref: text("symref"),
        branch: text("branch"),
    })
}

pub(crate) fn put_ref(db: &Db, of: &Ref) -> Result<()> {
    let value = json!({ "id": of.id.as_str(), "symref": of.symref, "branch": of.branch });
    let key = format!("{REF}{}", of.name);
    Ok(db.put_import_record(key.as_bytes(), Some(value.to_string().as_bytes()))?)
}

pub(crate) fn remove_ref(db: &Db, name: &str) -> Result<()> {
    Ok(db.put_import_record(format!("{REF}{name}").as_bytes(), None)?)
}

/// A tag, or an object that is reachable only from tags.
pub(crate) fn object(db: &Db, id: &ObjectId) -> Result<Option<(Kind, Vec<u8>)>> {
    let value = db.import_record(&[OBJECT, &id.to_bytes()].concat())?;
    value.map(|value| whole_object(&value).ok_or_else(damaged)).transpose()
}

pub(crate) fn has_object(db: &Db, id: &ObjectId) -> Result<bool> {
    Ok(db.import_record(&[OBJECT, &id.to_bytes()].concat())?.is_some())
}

pub(crate) fn put_object(db: &Db, id: &ObjectId, kind: Kind, bytes: &[u8]) -> Result<()> {
    let value = [&[kind as u8], bytes].concat();
    Ok(db.put_import_record(&[OBJECT, &id.to_bytes()].concat(), Some(&value))?)
}

/// Splits the record of a whole object into its kind and its bytes.
pub(crate) fn whole_object(value: &[u8]) -> Option<(Kind, Vec<u8>)> {
    let (kind, bytes) = value.split_first()?;
    Some((Kind::numbered(*kind)?, bytes.to_vec()))
}

/// The Git id that an export gave `commit`.
pub(crate) fn own(db: &Db, commit: &CommitId) -> Result<Option<ObjectId>> {
    let value = db.import_record(&[OWN, commit.as_bytes()].concat())?;
    value.map(|value| ObjectId::of_bytes(&value).ok_or_else(damaged)).transpose()
}

/// The commit to which an export gave this Git id.
pub(crate) fn made(db: &Db, id: &ObjectId) -> Result<Option<CommitId>> {
    let Some(value) = db.import_record(&[MADE, &id.to_bytes()].concat())? else { return Ok(None) };
    let id = hex::encode(&*value).parse();
    Ok(Some(id.map_err(|_| damaged())?))
}

pub(crate) fn put_own(db: &Db, commit: &CommitId, id: &ObjectId) -> Result<()> {
    let git = id.to_bytes();
    db.put_import_record(&[MADE, &git].concat(), Some(commit.as_bytes()))?;
    Ok(db.put_import_record(&[OWN, commit.as_bytes()].concat(), Some(&git))?)
}
