//! Archives in a bucket of an object store: the one that the crate `object_store` has in memory.

use std::fmt;
use std::io::{Cursor, Read};
use std::sync::Arc;

use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as StoreResult,
};
use plimsoll::{Db, Moment, Retention};
use plimsoll_archive::{Archive, Bucket, Cloud, Error, Put};

use crate::support::{World, options};

fn cloud(store: &Arc<impl ObjectStore>) -> Cloud {
    Cloud::new(Arc::clone(store) as _, Path::from("some/prefix")).unwrap()
}

fn archive(store: &Arc<impl ObjectStore>) -> Archive {
    Archive::of(Arc::new(cloud(store)), "s3://bucket/some/prefix")
}

#[test]
fn every_archived_moment_is_restored_from_a_bucket() {
    let store = Arc::new(InMemory::new());
    let mut world = World::new(60, Retention::Latest);
    let mut moments = Vec::new();
    for round in 0..6 {
        world.write(30);
        // Incompressible, and larger than a part.
        let large: Vec<u8> = (0..9 << 20).map(|_| world.rng.u8(..)).collect();
        if round == 2 {
            world.put("large", large);
        }
        archive(&store).push(world.db()).unwrap();
        moments.push(world.newest());
    }
    let report = archive(&store).verify(&mut |_| {}).unwrap();
    assert_eq!((report.damage, report.notes), (Vec::new(), Vec::new()));
    for (number, glsn) in moments.into_iter().enumerate() {
        let dest = world.path(&format!("restored {number}"));
        let report = archive(&store).restore(&dest, options(), Moment::Glsn(glsn)).unwrap();
        assert!(report.is_whole && report.problems.is_empty(), "{report:?}");
        world.check(&dest, glsn);
    }
    let foreign = world.path("foreign");
    let other = Db::open(&foreign, options()).unwrap();
    let refused = archive(&store).push(&other);
    assert!(matches!(refused, Err(Error::OtherStore { .. })), "{refused:?}");
}

#[test]
fn a_second_archiver_does_not_replace_what_the_first_has_stored() {
    let store = Arc::new(InMemory::new());
    let mut world = World::new(61, Retention::Forever);
    world.write(10);
    let (mut first, mut second) = (archive(&store), archive(&store));
    first.push(world.db()).unwrap();
    second.push(world.db()).unwrap();
    world.write(10);
    first.push(world.db()).unwrap();
    world.write(10);
    let refused = second.push(world.db());
    assert!(matches!(refused, Err(Error::OtherArchiver { .. })), "{refused:?}");
    let dest = world.path("restored");
    archive(&store).restore(&dest, options(), Moment::Newest).unwrap();
}

#[test]
fn objects_are_stored_once_whatever_their_size() {
    let bucket = cloud(&Arc::new(InMemory::new()));
    let read = |name: &str| {
        let mut object = bucket.get(name).unwrap().unwrap();
        let mut bytes = Vec::new();
        object.reader.read_to_end(&mut bytes).unwrap();
        assert_eq!(object.bytes, bytes.len() as u64);
        bytes
    };
    for (number, len) in [0, 1, (8 << 20) - 1, 8 << 20, (16 << 20) + 1].into_iter().enumerate() {
        let (name, bytes) = (format!("folder/{number}"), vec![number as u8; len]);
        assert_eq!(bucket.put_new(&name, &mut &bytes[..]).unwrap(), Put::New, "{len} bytes");
        assert!(read(&name) == bytes, "{len} bytes");
        let other = vec![9; len + 1];
        assert_eq!(bucket.put_new(&name, &mut &other[..]).unwrap(), Put::Exists, "{len} bytes");
        assert!(read(&name) == bytes, "{len} bytes");
    }
    // As if the first answer was lost, and the request was repeated.
    assert_eq!(bucket.put_new("folder/1", &mut Cursor::new([1])).unwrap(), Put::New);
    assert_eq!(bucket.list("folder").unwrap().len(), 5);
    assert_eq!(bucket.list("folder").unwrap()[4], "folder/4");
    bucket.delete("folder/4").unwrap();
    bucket.delete("folder/4").unwrap();
    assert!(bucket.get("folder/4").unwrap().is_none());
    assert_eq!(bucket.list("folder").unwrap().len(), 4);
    assert_eq!(bucket.list("fold").unwrap(), Vec::<String>::new());
}

#[test]
fn an_object_that_cannot_be_read_to_its_end_is_not_stored() {
    struct Broken(u64);
    impl Read for Broken {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            let n = into.len().min(self.0 as usize);
            self.0 -= n as u64;
            if n == 0 { Err(std::io::Error::other("broken")) } else { Ok(n) }
        }
    }
    let bucket = cloud(&Arc::new(InMemory::new()));
    for len in [1000, 20 << 20] {
        let error = bucket.put_new("folder/one", &mut Broken(len)).unwrap_err();
        assert_eq!(error.to_string(), "broken");
        assert!(bucket.get("folder/one").unwrap().is_none());
    }
}

/// A service that ignores conditions.
#[derive(Debug)]
struct Careless(InMemory);

impl fmt::Display for Careless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("careless")
    }
}

#[async_trait::async_trait]
impl ObjectStore for Careless {
    async fn put_opts(
        &self,
        path: &Path,
        bytes: PutPayload,
        _: PutOptions,
    ) -> StoreResult<PutResult> {
        self.0.put_opts(path, bytes, PutMode::Overwrite.into()).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        self.0.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> StoreResult<GetResult> {
        self.0.get_opts(path, options).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, StoreResult<Path>>,
    ) -> BoxStream<'static, StoreResult<Path>> {
        self.0.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        self.0.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> StoreResult<ListResult> {
        self.0.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> StoreResult<()> {
        self.0.copy_opts(from, to, options).await
    }
}

#[test]
fn a_bucket_that_overwrites_is_refused() {
    let store = Arc::new(Careless(InMemory::new()));
    let world = World::new(62, Retention::Forever);
    let refused = archive(&store).push(world.db()).unwrap_err();
    assert!(refused.to_string().contains("use a service with conditional writes"), "{refused}");
    let path = Path::from("some/prefix/manifests");
    assert!(Cloud::new(store, path).unwrap().list("").unwrap().is_empty());
}

#[test]
fn urls_of_buckets_are_places_of_archives() {
    for url in ["gs://bucket/prefix", "az://container/prefix"] {
        // Only the environment has the account's name.
        let opened = Archive::open(url);
        assert!(matches!(opened, Ok(_) | Err(Error::Url { .. })), "{url}: {opened:?}");
    }
    let archive = Archive::open("s3://bucket/prefix").unwrap();
    assert!(format!("{archive:?}").contains("bucket"), "{archive:?}");
    assert!(matches!(Archive::open("s3://"), Err(Error::Url { .. })));
}
