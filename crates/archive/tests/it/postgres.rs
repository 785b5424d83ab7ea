//! Archives and buckets on a real PostgreSQL server.

use std::io::{self, ErrorKind, Read};
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use plimsoll::{Moment, Retention};
use plimsoll_archive::{Archive, Bucket, Error, Folders, Postgres, Put, bucket_at};

use crate::postgres_server::Server;
use crate::support::{World, options};

const MIB: usize = 1 << 20;

fn bucket(server: &Server, schema: &str) -> Postgres {
    Postgres::open(&server.url(schema)).unwrap()
}

/// The contents of an object.
fn read(bucket: &dyn Bucket, name: &str) -> Option<Vec<u8>> {
    let mut object = bucket.get(name).unwrap()?;
    let mut bytes = Vec::new();
    object.reader.read_to_end(&mut bytes).unwrap();
    assert_eq!(object.bytes, bytes.len() as u64);
    Some(bytes)
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 % 251) as u8).collect()
}

#[test]
#[ignore = "needs a PostgreSQL server; .ci/run runs it"]
fn an_object_is_stored_once_and_read_as_it_was_stored() {
    let server = Server::start();
    let users = bucket(&server, "users");
    assert_eq!(users.list("blob").unwrap(), Vec::<String>::new());
    assert!(!users.exists("log/1").unwrap() && users.get("log/1").unwrap().is_none());
    users.delete("log/1").unwrap();
    for len in [0, 1, MIB - 1, MIB, MIB + 1, 2 * MIB, 3 * MIB + 7] {
        for folder in ["blob", "log"] {
            let name = format!("{folder}/{len}");
            let content = bytes(len);
            assert_eq!(users.put_new(&name, &mut &content[..]).unwrap(), Put::New, "{name}");
            assert_eq!(users.put_new(&name, &mut &b"other"[..]).unwrap(), Put::Exists, "{name}");
            let larger = bytes(len + 2 * MIB);
            assert_eq!(users.put_new(&name, &mut &larger[..]).unwrap(), Put::Exists, "{name}");
            assert!(read(&users, &name).unwrap() == content, "{name}");
            assert!(users.exists(&name).unwrap(), "{name}");
        }
    }
    assert_eq!(users.list("log").unwrap().len(), 7);
    // Prefixes, and other schemas, are apart.
    let url = server.url("users").replace("/users?", "/users/base?");
    let base = bucket_at(&url, Folders::Create).unwrap();
    base.put_new("log/1", &mut &b"base"[..]).unwrap();
    base.put_new("logs/1", &mut &b"base"[..]).unwrap();
    assert_eq!(base.list("log").unwrap(), ["log/1"]);
    assert_eq!(read(&users, "base/log/1").unwrap(), b"base");
    assert_eq!(users.list("base").unwrap(), Vec::<String>::new());
    assert!(!bucket(&server, "others").exists("log/0").unwrap());
    users.replace("hint", b"1").unwrap();
    users.replace("hint", b"22").unwrap();
    users.replace("blob/2097152", b"smaller").unwrap();
    assert_eq!(read(&users, "hint").unwrap(), b"22");
    assert_eq!(read(&users, "blob/2097152").unwrap(), b"smaller");
    for name in users.list("log").unwrap().iter().chain(&users.list("blob").unwrap()) {
        users.delete(name).unwrap();
        assert!(!users.exists(name).unwrap());
    }
    assert_eq!(server.sql("SELECT count(*) FROM users.chunks"), "0\n");
}

