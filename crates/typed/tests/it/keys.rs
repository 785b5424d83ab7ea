//! The laws of keys: encodings sort as keys do, decode to them, and nothing else decodes.

use std::cmp::Ordering;

use fastrand::Rng;
use plimsoll_typed::{AsKey, Key, KeyError, PrefixOf};

use crate::samples::Sample;

fn whole<K>(key: &(impl AsKey<K> + ?Sized)) -> Vec<u8> {
    let mut out = Vec::new();
    key.encode(&mut out);
    out
}

fn part<K>(key: &(impl AsKey<K> + ?Sized)) -> Vec<u8> {
    let mut out = Vec::new();
    key.encode_part(&mut out);
    out
}

/// Calls `$check` for every type of keys.
macro_rules! for_every_type {
    ($check:ident) => {
        $check::<u8>();
        $check::<u16>();
        $check::<u32>();
        $check::<u64>();
        $check::<u128>();
        $check::<i8>();
        $check::<i16>();
        $check::<i32>();
        $check::<i64>();
        $check::<i128>();
        $check::<f32>();
        $check::<f64>();
        $check::<bool>();
        $check::<char>();
        $check::<String>();
        $check::<Vec<u8>>();
        $check::<[u8; 0]>();
        $check::<[u8; 3]>();
        $check::<Option<u8>>();
        $check::<Option<String>>();
        $check::<Option<Option<i16>>>();
        $check::<(String,)>();
        $check::<(Vec<u8>, u8)>();
        $check::<(String, Vec<u8>)>();
        $check::<(Vec<u8>, Vec<u8>, Vec<u8>)>();
        $check::<(Option<Vec<u8>>, i64, char)>();
        $check::<(bool, (String, Option<u16>), f64, [u8; 2])>();
        $check::<(u8, i8, bool, Vec<u8>, String)>();
        $check::<(u8, i8, bool, Vec<u8>, String, f32)>();
        $check::<(u8, i8, bool, Vec<u8>, String, f32, Option<bool>)>();
        $check::<(bool, bool, bool, bool, bool, bool, Vec<u8>, Vec<u8>)>();
    };
}

fn check_order<K: Sample>() {
    let mut rng = Rng::with_seed(1);
    let keys: Vec<K> = (0..300).map(|_| K::sample(&mut rng)).collect();
    let encoded: Vec<_> = keys.iter().map(|key| (whole(key), part(key))).collect();
    for (a, (whole_a, part_a)) in keys.iter().zip(&encoded) {
        for (b, (whole_b, part_b)) in keys.iter().zip(&encoded) {
            let order = a.order(b);
            assert_eq!(whole_a.cmp(whole_b), order, "{a:?} and {b:?} as whole keys");
            assert_eq!(part_a.cmp(part_b), order, "{a:?} and {b:?} as parts");
            let is_prefix = part_a.starts_with(part_b);
            assert_eq!(is_prefix, order.is_eq(), "{b:?} as the beginning of {a:?}");
        }
    }
}

#[test]
fn encodings_sort_as_keys_do_and_no_part_begins_another() {
    for_every_type!(check_order);
}

fn check_decoding<K: Sample>() {
    let mut rng = Rng::with_seed(2);
    for _ in 0..1000 {
        let key = K::sample(&mut rng);
        let is_key = |decoded: &K| decoded.order(&key) == Ordering::Equal;
        let bytes = whole(&key);
        assert!(K::decode(&bytes).as_ref().is_ok_and(is_key), "{key:?} as {bytes:?}");

        let mut bytes = part(&key);
        let end = bytes.len();
        bytes.extend_from_slice(b"\x01\xFFrest");
        let mut from = &bytes[..];
        assert!(K::decode_part(&mut from).as_ref().is_ok_and(is_key), "{key:?} as {bytes:?}");
        assert_eq!(from, &bytes[end..], "{key:?}");
        for cut in 0..end {
            let from = &mut &bytes[..cut];
            assert_eq!(K::decode_part(from).err(), Some(KeyError::Truncated), "{key:?} to {cut}");
        }
    }
}

#[test]
fn keys_decode_to_themselves_and_cut_ones_are_refused() {
    for_every_type!(check_decoding);
}

