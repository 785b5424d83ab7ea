//! JSON texts, and their merges computed independently of the store.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_disk::random::Random;

/// The names of fields.
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// A JSON value of the few kinds that are written here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Json {
    Number(i64),
    Object(BTreeMap<String, Json>),
    Array(Vec<Json>),
}

impl Json {
    /// The value that a text stands for; `None` if it is another kind of text.
    pub(super) fn of(text: &[u8]) -> Option<Self> {
        let text: String = std::str::from_utf8(text).ok()?.split_whitespace().collect();
        let mut rest = text.as_str();
        let value = Self::take(&mut rest)?;
        rest.is_empty().then_some(value)
    }

    fn take(rest: &mut &str) -> Option<Self> {
        if take(rest, "{") {
            let mut fields = BTreeMap::new();
            while !take(rest, "}") {
                take(rest, ",");
                let (name, behind) = rest.strip_prefix('"')?.split_once("\":")?;
                *rest = behind;
                fields.insert(name.to_owned(), Self::take(rest)?);
            }
            return Some(Self::Object(fields));
        }
        if take(rest, "[") {
            let mut elements = Vec::new();
            while !take(rest, "]") {
                take(rest, ",");
                elements.push(Self::take(rest)?);
            }
            return Some(Self::Array(elements));
        }
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, behind) = rest.split_at(end);
        *rest = behind;
        number.parse().ok().map(Self::Number)
    }

    /// Its text.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Object(fields) => {
                let fields =
                    fields.iter().map(|(name, value)| format!("\"{name}\":{}", value.text()));
                format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
            }
            Self::Array(elements) => {
                let elements: Vec<String> = elements.iter().map(Self::text).collect();
                format!("[{}]", elements.join(","))
            }
        }
    }
}

/// Removes `text` from the beginning, if it is there.
fn take(rest: &mut &str, text: &str) -> bool {
    rest.strip_prefix(text).map(|behind| *rest = behind).is_some()
}

/// Whether two texts stand for the same value.
pub(super) fn is_same(a: &[u8], b: &[u8]) -> bool {
    Json::of(a).is_some_and(|a| Json::of(b).as_ref() == Some(&a))
}

fn field(random: &mut Random) -> Json {
    if random.below(3) > 0 {
        return Json::Number(random.below(3) as i64);
    }
    let names = ["x", "y"].into_iter().map(str::to_owned);
    let fields = names.map(|name| (name, Json::Number(random.below(3) as i64)));
    let fields: BTreeMap<_, _> = fields.collect();
    Json::Object(fields.into_iter().take(1 + random.below(2) as usize).collect())
}

fn element(random: &mut Random) -> Json {
    Json::Number(random.below(9) as i64)
}

/// The text of a new value for a key.
pub(super) fn value(key: u8, random: &mut Random) -> Vec<u8> {
    let json = if key.is_multiple_of(2) {
        let names: Vec<&str> = NAMES.into_iter().filter(|_| random.below(3) > 0).collect();
        Json::Object(names.into_iter().map(|name| (name.to_owned(), field(random))).collect())
    } else {
        let numbers = (0..9).filter(|_| random.below(2) == 0);
        Json::Array(numbers.map(Json::Number).collect())
    };
    let text = json.text();
    // White space is not a change.
    if random.below(4) == 0 { text.replace(',', " ,\n  ") } else { text }.into_bytes()
}

/// Another text, with one field or element changed.
pub(super) fn changed(key: u8, text: Option<&[u8]>, random: &mut Random) -> Vec<u8> {
    let json = match text.and_then(Json::of) {
        Some(Json::Object(mut fields)) => {
            let name = NAMES[random.below(4) as usize];
            match (random.below(4), fields.get_mut(name)) {
                (0, _) => drop(fields.remove(name)),
                (1 | 2, Some(Json::Object(inner))) => {
                    let name = ["x", "y"][random.below(2) as usize];
                    inner.insert(name.to_owned(), Json::Number(random.below(4) as i64));
                }
                _ => drop(fields.insert(name.to_owned(), field(random))),
            }
            Json::Object(fields)
        }
        Some(Json::Array(mut elements)) => {
            let element = element(random);
            match elements.iter().position(|other| *other == element) {
                Some(place) => drop(elements.remove(place)),
                None => elements.push(element),
            }
            Json::Array(elements)
        }
        _ => return value(key, random),
    };
    json.text().into_bytes()
}

