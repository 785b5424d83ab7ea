//! Merges three versions of a JSON text: objects field by field, or arrays as sets.
//!
//! Texts are not converted. The parts that are kept are copied as they are written, so that numbers
//! stay exact. Parts are compared without regard to white space, escapes in strings, and the order
//! of fields. Numbers are equal only if they are written in the same way.
//!
//! The result does not depend on which side is ours: of the additions of both sides, those of the
//! side whose text is smaller as bytes come first, and white space is that of the base if the base
//! has any fields. The merged text is not longer than the three texts together. If it would be
//! longer, white space is left out.

mod read;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_memory::budget::{Budget, Kind};
use plimsoll_memory::buffer::Buffer;

use self::read::{Digest, Digests, Document, Element, List, Spaces, document, list};
use crate::types::error::Result;
use crate::types::value::Value;

/// The longest text that is merged.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// The most fields and elements of the three texts together. They are listed on the heap.
const ELEMENTS_MAX: u64 = 1 << 15;

/// Upper bound of the heap memory for each field or element of the texts.
const ELEMENT_BYTES: u64 = 384;

/// Longer white space between two fields is left out, because it may be repeated.
const SPACE_BYTES_MAX: usize = 300;

/// The kind of a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kinds {
    Objects,
    Sets,
}

/// Applies the changes from `base` to `theirs` to `ours`; `None` if they conflict, if one is not
/// JSON, or if the texts are too long. Without a base, both sides have added to an empty object or
/// set.
///
/// # Errors
/// The budget.
pub(super) fn merge(
    budget: &Budget,
    kinds: Kinds,
    base: Option<&[u8]>,
    [ours, theirs]: [&[u8]; 2],
) -> Result<Option<Value>> {
    let texts = [base.unwrap_or_default(), ours, theirs];
    let lens = texts.map(|text| text.len() as u64);
    if !are_in_bounds(lens) {
        return Ok(None);
    }
    let (Some(ours), Some(theirs)) = (document(ours), document(theirs)) else { return Ok(None) };
    let base = match base.map(document) {
        Some(None) => return Ok(None),
        base => base.flatten(),
    };
    let elements = base.map_or(0, |base| base.elements) + ours.elements + theirs.elements;
    if elements > ELEMENTS_MAX {
        return Ok(None);
    }
    let text_bytes: u64 = lens.iter().sum();
    let bytes_max = text_bytes as usize;
    let mut bytes = Buffer::with_capacity(budget, Kind::Staging, bytes_max)?;
    // The lists of fields and elements, and names and strings without their escapes.
    let lists_bytes = (elements + lens.len() as u64) * ELEMENT_BYTES;
    let _lease = budget.lease(Kind::Staging, lists_bytes + 2 * text_bytes)?;
    let documents: Vec<Document<'_>> = base.into_iter().chain([ours, theirs]).collect();
    let digests = Digests::new(&documents);
    let smaller = ours.whole.min(theirs.whole);
    let (before, after) = base.map_or_else(
        || if ours.whole == smaller { ours.around() } else { theirs.around() },
        |base| base.around(),
    );
    let sides = Sides {
        base: base.map(|base| base.value),
        ours: Some(ours.value),
        theirs: Some(theirs.value),
        digests: &digests,
    };
    for has_spaces in [true, false] {
        bytes.clear();
        let mut merged = Merged { bytes, has_spaces, bytes_max, is_full: false };
        merged.push(before);
        let is_merged = match kinds {
            Kinds::Objects => sides.lists(b'{').and_then(|_| sides.write(&mut merged)),
            Kinds::Sets => sides.write_set(&mut merged),
        };
        if is_merged.is_none() {
            return Ok(None);
        }
        merged.push(after);
        if !merged.is_full {
            return Ok(Some(Value::new(merged.bytes)));
        }
        bytes = merged.bytes;
    }
    Ok(None)
}

/// Whether texts of these lengths are merged.
pub(super) fn are_in_bounds(lens: [u64; 3]) -> bool {
    lens.iter().all(|len| *len <= TEXT_BYTES_MAX)
}

/// A JSON object with the number `value` in the field `name`; `None` if the text is not an object.
pub(super) fn with_number(text: &[u8], name: &str, value: u64) -> Option<Vec<u8>> {
    let text = document(text)?.value;
    let object = list(text, b'{')?;
    let others = object.elements.iter().filter(|field| *field.key != *name.as_bytes());
    let others = others.map(|field| [field.name, b":", field.value].concat());
    let fields: Vec<_> = others.chain([format!("\"{name}\":{value}").into_bytes()]).collect();
    Some([&b"{"[..], &fields.join(&b','), b"}"].concat())
}

/// The text that is written.
struct Merged {
    bytes: Buffer<u8>,
    /// Whether there is white space between items.
    has_spaces: bool,
    bytes_max: usize,
    /// Whether the text is incomplete because it would exceed `bytes_max`.
    is_full: bool,
}

impl Merged {
    fn push(&mut self, text: &[u8]) {
        self.is_full |= text.len() > self.bytes_max - self.bytes.len();
        if !self.is_full {
            self.bytes.extend_from_slice(text);
        }
    }
}

/// A value on the three sides; `None` where there is none.
#[derive(Clone, Copy)]
struct Sides<'a> {
    base: Option<&'a [u8]>,
    ours: Option<&'a [u8]>,
    theirs: Option<&'a [u8]>,
    digests: &'a Digests,
}

impl<'a> Sides<'a> {
    /// Whether two of the values are the same.
    fn is_same(self, a: Option<&[u8]>, b: Option<&[u8]>) -> bool {
        match (a, b) {
            (Some(a), Some(b)) => self.digests.of(a) == self.digests.of(b),
            (a, b) => a.is_none() && b.is_none(),
        }
    }