fn check_forged<K: Sample>() {
    let mut rng = Rng::with_seed(3);
    let byte = |rng: &mut Rng| match rng.u8(0..8) {
        0..3 => 0,
        3..5 => 1,
        5 => 0xFF,
        _ => rng.u8(..),
    };
    for _ in 0..5000 {
        let bytes: Vec<u8> = if rng.bool() {
            (0..rng.usize(0..40)).map(|_| byte(&mut rng)).collect()
        } else {
            let mut bytes = part(&K::sample(&mut rng));
            if !bytes.is_empty() {
                let at = rng.usize(..bytes.len());
                bytes[at] = byte(&mut rng);
            }
            bytes
        };
        if let Ok(key) = K::decode(&bytes) {
            assert_eq!(whole(&key), bytes, "{key:?}");
        }
        let mut rest = &bytes[..];
        if let Ok(key) = K::decode_part(&mut rest) {
            assert_eq!(part(&key), bytes[..bytes.len() - rest.len()], "{key:?}");
        }
    }
}

#[test]
fn random_bytes_decode_only_if_they_are_an_encoding() {
    for_every_type!(check_forged);
}

#[test]
fn encodings_are_these_bytes() {
    assert_eq!(whole(&258u16), [1, 2]);
    assert_eq!(whole(&-1i16), [0x7F, 0xFF]);
    assert_eq!(whole(&1i16), [0x80, 1]);
    assert_eq!(whole(&1.0f32), [0xBF, 0x80, 0, 0]);
    assert_eq!(whole(&-1.0f32), [0x40, 0x7F, 0xFF, 0xFF]);
    assert_eq!(whole(&true), [1]);
    assert_eq!(whole(&'é'), [0, 0, 0, 0xE9]);
    assert_eq!(whole("a\0"), b"a\0");
    assert_eq!(part("a\0"), b"a\0\xFF\0\x01");
    assert_eq!(whole(&("a\0", 1u8)), b"a\0\xFF\0\x01\x01");
    assert_eq!(whole(&("", None::<u8>)), b"\0\x01\0");
    let key = (Some("b"), [7u8, 8]);
    assert_eq!(whole::<(Option<String>, [u8; 2])>(&key), b"\x01b\0\x01\x07\x08");
    assert_eq!(whole::<(Option<String>, Vec<u8>)>(&key), b"\x01b\0\x01\x07\x08\0\x01");
}

#[test]
fn borrowed_forms_have_the_encoding_of_the_owned_key() {
    let owned: (String, Vec<u8>, Option<String>) = ("é\0".into(), vec![0, 1], Some("x".into()));
    let borrowed = ("é\0", &[0u8, 1][..], Some("x"));
    assert_eq!(whole::<(String, Vec<u8>, Option<String>)>(&borrowed), whole(&owned));
    assert_eq!(whole::<(String, Vec<u8>, Option<String>)>(&&owned), whole(&owned));
    assert_eq!(whole::<Vec<u8>>(b"ab"), b"ab");
    assert_eq!(whole::<String>(&&"ab"), b"ab");
}

#[test]
fn a_prefix_begins_the_keys_that_have_it_and_no_others() {
    type Row = (Vec<u8>, Option<u8>, String);
    let mut rng = Rng::with_seed(4);
    let rows: Vec<Row> = (0..200).map(|_| Row::sample(&mut rng)).collect();
    for a in &rows {
        let (mut one, mut two) = (Vec::new(), Vec::new());
        PrefixOf::<Row>::encode_prefix(&(&a.0,), &mut one);
        PrefixOf::<Row>::encode_prefix(&(&a.0, a.1), &mut two);
        for b in &rows {
            assert_eq!(whole(b).starts_with(&one), a.0 == b.0, "{a:?}, {b:?}");
            assert_eq!(whole(b).starts_with(&two), (&a.0, a.1) == (&b.0, b.1), "{a:?}, {b:?}");
        }
    }
}

#[test]
fn an_error_says_what_is_wrong() {
    assert_eq!(bool::decode(&[2]).unwrap_err().to_string(), "a bool is 00 or 01");
    assert_eq!(u8::decode(&[2, 3, 4]), Err(KeyError::Trailing { bytes: 2 }));
    assert_eq!(u16::decode(&[2]), Err(KeyError::Truncated));
    assert!(char::decode(&0xD800u32.to_be_bytes()).is_err());
    assert!(String::decode(b"\xFF").is_err());
    assert!(<(String,)>::decode(b"a\0\x02").is_err());
}
