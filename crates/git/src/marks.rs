//! A set of positions in the log.

/// A set of entries of the log: one bit each.
#[derive(Debug, Default)]
pub(crate) struct Marks(Vec<u64>);

impl Marks {
    pub(crate) fn has(&self, glsn: u64) -> bool {
        self.0.get((glsn / 64) as usize).is_some_and(|bits| bits & 1 << (glsn % 64) != 0)
    }

    pub(crate) fn set(&mut self, glsn: u64) {
        let at = (glsn / 64) as usize;
        if at >= self.0.len() {
            self.0.resize(at + 1, 0);
        }
        self.0[at] |= 1 << (glsn % 64);
    }

    pub(crate) fn clear(&mut self, glsn: u64) {
        if let Some(bits) = self.0.get_mut((glsn / 64) as usize) {
            *bits &= !(1 << (glsn % 64));
        }
    }

    pub(crate) fn end(&self) -> u64 {
        self.0.len() as u64 * 64
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.iter().map(|bits| u64::from(bits.count_ones())).sum()
    }

    pub(crate) fn first_from(&self, from: u64) -> Option<u64> {
        let start = (from / 64) as usize;
        for (at, bits) in self.0.iter().enumerate().skip(start) {
            let bits = if at == start { bits & (u64::MAX << (from % 64)) } else { *bits };
            if bits != 0 {
                return Some(at as u64 * 64 + u64::from(bits.trailing_zeros()));
            }
        }
        None
    }

    pub(crate) fn last_before(&self, end: u64) -> Option<u64> {
        let last = end.checked_sub(1)?;
        let start = (last / 64) as usize;
        for at in (0..self.0.len().min(start + 1)).rev() {
            let bits = self.0[at];
            let bits = if at == start { bits & (u64::MAX >> (63 - last % 64)) } else { bits };
            if bits != 0 {
                return Some(at as u64 * 64 + 63 - u64::from(bits.leading_zeros()));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_found_in_both_directions() {
        let mut marks = Marks::default();
        assert_eq!((marks.first_from(0), marks.last_before(marks.end())), (None, None));
        let all = [1, 63, 64, 127, 128, 1000];
        all.iter().for_each(|&glsn| marks.set(glsn));
        let (mut up, mut next) = (Vec::new(), 0);
        while let Some(glsn) = marks.first_from(next) {
            up.push(glsn);
            next = glsn + 1;
        }
        assert_eq!(up, all);
        let (mut down, mut next) = (Vec::new(), marks.end());
        while let Some(glsn) = marks.last_before(next) {
            down.push(glsn);
            next = glsn;
        }
        down.reverse();
        assert_eq!(down, all);
        marks.clear(64);
        assert_eq!((marks.count(), marks.has(64), marks.has(63)), (5, false, true));
        assert_eq!((marks.first_from(64), marks.last_before(127)), (Some(127), Some(63)));
    }
}
