//! The points at which a worker can be killed: its calls of the disk and of locks, its reads of
//! shared words, and its stores to words that are published together.
//!
//! The name of a point gives the activity of the process, whether it is the keeper, the locks that
//! the thread holds, and the call: `working, turn: after write segment`. A read of shared words,
//! which is not a system call, is numbered from the preceding call: `working, turn: after write
//! segment, word 2`. [`crate::workers::killable`] reports each crossing; this module decides
//! whether to kill the process there.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use plimsoll_disk::mutex::lock;
use rustix::process::{Signal, getpid, kill_process};

/// Reads and stores beyond this many after a call share one point, under a lock and without one.
const WORDS_MAX: [u8; 2] = [10, 2];

/// Locks that a thread may hold.
const LOCKS: [&str; 3] = ["join", "turn", "sync"];

/// The activity of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Activity {
    /// Opens the store.
    Joining,
    /// Verifies the store, before it works.
    Verifying,
    /// Works.
    Working,
    /// Closes the store.
    Leaving,
}

const ACTIVITIES: [(Activity, &str); 4] = [
    (Activity::Joining, "joining"),
    (Activity::Verifying, "verifying"),
    (Activity::Working, "working"),
    (Activity::Leaving, "leaving"),
];

/// The position of a point relative to its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Moment {
    Before,
    /// Part of the bytes is written, or the call is in progress.
    Amid,
    After,
    /// A lock was not acquired.
    Refused,
    /// The n-th read of shared words after the call.
    Word(u8),
    /// The n-th store after that.
    Store(u8, u8),
}

/// A point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Point {
    doing: u8,
    is_keeper: bool,
    /// A bit for each of [`LOCKS`].
    locks: u8,
    moment: Moment,
    call: &'static str,
    what: &'static str,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(ACTIVITIES[usize::from(self.doing)].1)?;
        if self.is_keeper {
            f.write_str(", keeper")?;
        }
        for (bit, lock) in LOCKS.iter().enumerate().filter(|(bit, _)| self.locks >> bit & 1 == 1) {
            write!(f, "{}{lock}", if self.locks & ((1 << bit) - 1) == 0 { ", " } else { "+" })?;
        }
        let (moment, call, what) = (self.moment, self.call, self.what);
        match moment {
            Moment::Before => write!(f, ": before {call} {what}"),
            Moment::Amid => write!(f, ": amid {call} {what}"),
            Moment::After => write!(f, ": after {call} {what}"),
            Moment::Refused => write!(f, ": refused {call} {what}"),
            Moment::Word(word) => write!(f, ": after {call} {what}, word {word}"),
            Moment::Store(word, store) => {
                write!(f, ": after {call} {what}, word {word}, store {store}")
            }
        }
    }
}

/// The present point of a thread.
#[derive(Clone, Copy, Debug)]
struct CurrentPoint {
    locks: u8,
    call: &'static str,
    what: &'static str,
    words: u8,
    stores: u8,
}

thread_local! {
    static HERE: Cell<CurrentPoint> =
        const {
            let begin = CurrentPoint { locks: 0, call: "begin", what: "", words: 0, stores: 0 };
            Cell::new(begin)
        };
}

/// The planned end of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct End {
    /// The number of the crossing at which it is killed, from 1.
    pub nth: u64,
    /// Only points of this group count; their names begin with it.
    pub group: String,
    /// Names of points that have enough kills, which do not count.
    pub enough: BTreeSet<String>,
}

/// The group of a point, by its name: the activity and the locks.
pub(crate) fn group_of(point: &str) -> &str {
    point.split_once(": ").map_or(point, |(group, _)| group)
}

/// The state of this process's planned end.
#[derive(Debug)]
pub struct EndState {
    end: End,
    doing: AtomicU8,
    is_keeper: AtomicBool,
    crossings: Mutex<Crossings>,
}

#[derive(Debug, Default)]
struct Crossings {
    /// Whether the process may be killed there.
    points: BTreeMap<Point, bool>,
    /// Crossings of such points.
    times: u64,
}

impl EndState {
    /// The planned end. A clean leave cancels it.
    pub fn new(end: End) -> Self {
        Self {
            end,
            doing: AtomicU8::default(),
            is_keeper: AtomicBool::default(),
            crossings: Mutex::default(),
        }
    }

    /// Sets the present activity.
    pub(crate) fn does(&self, doing: Activity) {
        self.doing.store(doing as u8, Ordering::Relaxed);
    }

    /// Whether the process must be killed within this call on a kind of file. Handles the point
    /// before the call.
    pub(crate) fn ends(&self, moment: Moment, call: &'static str, what: &'static str) -> bool {
        HERE.set(CurrentPoint { call, what, words: 0, stores: 0, ..HERE.get() });
        self.crosses(moment)
    }

    /// Kills the process if its end is planned here.
    pub(crate) fn passes(&self, moment: Moment, call: &'static str, what: &'static str) {
        if self.ends(moment, call, what) {
            die();
        }
    }

    /// Handles a read of shared words.
    pub(crate) fn looks(&self) {
        let here = HERE.get();
        let words = (here.words + 1).min(WORDS_MAX[usize::from(here.locks == 0)]);
        HERE.set(CurrentPoint { words, stores: 0, ..here });
        if self.crosses(Moment::Word(words)) {
            die();
        }
    }

