//! Fuzzes a whole store whose bytes were changed and whose checksums are nevertheless valid.
//!
//! Invariant: for any input, every call returns a result or an error. A panic or a call that does
//! not terminate is a finding.
//!
//! The sample store contains every kind of data. An input is a list of changes of [`CHANGE_BYTES`]
//! each. After the changes, the checksums of the changed files are recomputed, and so are the chain
//! of the log's records and every reference to a position in it.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use plimsoll_disk::checksum::{checksum, seed};
use plimsoll_disk::clock::ManualClock;
use plimsoll_disk::mem::MemDisk;
use plimsoll_disk::vfs::{Caching, Disk, Open};
use plimsoll_log::blob::BlobRef;
use plimsoll_log::format::blob_trailer::{BLOB_TRAILER_BYTES, BlobTrailer, extend_blob_hash};
use plimsoll_log::format::fragment::{FRAGMENT_HEADER_BYTES, Found, FragmentType, fragment_at};
use plimsoll_log::format::offset_table::{TABLE_HEADER_BYTES, TableHeader};
use plimsoll_log::format::record::RecordHeader;
use plimsoll_log::format::segment_header::{SEGMENT_HEADER_BYTES, SegmentHeader};
use plimsoll_log::format::{BLOCK_BYTES, blob_seed, segment_seed, table_seed};
use plimsoll_memory::page::{PAGE_BYTES, PAGE_HEADER_BYTES};

use plimsoll_log::glsn::Glsn;

use crate::api::db::Db;
use crate::api::snapshot::{Moment, Snapshot};
use crate::fuzz::reseal::{Placed, continues, reseal};
use crate::index::manifest::Manifest;
use crate::index::manifest::names::{manifest_name, manifest_number};
use crate::index::run::file::run_id_of;
use crate::index::run::packed::{self, check_blocks, seal_block};
use crate::index::run::plain::run_seed;
use crate::types::compression::Compression;
use crate::types::error::Result;
use crate::types::keyspaces::Keyspace;
use crate::types::options::{MIN_MEMORY_BYTES, Options};
use crate::types::retention::Retention;
use crate::warm::segment::{HEADER_BYTES as WARM_HEADER_BYTES, Kind, read_header, seal};

/// Bytes of an input that encode one change.
pub const CHANGE_BYTES: usize = 10;

/// The most changes of an input.
const CHANGES_MAX: usize = 12;

/// The most rows that a scan may return. The sample has fewer versions, so a scan that returns more
/// does not terminate.
const ROWS_MAX: usize = 100_000;

/// The most bytes of a file. A recovery that has to fill a larger gap in the log, because a number
/// was changed, ends with an error.
const FILE_BYTES_MAX: u64 = 16 << 20;

const STORE: &str = "/store";

const RECOVERED: &str = "/recovered";

/// A file of the sample.
struct Sample {
    path: PathBuf,
    bytes: Vec<u8>,
    kind: FileKind,
}

/// How a file's checksums are recomputed.
enum FileKind {
    /// Pages with checksums under `seed`. If the run is packed, its first `packed` pages are stored
    /// as blocks.
    Run {
        seed: u64,
        packed: usize,
    },
    /// Pages, and a last page that describes them.
    Blob(BlobTrailer),
    /// Pages, the first of which contains a position in the log.
    Table(TableHeader),
    /// A log segment and the fragments in its blocks.
    Segment(SegmentHeader, Vec<Placed>),
    /// The manifest with this number.
    Manifest(u64),
    Warm(Kind, u64),
    Other,
}

/// Applies the encoded changes to the sample store, then calls every read operation on it.
pub fn store(bytes: &[u8]) {
    let samples = samples();
    let mut files: Vec<Option<Vec<u8>>> =
        samples.iter().map(|sample| Some(sample.bytes.clone())).collect();
    let mut unmended = vec![false; files.len()];
    for change in bytes.chunks_exact(CHANGE_BYTES).take(CHANGES_MAX) {
        let number = usize::from(change[0]) % files.len();
        unmended[number] |= change[9] & 0x80 != 0;
        apply(change, &mut files[number]);
    }
    mend(samples, &mut files, &unmended);
    let disk = MemDisk::with_file_limit(FILE_BYTES_MAX);
    let placed = place(&disk, samples, &files);
    placed.expect("a disk in memory accepts every write");
    ask(&disk);
}

