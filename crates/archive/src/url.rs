//! URLs of buckets: which storage a URL names.

use std::sync::Arc;

use plimsoll_disk::os::OsDisk;

use crate::bucket::Bucket;
#[cfg(feature = "cloud")]
use crate::cloud::Cloud;
use crate::error::{Error, Result};
use crate::folder::Folder;
#[cfg(feature = "nats")]
use crate::nats::Nats;
#[cfg(feature = "postgres")]
use crate::postgres::Postgres;

/// Whether a bucket creates the folders, tables or stream of its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Folders {
    /// They are created by the first write.
    Create,
    /// They exist. If they do not, the bucket is lost or not mounted, and every write fails.
    Existing,
}

/// A storage outside of the file systems of this machine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Service {
    Cloud,
    Postgres,
    Nats,
}

impl Service {
    /// The service of a URL; `None` if it is a path or has another scheme.
    fn of(url: &str) -> Option<Self> {
        Some(match url.split_once("://")?.0 {
            "s3" | "s3a" | "gs" | "az" | "azure" | "adl" | "abfs" | "abfss" => Self::Cloud,
            "postgres" | "postgresql" => Self::Postgres,
            "nats" | "tls" => Self::Nats,
            _ => return None,
        })
    }
}

/// The bucket at a place, for several writers: a path, a URL `file:///path`, or, with the features
/// `cloud`, `postgres` and `nats`, the URL of a bucket, a database or a stream. This call reads and
/// writes nothing. A folder is [exclusive](Folder::exclusive).
///
/// # Errors
/// [`Error::Url`]: the URL has another scheme, or no path.
///
/// # Examples
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// use plimsoll_archive::{Folders, Put, bucket_at};
///
/// let url = format!("file://{}/bucket", dir.path().display());
/// let bucket = bucket_at(&url, Folders::Create)?;
/// assert_eq!(bucket.put_new("folder/name", &mut &b"first"[..])?, Put::New);
/// assert_eq!(bucket.put_new("folder/name", &mut &b"second"[..])?, Put::Exists);
/// assert!(bucket.exists("folder/name")?);
/// # Ok(())
/// # }
/// ```
pub fn bucket_at(url: &str, folders: Folders) -> Result<Arc<dyn Bucket>> {
    if let Some(bucket) = remote_of(url, folders)? {
        return Ok(bucket);
    }
    let folder = Folder::new(Arc::new(OsDisk::new()), path_of(url)?).exclusive();
    Ok(Arc::new(match folders {
        Folders::Create => folder,
        Folders::Existing => folder.existing(),
    }))
}

/// The URL or path of a folder in the bucket that `url` names. The parameters of a database or a
/// stream stay at the end of the URL.
///
/// # Examples
/// ```
/// use plimsoll_archive::url_of_folder;
///
/// assert_eq!(url_of_folder("/srv/bucket/", "base"), "/srv/bucket/base");
/// let url = "postgres://ada@host/data/users?sslmode=require";
/// assert_eq!(url_of_folder(url, "base"), "postgres://ada@host/data/users/base?sslmode=require");
/// ```
pub fn url_of_folder(url: &str, folder: &str) -> String {
    let (place, parameters) = match url.find('?') {
        Some(at) if has_parameters(url) => url.split_at(at),
        _ => (url, ""),
    };
    format!("{}/{folder}{parameters}", place.trim_end_matches('/'))
}

/// Whether a URL contains a password, or a query, which may be a token. Always false for a database
/// or a stream: their URLs may have parameters, and [`bucket_at`] refuses the secrets in these.
///
/// # Examples
/// ```
/// use plimsoll_archive::has_secret;
///
/// assert!(has_secret("s3://ada:secret@bucket/users"));
/// assert!(!has_secret("s3://bucket/users"));
/// ```
pub fn has_secret(url: &str) -> bool {
    let Some((_, rest)) = url.split_once("://") else { return false };
    let authority = rest.split('/').next().unwrap_or_default();
    let user = authority.rsplit_once('@').map_or("", |(user, _)| user);
    !has_parameters(url) && (user.contains(':') || rest.contains('?'))
}

/// Whether the URL of a storage has parameters, all of which are known to it.
fn has_parameters(url: &str) -> bool {
    matches!(Service::of(url), Some(Service::Postgres | Service::Nats))
}

/// The bucket that a URL names; `None` if it names none outside of this machine's file systems.
pub(crate) fn remote_of(url: &str, folders: Folders) -> Result<Option<Arc<dyn Bucket>>> {
    Service::of(url).map(|service| open(service, url, folders)).transpose()
}

fn open(service: Service, url: &str, folders: Folders) -> Result<Arc<dyn Bucket>> {
    let _ = folders;
    match service {
        #[cfg(feature = "cloud")]
        Service::Cloud => Ok(Arc::new(Cloud::open(url)?)),
        #[cfg(not(feature = "cloud"))]
        Service::Cloud => lacks(url, "buckets", "cloud"),
        #[cfg(feature = "postgres")]
        Service::Postgres => {
            let bucket = Postgres::open(url)?;
            Ok(Arc::new(match folders {
                Folders::Create => bucket,
                Folders::Existing => bucket.existing(),
            }))
        }
        #[cfg(not(feature = "postgres"))]
        Service::Postgres => lacks(url, "PostgreSQL", "postgres"),
        #[cfg(feature = "nats")]
        Service::Nats => Ok(Arc::new(Nats::open(url, folders == Folders::Create)?)),
        #[cfg(not(feature = "nats"))]
        Service::Nats => lacks(url, "NATS", "nats"),
    }
}

/// The error of a storage that this build does not support. It does not contain the URL, which may
/// contain a password.
#[cfg(not(all(feature = "cloud", feature = "postgres", feature = "nats")))]
fn lacks(url: &str, storage: &str, feature: &str) -> Result<Arc<dyn Bucket>> {
    let (scheme, _) = url.split_once("://").unwrap_or((url, ""));
    let what =
        format!("this build does not support {storage}; build it with `--features {feature}`");
    Err(Error::Url { url: format!("{scheme}://…"), what })
}

/// The folder that a URL names.
pub(crate) fn path_of(url: &str) -> Result<&str> {
    let refuse = |what: &str| Err(Error::Url { url: url.to_owned(), what: what.to_owned() });
    let path = match url.split_once("://") {
        None => url,
        Some(("file", path)) => path.strip_prefix("localhost").unwrap_or(path),
        Some(_) => {
            return refuse(
                "this is not the URL of a folder or bucket; give a path, file:///PATH, \
                 s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, \
                 postgres://USER@HOST/DATABASE/SCHEMA or nats://HOST,HOST,HOST/STREAM",
            );
        }
    };
    if url.contains("://") && path.contains('%') {
        return refuse("percent signs in URLs are not decoded; give a path");
    }
    match url.contains("://") && !path.starts_with('/') || path.is_empty() {
        true => refuse("the URL has no absolute path; write file:///PATH"),
        false => Ok(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_and_file_urls_are_places_of_archives() {
        assert_eq!(path_of("some/folder").unwrap(), "some/folder");
        assert_eq!(path_of("/some/folder").unwrap(), "/some/folder");
        assert_eq!(path_of("file:///some/folder").unwrap(), "/some/folder");
        assert_eq!(path_of("file://localhost/some").unwrap(), "/some");
        assert_eq!(path_of("/some%20folder").unwrap(), "/some%20folder");
        for url in ["", "ftp://host/key", "file://host/some", "file://", "file:///some%20folder"] {
            assert!(matches!(path_of(url), Err(Error::Url { .. })), "{url}");
        }
    }
}
