//! Every commit with its parents and the state after it; which commits each branch consists of.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The number of keyspaces.
pub(super) const SPACES: usize = 5;

/// The keyspace of plain values that retains the latest ones.
pub(super) const LATEST: usize = 1;

/// The keyspace of numbers.
pub(super) const NUMBERS: usize = 2;

/// The keyspace of texts.
pub(super) const TEXTS: usize = 3;

/// The keyspace of JSON objects, under even keys, and JSON arrays.
pub(super) const JSON: usize = 4;

/// The number of keys in each keyspace.
pub(super) const KEYS: u64 = 8;

/// A keyspace and a key.
pub(super) type Place = (usize, u8);

/// The number of the branch main.
pub(super) const MAIN: usize = 0;

/// A value, and when it expires, in microseconds since 1970 UTC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) value: Arc<Vec<u8>>,
    pub(super) expires: Option<u64>,
}

impl Content {
    pub(super) fn new(value: Vec<u8>, expires: Option<u64>) -> Self {
        Self { value: Arc::new(value), expires }
    }

    /// Whether it has not expired at a time.
    pub(super) fn lives(&self, now: u64) -> bool {
        self.expires.is_none_or(|at| at > now)
    }
}

/// The value of each key that was written, also if it has expired.
pub(super) type State = BTreeMap<Place, Content>;

/// The writes of a commit.
pub(super) type Writes = BTreeMap<Place, Option<Content>>;

/// A set of commits.
#[derive(Clone, Debug, Default)]
struct Commits(Vec<u64>);

impl Commits {
    fn add(&mut self, node: usize) {
        self.0.resize(self.0.len().max(node / 64 + 1), 0);
        self.0[node / 64] |= 1 << (node % 64);
    }

    fn has(&self, node: usize) -> bool {
        self.0.get(node / 64).is_some_and(|word| word >> (node % 64) & 1 == 1)
    }

    fn add_all(&mut self, other: &Self) {
        self.0.resize(self.0.len().max(other.0.len()), 0);
        self.0.iter_mut().zip(&other.0).for_each(|(word, other)| *word |= other);
    }
}

/// A commit of data.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) glsn: u64,
    /// The branch on which it was made.
    pub(super) branch: usize,
    /// The commits that its state contains, itself included.
    contained: Commits,
    pub(super) state: Arc<State>,
    /// The commit that wrote or deleted each key last.
    pub(super) by: BTreeMap<Place, usize>,
    pub(super) writes: Writes,
    /// Other keys that it may have written.
    pub(super) touched: BTreeSet<Place>,
}

/// A branch, also a deleted one.
#[derive(Debug)]
pub(super) struct Line {
    /// The branch whose state it begins with, and at which commit.
    pub(super) parent: usize,
    pub(super) fork: u64,
    created: u64,
    /// Its names, each with the commit that gave it; `None`: it was deleted.
    names: Vec<(u64, Option<String>)>,
    /// Its own commits of data (GLSN, node).
    nodes: Vec<(u64, usize)>,
}

impl Line {
    /// Its name; `None` if it was deleted.
    pub(super) fn name(&self) -> Option<&str> {
        self.names.last().and_then(|(_, name)| name.as_deref())
    }

    /// Whether it was created at an earlier moment than the newest.
    pub(super) fn is_late(&self) -> bool {
        self.fork + 1 < self.created
    }
}

/// A tag: its moment, the commits that created it and that deleted it.
#[derive(Debug)]
struct Tag {
    name: String,
    at: u64,
    created: u64,
    deleted: Option<u64>,
}

/// The effect of a commit.
#[derive(Clone, Debug)]
pub(super) enum Effect {
    Write {
        branch: usize,
        writes: Writes,
        touched: BTreeSet<Place>,
    },
    /// A merge of a commit.
    Merge {
        into: usize,
        theirs: usize,
        writes: Writes,
    },
    Create {
        name: String,
        parent: usize,
        fork: u64,
    },
    Rename {
        branch: usize,
        name: String,
    },
    Delete {
        branch: usize,
    },
    Tag {
        name: String,
        at: u64,
    },
    Untag {
        name: String,
    },
}

/// The model.
pub(super) struct Model {
    pub(super) nodes: Vec<Node>,
    pub(super) lines: Vec<Line>,
    tags: Vec<Tag>,
    /// The time of each commit, exact to some microseconds.
    times: BTreeMap<u64, u64>,
    /// The newest commit.
    pub(super) newest: u64,
    /// The newest commit that survives any crash.
    pub(super) acked: u64,
    /// Merges that were committed.
    pub(super) merges: u64,
}