/// Applies one change to a file; `None` is a removed file.
fn apply(change: &[u8], file: &mut Option<Vec<u8>>) {
    let &[_, how, page_low, page_high, low, high, a, b, c, _] = change else { return };
    let Some(bytes) = file else { return };
    let pages = bytes.len().div_ceil(PAGE_BYTES).max(1);
    let page = usize::from(u16::from_le_bytes([page_low, page_high])) % pages * PAGE_BYTES;
    let page_bytes = bytes.len().saturating_sub(page).min(PAGE_BYTES);
    if page_bytes == 0 {
        return;
    }
    let within = usize::from(u16::from_le_bytes([low, high]));
    // Most of the metadata is at the front of a page.
    let at =
        page + if how & 0x40 != 0 { within % page_bytes.min(256) } else { within % page_bytes };
    let end = page + page_bytes;
    match how % 10 {
        0 => bytes[at] = a,
        1 => bytes[at] ^= 1 << (a % 8),
        2 => bytes[at] = bytes[at].wrapping_add(a % 5).wrapping_sub(2),
        3 => put(
            bytes,
            at,
            end,
            &u32::from_le_bytes([a, b, c, 0]).to_le_bytes()[..usize::from(a % 4) + 1],
        ),
        4 => put(bytes, at, end, &[[0; 8], [255; 8], [127; 8]][usize::from(a % 3)][..1 << (b % 4)]),
        // Swap two ranges, so that entries are out of order.
        5 => {
            let (len, apart) = (usize::from(a) % 64 + 1, usize::from(b) + 1);
            for i in 0..len.min(apart) {
                if at + i + apart < end {
                    bytes.swap(at + i, at + i + apart);
                }
            }
        }
        6 => {
            let from = usize::from(u16::from_le_bytes([a, b])) % pages * PAGE_BYTES;
            if from + page_bytes <= bytes.len() {
                bytes.copy_within(from..from + page_bytes, page);
            }
        }
        7 => bytes.truncate(if a % 2 == 0 { page } else { at }),
        8 => bytes.resize(bytes.len() + (usize::from(a) % 4 + 1) * PAGE_BYTES, b % 2),
        _ if a % 4 == 0 => *file = None,
        _ => {
            let len = (usize::from(a) % 64 + 1).min(end - at);
            bytes.copy_within(page..page + len, at);
        }
    }
}

fn put(bytes: &mut [u8], at: usize, end: usize, what: &[u8]) {
    let len = what.len().min(end - at);
    bytes[at..at + len].copy_from_slice(&what[..len]);
}

/// Recomputes the checksums of all files except those in `unmended`.
fn mend(samples: &[Sample], files: &mut [Option<Vec<u8>>], unmended: &[bool]) {
    let mut places = BTreeMap::new();
    let mut chain = None;
    for ((sample, file), _) in
        samples.iter().zip(&mut *files).zip(unmended).filter(|(_, unmended)| !**unmended)
    {
        let (FileKind::Segment(header, fragments), Some(bytes)) = (&sample.kind, file) else {
            continue;
        };
        let before = *chain.get_or_insert(header.previous_chain);
        chain = Some(mend_segment(bytes, header, fragments, before, &mut places));
    }
    for ((sample, file), _) in
        samples.iter().zip(files).zip(unmended).filter(|(_, unmended)| !**unmended)
    {
        let Some(bytes) = file else { continue };
        match &sample.kind {
            FileKind::Run { seed, packed } => mend_run(bytes, *seed, *packed),
            FileKind::Blob(trailer) => mend_blob(bytes, trailer),
            FileKind::Table(header) => mend_table(bytes, header, &places),
            FileKind::Manifest(number) => {
                mend_manifest(bytes, *number, *bytes != sample.bytes, &places)
            }
            FileKind::Warm(kind, number) => {
                let header = bytes
                    .get(..WARM_HEADER_BYTES)
                    .and_then(|head| read_header(head, *kind, *number, bytes.len() as u64).ok());
                if let Some((header, _)) = header {
                    seal(&header, *number, bytes);
                }
            }
            FileKind::Segment(..) | FileKind::Other => {}
        }
    }
}

