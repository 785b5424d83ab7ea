//! Requests to caches: keys, the sizes of their values, and the order of requests.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use crate::payload::mix;
use crate::yardstick::zipf::Zipf;

/// Keys of the zipf requests.
const ZIPF_KEYS: u64 = 1_000_000;

/// Keys, operations and one-time gets of the cachebench workload used to evaluate CacheLib's
/// evictor.
const CACHEBENCH_KEYS: u64 = 400_000;
const LONE_GETS: f64 = 0.231_543_653_987_312_9;

/// The median of its values, and the standard deviation of their logarithms, replacing the measured
/// sizes, which are not available. Four caches with a capacity of 200 MB on this workload grew by
/// 85 to 239 MB more, which is 600,000 to 740,000 times their cost per entry; so an entry has about
/// 300 bytes of key and value, and a value 270.
const CACHEBENCH_MEDIAN_BYTES: f64 = 120.0;
const CACHEBENCH_SPREAD: f64 = 1.27;
const CACHEBENCH_MAX_BYTES: f64 = 65_536.0;

/// A key: bytes that our cache takes directly, and others hash.
pub(super) trait Key:
    AsRef<[u8]> + Eq + std::hash::Hash + Clone + Send + Sync + 'static
{
}

impl Key for [u8; 8] {}
impl Key for Box<[u8]> {}

/// The source of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// This many by Zipf's law, over values of 64 B (every other) to 4 KiB.
    Zipf(u64),
    /// This many of the workload used to evaluate CacheLib's evictor: keys by a normal
    /// distribution, and some that occur once.
    Cachebench(u64),
    /// A trace, from start to end.
    Trace(PathBuf),
}

/// Requests, in order.
pub(super) struct Requests<K> {
    pub(super) keys: Vec<K>,
    /// Value size by key.
    pub(super) value_bytes: Vec<u32>,
    /// The requested keys.
    pub(super) order: Vec<u32>,
}

impl<K: Key> Requests<K> {
    /// Bytes of the values of all keys.
    pub(super) fn working_set_bytes(&self) -> u64 {
        self.value_bytes.iter().map(|bytes| u64::from(*bytes)).sum()
    }

    pub(super) fn largest_bytes(&self) -> usize {
        self.value_bytes.iter().max().map_or(0, |bytes| *bytes as usize)
    }
}

/// Requests by Zipf's law; hot keys are scattered.
pub(super) fn zipf(count: u64) -> Requests<[u8; 8]> {
    let zipf = Zipf::new(ZIPF_KEYS);
    let mut random = fastrand::Rng::with_seed(5);
    let mut rank =
        || (zipf.rank(random.f64()).wrapping_mul(0xff51_afd7_ed55_8ccd) % ZIPF_KEYS) as u32;
    Requests {
        keys: (0..ZIPF_KEYS).map(|key| mix(key).to_be_bytes()).collect(),
        value_bytes: (0..ZIPF_KEYS)
            .map(|key| 64 << mix(key ^ 0x5a5a).trailing_zeros().min(6))
            .collect(),
        order: (0..count).map(|_| rank()).collect(),
    }
}

/// The cachebench workload.
pub(super) fn cachebench(count: u64) -> Requests<Box<[u8]>> {
    let mut random = fastrand::Rng::with_seed(9);
    let mut requests = Requests { keys: Vec::new(), value_bytes: Vec::new(), order: Vec::new() };
    let (mean, deviation) = (CACHEBENCH_KEYS as f64 / 2.0, CACHEBENCH_KEYS as f64 / 4.0);
    (0..CACHEBENCH_KEYS).for_each(|_| requests.add_random(&mut random));
    for _ in 0..count {
        if random.f64() < LONE_GETS {
            requests.order.push(requests.keys.len() as u32);
            requests.add_random(&mut random);
            continue;
        }
        let key = loop {
            let key = mean + deviation * normal(&mut random);
            if (0.0..CACHEBENCH_KEYS as f64).contains(&key) {
                break key as u32;
            }
        };
        requests.order.push(key);
    }
    requests
}

impl Requests<Box<[u8]>> {
    /// A key of 1 to 64 letters, three in ten of them short, and the size of its value.
    fn add_random(&mut self, random: &mut fastrand::Rng) {
        let len = if random.f64() < 0.3 { random.usize(1..8) } else { random.usize(8..64) };
        let mut key: Vec<u8> = (0..len).map(|_| random.u8(b'a'..=b'z')).collect();
        // Short keys would often collide.
        key.extend_from_slice(&(self.keys.len() as u32).to_be_bytes()[1..]);
        let bytes = CACHEBENCH_MEDIAN_BYTES * (CACHEBENCH_SPREAD * normal(random)).exp();
        self.keys.push(key.into());
        self.value_bytes.push(bytes.clamp(1.0, CACHEBENCH_MAX_BYTES) as u32);
    }
}

/// A number of the standard normal distribution (Box and Muller, 1958).
fn normal(random: &mut fastrand::Rng) -> f64 {
    (-2.0 * (1.0 - random.f64()).ln()).sqrt() * (std::f64::consts::TAU * random.f64()).cos()
}