impl Model {
    pub(super) fn new() -> Self {
        let mut contained = Commits::default();
        contained.add(0);
        let empty = Node {
            glsn: 0,
            branch: MAIN,
            contained,
            state: Arc::default(),
            by: BTreeMap::new(),
            writes: Writes::new(),
            touched: BTreeSet::new(),
        };
        let main = Line {
            parent: MAIN,
            fork: 0,
            created: 0,
            names: vec![(0, Some("main".to_owned()))],
            nodes: vec![(0, 0)],
        };
        Self {
            nodes: vec![empty],
            lines: vec![main],
            tags: Vec::new(),
            times: BTreeMap::new(),
            newest: 0,
            acked: 0,
            merges: 0,
        }
    }

    /// The time of the newest commit.
    pub(super) fn last_micros(&self) -> u64 {
        self.times.last_key_value().map_or(0, |(_, micros)| *micros)
    }

    /// The time of a commit, or of the last one before it.
    pub(super) fn micros_at(&self, glsn: u64) -> u64 {
        self.times.range(..=glsn).next_back().map_or(0, |(_, micros)| *micros)
    }

    /// Notes a commit without an effect.
    pub(super) fn note(&mut self, glsn: u64, micros: u64) {
        self.newest = glsn;
        self.times.insert(glsn, micros);
    }

    /// The commit of data whose state a branch has right after a commit of the store.
    pub(super) fn node_at(&self, branch: usize, glsn: u64) -> usize {
        let line = &self.lines[branch];
        match line.nodes.iter().rfind(|(at, _)| *at <= glsn) {
            Some((_, node)) => *node,
            None => self.node_at(line.parent, glsn.min(line.fork)),
        }
    }

    /// The newest commit of data whose state a branch has.
    pub(super) fn tip(&self, branch: usize) -> usize {
        self.node_at(branch, u64::MAX)
    }

    /// The branch on which the commits around a moment were made, as a branch sees them: the branch
    /// itself, or, at or before its fork, an ancestor.
    pub(super) fn seen_by(&self, mut branch: usize, glsn: u64) -> usize {
        while branch != MAIN && glsn <= self.lines[branch].fork {
            branch = self.lines[branch].parent;
        }
        branch
    }

    /// A branch and its ancestors, each with its newest commit that the branch sees.
    pub(super) fn lineage(&self, mut branch: usize) -> Vec<(usize, u64)> {
        let mut limit = u64::MAX;
        let mut lines = vec![(branch, limit)];
        while branch != MAIN {
            limit = limit.min(self.lines[branch].fork);
            branch = self.lines[branch].parent;
            lines.push((branch, limit));
        }
        lines
    }

    /// The commits of data that a branch consists of, the newest one first.
    pub(super) fn commits_of(&self, branch: usize) -> Vec<usize> {
        let mut commits = Vec::new();
        for (line, limit) in self.lineage(branch) {
            let seen = self.lines[line].nodes.iter().rev().filter(|(at, _)| *at <= limit);
            commits.extend(seen.map(|(_, node)| *node).filter(|node| *node > 0));
        }
        commits
    }

    /// The commit of data with this GLSN.
    pub(super) fn commit_at(&self, glsn: u64) -> Option<usize> {
        self.nodes.binary_search_by_key(&glsn, |node| node.glsn).ok().filter(|node| *node > 0)
    }

    /// The branches that exist.
    pub(super) fn alive(&self) -> Vec<usize> {
        (0..self.lines.len()).filter(|branch| self.lines[*branch].name().is_some()).collect()
    }

