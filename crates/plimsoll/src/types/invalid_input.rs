//! Why a request is invalid, with the limit that it exceeds or the name that is not allowed.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use plimsoll_log::glsn::Glsn;

use crate::types::retention::Retention;
use crate::types::times::show_time;

/// Why a request is invalid. The message states the allowed values, or the call to use instead.
///
/// ```
/// # fn main() -> plimsoll::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let options = plimsoll::Options::new().memory_bytes(16 << 20);
/// # let db = plimsoll::Db::open(dir.path().join("store"), options)?;
/// use plimsoll::{Error, InvalidInput};
///
/// let notes = db.keyspace("notes")?;
/// match db.put(&notes, vec![b'x'; 5000], "one") {
///     Err(Error::InvalidInput(InvalidInput::KeyTooLong { bytes, limit_bytes })) => {
///         assert!(bytes > limit_bytes)
///     }
///     other => panic!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidInput {
    /// The key, prefix or bound is too long.
    #[error("the key has {bytes} bytes; the maximum is {limit_bytes}")]
    KeyTooLong {
        /// Length of the key.
        bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// The key is too long to be written on a branch.
    #[error(
        "the key has {bytes} bytes; the maximum on a branch is {limit_bytes}, and each zero byte \
         counts twice"
    )]
    KeyTooLongForBranch {
        /// Length of the key, with each zero byte counted twice.
        bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// The range to delete cannot contain any key.
    #[error("the range to delete is empty: its end must be after its beginning")]
    EmptyRange,
    /// The change feed does not report expiries.
    #[error(
        "expiries are reported only for keys of one keyspace on main: watch them (Db::watch), not \
         all commits and not a branch"
    )]
    ExpiriesNotWatched,
    /// A store with an order cannot be shared with other processes.
    #[error(
        "a replica (a store that is opened with `order`) cannot be shared: open it in one process, \
         without `shared`"
    )]
    OrderOfSharedStore,
    /// A store with an order cannot be opened read-only.
    #[error(
        "a store that is open read-only cannot apply the commits of its order: open it without \
         `read_only`, or without an order"
    )]
    OrderOfReader,
    /// The segments of a store with an order are too small.
    #[error(
        "segments of {bytes} bytes are too small for a replica (a store that is opened with \
         `order`); use at least 2 MiB"
    )]
    SegmentSizeWithOrder {
        /// The requested size.
        bytes: u64,
    },
    /// The store is a replica, and was opened for writing without its order.
    #[error(
        "{}: the commits of this store are ordered outside of it; open it with its order \
         (Options::order; if it is a member of a cluster, plimsoll_replica::open_member, in Python \
         `cluster=`), or read-only",
        path.display()
    )]
    OrderIsMissing {
        /// The store.
        path: PathBuf,
    },
    /// Other replicas may have dropped versions of this moment, so no tag and no branch can name
    /// it.
    #[error(
        "GLSN {glsn} is older than {} minutes, and other replicas may no longer have its versions, \
         because a keyspace does not keep its whole history; name a younger moment",
        limit.as_secs() / 60
    )]
    MomentTooOld {
        /// The moment.
        glsn: Glsn,
        /// The greatest age.
        limit: Duration,
    },
    /// The order gives each commit its time.
    #[error(
        "the time of the log cannot be restarted in a replica, because the order gives each commit \
         its time"
    )]
    RestartOfOrderedTime,
    /// The value is too long.
    #[error(
        "the value has at least {bytes} bytes; the maximum is {limit_bytes} ({} GiB): split it \
         over several keys",
        limit_bytes >> 30
    )]
    ValueTooLong {
        /// Length of the value; if it comes from a reader, the bytes that were read by then.
        bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// No value can have this time to live.
    #[error(
        "invalid time to live {ttl:?}: use at least 1 µs, and at most the time until the year \
         10000; a value without a time to live never expires"
    )]
    TimeToLive {
        /// The time to live.
        ttl: Duration,
    },
    /// No value can expire at this time.
    #[error(
        "invalid expiry time: it must be after now ({}) and before the year 10000, but is {}; \
         delete the key instead, or give another time",
        show_time(*now),
        show_time(*asked)
    )]
    ExpiryTime {
        /// The time.
        asked: SystemTime,
        /// The time of the call, according to the log.
        now: SystemTime,
    },
    /// The metadata of a transaction is too long.
    #[error(
        "the metadata has {bytes} bytes; the maximum is {limit_bytes}: shorten it, or store it \
         under a key"
    )]
    MetadataTooLong {
        /// Length of the metadata.
        bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// Entries appended together are too long.
    #[error(
        "the payloads have {bytes} bytes or more together; one append takes at most {limit_bytes}: \
         append them in several calls"
    )]
    RecordTooLong {
        /// Total length of the entries, or of those that were counted until the limit was exceeded.
        bytes: u64,
        /// The limit.
        limit_bytes: u64,
    },
    /// The name of a keyspace or cursor is not allowed.
    #[error("invalid name {name:?}: use 1 to {limit_bytes} bytes without control characters")]
    Name {
        /// The name.
        name: String,
        /// The maximum length of a name.
        limit_bytes: u64,
    },
    /// There is no keyspace with this name, and it cannot be created here.
    #[error(
        "there is no keyspace {name:?} in this store, and none is created, because the store is \
         open read-only or damaged"
    )]
    NoKeyspace {
        /// The name.
        name: String,
    },
    /// The time is before the first commit: GLSN 0 is the empty store.
    #[error(
        "{} is before the first commit: {}; moment 0 is the empty store",
        show_time(*asked),
        show_begin(*first)
    )]
    TimeBeforeFirst {
        /// The time.
        asked: SystemTime,
        /// The time of the first commit; `None` if there is none.
        first: Option<SystemTime>,
    },
    /// The keyspace was dropped: create a new one.
    #[error(
        "keyspace {name:?} was dropped, so nothing can be put into it; create a new one by \
         Db::keyspace"
    )]
    KeyspaceDropped {
        /// Its name.
        name: String,
    },
    /// The handle of a keyspace belongs to another store, or to an earlier opening of this one.
    #[error(
        "the handle of keyspace {name:?} belongs to another store, or to an earlier opening of \
         this one; get it from the Db that is used here, by Db::keyspace"
    )]
    ForeignKeyspace {
        /// Its name.
        name: String,
    },
    /// The keyspace exists with another retention.
    #[error(
        "keyspace {name:?} exists with retention {keeps}, not {asked}; open it by Db::keyspace, \
         or change it by Db::set_retention"
    )]
    OtherRetention {
        /// Its name.
        name: String,
        /// Its retention.
        keeps: Retention,
        /// The requested retention.
        asked: Retention,
    },
    /// There is no such compression.
    #[error("unknown compression {text:?}; use none, lz4, or zstd:LEVEL with a level from 1 to 22")]
    UnknownCompression {
        /// The compression.
        text: String,
    },
    /// The program was built without zstd.
    #[error(
        "the compression {text} needs a program that is built with the feature `zstd` of the \
         crate plimsoll; use lz4, or build it with that feature"
    )]
    NoZstd {
        /// The compression.
        text: String,
    },
    /// There is no cursor with this name.
    #[error("there is no cursor {name:?}; create it by Log::cursor (`plimsoll cursor create`)")]
    NoCursor {
        /// The name.
        name: String,
    },
    /// A cursor cannot move backwards.
    #[error(
        "cursor {name:?} is at GLSN {at} and cannot move back to {asked}, because earlier entries \
         may be trimmed"
    )]
    CursorGoesBack {
        /// Its name.
        name: String,
        /// Its position.
        at: Glsn,
        /// The requested position.
        asked: Glsn,
    },
    /// The memory budget is below the minimum.
    #[error(
        "a memory budget of {bytes} bytes is below the minimum of {min_bytes} bytes ({} MiB); \
         raise it",
        min_bytes >> 20
    )]
    BudgetTooSmall {
        /// The budget.
        bytes: u64,
        /// The minimum.
        min_bytes: u64,
    },
    /// The memory budget is more than the machine or the container has.
    #[error(
        "a memory budget of {bytes} bytes is too large: {whose} {limit_bytes} bytes ({} MiB); \
         give the store at most that, preferably half of it",
        limit_bytes >> 20
    )]
    BudgetTooLarge {
        /// The budget.
        bytes: u64,
        /// The available memory.
        limit_bytes: u64,
        /// The limit that applies.
        whose: &'static str,
    },
    /// The file system does not support sharing by several processes, or may be used by several
    /// machines.
    #[error(
        "{}: the store is on {file_system}, where several processes cannot share it; open it \
         without Options::shared, or put it on a file system of this machine",
        path.display()
    )]
    CannotBeShared {
        /// The store.
        path: PathBuf,
        /// The file system's name.
        file_system: &'static str,
    },
    /// This process has no permission to write to the store's folder, and no process has ever
    /// shared the store, so there are no members to follow.
    #[error(
        "{}: there is no process to follow, because no process has shared this store yet, and this \
         process cannot write to the folder; open it once another process shares it, or open it \
         without `shared` to read its present state",
        path.display()
    )]
    NobodyToFollow {
        /// The store.
        path: PathBuf,
    },
    /// This process has no permission to write to the store's folder, so it cannot publish to the
    /// other processes which part of the log to retain.
    #[error(
        "{}: this process cannot hold the log of a shared store, because it cannot write to the \
         folder; give it write permission (it can still open the store read-only), or hold the log \
         in a process that has this permission",
        path.display()
    )]
    CannotHoldLog {
        /// The store.
        path: PathBuf,
    },
    /// Each process that shares the store would have less than the minimum of memory.
    #[error(
        "{members} processes share {total_bytes} bytes ({} MiB) of memory for this store; \
         with one more, each would have less than {min_bytes} bytes ({} MiB); give a larger total, \
         or close the store in one of them",
        total_bytes >> 20, min_bytes >> 20
    )]
    NoMemoryForAnother {
        /// The total memory budget of the members.
        total_bytes: u64,
        /// The number of processes that have the store open.
        members: u64,
        /// The minimum for each.
        min_bytes: u64,
    },
    /// The memory budget of this process is its share of the total of all members.
    #[error(
        "the memory budget of this process cannot be set, because it is a share of the \
         {total_bytes} bytes ({} MiB) of all processes that have the store open; open the store \
         with another total (Options::memory_total)",
        total_bytes >> 20
    )]
    MemoryIsShared {
        /// The total memory budget of the members.
        total_bytes: u64,
    },
    /// The destination of a backup, a recovery or a restore already exists.
    #[error(
        "{}: this path already exists; move it away, or use a destination that does not exist or \
         is an empty folder",
        path.display()
    )]
    DestinationExists {
        /// The destination.
        path: PathBuf,
    },
    /// The destination of a backup holds another backup that is in progress or was interrupted.
    #[error(
        "{}: this folder holds an unfinished backup; unless one is being made there now, delete \
         the folder and try again",
        path.display()
    )]
    DestinationUnfinished {
        /// The destination.
        path: PathBuf,
    },
    /// The destination of a backup or a recovery is inside the store.
    #[error(
        "{}: this destination is inside the store; use a folder outside of it",
        path.display()
    )]
    DestinationInside {
        /// The destination.
        path: PathBuf,
    },
    /// The store has the maximum number of keyspaces.
    #[error(
        "a store has at most {limit} keyspaces; drop one by Db::drop_keyspace (`plimsoll keyspace \
         drop`)"
    )]
    TooManyKeyspaces {
        /// The limit.
        limit: u64,
    },
    /// The store has the maximum number of cursors.
    #[error(
        "a store has at most {limit} cursors; drop one by Log::drop_cursor (`plimsoll cursor drop`)"
    )]
    TooManyCursors {
        /// The limit.
        limit: u64,
    },
    /// The name of a tag is not allowed.
    #[error(
        "invalid tag name {name:?}: use 1 to {limit_bytes} bytes; a tag name has no control \
         characters, no spaces at its ends, no `:` and no `@{{`, and does not look like a GLSN or \
         a time, such as `120` or `yesterday`"
    )]
    TagName {
        /// The name.
        name: String,
        /// The maximum length of a name.
        limit_bytes: u64,
    },
    /// There is no tag with this name.
    #[error("there is no tag {name:?}; create it by Db::tag (`plimsoll tag create`)")]
    NoTag {
        /// The name.
        name: String,
    },
    /// There is already a tag with this name.
    #[error(
        "tag {name:?} exists, at GLSN {glsn}; use another name, or delete it by Db::delete_tag \
         (`plimsoll tag delete`)"
    )]
    TagExists {
        /// The name.
        name: String,
        /// The moment of the existing tag.
        glsn: Glsn,
    },
    /// The store has the maximum number of tags.
    #[error(
        "a store has at most {limit} tags; delete one by Db::delete_tag (`plimsoll tag delete`)"
    )]
    TooManyTags {
        /// The limit.
        limit: u64,
    },
    /// The name of a branch is not allowed.
    #[error(
        "invalid branch name {name:?}: use 1 to {limit_bytes} bytes; a branch name has no \
         control characters, no spaces at its ends, no `-` at its beginning, no `:`, `..` or \
         `@{{`, and does not look like a GLSN or a time, such as `120` or `yesterday`"
    )]
    BranchName {
        /// The name.
        name: String,
        /// The maximum length of a name.
        limit_bytes: u64,
    },
    /// There is no branch with this name.
    #[error(
        "there is no branch {name:?}; create it by Db::create_branch (`plimsoll branch create`)"
    )]
    NoBranch {
        /// The name.
        name: String,
    },
    /// The branch was deleted since the caller got it.
    #[error("the branch was deleted; open another with Db::branch")]
    BranchDeleted,
    /// A dump without history has only branch main, and the store has others.
    #[error(
        "the store has branches, which a dump without history omits: dump it with its history, or \
         delete the branches"
    )]
    DumpWithoutBranches,
    /// There is already a branch with this name.
    #[error(
        "branch {name:?} exists; use another name, or delete it by Db::delete_branch (`plimsoll \
         branch delete`)"
    )]
    BranchExists {
        /// The name.
        name: String,
    },
    /// The store has the maximum number of branches.
    #[error(
        "a store has at most {limit} branches; delete one by Db::delete_branch (`plimsoll branch \
         delete`)"
    )]
    TooManyBranches {
        /// The limit.
        limit: u64,
    },
    /// The branch belongs to another store, or to another opening of the store.
    #[error("branch {name:?} was opened by another Db; get it with Db::branch on this one")]
    ForeignBranch {
        /// The name.
        name: String,
    },
    /// A branch was merged into itself.
    #[error("branch {name:?} cannot be merged into itself; name another branch")]
    MergeWithItself {
        /// The name.
        name: String,
    },
    /// Branch main always exists under this name.
    #[error("branch main always exists; it cannot be created, renamed or deleted")]
    MainBranch,
    /// The default keyspace cannot be dropped.
    #[error("the default keyspace always exists: delete its keys instead of dropping it")]
    DropOfDefaultKeyspace,
    /// The memory budget of an open store cannot be raised above the maximum.
    #[error(
        "cannot raise the memory budget to {bytes} bytes while the store is open (maximum \
         {ceiling_bytes} bytes); for a larger budget, open the store again"
    )]
    BudgetBeyondCeiling {
        /// The budget.
        bytes: u64,
        /// The largest budget until the store is opened again.
        ceiling_bytes: u64,
    },
    /// The size of the log's segments is out of bounds.
    #[error("invalid segment size of {bytes} bytes: use 64 KiB to 1 GiB")]
    SegmentSize {
        /// The size.
        bytes: u64,
    },
    /// The I/O allowance of the warm image is too small.
    #[error(
        "the rate limit of the warm image is {bytes_per_second} bytes a second; use at least 64 \
         KiB a second, or disable the warm image"
    )]
    WarmAllowanceTooSmall {
        /// The allowance.
        bytes_per_second: u64,
    },
    /// The interval between two saves of the warm image is too short.
    #[error(
        "the interval of the warm image is {interval:?}; use at least 100 ms, or disable the warm \
         image"
    )]
    WarmIntervalTooShort {
        /// The interval.
        interval: Duration,
    },
    /// A store in memory is always created.
    #[error(
        "a store in memory is new and empty, so it cannot be opened read-only or without `create`; \
         open it for writing, with `create`"
    )]
    InMemoryMustCreate,
    /// The stream is reserved for the store.
    #[error(
        "stream {stream} is reserved for the store; append to stream 1 or higher, below {}",
        u32::MAX
    )]
    ReservedStream {
        /// The stream.
        stream: u32,
    },
    /// An append needs at least one payload.
    #[error("there is nothing to append; pass at least one payload")]
    NothingToAppend,
    /// The log does not accept the record.
    #[error("{what}")]
    InvalidRecord {
        /// The violated rule, and the allowed values.
        what: String,
    },
    /// An update of a number met a value that is not a number: an [`i64`] in 8 bytes, little
    /// endian.
    #[error(
        "the value of {} has {bytes} bytes; a number has 8 (little endian); nothing was written",
        key.escape_ascii()
    )]
    NotANumber {
        /// The key.
        key: Vec<u8>,
        /// Length of its value.
        bytes: u64,
    },
    /// A sum does not fit into 64 bits.
    #[error(
        "{value} + {by} does not fit into the 64 bits of {}; nothing was written",
        key.escape_ascii()
    )]
    CounterOverflow {
        /// The key.
        key: Vec<u8>,
        /// Its number.
        value: i64,
        /// The addend.
        by: i64,
    },
    /// The value differs from the expected value of a compare-and-swap.
    #[error("the value of {} is not the expected one; read it and try again", key.escape_ascii())]
    NotAsExpected {
        /// The key.
        key: Vec<u8>,
    },
    /// A function that computes an update called the store.
    #[error(
        "a function that computes an update cannot use the store; pass it the data that it needs"
    )]
    UpdateUsesStore,
    /// There is no commit with this GLSN.
    #[error("GLSN {glsn} is not a commit; Log::commits (`plimsoll log`) lists the commits")]
    NotACommit {
        /// The GLSN.
        glsn: Glsn,
    },
    /// The commit was made on a branch whose commits the reverted branch does not have.
    #[error(
        "branch {branch:?} does not contain GLSN {glsn}, a commit on {}; {}",
        show_branch(made_on.as_deref()),
        made_on.as_ref().map_or_else(
            || "to undo what a merge brought, revert the commit of the merge".to_owned(),
            |made_on| format!(
                "revert it on branch {made_on:?}, or the commit of the merge that brought it here"
            )
        )
    )]
    CommitOnOtherBranch {
        /// The commit.
        glsn: Glsn,
        /// The branch on which the revert was requested.
        branch: String,
        /// The branch on which the commit was made; `None` if the branch was deleted.
        made_on: Option<String>,
    },
    /// The commit changed no keys, only the store's records of its keyspaces, cursors, tags or
    /// branches.
    #[error(
        "GLSN {glsn} changed no keys, only keyspaces, cursors, tags or branches, and a revert does \
         not change these; use Db::drop_keyspace, Db::keyspace, Db::set_retention, \
         Log::drop_cursor, Db::delete_tag or Db::delete_branch"
    )]
    NothingToRevert {
        /// The commit.
        glsn: Glsn,
    },
    /// The commit changed no keys, so there is nothing to apply to another branch.
    #[error(
        "GLSN {glsn} changed no keys, only keyspaces, cursors, tags or branches, so it cannot be \
         cherry-picked"
    )]
    NothingToPick {
        /// The commit.
        glsn: Glsn,
    },
    /// The states before and after the commit cannot be read, because its branch was deleted.
    #[error(
        "GLSN {glsn} is a commit on a branch that was deleted, so it cannot be cherry-picked; if \
         the branch was merged, cherry-pick the commit of the merge"
    )]
    BranchOfCommitDeleted {
        /// The commit.
        glsn: Glsn,
    },
    /// Keys would be put into a keyspace that does not exist now.
    #[error(
        "keyspace {name:?} does not exist now, so its keys cannot be put back; create it by \
         Db::create_keyspace (`plimsoll keyspace create`) and try again"
    )]
    KeyspaceGone {
        /// Its name.
        name: String,
    },
    /// The name is reserved for the temporary branches of transfers between stores.
    #[error("invalid branch name {name:?}: names that begin with `incoming/` are reserved")]
    TemporaryBranch {
        /// The name.
        name: String,
    },
    /// The text is not the id of a commit.
    #[error("{text:?} is not a commit id, which has 64 hexadecimal digits")]
    CommitId {
        /// The text.
        text: String,
    },
    /// The branch of the other store has commits that the pushed branch does not contain.
    #[error(
        "branch {branch:?} of the other store has commits that this one does not contain; pull \
         them first, or push with force to replace its state"
    )]
    NotFastForward {
        /// The branch.
        branch: String,
    },
    /// The branch was changed while commits were transferred to it.
    #[error("branch {name:?} was changed during the transfer; try again")]
    BranchMoved {
        /// The branch.
        name: String,
    },
    /// The log of the store no longer has commits that the other store lacks.
    #[error(
        "the log no longer has the commits up to GLSN {upto}, which the other store lacks; copy \
         the store with Db::backup, or clone it without the older commits (`plimsoll clone \
         --depth`)"
    )]
    HistoryTrimmed {
        /// The last commit that the other store lacks and the log no longer has.
        upto: Glsn,
    },
    /// The store is a partial clone, and lacks commits before its boundary that are needed.
    #[error(
        "a partial clone lacks commits before {id}, which are needed; clone its origin again, with \
         more of the history"
    )]
    BelowBoundary {
        /// The id of the commit with which the history of the clone begins, or of a commit whose
        /// parents the clone lacks.
        id: String,
    },
    /// A parent of received commits has a state that the receiving store no longer retains.
    #[error(
        "cannot receive descendants of commit {id}, whose state is no longer retained; set a \
         longer retention (Retention::Forever) in a store that several others push to"
    )]
    StateNotRetained {
        /// The id of the commit.
        id: String,
    },
    /// The store has no commit with this id.
    #[error(
        "the store has no commit {id}; fetch it first (in an import: import a commit's parents \
         before it)"
    )]
    NoCommit {
        /// The id.
        id: String,
    },
    /// A clone is to begin at a commit that branch main of the other store does not contain.
    #[error("main of the other store has no commit {id}; choose a commit of its branch main")]
    NoCommitToClone {
        /// The id.
        id: String,
    },
    /// The keys of an imported commit were not passed in ascending order.
    #[error(
        "the keys of keyspace {keyspace:?} are not in ascending order; pass the changes of an \
         imported commit sorted by key, each key once"
    )]
    ImportOrder {
        /// The keyspace.
        keyspace: String,
    },
    /// A reader yielded more or fewer bytes than the given length.
    #[error(
        "the reader of the value yielded {bytes} bytes, but the given length is {expected_bytes}; \
         give the length that the reader yields"
    )]
    ValueLength {
        /// The number of bytes that the reader yielded.
        bytes: u64,
        /// The number that was announced.
        expected_bytes: u64,
    },
    /// There is no remote with this name.
    #[error("there is no remote {name:?}; Db::add_remote (`plimsoll remote add`) adds one")]
    NoRemote {
        /// The name.
        name: String,
    },
    /// The name is not allowed for a remote.
    #[error(
        "{name:?} cannot be the name of a remote: use 1 to 255 bytes without control characters, \
         `/` or `:`; the name must not begin with `-`, be `incoming`, or denote a moment"
    )]
    RemoteName {
        /// The name.
        name: String,
    },
    /// The address has none of the forms that [`Db::add_remote`](crate::Db::add_remote) lists.
    #[error(
        "{address:?} is not the address of a store: give the path of its folder, file:// and the \
         absolute path, ssh://[USER@]HOST[:PORT]/PATH, or [USER@]HOST:PATH"
    )]
    RemoteAddress {
        /// The address.
        address: String,
    },
    /// The address runs a command, which the environment does not permit.
    #[error(
        "{address:?} would run a command on this machine; if it is yours, set the environment \
         variable PLIMSOLL_ALLOW_EXEC to 1"
    )]
    ExecAddress {
        /// The address.
        address: String,
    },
    /// The address is that of the store itself.
    #[error("the remote is the store itself; give the address of another store")]
    RemoteIsSelf,
    /// The destination of the clone is not empty.
    #[error(
        "{}: this path is not an empty folder; clone into a folder that is empty or does not \
         exist, or, if an interrupted clone is there, open that store and continue with Db::pull \
         (`plimsoll pull`)",
        path.display()
    )]
    CloneTarget {
        /// The path.
        path: PathBuf,
    },
    /// The function of a merge rule panicked.
    #[error(
        "the merge function panicked at key {} of keyspace {keyspace:?}: {message}; nothing was \
         written",
        key.escape_ascii()
    )]
    MergeFunctionPanicked {
        /// The keyspace.
        keyspace: String,
        /// The key.
        key: Vec<u8>,
        /// The message of the panic; empty if it is not text.
        message: String,
    },
    /// An earlier write of the transaction failed, so it cannot be committed.
    #[error("an earlier write of this transaction failed; abort it and run it again")]
    TransactionFailed,
}

fn show_branch(name: Option<&str>) -> String {
    name.map_or_else(|| "a deleted branch".to_owned(), |name| format!("branch {name:?}"))
}

fn show_begin(first: Option<SystemTime>) -> String {
    first.map_or_else(
        || "the store is empty".to_owned(),
        |first| format!("the store begins at {}", show_time(first)),
    )
}