#[test]
#[ignore = "needs a PostgreSQL server; .ci/run runs it"]
fn of_several_writers_one_stores_its_object() {
    const RACERS: usize = 8;
    const NAMES: usize = 40;
    let server = Server::start();
    let barrier = Barrier::new(RACERS);
    // They race for the tables, too.
    let race = |racer: usize| -> Vec<io::Result<Put>> {
        let users = bucket(&server, "users");
        let put = |number: usize| {
            let content = vec![racer as u8; if number.is_multiple_of(8) { 2 * MIB } else { 100 }];
            barrier.wait();
            // Unwrapped later: the others would wait for a thread that panicked.
            users.put_new(&format!("log/{number}"), &mut &content[..])
        };
        (0..NAMES).map(put).collect()
    };
    let race = &race;
    let won: Vec<Vec<Put>> = std::thread::scope(|scope| {
        let racers: Vec<_> = (0..RACERS).map(|racer| scope.spawn(move || race(racer))).collect();
        let puts = racers.into_iter().map(|racer| racer.join().unwrap());
        puts.map(|puts| puts.into_iter().map(Result::unwrap).collect()).collect()
    });
    let users = bucket(&server, "users");
    for number in 0..NAMES {
        let is_winner =
            |(racer, puts): (usize, &Vec<Put>)| (puts[number] == Put::New).then_some(racer);
        let winners: Vec<usize> = won.iter().enumerate().filter_map(is_winner).collect();
        let stored = read(&users, &format!("log/{number}")).unwrap();
        assert_eq!(winners, [usize::from(stored[0])], "{number}");
        assert!(stored.iter().all(|byte| *byte == stored[0]), "{number}");
    }
}

#[test]
#[ignore = "needs a PostgreSQL server; .ci/run runs it"]
fn an_object_that_fails_or_is_removed_while_it_is_read_is_not_taken_for_whole() {
    struct Broken(usize);
    impl Read for Broken {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(into.len()).ok_or(ErrorKind::BrokenPipe)?;
            into.fill(1);
            Ok(into.len())
        }
    }
    let server = Server::start();
    let users = bucket(&server, "users");
    let failed = users.put_new("blob/1", &mut Broken(3 * MIB)).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::BrokenPipe);
    assert!(!users.exists("blob/1").unwrap());
    users.put_new("blob/1", &mut &bytes(3 * MIB)[..]).unwrap();
    let mut object = users.get("blob/1").unwrap().unwrap();
    users.delete("blob/1").unwrap();
    users.put_new("blob/1", &mut &vec![7; 3 * MIB][..]).unwrap();
    let failed = object.reader.read_to_end(&mut Vec::new()).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::UnexpectedEof);
    assert_eq!(read(&users, "blob/1").unwrap(), vec![7; 3 * MIB]);
}

#[test]
#[ignore = "needs a PostgreSQL server; .ci/run runs it"]
fn a_waiter_is_notified() {
    let server = Server::start();
    let second = Duration::from_secs(1);
    // It does not ask again by itself.
    let waiter = bucket(&server, "users").rest(3600 * second);
    let writer = bucket(&server, "users");
    writer.put_new("log/0", &mut &b"x"[..]).unwrap();
    waiter.wait_for("log/1", Duration::from_millis(20)).unwrap().unwrap();
    for number in 1..20 {
        let name = format!("log/{number}");
        std::thread::scope(|scope| {
            let begun = Instant::now();
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(number % 3 * 20));
                if number == 10 {
                    server.terminate_backends();
                }
                let size = if number % 4 == 0 { 2 * MIB } else { 10 };
                // Its session may be ending.
                while writer.put_new(&name, &mut &bytes(size)[..]).is_err() {}
            });
            waiter.wait_for(&name, 120 * second).unwrap().unwrap();
            assert!(writer.exists(&name).unwrap());
            assert!(begun.elapsed() < 60 * second, "{name}");
            // It exists already.
            waiter.wait_for(&name, 120 * second).unwrap().unwrap();
        });
    }
}

#[test]
#[ignore = "needs a PostgreSQL server; .ci/run runs it"]
fn a_notification_that_was_lost_is_made_up_for() {
    let server = Server::start();
    let waiter = bucket(&server, "users").rest(Duration::from_millis(50));
    waiter.put_new("log/0", &mut &b"x"[..]).unwrap();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            server.sql("INSERT INTO users.objects VALUES ('log/1', 0, '')");
        });
        waiter.wait_for("log/1", Duration::from_secs(120)).unwrap().unwrap();
    });
    assert!(begun.elapsed() < Duration::from_secs(60));
}

