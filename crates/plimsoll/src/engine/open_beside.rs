//! Opens a store that another process is writing: retries after a failure if the manifest has
//! changed meanwhile.

use crate::types::error::{Error, Result};

/// How often opening is retried while the manifest changes each time. After that, the failure must
/// have another cause.
const TRIES: usize = 32;

/// Calls `open` until it succeeds, the manifest is unchanged by the time it fails, or the retries
/// are used up.
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
        // While another process writes its first run, that run may have commits that the log did
        // not have yet when it was opened here.
        let is_first =
            tries < 3 && matches!((&before, &opened), (Ok(None), Err(Error::Forked { .. })));
        // Files of the manifest that was read may be gone, but only if there is a newer manifest.
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
    fn a_failure_under_an_unchanged_manifest_is_returned_at_once() {
        let opened = Cell::new(0);
        let open = || {
            opened.set(opened.get() + 1);
            FAILS
        };
        assert_eq!(open_beside_a_writer(&|| Ok(Some(7)), open), FAILS);
        assert_eq!(opened.get(), 1);
    }

    #[test]
    fn a_failure_beside_a_new_manifest_is_retried() {
        let opened = Cell::new(0);
        let open = || {
            opened.set(opened.get() + 1);
            if opened.get() < 3 { FAILS } else { Ok(()) }
        };
        assert_eq!(open_beside_a_writer(&|| Ok(Some(opened.get())), open), Ok(()));
    }

    #[test]
    fn a_failure_under_ever_new_manifests_is_returned_in_the_end() {
        let opened = Cell::new(0);
        let open = || {
            opened.set(opened.get() + 1);
            FAILS
        };
        assert_eq!(open_beside_a_writer(&|| Ok(Some(opened.get())), open), FAILS);
        assert_eq!(opened.get(), TRIES);
    }
}
