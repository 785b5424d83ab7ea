//! The configuration that a stream needs so that it keeps its messages.

use serde_json::{Value, json};

/// The settings that a stream needs: name, value, and the server's default.
pub(super) fn required() -> [(&'static str, Value, Value); 17] {
    let (no, none) = (json!(false), json!(-1));
    [
        ("retention", json!("limits"), json!("limits")),
        ("storage", json!("file"), json!("file")),
        ("discard", json!("new"), json!("old")),
        ("max_consumers", none.clone(), none.clone()),
        ("max_msgs", none.clone(), none.clone()),
        ("max_bytes", none.clone(), none.clone()),
        ("max_msgs_per_subject", none.clone(), none.clone()),
        ("max_msg_size", none.clone(), none),
        ("max_age", json!(0), json!(0)),
        ("no_ack", no.clone(), no.clone()),
        ("sealed", no.clone(), no.clone()),
        ("deny_delete", no.clone(), no.clone()),
        ("deny_purge", no.clone(), no.clone()),
        ("allow_rollup_hdrs", json!(true), no),
        // It would store objects under other names.
        ("subject_transform", Value::Null, Value::Null),
        ("mirror", Value::Null, Value::Null),
        ("sources", Value::Null, Value::Null),
    ]
}

pub(super) fn subjects(stream: &str) -> Value {
    json!(["o.>", "p.>", "b"].map(|kind| format!("plimsoll.{stream}.{kind}")))
}

/// The first setting of a stream that loses objects; it must have at least `replicas`.
pub(super) fn unfit_config(config: &Value, name: &str, replicas_min: u64) -> Option<String> {
    let refuse = |setting: &str, found: &Value, needed: &str| {
        Some(format!(
            "the stream {name} has {setting} {found}; it must be {needed}: let Plimsoll create a \
             stream under another name, or change this one with `nats stream edit {name}`"
        ))
    };
    for (setting, needed, default) in required() {
        let found = config.get(setting).unwrap_or(&default);
        if *found != needed {
            return refuse(setting, found, &needed.to_string());
        }
    }
    let found = config.get("subjects").unwrap_or(&Value::Null);
    let sorted = |value: &Value| {
        let mut all: Vec<String> =
            value.as_array().into_iter().flatten().map(Value::to_string).collect();
        all.sort_unstable();
        all
    };
    let needed = subjects(name);
    if sorted(found) != sorted(&needed) {
        return refuse("subjects", found, &needed.to_string());
    }
    // Asynchronous storage acknowledges before it writes.
    if let Some(mode) = config.get("persist_mode").filter(|mode| **mode != json!("default")) {
        return refuse("persist_mode", mode, "\"default\"");
    }
    let replicas = config.get("num_replicas").and_then(Value::as_u64).unwrap_or(1);
    if replicas < replicas_min {
        let needed = format!("at least {replicas_min} (or add ?replicas={replicas} to the URL)");
        return refuse("num_replicas", &json!(replicas), &needed);
    }
    None
}
