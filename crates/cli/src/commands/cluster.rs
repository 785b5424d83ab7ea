//! `plimsoll cluster`: creates, joins, shows, trims, moves, heals and leaves clusters.

use plimsoll::{Error, Options};
use plimsoll_replica::{Heal, Leave, Status};

use crate::args::{
    Cluster, ClusterCreate, ClusterHeal, ClusterJoin, ClusterLeave, ClusterMove,
    ClusterStatus as StatusArgs, ClusterTrim, Globals,
};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Fact, Output};
use crate::store;
use crate::time::{of_system, show_time};
use crate::wait;

pub(crate) fn run(globals: &Globals, command: &Cluster, output: &mut Output) -> Outcome {
    match command {
        Cluster::Create(args) => create(globals, args, output),
        Cluster::Join(args) => join(globals, args, output),
        Cluster::Status(args) => status(globals, args, output),
        Cluster::Trim(args) => trim(globals, args, output),
        Cluster::Move(args) => move_to(globals, args, output),
        Cluster::Heal(args) => heal(globals, args, output),
        Cluster::Leave(args) => leave(globals, args, output),
    }
}

/// Calls `call`, which needs exclusive use of the store, until it has that or `--wait` is over.
fn alone<T>(
    globals: &Globals,
    mut call: impl FnMut(Options) -> plimsoll_replica::Result<T>,
) -> Result<T, Failure> {
    let done = wait::for_lock(globals, || match call(store::options(globals)) {
        Err(plimsoll_replica::Error::Store(error @ Error::Locked { .. })) => Err(error),
        done => Ok(done),
    });
    Ok(done??)
}

fn id_fact(id: u128) -> Fact {
    let id = format!("{id:032x}");
    Fact::new("cluster id", id.clone(), id)
}

fn create(globals: &Globals, args: &ClusterCreate, output: &mut Output) -> Outcome {
    let create = |options| plimsoll_replica::create(&args.url, &args.from, options);
    let report = alone(globals, create)?;
    output.report("The cluster is created.", |output| {
        output.facts(&[
            Fact::new("bucket", report.url.clone(), report.url),
            id_fact(report.id),
            Fact::new("base GLSN", report.base.to_string(), report.base.0),
            Fact::count("objects sent", report.objects),
            Fact::bytes("bytes sent", report.bytes),
        ])
    })?;
    Ok(Exit::Done)
}

fn join(globals: &Globals, args: &ClusterJoin, output: &mut Output) -> Outcome {
    let join = |options| plimsoll_replica::join(&args.url, &args.store, options);
    let report = alone(globals, join)?;
    output.report("The store is a member of the cluster.", |output| {
        output.facts(&[
            Fact::new("bucket", report.url.clone(), report.url),
            id_fact(report.id),
            Fact::new("base GLSN", report.base.to_string(), report.base.0),
            Fact::new("newest GLSN", report.newest.to_string(), report.newest.0),
            Fact::bytes("bytes restored", report.bytes),
        ])
    })?;
    Ok(Exit::Done)
}

fn status(globals: &Globals, args: &StatusArgs, output: &mut Output) -> Outcome {
    let options = store::options(globals);
    let Status { url, moved_to, id, cluster, member, .. } =
        plimsoll_replica::status(&args.target, options)?;
    let mut facts = vec![Fact::new("bucket", url.clone(), url)];
    facts.extend(moved_to.map(|url| Fact::new("moved to", url.clone(), url)));
    facts.push(id_fact(id));
    let (mut failure, mut last) = (None, None);
    match cluster {
        Ok(cluster) => {
            let created = show_time(of_system(cluster.created));
            facts.push(Fact::new("created", created.clone(), created));
            facts.push(Fact::new("base GLSN", cluster.base.to_string(), cluster.base.0));
            facts.push(Fact::count("batches", cluster.batches));
            let first = (cluster.last + 1).saturating_sub(cluster.batches);
            facts.push(Fact::new("first position", first.to_string(), first));
            facts.push(Fact::new("last position", cluster.last.to_string(), cluster.last));
            last = Some(cluster.last);
            if let Some(base) = cluster.newest_base {
                let stored = show_time(of_system(base.created));
                facts.extend([
                    Fact::new("newest base", base.number.to_string(), base.number),
                    Fact::new("newest base GLSN", base.glsn.to_string(), base.glsn.0),
                    Fact::new("newest base stored", stored.clone(), stored),
                    Fact::bytes("newest base bytes", base.bytes),
                    Fact::new("newest base by member", base.member.to_string(), base.member),
                ]);
            }
        }
        Err(error) => failure = Some(Failure::from(error)),
    }
    if let Some(member) = member {
        let newest = member.newest;
        facts.push(Fact::new("newest GLSN here", newest.to_string(), newest.0));
        facts.push(Fact::new("member number", member.number.to_string(), member.number));
        let position = member.position;
        facts.push(Fact::new("position here", position.to_string(), position));
        if let Some(last) = last {
            facts.push(Fact::count("batches behind", last.saturating_sub(position)));
        }
    }
    output.facts(&facts)?;
    failure.map_or(Ok(Exit::Done), Err)
}

