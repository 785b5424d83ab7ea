//! Whether a stream keeps what is stored in it: the server's version, the stream's configuration,
//! and whether the servers sync each message.
//!
//! By default, servers sync every two minutes, and a power cut of a data center loses whatever a
//! majority has confirmed since. The setting `sync_interval: always` is visible only at the
//! monitoring port.

use std::io::{self, ErrorKind};
use std::time::Duration;

use serde_json::{Value, json};

use super::address::Address;
use super::settings::{required, subjects, unfit_config};
use super::stream::{Failure, Stream};

/// The oldest server that is known to keep the conditions on which a message is stored.
const VERSION_MIN: [u64; 2] = [2, 12];

/// The smallest limit for messages.
const PAYLOAD_MIN: usize = 64 << 10;

/// The longest time of a request to a monitoring port.
const MONITOR: Duration = Duration::from_secs(5);

/// The longest answer of a monitoring port.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// Creates the stream if it is missing and `creates` is set. Returns the reason if it may lose
/// objects.
pub(super) fn check(
    stream: &Stream,
    address: &Address,
    creates: bool,
) -> io::Result<Option<String>> {
    let server = stream.connection.client()?.server_info();
    if let Some(what) = unfit_version(&server.server_name, &server.version) {
        return Ok(Some(what));
    }
    if server.max_payload < PAYLOAD_MIN {
        return Ok(Some(format!(
            "server {}: max_payload is {} bytes; set it to at least {PAYLOAD_MIN}",
            server.server_name, server.max_payload
        )));
    }
    let failed = |failure: Failure| failure.into_io(&address.stream);
    let info = match stream.info("", 0) {
        Err(Failure::NoStream) if creates => {
            // Nothing is stored on servers that are not fit, not even an empty stream.
            if let Some(what) = unfit_servers(&Value::Null, address)? {
                return Ok(Some(what));
            }
            match create(stream, address) {
                // Another caller has created it, or the answer was lost.
                Ok(()) | Err(Failure::Unanswered(_)) => stream.info("", 0).map_err(failed)?,
                Err(Failure::Refused(error)) => {
                    return Ok(Some(format!(
                        "the stream {} with {} replicas cannot be created: {error}; a cluster \
                         needs {} servers with JetStream (for one server without replication, add \
                         ?replicas=1 to the URL)",
                        address.stream, address.replicas, address.replicas
                    )));
                }
                Err(failure) => return Err(failed(failure)),
            }
        }
        info => info.map_err(failed)?,
    };
    if let Some(what) = unfit_config(&info.config, &address.stream, address.replicas) {
        return Ok(Some(what));
    }
    unfit_servers(&info.cluster, address)
}

fn create(stream: &Stream, address: &Address) -> Result<(), Failure> {
    let mut config = json!({
        "name": address.stream,
        "subjects": subjects(&address.stream),
        "num_replicas": address.replicas,
    });
    for (name, value, _) in required() {
        if !value.is_null() {
            config[name] = value;
        }
    }
    stream.repeat(|| stream.api::<Value>("CREATE", &config)).map(drop)
}

fn unfit_version(server: &str, version: &str) -> Option<String> {
    let mut numbers = version.split(['.', '-']).map(|number| number.parse().unwrap_or(0));
    let version_of = [numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)];
    (version_of < VERSION_MIN).then(|| {
        format!(
            "server {server} has version {version}; use at least {}.{}, better 2.15",
            VERSION_MIN[0], VERSION_MIN[1]
        )
    })
}

/// The first server of the stream that does not sync each message, or cannot be asked.
fn unfit_servers(cluster: &Value, address: &Address) -> io::Result<Option<String>> {
    if address.assumes_sync {
        return Ok(None);
    }
    if address.monitors.is_empty() {
        return Ok(Some(
            "whether its servers sync each message cannot be seen; by default they do not, and a \
             power cut loses commits. Set `sync_interval: always` in the `jetstream` block of \
             every server, and add ?monitor=http://HOST:8222,http://HOST:8222,... to the URL, \
             which names the monitoring port (`http_port`) of every server; or add \
             ?unsafe_assume_sync=true to answer for it yourself"
                .to_owned(),
        ));
    }
    let mut seen = Vec::new();
    for monitor in &address.monitors {
        let server = ask(monitor).map_err(|error| {
            io::Error::new(error.kind(), format!("the monitoring port {monitor}: {error}"))
        })?;
        let text = |name: &str| server.get(name).and_then(Value::as_str).unwrap_or_default();
        let (name, version) = (text("server_name"), text("version"));
        if let Some(what) = unfit_version(name, version) {
            return Ok(Some(what));
        }
        if server.pointer("/jetstream/config/sync_always") != Some(&json!(true)) {
            return Ok(Some(format!(
                "server {name} ({monitor}) does not sync each message, so that a power cut loses \
                 commits; set `sync_interval: always` in its `jetstream` block, and restart it"
            )));
        }
        seen.push(name.to_owned());
    }
    let names = |value: &Value| value.get("name").and_then(Value::as_str).map(str::to_owned);
    let replicas = cluster.get("replicas").and_then(Value::as_array);
    let leader = cluster.get("leader").and_then(Value::as_str).map(str::to_owned);
    let mut peers = replicas.into_iter().flatten().filter_map(names).chain(leader);
    Ok(peers.find(|peer| !seen.contains(peer)).map(|peer| {
        format!(
            "server {peer} has a replica of the stream {}, and ?monitor=... does not name its \
             monitoring port; add it",
            address.stream
        )
    }))
}

/// The state of the server with a monitoring port.
fn ask(monitor: &str) -> io::Result<Value> {
    let agent = ureq::Agent::new_with_config(
        ureq::Agent::config_builder().timeout_global(Some(MONITOR)).build(),
    );
    let answer = agent.get(format!("{monitor}/varz")).call().map_err(|error| match error {
        ureq::Error::Io(error) => error,
        ureq::Error::Timeout(_) => ErrorKind::TimedOut.into(),
        error => io::Error::other(error.to_string()),
    });
    let mut body = answer?.into_body();
    let text =
        body.with_config().limit(ANSWER_BYTES_MAX).read_to_vec().map_err(io::Error::other)?;
    serde_json::from_slice(&text).map_err(io::Error::other)
}
