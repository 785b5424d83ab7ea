//! An archive in a bucket of S3, of a service with the same interface, of Google Cloud Storage or
//! of Azure.
//!
//! A small object is stored by a conditional request, which fails if the name is taken. A larger
//! object is sent in parts, without a condition. Its name ends with the hash of its contents, so
//! two archivers that send it send the same bytes.

use std::fmt;
use std::io::{self, ErrorKind, Read};
use std::pin::Pin;
use std::sync::Arc;

use futures_util::{Stream, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Error as StoreError, MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutPayload,
    parse_url_opts,
};
use tokio::runtime::{Builder, Runtime};
use url::Url;

use crate::bucket::{Bucket, Object, Put};
use crate::error::{Error, Result};

/// Bytes of a part of an object, of which one is in memory. S3 takes at most 10,000 parts of at
/// least 5 MiB.
const PART_BYTES: usize = 5 << 20;

/// The object that tests whether the bucket refuses to overwrite.
const PROBE: &str = "probe";

/// A prefix of a bucket.
#[derive(Clone)]
pub struct Cloud {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    /// Runs the requests of the thread that makes them.
    runtime: Arc<Runtime>,
}

impl fmt::Debug for Cloud {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.store, self.prefix)
    }
}

impl Cloud {
    /// The bucket and the prefix that a URL such as `s3://bucket/prefix` names. Credentials,
    /// region and endpoint are those of the environment (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT`,
    /// `GOOGLE_APPLICATION_CREDENTIALS`, `AZURE_STORAGE_ACCOUNT_NAME`, …). No request is made yet.
    ///
    /// # Errors
    /// [`Error::Url`]: the URL or the environment lacks something.
    pub fn open(url: &str) -> Result<Self> {
        let refuse = |what: String| {
            let what = format!(
                "{what}; write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX, \
                 and set the provider's environment variables"
            );
            Error::Url { url: url.to_owned(), what }
        };
        let parsed = Url::parse(url).map_err(|error| refuse(error.to_string()))?;
        let environment = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        let (store, prefix) =
            parse_url_opts(&parsed, environment).map_err(|error| refuse(error.to_string()))?;
        Self::new(store.into(), prefix).map_err(|error| Error::storage("the HTTP client", error))
    }

    /// The objects of a store whose names begin with `prefix`.
    ///
    /// # Errors
    /// The system has no event queue left.
    pub fn new(store: Arc<dyn ObjectStore>, prefix: Path) -> io::Result<Self> {
        let runtime = Arc::new(Builder::new_current_thread().enable_all().build()?);
        Ok(Self { store, prefix, runtime })
    }

    fn path(&self, name: &str) -> Path {
        name.split('/').fold(self.prefix.clone(), |path, part| path.join(part))
    }

    fn wait<T>(&self, request: impl Future<Output = Result<T, StoreError>>) -> io::Result<T> {
        self.runtime.block_on(request).map_err(io_error)
    }

    fn put_if_new(&self, path: &Path, bytes: Vec<u8>) -> io::Result<Put> {
        let payload = PutPayload::from(bytes);
        let put = self.store.put_opts(path, payload.clone(), PutMode::Create.into());
        match self.runtime.block_on(put) {
            Ok(_) => Ok(Put::New),
            // A request that was sent twice may find the object that it stored itself.
            Err(StoreError::AlreadyExists { .. } | StoreError::Precondition { .. }) => {
                let there = self.wait(async { self.store.get(path).await?.bytes().await })?;
                let is_own = there.iter().eq(payload.iter().flatten());
                Ok(if is_own { Put::New } else { Put::Exists })
            }
            Err(error) => Err(io_error(error)),
        }
    }

    /// Sends an object that begins with `part` and continues with `bytes`.
    fn put_in_parts(&self, path: &Path, part: Vec<u8>, bytes: &mut dyn Read) -> io::Result<Put> {
        match self.wait(self.store.head(path)) {
            Ok(_) => return Ok(Put::Exists),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let mut upload = self.wait(self.store.put_multipart(path))?;
        let sent = self.send_parts(&mut *upload, part, bytes);
        if sent.is_err() {
            // If this fails too, the bucket's own rules remove the parts.
            let _ = self.wait(upload.abort());
        }
        sent.map(|()| Put::New)
    }

    fn send_parts(
        &self,
        upload: &mut dyn MultipartUpload,
        mut part: Vec<u8>,
        bytes: &mut dyn Read,
    ) -> io::Result<()> {
        while !part.is_empty() {
            self.wait(upload.put_part(part.into()))?;
            part = read_part(bytes)?;
        }
        self.wait(upload.complete()).map(drop)
    }
}

impl Bucket for Cloud {
    fn put_new(&self, name: &str, bytes: &mut dyn Read) -> io::Result<Put> {
        let (path, part) = (self.path(name), read_part(bytes)?);
        match part.len() < PART_BYTES {
            true => self.put_if_new(&path, part),
            false => self.put_in_parts(&path, part, bytes),
        }
    }

