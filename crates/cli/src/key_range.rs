//! A key range as the command line specifies it: a prefix, a first key, and an exclusive end.

use std::ops::Bound;

/// One end of a range.
pub(crate) type Edge = Bound<Vec<u8>>;

/// The keys between two edges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyRange {
    pub(crate) lower: Edge,
    pub(crate) upper: Edge,
}

impl KeyRange {
    /// The keys that begin with `prefix`, from `from` on, before `to`.
    pub(crate) fn new(prefix: &[u8], from: Option<Vec<u8>>, to: Option<Vec<u8>>) -> Self {
        let lower = from.unwrap_or_default().max(prefix.to_vec());
        let upper = match (to, prefix_end(prefix)) {
            (Some(to), Some(behind)) => Some(to.min(behind)),
            (to, behind) => to.or(behind),
        };
        // Crossed bounds hold no key.
        let upper = upper.map(|upper| upper.max(lower.clone()));
        Self {
            lower: Bound::Included(lower),
            upper: upper.map_or(Bound::Unbounded, Bound::Excluded),
        }
    }

    /// The bounds in the store's types.
    pub(crate) fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (self.lower.as_ref().map(Vec::as_slice), self.upper.as_ref().map(Vec::as_slice))
    }
}

/// The first key after all keys with `prefix`; `None` if there is none.
fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let kept = prefix.iter().rposition(|&byte| byte != 0xff)?;
    let mut behind = prefix[..=kept].to_vec();
    behind[kept] += 1;
    Some(behind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_intersects_prefix_and_bounds() {
        let bounds = |prefix: &str, from: Option<&str>, to: Option<&str>| {
            let bytes = |key: Option<&str>| key.map(|key| key.as_bytes().to_vec());
            let KeyRange { lower, upper } =
                KeyRange::new(prefix.as_bytes(), bytes(from), bytes(to));
            let text = |edge: Edge| match edge {
                Bound::Included(key) | Bound::Excluded(key) => String::from_utf8(key).unwrap(),
                Bound::Unbounded => "-".to_owned(),
            };
            (text(lower), text(upper))
        };
        let cases = [
            (("", None, None), ("", "-")),
            (("", Some("b"), Some("d")), ("b", "d")),
            (("p/", None, None), ("p/", "p0")),
            (("p/", Some("p/b"), None), ("p/b", "p0")),
            (("p/", None, Some("p/b")), ("p/", "p/b")),
            (("p/", Some("a"), Some("z")), ("p/", "p0")),
            (("p/", Some("q"), None), ("q", "q")),
            (("p/", None, Some("a")), ("p/", "p/")),
        ];
        for ((prefix, from, to), (lower, upper)) in cases {
            assert_eq!(
                bounds(prefix, from, to),
                (lower.to_owned(), upper.to_owned()),
                "{prefix} {from:?} {to:?}"
            );
        }
    }

    #[test]
    fn prefix_end_is_its_successor() {
        assert_eq!(prefix_end(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(prefix_end(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(prefix_end(b"\xff"), None);
        assert_eq!(prefix_end(b""), None);
    }
}
