//! `plimsoll warm`: the image of what was hot, shown or deleted.

use plimsoll::WarmImage;

use crate::args::{Globals, Warm};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Fact, Output};
use crate::store;

pub(crate) fn run(globals: &Globals, args: &Warm, output: &mut Output) -> Outcome {
    let options = store::options(globals);
    if !args.store.join("log").is_dir() {
        let message = format!("{}: there is no store here; check the path", args.store.display());
        return Err(Failure::Said { exit: Exit::Store, message });
    }
    if args.delete {
        let bytes = plimsoll::delete_warm_image(&args.store, &options)?;
        output.facts(&[Fact::bytes("bytes deleted", bytes)])?;
    } else {
        output.facts(&facts(&plimsoll::warm_image(&args.store, &options)?))?;
    }
    Ok(Exit::Done)
}

/// What an image says of itself.
pub(crate) fn facts(image: &WarmImage) -> Vec<Fact> {
    let glsn = |name: &str, glsn: u64| Fact::new(name, glsn.to_string(), glsn);
    let mut facts = vec![
        Fact::count("segments", image.segments),
        Fact::bytes("bytes", image.bytes),
        Fact::count("pages named", image.pages),
        Fact::count("objects", image.objects),
        Fact::bytes("bytes of objects", image.object_bytes),
        glsn("oldest GLSN", image.oldest_glsn),
        glsn("newest GLSN", image.newest_glsn),
    ];
    facts.extend(image.problem.as_ref().map(|problem| Fact::new("problem", problem.clone(), problem.clone())));
    facts
}
