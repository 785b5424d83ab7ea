//! Repeats requests that fail, with growing pauses, until a deadline; and explains failures.

use std::io::{self, ErrorKind};
use std::time::Duration;

use plimsoll_disk::clock::Clock;

/// The first pause and the longest one.
const PAUSES: [Duration; 2] = [Duration::from_millis(2), Duration::from_secs(2)];

/// The attempts of one request.
pub(crate) struct Attempts<'a> {
    clock: &'a dyn Clock,
    until: u64,
    pause: Duration,
}

impl<'a> Attempts<'a> {
    pub(crate) fn new(clock: &'a dyn Clock, patience: Duration) -> Self {
        let patience = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        Self { clock, until: clock.monotonic_nanos().saturating_add(patience), pause: PAUSES[0] }
    }

    /// Waits before the next attempt. False if the time is over.
    pub(crate) fn again(&mut self) -> bool {
        let left = self.until.saturating_sub(self.clock.monotonic_nanos());
        if left == 0 {
            return false;
        }
        self.clock.sleep(self.pause.min(Duration::from_nanos(left)));
        self.pause = (2 * self.pause).min(PAUSES[1]);
        true
    }
}

/// Whether the storage refused the request, so that repeating it at once is useless.
pub(crate) fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::StorageFull
            | ErrorKind::QuotaExceeded
            | ErrorKind::FileTooLarge
            | ErrorKind::ReadOnlyFilesystem
            | ErrorKind::PermissionDenied
            | ErrorKind::NotFound
            | ErrorKind::NotADirectory
            | ErrorKind::Unsupported
            | ErrorKind::InvalidInput
    )
}

/// The remedy for a failure of the storage.
pub(crate) fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "the disk of the bucket is full; free space there, and commit again"
        }
        ErrorKind::ReadOnlyFilesystem => {
            "the file system of the bucket is read-only; mount it for writing"
        }
        ErrorKind::PermissionDenied => {
            "this user may not use the bucket; check its permissions or the credentials"
        }
        ErrorKind::NotFound if error.to_string().contains("SQLSTATE") => {
            "the database or its tables are missing; check the URL"
        }
        ErrorKind::NotFound | ErrorKind::NotADirectory => {
            "the folder of the bucket is missing; check that it is mounted, and that the URL is \
             right"
        }
        ErrorKind::Unsupported => {
            "the storage lacks an operation that a cluster needs; move the bucket to a file system \
             with hard links, or to a service with conditional writes"
        }
        ErrorKind::InvalidInput => "correct this, and try again",
        // The code of S3 and of services with its interface.
        _ if error.to_string().contains("NoSuchBucket") => "create the bucket, or check the URL",
        _ if error.to_string().contains("there is no stream") => {
            "commits fail until it exists again"
        }
        _ => "check that the bucket can be reached; commits succeed again once it can",
    }
}
