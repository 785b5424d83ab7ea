//! Merges of JSON, by examples and against a model.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use plimsoll_disk::random::Random;
use plimsoll_memory::budget::Backing;

use super::*;

fn digest(text: &str) -> Digest {
    let document = document(text.as_bytes()).unwrap();
    *Digests::new(&[document]).of(document.value)
}

fn merged(kinds: Kinds, base: Option<&str>, ours: &str, theirs: &str) -> Option<String> {
    static BUDGET: LazyLock<Budget> =
        LazyLock::new(|| Budget::new(32 << 20, Backing::Heap).unwrap());
    let sides = [ours.as_bytes(), theirs.as_bytes()];
    let merged = merge(&BUDGET, kinds, base.map(str::as_bytes), sides).unwrap();
    merged.map(|text| String::from_utf8(text.into_vec()).unwrap())
}

/// Checks a merge in both orders; `wanted` is empty for a conflict.
#[track_caller]
fn check(kinds: Kinds, base: &str, ours: &str, theirs: &str, wanted: &str) {
    let base = Some(base).filter(|base| !base.is_empty());
    let wanted = Some(wanted).filter(|wanted| !wanted.is_empty());
    assert_eq!(merged(kinds, base, ours, theirs).as_deref(), wanted);
    assert_eq!(merged(kinds, base, theirs, ours).as_deref(), wanted);
}