fn trim(globals: &Globals, args: &ClusterTrim, output: &mut Output) -> Outcome {
    let trim = |options| {
        let db = plimsoll_replica::open_member(&args.store, options)?;
        let report = plimsoll_replica::trim(&db, args.keep)?;
        db.close()?;
        Ok(report)
    };
    let report = alone(globals, trim)?;
    let done = match report.base {
        Some(_) => "The log begins with a new base.",
        None => "The log is short enough; no base was made.",
    };
    output.report(done, |output| {
        output.facts(&[
            Fact::new("base GLSN", report.base_glsn.to_string(), report.base_glsn.0),
            Fact::new("first position", report.first.to_string(), report.first),
            Fact::new("last position", report.last.to_string(), report.last),
            Fact::count("batches removed", report.removed),
            Fact::bytes("bytes sent", report.bytes_sent),
            Fact::bytes("bytes verified", report.bytes_verified),
        ])
    })?;
    Ok(Exit::Done)
}

fn move_to(globals: &Globals, args: &ClusterMove, output: &mut Output) -> Outcome {
    let moved = |options| {
        let db = plimsoll_replica::open_member(&args.store, options)?;
        let report = plimsoll_replica::move_cluster(&db, &args.url)?;
        db.close()?;
        Ok(report)
    };
    let report = alone(globals, moved)?;
    output.report("The cluster is moved.", |output| {
        output.facts(&[
            Fact::new("bucket", report.url.clone(), report.url),
            Fact::new("old bucket", report.from.clone(), report.from),
            Fact::new("base GLSN", report.base_glsn.to_string(), report.base_glsn.0),
            Fact::new("last position", report.last.to_string(), report.last),
            Fact::count("batches copied", report.copied),
            Fact::bytes("bytes sent", report.bytes_sent),
            Fact::bytes("bytes verified", report.bytes_verified),
        ])
    })?;
    Ok(Exit::Done)
}

fn heal(globals: &Globals, args: &ClusterHeal, output: &mut Output) -> Outcome {
    let how = Heal { url: args.bucket.clone(), accept_loss: args.accept_loss };
    let report = alone(globals, |options| plimsoll_replica::heal(&args.members, &how, options))?;
    let done = match (report.base, report.problems.is_empty()) {
        (Some(_), _) => "The cluster is healed.",
        (None, true) => "The bucket is whole; nothing was changed.",
        (None, false) => "The cluster is healed; its log was whole.",
    };
    output.report(done, |output| {
        let problems: Vec<String> = report.problems.iter().map(ToString::to_string).collect();
        let source = report.source.display().to_string();
        let mut facts = vec![Fact::new("outcome", done, done)];
        facts.push(Fact::new("problems", problems.join("; "), problems));
        facts.extend([
            Fact::new("bucket", report.url.clone(), report.url),
            Fact::new("source", source.clone(), source),
            Fact::new("newest GLSN", report.newest.to_string(), report.newest.0),
            Fact::new("first position", report.first.to_string(), report.first),
            Fact::count("batches removed", report.removed),
            Fact::bytes("bytes sent", report.bytes_sent),
            Fact::bytes("bytes verified", report.bytes_verified),
        ]);
        output.facts(&facts)
    })?;
    Ok(Exit::Done)
}

fn leave(globals: &Globals, args: &ClusterLeave, output: &mut Output) -> Outcome {
    let how = if args.offline { Leave::AsItIs } else { Leave::CaughtUp };
    let leave = |options| plimsoll_replica::leave(&args.store, how, options);
    let report = alone(globals, leave)?;
    output.report("The store is no longer a member.", |output| {
        output.facts(&[Fact::new("newest GLSN", report.newest.to_string(), report.newest.0)])
    })?;
    Ok(Exit::Done)
}