/// Makes each record follow the previous one. Returns the chain hash after the last record;
/// `places` gets the hash after each record, by its last GLSN.
fn mend_segment(
    bytes: &mut [u8],
    header: &SegmentHeader,
    fragments: &[Placed],
    mut chain: u64,
    places: &mut BTreeMap<u64, u64>,
) -> u64 {
    if let Ok(mut changed) = SegmentHeader::decode(bytes) {
        changed.previous_chain = chain;
        bytes[..SEGMENT_HEADER_BYTES].copy_from_slice(&changed.encode());
    }
    let seed = segment_seed(header.log_id, header.first);
    for parts in fragments.chunk_by(|_, next| continues(next.2)) {
        let (start, _, part) = parts[0];
        chain = reseal(bytes, parts, seed, header.epoch, chain, true);
        let record = bytes.get(start + FRAGMENT_HEADER_BYTES..).map(RecordHeader::decode);
        if let Some(Ok(record)) = record.filter(|_| part != FragmentType::Mark) {
            places.insert(record.last().0, chain);
        }
    }
    chain
}

fn mend_page(page: &mut [u8], file_seed: u64, number: usize) {
    if page.len() > PAGE_HEADER_BYTES {
        let sum = checksum(seed(&[file_seed, number as u64]), &page[8..]);
        page[..8].copy_from_slice(&sum.to_le_bytes());
    }
}

fn mend_pages(bytes: &mut [u8], file_seed: u64) {
    bytes
        .chunks_mut(PAGE_BYTES)
        .enumerate()
        .for_each(|(number, page)| mend_page(page, file_seed, number));
}

/// Recomputes the checksums of a run. `packed_places`: the number of its first pages in whose
/// places blocks are stored.
fn mend_run(bytes: &mut [u8], file_seed: u64, packed_places: usize) {
    for (place, bytes) in bytes.chunks_mut(PAGE_BYTES).enumerate() {
        if place >= packed_places {
            mend_page(bytes, file_seed, place);
            continue;
        }
        for (block, bytes) in bytes.chunks_exact_mut(packed::BLOCK_BYTES).enumerate() {
            seal_block(bytes, file_seed, (place * PAGE_BYTES / packed::BLOCK_BYTES + block) as u64);
        }
    }
}

fn mend_blob(bytes: &mut [u8], trailer: &BlobTrailer) {
    let file_seed = blob_seed(trailer.log_id, trailer.blob.id.0);
    mend_pages(bytes, file_seed);
    let pages = bytes.len() / PAGE_BYTES;
    if pages == 0 {
        return;
    }
    let hash = bytes.chunks(PAGE_BYTES).take(pages - 1).fold(0, extend_blob_hash);
    let blob = BlobRef { id: trailer.blob.id, pages: pages as u32 - 1, hash };
    let encoded = BlobTrailer { log_id: trailer.log_id, blob }.encode();
    let last = &mut bytes[(pages - 1) * PAGE_BYTES..pages * PAGE_BYTES];
    last[PAGE_HEADER_BYTES..PAGE_HEADER_BYTES + BLOB_TRAILER_BYTES].copy_from_slice(&encoded);
    mend_page(last, file_seed, pages - 1);
}