#[test]
fn fields_of_both_sides_are_merged() {
    let check = |base, ours, theirs, wanted| check(Kinds::Objects, base, ours, theirs, wanted);
    check(r#"{"a":1,"b":2}"#, r#"{"a":3,"b":2}"#, r#"{"a":1,"b":4}"#, r#"{"a":3,"b":4}"#);
    check(r#"{"a":1,"b":2}"#, r#"{"b":2}"#, r#"{"a":1,"b":4}"#, r#"{"b":4}"#);
    check(r#"{"a":1,"b":2}"#, r#"{"b":2}"#, r#"{"a":1}"#, "{}");
    check(
        r#"{"a":1}"#,
        r#"{"a":1,"z":1,"y":2}"#,
        r#"{"x":3,"a":1}"#,
        r#"{"a":1,"z":1,"y":2,"x":3}"#,
    );
    // Both sides add the same value.
    check("{}", r#"{"a":[1, 2]}"#, r#"{"a": [1,2]}"#, r#"{"a": [1,2]}"#);
    check(
        "",
        r#"{"a":1,"b":{"x":1}}"#,
        r#"{"c":2,"b":{"y":2}}"#,
        r#"{"a":1,"b":{"x":1,"y":2},"c":2}"#,
    );
    // Nested objects.
    check(
        r#"{"o":{"a":1,"b":{"c":2}},"z":0}"#,
        r#"{"o":{"a":9,"b":{"c":2}},"z":0}"#,
        r#"{"o":{"a":1,"b":{"c":3,"d":4}},"z":0}"#,
        r#"{"o":{"a":9,"b":{"c":3,"d":4}},"z":0}"#,
    );
    // White space, escapes and the order of fields do not count as changes.
    check(
        "{\"a\": \"\u{e9}\", \"b\": {\"x\": 1, \"y\": 2}}\n",
        r#"{"b":{"y":2,"x":1},"a":"\u00e9","c":0}"#,
        r#"{"a":"\u00E9","b":{"x":1}}"#,
        "{\"a\": \"\u{e9}\", \"b\": {\"x\":1}, \"c\": 0}\n",
    );
    check(r#"{"\u0061":1}"#, r#"{"a":2}"#, r#"{"a":1,"b":1}"#, r#"{"\u0061":2,"b":1}"#);
    // Numbers stay as they are written.
    check(
        r#"{"a":0.1,"b":1}"#,
        r#"{"a":12345678901234567890.123456789012345678901e-7,"b":1}"#,
        r#"{"a":0.1,"b":18446744073709551617}"#,
        r#"{"a":12345678901234567890.123456789012345678901e-7,"b":18446744073709551617}"#,
    );
}

#[test]
fn indentation_is_kept() {
    let base = "{\n  \"a\": 1,\n  \"b\": {\n    \"c\": 2\n  }\n}\n";
    let ours = "{\n  \"a\": 7,\n  \"b\": {\n    \"c\": 2\n  }\n}\n";
    let theirs = "{\n  \"a\": 1,\n  \"b\": {\n    \"c\": 2\n  },\n  \"d\": []\n}\n";
    let wanted = "{\n  \"a\": 7,\n  \"b\": {\n    \"c\": 2\n  },\n  \"d\": []\n}\n";
    check(Kinds::Objects, base, ours, theirs, wanted);
}

#[test]
fn different_changes_of_a_field_are_a_conflict() {
    let check = |base, ours, theirs| check(Kinds::Objects, base, ours, theirs, "");
    check(r#"{"a":1}"#, r#"{"a":2}"#, r#"{"a":3}"#);
    check(r#"{"a":1}"#, r#"{"a":2}"#, r#"{}"#);
    check(r#"{"a":1}"#, r#"{"a":1.0}"#, r#"{"a":3}"#);
    check(r#"{"a":[1]}"#, r#"{"a":[1,2]}"#, r#"{"a":[1,3]}"#);
    check(r#"{"a":{"b":1}}"#, r#"{"a":{"b":2}}"#, r#"{"a":{"b":3}}"#);
    check(r#"{"a":1}"#, r#"{"a":{"x":1}}"#, r#"{"a":{"y":1}}"#);
    check("", r#"{"a":1}"#, r#"{"a":2}"#);
    check("1", "2", "3");
    check("[]", "[1]", "[2]");
}

#[test]
fn texts_that_are_no_json_are_a_conflict() {
    let (base, ours) = (r#"{"a":1}"#, r#"{"a":1,"b":1}"#);
    let bad = [
        "",
        "{",
        "{\"a\":1}}",
        "{\"a\":01}",
        "{\"a\":1,}",
        "{a:1}",
        "{\"a\":\"\t\"}",
        "{\"a\":\"\\x\"}",
        "{\"a\":+1}",
        "{\"a\":1.}",
        "{\"a\":1e}",
        "{\"a\":.5}",
        "nul",
        "\u{feff}{}",
        "{\"a\":\"\\u12g4\"}",
        "{\"a\":1,\"a\":2}",
        "{\"a\":1,\"\\u0061\":2}",
        "{\"a\" 1}",
        "[1 2]",
        "{\"a\":tru}",
    ];
    for text in bad {
        assert_eq!(merged(Kinds::Objects, Some(base), ours, text), None, "{text}");
        assert_eq!(merged(Kinds::Objects, Some(text), ours, base), None, "{text}");
    }
    let invalid = [b"{\"a\":\"", &[0xff][..], b"\"}"].concat();
    assert!(document(&invalid).is_none());
    let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(document(deep(128).as_bytes()).is_some());
    assert!(document(deep(129).as_bytes()).is_none());
    assert!(document(deep(200_000).as_bytes()).is_none());
    let long = format!("{{\"a\":\"{}\"}}", "x".repeat(1 << 20));
    assert_eq!(merged(Kinds::Objects, Some(base), ours, &long), None);
    let many = format!("[{}0]", "0,".repeat(1 << 15));
    assert_eq!(merged(Kinds::Sets, Some("[]"), "[1]", &many), None);
}

#[test]
fn sets_keep_what_both_keep_and_add() {
    let check = |base, ours, theirs, wanted| check(Kinds::Sets, base, ours, theirs, wanted);
    check("[1,2,3]", "[1,3,4]", "[1,2,5]", "[1,5,4]");
    check("[1]", "[]", "[1,2]", "[2]");
    check("[1]", "[]", "[]", "[]");
    check("", "[\"a\",\"b\"]", "[\"b\",\"c\"]", "[\"a\",\"b\",\"c\"]");
    check("[1, 2]", "[2,1]", "[1,2,2,3]", "[1, 2, 3]");
    check(
        "[{\"a\":1,\"b\":2}]",
        "[{\"b\": 2, \"a\": 1}, 5]",
        "[{\"a\":1,\"b\":2}, \"\\u0041\", \"A\"]",
        "[{\"a\":1,\"b\":2},\"\\u0041\",5]",
    );
    check("[1]", "{}", "[2]", "");
    check("1", "[1]", "[2]", "");
}

#[test]
fn white_space_is_left_out_of_a_text_that_would_exceed_its_sources() {
    let space = " ".repeat(300);
    let base = format!("{{\"a\":{space}1,{space}\"b\":{space}1}}\n");
    let fields: Vec<_> = (0..2_000).map(|field| format!("\"{field}\":0")).collect();
    let ours = format!("{{\"a\":1,\"b\":1,{}}}", fields.join(","));
    let wanted = format!("{{\"a\":1,\"b\":2,{}}}\n", fields.join(","));
    check(Kinds::Objects, &base, &ours, r#"{"a":1,"b":2}"#, &wanted);
}

#[test]
fn deep_objects_with_large_leaves_are_merged() {
    let deep = |text: &str| {
        let leaf = text.repeat((1 << 20) - 2_000);
        format!("{}\"{leaf}\"{}", "{\"a\":".repeat(127), "}".repeat(127))
    };
    let field = |text: String| text.replacen('{', "{\"z\":1,", 1);
    let (base, ours, theirs) = (deep("x"), deep("y"), field(deep("x")));
    // A copy of the leaf at each level would be a hundred gigabytes.
    assert_eq!(merged(Kinds::Objects, Some(&base), &ours, &theirs).unwrap().len(), theirs.len());
    assert_eq!(merged(Kinds::Objects, Some(&base), &ours, &deep("z")), None);
}

#[test]
fn values_that_are_no_objects_are_a_conflict() {
    let check = |base, ours, theirs| check(Kinds::Objects, base, ours, theirs, "");
    check("1", "2", " 1");
    check("[1]", "[2]", "[ 1]");
    check("", "[1]", "[ 1]");
}

#[test]
fn a_field_is_added_to_metadata() {
    let with = |text: &str| {
        let with = with_number(text.as_bytes(), "from", 7);
        with.map(|text| String::from_utf8(text).unwrap())
    };
    assert_eq!(with(r#" {"a": [1, 2], "b":1.0} "#).unwrap(), r#"{"a":[1, 2],"b":1.0,"from":7}"#);
    assert_eq!(with(r#"{"from":5,"a":1}"#).unwrap(), r#"{"a":1,"from":7}"#);
    assert_eq!(with("{}").unwrap(), r#"{"from":7}"#);
    assert_eq!((with("[1]"), with("text"), with("")), (None, None, None));
}

#[test]
fn escapes_are_decoded() {
    let same = |a: &str, b: &str| assert_eq!(digest(a), digest(b));
    same(r#""\ud83d\ude00""#, "\"\u{1f600}\"");
    same(r#""\/\"\\\b\f\n\r\t""#, r#""/\u0022\u005c\u0008\u000c\u000a\u000d\u0009""#);
    same(r#"{"b":1,"a":[{}, []]}"#, r#"{ "a" : [ { } ,[ ]], "b":1 }"#);
    let differ = [r#""\ud83d""#, r#""\ude00""#, r#""\ud83d\ud83d\ude00""#, r#""\ud83dx""#];
    let forms: BTreeSet<_> = differ.iter().map(|text| digest(text)).collect();
    assert_eq!(forms.len(), differ.len());
    let differ =
        ["[1,2]", "[12]", "[[1],2]", "[1,[2]]", "{\"1\":2}", "[\"1\",2]", "1", "\"1\"", "[]"];
    let forms: BTreeSet<_> = differ.iter().map(|text| digest(text)).collect();
    assert_eq!(forms.len(), differ.len());
}

/// A JSON value: objects, and numbers as leaves.
#[derive(Clone, PartialEq, Debug)]
enum Tree {
    Leaf(u64),
    Object(BTreeMap<String, Tree>),
}

impl Tree {
    fn random(random: &mut Random, depth: u64) -> Self {
        match random.below(3) {
            0 if depth > 0 => Self::Leaf(random.below(3)),
            _ if depth == 3 => Self::Leaf(random.below(3)),
            _ => {
                let fields = (0..random.below(5)).map(|_| {
                    let name = format!("f{}", random.below(6));
                    (name, Self::random(random, depth + 1))
                });
                Self::Object(fields.collect())
            }
        }
    }

    fn edit(&mut self, random: &mut Random, depth: u64) {
        match self {
            Self::Object(fields) if depth < 3 => {
                for _ in 0..random.below(3) {
                    let name = format!("f{}", random.below(6));
                    match (random.below(3), fields.get_mut(&name)) {
                        (0, _) => _ = fields.remove(&name),
                        (1, Some(field)) => field.edit(random, depth + 1),
                        _ => _ = fields.insert(name, Self::random(random, depth + 1)),
                    }
                }
            }
            other => *other = Self::random(random, depth.max(1)),
        }
    }

    /// The text, with random white space and order of fields.
    fn text(&self, random: &mut Random) -> String {
        let mut space = || " ".repeat(random.below(2) as usize);
        match self {
            Self::Leaf(number) => number.to_string(),
            Self::Object(fields) => {
                let mut fields: Vec<_> = fields.iter().collect();
                let around = [space(), space(), space()];
                if random.below(2) == 0 {
                    fields.reverse();
                }
                let field = |(name, value): (&String, &Tree)| {
                    format!("{}\"{name}\":{}{}", around[0], around[1], value.text(random))
                };
                let fields: Vec<_> = fields.into_iter().map(field).collect();
                format!("{{{}{}}}", fields.join(","), around[2])
            }
        }
    }

    fn merge(
        base: Option<&Self>,
        ours: Option<&Self>,
        theirs: Option<&Self>,
    ) -> Result<Option<Self>, ()> {
        if ours == theirs || base == theirs {
            return Ok(ours.cloned());
        }
        if base == ours {
            return Ok(theirs.cloned());
        }
        let empty = BTreeMap::new();
        let base = match base {
            None => &empty,
            Some(Self::Object(base)) => base,
            Some(Self::Leaf(_)) => return Err(()),
        };
        let (Some(Self::Object(ours)), Some(Self::Object(theirs))) = (ours, theirs) else {
            return Err(());
        };
        let mut merged = BTreeMap::new();
        for name in base.keys().chain(ours.keys()).chain(theirs.keys()) {
            if let Some(value) = Self::merge(base.get(name), ours.get(name), theirs.get(name))? {
                merged.insert(name.clone(), value);
            }
        }
        Ok(Some(Self::Object(merged)))
    }
}

#[test]
fn random_objects_merge_as_the_model_does() {
    let seed = std::env::var("SEED").map_or(21, |seed| seed.parse().unwrap());
    println!("SEED={seed}");
    let mut random = Random::new(seed);
    let mut counts = [0; 2];
    for _ in 0..4000 {
        let base = Tree::random(&mut random, 0);
        let [mut ours, mut theirs] = [base.clone(), base.clone()];
        ours.edit(&mut random, 0);
        theirs.edit(&mut random, 0);
        let wanted = Tree::merge(Some(&base), Some(&ours), Some(&theirs));
        let [base, our, their] = [&base, &ours, &theirs].map(|tree| tree.text(&mut random));
        let both = merged(Kinds::Objects, Some(&base), &our, &their);
        assert_eq!(merged(Kinds::Objects, Some(&base), &their, &our), both);
        counts[usize::from(both.is_some())] += 1;
        let form = |text: &str| digest(text);
        match wanted {
            Err(()) => assert_eq!(both, None, "{base} {our} {their}"),
            Ok(wanted) => {
                let both = both.expect("there is no conflict");
                let wanted = wanted.expect("it is not deleted").text(&mut random);
                assert!(document(both.as_bytes()).is_some(), "{both}");
                assert_eq!(form(&both), form(&wanted), "{base} {our} {their}");
                // Merging a merged value again changes nothing.
                let again = merged(Kinds::Objects, Some(&our), &both, &our).unwrap();
                assert_eq!(form(&again), form(&both));
            }
        }
    }
    assert!(counts.iter().all(|count| *count > 150), "{counts:?}");
}