#[test]
#[ignore = "needs a PostgreSQL server; .ci/run runs it"]
fn requests_fail_while_the_server_is_stopped_or_killed_and_succeed_afterwards() {
    let mut server = Server::start();
    let users = bucket(&server, "users").limit(Duration::from_millis(300));
    let fresh = || bucket(&server, "users").limit(Duration::from_millis(300));
    users.put_new("log/1", &mut &b"x"[..]).unwrap();
    users.wait_for("log/2", Duration::ZERO).unwrap().unwrap();
    server.signal("-STOP");
    let begun = Instant::now();
    for bucket in [&users, &fresh()] {
        let failed = bucket.put_new("log/2", &mut &b"y"[..]).unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::TimedOut, "{failed}");
        let address = format!("127.0.0.1:{}/postgres: no answer within", server.port);
        assert!(failed.to_string().starts_with(&address), "{failed}");
        assert_eq!(bucket.exists("log/2").unwrap_err().kind(), ErrorKind::TimedOut);
        let waited = bucket.wait_for("log/2", Duration::from_secs(1)).unwrap();
        assert!(waited.is_ok() || bucket.wait_for("log/2", Duration::ZERO).unwrap().is_err());
    }
    assert!(begun.elapsed() < Duration::from_secs(60));
    server.signal("-CONT");
    // The server may still carry out a request that it received before.
    while users.put_new("log/2", &mut &b"z"[..]).is_err() {}
    let stored = read(&users, "log/2").unwrap();
    assert!(stored == b"y" || stored == b"z");
    users.put_new("blob/1", &mut &bytes(2 * MIB)[..]).unwrap();
    let mut object = users.get("blob/1").unwrap().unwrap();
    server.kill();
    let failed = users.exists("log/1").unwrap_err();
    assert!(failed.to_string().contains(&format!("127.0.0.1:{}", server.port)), "{failed}");
    server.revive();
    assert!(users.exists("log/1").unwrap());
    users.wait_for("log/2", Duration::from_secs(120)).unwrap().unwrap();
    // It continues in another session.
    let mut content = Vec::new();
    object.reader.read_to_end(&mut content).unwrap();
    assert!(content == bytes(2 * MIB));
}

#[test]
#[ignore = "needs a PostgreSQL server; .ci/run runs it"]
fn a_server_that_could_lose_commits_or_only_reads_is_refused() {
    let mut server = Server::start();
    bucket(&server, "users").put_new("log/1", &mut &b"x"[..]).unwrap();
    let refused = |server: &Server| {
        let refused = bucket(server, "users").put_new("log/2", &mut &b"x"[..]).unwrap_err();
        bucket(server, "users").exists("log/1").unwrap_err();
        assert!(bucket(server, "users").lock().is_err());
        refused.to_string()
    };
    server.restart_with(&["fsync=off"]);
    let what = refused(&server);
    assert!(what.ends_with("because fsync is off; set fsync = on there"), "{what}");
    server.restart_with(&["full_page_writes=off"]);
    assert!(refused(&server).contains("full_page_writes is off"));
    server.restart_with(&["default_transaction_read_only=on"]);
    assert!(refused(&server).contains("the server accepts no writes"));
    server.set_standby(true);
    server.restart_with(&[]);
    assert!(refused(&server).contains("the server is a standby"));
    // Of several servers, the one that accepts writes is used.
    let primary = Server::start();
    let second = format!(",127.0.0.1:{}/postgres/", primary.port);
    let both = server.url("users").replace("/postgres/", &second);
    let both = Postgres::open(&both).unwrap();
    both.put_new("log/9", &mut &b"x"[..]).unwrap();
    assert!(bucket(&primary, "users").exists("log/9").unwrap());
    server.set_standby(false);
    server.restart_with(&[]);
    for table in ["objects", "chunks"] {
        server.sql(&format!("ALTER TABLE users.{table} SET UNLOGGED"));
        let what = refused(&server);
        assert!(what.contains("ALTER TABLE ... SET LOGGED"), "{what}");
        server.sql(&format!("ALTER TABLE users.{table} SET LOGGED"));
    }
    // A weaker setting of the role is overridden.
    server.sql("ALTER ROLE ada SET synchronous_commit = off");
    server.sql("ALTER ROLE ada SET default_transaction_isolation = serializable");
    let users = bucket(&server, "users");
    assert_eq!(users.put_new("log/2", &mut &b"x"[..]).unwrap(), Put::New);
    assert_eq!(server.sql("SHOW synchronous_commit"), "off\n");
}