fn mend_table(bytes: &mut [u8], header: &TableHeader, places: &BTreeMap<u64, u64>) {
    let within = PAGE_HEADER_BYTES..PAGE_HEADER_BYTES + TABLE_HEADER_BYTES;
    if let Some(Ok(mut said)) = bytes.get(within.clone()).map(TableHeader::decode)
        && let Some(chain) = places.get(&(header.first.0 + u64::from(header.count) - 1))
    {
        said.chain = *chain;
        bytes[within].copy_from_slice(&said.encode());
    }
    mend_pages(bytes, table_seed(header.log_id, header.first));
}

fn mend_manifest(bytes: &mut Vec<u8>, number: u64, is_changed: bool, places: &BTreeMap<u64, u64>) {
    if is_changed {
        let Some(body) = bytes.len().checked_sub(8) else { return };
        let sum = bytes[..body].chunks(super::MANIFEST_BLOCK_BYTES).fold(0, checksum);
        bytes[body..].copy_from_slice(&sum.to_le_bytes());
        return;
    }
    let (disk, dir, name) = (MemDisk::new(), Path::new(""), manifest_name(number));
    let written = write_file(&disk, Path::new(&name), bytes).is_ok();
    let Some(mut manifest) = Manifest::read(&disk, dir).ok().flatten().filter(|_| written) else {
        return;
    };
    for position in [&mut manifest.head.checkpoint, &mut manifest.head.durable] {
        position.chain = places.get(&position.glsn.0).copied().unwrap_or(position.chain);
    }
    let disk = MemDisk::new();
    if manifest.write(&disk, dir).is_ok() {
        *bytes = read_file(&disk, Path::new(&name)).unwrap_or_default();
    }
}

fn write_file(disk: &MemDisk, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    disk.open(path, Open::CreateNew, Caching::Buffered)?.write_at(bytes, 0)
}

