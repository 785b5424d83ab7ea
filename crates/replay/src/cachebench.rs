//! CacheLib's cachebench configurations: what its generator would ask for, or the trace that it would replay.
//!
//! JSON with comments and trailing commas, numbers perhaps as strings. What bears on which requests are made, in which order and of what size,
//! is used; what is about CacheLib's own memory layout, hashing and flash is named as not used; a key that CacheLib does not know either is
//! named as unknown, wherever it stands. Threads are not imitated: requests come one after the other, as many as all threads would make.
//!
//! A trace that is named is replayed as it is: what a get misses is entered, unless `enableLookaside` says no. (Where it is not said, CacheLib
//! enters nothing, and a trace of gets would never find anything.)

use std::path::{Path, PathBuf};

use plimsoll_disk::random::Random;
use serde_json::{Map, Value};

use super::trace::{self, Operation, Problem, Request, Trace};
use crate::args::TraceFormat;

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

/// What CacheLib or one of its branches knows and a replay has no use for.
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

/// What there is beside the two parts.
const PARTS: [&str; 2] = ["cache_config", "test_config"];

/// Generators whose requests are made here; CacheLib's first one has no name of its own.
const GENERATORS: [&str; 3] = ["", "workload", "online"];
/// The one that replays traces of the form that is read here.
const REPLAYS: &str = "replay";

/// More keys than that would not leave room for the cache.
const MAX_KEYS: f64 = 1e8;

/// A configuration, and the requests it comes to.
pub(super) struct Cachebench {
    /// `cacheSizeMB`, in bytes.
    pub(super) memory_bytes: Option<u64>,
    pub(super) trace: Box<dyn Trace>,
}

/// Reads a configuration. What is not used is named on stderr if `talks`.
#[allow(clippy::disallowed_methods, reason = "the configuration is the user's file")]
pub(super) fn open(path: &Path, talks: bool) -> Result<Cachebench, Problem> {
    let config = read_json(path)?;
    let config = match config {
        Value::Array(mut all) if !all.is_empty() => {
            if all.len() > 1 && talks {
                eprintln!("plimsoll: {}: {} instances; the first is replayed", path.display(), all.len());
            }
            all.swap_remove(0)
        }
        other => other,
    };
    let config = Config::new(path, &config, talks);
    config.name_what_is_not_used();
    if config.test.is_empty() {
        return Err(config.malformed("has no `test_config`"));
    }
    let megabytes = config.number("cacheSizeMB")?;
    let memory_bytes = megabytes.map(|megabytes| (megabytes * 1_048_576.0) as u64);
    let trace: Box<dyn Trace> = match config.traces()? {
        Some(traces) => Box::new(Replayed::new(traces, config.flag("enableLookaside")?.unwrap_or(true))?),
        None => Box::new(Generator::new(&config)?),
    };
    Ok(Cachebench { memory_bytes, trace })
}

fn part(config: &Value, name: &str) -> Map<String, Value> {
    config.get(name).and_then(Value::as_object).cloned().unwrap_or_default()
}

#[allow(clippy::disallowed_methods, reason = "as in `open`")]
fn read_json(path: &Path) -> Result<Value, Problem> {
    let text = std::fs::read_to_string(path).map_err(|error| Problem::Io { path: path.to_owned(), error })?;
    serde_json::from_str(&plain_json(&text)).map_err(|error| Problem::Malformed {
        path: path.to_owned(),
        at: format!("line {}", error.line()),
        what: error.to_string(),
    })
}

