//! Clusters over three servers of NATS JetStream that are killed, stopped, and set up wrongly.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use plimsoll::{Db, Error as StoreError, Options};
use plimsoll_archive::{Archive, Bucket, Folders, Put, bucket_at};
use plimsoll_replica::{BucketOrder, Error, Heal, create, heal, join, open_member};
use tempfile::TempDir;

use crate::conformance::CHECKS;
use crate::nats_servers::Servers;

fn options() -> Options {
    Options::new().memory_bytes(16 << 20).warm(false).order_timeout(Duration::from_secs(30))
}

fn bucket(url: &str) -> Arc<dyn Bucket> {
    let bucket = bucket_at(url, Folders::Create).unwrap();
    assert_eq!(bucket.check().unwrap(), None);
    bucket
}

fn read(bucket: &dyn Bucket, name: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    bucket.get(name).unwrap()?.reader.read_to_end(&mut bytes).unwrap();
    Some(bytes)
}

/// A cluster whose members are folders.
struct World {
    dir: TempDir,
    url: String,
}

impl World {
    fn new(url: &str, others: &[&str]) -> Self {
        let world = Self { dir: tempfile::tempdir().unwrap(), url: url.to_owned() };
        let db = Db::open(world.path("one"), options()).unwrap();
        db.put(&db.keyspace("default").unwrap(), "first", "1").unwrap();
        db.close().unwrap();
        create(url, world.path("one"), options()).unwrap();
        others.iter().for_each(|name| drop(join(url, world.path(name), options()).unwrap()));
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn open(&self, name: &str) -> Db {
        open_member(self.path(name), options()).unwrap()
    }
}

#[test]
#[ignore = "needs the server of NATS; .ci/run runs it"]
fn nats_keeps_the_contract_of_an_order() {
    let servers = Servers::start();
    for (name, check) in CHECKS {
        let url = servers.url(name);
        check(&|| Arc::new(BucketOrder::new(bucket(&url), &url).unwrap()));
    }
}

#[test]
#[ignore = "needs the server of NATS; .ci/run runs it"]
fn nats_keeps_objects_of_any_size_once() {
    let servers = Servers::start();
    let url = servers.url("objects");
    let buckets: Vec<_> = (0..8).map(|_| bucket(&url)).collect();
    let barrier = Barrier::new(8);
    for round in 0..20 {
        let name = format!("log/{round}");
        let wins: Vec<_> = std::thread::scope(|scope| {
            let racers: Vec<_> = buckets
                .iter()
                .enumerate()
                .map(|(racer, bucket)| {
                    let (name, barrier) = (&name, &barrier);
                    scope.spawn(move || {
                        barrier.wait();
                        bucket.put_new(name, &mut &[racer as u8; 9][..]).unwrap() == Put::New
                    })
                })
                .collect();
            racers.into_iter().map(|racer| racer.join().unwrap()).collect()
        });
        let winner = wins.iter().position(|won| *won).unwrap();
        assert_eq!(wins.iter().filter(|won| **won).count(), 1);
        assert_eq!(read(&*buckets[7], &name).unwrap(), [winner as u8; 9]);
    }
    let (one, two) = (&buckets[0], &buckets[1]);
    for len in [0, 1, 1_044_479, 1_044_480, 1_044_481, 9 << 20] {
        let (name, content) = (format!("blob/{len}.x"), vec![len as u8 | 1; len]);
        assert_eq!(read(&**two, &name), None);
        assert_eq!(one.put_new(&name, &mut &content[..]).unwrap(), Put::New);
        assert_eq!(two.put_new(&name, &mut &b"other"[..]).unwrap(), Put::Exists);
        assert!(read(&**two, &name).unwrap() == content, "{len}");
    }
    assert_eq!(one.list("blob").unwrap().len(), 6);
    assert_eq!(one.sweep(Duration::ZERO).unwrap(), 0, "all pieces are in use");
    one.delete("blob/0.x").unwrap();
    one.delete(&format!("blob/{}.x", 9 << 20)).unwrap();
    assert_eq!(two.list("blob").unwrap().len(), 4);
    assert_eq!(two.put_new("blob/0.x", &mut &b"again"[..]).unwrap(), Put::New);
    one.replace("hint", b"1").unwrap();
    two.replace("hint", b"2").unwrap();
    assert_eq!(read(&**one, "hint").unwrap(), b"2");
    // A writer that fails leaves pieces, which a sweep removes.
    let begin = vec![7; 2 << 20];
    two.put_new("blob/failed", &mut (&begin[..]).chain(Failing)).unwrap_err();
    assert_eq!(one.sweep(Duration::from_secs(60)).unwrap(), 0);
    assert_eq!(one.sweep(Duration::ZERO).unwrap(), 1);
    assert_eq!(read(&**one, "blob/failed"), None);
    let begun = Instant::now();
    let waited = one.wait_for("log/next", Duration::from_millis(300)).unwrap();
    assert!(waited.is_ok() && begun.elapsed() >= Duration::from_millis(300));
}

/// Zeros. In their middle, another member sweeps.
struct Swept<'a> {
    bucket: &'a dyn Bucket,
    left: usize,
}