    /// Chooses the merged value among the three; `Err` if it is none of them.
    fn choose(self) -> std::result::Result<Option<&'a [u8]>, ()> {
        let Self { base, ours, theirs, .. } = self;
        let by_us = !self.is_same(base, ours);
        let by_them = !self.is_same(base, theirs);
        match (by_us, by_them) {
            (false, false) => Ok(base),
            (true, false) => Ok(ours),
            (false, true) => Ok(theirs),
            (true, true) if self.is_same(ours, theirs) => Ok(ours.min(theirs)),
            (true, true) => Err(()),
        }
    }

    /// Writes the merged value; `None` if there is a conflict.
    fn write(self, merged: &mut Merged) -> Option<()> {
        match self.choose() {
            Ok(text) => {
                merged.push(text.unwrap_or_default());
                Some(())
            }
            Err(()) => self.write_object(merged),
        }
    }

    fn write_object(self, merged: &mut Merged) -> Option<()> {
        let [base, first, second] = self.lists(b'{')?;
        let maps = [&base, &first, &second].map(|object| {
            let fields = object.elements.iter().map(|field| (&*field.key, field));
            fields.collect::<BTreeMap<&[u8], &Element<'_>>>()
        });
        let [in_base, in_first, in_second] = &maps;
        let value =
            |map: &BTreeMap<&[u8], &Element<'a>>, key: &[u8]| map.get(key).map(|it| it.value);
        let added = first.elements.iter().filter(|field| !in_base.contains_key(&*field.key));
        let others = second.elements.iter().filter(|field| {
            !in_base.contains_key(&*field.key) && !in_first.contains_key(&*field.key)
        });
        let mut items = Items::new(merged, [&base, &first, &second], [b"{", b"}"]);
        for field in base.elements.iter().chain(added).chain(others) {
            let key = &*field.key;
            let sides = Sides {
                base: value(in_base, key),
                ours: value(in_first, key),
                theirs: value(in_second, key),
                digests: self.digests,
            };
            let chosen = sides.choose();
            if chosen == Ok(None) {
                continue;
            }
            items.begin();
            items.merged.push(field.name);
            items.merged.push(items.spaces.colon);
            match chosen {
                Ok(text) => items.merged.push(text.unwrap_or_default()),
                Err(()) => sides.write_object(items.merged)?,
            }
        }
        items.end();
        Some(())
    }

    /// Writes the union of the elements that both sides keep and add; `None` if one is not an
    /// array.
    fn write_set(self, merged: &mut Merged) -> Option<()> {
        let [base, first, second] = self.lists(b'[')?;
        let set = |list: &List<'_>| -> BTreeSet<&Digest> {
            list.elements.iter().map(|element| self.digests.of(element.value)).collect()
        };
        let [in_base, in_first, in_second] = [set(&base), set(&first), set(&second)];
        let mut written = BTreeSet::new();
        let mut items = Items::new(merged, [&base, &first, &second], [b"[", b"]"]);
        for element in base.elements.iter().chain(&first.elements).chain(&second.elements) {
            let form = self.digests.of(element.value);
            let is_kept = in_first.contains(form) && in_second.contains(form);
            if (is_kept || !in_base.contains(form)) && written.insert(form) {
                items.begin();
                items.merged.push(element.value);
            }
        }
        items.end();
        Some(())
    }

    /// The fields or elements of the base and of both sides, the side with the smaller text first;
    /// `None` if one is of another kind. Without a base, its list is empty.
    fn lists(self, open: u8) -> Option<[List<'a>; 3]> {
        let base = self.base.map_or(Some(List::default()), |base| list(base, open))?;
        let (ours, theirs) = (self.ours?, self.theirs?);
        let (first, second) = (ours.min(theirs), ours.max(theirs));
        Some([base, list(first, open)?, list(second, open)?])
    }
}

/// Writes the items of an object or array, with white space between them.
struct Items<'m, 'a> {
    merged: &'m mut Merged,
    spaces: Spaces<'a>,
    brackets: [&'static [u8]; 2],
    is_empty: bool,
}

impl<'m, 'a> Items<'m, 'a> {
    /// Takes the white space of the first list that has any items.
    fn new(merged: &'m mut Merged, lists: [&List<'a>; 3], brackets: [&'static [u8]; 2]) -> Self {
        let model = lists.into_iter().find(|list| !list.elements.is_empty());
        let spaces = match model {
            Some(model) if merged.has_spaces => model.spaces,
            _ => Spaces { colon: b":", ..Spaces::default() },
        };
        let short = |space: &'a [u8]| if space.len() > SPACE_BYTES_MAX { &[][..] } else { space };
        let colon = if spaces.colon.len() > SPACE_BYTES_MAX { b":" } else { spaces.colon };
        let spaces = Spaces {
            open: short(spaces.open),
            comma: short(spaces.comma),
            close: short(spaces.close),
            colon,
        };
        Self { merged, spaces, brackets, is_empty: true }
    }

    /// Writes the text that precedes an item.
    fn begin(&mut self) {
        match std::mem::take(&mut self.is_empty) {
            true => {
                self.merged.push(self.brackets[0]);
                self.merged.push(self.spaces.open);
            }
            false => {
                self.merged.push(b",");
                self.merged.push(self.spaces.comma);
            }
        }
    }

    fn end(self) {
        match self.is_empty {
            true => self.merged.push(self.brackets[0]),
            false => self.merged.push(self.spaces.close),
        }
        self.merged.push(self.brackets[1]);
    }
}