/// Without comments and trailing commas; every character keeps its line.
fn plain_json(text: &str) -> String {
    let (mut plain, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(character) = rest.chars().next() {
        let len = if character == '"' {
            let mut escaped = false;
            let end = rest[1..].find(|inner: char| {
                let ends = inner == '"' && !escaped;
                escaped = inner == '\\' && !escaped;
                ends
            });
            end.map_or(rest.len(), |end| end + 2)
        } else if rest.starts_with("//") {
            rest = &rest[rest.find('\n').unwrap_or(rest.len())..];
            continue;
        } else if rest.starts_with("/*") {
            let end = rest.find("*/").map_or(rest.len(), |end| end + 2);
            plain.extend(rest[..end].chars().filter(|inner| *inner == '\n'));
            rest = &rest[end..];
            continue;
        } else {
            character.len_utf8()
        };
        if character == ']' || character == '}' {
            let kept = plain.trim_end().len();
            if plain[..kept].ends_with(',') {
                plain.replace_range(kept - 1..kept, " ");
            }
        }
        plain.push_str(&rest[..len]);
        rest = &rest[len..];
    }
    plain
}

struct Config {
    path: PathBuf,
    talks: bool,
    cache: Map<String, Value>,
    test: Map<String, Value>,
    /// Keys that stand beside the parts.
    beside_parts: Vec<String>,
}

impl Config {
    fn new(path: &Path, whole: &Value, talks: bool) -> Self {
        let keys = whole.as_object().into_iter().flat_map(Map::keys);
        let beside_parts = keys.filter(|key| !PARTS.contains(&key.as_str())).cloned().collect();
        let [cache, test] = PARTS.map(|name| part(whole, name));
        Self { path: path.to_owned(), talks, cache, test, beside_parts }
    }

    fn malformed(&self, what: &str) -> Problem {
        Problem::Malformed { path: self.path.clone(), at: "configuration".to_owned(), what: what.to_owned() }
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.test.get(name).or_else(|| self.cache.get(name))
    }

    fn name_what_is_not_used(&self) {
        let keys = self.cache.keys().chain(self.test.keys());
        self.name_unused(&self.path, keys.map(String::as_str), &self.beside_parts);
    }

    /// Names on stderr those of these keys that are not used here, and apart from them `others` and those that nobody knows.
    fn name_unused<'a>(&self, path: &Path, keys: impl Iterator<Item = &'a str> + Clone, others: &'a [String]) {
        if !self.talks {
            return;
        }
        let is_used = |key: &str| USED.contains(&key) || USED_FOR_TRACES.contains(&key);
        let is_known = |key: &str| {
            NOT_USED.contains(&key) || NOT_USED_BEGINNINGS.iter().any(|beginning| key.starts_with(beginning))
        };
        let unused = keys.filter(|key| !is_used(key));
        let not_used: Vec<_> = unused.clone().filter(|key| is_known(key)).collect();
        let unknown: Vec<_> = unused.filter(|key| !is_known(key)).chain(others.iter().map(String::as_str)).collect();
        for (what, keys) in [("not used in a replay", not_used), ("unknown", unknown)] {
            if !keys.is_empty() {
                eprintln!("plimsoll: {}: {what}: `{}`", path.display(), keys.join("`, `"));
            }
        }
    }

    fn number_of(&self, name: &str, value: &Value) -> Result<f64, Problem> {
        let number = match value {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => text.trim().parse().ok(),
            Value::Bool(yes) => Some(f64::from(u8::from(*yes))),
            _ => None,
        };
        let number = number.filter(|number| number.is_finite() && *number >= 0.0);
        number.ok_or_else(|| self.malformed(&format!("`{name}`: {value} is no number of zero or more")))
    }

    fn number(&self, name: &str) -> Result<Option<f64>, Problem> {
        self.get(name).map(|value| self.number_of(name, value)).transpose()
    }

    fn numbers_in(&self, from: &Map<String, Value>, name: &str) -> Result<Vec<f64>, Problem> {
        let values = from.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        values.iter().map(|value| self.number_of(name, value)).collect()
    }

    /// `None` where nothing is said.
    fn flag(&self, name: &str) -> Result<Option<bool>, Problem> {
        match self.get(name) {
            Some(Value::String(text)) if text == "true" || text == "false" => Ok(Some(text == "true")),
            _ => Ok(self.number(name)?.map(|number| number != 0.0)),
        }
    }

    /// A file that is named in the configuration: in the folder that it names, or beside it.
    fn beside(&self, name: &str) -> PathBuf {
        let named = self.get("configPath").and_then(Value::as_str).map(Path::new);
        named.or(self.path.parent()).unwrap_or(Path::new("")).join(name)
    }

    /// The traces to replay, one behind the other; `None` where requests are generated.
    fn traces(&self) -> Result<Option<Vec<PathBuf>>, Problem> {
        let generator = self.get("generator").and_then(Value::as_str).unwrap_or("");
        if GENERATORS.contains(&generator) {
            return Ok(None);
        }
        if generator != REPLAYS {
            let made = GENERATORS.join("`, `");
            return Err(self.malformed(&format!(
                "the generator `{generator}` is not imitated: `{made}` are, and `{REPLAYS}` reads a trace as CSV"
            )));
        }
        let several = self.get("traceFileNames").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let names = self.get("traceFileName").into_iter().chain(several).filter_map(Value::as_str);
        let traces: Vec<_> = names.map(|name| self.beside(name)).collect();
        match traces.is_empty() {
            true => Err(self.malformed("the generator is `replay`, and no `traceFileName` says what is replayed")),
            false => Ok(Some(traces)),
        }
    }

    /// The object that holds a distribution: a file's, if one is named.
    fn distribution(&self, file: &str) -> Result<Map<String, Value>, Problem> {
        match self.get(file).and_then(Value::as_str) {
            None => Ok(self.test.clone()),
            Some(name) => {
                let path = self.beside(name);
                let object = read_json(&path)?.as_object().cloned().unwrap_or_default();
                self.name_unused(&path, object.keys().map(String::as_str), &[]);
                Ok(object)
            }
        }
    }
}

/// Traces that a configuration names.
struct Replayed {
    trace: Box<dyn Trace>,
    /// The last one first.
    later: Vec<PathBuf>,
    /// Whether a value that was missed is entered.
    fills: bool,
}

impl Replayed {
    fn new(traces: Vec<PathBuf>, fills: bool) -> Result<Self, Problem> {
        let mut later: Vec<_> = traces.into_iter().rev().collect();
        let first = later.pop().expect("at least one is named");
        Ok(Self { trace: trace::open(&first, TraceFormat::Csv)?, later, fills })
    }
}

