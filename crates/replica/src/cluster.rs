//! A cluster in a bucket: where its objects are, and `cluster.json`, which identifies it.
//!
//! ```text
//! cluster.json   id, format, creation, base: written last, by put-if-absent
//! base/          an archive of the store from which the cluster was created
//! bases/         later bases, and where a new line of the log begins (`bases.rs`)
//! base-…/        the archives of those (`trimming.rs`)
//! log/           the batches (`bucket_order.rs`)
//! blob/          large values, by hash (`blobs.rs`)
//! hint           about where the log ends
//! move.json      a move to this bucket is not finished (`moving.rs`)
//! tmp/           objects that are being written, if the bucket is a folder
//! ```

use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll::Glsn;
use plimsoll_archive::{Archive, Bucket, Folders, Put, bucket_at, has_secret, url_of_folder};
use plimsoll_disk::os::OsDisk;
use plimsoll_disk::vfs::Disk;
use serde::{Deserialize, Serialize};

use crate::bases::{self, Base, Moved, Numbered};
use crate::blobs::{Failure, PUT_BACK};
use crate::bucket_order::{BucketOrder, SWEEP_AGE};
use crate::error::{Error, Result};
use crate::moving::MOVE;
use crate::sealed_json::{self, FORMAT, Unusable};

/// The object that identifies a cluster.
pub(crate) const CLUSTER: &str = "cluster.json";

/// Its title.
const TITLE: &str = "cluster";

/// The folder of the base.
pub(crate) const BASE: &str = "base";

/// The longest `cluster.json`.
const CLUSTER_BYTES_MAX: u64 = 64 << 10;

/// The contents of `cluster.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    /// The id of the cluster: random, because two clusters can be created from one store.
    #[serde(with = "hex128")]
    pub(crate) id: u128,
    /// The id of the log of every member.
    #[serde(with = "hex128")]
    pub(crate) log_id: u128,
    /// Microseconds since 1970 UTC.
    pub(crate) created_micros: u64,
    /// The newest GLSN of the base. The first batch follows it.
    pub(crate) base_glsn: u64,
}

impl Identity {
    pub(crate) fn base(&self) -> Glsn {
        Glsn(self.base_glsn)
    }
}

/// The place of a cluster.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) bucket: Arc<dyn Bucket>,
    /// The URL, or the absolute path of the folder. Messages name the bucket so.
    pub(crate) url: String,
    /// Whether the tables or the stream of a service are created.
    folders: Folders,
}

impl Place {
    /// The place that a URL or path names. Makes no request.
    pub(crate) fn find(url: &str, folders: Folders) -> Result<Self> {
        if has_secret(url) {
            // Without the URL, which would be printed.
            let (url, what) = (
                "the URL of the bucket".to_owned(),
                "it contains a password or a \
                query; leave them out, and give credentials in the environment"
                    .to_owned(),
            );
            return Err(Error::Archive(plimsoll_archive::Error::Url { url, what }));
        }
        let bucket = bucket_at(url, folders)?;
        // A folder in a bucket of the file system may be new.
        let is_folder = bucket.folder().is_ok_and(|folder| folder.is_some());
        let folders = if is_folder { Folders::Create } else { folders };
        let bucket = through(bucket);
        // Members may be opened from another working directory.
        let folder = bucket.folder().map_err(|error| Error::bucket(url, "its folder", error))?;
        let url = folder.map_or_else(|| url.to_owned(), |path| path.display().to_string());
        Ok(Self { bucket, url, folders })
    }

    /// The archive from which the cluster was created.
    pub(crate) fn base(&self) -> Result<Archive> {
        self.archive(BASE)
    }

    /// The archive in a folder of the bucket.
    pub(crate) fn archive(&self, folder: &str) -> Result<Archive> {
        let (bucket, url) = self.bucket_of(folder)?;
        Ok(Archive::of(bucket, &url))
    }

    /// The objects in a folder of the bucket that has folders itself, and the URL.
    pub(crate) fn bucket_of(&self, folder: &str) -> Result<(Arc<dyn Bucket>, String)> {
        let url = url_of_folder(&self.url, folder);
        Ok((through(bucket_at(&url, self.folders)?), url))
    }

    /// Fails if the place may lose objects that it has confirmed. Creates what it needs, if it was
    /// found to be created.
    pub(crate) fn check(&self) -> Result<()> {
        match self.bucket.check().map_err(|error| self.failed("its configuration", error))? {
            None => Ok(()),
            Some(what) => Err(Error::Unsafe { place: self.url.clone(), what }),
        }
    }