    /// The branch with this name.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.lines.iter().position(|line| line.name() == Some(name))
    }

    /// The tags that exist, by name.
    pub(super) fn tags(&self) -> BTreeMap<String, u64> {
        let tags = self.tags.iter().filter(|tag| tag.deleted.is_none());
        tags.map(|tag| (tag.name.clone(), tag.at)).collect()
    }

    /// The content of a key, if it is live at a time.
    pub(super) fn content(&self, node: usize, place: Place, now: u64) -> Option<Content> {
        self.nodes[node].state.get(&place).filter(|content| content.lives(now)).cloned()
    }

    /// Whether commits of a branch after a moment wrote a key for which `reads` holds: first the
    /// answer for the keys for which `is_seen` also holds, then the answer for all keys.
    pub(super) fn is_written_after(
        &self,
        branch: usize,
        glsn: u64,
        reads: impl Fn(Place) -> bool,
        is_seen: impl Fn(Place) -> bool,
    ) -> (bool, bool) {
        let later = self.lines[branch].nodes.iter().filter(|(at, _)| *at > glsn);
        let (mut surely, mut possibly) = (false, false);
        for (_, node) in later {
            let node = &self.nodes[*node];
            let mut written = node.writes.keys().filter(|place| reads(**place));
            possibly |= node.touched.iter().any(|place| reads(*place));
            possibly |= written.clone().next().is_some();
            surely |= written.any(|place| is_seen(*place));
        }
        (surely, possibly)
    }

    /// Adds a commit with its effect.
    pub(super) fn apply(&mut self, glsn: u64, micros: u64, effect: Effect) {
        self.note(glsn, micros);
        match effect {
            Effect::Write { branch, writes, touched } => {
                self.commit(glsn, branch, None, writes, touched);
            }
            Effect::Merge { into, theirs, writes } => {
                self.merges += 1;
                self.commit(glsn, into, Some(theirs), writes, BTreeSet::new());
            }
            Effect::Create { name, parent, fork } => self.lines.push(Line {
                parent: self.seen_by(parent, fork),
                fork,
                created: glsn,
                names: vec![(glsn, Some(name))],
                nodes: Vec::new(),
            }),
            Effect::Rename { branch, name } => self.lines[branch].names.push((glsn, Some(name))),
            Effect::Delete { branch } => self.lines[branch].names.push((glsn, None)),
            Effect::Tag { name, at } => {
                self.tags.push(Tag { name, at, created: glsn, deleted: None });
            }
            Effect::Untag { name } => {
                let tags = self.tags.iter_mut();
                tags.filter(|tag| tag.name == name && tag.deleted.is_none())
                    .for_each(|tag| tag.deleted = Some(glsn));
            }
        }
    }

    fn commit(
        &mut self,
        glsn: u64,
        branch: usize,
        theirs: Option<usize>,
        writes: Writes,
        touched: BTreeSet<Place>,
    ) {
        let (tip, own) = (self.tip(branch), self.nodes.len());
        let (mut contained, mut by) =
            (self.nodes[tip].contained.clone(), self.nodes[tip].by.clone());
        let mut state = State::clone(&self.nodes[tip].state);
        if let Some(theirs) = theirs {
            contained.add_all(&self.nodes[theirs].contained);
        }
        contained.add(own);
        for (place, content) in &writes {
            by.insert(*place, own);
            match content {
                Some(content) => state.insert(*place, content.clone()),
                None => state.remove(place),
            };
        }
        let state = Arc::new(state);
        self.nodes.push(Node { glsn, branch, contained, state, by, writes, touched });
        self.lines[branch].nodes.push((glsn, own));
    }

    /// The newest commits that two others both contain: those that no other common commit contains.
    pub(super) fn bases(&self, a: usize, b: usize) -> Vec<usize> {
        self.newest_common(&self.nodes[a].contained, &self.nodes[b].contained)
    }

    fn newest_common(&self, a: &Commits, b: &Commits) -> Vec<usize> {
        let mut newest: Vec<usize> = Vec::new();
        // A commit contains only older ones.
        for node in (0..self.nodes.len()).rev().filter(|node| a.has(*node) && b.has(*node)) {
            if !newest.iter().any(|base| self.nodes[*base].contained.has(node)) {
                newest.push(node);
            }
        }
        newest
    }

    /// The common base of several commits, each read by `read`: they are merged from their own
    /// bases. `None`: the commits changed the value in different ways.
    pub(super) fn merged<T: PartialEq>(
        &self,
        commits: &[usize],
        read: &impl Fn(usize) -> T,
    ) -> Option<T> {
        let mut merged = read(commits[0]);
        let mut contained = self.nodes[commits[0]].contained.clone();
        for other in &commits[1..] {
            let (theirs, of_theirs) = (read(*other), &self.nodes[*other].contained);
            if merged != theirs {
                let base = self.merged(&self.newest_common(&contained, of_theirs), read)?;
                if base == merged {
                    merged = theirs;
                } else if base != theirs {
                    return None;
                }
            }
            contained.add_all(of_theirs);
        }
        Some(merged)
    }

    /// Removes everything after `glsn`, as a crash does.
    pub(super) fn cut_behind(&mut self, glsn: u64) {
        self.newest = glsn;
        self.acked = self.acked.max(glsn);
        self.times.retain(|at, _| *at <= glsn);
        self.nodes.retain(|node| node.glsn <= glsn);
        self.lines.retain(|line| line.created <= glsn);
        for line in &mut self.lines {
            line.names.retain(|(at, _)| *at <= glsn);
            line.nodes.retain(|(at, _)| *at <= glsn);
        }
        self.tags.retain(|tag| tag.created <= glsn);
        self.tags.iter_mut().for_each(|tag| tag.deleted = tag.deleted.filter(|at| *at <= glsn));
    }
}
