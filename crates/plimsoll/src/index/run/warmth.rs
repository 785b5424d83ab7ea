//! Decides which pages of a new run enter the pool while it is written. Versions that were read in
//! the inputs are likely to be read again, so their new pages enter the pool at once instead of
//! being loaded one by one.

/// How often versions were read in their source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Warmth {
    /// Rarely or unknown.
    Unread,
    /// Recently: their pages enter the pool as if they had been loaded.
    Read,
    /// More than once: their pages enter hot.
    Hot,
}

/// Aggregates the warmth of the versions of a page and decides how the page enters the pool.
#[derive(Debug, Default)]
pub(crate) struct Scale {
    bytes: u64,
    read_bytes: u64,
    hot_bytes: u64,
    /// The warmest leaf since the last page that is not a leaf.
    below: Option<Warmth>,
}

impl Scale {
    /// Adds a version of this many bytes to the open leaf.
    pub(crate) fn add(&mut self, bytes: u64, warmth: Warmth) {
        self.bytes += bytes;
        self.read_bytes += if warmth == Warmth::Unread { 0 } else { bytes };
        self.hot_bytes += if warmth == Warmth::Hot { bytes } else { 0 };
    }

    /// The warmth of a page that is not a leaf: that of the warmest leaf since the previous such
    /// page. The open leaf does not count, because a guide may be written to make room for it.
    pub(crate) fn take_above(&mut self) -> Warmth {
        self.below.take().unwrap_or(Warmth::Unread)
    }

    /// The warmth of the leaf that was filled: the highest that at least half of its bytes have.
    pub(crate) fn take_leaf(&mut self) -> Warmth {
        let is_most = |part: u64| 2 * part >= self.bytes;
        let warmth = match (is_most(self.hot_bytes), is_most(self.read_bytes)) {
            (true, _) => Warmth::Hot,
            (false, true) => Warmth::Read,
            (false, false) => Warmth::Unread,
        };
        let below = match (self.below, warmth) {
            (Some(Warmth::Hot), _) | (_, Warmth::Hot) => Warmth::Hot,
            (Some(Warmth::Read), _) | (_, Warmth::Read) => Warmth::Read,
            _ => Warmth::Unread,
        };
        *self = Self { below: Some(below), ..Self::default() };
        warmth
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_is_as_warm_as_half_of_its_bytes_and_its_guide_as_the_warmest_leaf() {
        let mut scale = Scale::default();
        let leaf = |scale: &mut Scale, parts: &[(u64, Warmth)]| {
            parts.iter().for_each(|&(bytes, warmth)| scale.add(bytes, warmth));
            scale.take_leaf()
        };
        assert_eq!(scale.take_above(), Warmth::Unread, "a header");
        assert_eq!(leaf(&mut scale, &[(60, Warmth::Unread), (40, Warmth::Hot)]), Warmth::Unread);
        assert_eq!(
            leaf(&mut scale, &[(40, Warmth::Unread), (30, Warmth::Hot), (30, Warmth::Read)]),
            Warmth::Read
        );
        assert_eq!(scale.take_above(), Warmth::Read, "the guide over both");
        assert_eq!(
            scale.take_above(),
            Warmth::Unread,
            "an inner page without a leaf since the guide"
        );
        assert_eq!(leaf(&mut scale, &[(50, Warmth::Unread), (50, Warmth::Hot)]), Warmth::Hot);
        assert_eq!(leaf(&mut scale, &[(50, Warmth::Unread)]), Warmth::Unread);
        assert_eq!(scale.take_above(), Warmth::Hot);
    }

    #[test]
    fn a_guide_written_before_a_leaf_does_not_count_it() {
        let mut scale = Scale::default();
        scale.add(50, Warmth::Unread);
        assert_eq!(scale.take_leaf(), Warmth::Unread);
        scale.add(50, Warmth::Hot);
        assert_eq!(scale.take_above(), Warmth::Unread, "the guide over the first leaf");
        assert_eq!(scale.take_leaf(), Warmth::Hot);
        assert_eq!(scale.take_above(), Warmth::Hot);
    }
}