impl Read for Swept<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let n = into.len().min(self.left).min(64 << 10);
        if self.left > 2 << 20 && self.left - n <= 2 << 20 {
            assert_eq!(self.bucket.sweep(Duration::ZERO).unwrap(), 1);
        }
        self.left -= n;
        into[..n].fill(0);
        Ok(n)
    }
}

#[test]
#[ignore = "needs the server of NATS; .ci/run runs it"]
fn an_object_whose_pieces_are_swept_while_it_is_written_is_not_stored() {
    let servers = Servers::start();
    let [one, two] = ["users", "users"].map(|stream| bucket(&servers.url(stream)));
    let mut swept = Swept { bucket: &*one, left: 5 << 20 };
    let failed = two.put_new("blob/swept", &mut swept).unwrap_err();
    assert!(failed.to_string().contains("were swept"), "{failed}");
    assert_eq!(read(&*one, "blob/swept"), None);
    let content = vec![1; 5 << 20];
    assert_eq!(two.put_new("blob/swept", &mut &content[..]).unwrap(), Put::New);
    assert_eq!(one.sweep(Duration::ZERO).unwrap(), 0);
    assert!(read(&*one, "blob/swept").unwrap() == content);
}

#[test]
#[ignore = "needs the server of NATS; .ci/run runs it"]
fn a_stream_that_is_changed_or_made_anew_while_it_is_used_is_noticed() {
    let servers = Servers::start();
    let url = servers.url("users");
    let (one, two) = (bucket(&url), bucket(&url));
    assert_eq!(one.put_new("log/1", &mut &b"x"[..]).unwrap(), Put::New);
    assert!(two.exists("log/1").unwrap());
    let config = |age: u64| {
        let subjects = ["o.>", "p.>", "b"].map(|kind| format!("\"plimsoll.users.{kind}\""));
        format!(
            "{{\"name\":\"users\",\"subjects\":[{}],\"num_replicas\":3,\"storage\":\"file\",\
             \"retention\":\"limits\",\"discard\":\"new\",\"allow_rollup_hdrs\":true,\
             \"max_age\":{age}}}",
            subjects.join(",")
        )
    };
    request_with(&servers, "$JS.API.STREAM.UPDATE.users", &config(3_600_000_000_000));
    let failed = one.exists("log/2").unwrap_err().to_string();
    assert!(failed.contains("max_age"), "{failed}");
    request_with(&servers, "$JS.API.STREAM.UPDATE.users", &config(0));
    assert!(!one.exists("log/2").unwrap());
    // One that has its name is not taken for it, however often it is asked.
    request(&servers, "$JS.API.STREAM.DELETE.users");
    let made = bucket(&url);
    assert_eq!(made.put_new("log/1", &mut &b"y"[..]).unwrap(), Put::New);
    for bucket in [&one, &two, &one, &two] {
        let failed = bucket.exists("log/2").unwrap_err().to_string();
        assert!(failed.contains("was created again"), "{failed}");
    }
}

struct Failing;

impl Read for Failing {
    fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
        Err(std::io::Error::other("the reader failed"))
    }
}

