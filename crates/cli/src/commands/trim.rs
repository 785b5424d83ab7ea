//! `plimsoll trim`: deletes the oldest part of the log.

use plimsoll::{Db, Durability, Glsn};

use crate::args::{Globals, Trim};
use crate::disk_use::{self, bytes_on_disk};
use crate::exit::{Exit, Outcome};
use crate::moment::At;
use crate::output::{Fact, Output};
use crate::stderr::say;
use crate::{moment, store};

pub(crate) fn run(globals: &Globals, args: &Trim, output: &mut Output) -> Outcome {
    let bytes_before = bytes_on_disk(&args.store);
    let db = store::open_to_write(globals, &args.store, false, Durability::Sync)?;
    let until = match &args.until {
        // The whole log.
        At::Newest => db.newest().next(),
        until => Glsn(moment::glsn(&db, until, "default")?),
    };
    let first_before = db.log().bounds().first;
    let first = db.log().trim(until)?;
    let explain_nothing_freed =
        (first == first_before).then(|| explain_nothing_freed(&db, first, until));
    store::close_after_commits(db);
    let mut facts = vec![Fact::new("first GLSN", first.to_string(), first.0)];
    facts.extend(disk_use::freed(bytes_before, bytes_on_disk(&args.store)));
    output.report(&format!("The log begins at GLSN {first}."), |output| output.facts(&facts))?;
    if let Some(why) = explain_nothing_freed {
        say(format_args!("nothing was freed: {why}"));
    }
    Ok(Exit::Done)
}

/// Explains why a trim freed nothing.
fn explain_nothing_freed(db: &Db, first: Glsn, until: Glsn) -> String {
    if until <= first {
        return format!("the log has no entry before GLSN {until}");
    }
    let cursors = db.log().cursors().into_iter().filter(|cursor| cursor.next < until);
    if let Some(cursor) = cursors.min_by_key(|cursor| cursor.next) {
        return format!("cursor `{}` is at GLSN {}", cursor.name, cursor.next);
    }
    let others = db
        .members()
        .unwrap_or_default()
        .into_iter()
        .filter(|member| member.pid != std::process::id());
    if let Some(other) =
        others.filter(|member| member.floor < until).min_by_key(|member| member.floor)
    {
        return format!("process {} reads from GLSN {} on", other.pid, other.floor);
    }
    if until > db.newest() {
        return "there was no room for the next segment of the log, or another process has \
                committed meanwhile; try again"
            .to_owned();
    }
    format!(
        "only whole segments can be freed, and the oldest one also holds entries from GLSN \
         {until} on"
    )
}
