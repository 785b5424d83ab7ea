//! Statistics as nested dictionaries, with the engine's field names.

use plimsoll::{Stats, Waits};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// A dictionary of the fields of a struct.
macro_rules! dict_of {
    ($py:expr, $from:expr, $($field:ident),+ $(,)?) => {{
        let dict = PyDict::new($py);
        $(dict.set_item(stringify!($field), $from.$field.clone())?;)+
        dict
    }};
}

pub(crate) fn to_python<'py>(py: Python<'py>, stats: &Stats) -> PyResult<Bound<'py, PyDict>> {
    let Stats { opening, memory, pressure, evictor, pool, row_cache, log, index, io, warm, .. } =
        stats;
    let all = PyDict::new(py);
    all.set_item(
        "opening",
        dict_of!(py, opening, nanos, log_nanos, replay_nanos, replayed, replayed_bytes, torn_bytes),
    )?;
    let dict = dict_of!(py, memory, limit_bytes, free_bytes, peak_bytes);
    let kinds = PyDict::new(py);
    for (kind, bytes) in &memory.by_kind {
        kinds.set_item(kind, bytes)?;
    }
    dict.set_item("by_kind", kinds)?;
    all.set_item("memory", dict)?;
    all.set_item(
        "pressure",
        dict_of!(py, pressure, inline_page_evictions, inline_chunk_evictions, waits, refusals),
    )?;
    all.set_item(
        "evictor",
        dict_of!(
            py,
            evictor,
            rounds,
            victims,
            bytes,
            chunk_bytes,
            woken_for_frames,
            woken_for_chunks,
            woken_inline,
            reaction_nanos,
            room_bytes,
        ),
    )?;
    all.set_item(
        "pool",
        dict_of!(py, pool, hits, loads, read_ahead, waits, evictions, resident_pages, page_bytes),
    )?;
    all.set_item(
        "row_cache",
        dict_of!(
            py,
            row_cache,
            hits,
            misses,
            insertions,
            evictions,
            entries,
            live_bytes,
            held_bytes,
            limit_bytes,
            returns,
            page_returns,
            steps_to_rows,
            steps_to_pages,
        ),
    )?;
    let dict = PyDict::new(py);
    dict.set_item("first", log.first.0)?;
    dict.set_item("next", log.next.0)?;
    dict.set_item("durable", log.durable.0)?;
    all.set_item("log", dict)?;
    let dict = dict_of!(
        py,
        index,
        memtable_bytes,
        memtables,
        runs,
        depth,
        history_runs,
        page_bytes,
        deleted_ranges,
        tables,
        versions,
        bytes_in,
        bytes_flushed,
        bytes_compaction_read,
        bytes_compaction_written,
        flushes,
        compactions,
        last_error,
    );
    let stalls = PyDict::new(py);
    let causes = [
        ("room", index.stalls.room),
        ("flush_pace", index.stalls.flush_pace),
        ("merge_pace", index.stalls.merge_pace),
        ("depth", index.stalls.depth),
    ];
    for (cause, waits) in causes {
        let waits: Waits = waits;
        stalls.set_item(cause, dict_of!(py, waits, times, nanos))?;
    }
    dict.set_item("stalls", stalls)?;
    all.set_item("index", dict)?;
    let dict = dict_of!(py, io, cached, switches, room_bytes);
    dict.set_item("asked", io.asked.to_string())?;
    all.set_item("io", dict)?;
    all.set_item(
        "warm",
        dict_of!(
            py,
            warm,
            on,
            restoring,
            pages_restored,
            pages_gone,
            rows_restored,
            rows_stale,
            segments_written,
            bytes_written,
            last_error,
        ),
    )?;
    all.set_item("newest", stats.newest.0)?;
    all.set_item("oldest", stats.oldest.0)?;
    all.set_item("open_snapshots", stats.open_snapshots)?;
    all.set_item("keyspaces", stats.keyspaces)?;
    all.set_item("disk_bytes", stats.disk_bytes)?;
    all.set_item("warnings", stats.warnings.clone())?;
    Ok(all)
}
