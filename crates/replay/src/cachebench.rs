//! CacheLib's cachebench configurations: the requests that its generator would make, or the trace
//! that it would replay.
//!
//! A configuration is JSON with comments and trailing commas; numbers may be strings. Keys that
//! determine the requests, their order and sizes are used. Keys for CacheLib's memory layout,
//! hashing and flash are reported as not used, and keys that CacheLib does not have as unknown. One
//! thread makes as many requests as all threads of the configuration.
//!
//! If the configuration names a trace, a missed get inserts the value unless `enableLookaside` is
//! false. (CacheLib's default is not to insert, so a trace of gets would never hit.)

use std::io::Read;
use std::path::{Path, PathBuf};

use jsonc_parser::ParseOptions;
use plimsoll_disk::random::Random;
use serde_json::{Map, Value};

use crate::delimited::Delimited;
use crate::error::{Error, Result};
use crate::request::{Operation, Request, Requests};
use crate::source;

const USED: [&str; 22] = [
    "cacheSizeMB",
    "configPath",
    "numOps",
    "numThreads",
    "numKeys",
    "generator",
    "getRatio",
    "setRatio",
    "delRatio",
    "loneGetRatio",
    "loneSetRatio",
    "updateRatio",
    "couldExistRatio",
    "enableLookaside",
    "keySizeRange",
    "keySizeRangeProbability",
    "valSizeRange",
    "valSizeRangeProbability",
    "valSizeDistFile",
    "popDistFile",
    "popularityBuckets",
    "popularityWeights",
];
const USED_FOR_TRACES: [&str; 2] = ["traceFileName", "traceFileNames"];

/// Keys of CacheLib, or of a fork, that a replay does not use.
const NOT_USED: [&str; 81] = [
    "poolRebalanceIntervalSec",
    "moveOnSlabRelease",
    "rebalanceStrategy",
    "rebalanceMinSlabs",
    "rebalanceDiffRatio",
    "htBucketPower",
    "htLockPower",
    "numPools",
    "poolSizes",
    "nvmCacheSizeMB",
    "nvmCachePaths",
    "nvmCacheMetadataSizeMB",
    "allocFactor",
    "allocSizes",
    "minAllocSize",
    "maxAllocSize",
    "allocator",
    "lruRefreshSec",
    "lruRefreshRatio",
    "lruUpdateOnRead",
    "lruUpdateOnWrite",
    "lruIpSpec",
    "tryLockUpdate",
    "lru2qHotPct",
    "lru2qColdPct",
    "memoryTiers",
    "usePosixShm",
    "shmType",
    "hugePageSize",
    "cacheDir",
    "persistedCacheDir",
    "useTraceTimeStamp",
    "printNvmCounters",
    "tickerSynchingSeconds",
    "memoryOnlyTTL",
    "truncateItemToOriginalAllocSizeInNvm",
    "disableEvictionToNvm",
    "backgroundEvictorIntervalMilSec",
    "backgroundEvictorStrategy",
    "freeThreshold",
    "nKeepFree",
    "scheduleEviction",
    "wakeupBgEvictor",
    "lowEvictionAcWatermark",
    "highEvictionAcWatermark",
    "minEvictionBatch",
    "maxEvictionBatch",
    "evictorThreads",
    "maxEvictionPromotionHotness",
    "noOnlineEviction",
    "promotionAcWatermark",
    "minPromotionBatch",
    "maxPromotionBatch",
    "backgroundMoverIntervalMilSec",
    "backgroundMoverThreads",
    "backgroundTargetFree",
    "backgroundEvictionBatch",
    "backgroundPromotionBatch",
    "name",
    "onlySetIfMiss",
    "populateItem",
    "useLegacyKeyGen",
    "opPoolDistribution",
    "keyPoolDistribution",
    "poolDistributions",
    "opDelayBatch",
    "opDelayNs",
    "opRatePerSec",
    "opRateBurstSize",
    "checkConsistency",
    "touchValue",
    "samplingIntervalMs",
    "repeatTraceReplay",
    "timestampFactor",
    "ttlSecsRange",
    "ttlSecsRangeProbability",
    "addChainedRatio",
    "chainedItemLengthRange",
    "chainedItemLengthRangeProbability",
    "chainedItemValSizeRange",
    "chainedItemValSizeRangeProbability",
];
const NOT_USED_BEGINNINGS: [&str; 5] = ["navy", "eventTracker", "dramIterator", "replay", "nvm"];