    /// Handles the point between two stores to shared words.
    pub(crate) fn stores(&self) {
        let here = HERE.get();
        let stores = here.stores.saturating_add(1);
        HERE.set(CurrentPoint { stores, ..here });
        if self.crosses(Moment::Store(here.words, stores)) {
            die();
        }
    }

    /// Records that the thread acquired or released a lock.
    pub(crate) fn holds(&self, lock: &'static str, holds: bool) {
        if lock == "keeper" {
            self.is_keeper.store(holds, Ordering::Relaxed);
            if holds {
                print("keeps the index\n");
            }
        }
        let Some(bit) = LOCKS.iter().position(|known| *known == lock) else { return };
        let here = HERE.get();
        let locks = if holds { here.locks | 1 << bit } else { here.locks & !(1 << bit) };
        HERE.set(CurrentPoint { locks, ..here });
    }

    fn crosses(&self, moment: Moment) -> bool {
        let CurrentPoint { locks, call, what, .. } = HERE.get();
        // Work under one of the locks is the same whether or not the process is the keeper.
        let is_keeper = locks == 0 && self.is_keeper.load(Ordering::Relaxed);
        let point = Point {
            doing: self.doing.load(Ordering::Relaxed),
            is_keeper,
            locks,
            moment,
            call,
            what,
        };
        let mut crossings = lock(&self.crossings);
        let may_end = *crossings.points.entry(point).or_insert_with(|| {
            let name = point.to_string();
            print(&format!("sees {name}\n"));
            group_of(&name).starts_with(&self.end.group) && !self.end.enough.contains(&name)
        });
        crossings.times += u64::from(may_end);
        let ends = may_end && crossings.times == self.end.nth;
        if ends {
            print(&format!("dies {point}\n"));
        }
        ends
    }
}

fn print(line: &str) {
    // Without a parent, nobody reads the output.
    let _ = std::io::stdout().lock().write_all(line.as_bytes());
}

/// Kills this process, as another process would.
pub(crate) fn die() -> ! {
    let _ = kill_process(getpid(), Signal::KILL);
    // The init process of a namespace cannot kill itself.
    std::process::abort()
}

fn last_part(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

/// The kind of a file, by its path.
pub(crate) fn kind_of(path: &Path) -> &'static str {
    let (folder, name) = (path.parent().map_or("", last_part), last_part(path));
    let is_draft = name.contains(".tmp") || name.contains(".new");
    if folder == "members" {
        return match name {
            "join" => "join",
            "turn" => "turn",
            "sync" => "sync",
            name if name.starts_with("keeper") => "keeper",
            _ => "slot",
        };
    }
    match name {
        "LOCK" => "LOCK",
        "SHARED" => "SHARED",
        "log" => "folder of the log",
        "index" => "folder of the index",
        "members" => "folder of locks",
        "warm" => "folder of images",
        "store" => "store",
        _ if name.contains(".seg") && is_draft => "new segment",
        _ if name.contains(".seg") => "segment",
        _ if name.contains(".idx") && is_draft => "new table",
        _ if name.contains(".idx") => "table",
        _ if name.contains(".blob") => "blob file",
        _ if name.contains(".run") => "run",
        _ if name.starts_with("MANIFEST") && is_draft => "new manifest",
        _ if name.starts_with("MANIFEST") => "manifest",
        _ if folder == "warm" => "image",
        _ => "other file",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn point_names_its_activity_and_locks_and_kills_if_chosen() {
        let enough = BTreeSet::from(["working, turn+sync: after write segment".to_owned()]);
        let end_state = EndState::new(End { nth: 3, group: "working, turn".to_owned(), enough });
        assert!(!end_state.ends(Moment::After, "write", "segment"));
        end_state.does(Activity::Working);
        end_state.holds("turn", true);
        end_state.holds("sync", true);
        for _ in 0..3 {
            assert!(!end_state.ends(
                Moment::After,
                "write",
                kind_of(Path::new("/s/log/00000000000000000001.seg"))
            ));
        }
        end_state.looks();
        end_state.stores();
        end_state.holds("sync", false);
        let names: Vec<String> =
            end_state.crossings.lock().unwrap().points.keys().map(Point::to_string).collect();
        for name in [
            "working, turn+sync: after write segment",
            "working, turn+sync: after write segment, word 1",
            "working, turn+sync: after write segment, word 1, store 1",
        ] {
            assert!(names.iter().any(|known| known == name), "{names:?}");
        }
        assert!(end_state.ends(Moment::Refused, "lock", "join"));
        assert!(!end_state.ends(Moment::Refused, "lock", "join"));
    }

    #[test]
    fn file_kinds_are_recognized_by_name() {
        for (path, kind) in [
            ("/s/members/keeper-07", "keeper"),
            ("/s/members/03", "slot"),
            ("/s/log/00000000000000000001.seg.tmp", "new segment"),
            ("/s/log/00000000000000000001.idx.2.tmp", "new table"),
            ("/s/index/MANIFEST.7.new.03", "new manifest"),
            ("/s/index/MANIFEST.7", "manifest"),
            ("/s/index/00000000000000000001.run", "run"),
        ] {
            assert_eq!(kind_of(Path::new(path)), kind, "{path}");
        }
    }
}
