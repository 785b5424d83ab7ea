//! Errors of an archive, named by what the caller should do next.

use std::io;
use std::ops::RangeInclusive;
use std::path::PathBuf;

use plimsoll::Glsn;

/// An object of the archive that is damaged or missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The object's name.
    pub object: String,
    /// A description of the damage.
    pub what: String,
}

/// The damage of a missing object.
pub(crate) const MISSING: &str = "it is missing";

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] plimsoll::Error),
    /// The storage of the archive failed.
    #[error("{what}: {source}")]
    Storage {
        /// The object, or the operation.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// The URL does not name a place for an archive.
    #[error("{url}: {what}")]
    Url {
        /// The URL.
        url: String,
        /// The error in the URL, and the correct form.
        what: String,
    },
    /// There is no archive at this place.
    #[error(
        "{place}: there is no archive here; check the path, or create one with `plimsoll archive`"
    )]
    NotAnArchive {
        /// The place.
        place: String,
    },
    /// The folder holds something else: give the archive its own folder.
    #[error(
        "{place}: the folder is not empty and does not contain an archive; give a new or empty \
         folder"
    )]
    NotEmpty {
        /// The place.
        place: String,
    },
    /// One of the archive's folder and the store's folder contains the other: give the archive a
    /// folder outside of the store.
    #[error(
        "{place}: {}; give the archive a folder that neither is in the store nor contains it",
        if *is_inside {
            format!("this is inside the store {}", store.display())
        } else {
            format!("the store {} is inside this folder", store.display())
        }
    )]
    NotApart {
        /// The place.
        place: String,
        /// The store's folder.
        store: PathBuf,
        /// Whether the archive is inside the store; if not, the store is inside the archive.
        is_inside: bool,
    },
    /// The archive has a format that this version does not know: use a newer version.
    #[error(
        "{object}: this version of Plimsoll cannot read format {format} of the archive; use a \
         newer version of Plimsoll"
    )]
    Format {
        /// The object.
        object: String,
        /// Its format.
        format: u32,
    },
    /// The archive belongs to another store: give each store its own place.
    #[error(
        "{place}: this archive is of another store (its log's id is {archived:032x}, the store's \
         is {store:032x}); archive the store to another place"
    )]
    OtherStore {
        /// The place.
        place: String,
        /// The id of the archived log.
        archived: u128,
        /// The id of the store's log.
        store: u128,
    },
    /// The store and the archive have different histories: the store was set back, or it was
    /// restored to an earlier moment and has since had other commits.
    #[error(
        "{place}: the store does not continue this archive, because it was set back or restored \
         since it was archived: {what} (archive it to another place). This archive stays as it is"
    )]
    OtherHistory {
        /// The place.
        place: String,
        /// A description of the difference.
        what: String,
    },
    /// Another archiver writes to this archive: end one of the two.
    #[error(
        "{place}: another archiver writes to this archive{}; end one of the two",
        pid.map_or_else(String::new, |pid| format!(" (process {pid})"))
    )]
    OtherArchiver {
        /// The place.
        place: String,
        /// Its process id, if it is known.
        pid: Option<u32>,
    },
    /// The archive does not have the moment: restore one of `restorable`.
    #[error("{asked} is not in the archive; {}", show_ranges(restorable))]
    NotArchived {
        /// The moment.
        asked: String,
        /// The moments that can be restored.
        restorable: Vec<RangeInclusive<Glsn>>,
    },
    /// Nothing can be restored, because of this damage: begin a new archive.
    #[error(
        "no moment of the archive can be restored, because it is damaged; begin a new archive at \
         another place. Damage: {}",
        show_damage(damage)
    )]
    Damaged {
        /// The damaged objects.
        damage: Vec<Damage>,
    },
    /// The destination of a restore is in use.
    #[error(
        "{}: the destination exists; give a folder that is empty or does not exist",
        path.display()
    )]
    DestinationExists {
        /// The destination.
        path: PathBuf,
    },
}

/// Result of a call to an archive.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// A failure of the storage, or, if the bytes to be stored came from a store, of that store.
    pub(crate) fn storage(what: impl Into<String>, source: io::Error) -> Self {
        let of_store = source.get_ref().and_then(|inner| inner.downcast_ref::<plimsoll::Error>());
        match of_store {
            Some(error) => Self::Store(error.clone()),
            None => Self::Storage { what: what.into(), source },
        }
    }
}

fn show_ranges(ranges: &[RangeInclusive<Glsn>]) -> String {
    let shown: Vec<String> =
        ranges.iter().map(|range| format!("GLSN {} to {}", range.start(), range.end())).collect();
    match shown.is_empty() {
        true => "no moment can be restored; archive the store first".to_owned(),
        false => format!("the archive can restore {}", shown.join(" and ")),
    }
}

fn show_damage(damage: &[Damage]) -> String {
    let shown: Vec<String> =
        damage.iter().map(|damage| format!("{}: {}", damage.object, damage.what)).collect();
    shown.join("; ")
}