/// The sections of a configuration.
const PARTS: [&str; 2] = ["cache_config", "test_config"];

/// Supported generators. CacheLib's default has an empty name.
const GENERATORS: [&str; 3] = ["", "workload", "online"];
/// The generator that replays a trace.
const REPLAYS: &str = "replay";

/// Maximum number of keys; more would leave no memory for the cache.
const MAX_KEYS: f64 = 1e8;

/// Reads a configuration: its requests, and `cacheSizeMB` in bytes. Unused keys are listed in
/// `remarks`.
pub(crate) fn open(
    path: &Path,
    remarks: &mut Vec<String>,
) -> Result<(Box<dyn Requests>, Option<u64>)> {
    let config = read_json(path)?;
    let config = match config {
        Value::Array(mut all) if !all.is_empty() => {
            if all.len() > 1 {
                remarks.push(format!(
                    "{}: {} instances; the first is replayed",
                    path.display(),
                    all.len()
                ));
            }
            all.swap_remove(0)
        }
        other => other,
    };
    let config = Config::new(path, &config);
    config.name_unused_keys(remarks);
    if config.test.is_empty() {
        return Err(config.malformed("has no `test_config`"));
    }
    let megabytes = config.number("cacheSizeMB")?;
    let memory_bytes = megabytes.map(|megabytes| (megabytes * 1_048_576.0) as u64);
    let requests: Box<dyn Requests> = match config.traces()? {
        Some(traces) => Box::new(Replayed::new(
            traces,
            config.flag("enableLookaside")?.unwrap_or(true),
            remarks,
        )?),
        None => Box::new(Generator::new(&config, remarks)?),
    };
    Ok((requests, memory_bytes))
}

fn part(config: &Value, name: &str) -> Map<String, Value> {
    config.get(name).and_then(Value::as_object).cloned().unwrap_or_default()
}

#[allow(clippy::disallowed_methods, reason = "the configuration is the user's file")]
fn read_json(path: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| Error::Io { path: path.to_owned(), source })?;
    parse_json(&text).map_err(|error| Error::Malformed {
        path: path.to_owned(),
        at: format!("line {}", error.line_display()),
        message: error.kind().to_string(),
    })
}

/// JSON with comments and trailing commas.
fn parse_json(text: &str) -> std::result::Result<Value, jsonc_parser::errors::ParseError> {
    let options = ParseOptions {
        allow_comments: true,
        allow_trailing_commas: true,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    };
    jsonc_parser::parse_to_serde_value(text, &options)
}

struct Config {
    path: PathBuf,
    cache: Map<String, Value>,
    test: Map<String, Value>,
    /// Keys outside the sections.
    beside_parts: Vec<String>,
}

impl Config {
    fn new(path: &Path, whole: &Value) -> Self {
        let keys = whole.as_object().into_iter().flat_map(Map::keys);
        let beside_parts = keys.filter(|key| !PARTS.contains(&key.as_str())).cloned().collect();
        let [cache, test] = PARTS.map(|name| part(whole, name));
        Self { path: path.to_owned(), cache, test, beside_parts }
    }

    fn malformed(&self, message: &str) -> Error {
        Error::Malformed {
            path: self.path.clone(),
            at: "configuration".to_owned(),
            message: message.to_owned(),
        }
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.test.get(name).or_else(|| self.cache.get(name))
    }

    fn name_unused_keys(&self, remarks: &mut Vec<String>) {
        let keys = self.cache.keys().chain(self.test.keys());
        name_unused(&self.path, keys.map(String::as_str), &self.beside_parts, remarks);
    }

    fn number_of(&self, name: &str, value: &Value) -> Result<f64> {
        let number = match value {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => text.trim().parse().ok(),
            Value::Bool(yes) => Some(f64::from(u8::from(*yes))),
            _ => None,
        };
        let number = number.filter(|number| number.is_finite() && *number >= 0.0);
        number.ok_or_else(|| {
            self.malformed(&format!("`{name}`: {value} is not a number of zero or more"))
        })
    }

    fn number(&self, name: &str) -> Result<Option<f64>> {
        self.get(name).map(|value| self.number_of(name, value)).transpose()
    }

    fn numbers_in(&self, from: &Map<String, Value>, name: &str) -> Result<Vec<f64>> {
        let values = from.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        values.iter().map(|value| self.number_of(name, value)).collect()
    }

