//! `plimsoll cluster`: creates, joins, shows and leaves clusters, whose commits a bucket orders.

use plimsoll::Options;
use plimsoll_replica::{Leave, Status};

use crate::args::{
    Cluster, ClusterCreate, ClusterJoin, ClusterLeave, ClusterStatus as StatusArgs, Globals,
};
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Fact, Output};
use crate::store;
use crate::time::{of_system, show_time};

pub(crate) fn run(globals: &Globals, command: &Cluster, output: &mut Output) -> Outcome {
    let options = store::options(globals);
    match command {
        Cluster::Create(args) => create(args, options, output),
        Cluster::Join(args) => join(args, options, output),
        Cluster::Status(args) => status(args, options, output),
        Cluster::Leave(args) => leave(args, options, output),
    }
}

fn id_fact(id: u128) -> Fact {
    let id = format!("{id:032x}");
    Fact::new("cluster id", id.clone(), id)
}

fn create(args: &ClusterCreate, options: Options, output: &mut Output) -> Outcome {
    let report = plimsoll_replica::create(&args.url, &args.from, options)?;
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

fn join(args: &ClusterJoin, options: Options, output: &mut Output) -> Outcome {
    let report = plimsoll_replica::join(&args.url, &args.store, options)?;
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

fn status(args: &StatusArgs, options: Options, output: &mut Output) -> Outcome {
    let Status { url, id, cluster, member, .. } = plimsoll_replica::status(&args.target, options)?;
    let mut facts = vec![Fact::new("bucket", url.clone(), url), id_fact(id)];
    let mut failure = None;
    match cluster {
        Ok(cluster) => {
            let created = show_time(of_system(cluster.created));
            facts.push(Fact::new("created", created.clone(), created));
            facts.push(Fact::new("base GLSN", cluster.base.to_string(), cluster.base.0));
            facts.push(Fact::count("batches", cluster.batches));
        }
        Err(error) => failure = Some(Failure::from(error)),
    }
    if let Some(member) = member {
        let newest = member.newest;
        facts.push(Fact::new("newest GLSN here", newest.to_string(), newest.0));
    }
    output.facts(&facts)?;
    failure.map_or(Ok(Exit::Done), Err)
}

fn leave(args: &ClusterLeave, options: Options, output: &mut Output) -> Outcome {
    let how = if args.offline { Leave::AsItIs } else { Leave::CaughtUp };
    let report = plimsoll_replica::leave(&args.store, how, options)?;
    output.report("The store is no longer a member.", |output| {
        output.facts(&[Fact::new("newest GLSN", report.newest.to_string(), report.newest.0)])
    })?;
    Ok(Exit::Done)
}
