//! Opens a store beside a process that writes it: what fails is tried again if the manifest has
//! changed meanwhile.

use crate::types::error::{Error, Result};

/// How often a store is opened while its manifest is another one each time: what fails then has
/// another cause.
const TRIES: usize = 32;

/// Calls `open` until it succeeds, `manifest` is the same before and after it, or it was tried too
/// often.
pub(crate) fn open_beside_a_writer<M: PartialEq, T>(
    manifest: &dyn Fn() -> Result<Option<M>>,
    mut open: impl FnMut() -> Result<T>,
) -> Result<T> {
    let mut tries = 0;
    loop {
        let before = manifest();
        let opened = open();
        tries += 1;
        if opened.is_ok() || tries == TRIES {
            return opened;
        }
        // Beside a process that writes its first run, that run may be younger than the log was when
        // it was opened.
        let is_first =
            tries < 3 && matches!((&before, &opened), (Ok(None), Err(Error::Forked { .. })));
        // Files of the manifest that was read may be gone: then there is a newer manifest.
        if manifest() == before && !is_first {
            return opened;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const FAILS: Result<()> = Err(Error::ReadOnly);

    #[test]
    fn what_fails_while_the_manifest_stays_fails_at_once() {
        let opened = Cell::new(0);
        let open = || {
            opened.set(opened.get() + 1);
            FAILS
        };
        assert_eq!(open_beside_a_writer(&|| Ok(Some(7)), open), FAILS);
        assert_eq!(opened.get(), 1);
    }

    #[test]
    fn what_fails_beside_a_new_manifest_is_tried_again() {
        let opened = Cell::new(0);
        let open = || {
            opened.set(opened.get() + 1);
            if opened.get() < 3 { FAILS } else { Ok(()) }
        };
        assert_eq!(open_beside_a_writer(&|| Ok(Some(opened.get())), open), Ok(()));
    }

    #[test]
    fn what_fails_beside_ever_new_manifests_fails_in_the_end() {
        let opened = Cell::new(0);
        let open = || {
            opened.set(opened.get() + 1);
            FAILS
        };
        assert_eq!(open_beside_a_writer(&|| Ok(Some(opened.get())), open), FAILS);
        assert_eq!(opened.get(), TRIES);
    }
}
