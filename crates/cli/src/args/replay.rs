//! The command line of `replay`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

#[derive(Args, Debug)]
#[command(after_help = "\
Formats: oracle is libCacheSim's oracleGeneral; csv has a header with key and size (and perhaps op, op_count, key_size), or is of \
Twitter's form; cachebench is a JSON configuration of CacheLib's. Files may be compressed with zstd. A request that finds nothing enters \
a value of the size it asked for. One thread; the same each time.

--memory is the size of the cache, from 64KiB to 128GiB; a configuration may say it itself. The cache itself runs s3-fifo, clock and fifo; lru, \
sieve and w-tinylfu are models to compare with. With --curve the trace is replayed for memories from a 64th of --memory to four times as much. \
The time that is told is that of the cache without the reading of the trace, peak memory is the whole process's with it.

Examples:
  zcat requests.csv.gz | plimsoll replay - --format csv --memory 64MiB
  plimsoll replay web.oracleGeneral.zst --memory 64MiB
  plimsoll replay requests.csv --memory 16MiB --policy s3-fifo,lru,w-tinylfu --count value
  plimsoll replay web.oracleGeneral.zst --memory 64MiB --curve misses.svg --json")]
pub(crate) struct Replay {
    /// Trace or configuration; - for stdin
    pub(crate) trace: PathBuf,
    /// Format [default: by the file's name]
    #[arg(long)]
    pub(crate) format: Option<TraceFormat>,
    /// Policies, one after the other
    #[arg(long, value_name = "POLICY", value_delimiter = ',', default_value = "s3-fifo")]
    pub(crate) policy: Vec<Policy>,
    /// What is counted against --memory
    #[arg(long, value_name = "WHAT", default_value = "everything")]
    pub(crate) count: Count,
    /// The largest entry that is kept, as a part of --memory, up to 0.5
    #[arg(long, value_name = "PART", default_value_t = 0.25, value_parser = parse_part)]
    pub(crate) largest: f64,
    /// File to draw the miss-ratio curve into, as SVG
    #[arg(long, value_name = "FILE")]
    pub(crate) curve: Option<PathBuf>,
}

fn parse_part(text: &str) -> Result<f64, String> {
    let part = text.parse().ok().filter(|part| (0.0..=0.5).contains(part));
    part.ok_or_else(|| format!("`{text}` is no number from 0 to 0.5"))
}

/// How a trace is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TraceFormat {
    /// Records of 24 bytes
    #[value(alias = "oracleGeneral", alias = "oraclegeneral")]
    Oracle,
    /// A request a line
    Csv,
    /// A configuration
    Cachebench,
}

/// What stays in a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Policy {
    /// The cache's own
    #[value(name = "s3-fifo", alias = "s3fifo")]
    S3Fifo,
    /// The cache with one queue and second chances
    Clock,
    /// The cache with one queue
    Fifo,
    /// Model: what was used least recently leaves
    Lru,
    /// Model: a hand spares what was used
    Sieve,
    /// Model: a window, and admission by frequency
    #[value(name = "w-tinylfu", alias = "wtinylfu")]
    Wtinylfu,
}

impl Policy {
    /// As it is written on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::S3Fifo => "s3-fifo",
            Self::Clock => "clock",
            Self::Fifo => "fifo",
            Self::Lru => "lru",
            Self::Sieve => "sieve",
            Self::Wtinylfu => "w-tinylfu",
        }
    }
}

/// What is counted against the memory of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Count {
    /// Bytes of values only, as most published figures
    #[value(alias = "values")]
    Value,
    /// All memory that the cache takes
    Everything,
}

impl Count {
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Value => "bytes of values",
            Self::Everything => "everything",
        }
    }
}
