//! `plimsoll warm`: shows or deletes the warm image.

use std::io::ErrorKind;
use std::path::Path;

use plimsoll::{Db, WarmImage};

use crate::args::{Globals, Warm};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Fact, Output};
use crate::store;

const IS_A_FILE: &str = "this is a file, but a store is a folder; give another path";
const NO_STORE: &str = "there is no store here; check the path";

pub(crate) fn run(globals: &Globals, args: &Warm, output: &mut Output) -> Outcome {
    let options = store::options(globals);
    check_is_store(&args.store)?;
    if args.delete {
        let bytes = plimsoll::delete_warm_image(&args.store, &options)?;
        output.report("The image is deleted.", |output| {
            output.facts(&[Fact::bytes("bytes deleted", bytes)])
        })?;
    } else {
        output.facts(&facts(&plimsoll::warm_image(&args.store, &options)?))?;
    }
    Ok(Exit::Done)
}

/// Rejects a path without a store; an image is read without opening one.
fn check_is_store(path: &Path) -> Result<(), Failure> {
    let refused = |exit, what: &str| Err(Failure::new(exit, format!("{}: {what}", path.display())));
    match std::fs::metadata(path)
        .and_then(|found| Ok(found.is_dir() && std::fs::metadata(path.join("log"))?.is_dir()))
    {
        Ok(true) => Ok(()),
        Ok(false) if path.is_file() => refused(Exit::Store, IS_A_FILE),
        Ok(false) => refused(Exit::Store, NO_STORE),
        Err(error) if error.kind() == ErrorKind::NotFound => refused(Exit::Store, NO_STORE),
        Err(error) => refused(Exit::System, &error.to_string()),
    }
}

/// The contents of a store's image, and the reason if the store ignores it. A damaged image is not
/// an error of the store.
pub(crate) fn facts_of(globals: &Globals, store: &Path, db: &Db) -> Vec<Fact> {
    let mut image = match plimsoll::warm_image(store, &store::options(globals)) {
        Ok(image) => image,
        Err(error) => WarmImage { problem: Some(error.to_string()), ..WarmImage::default() },
    };
    if let Some(id) = image.store_id.filter(|id| *id != db.id()) {
        image.problem.get_or_insert_with(|| {
            format!("it belongs to another store, {id:032x}, and is ignored")
        });
    }
    facts(&image)
}

/// The contents of an image.
fn facts(image: &WarmImage) -> Vec<Fact> {
    let glsn = |name: &str, glsn: u64| Fact::new(name, glsn.to_string(), glsn);
    let mut facts = vec![
        Fact::count("segments", image.segments),
        Fact::bytes("bytes", image.bytes),
        Fact::count("pages named", image.pages),
        Fact::count("rows", image.rows),
        Fact::bytes("bytes of rows", image.row_bytes),
        glsn("oldest GLSN", image.oldest_glsn),
        glsn("newest GLSN", image.newest_glsn),
    ];
    facts.extend(
        image
            .problem
            .as_ref()
            .map(|problem| Fact::new("problem", problem.clone(), problem.clone())),
    );
    facts
}
