//! Values: they decode to themselves, types may change by the documented rule, forged bytes are an
//! error.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use fastrand::Rng;
use plimsoll::{Db, Options};
use plimsoll_typed::{Error, TypedKeyspace};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

fn keyspace<V>() -> TypedKeyspace<String, V> {
    let db = Db::in_memory(Options::new().memory_bytes(16 << 20)).unwrap();
    TypedKeyspace::open(&db, "values").unwrap()
}

/// The value that is read as a `New` after it was written as an `Old`.
fn read_as<Old: Serialize + DeserializeOwned, New: Serialize + DeserializeOwned>(
    old: &Old,
) -> Result<New, Error> {
    let bytes = keyspace::<Old>().encode_value(old).unwrap();
    keyspace::<New>().decode_value(b"key", &bytes)
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Shape {
    Empty,
    Circle(f64),
    Box { width: u32, height: u32 },
    Group(Vec<Shape>),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Everything {
    name: String,
    signed: i64,
    wide: (u128, i128),
    small: Option<u8>,
    float: f32,
    letter: char,
    shapes: Vec<Shape>,
    address: IpAddr,
    by_number: BTreeMap<u32, String>,
    by_shape: HashMap<String, Shape>,
    unit: (),
}

fn everything() -> Everything {
    let boxes = vec![Shape::Box { width: 1, height: u32::MAX }, Shape::Empty];
    Everything {
        name: "a\0é".into(),
        signed: i64::MIN,
        wide: (u128::MAX, -1),
        small: None,
        float: -0.0,
        letter: char::MAX,
        shapes: vec![Shape::Circle(f64::INFINITY), Shape::Group(boxes)],
        address: "::1".parse().unwrap(),
        by_number: [(7, "seven".into()), (0, String::new())].into(),
        by_shape: [("none".into(), Shape::Empty)].into(),
        unit: (),
    }
}

#[test]
fn values_decode_to_themselves() {
    assert_eq!(read_as::<_, Everything>(&everything()), Ok(everything()));
    assert_eq!(read_as::<_, ()>(&()), Ok(()));
    assert_eq!(read_as::<_, Option<u64>>(&None::<u64>), Ok(None));
    assert_eq!(read_as::<_, Shape>(&Shape::Empty), Ok(Shape::Empty));
    assert_eq!(read_as::<_, Vec<u8>>(&(0..=255).collect::<Vec<u8>>()), Ok((0..=255).collect()));
    for number in [i128::MIN, i128::from(i64::MIN), -1, 0, i128::MAX] {
        assert_eq!(read_as::<_, i128>(&number), Ok(number));
    }
}

#[test]
fn stored_values_stay_readable_after_the_documented_changes_of_a_type() {
    #[derive(Serialize, Deserialize)]
    struct Old {
        title: String,
        pages: u32,
        shelf: char,
    }
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct New {
        // Added, before the others.
        author: Option<String>,
        #[serde(default)]
        year: u16,
        // Widened.
        pages: u64,
        // Renamed.
        #[serde(alias = "title")]
        name: String,
    }
    let old = Old { title: "Emma".into(), pages: 474, shelf: 'A' };
    let new = New { author: None, year: 0, pages: 474, name: "Emma".into() };
    assert_eq!(read_as::<_, New>(&old), Ok(new));

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum More {
        Box { width: u32, height: u32 },
        Star(u8),
        Empty,
    }
    assert_eq!(read_as::<_, More>(&Shape::Empty), Ok(More::Empty));
    assert!(read_as::<_, Shape>(&More::Star(5)).is_err());

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Either {
        New(New),
        Old(Old),
    }
    assert!(matches!(read_as::<_, Either>(&old), Ok(Either::New(_))));
    assert_eq!(read_as::<_, u32>(&"text".to_owned()).unwrap_err().to_string().lines().count(), 1);
}

#[test]
fn a_missing_field_without_a_default_is_an_error_that_names_it() {
    #[derive(Serialize, Deserialize)]
    struct Old {
        title: String,
    }
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct New {
        title: String,
        pages: u32,
    }
    let Err(Error::Value { keyspace, key, message }) =
        read_as::<_, New>(&Old { title: "x".into() })
    else {
        panic!("it has no pages");
    };
    assert_eq!((keyspace.as_str(), &key[..]), ("values", &b"key"[..]));
    assert!(message.contains("pages"), "{message}");
}

#[test]
fn the_documented_limits_of_options_hold() {
    assert_eq!(read_as::<_, Option<Option<u8>>>(&Some(None::<u8>)), Ok(None));
    assert_eq!(read_as::<_, Option<()>>(&Some(())), Ok(None));
    assert_eq!(read_as::<_, Option<Option<u8>>>(&Some(Some(1u8))), Ok(Some(Some(1))));
}

#[test]
fn bytes_after_a_value_are_an_error() {
    let keyspace = keyspace::<Everything>();
    let bytes = keyspace.encode_value(&everything()).unwrap();
    for more in [&[0u8][..], &[0xC0], &[0x92], &[0xCD], &[0xC1], &[0xA5, b'a']] {
        let forged = [&bytes[..], more].concat();
        assert!(keyspace.decode_value(b"", &forged).is_err(), "{more:?}");
    }
    for cut in 0..bytes.len() {
        assert!(keyspace.decode_value(b"", &bytes[..cut]).is_err(), "{cut}");
    }
}

#[test]
fn random_bytes_are_an_error_or_a_value_and_never_a_panic() {
    let keyspace = keyspace::<Everything>();
    let shapes = self::keyspace::<Vec<Shape>>();
    let sound = keyspace.encode_value(&everything()).unwrap();
    let mut rng = Rng::with_seed(5);
    for _ in 0..20_000 {
        let mut bytes = sound.clone();
        for _ in 0..rng.usize(1..4) {
            let at = rng.usize(..bytes.len());
            bytes[at] = rng.u8(..);
        }
        let _ = keyspace.decode_value(b"", &bytes);
        let bytes: Vec<u8> = (0..rng.usize(0..30)).map(|_| rng.u8(..)).collect();
        let _ = (keyspace.decode_value(b"", &bytes), shapes.decode_value(b"", &bytes));
    }
}

#[test]
fn a_forged_length_is_an_error() {
    // A list, a map and a text of 4 GiB.
    for head in [0xDD, 0xDF, 0xDB] {
        let forged = [head, 0xFF, 0xFF, 0xFF, 0xFF, 0xC0];
        assert!(keyspace::<Vec<Vec<u8>>>().decode_value(b"", &forged).is_err());
        assert!(keyspace::<HashMap<u8, u8>>().decode_value(b"", &forged).is_err());
        assert!(keyspace::<String>().decode_value(b"", &forged).is_err());
    }
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Chain {
    End,
    Next(Box<Chain>),
}

fn chain(links: usize) -> Chain {
    (0..links).fold(Chain::End, |chain, _| Chain::Next(Box::new(chain)))
}

#[test]
fn values_nested_too_deeply_are_an_error_when_they_are_written_and_read() {
    let chains = keyspace::<Chain>();
    assert_eq!(read_as::<_, Chain>(&chain(120)), Ok(chain(120)));
    let refused = chains.encode_value(&chain(130)).unwrap_err();
    assert!(refused.to_string().contains("nested more than 128 deep"), "{refused}");
    let forged = b"\x81\xA4Next".repeat(100_000);
    let refused = chains.decode_value(b"", &forged).unwrap_err();
    assert!(refused.to_string().contains("nested more than 128 deep"), "{refused}");
    let group = [&[0x81, 0xA5][..], b"Group", &[0x91]].concat().repeat(100_000);
    assert!(keyspace::<Shape>().decode_value(b"", &group).is_err());
}

#[test]
fn a_value_that_cannot_be_encoded_is_an_error_and_writes_nothing() {
    #[derive(Deserialize)]
    struct Broken;
    impl Serialize for Broken {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("it is broken"))
        }
    }
    let db = Db::in_memory(Options::new().memory_bytes(16 << 20)).unwrap();
    let broken: TypedKeyspace<u8, Broken> = TypedKeyspace::open(&db, "broken").unwrap();
    let mut tx = db.begin();
    let refused = broken.put(&mut tx, 1, &Broken).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "keyspace \"broken\": a value cannot be encoded: it is broken; nothing was written"
    );
    tx.commit().unwrap();
    assert!(!broken.contains_key(&db.snapshot(), 1).unwrap());
}