fn read_file(disk: &MemDisk, path: &Path) -> std::io::Result<Vec<u8>> {
    let file = disk.open(path, Open::Read, Caching::Buffered)?;
    let mut bytes = vec![0; file.len()? as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

fn place(disk: &MemDisk, samples: &[Sample], files: &[Option<Vec<u8>>]) -> std::io::Result<()> {
    disk.create_dir(Path::new(STORE))?;
    for dir in ["log", "index", "warm"] {
        disk.create_dir(&Path::new(STORE).join(dir))?;
    }
    for (sample, file) in samples.iter().zip(files) {
        if let Some(bytes) = file {
            write_file(disk, &sample.path, bytes)?;
        }
    }
    Ok(())
}

fn options(disk: &MemDisk) -> Options {
    let clock = ManualClock::new(1_780_000_000_000_000);
    Options::new()
        .memory_bytes(MIN_MEMORY_BYTES)
        .segment_bytes(64 << 10)
        .background(false)
        .world(Arc::new(disk.clone()), Arc::new(clock))
}

/// The files of the sample store, created once.
fn samples() -> &'static [Sample] {
    static SAMPLES: OnceLock<Vec<Sample>> = OnceLock::new();
    SAMPLES.get_or_init(|| {
        make_samples().expect("a store on a disk in memory is made without an error")
    })
}

fn key(number: u32) -> Vec<u8> {
    let mut key = format!("key {:05}", number * 7919 % 100_003).into_bytes();
    key.resize(key.len() + number as usize % 5, b'x');
    key
}

fn commit(
    db: &Db,
    keyspace: &Keyspace,
    numbers: impl Iterator<Item = u32>,
    bytes: usize,
) -> Result<Glsn> {
    let mut tx = db.begin();
    for number in numbers {
        match number % 17 {
            16 => tx.delete(keyspace, &key(number))?,
            _ => {
                tx.put(keyspace, &key(number), &vec![number as u8; bytes + number as usize % 40])?
            }
        }
    }
    tx.set_metadata(b"who, and why")?;
    tx.commit()
}

fn make_samples() -> Result<Vec<Sample>> {
    let disk = MemDisk::new();
    let db = Db::open(STORE, options(&disk))?;
    let forever = db.keyspace("default")?;
    let latest = db.create_keyspace("latest", Retention::Latest)?;
    for round in 0..4 {
        commit(&db, &forever, 0..400, 20)?;
        commit(&db, &latest, (round * 10..200).step_by(2), 60)?;
        commit(&db, &forever, round..round + 12, 2000)?;
        db.log().append(3, &[b"an entry of a stream", b"and one more"])?;
        if round % 2 == 0 { db.flush()? } else { db.compact()? }
    }
    // A value in a blob file, and a transaction larger than its share of memory.
    let mut tx = db.begin();
    tx.put_reader(&forever, b"large", &mut std::io::repeat(7).take(280 << 10))?;
    tx.commit()?;
    commit(&db, &forever, 1000..3400, 900)?;
    commit(&db, &forever, 300..420, 30)?;
    db.set_compression(&latest, Compression::Lz4)?;
    commit(&db, &latest, 0..200, 90)?;
    db.flush()?;
    // Values that are read repeatedly are in the warm image.
    for _ in 0..3 {
        db.drop_caches();
        for _ in 0..2 {
            (0..3400)
                .step_by(3)
                .try_for_each(|number| db.snapshot().get(&forever, &key(number)).map(drop))?;
        }
    }
    commit(&db, &forever, 300..420, 30)?;
    let log_id = db.id();
    db.close()?;
    let mut samples = Vec::new();
    for dir in ["log", "index", "warm"] {
        let dir = Path::new(STORE).join(dir);
        let mut names = disk.names(&dir)?;
        names.sort();
        for name in names.into_iter().filter(|name| name != "LOCK") {
            let path = dir.join(&name);
            let bytes = read_file(&disk, &path)?;
            samples.push(Sample { kind: kind_of(&name, &bytes, log_id), path, bytes });
        }
    }
    Ok(samples)
}

fn kind_of(name: &str, bytes: &[u8], log_id: u128) -> FileKind {
    let payload = |page: usize, len: usize| {
        let start = page * PAGE_BYTES + PAGE_HEADER_BYTES;
        bytes.get(start..start + len).unwrap_or_default()
    };
    let pages = bytes.len() / PAGE_BYTES;
    if let Some(number) = manifest_number(name) {
        return FileKind::Manifest(number);
    }
    if let Some(id) = run_id_of(name) {
        let seed = run_seed(log_id, id);
        let are_blocks = |(place, bytes): &(usize, &[u8])| check_blocks(bytes, seed, *place as u32);
        let packed = bytes.chunks(PAGE_BYTES).enumerate().take_while(are_blocks).count();
        return FileKind::Run { seed, packed };
    }
    if let Some(stem) = name.strip_suffix(".warm") {
        let kind = if stem.starts_with("pages") { Kind::Pages } else { Kind::Rows };
        let number = stem.rsplit('-').next().and_then(|digits| digits.parse().ok()).unwrap_or(0);
        return FileKind::Warm(kind, number);
    }
    let blob =
        pages.checked_sub(1).map(|last| BlobTrailer::decode(payload(last, BLOB_TRAILER_BYTES)));
    match (SegmentHeader::decode(bytes), TableHeader::decode(payload(0, TABLE_HEADER_BYTES)), blob)
    {
        (Ok(header), ..) => FileKind::Segment(header, fragments_of(bytes, &header)),
        (_, Ok(header), _) => FileKind::Table(header),
        (.., Some(Ok(trailer))) => FileKind::Blob(trailer),
        _ => FileKind::Other,
    }
}

fn fragments_of(bytes: &[u8], header: &SegmentHeader) -> Vec<Placed> {
    let seed = segment_seed(header.log_id, header.first);
    let mut found = Vec::new();
    for (number, block) in bytes.chunks(BLOCK_BYTES).enumerate() {
        let mut at = if number == 0 { SEGMENT_HEADER_BYTES } else { 0 };
        while let Found::Fragment(fragment) =
            fragment_at(block, at, (number * BLOCK_BYTES) as u32, seed)
        {
            let (start, len) = (number * BLOCK_BYTES + at, fragment.whole_bytes());
            found.push((start, start + len, fragment.part));
            at += len;
        }
    }
    found
}

/// Recovers the store and calls every read operation on the new one; then opens the old one and
/// does the same.
fn ask(disk: &MemDisk) {
    if Db::recover(STORE, RECOVERED, options(disk), &mut |_, _| {}).is_ok() {
        let db = Db::open(RECOVERED, options(disk)).expect("a recovered store opens");
        read_all(&db);
    }
    if let Ok(db) = Db::open(STORE, options(disk).read_only(true)) {
        read_all(&db);
    }
    if let Ok(db) = Db::open(STORE, options(disk)) {
        use_all(&db);
        let _ = db.close();
    }
}

/// Counts the items of a scan up to its end or its first error.
fn walk<T>(what: &str, rows: impl Iterator<Item = Result<T>>) {
    let count = rows.take_while(std::result::Result::is_ok).take(ROWS_MAX).count();
    assert!(count < ROWS_MAX, "{what} does not terminate");
}

fn read_all(db: &Db) {
    for info in db.keyspaces().iter().take(8) {
        let Ok(keyspace) = db.keyspace(&info.name) else { continue };
        read_keyspace(db, &db.snapshot(), &keyspace);
        for number in (0..420).step_by(60) {
            let _ = db.history(&keyspace, &key(number)).map(|history| walk("history", history));
        }
        for (a, b) in [(Glsn::NONE, db.newest()), (db.newest(), Glsn(db.newest().0 / 2))] {
            let _ = db.diff(&keyspace, a, b, b"").map(|diff| walk("diff", diff));
        }
    }
    let log = db.log();
    if let Ok(mut scan) = log.scan(.., None) {
        let mut entries = 0;
        while let Some(Ok(_)) = scan.next() {
            entries += 1;
            assert!(entries < ROWS_MAX, "the scan of the log does not terminate");
        }
    }
    if let Ok(mut scan) = log.scan(log.bounds().first.., Some(3)) {
        while let Some(Ok(_)) = scan.next() {}
    }
    for glsn in (log.bounds().first.0..log.bounds().next.0).take(64).map(Glsn) {
        let _ = log.read(glsn);
        if let Ok(Some(commit)) = log.commit(glsn) {
            let _ = commit.metadata();
            for change in commit.changes().into_iter().flatten().take(ROWS_MAX) {
                let _ = change.and_then(|change| change.value());
            }
        }
    }
    let _ = db.verify(&mut |_| {});
    let _ = db.stats();
}

fn read_keyspace(db: &Db, snapshot: &Snapshot, keyspace: &Keyspace) {
    let _ = snapshot.range(keyspace, ..).map(|range| walk("a forward scan", range));
    let _ = snapshot.range(keyspace, ..).map(|range| walk("a reverse scan", range.reverse()));
    let _ =
        snapshot.prefix(keyspace, b"key 01").map(|range| walk("a prefix scan", range.keys_only()));
    for number in (0..420).step_by(23).chain((1000..3400).step_by(311)) {
        let _ = snapshot.get(keyspace, &key(number));
    }
    if let Ok(Some(mut reader)) = snapshot.get_reader(keyspace, b"large") {
        let mut piece = [0; 4096];
        // Bounds the reads if the length is far too large.
        for _ in 0..1000 {
            if !matches!(reader.read(&mut piece), Ok(n) if n > 0) {
                break;
            }
        }
    }
    if let Ok(then) = db.snapshot_at(Moment::Glsn(Glsn(db.newest().0 / 2))) {
        let _ = then.range(keyspace, ..).map(|range| walk("a scan in the past", range));
    }
}

fn use_all(db: &Db) {
    for _ in 0..64 {
        // This includes the restore of the warm image.
        if !matches!(db.step(), Ok(true)) {
            break;
        }
    }
    read_all(db);
    if let Ok(keyspace) = db.keyspace("default") {
        let _ = commit(db, &keyspace, 0..30, 100);
        let mut tx = db.begin();
        let _ =
            tx.range(&keyspace, ..).map(|range| walk("a scan in a transaction", range.take(50)));
        let _ = tx.put(&keyspace, b"after", b"the damage");
        let _ = tx.commit();
    }
    let _ = db.flush();
    let _ = db.compact();
    let _ = db.log().trim(db.newest());
    let _ = db.backup("/backup");
    let _ = db.log().follow(Glsn::NONE, None).map(|mut follow| follow.next());
    if let Ok(commits) = db.log().commits(db.log().bounds().first) {
        let _ = commits.take(ROWS_MAX).count();
    }
    read_all(db);
}

#[cfg(test)]
mod tests {
    use plimsoll_disk::random::Random;

    use super::*;

    #[test]
    fn the_sample_has_some_of_everything_and_mending_it_changes_nothing() {
        let samples = samples();
        let has =
            |is: fn(&FileKind) -> bool| assert!(samples.iter().any(|sample| is(&sample.kind)));
        has(|kind| matches!(kind, FileKind::Run { packed: 0, .. }));
        has(|kind| matches!(kind, FileKind::Run { packed: 1.., .. }));
        has(|kind| matches!(kind, FileKind::Blob(_)));
        has(|kind| matches!(kind, FileKind::Table(_)));
        has(|kind| matches!(kind, FileKind::Segment(..)));
        has(|kind| matches!(kind, FileKind::Manifest(_)));
        has(|kind| matches!(kind, FileKind::Warm(..)));
        assert!(!samples.iter().any(|sample| matches!(sample.kind, FileKind::Other)));
        let mut files: Vec<_> = samples.iter().map(|sample| Some(sample.bytes.clone())).collect();
        mend(samples, &mut files, &vec![false; samples.len()]);
        for (sample, file) in samples.iter().zip(&files) {
            assert_eq!(file.as_deref(), Some(&sample.bytes[..]), "{}", sample.path.display());
        }
    }

    #[test]
    fn a_record_that_was_changed_and_mended_is_served_as_it_stands() {
        let samples = samples();
        let number =
            samples.iter().position(|sample| matches!(sample.kind, FileKind::Segment(..))).unwrap();
        let mut files: Vec<_> = samples.iter().map(|sample| Some(sample.bytes.clone())).collect();
        let bytes = files[number].as_mut().unwrap();
        let at = bytes.windows(12).position(|window| window == b"who, and why").unwrap();
        bytes[at] = b'W';
        mend(samples, &mut files, &vec![false; samples.len()]);
        let disk = MemDisk::new();
        place(&disk, samples, &files).unwrap();
        let db = Db::open(STORE, options(&disk)).unwrap();
        assert_eq!(db.verify(&mut |_| {}).unwrap().problems, Vec::<String>::new());
        let log = db.log();
        let mut commits =
            (1..log.bounds().next.0).filter_map(|glsn| log.commit(Glsn(glsn)).unwrap());
        assert!(commits.any(|commit| commit.metadata().unwrap() == b"Who, and why"));
    }

    /// A scan that failed after such a key must not restart at that key for ever.
    #[test]
    fn a_scan_over_an_out_of_order_key_ends() {
        store(&[0x9b, 0xea, 0xe1, 0xfa, 0x3c, 0x30, 0xc3, 0xa6, 0xe1, 0x3c]);
    }

    /// The manifest names a durable end of the log far beyond what any log has.
    #[test]
    fn a_gap_of_countless_entries_is_refused() {
        store(&[0xca, 0x2b, 0x70, 0xac, 0x72, 0x18, 0x79, 0x70, 0xac, 0x79]);
    }

    #[test]
    fn every_call_on_a_changed_store_ends() {
        let mut random = Random::new(20_261_122);
        for _ in 0..60 {
            let changes = random.below(3) as usize + 1;
            let bytes: Vec<u8> =
                (0..changes * CHANGE_BYTES).map(|_| random.next_u64() as u8).collect();
            store(&bytes);
        }
    }
}