/// The requests of a trace in oracleGeneral, compressed by zstd or not.
#[cfg(feature = "caches")]
pub(super) fn trace(path: &Path) -> Result<Requests<[u8; 8]>> {
    use plimsoll_replay::{Request, TraceFile, TraceFormat};
    let mut trace = TraceFile::new(path, TraceFormat::Oracle).open()?.requests;
    let mut requests = Requests { keys: Vec::new(), value_bytes: Vec::new(), order: Vec::new() };
    let mut numbers = std::collections::HashMap::new();
    let mut request = Request::default();
    while trace.next(&mut request)? {
        let object: [u8; 8] =
            request.key[..].try_into().expect("objects of this format have eight bytes");
        let number = *numbers.entry(object).or_insert_with(|| {
            requests.keys.push(object);
            requests.value_bytes.push(request.value_bytes as u32);
            requests.keys.len() as u32 - 1
        });
        requests.order.push(number);
    }
    Ok(requests)
}

#[cfg(not(feature = "caches"))]
pub(super) fn trace(path: &Path) -> Result<Requests<[u8; 8]>> {
    anyhow::bail!(
        "{} can be replayed by a bench that was built with --features caches",
        path.display()
    )
}

impl Source {
    /// The source as a worker's argument.
    pub(super) fn argument(&self) -> String {
        match self {
            Self::Zipf(count) => format!("zipf:{count}"),
            Self::Cachebench(count) => format!("cachebench:{count}"),
            Self::Trace(path) => format!("trace:{}", path.display()),
        }
    }

    /// Parses the format of [`Source::argument`].
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let number =
            |text: &str| text.parse().map_err(|_| format!("{text:?} is no number of requests"));
        match text.split_once(':') {
            Some(("zipf", count)) => Ok(Self::Zipf(number(count)?)),
            Some(("cachebench", count)) => Ok(Self::Cachebench(number(count)?)),
            Some(("trace", path)) => Ok(Self::Trace(path.into())),
            _ => Err(format!("{text:?} is neither zipf:COUNT nor cachebench:COUNT nor trace:FILE")),
        }
    }

    /// The name in tables and results.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Zipf(_) => "zipf".to_owned(),
            Self::Cachebench(_) => "cachebench".to_owned(),
            Self::Trace(path) => {
                let name = path
                    .file_name()
                    .map(|name| name.to_string_lossy().into_owned())
                    .unwrap_or_default();
                name.split('.').next().unwrap_or_default().to_owned()
            }
        }
    }
}

/// The traces of a folder, by name.
pub(super) fn traces_in(folder: &Path) -> Result<Vec<PathBuf>> {
    ensure!(folder.is_dir(), "there is no folder {}", folder.display());
    let mut traces = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.to_string_lossy().contains(".oracleGeneral") {
            traces.push(path);
        }
    }
    traces.sort();
    ensure!(
        !traces.is_empty(),
        "{} has no file named *.oracleGeneral or *.oracleGeneral.zst",
        folder.display()
    );
    Ok(traces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_parses_from_its_argument() {
        for source in
            [Source::Zipf(7), Source::Cachebench(9), Source::Trace("a/b.oracleGeneral.zst".into())]
        {
            assert_eq!(Source::parse(&source.argument()), Ok(source));
        }
        assert!(Source::parse("zipf").is_err() && Source::parse("zipf:x").is_err());
        assert_eq!(Source::Trace("a/b.oracleGeneral.zst".into()).name(), "b");
    }

    #[test]
    fn requests_are_the_same_each_time_and_every_key_has_a_size() {
        let requests = cachebench(5000);
        assert_eq!((requests.order.len(), requests.keys.len()), (5000, requests.value_bytes.len()));
        assert!(requests.order == cachebench(5000).order);
        let lone = requests.keys.len() as u64 - CACHEBENCH_KEYS;
        assert!((1000..1400).contains(&lone), "{lone} of 5000 come once");
        let mean = requests.working_set_bytes() / requests.keys.len() as u64;
        assert!((240..300).contains(&mean), "{mean}");
        let zipf = zipf(1000);
        assert!(zipf.order.iter().all(|key| (*key as usize) < zipf.keys.len()));
        assert_eq!(zipf.largest_bytes(), 4096);
    }

    #[cfg(feature = "caches")]
    #[test]
    fn a_trace_is_read_record_by_record() {
        let record = |object: u64, bytes: u32| {
            [&[0; 4][..], &object.to_le_bytes(), &bytes.to_le_bytes(), &(-1_i64).to_le_bytes()]
                .concat()
        };
        let bytes = [record(7, 100), record(9, 5), record(7, 100)].concat();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.oracleGeneral");
        std::fs::write(&path, &bytes).unwrap();
        let requests = trace(&path).unwrap();
        assert_eq!((requests.order, requests.value_bytes), (vec![0, 1, 0], vec![100, 5]));
        std::fs::write(&path, &bytes[..70]).unwrap();
        assert!(trace(&path).is_err());
    }
}
