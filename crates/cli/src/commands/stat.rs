//! `plimsoll stat`: the contents of a store, and its use of memory and disk.

use jiff::Timestamp;
use plimsoll::{
    Compression, CursorInfo, Db, Glsn, KeyspaceInfo, KeyspaceSize, MemberInfo, Moment, Stats,
    TagInfo,
};
use plimsoll_disk::os::OsDisk;
use plimsoll_disk::vfs::Disk;
use serde_json::json;

use crate::args::{Globals, Stat};
use crate::commands::cursor::{entries_after, place};
use crate::commands::tag;
use crate::commands::warm;
use crate::exit::{Exit, Failure, Outcome};
use crate::keyspaces;
use crate::output::{Fact, Output, Section};
use crate::size::{count_of, show_count, show_size};
use crate::store;
use crate::time::{show_duration, show_time};

/// Keys are counted exactly up to this number, unless `--exact` is given.
const COUNTED_MAX: u64 = 200_000;

/// Precedes the sections that describe this process rather than the processes using the store.
const OWN_PROCESS: &str = "This command's own process, which opened the store to read (Db::stats \
                           has the counters of a program):";

pub(crate) fn run(globals: &Globals, args: &Stat, output: &mut Output) -> Outcome {
    store::read_newest(globals, &args.store, output, |db, output| print(globals, args, db, output))
}

/// Prints the contents of an open store and its use of memory and disk.
pub(crate) fn print(globals: &Globals, args: &Stat, db: &Db, output: &mut Output) -> Outcome {
    let stats = db.stats();
    let keyspaces = db.keyspaces();
    let sizes = sizes(db, &keyspaces, if args.exact { u64::MAX } else { COUNTED_MAX })?;
    output.sections(&[
        Section::new("store", of_store(db, &stats, &sizes)?),
        Section::new(
            "keyspaces",
            keyspaces
                .iter()
                .zip(&sizes)
                .map(|(keyspace, size)| of_keyspace(keyspace, size))
                .collect(),
        ),
        Section::new(
            "cursors",
            db.log().cursors().iter().map(|cursor| of_cursor(db, cursor)).collect(),
        ),
        Section::new("tags", db.tags()?.iter().map(of_tag).collect()),
        Section::new("processes", of_processes(globals, args)?),
        Section::new("log", of_log(&stats)),
        Section::new("index", of_index(&stats)),
        Section::new("warm", warm::facts_of(globals, &args.store, db)),
        Section::new("opening", of_opening(&stats)).with_lead(OWN_PROCESS),
        Section::new("index", of_index_work(&stats)),
        Section::new("io", of_io(&stats)),
        Section::new("memory", of_memory(&stats)),
        Section::new("pressure", of_pressure(&stats)),
        Section::new("evictor", of_evictor(&stats)),
        Section::new("pool", of_pool(&stats)),
        Section::new("row cache", of_row_cache(&stats)),
    ])?;
    Ok(Exit::Done)
}

/// A GLSN without thousands separators, because it is an identifier and not an amount.
fn glsn(name: &str, glsn: u64) -> Fact {
    Fact::new(name, glsn.to_string(), glsn)
}

/// The contents of each keyspace; counts at most `keys_max` keys in total.
fn sizes(db: &Db, keyspaces: &[KeyspaceInfo], keys_max: u64) -> Result<Vec<KeyspaceSize>, Failure> {
    let mut left = keys_max;
    let size = |keyspace: &KeyspaceInfo| {
        let size = db.keyspace_size(&keyspaces::known_keyspace(db, &keyspace.name)?, left)?;
        left = left.saturating_sub(size.keys);
        Ok(size)
    };
    keyspaces.iter().map(size).collect()
}

fn of_store(db: &Db, stats: &Stats, sizes: &[KeyspaceSize]) -> Result<Vec<Fact>, Failure> {
    let id = format!("{:032x}", db.id());
    let exact = sizes.iter().all(|size| size.exact);
    let (keys, bytes) =
        sizes.iter().fold((0, 0), |(keys, bytes), size| (keys + size.keys, bytes + size.bytes));
    let mut facts = vec![
        Fact::new("keys", about(exact, &show_count(keys)), keys),
        Fact::new("bytes of keys and values", about(exact, &show_size(bytes)), bytes),
        Fact::new("counts are exact", if exact { "yes" } else { "no, see --exact" }, exact),
        Fact::bytes("bytes on disk", stats.disk_bytes),
        glsn("newest GLSN", stats.newest.0),
    ];
    facts.extend(time(db, "newest time", stats.newest.0)?);
    facts.push(match stats.oldest {
        Glsn(0) => Fact::new("first readable GLSN", "0 (the empty store)", 0),
        oldest => glsn("first readable GLSN", oldest.0),
    });
    facts.extend(time(db, "first readable time", stats.oldest.max(stats.log.first).0)?);
    facts.push(Fact::count("branches other than main", db.branches()?.len() as u64));
    facts.push(Fact::new("id", id.clone(), id));
    let snapshots = stats.open_snapshots;
    facts.push(Fact::new(
        "open snapshots",
        format!("{} of this command", show_count(snapshots)),
        snapshots,
    ));
    Ok(facts)
}

