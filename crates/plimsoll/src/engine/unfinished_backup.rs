//! Recognizes the folder of an unfinished backup: one in progress, or one whose process was killed.

/// The name of the log's folder until the backup is complete.
pub(crate) const PARTIAL_LOG: &str = "log.partial";

/// The name of the index's folder.
const INDEX: &str = "index";

/// Whether a folder with these names holds an unfinished backup, and nothing else.
pub(crate) fn is_unfinished(names: &[String]) -> bool {
    names.iter().any(|name| name == PARTIAL_LOG)
        && names.iter().all(|name| name == PARTIAL_LOG || name == INDEX)
}