    /// `None` if the flag is absent.
    fn flag(&self, name: &str) -> Result<Option<bool>> {
        match self.get(name) {
            Some(Value::String(text)) if text == "true" || text == "false" => {
                Ok(Some(text == "true"))
            }
            _ => Ok(self.number(name)?.map(|number| number != 0.0)),
        }
    }

    /// The path of a file named by the configuration: in `configPath`, or next to the
    /// configuration.
    fn beside(&self, name: &str) -> PathBuf {
        let named = self.get("configPath").and_then(Value::as_str).map(Path::new);
        named.or(self.path.parent()).unwrap_or(Path::new("")).join(name)
    }

    /// The traces to replay in order; `None` if requests are generated.
    fn traces(&self) -> Result<Option<Vec<PathBuf>>> {
        let generator = self.get("generator").and_then(Value::as_str).unwrap_or("");
        if GENERATORS.contains(&generator) {
            return Ok(None);
        }
        if generator != REPLAYS {
            let made = GENERATORS.join("`, `");
            return Err(self.malformed(&format!(
                "the generator `{generator}` is not supported; use `{made}`, or `{REPLAYS}` to \
                 replay a CSV trace"
            )));
        }
        let several =
            self.get("traceFileNames").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let names = self.get("traceFileName").into_iter().chain(several).filter_map(Value::as_str);
        let traces: Vec<_> = names.map(|name| self.beside(name)).collect();
        match traces.is_empty() {
            true => {
                Err(self.malformed("the generator is `replay`, and there is no `traceFileName`"))
            }
            false => Ok(Some(traces)),
        }
    }

    /// The object that holds a distribution: the configuration itself, or the file that it names.
    fn distribution(&self, file: &str, remarks: &mut Vec<String>) -> Result<Map<String, Value>> {
        match self.get(file).and_then(Value::as_str) {
            None => Ok(self.test.clone()),
            Some(name) => {
                let path = self.beside(name);
                let object = read_json(&path)?.as_object().cloned().unwrap_or_default();
                name_unused(&path, object.keys().map(String::as_str), &[], remarks);
                Ok(object)
            }
        }
    }
}

/// Lists the unused keys among these, and separately `others` and unknown keys.
fn name_unused<'a>(
    path: &Path,
    keys: impl Iterator<Item = &'a str> + Clone,
    others: &'a [String],
    remarks: &mut Vec<String>,
) {
    let is_used = |key: &str| USED.contains(&key) || USED_FOR_TRACES.contains(&key);
    let is_known = |key: &str| {
        NOT_USED.contains(&key)
            || NOT_USED_BEGINNINGS.iter().any(|beginning| key.starts_with(beginning))
    };
    let unused = keys.filter(|key| !is_used(key));
    let not_used: Vec<_> = unused.clone().filter(|key| is_known(key)).collect();
    let unknown: Vec<_> =
        unused.filter(|key| !is_known(key)).chain(others.iter().map(String::as_str)).collect();
    for (what, keys) in [("not used in a replay", not_used), ("unknown", unknown)] {
        if !keys.is_empty() {
            remarks.push(format!("{}: {what}: `{}`", path.display(), keys.join("`, `")));
        }
    }
}

/// The traces of a configuration.
struct Replayed {
    trace: Delimited<Box<dyn Read>>,
    /// The last one first.
    later: Vec<PathBuf>,
    /// Whether a miss inserts the value.
    fills: bool,
}

impl Replayed {
    fn new(traces: Vec<PathBuf>, fills: bool, remarks: &mut Vec<String>) -> Result<Self> {
        let mut later: Vec<_> = traces.into_iter().rev().collect();
        let first = later.pop().expect("at least one is named");
        Ok(Self { trace: open_csv(&first, remarks)?, later, fills })
    }
}

fn open_csv(path: &Path, remarks: &mut Vec<String>) -> Result<Delimited<Box<dyn Read>>> {
    Delimited::open(path, source::open(path)?, remarks)
}

impl Requests for Replayed {
    fn next(&mut self, request: &mut Request) -> Result<bool> {
        while !self.trace.next(request)? {
            let Some(next) = self.later.pop() else { return Ok(false) };
            self.trace = open_csv(&next, &mut Vec::new())?;
        }
        if request.operation == Operation::ReadThrough && !self.fills {
            request.operation = Operation::Find;
        }
        Ok(true)
    }
}