#[test]
#[ignore = "needs the server of NATS; .ci/run runs it"]
fn an_archive_in_nats_is_verified_and_restored() {
    let servers = Servers::start();
    let (dir, url) = (tempfile::tempdir().unwrap(), servers.url("archive"));
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    let rows = db.keyspace("default").unwrap();
    // Bytes that do not become one message by compression.
    let large: Vec<u8> =
        (0..4_u32 << 20).map(|i| (i.wrapping_mul(i ^ 0x9e37_79b9) >> 24) as u8).collect();
    db.put(&rows, "large", &large).unwrap();
    Archive::open(&url).unwrap().push(&db).unwrap();
    let archive = Archive::open(&url).unwrap();
    archive.verify(&mut |_| {}).unwrap();
    let restored = dir.path().join("restored");
    archive.restore(&restored, options(), plimsoll::Moment::Newest).unwrap();
    let then = Db::open(&restored, options()).unwrap();
    assert!(then.get(&then.keyspace("default").unwrap(), "large").unwrap().unwrap() == large);
}

#[test]
#[ignore = "needs the server of NATS; .ci/run runs it"]
fn members_lose_no_commit_while_leaders_are_killed_and_stopped() {
    const THREADS: usize = 4;
    let seconds = std::env::var("NATS_SECONDS").map_or(60, |text| text.parse().unwrap());
    let mut servers = Servers::start();
    let world = World::new(&servers.url("users"), &["two", "three"]);
    let members = ["one", "two", "three"].map(|name| world.open(name));
    let (is_over, acked) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let (failed, longest) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for (member, db) in members.iter().enumerate() {
            for thread in 0..THREADS {
                let (is_over, acked, failed, longest) = (&is_over, &acked, &failed, &longest);
                scope.spawn(move || {
                    let rows = db.keyspace("default").unwrap();
                    for number in 0.. {
                        if is_over.load(Ordering::SeqCst) {
                            break;
                        }
                        let (key, begun) = (format!("{member}/{thread}/{number}"), Instant::now());
                        match db.put(&rows, &key, "x") {
                            Ok(_) => {
                                let took = begun.elapsed().as_millis() as u64;
                                longest.fetch_max(took, Ordering::Relaxed);
                                acked.lock().unwrap().push(key);
                            }
                            Err(StoreError::Unavailable { .. } | StoreError::InDoubt { .. }) => {
                                failed.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(error) => panic!("{key}: {error}"),
                        }
                    }
                });
            }
        }
        let begun = Instant::now();
        let mut round = 0;
        while begun.elapsed() < Duration::from_secs(seconds) {
            std::thread::sleep(Duration::from_secs(3));
            let Some(leader) = servers.leader("users") else { continue };
            let before = acked.lock().unwrap().len();
            match round % 3 {
                0 => {
                    servers.kill(leader);
                    std::thread::sleep(Duration::from_secs(10));
                    servers.restart(leader);
                }
                1 => {
                    servers.signal(leader, "STOP");
                    std::thread::sleep(Duration::from_secs(8));
                    servers.signal(leader, "CONT");
                }
                _ => {
                    let follower = (leader + 1) % 3;
                    servers.kill(follower);
                    std::thread::sleep(Duration::from_secs(2));
                    servers.restart(follower);
                }
            }
            servers.wait_until_healthy();
            let since = acked.lock().unwrap().len() - before;
            println!("round {round}: {since} commits during the fault");
            round += 1;
        }
        std::thread::sleep(Duration::from_secs(2));
        is_over.store(true, Ordering::SeqCst);
        assert!(round >= 3, "{round} faults");
    });
    let acked = acked.into_inner().unwrap();
    println!("{} acknowledged, {failed:?} failed, longest {longest:?} ms", acked.len());
    assert!(acked.len() > 100);
    for db in &members {
        db.sync().unwrap();
    }
    let hashes = members.each_ref().map(|db| db.state_hash().unwrap());
    assert!(hashes[0] == hashes[1] && hashes[0] == hashes[2]);
    for db in &members {
        let rows = db.keyspace("default").unwrap();
        let lost = acked.iter().filter(|key| db.get(&rows, key).unwrap().is_none()).count();
        assert_eq!(lost, 0);
    }
    // A new member reads the same log.
    join(&world.url, world.path("four"), options()).unwrap();
    assert!(world.open("four").state_hash().unwrap() == hashes[0]);
}