    /// The newest base; `None` if it is that from which the cluster was created.
    pub(crate) fn newest_base(&self) -> Result<Option<Numbered>> {
        bases::newest(&*self.bucket, 0).map_err(|failure| self.refused(failure))
    }

    /// Where the log goes on, if it has ended here because the cluster was moved.
    pub(crate) fn moved(&self) -> Result<Option<Moved>> {
        Ok(self.newest_base()?.and_then(|newest| newest.base.moved))
    }

    /// The error of a call that needs the log here, after it was moved.
    pub(crate) fn ended(&self, moved: &Moved) -> Error {
        Error::Moved { place: self.url.clone(), url: moved.url.clone() }
    }

    /// Fails if the newest base is a fence.
    pub(crate) fn check_no_fence(&self, newest: Option<&Numbered>) -> Result<()> {
        match newest.map(|newest| &newest.base) {
            Some(Base { moved: Some(moved), .. }) => Err(self.ended(moved)),
            Some(base) if base.is_fence() => Err(Error::HealUnfinished { place: self.url.clone() }),
            _ => Ok(()),
        }
    }

    pub(crate) fn refused(&self, failure: Failure) -> Error {
        match failure {
            Failure::Io(name, error) => self.failed(&name, error),
            Failure::Damaged(name, what) => {
                Error::Damaged { place: format!("{}: {name}", self.url), what }
            }
            Failure::Newer(name, format) => {
                Error::Format { place: format!("{}: {name}", self.url), format, known: FORMAT }
            }
        }
    }

    /// The order of the cluster.
    pub(crate) fn order(&self) -> Result<BucketOrder> {
        // Leftovers cost only space.
        let _ = self.bucket.sweep(SWEEP_AGE);
        let order = BucketOrder::new(Arc::clone(&self.bucket), &self.url);
        order.map_err(|error| self.failed("its folder", error))
    }

    /// The folder of the bucket, if it is one.
    pub(crate) fn folder(&self) -> Result<Option<PathBuf>> {
        self.bucket.folder().map_err(|error| self.failed("its folder", error))
    }

    pub(crate) fn is_folder(&self) -> Result<bool> {
        Ok(self.folder()?.is_some())
    }

    /// The error if a batch is missing.
    pub(crate) fn lost(&self, position: u64) -> Error {
        let place = format!("{}: {}", self.url, crate::bucket_order::name_of(position));
        let what =
            format!("it is missing: the bucket was set back or has lost objects; {PUT_BACK}");
        Error::Damaged { place, what }
    }

    pub(crate) fn failed(&self, what: &str, error: std::io::Error) -> Error {
        Error::bucket(&self.url, what, error)
    }

    /// The identity of the cluster at this place.
    pub(crate) fn identity(&self) -> Result<Identity> {
        if let Some(found) = self.find_identity()? {
            return Ok(found);
        }
        let place = self.url.clone();
        match self.bucket.exists(MOVE).map_err(|error| self.failed(MOVE, error))? {
            true => Err(Error::MoveUnfinished { place }),
            false => Err(Error::NotACluster { place }),
        }
    }

    /// As [`Place::identity`]; `None` if there is no cluster.
    pub(crate) fn find_identity(&self) -> Result<Option<Identity>> {
        let found = self.bucket.get(CLUSTER).map_err(|error| self.failed(CLUSTER, error))?;
        let Some(object) = found else { return Ok(None) };
        let mut text = Vec::new();
        let read = object.reader.take(CLUSTER_BYTES_MAX).read_to_end(&mut text);
        read.map_err(|error| self.failed(CLUSTER, error))?;
        let place = || format!("{}: {CLUSTER}", self.url);
        match sealed_json::decode(TITLE, &text) {
            Ok(identity) => Ok(Some(identity)),
            Err(Unusable::Format(format)) => {
                Err(Error::Format { place: place(), format, known: FORMAT })
            }
            Err(Unusable::Damaged(what)) => {
                let what = format!("{what}; restore this object from a copy of the bucket");
                Err(Error::Damaged { place: place(), what })
            }
        }
    }

    /// Makes this place a cluster; fails if there is one.
    pub(crate) fn identify(&self, identity: &Identity) -> Result<()> {
        let text = sealed_json::encode(TITLE, identity)
            .map_err(|error| self.failed(CLUSTER, error.into()))?;
        let put = self.bucket.put_new(CLUSTER, &mut &text[..]);
        match put.map_err(|error| self.failed(CLUSTER, error))? {
            Put::New => Ok(()),
            Put::Exists => match self.identity()? == *identity {
                // The answer of an earlier attempt was lost.
                true => Ok(()),
                false => Err(Error::ClusterExists { place: self.url.clone() }),
            },
        }
    }

