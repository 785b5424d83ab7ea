//! Errors contain the data that a program matches on: path, file, commit, name, limit, and the
//! system's error as their source.

use std::error::Error as _;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use plimsoll::{Db, Error, InvalidInput, IoCause, Options, Retention};
use plimsoll_disk::clock::SystemClock;
use plimsoll_disk::lying::LyingDisk;
use plimsoll_disk::vfs::Disk;

fn is_an_error<E: std::error::Error + Clone + Eq + Send + Sync + 'static>() {}

fn options() -> Options {
    Options::new().memory_bytes(16 << 20).background(false)
}

#[test]
fn errors_can_be_cloned_compared_and_sent() {
    is_an_error::<Error>();
    is_an_error::<InvalidInput>();
    is_an_error::<plimsoll::OutOfBudget>();
    let send = |_: Box<dyn std::error::Error + Send + Sync>| {};
    send(Error::Closed.into());
    // Sources are compared as well.
    let of = |kind: ErrorKind| Error::from(std::io::Error::from(kind));
    assert_eq!(of(ErrorKind::NotFound), of(ErrorKind::NotFound).clone());
    assert_ne!(of(ErrorKind::NotFound), of(ErrorKind::TimedOut));
}

#[test]
fn an_error_of_the_system_names_its_path_and_has_its_source() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("no folder");
    std::fs::write(&file, "text").unwrap();
    let error = Db::open(file.join("store"), options()).unwrap_err();
    let Error::Io { kind: ErrorKind::NotADirectory, source: Some(source), .. } = &error else {
        panic!("{error:?}")
    };
    assert_eq!((source.path(), source.raw_os_error()), (Some(&*file.join("store")), Some(20)));
    let cause = error.source().unwrap().downcast_ref::<IoCause>().unwrap();
    assert_eq!(cause, source);
    assert!(error.to_string().ends_with(&cause.to_string()), "{error}");
    // Also if the log got the error.
    let disk = LyingDisk::new(1);
    let db =
        Db::open("/store", options().world(Arc::new(disk.clone()), Arc::new(SystemClock::new())))
            .unwrap();
    let ks = db.keyspace("default").unwrap();
    disk.fill_up(Some(0));
    let error = (0..100)
        .find_map(|_| db.put(&ks, "a", vec![0; 1 << 20]).and_then(|_| db.flush()).err())
        .unwrap();
    match &error {
        Error::Io { kind, source: Some(source), .. } => {
            assert_eq!((*kind, source.kind()), (ErrorKind::StorageFull, ErrorKind::StorageFull));
            assert!(source.path().is_some_and(|path| path.starts_with("/store")), "{source:?}");
        }
        Error::Poisoned { cause } => assert!(cause.contains("/store"), "{cause}"),
        error => panic!("{error:?}"),
    }
}

#[test]
fn corruption_names_the_file_and_a_damaged_commit_its_number() {
    let disk = LyingDisk::new(2);
    let open = || {
        Db::open("/store", options().world(Arc::new(disk.clone()), Arc::new(SystemClock::new())))
    };
    let db = open().unwrap();
    let ks = db.keyspace("default").unwrap();
    for key in 0..300u32 {
        db.put(&ks, key.to_be_bytes(), [7; 900]).unwrap();
    }
    let large = db.put(&ks, "large", vec![1; 200_000]).unwrap();
    db.flush().unwrap();
    db.close().unwrap();
    let names = |folder: &str, ending: &str| -> Vec<String> {
        let names = disk.names(Path::new(folder)).unwrap();
        names.into_iter().filter(|name| name.ends_with(ending)).collect()
    };
    let run = names("/store/index", ".run").remove(0);
    let db = open().unwrap();
    let ks = db.keyspace("default").unwrap();
    disk.corrupt(&Path::new("/store/index").join(&run), 100_000, 1).unwrap();
    let walked: Result<Vec<_>, Error> = db.snapshot().iter(&ks).unwrap().collect();
    match walked {
        Err(Error::Corrupt { file: Some(file), .. }) => assert_eq!(file, format!("index/{run}")),
        other => panic!("{:?}", other.map(|rows| rows.len())),
    }
    let segment = names("/store/log", ".seg").remove(0);
    disk.corrupt(&Path::new("/store/log").join(&segment), 400_000, 1).unwrap();
    let walked: Result<Vec<_>, Error> =
        (1..=large.0).map(|glsn| db.log().read(plimsoll::Glsn(glsn))).collect();
    match walked {
        Err(Error::Corrupt { file: Some(file), glsn: Some(glsn), .. }) => {
            assert_eq!(file, format!("log/{segment}"));
            assert!(glsn <= large, "{glsn}");
        }
        other => panic!("{:?}", other.map(|entries| entries.len())),
    }
}

