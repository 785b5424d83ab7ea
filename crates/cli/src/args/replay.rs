//! The command line of `replay`.

use std::path::PathBuf;

use clap::Args;
use plimsoll_replay::{Policy, TraceFormat};

#[derive(Args, Debug)]
#[command(after_help = "\
Formats: oracle is libCacheSim's oracleGeneral; csv has a header with key and size (and \
optionally op, op_count, key_size), or Twitter's format; cachebench is a JSON configuration of \
CacheLib's. Files may be compressed with zstd. A read that misses inserts a value of the \
requested size. A replay uses one thread and is deterministic.

--memory is the size of the cache, from 64KiB to 128GiB; a configuration may set it. All memory \
of the cache counts: keys, values, index and tables. s3-fifo is the cache itself; the other \
policies are models for comparison, with 40 bytes of overhead per entry. --curve replays the \
trace with memory sizes from 1/64 of --memory to four times --memory. The time excludes reading \
the trace; peak memory covers the whole process.

Examples:
  zcat requests.csv.gz | plimsoll replay - --format csv --memory 64MiB
  plimsoll replay web.oracleGeneral.zst --memory 64MiB
  plimsoll replay requests.csv --memory 16MiB --policy s3-fifo,lru,w-tinylfu
  plimsoll replay web.oracleGeneral.zst --memory 64MiB --curve misses.svg --json")]
pub(crate) struct Replay {
    /// Trace or configuration; - for stdin
    pub(crate) trace: PathBuf,
    /// Format [default: by the file's name]
    #[arg(long)]
    pub(crate) format: Option<TraceFormat>,
    /// Policies; each replays the trace
    #[arg(long, value_name = "POLICY", value_delimiter = ',', default_value = "s3-fifo")]
    pub(crate) policy: Vec<Policy>,
    /// Largest entry to admit, as a fraction of --memory, up to 0.5
    #[arg(long, value_name = "PART", default_value_t = 0.25, value_parser = parse_part)]
    pub(crate) largest: f64,
    /// File to draw the miss-ratio curve into, as SVG
    #[arg(long, value_name = "FILE")]
    pub(crate) curve: Option<PathBuf>,
}

fn parse_part(text: &str) -> Result<f64, String> {
    let part = text.parse().ok().filter(|part| (0.0..=0.5).contains(part));
    part.ok_or_else(|| format!("`{text}` is not a number from 0 to 0.5"))
}