#[test]
#[ignore = "needs the server of NATS; .ci/run runs it"]
fn servers_and_streams_that_may_lose_commits_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    Db::open(&store, options()).unwrap().close().unwrap();
    let refused = |url: &str, what: &[&str]| {
        let error = create(url, &store, options()).unwrap_err();
        assert!(matches!(&error, Error::Unsafe { .. }), "{url}: {error}");
        what.iter().for_each(|what| assert!(error.to_string().contains(what), "{error}"));
    };
    let lazy = Servers::with(1, "sync_interval: \"2m\"");
    refused(&lazy.url("users"), &["server n0", "sync_interval: always"]);
    refused(&lazy.bare_url("users"), &["?monitor=", "?unsafe_assume_sync=true"]);
    refused(&format!("{}?unsafe_assume_sync=true", lazy.bare_url("u")), &["?replicas=1"]);
    drop(lazy);
    let servers = Servers::start();
    // One that was created with fewer replicas.
    bucket(&format!("{}&replicas=1", servers.url("small")));
    refused(&servers.url("small"), &["num_replicas 1", "?replicas=1"]);
    // One whose server is not among the monitored ones.
    let all = servers.url("users");
    let (front, _) = all.rsplit_once(',').unwrap();
    refused(front, &["server n2", "does not name its monitoring port"]);
    create(&all, &store, options()).unwrap();
    let db = open_member(&store, options()).unwrap();
    db.put(&db.keyspace("default").unwrap(), "a", "1").unwrap();
}

#[test]
#[ignore = "needs the server of NATS; .ci/run runs it"]
fn a_stream_that_was_deleted_is_named_and_healed() {
    let servers = Servers::start();
    let world = World::new(&servers.url("users"), &["two"]);
    let put = |db: &Db, key: &str| db.put(&db.keyspace("default").unwrap(), key, "1");
    let one = world.open("one");
    put(&one, "second").unwrap();
    one.close().unwrap();
    request(&servers, "$JS.API.STREAM.DELETE.users");
    let options = options().order_timeout(Duration::from_secs(1));
    let one = open_member(world.path("one"), options.clone()).unwrap();
    let refused = put(&one, "third").unwrap_err().to_string();
    assert!(refused.contains("there is no stream users"), "{refused}");
    assert!(one.get(&one.keyspace("default").unwrap(), "second").unwrap().is_some());
    one.close().unwrap();
    let how = Heal { url: Some(world.url.clone()), accept_loss: false };
    heal(&[world.path("one")], &how, options).unwrap();
    let (one, two) = (world.open("one"), world.open("two"));
    put(&one, "third").unwrap();
    put(&two, "fourth").unwrap();
    one.sync().unwrap();
    two.sync().unwrap();
    assert!(one.state_hash().unwrap() == two.state_hash().unwrap());
    let rows = two.keyspace("default").unwrap();
    assert!(
        two.get(&rows, "second").unwrap().is_some() && two.get(&rows, "third").unwrap().is_some()
    );
}

/// Sends one request to the servers.
fn request(servers: &Servers, subject: &str) {
    let answer = request_with(servers, subject, "");
    assert!(answer.contains("\"success\":true"), "{answer}");
}

/// Sends one request with a payload; returns the answer, which reports no error.
fn request_with(servers: &Servers, subject: &str, payload: &str) -> String {
    use std::io::{BufRead, BufReader, Write};
    let url = servers.bare_url("x");
    let host = url.trim_start_matches("nats://").split([',', '/']).next().unwrap();
    let mut stream = std::net::TcpStream::connect(host).unwrap();
    let text = format!(
        "CONNECT {{\"verbose\":false}}\r\nSUB r 1\r\nPUB {subject} r {}\r\n{payload}\r\n",
        payload.len()
    );
    stream.write_all(text.as_bytes()).unwrap();
    let mut lines = BufReader::new(stream).lines().map(|line| line.unwrap());
    lines.find(|line| line.starts_with("MSG r")).unwrap();
    let answer = lines.next().unwrap();
    assert!(!answer.contains("\"error\""), "{answer}");
    answer
}
