//! The commands of a cluster over three servers of NATS JetStream.

use crate::nats_servers::Servers;
use crate::run::{Folder, run};

#[test]
#[ignore = "needs the server of NATS; .ci/run runs it"]
fn a_cluster_in_nats_is_used_as_any_other() {
    let (folder, mut servers) = (Folder::new(), Servers::start());
    let (url, [one, two]) = (servers.url("users"), ["one", "two"].map(|name| folder.at(name)));
    run(&["put", &one, "first", "1"]).ok();
    let bare = servers.bare_url("users");
    run(&["cluster", "create", &bare, "--from", &one]).fails(6, &["?monitor=", "sync_interval"]);
    let secret = bare.replace("nats://", "nats://me:secret@");
    let refused = run(&["cluster", "create", &secret, "--from", &one]);
    refused.fails(2, &["NATS_CREDS"]);
    run(&["cluster", "create", &url, "--from", &one]).ok();
    run(&["cluster", "join", &url, &two]).ok();
    run(&["put", &two, "second", "2"]).ok();
    assert_eq!(run(&["get", &one, "second"]).ok().out, b"2");
    let leader = servers.leader("users").unwrap();
    servers.kill(leader);
    run(&["put", &one, "third", "3"]).ok();
    servers.restart(leader);
    servers.wait_until_healthy();
    assert_eq!(run(&["get", &two, "third"]).ok().out, b"3");
    let status = run(&["cluster", "status", &two, "--json"]).ok().json();
    assert_eq!(status["bucket"], url);
    run(&["cluster", "trim", &one, "--keep", "1"]).ok();
    run(&["cluster", "join", &url, &folder.at("three")]).ok();
    let hash = |store: &str| run(&["state-hash", store]).ok().text();
    assert_eq!(hash(&folder.at("three")), hash(&one));
    // To a folder, and back into another stream.
    for bucket in [folder.at("bucket"), servers.url("others")] {
        run(&["cluster", "move", &one, &bucket]).ok();
        run(&["put", &two, "moved", &bucket]).ok();
        assert_eq!(run(&["get", &one, "moved"]).ok().text().trim(), bucket);
        let status = run(&["cluster", "status", &two, "--json"]).ok().json();
        assert_eq!(status["bucket"], bucket);
    }
}