#[test]
#[ignore = "needs a PostgreSQL server; .ci/run runs it"]
fn functions_of_other_roles_are_never_called() {
    let server = Server::start();
    for arguments in ["text, integer", "text, bigint"] {
        server.sql(&format!(
            "CREATE FUNCTION public.hashtextextended({arguments}) RETURNS bigint LANGUAGE plpgsql \
             AS $$ BEGIN RAISE 'called'; END $$"
        ));
    }
    server.sql("ALTER ROLE ada SET search_path = public, pg_catalog");
    let users = bucket(&server, "users");
    assert_eq!(users.put_new("log/1", &mut &b"x"[..]).unwrap(), Put::New);
    drop(users.lock().unwrap().expect("an archiver is excluded"));
}

#[test]
#[ignore = "needs a PostgreSQL server; .ci/run runs it"]
fn tables_that_are_gone_are_no_empty_bucket() {
    let server = Server::start();
    let users = bucket(&server, "users");
    users.put_new("log/1", &mut &b"x"[..]).unwrap();
    let existing = bucket(&server, "users").existing();
    assert!(existing.exists("log/1").unwrap());
    server.sql("DROP SCHEMA users CASCADE");
    let epoch = existing.epoch();
    for failed in [existing.exists("log/1").err(), existing.get("log/1").err()] {
        let failed = failed.expect("it is no empty bucket");
        assert_eq!(failed.kind(), ErrorKind::NotFound, "{failed}");
    }
    assert_eq!(existing.epoch(), epoch, "the connection is kept");
    assert!(!users.exists("log/1").unwrap());
}

#[test]
#[ignore = "needs a PostgreSQL server; .ci/run runs it"]
fn a_wrong_password_a_missing_database_and_missing_rights_are_told() {
    let server = Server::start();
    let fails = |url: &str, kind: ErrorKind, part: &str| {
        let bucket = bucket_at(url, Folders::Create).unwrap();
        let failed = bucket.put_new("log/1", &mut &b"x"[..]).unwrap_err();
        assert_eq!(failed.kind(), kind, "{failed}");
        assert!(failed.to_string().contains(part), "{failed}");
        assert!(failed.to_string().contains(&server.port.to_string()), "{failed}");
        assert!(!format!("{failed:?}{bucket:?}").contains("lovelace"), "{failed:?}");
    };
    let denied = ErrorKind::PermissionDenied;
    let file = server.path().join("wrong");
    std::fs::write(&file, "*:*:*:*:wrong").unwrap();
    let wrong = server.url("users").replace("/pass", "/wrong");
    fails(&wrong, denied, "other users may read this file");
    let mut chmod = Command::new("chmod");
    assert!(chmod.arg("600").arg(&file).status().unwrap().success());
    fails(&wrong, denied, "password authentication failed");
    fails(&server.url("users").replace("/pass", "/none"), denied, "set PGPASSWORD or ~/.pgpass");
    let missing = server.url_in("nowhere", "users");
    fails(&missing, ErrorKind::NotFound, "database \"nowhere\" does not exist");
    server.sql("CREATE ROLE eve LOGIN PASSWORD 'lovelace'");
    let file = server.path().join("pass");
    std::fs::write(&file, "*:*:*:*:lovelace").unwrap();
    let eve = server.url("users").replace("ada@", "eve@");
    fails(&eve, denied, "permission denied for database");
    server.sql("CREATE SCHEMA users AUTHORIZATION eve");
    let users = Postgres::open(&eve).unwrap();
    assert_eq!(users.put_new("log/1", &mut &b"x"[..]).unwrap(), Put::New);
    // Nothing is created where a member expects a bucket.
    let existing = bucket_at(&server.url("gone"), Folders::Existing).unwrap();
    let failed = existing.put_new("log/1", &mut &b"x"[..]).unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::NotFound, "{failed}");
    assert_eq!(server.sql("SELECT to_regnamespace('gone')"), "\n");
}