#[test]
fn the_error_of_an_invalid_request_names_the_limit_or_the_name() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    let ks = db.keyspace("notes").unwrap();
    let what = |error: Error| {
        if let Error::InvalidInput(what) = error { what } else { panic!("{error:?}") }
    };
    let limit_bytes = plimsoll::MAX_KEY_BYTES as u64;
    let too_long = InvalidInput::KeyTooLong { bytes: limit_bytes + 1, limit_bytes };
    let key = vec![0; plimsoll::MAX_KEY_BYTES + 1];
    assert_eq!(what(db.put(&ks, &key, "x").unwrap_err()), too_long);
    assert_eq!(what(db.get(&ks, &key).unwrap_err()), too_long);
    let error = what(db.create_keyspace("notes", Retention::Latest).unwrap_err());
    let (keeps, asked) = (Retention::Forever, Retention::Latest);
    assert_eq!(error, InvalidInput::OtherRetention { name: "notes".to_owned(), keeps, asked });
    let error = what(db.log().drop_cursor("mailer").unwrap_err());
    assert_eq!(error, InvalidInput::NoCursor { name: "mailer".to_owned() });
    let error = what(db.log().append(1, &[&vec![0; 2 << 20]]).unwrap_err());
    assert!(
        matches!(error, InvalidInput::RecordTooLong { bytes, limit_bytes } if bytes > limit_bytes),
        "{error:?}"
    );
    db.drop_keyspace(&ks).unwrap();
    let error = what(db.put(&ks, "a", "x").unwrap_err());
    assert_eq!(error, InvalidInput::KeyspaceDropped { name: "notes".to_owned() });
    let error = what(db.set_memory(1 << 20).unwrap_err());
    assert!(
        matches!(error, InvalidInput::BudgetTooSmall { bytes: 0x10_0000, min_bytes: 0x100_0000 }),
        "{error:?}"
    );
}

#[derive(Debug, PartialEq)]
enum OfTheApplication {
    TooPoor { has: u8 },
    Store(Error),
}

impl From<Error> for OfTheApplication {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

#[test]
fn a_transaction_can_return_errors_of_the_application() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path().join("store"), options()).unwrap();
    let ks = db.keyspace("accounts").unwrap();
    db.put(&ks, "ada", [3]).unwrap();
    let mut runs = 0;
    let mut pay = |amount: u8, disturbed: bool| {
        db.transact(|tx| {
            let has = tx.get(&ks, "ada")?.map_or(0, |value| value[0]);
            let left = has.checked_sub(amount).ok_or(OfTheApplication::TooPoor { has })?;
            runs += 1;
            if disturbed && runs == 1 {
                db.put(&ks, "ada", [9])?;
            }
            tx.put(&ks, "ada", [left])?;
            Ok(left)
        })
    };
    assert_eq!(pay(2, true), Ok(7), "run again after a conflict");
    assert_eq!(pay(8, false), Err(OfTheApplication::TooPoor { has: 7 }));
    assert_eq!(runs, 2);
    assert_eq!(db.get(&ks, "ada").unwrap().unwrap(), [7]);
    let refused: Result<(), OfTheApplication> =
        db.transact(|tx| Ok(tx.put(&ks, vec![0; 5000], "x")?));
    assert!(matches!(refused, Err(OfTheApplication::Store(Error::InvalidInput(_)))), "{refused:?}");
}