/// The time of a moment, if the log still knows it.
fn time(db: &Db, name: &str, glsn: u64) -> Result<Option<Fact>, Failure> {
    if glsn == 0 || glsn > db.newest().0 {
        return Ok(None);
    }
    let time = db.snapshot_at(Moment::Glsn(Glsn(glsn)))?.time()?;
    let time = time.and_then(|time| Timestamp::try_from(time).ok());
    Ok(time.map(|time| Fact::new(name, show_time(time), show_time(time))))
}

fn about(exact: bool, amount: &str) -> String {
    if exact { amount.to_owned() } else { format!("about {amount}") }
}

fn of_opening(stats: &Stats) -> Vec<Fact> {
    let opening = &stats.opening;
    let time = |name: &str, nanos| {
        let took = std::time::Duration::from_nanos(nanos);
        Fact::new(name, show_duration(took), took.as_secs_f64())
    };
    vec![
        time("time", opening.nanos),
        time("of this for the log", opening.log_nanos),
        time("of this for replay", opening.replay_nanos),
        Fact::count("transactions replayed", opening.replayed),
        Fact::bytes("bytes replayed", opening.replayed_bytes),
        Fact::bytes("torn bytes cut", opening.torn_bytes),
    ]
}

fn of_keyspace(keyspace: &KeyspaceInfo, size: &KeyspaceSize) -> Fact {
    let amounts = format!("{}, {}", count_of(size.keys, "key", "keys"), show_size(size.bytes));
    let mut shown = format!("{}; retention {}", about(size.exact, &amounts), keyspace.retention);
    if keyspace.ttl.is_some() {
        shown += &format!("; expires after {}", keyspaces::show_ttl(keyspace.ttl));
    }
    if keyspace.compression != Compression::None || size.stored_bytes < size.bytes {
        let stored = about(size.exact, &show_size(size.stored_bytes));
        shown += &format!("; compression {}, {stored} stored", keyspace.compression);
    }
    let value = json!({
        "keys": size.keys,
        "bytes": size.bytes,
        "stored_bytes": size.stored_bytes,
        "exact": size.exact,
        "first_readable_glsn": size.oldest.0,
        "retention": keyspace.retention.to_string(),
        "compression": keyspace.compression.to_string(),
        "ttl_seconds": keyspace.ttl.map(|ttl| ttl.as_secs_f64()),
    });
    Fact::new(keyspace.name.clone(), shown, value).verbatim()
}

fn of_cursor(db: &Db, cursor: &CursorInfo) -> Fact {
    let value = json!({ "next": cursor.next.0, "behind": entries_after(db, cursor.next.0) });
    Fact::new(cursor.name.clone(), place(db, cursor.next.0), value).verbatim()
}

fn of_tag(tag: &TagInfo) -> Fact {
    let value = json!({ "glsn": tag.glsn.0, "time": tag::time(tag) });
    Fact::new(tag.name.clone(), tag::place(tag), value).verbatim()
}

/// The processes that share the store, or the one that has exclusive use of it.
fn of_processes(globals: &Globals, args: &Stat) -> Result<Vec<Fact>, Failure> {
    let members = plimsoll::members(&args.store, &store::options(globals))?;
    if !members.is_empty() {
        return Ok(members.iter().map(of_process).collect());
    }
    // If this process lacks the permission to check, list none.
    let alone = OsDisk::new().locked_by(&args.store).ok().flatten();
    let name = |pid: Option<u32>| pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string());
    let fact = |(pid, _)| {
        Fact::new(name(pid), "has the store for itself", json!({ "role": "alone" })).verbatim()
    };
    Ok(alone.map(fact).into_iter().collect())
}

fn of_process(member: &MemberInfo) -> Fact {
    let role = match (member.is_keeper, member.is_reader) {
        (true, _) => "keeper",
        (false, true) => "reader",
        (false, false) => "follower",
    };
    let since = Timestamp::try_from(member.since).map(show_time).unwrap_or_default();
    let (memory, applied, floor) =
        (show_size(member.memory_bytes), member.applied.0, member.floor.0);
    let shown =
        format!("{role}, {memory}, applied {applied}, reads from {floor} on, since {since}");
    let value = json!({
        "role": role,
        "memory_bytes": member.memory_bytes,
        "applied_glsn": applied,
        "floor_glsn": floor,
        "since": since,
    });
    Fact::new(member.pid.to_string(), shown, value).verbatim()
}

fn of_io(stats: &Stats) -> Vec<Fact> {
    let io = &stats.io;
    let now = if io.cached { "through the page cache" } else { "direct, bypassing the page cache" };
    let mut facts = vec![
        Fact::new("asked for", io.asked.to_string(), io.asked.to_string()),
        Fact::new("reads", now, if io.cached { "cached" } else { "direct" }),
        Fact::count("switches", io.switches),
    ];
    facts.extend(io.room_bytes.map(|bytes| Fact::bytes("free memory outside the budget", bytes)));
    facts
}