/// Draws numbers by weight.
#[derive(Debug)]
struct Drawn {
    edges: Vec<f64>,
    /// Cumulative sums.
    weights: Vec<f64>,
}

impl Drawn {
    /// Draws a value if there are as many weights as values. With one value more, draws from the
    /// ranges between the values.
    fn new(config: &Config, what: &str, edges: Vec<f64>, weights: &[f64]) -> Result<Self> {
        let fits = !weights.is_empty()
            && (edges.len() == weights.len() || edges.len() == weights.len() + 1);
        let sum: f64 = weights.iter().sum();
        if fits && sum <= 0.0 {
            return Err(config.malformed(&format!("`{what}`: all weights are zero")));
        }
        if !fits {
            let (edges, weights) = (edges.len(), weights.len());
            return Err(config
                .malformed(&format!("`{what}`: {edges} values do not match {weights} weights")));
        }
        let running = weights.iter().scan(0.0, |total, weight| {
            *total += weight / sum;
            Some(*total)
        });
        let weights = running.collect();
        Ok(Self { edges, weights })
    }

    fn draw(&self, random: &mut Random) -> u64 {
        let at = unit(random);
        let place = self.weights.partition_point(|sum| *sum <= at).min(self.weights.len() - 1);
        match self.edges.get(place + 1) {
            Some(end) if self.edges.len() > self.weights.len() => {
                let (from, to) = (self.edges[place] as u64, *end as u64);
                from + random.below(to.saturating_sub(from).max(1))
            }
            _ => self.edges[place] as u64,
        }
    }
}