impl Trace for Replayed {
    fn next(&mut self, request: &mut Request) -> Result<bool, Problem> {
        while !self.trace.next(request)? {
            let Some(next) = self.later.pop() else { return Ok(false) };
            self.trace = trace::open(&next, TraceFormat::Csv)?;
        }
        if request.operation == Operation::ReadThrough && !self.fills {
            request.operation = Operation::Find;
        }
        Ok(true)
    }
}

/// Draws numbers by ranges and their weights.
#[derive(Debug)]
struct Drawn {
    edges: Vec<f64>,
    /// Running sums.
    weights: Vec<f64>,
}

impl Drawn {
    /// As many weights as values: these values. One value more: ranges between them.
    fn new(config: &Config, what: &str, edges: Vec<f64>, weights: &[f64]) -> Result<Self, Problem> {
        let fits = !weights.is_empty() && (edges.len() == weights.len() || edges.len() == weights.len() + 1);
        let sum: f64 = weights.iter().sum();
        if fits && sum <= 0.0 {
            return Err(config.malformed(&format!("`{what}`: all weights are zero")));
        }
        if !fits {
            let (edges, weights) = (edges.len(), weights.len());
            return Err(
                config.malformed(&format!("`{what}`: {edges} values and {weights} weights do not fit together"))
            );
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

/// From 0 to below 1.
fn unit(random: &mut Random) -> f64 {
    (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

/// Which key is asked for.
enum Popularity {
    /// Around the middle, a quarter of the keys wide, as cachebench does where nothing is said.
    Normal,
    /// Some keys together get a weight.
    Buckets(Drawn),
}

/// The requests that cachebench would make.
struct Generator {
    random: Random,
    keys: Vec<(Box<[u8]>, u64)>,
    popularity: Popularity,
    value_sizes: Drawn,
    key_sizes: Drawn,
    /// Operation, and whether it is for a key that was never seen before.
    operations: Vec<(Operation, bool)>,
    choice: Drawn,
    left: u64,
    lone: u64,
}

impl Generator {
    fn new(config: &Config) -> Result<Self, Problem> {
        let mut random = Random::new(1);
        let needed = |name: &str| config.number(name)?.ok_or_else(|| config.malformed(&format!("`{name}` is missing")));
        let key_sizes = Drawn::new(
            config,
            "keySizeRange",
            config.numbers_in(&config.test, "keySizeRange")?,
            &config.numbers_in(&config.test, "keySizeRangeProbability")?,
        )?;
        let sizes = config.distribution("valSizeDistFile")?;
        let value_sizes = Drawn::new(
            config,
            "valSizeRange",
            config.numbers_in(&sizes, "valSizeRange")?,
            &config.numbers_in(&sizes, "valSizeRangeProbability")?,
        )?;
        let popular = config.distribution("popDistFile")?;
        let buckets = config.numbers_in(&popular, "popularityBuckets")?;
        let numbers = needed("numKeys")?;
        if numbers > MAX_KEYS {
            return Err(
                config.malformed(&format!("`numKeys`: {numbers} are more than {MAX_KEYS}, the most that are made"))
            );
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
        let find =
            if config.flag("enableLookaside")?.unwrap_or(false) { Operation::ReadThrough } else { Operation::Find };
        let known = [
            ("getRatio", find, false),
            ("loneGetRatio", find, true),
            ("setRatio", Operation::Set, false),
            ("updateRatio", Operation::Set, false),
            ("loneSetRatio", Operation::Set, true),
            ("delRatio", Operation::Delete, false),
            ("couldExistRatio", Operation::Find, false),
        ];
        let ratio = |(name, _, _): &(&str, Operation, bool)| Ok(config.number(name)?.unwrap_or(0.0));
        let ratios = known.iter().map(ratio).collect::<Result<Vec<_>, Problem>>()?;
        let choice = Drawn::new(config, "getRatio", (0..known.len()).map(|at| at as f64).collect(), &ratios)?;
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
                // Box and Muller; drawn again until it is one of the keys.
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

impl Trace for Generator {
    fn next(&mut self, request: &mut Request) -> Result<bool, Problem> {
        if self.left == 0 {
            return Ok(false);
        }
        self.left -= 1;
        let (operation, lone) = self.operations[self.choice.draw(&mut self.random) as usize];
        request.operation = operation;
        request.key.clear();
        if lone {
            self.lone += 1;
            // Capital letters: no other key has any.
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
    fn comments_and_trailing_commas_are_left_out_and_strings_are_not_touched() {
        let text = "{ // one\n \"a\": [1, 2, ], /* two\n three */ \"b//\": \"/* \\\" */,]\", }";
        let value: Value = serde_json::from_str(&plain_json(text)).unwrap();
        assert_eq!(value, serde_json::json!({ "a": [1, 2], "b//": "/* \" */,]" }));
        assert_eq!(plain_json(text).lines().count(), text.lines().count());
    }

    #[test]
    fn ranges_are_drawn_by_weight() {
        let config = Config::new(Path::new(""), &Value::Null, false);
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