fn of_log(stats: &Stats) -> Vec<Fact> {
    vec![
        glsn("first GLSN", stats.log.first.0),
        glsn("next GLSN", stats.log.next.0),
        glsn("durable GLSN", stats.log.durable.0),
    ]
}

fn of_index(stats: &Stats) -> Vec<Fact> {
    let index = &stats.index;
    vec![
        runs("runs", &index.runs),
        runs("history runs", &index.history_runs),
        Fact::count("deleted ranges", index.deleted_ranges),
        Fact::bytes("page bytes", index.page_bytes),
        Fact::count("tables", index.tables),
        Fact::count("versions in runs", index.versions),
    ]
}

/// This process's work on the index.
fn of_index_work(stats: &Stats) -> Vec<Fact> {
    let index = &stats.index;
    let mut facts = vec![
        Fact::count("memtables", index.memtables),
        Fact::bytes("memtable bytes", index.memtable_bytes),
        Fact::bytes("bytes in", index.bytes_in),
        Fact::bytes("bytes flushed", index.bytes_flushed),
        Fact::bytes("bytes compaction read", index.bytes_compaction_read),
        Fact::bytes("bytes compaction written", index.bytes_compaction_written),
        Fact::count("flushes", index.flushes),
        Fact::count("compactions", index.compactions),
    ];
    let stalls = &index.stalls;
    for (times, time, waits) in [
        ("stalls for room", "stalled for room", stalls.room),
        ("stalls at the flush pace", "stalled at the flush pace", stalls.flush_pace),
        ("stalls at the merge pace", "stalled at the merge pace", stalls.merge_pace),
        ("stalls for too many runs", "stalled for too many runs", stalls.depth),
    ] {
        let waited = std::time::Duration::from_nanos(waits.nanos);
        facts.push(Fact::count(times, waits.times));
        facts.push(Fact::new(time, show_duration(waited), waited.as_secs_f64()));
    }
    facts
}

fn runs(name: &str, bytes: &[u64]) -> Fact {
    let total: u64 = bytes.iter().sum();
    Fact::new(name, format!("{} ({})", bytes.len(), show_size(total)), bytes.to_vec())
}

fn of_memory(stats: &Stats) -> Vec<Fact> {
    let memory = &stats.memory;
    let mut facts = vec![
        Fact::bytes("budget", memory.limit_bytes),
        Fact::bytes("free", memory.free_bytes),
        Fact::bytes("peak", memory.peak_bytes),
    ];
    facts.extend(memory.by_kind.iter().map(|&(kind, bytes)| Fact::bytes(kind, bytes)));
    facts
}

fn of_pressure(stats: &Stats) -> Vec<Fact> {
    let pressure = &stats.pressure;
    vec![
        Fact::count("inline page evictions", pressure.inline_page_evictions),
        Fact::count("inline chunk evictions", pressure.inline_chunk_evictions),
        Fact::count("waits", pressure.waits),
        Fact::count("refusals", pressure.refusals),
    ]
}

fn of_evictor(stats: &Stats) -> Vec<Fact> {
    let evictor = &stats.evictor;
    let reaction = std::time::Duration::from_nanos(evictor.reaction_nanos);
    vec![
        Fact::count("rounds", evictor.rounds),
        Fact::count("victims", evictor.victims),
        Fact::bytes("bytes freed", evictor.bytes),
        Fact::bytes("bytes freed for other uses than pages", evictor.chunk_bytes),
        Fact::count("woken for frames", evictor.woken_for_frames),
        Fact::count("woken for chunks", evictor.woken_for_chunks),
        Fact::count("woken inline", evictor.woken_inline),
        Fact::new("reaction", show_duration(reaction), reaction.as_secs_f64()),
        Fact::bytes("room for pages", evictor.room_bytes.0),
        Fact::bytes("room for other uses", evictor.room_bytes.1),
    ]
}

fn of_row_cache(stats: &Stats) -> Vec<Fact> {
    let cache = &stats.row_cache;
    vec![
        Fact::count("rows", cache.entries),
        Fact::bytes("bytes of rows", cache.live_bytes),
        Fact::bytes("bytes held", cache.held_bytes),
        Fact::bytes("current limit", cache.limit_bytes),
        Fact::count("hits", cache.hits),
        Fact::count("misses", cache.misses),
        Fact::count("insertions", cache.insertions),
        Fact::count("evictions", cache.evictions),
        Fact::count("rows back soon", cache.returns),
        Fact::count("pages back soon", cache.page_returns),
        Fact::count("steps to rows", cache.steps_to_rows),
        Fact::count("steps to pages", cache.steps_to_pages),
    ]
}

fn of_pool(stats: &Stats) -> Vec<Fact> {
    let pool = &stats.pool;
    vec![
        Fact::count("resident pages", pool.resident_pages),
        Fact::bytes("page bytes", pool.page_bytes),
        Fact::count("hits", pool.hits),
        Fact::count("loads", pool.loads),
        Fact::count("read ahead", pool.read_ahead),
        Fact::count("waits", pool.waits),
        Fact::count("evictions", pool.evictions),
    ]
}
