//! `plimsoll stat`: how memory and disk are used.

use plimsoll::{Db, KeyspaceInfo, Retention, Stats};

use crate::args::{Globals, Stat};
use crate::commands::warm;
use crate::exit::{Exit, Outcome};
use crate::output::{Fact, Output, Section};
use crate::size::{show_count, show_size};
use crate::store;
use crate::time::show_duration;

pub(crate) fn run(globals: &Globals, args: &Stat, output: &mut Output) -> Outcome {
    let db = store::open_to_read(globals, &args.store)?;
    let stats = db.stats();
    output.sections(&[
        Section::new("store", of_store(&db, &stats)),
        Section::new("opening", of_opening(&stats)),
        Section::new("keyspaces", db.keyspaces().iter().map(of_keyspace).collect()),
        Section::new("log", of_log(&stats)),
        Section::new("index", of_index(&stats)),
        Section::new("warm", warm::facts_of(globals, &args.store, &db)),
        Section::new("memory", of_memory(&stats)),
        Section::new("pressure", of_pressure(&stats)),
        Section::new("evictor", of_evictor(&stats)),
        Section::new("pool", of_pool(&stats)),
        Section::new("objects", of_objects(&stats)),
    ])?;
    Ok(Exit::Done)
}

/// A GLSN is a name, not an amount: it stays without thousands apart.
fn glsn(name: &str, glsn: u64) -> Fact {
    Fact::new(name, glsn.to_string(), glsn)
}

fn of_store(db: &Db, stats: &Stats) -> Vec<Fact> {
    let id = format!("{:032x}", db.id());
    vec![
        Fact::new("id", id.clone(), id),
        glsn("newest GLSN", stats.newest),
        glsn("oldest GLSN", stats.oldest),
        Fact::bytes("bytes on disk", stats.disk_bytes),
        Fact::count("open snapshots", stats.open_snapshots),
    ]
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
    ]
}

fn of_keyspace(keyspace: &KeyspaceInfo) -> Fact {
    let retention = match keyspace.retention {
        Retention::Forever => "keeps every version".to_owned(),
        Retention::Latest => "keeps the latest version".to_owned(),
        Retention::Glsns(glsns) => format!("keeps what the last {} GLSNs can see", show_count(glsns)),
        Retention::Time(time) => format!("keeps what a reader of the last {} can see", show_duration(time)),
        other => format!("{other:?}"),
    };
    Fact::new(keyspace.name.clone(), retention.clone(), retention).verbatim()
}

fn of_log(stats: &Stats) -> Vec<Fact> {
    vec![
        glsn("first GLSN", stats.log.first),
        glsn("next GLSN", stats.log.next),
        glsn("durable GLSN", stats.log.durable),
    ]
}

fn of_index(stats: &Stats) -> Vec<Fact> {
    let index = &stats.index;
    let mut facts = vec![
        runs("runs", &index.runs),
        runs("history runs", &index.history_runs),
        Fact::count("partitions", index.partitions),
        Fact::count("versions in runs", index.versions),
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
        Fact::bytes("bytes made free", evictor.bytes),
        Fact::bytes("of these for other things than pages", evictor.chunk_bytes),
        Fact::count("woken for frames", evictor.woken_for_frames),
        Fact::count("woken for chunks", evictor.woken_for_chunks),
        Fact::count("woken inline", evictor.woken_inline),
        Fact::new("reaction", show_duration(reaction), reaction.as_secs_f64()),
        Fact::bytes("room for pages", evictor.room_bytes.0),
        Fact::bytes("room for other things", evictor.room_bytes.1),
    ]
}

fn of_objects(stats: &Stats) -> Vec<Fact> {
    let objects = &stats.objects;
    vec![
        Fact::count("objects", objects.entries),
        Fact::bytes("bytes of objects", objects.live_bytes),
        Fact::bytes("bytes held", objects.held_bytes),
        Fact::bytes("bytes at most now", objects.limit_bytes),
        Fact::count("hits", objects.hits),
        Fact::count("misses", objects.misses),
        Fact::count("insertions", objects.insertions),
        Fact::count("evictions", objects.evictions),
        Fact::count("objects back soon", objects.returns),
        Fact::count("pages back soon", objects.page_returns),
        Fact::count("steps to objects", objects.steps_to_objects),
        Fact::count("steps to pages", objects.steps_to_pages),
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