    /// Makes this place the cluster again that it was, after its object was lost or damaged.
    pub(crate) fn identify_again(&self, identity: &Identity) -> Result<()> {
        match self.find_identity() {
            // Another call was faster.
            Ok(Some(found)) if found.id == identity.id => Ok(()),
            Ok(None) => match self.identify(identity) {
                Err(Error::ClusterExists { .. }) if self.identity()?.id == identity.id => Ok(()),
                done => done,
            },
            Err(Error::Damaged { .. }) => {
                let text = sealed_json::encode(TITLE, identity)
                    .map_err(|error| self.failed(CLUSTER, error.into()))?;
                self.bucket.replace(CLUSTER, &text).map_err(|error| self.failed(CLUSTER, error))
            }
            Ok(Some(_)) => Err(Error::ClusterExists { place: self.url.clone() }),
            Err(error) => Err(error),
        }
    }

    /// Creates the folders of an existing cluster that are often empty, and that a copy may lack.
    pub(crate) fn restore_folders(&self) -> Result<()> {
        self.make_folders(&["tmp", crate::blobs::FOLDER])
    }

    /// Creates folders in the bucket, if it is a folder itself.
    pub(crate) fn make_folders(&self, names: &[&str]) -> Result<()> {
        let Some(folder) = self.folder()? else { return Ok(()) };
        let disk = OsDisk::new();
        for path in names.iter().map(|name| folder.join(name)) {
            if disk.entry(&path).map_err(Error::file(&path))?.is_none() {
                match disk.create_dir(&path).and_then(|()| disk.sync_dir(&folder)) {
                    // A member that may only read cannot write there either.
                    Err(error)
                        if [ErrorKind::AlreadyExists, ErrorKind::PermissionDenied]
                            .contains(&error.kind()) => {}
                    made => made.map_err(Error::file(&path))?,
                }
            }
        }
        Ok(())
    }

    /// Makes the names of the folders in the bucket durable, if it is a folder itself.
    pub(crate) fn sync_root(&self) -> Result<()> {
        let Some(folder) = self.folder()? else { return Ok(()) };
        OsDisk::new().sync_dir(&folder).map_err(Error::file(&folder))
    }

    /// Fails if the place holds batches, or, if it is a folder, anything that an interrupted
    /// creation does not leave.
    pub(crate) fn check_new(&self) -> Result<()> {
        let not_empty = |object: &str| {
            Err(Error::NotEmpty { place: self.url.clone(), object: object.to_owned() })
        };
        let list = |folder: &str| {
            self.bucket.list(folder).map_err(|error| self.failed("the list of its objects", error))
        };
        if self.bucket.exists(MOVE).map_err(|error| self.failed(MOVE, error))? {
            return not_empty(MOVE);
        }
        let logged = list(crate::bucket_order::LOG)?;
        if let Some(object) = logged.iter().find(|name| !name.contains("probe-")) {
            return not_empty(object);
        }
        let Some(folder) = self.folder()? else { return Ok(()) };
        let names = names_in(&folder)?;
        let is_other = |name: &&String| {
            ![BASE, crate::bucket_order::LOG, crate::blobs::FOLDER, "tmp"].contains(&name.as_str())
        };
        names.iter().find(is_other).map_or(Ok(()), |name| not_empty(name))
    }
}

/// The bucket, behind that of a test.
fn through(bucket: Arc<dyn Bucket>) -> Arc<dyn Bucket> {
    #[cfg(feature = "testing")]
    let bucket = crate::testing::wrapped(bucket);
    bucket
}

/// The names in a folder; none if it does not exist.
fn names_in(folder: &Path) -> Result<Vec<String>> {
    let disk = OsDisk::new();
    let failed = |error| Error::File { path: PathBuf::from(folder), source: error };
    match disk.entry(folder).map_err(failed)? {
        Some(_) => {
            let mut names = disk.names(folder).map_err(failed)?;
            names.sort_unstable();
            Ok(names)
        }
        None => Ok(Vec::new()),
    }
}

/// A number of 128 bits as hexadecimal digits.
pub(crate) mod hex128 {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(number: &u128, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{number:032x}"))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u128, D::Error> {
        let text = String::deserialize(from)?;
        u128::from_str_radix(&text, 16).map_err(D::Error::custom)
    }
}
