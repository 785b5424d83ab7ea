//! Creates a cluster from a store.
//!
//! The order of the steps makes an interrupted creation harmless: `cluster.json` is written once
//! the base is complete, and the store becomes a member after that. Repeating the call continues.

use std::path::Path;

use plimsoll::{Db, Glsn, Options};
use plimsoll_archive::Folders;
use plimsoll_disk::clock::{Clock, SystemClock};
use plimsoll_disk::random::entropy;

use crate::cluster::{Identity, Place};
use crate::error::{Error, Result};
use crate::membership::{self, Membership};
use crate::opening::open_at;
use crate::probe::probe;

/// The result of a creation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CreateReport {
    /// The URL of the bucket, or the absolute path of its folder.
    pub url: String,
    /// The id of the cluster.
    pub id: u128,
    /// The newest GLSN of the base. Commits of the cluster follow it.
    pub base: Glsn,
    /// Objects of the base that were sent.
    pub objects: u64,
    /// Bytes of the base that were sent.
    pub bytes: u64,
}

/// Creates a cluster in the bucket `url` from the store at `store`, which becomes its first member.
/// Tests whether the bucket supports put-if-absent, archives the store there as the base from
/// which others join, and writes `cluster.json` last. If this is interrupted, repeat it.
///
/// `url` is a path, `file:///PATH`, or, with the feature `cloud`, `s3://BUCKET/PREFIX`,
/// `gs://BUCKET/PREFIX` or `az://CONTAINER/PREFIX`, with `postgres`,
/// `postgres://USER@HOST/DATABASE/SCHEMA`, with `nats`, `nats://HOST,HOST,HOST/STREAM`. No other
/// process may have the store open.
///
/// # Errors
/// [`Error::Unfit`]: the bucket does not support put-if-absent. [`Error::Unsafe`]: its servers may
/// lose commits. [`Error::ClusterExists`],
/// [`Error::NotEmpty`], [`Error::IsAMember`]; the store, the bucket.
///
/// # Examples
/// See the [crate](crate).
pub fn create(url: &str, store: impl AsRef<Path>, options: Options) -> Result<CreateReport> {
    let store = store.as_ref();
    let options = options.create(false).read_only(false).shared(false);
    let place = Place::find(url, Folders::Create)?;
    if let Some(member) = membership::membership(store)? {
        if member.url != place.url || membership::is_partial(store)? {
            return Err(Error::IsAMember { path: store.to_owned(), url: member.url });
        }
        // An earlier call was interrupted before the member was opened for the first time.
        let (url, id, base) = (place.url.clone(), member.id, place.identity()?.base());
        open_at(store, place, id, options)?.close()?;
        return Ok(CreateReport { url, id, base, objects: 0, bytes: 0 });
    }
    let found = place.find_identity()?;
    let db = Db::open(store, options.clone())?;
    let mut report = CreateReport {
        url: place.url.clone(),
        id: db.id(),
        base: db.newest(),
        objects: 0,
        bytes: 0,
    };
    match found {
        // An earlier call was interrupted before the store became a member.
        Some(found) if found.log_id == db.id() && found.base() == db.newest() => {
            report.id = found.id;
        }
        Some(_) => return Err(Error::ClusterExists { place: place.url }),
        None => {
            place.check()?;
            place.check_new()?;
            probe(&*place.bucket, &place.url)?;
            let pushed = place.base()?.push(&db)?;
            (report.objects, report.bytes) = (pushed.objects, pushed.bytes);
            report.base = pushed.glsn;
            if pushed.glsn != db.newest() {
                let what = "the store was changed while its base was made; try again".to_owned();
                return Err(Error::Damaged { place: place.url, what });
            }
            let random = entropy().map_err(|error| place.failed("a random id", error))?;
            report.id = random;
            place.identify(&Identity {
                id: random,
                log_id: db.id(),
                created_micros: SystemClock::new().wall_micros(),
                base_glsn: pushed.glsn.0,
            })?;
        }
    }
    // From then on the store opens only as a member. Written before the lock is released.
    membership::write(store, &Membership { url: place.url.clone(), id: report.id })?;
    db.close()?;
    open_at(store, place, report.id, options)?.close()?;
    Ok(report)
}