/// The merge of objects; `None` if it is a conflict.
pub(super) fn merged(base: Option<&[u8]>, ours: &[u8], theirs: &[u8]) -> Option<Vec<u8>> {
    let base = match base {
        Some(base) => Some(Json::of(base)?),
        None => None,
    };
    let (ours, theirs) = (Json::of(ours)?, Json::of(theirs)?);
    let objects = [base.as_ref(), Some(&ours), Some(&theirs)];
    if objects.into_iter().flatten().any(|it| !matches!(it, Json::Object(_))) {
        return None;
    }
    let merged = merged_value(base.as_ref(), Some(&ours), Some(&theirs))?;
    Some(merged?.text().into_bytes())
}

/// The merge of a value that may be missing on each side; `None` if it is a conflict.
fn merged_value(
    base: Option<&Json>,
    ours: Option<&Json>,
    theirs: Option<&Json>,
) -> Option<Option<Json>> {
    if ours == base {
        return Some(theirs.cloned());
    }
    if theirs == base || ours == theirs {
        return Some(ours.cloned());
    }
    let none = BTreeMap::new();
    let base = match base {
        None => &none,
        Some(Json::Object(fields)) => fields,
        Some(_) => return None,
    };
    let (Some(Json::Object(ours)), Some(Json::Object(theirs))) = (ours, theirs) else {
        return None;
    };
    let mut merged = BTreeMap::new();
    for name in base.keys().chain(ours.keys()).chain(theirs.keys()) {
        let value = merged_value(base.get(name), ours.get(name), theirs.get(name))?;
        value.into_iter().for_each(|value| _ = merged.insert(name.clone(), value));
    }
    Some(Some(Json::Object(merged)))
}

/// The merge of arrays as sets of numbers; `None` if it is a conflict.
pub(super) fn merged_set(base: Option<&[u8]>, ours: &[u8], theirs: &[u8]) -> Option<Vec<u8>> {
    let base = base.map_or(Some(BTreeSet::new()), set)?;
    let (ours, theirs) = (set(ours)?, set(theirs)?);
    let kept = ours.intersection(&theirs);
    let added = ours.symmetric_difference(&theirs).filter(|it| !base.contains(it));
    let all: BTreeSet<i64> = kept.chain(added).copied().collect();
    let all = all.into_iter().map(Json::Number).collect();
    Some(Json::Array(all).text().into_bytes())
}

fn set(text: &[u8]) -> Option<BTreeSet<i64>> {
    let Json::Array(elements) = Json::of(text)? else { return None };
    let number = |element| match element {
        Json::Number(number) => Some(number),
        _ => None,
    };
    elements.into_iter().map(number).collect()
}

/// Whether two texts are arrays of the same numbers.
pub(super) fn is_same_set(a: &[u8], b: &[u8]) -> bool {
    set(a).is_some_and(|a| set(b) == Some(a))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_and_merged() {
        let nested = br#"{"a":1 , "b": {"x":2}}"#;
        assert_eq!(Json::of(nested).unwrap().text(), r#"{"a":1,"b":{"x":2}}"#);
        assert_eq!(Json::of(b"[1,2").map(|it| it.text()), None);
        let ours = merged(Some(nested), br#"{"b":{"x":2,"y":3}}"#, br#"{"a":1,"b":{"x":4}}"#);
        assert_eq!(ours.unwrap(), br#"{"b":{"x":4,"y":3}}"#);
        assert_eq!(merged(None, br#"{"a":1}"#, br#"{"a":2}"#), None);
        assert_eq!(merged_set(Some(b"[1,2]"), b"[2,3]", b"[2,1,4]").unwrap(), b"[2,3,4]");
    }
}