#[test]
#[ignore = "needs a PostgreSQL server; .ci/run runs it"]
fn connections_are_encrypted_as_sslmode_says() {
    let mut server = Server::start();
    let dir = server.path().to_owned();
    let at = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let make = |arguments: &[&str]| {
        let mut command = Command::new("openssl");
        assert!(command.args(arguments).stderr(Stdio::null()).status().unwrap().success());
    };
    for name in ["ca", "other"] {
        make(&[
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            &format!("/CN={name}"),
            "-keyout",
            &at(&format!("{name}.key")),
            "-out",
            &at(name),
        ]);
    }
    make(&[
        "req",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=server",
        "-keyout",
        &at("data/server.key"),
        "-out",
        &at("request"),
    ]);
    std::fs::write(at("names"), "subjectAltName=DNS:localhost").unwrap();
    make(&[
        "x509",
        "-req",
        "-in",
        &at("request"),
        "-days",
        "2",
        "-CA",
        &at("ca"),
        "-CAkey",
        &at("ca.key"),
        "-extfile",
        &at("names"),
        "-out",
        &at("data/server.crt"),
    ]);
    for name in ["data/server.key", "data/server.crt"] {
        server.give(&server.path().join(name));
    }
    let (ca, other) = (at("ca"), at("other"));
    let url = |host: &str, mode: &str| {
        let url = server.url("users").replace("127.0.0.1", host);
        Postgres::open(&format!("{url}&sslmode={mode}")).unwrap().exists("log/1")
    };
    url("127.0.0.1", "prefer").unwrap();
    url("127.0.0.1", "require").unwrap_err();
    server.restart_with(&["ssl=on"]);
    let url = |host: &str, mode: &str| {
        let url = server.url("users").replace("127.0.0.1", host);
        let bucket = Postgres::open(&format!("{url}&sslmode={mode}")).unwrap();
        bucket.exists("log/1").map(|_| {
            // Its session is idle now.
            let used = server.sql(
                "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                 WHERE application_name = 'plimsoll'",
            );
            drop(bucket);
            used.contains('t')
        })
    };
    assert!(!url("127.0.0.1", "disable").unwrap());
    assert!(url("127.0.0.1", "prefer").unwrap());
    assert!(url("127.0.0.1", "require").unwrap());
    assert!(url("127.0.0.1", &format!("verify-ca&sslrootcert={ca}")).unwrap());
    assert!(url("localhost", &format!("verify-full&sslrootcert={ca}")).unwrap());
    for (host, mode, file) in [
        ("127.0.0.1", "verify-full", &ca),
        ("127.0.0.1", "verify-ca", &other),
        ("127.0.0.1", "require", &other),
        ("localhost", "verify-full", &other),
        ("localhost", "verify-full", &at("nothing")),
    ] {
        url(host, &format!("{mode}&sslrootcert={file}")).unwrap_err();
    }
}

#[test]
#[ignore = "needs a PostgreSQL server; .ci/run runs it"]
fn an_archive_is_written_by_one_archiver_and_restored() {
    let server = Server::start();
    let url = server.url("backup");
    let mut world = World::new(62, Retention::Latest);
    let mut moments = Vec::new();
    let mut archive = Archive::open(&url).unwrap();
    for round in 0..4 {
        world.write(30);
        if round == 2 {
            world.put("large", bytes(9 * MIB));
        }
        archive.push(world.db()).unwrap();
        moments.push(world.newest());
    }
    // It holds the lock until it is dropped.
    let refused = Archive::open(&url).unwrap().push(world.db());
    assert!(matches!(refused, Err(Error::OtherArchiver { .. })), "{refused:?}");
    assert!(matches!(bucket(&server, "backup").lock(), Err(Error::OtherArchiver { .. })));
    assert!(bucket(&server, "other").lock().unwrap().is_some());
    let report = archive.verify(&mut |_| {}).unwrap();
    assert_eq!((report.damage, report.notes), (Vec::new(), Vec::new()));
    for (number, glsn) in moments.into_iter().enumerate() {
        let dest = world.path(&format!("restored {number}"));
        let report = archive.restore(&dest, options(), Moment::Glsn(glsn)).unwrap();
        assert!(report.is_whole && report.problems.is_empty(), "{report:?}");
        world.check(&dest, glsn);
    }
}