    fn get(&self, name: &str) -> io::Result<Option<Object>> {
        match self.wait(self.store.get(&self.path(name))) {
            Ok(found) => {
                let bytes = found.meta.size;
                let stream: Chunks = Box::pin(found.into_stream().map_ok(Into::into));
                let reader =
                    StreamReader { chunk: io::Cursor::default(), stream, cloud: self.clone() };
                Ok(Some(Object { bytes, reader: Box::new(reader) }))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let path = self.path(folder);
        let found = self.wait(self.store.list(Some(&path)).try_collect::<Vec<_>>())?;
        let names = found.iter().filter_map(|object| object.location.filename());
        let mut names: Vec<String> = names.map(|name| format!("{folder}/{name}")).collect();
        names.sort_unstable();
        Ok(names)
    }

    fn delete(&self, name: &str) -> io::Result<()> {
        match self.wait(self.store.delete(&self.path(name))) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            deleted => deleted,
        }
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        match self.wait(self.store.head(&self.path(name))) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let payload = PutPayload::from(bytes.to_vec());
        self.wait(self.store.put(&self.path(name), payload)).map(drop)
    }

    /// Does not exclude other archivers, because [`Bucket::put_new`] refuses the second one that
    /// writes a manifest. Checks that the bucket can refuse to overwrite an object.
    fn lock(&self) -> Result<Option<Box<dyn Send + Sync>>> {
        let probe = |bytes: &[u8]| {
            let put = self.put_if_new(&self.path(PROBE), bytes.to_vec());
            put.map_err(|error| Error::storage("the first request to the bucket", error))
        };
        probe(b"1")?;
        match probe(b"2")? {
            Put::Exists => Ok(None),
            Put::New => Err(Error::Storage {
                what: format!("{self:?}"),
                source: io::Error::new(
                    ErrorKind::Unsupported,
                    "the bucket overwrites an object that exists although the request forbids it \
                     (If-None-Match); use a service with conditional writes",
                ),
            }),
        }
    }
}

/// Reads up to a whole part.
fn read_part(bytes: &mut dyn Read) -> io::Result<Vec<u8>> {
    let mut part = Vec::new();
    bytes.take(PART_BYTES as u64).read_to_end(&mut part)?;
    Ok(part)
}

type Chunks = Pin<Box<dyn Stream<Item = Result<Vec<u8>, StoreError>> + Send>>;

struct StreamReader {
    chunk: io::Cursor<Vec<u8>>,
    stream: Chunks,
    cloud: Cloud,
}

impl Read for StreamReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            let n = self.chunk.read(into)?;
            if n > 0 || into.is_empty() {
                return Ok(n);
            }
            match self.cloud.runtime.block_on(self.stream.next()) {
                Some(chunk) => self.chunk = io::Cursor::new(chunk.map_err(io_error)?),
                None => return Ok(0),
            }
        }
    }
}

fn io_error(error: StoreError) -> io::Error {
    let kind = match &error {
        StoreError::NotFound { .. } => ErrorKind::NotFound,
        StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => {
            ErrorKind::PermissionDenied
        }
        StoreError::NotSupported { .. } | StoreError::NotImplemented { .. } => {
            ErrorKind::Unsupported
        }
        _ => ErrorKind::Other,
    };
    io::Error::new(kind, without_xml(&error.to_string()))
}

/// The message without XML: services answer in XML, of which only the code and the message are
/// kept.
fn without_xml(message: &str) -> String {
    let Some((before, xml)) = message.split_once("<?xml") else { return message.to_owned() };
    let of = |tag: &str| {
        let (_, rest) = xml.split_once(&format!("<{tag}>"))?;
        Some(rest.split_once("</")?.0)
    };
    let before = before.trim_end_matches([' ', ':', '\n']);
    match (of("Code"), of("Message")) {
        (Some(code), Some(what)) => format!("{before}: {code}: {what}"),
        _ => before.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_an_answer_in_xml_only_code_and_message_are_shown() {
        let answer = "404 Not Found: <?xml version=\"1.0\"?>\n<Error><Code>NoSuchBucket</Code>\
                      <Message>There is no such bucket.</Message><HostId>zVnv</HostId></Error>";
        let shown = "404 Not Found: NoSuchBucket: There is no such bucket.";
        assert_eq!(without_xml(answer), shown);
        assert_eq!(without_xml("403: <?xml?><html>no</html>"), "403");
        assert_eq!(without_xml("no answer"), "no answer");
    }
}