/// A number in [0, 1).
fn unit(random: &mut Random) -> f64 {
    (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

/// The popularity of keys.
enum Popularity {
    /// Normally distributed around the middle with a standard deviation of a quarter of the keys,
    /// cachebench's default.
    Normal,
    /// Groups of keys with weights.
    Buckets(Drawn),
}

/// The requests that cachebench would make.
struct Generator {
    random: Random,
    keys: Vec<(Box<[u8]>, u64)>,
    popularity: Popularity,
    value_sizes: Drawn,
    key_sizes: Drawn,
    /// An operation, and whether its key was never used before.
    operations: Vec<(Operation, bool)>,
    choice: Drawn,
    left: u64,
    lone: u64,
}

impl Generator {
    fn new(config: &Config, remarks: &mut Vec<String>) -> Result<Self> {
        let mut random = Random::new(1);
        let needed = |name: &str| {
            config.number(name)?.ok_or_else(|| config.malformed(&format!("`{name}` is missing")))
        };
        let key_sizes = Drawn::new(
            config,
            "keySizeRange",
            config.numbers_in(&config.test, "keySizeRange")?,
            &config.numbers_in(&config.test, "keySizeRangeProbability")?,
        )?;
        let sizes = config.distribution("valSizeDistFile", remarks)?;
        let value_sizes = Drawn::new(
            config,
            "valSizeRange",
            config.numbers_in(&sizes, "valSizeRange")?,
            &config.numbers_in(&sizes, "valSizeRangeProbability")?,
        )?;
        let popular = config.distribution("popDistFile", remarks)?;
        let buckets = config.numbers_in(&popular, "popularityBuckets")?;
        let numbers = needed("numKeys")?;
        if numbers > MAX_KEYS {
            return Err(config
                .malformed(&format!("`numKeys`: {numbers} exceeds the maximum of {MAX_KEYS}")));
        }
        let numbers = numbers as u64;
        let mut keys: Vec<_> = (0..numbers).map(|_| letters(&mut random, &key_sizes)).collect();
        keys.sort_unstable();
        keys.dedup();
        if keys.is_empty() {
            return Err(config.malformed("`numKeys` is zero"));
        }
        let popularity = if buckets.is_empty() {
            Popularity::Normal
        } else {
            let weights = config.numbers_in(&popular, "popularityWeights")?;
            let sum: f64 = buckets.iter().sum();
            let edges = buckets.iter().scan(0.0, |at, bucket| {
                *at += bucket / sum * keys.len() as f64;
                Some(*at)
            });
            Popularity::Buckets(Drawn::new(
                config,
                "popularityBuckets",
                std::iter::once(0.0).chain(edges).collect(),
                &weights,
            )?)
        };
        let find = if config.flag("enableLookaside")?.unwrap_or(false) {
            Operation::ReadThrough
        } else {
            Operation::Find
        };
        let known = [
            ("getRatio", find, false),
            ("loneGetRatio", find, true),
            ("setRatio", Operation::Set, false),
            ("updateRatio", Operation::Set, false),
            ("loneSetRatio", Operation::Set, true),
            ("delRatio", Operation::Delete, false),
            ("couldExistRatio", Operation::Find, false),
        ];
        let ratio =
            |(name, _, _): &(&str, Operation, bool)| Ok(config.number(name)?.unwrap_or(0.0));
        let ratios = known.iter().map(ratio).collect::<Result<Vec<_>>>()?;
        let choice = Drawn::new(
            config,
            "getRatio",
            (0..known.len()).map(|at| at as f64).collect(),
            &ratios,
        )?;
        let threads = config.number("numThreads")?.unwrap_or(1.0);
        Ok(Self {
            keys: keys.into_iter().map(|key| (key, value_sizes.draw(&mut random))).collect(),
            random,
            popularity,
            value_sizes,
            key_sizes,
            operations: known.iter().map(|(_, operation, lone)| (*operation, *lone)).collect(),
            choice,
            left: (needed("numOps")? * threads) as u64,
            lone: 0,
        })
    }

    fn popular(&mut self) -> usize {
        let keys = self.keys.len();
        match &self.popularity {
            Popularity::Buckets(drawn) => (drawn.draw(&mut self.random) as usize).min(keys - 1),
            Popularity::Normal => loop {
                // Box-Muller, repeated until the number is a valid key index.
                let radius = (-2.0 * (1.0 - unit(&mut self.random)).ln()).sqrt();
                let angle = std::f64::consts::TAU * unit(&mut self.random);
                let at = keys as f64 / 2.0 + radius * angle.cos() * keys as f64 / 4.0;
                if at >= 0.0 && at < keys as f64 {
                    return at as usize;
                }
            },
        }
    }
}

fn letters(random: &mut Random, sizes: &Drawn) -> Box<[u8]> {
    let len = sizes.draw(random).clamp(1, 255);
    (0..len).map(|_| b'a' + random.below(26) as u8).collect()
}

impl Requests for Generator {
    fn next(&mut self, request: &mut Request) -> Result<bool> {
        if self.left == 0 {
            return Ok(false);
        }
        self.left -= 1;
        let (operation, lone) = self.operations[self.choice.draw(&mut self.random) as usize];
        request.operation = operation;
        request.key.clear();
        if lone {
            self.lone += 1;
            // Other keys contain no capital letters.
            request.key.extend_from_slice(format!("LONE{}", self.lone).as_bytes());
            let len = self.key_sizes.draw(&mut self.random).min(255) as usize;
            request.key.resize(len.max(request.key.len()), b'X');
            request.value_bytes = self.value_sizes.draw(&mut self.random);
        } else {
            let at = self.popular();
            let (key, value_bytes) = &self.keys[at];
            request.key.extend_from_slice(key);
            request.value_bytes = *value_bytes;
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_trailing_commas_are_accepted() {
        let text = "{ // one\n \"a\": [1, 2, ], /* two\n three */ \"b//\": \"/* \\\" */,]\", }";
        assert_eq!(
            parse_json(text).unwrap(),
            serde_json::json!({ "a": [1, 2], "b//": "/* \" */,]" })
        );
        assert_eq!(parse_json("{ \"a\": 1,\n \"b\": \n}").unwrap_err().line_display(), 3);
    }

    #[test]
    fn ranges_are_drawn_by_weight() {
        let config = Config::new(Path::new(""), &Value::Null);
        let mut random = Random::new(1);
        let ranges = Drawn::new(&config, "x", vec![1.0, 8.0, 64.0], &[0.3, 0.7]).unwrap();
        let low = (0..10_000).filter(|_| ranges.draw(&mut random) < 8).count();
        assert!((2800..3200).contains(&low), "{low}");
        let exact = Drawn::new(&config, "x", vec![5.0, 9.0], &[1.0, 1.0]).unwrap();
        assert!((0..100).all(|_| [5, 9].contains(&exact.draw(&mut random))));
        assert!(Drawn::new(&config, "x", vec![1.0], &[1.0, 2.0]).is_err());
        let zeros = Drawn::new(&config, "x", vec![1.0, 2.0], &[0.0, 0.0]).unwrap_err().to_string();
        assert!(zeros.contains("all weights are zero"), "{zeros}");
    }
}
