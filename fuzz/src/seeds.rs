//! Creates the seed corpora from the bytes of real stores: `seeds FOLDER`.
//!
//! It has the frame of a fuzz target, so that it is built with the others, and exits before the
//! fuzzer would start.
#![no_main]
#![allow(clippy::disallowed_methods, reason = "a tool that writes its own files")]

use std::fs;
use std::path::Path;

use plimsoll_disk::random::Random;
use plimsoll_disk::vfs::{Caching, Disk, Open};
use plimsoll_fuzz::fragments_of;
use plimsoll_sim::case::{Case, Mode};
use plimsoll_sim::driver::{CheckOptions, run};
use plimsoll_sim::world::World;

const STORES: u64 = 12;
const PAGE_BYTES: usize = plimsoll_memory::page::PAGE_BYTES;
const PAGE_HEADER_BYTES: usize = plimsoll_memory::page::PAGE_HEADER_BYTES;
const MANIFEST_HEAD_BYTES: usize = 56;
const SUM_BYTES: usize = 8;

libfuzzer_sys::fuzz_target!(init: make_all_and_end(), |_bytes: &[u8]| {});

fn make_all_and_end() {
    let made = make_all();
    if let Err(error) = &made {
        eprintln!("{error}");
    }
    std::process::exit(i32::from(made.is_err()));
}

fn make_all() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: seeds FOLDER")?;
    let folder = Path::new(&folder);
    for seed in 0..STORES {
        let case = Case { ops: 120, ..Case::new(Mode::Model, seed) };
        let driver = run(case.world(), CheckOptions::default(), &case.workload())
            .map_err(|failure| failure.to_string())?;
        store(folder, seed, driver.world())?;
        let mut random = Random::new(seed);
        let bytes: Vec<u8> = (0..3 * 80).map(|_| random.next_u64() as u8).collect();
        seed_file(folder, "engine_ops", &format!("{seed}"), &bytes)?;
        // A few changes each.
        let changes = seed as usize % 3 + 1;
        seed_file(
            folder,
            "store",
            &format!("{seed}"),
            &bytes[..changes * plimsoll::fuzz::store::CHANGE_BYTES],
        )?;
    }
    Ok(())
}

fn store(folder: &Path, seed: u64, world: &World) -> Result<(), Box<dyn std::error::Error>> {
    for (path, len) in world.files(&world.store_path())? {
        let mut bytes = vec![0; len as usize];
        world.disk.open(&path, Open::Read, Caching::Buffered)?.read_exact_at(&mut bytes, 0)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let file = format!("{seed}-{name}");
        if name.starts_with("MANIFEST.") {
            seed_file(
                folder,
                "manifest",
                &file,
                &bytes[MANIFEST_HEAD_BYTES..bytes.len() - SUM_BYTES],
            )?;
        } else if name.ends_with(".seg") {
            seed_file(folder, "log_record", &file, &fragments_of(&bytes))?;
        } else if name.ends_with(".run") {
            for (number, page) in bytes.chunks(PAGE_BYTES).enumerate() {
                // A packed run has blocks there, not pages.
                let bytes = u32::from_le_bytes(page[12..PAGE_HEADER_BYTES].try_into()?) as usize;
                if bytes > PAGE_BYTES - PAGE_HEADER_BYTES {
                    continue;
                }
                seed_file(
                    folder,
                    "run_page",
                    &format!("{file}-{number}"),
                    plimsoll_memory::page::page_payload(page),
                )?;
            }
        }
    }
    payloads(folder, seed, world)
}

fn payloads(folder: &Path, seed: u64, world: &World) -> Result<(), Box<dyn std::error::Error>> {
    let db = world.open()?;
    let mut scan = db.log().scan(.., Some(0))?;
    while let Some(entry) = scan.next() {
        let entry = entry?;
        seed_file(folder, "payload", &format!("{seed}-{}", entry.glsn), entry.payload)?;
    }
    Ok(())
}

fn seed_file(folder: &Path, target: &str, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let folder = folder.join(target);
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(name), bytes)
}
