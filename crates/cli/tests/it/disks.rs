//! Full, limited and read-only disks.
//!
//! Full and read-only disks are real: small file systems in memory, each mounted in its own
//! namespace. Without the permission to mount (a container without privileges) these tests fail
//! with a message; only `PLIMSOLL_TEST_NO_MOUNT=1` skips them. Limits and permissions need no mount
//! and are tested everywhere.

use std::env;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use crate::repository::Repository;
use crate::run::{Folder, Ran, run};

/// Skips the tests that need a mount.
const NO_MOUNT: &str = "PLIMSOLL_TEST_NO_MOUNT";

/// Ways into a namespace that permits mounting: as root, or as any user where users may create
/// namespaces.
const NAMESPACES: [&[&str]; 2] = [&["--mount"], &["--user", "--map-root-user", "--mount"]];

/// A shell that can find the command.
fn shell(program: &str, arguments: &[&str], script: &str) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).arg(script);
    command.env("PLIMSOLL", env!("CARGO_BIN_EXE_plimsoll")).env("PLIMSOLL_MEMORY", "16MiB");
    command
}

/// Runs a script with a small file system at `$MOUNT`. `None` if mounting is not permitted and the
/// tests are skipped by request.
fn with_small_disk(script: &str) -> Option<Ran> {
    if env::var_os(NO_MOUNT).is_some() {
        return None;
    }
    let folder = Folder::new();
    let script = format!("mount -t tmpfs -o size=24m plimsoll \"$MOUNT\" || exit 99\n{script}");
    let mut refusals = String::new();
    for namespace in NAMESPACES {
        let arguments = [namespace, &["sh", "-c"]].concat();
        match shell("unshare", &arguments, &script)
            .env("MOUNT", folder.path())
            .output()
            .map(Ran::of)
        {
            Ok(ran) if ran.code != 99 && !ran.err.starts_with("unshare:") => return Some(ran),
            Ok(ran) => refusals += &ran.err,
            Err(error) => refusals += &format!("unshare: {error}\n"),
        }
    }
    panic!(
        "nobody may mount a small file system here, so full and read-only disks cannot be tested: \
         run the tests as root, or where users may make namespaces, or set {NO_MOUNT}=1 to do \
         without them\n{refusals}"
    );
}

#[test]
fn full_disk_fails_the_transaction_only() {
    let script = r#"
        set -e
        "$PLIMSOLL" put "$MOUNT/store" k v > /dev/null
        head -c 40000000 /dev/zero | "$PLIMSOLL" put "$MOUNT/store" large && exit 98 ||
            echo "put ended with $?"
        head -c 30000000 /dev/zero > "$MOUNT/filler" 2> /dev/null || true
        "$PLIMSOLL" get "$MOUNT/store" k && echo
        "$PLIMSOLL" get "$MOUNT/store" large || echo "get ended with $?"
        rm "$MOUNT/filler"
        "$PLIMSOLL" put "$MOUNT/store" k w
        "$PLIMSOLL" get "$MOUNT/store" k && echo
        "$PLIMSOLL" verify "$MOUNT/store" > /dev/null && echo sound
    "#;
    let Some(ran) = with_small_disk(script) else { return };
    let ran = ran.fails(0, &["No space left", "free some space"]);
    assert_eq!(ran.text(), "put ended with 6\nv\nget ended with 1\n2\nw\nsound\n", "{}", ran.err);
}

#[test]
fn full_disk_fails_backup_without_mentioning_a_transaction() {
    let script = r#"
        head -c 8000000 /dev/urandom | "$PLIMSOLL" put "$MOUNT/store" large > /dev/null
        head -c 30000000 /dev/zero > "$MOUNT/filler" 2> /dev/null
        "$PLIMSOLL" backup --copy "$MOUNT/store" "$MOUNT/copy" || echo "backup ended with $?"
        ls "$MOUNT"
    "#;
    let Some(ran) = with_small_disk(script) else { return };
    let ran = ran.fails(
        0,
        &[
            "No space left",
            "\nEarlier commits are kept; free some space and run the command again.",
        ],
    );
    assert!(!ran.err.contains("transaction"), "{}", ran.err);
    assert_eq!(ran.text(), "backup ended with 6\nfiller\nstore\n", "{}", ran.err);
}

#[test]
fn trim_frees_a_disk_that_the_store_fills() {
    let script = r#"
        head -c 3000000 /dev/zero > "$MOUNT/filler"
        n=0
        while head -c 1500000 /dev/urandom | "$PLIMSOLL" put "$MOUNT/store" large > /dev/null; do
            n=$((n+1))
        done
        # To start, a trim needs a few MiB.
        rm "$MOUNT/filler"
        "$PLIMSOLL" keyspace retention "$MOUNT/store" default latest > /dev/null
        "$PLIMSOLL" trim "$MOUNT/store" --until newest > /dev/null; echo "trim ended with $?"
        "$PLIMSOLL" put "$MOUNT/store" small v > /dev/null && echo writable
    "#;
    let Some(ran) = with_small_disk(script) else { return };
    let ran =
        ran.fails(0, &["No space left", "`plimsoll trim STORE --until newest` frees its log"]);
    assert_eq!(ran.text(), "trim ended with 0\nwritable\n", "{}", ran.err);
}

#[test]
fn full_disk_at_close_does_not_fail_the_commit() {
    let script = r#"
        "$PLIMSOLL" put "$MOUNT/store" k v > /dev/null
        head -c 30000000 /dev/zero > "$MOUNT/filler" 2> /dev/null
        "$PLIMSOLL" put "$MOUNT/store" k w; echo "put ended with $?"
        printf 'key,value\nk,x\n' |
            "$PLIMSOLL" load "$MOUNT/store" - --format csv --value value > /dev/null
        echo "load ended with $?"
        "$PLIMSOLL" delete "$MOUNT/store" k; echo "delete ended with $?"
        "$PLIMSOLL" history "$MOUNT/store" k --json | wc -l
        rm "$MOUNT/filler"
        "$PLIMSOLL" put "$MOUNT/store" k y &&
            "$PLIMSOLL" verify "$MOUNT/store" > /dev/null && echo sound
    "#;
    let Some(ran) = with_small_disk(script) else { return };
    let ran = ran.fails(0, &["No space left", "The commits are kept"]);
    assert!(!ran.err.contains("run the command again"), "{}", ran.err);
    assert_eq!(
        ran.text(),
        "2\nput ended with 0\nload ended with 0\n4\ndelete ended with 0\n4\n5\nsound\n",
        "{}",
        ran.err
    );
}

#[test]
fn import_resumes_after_a_full_disk() {
    let folder = Folder::new();
    let repository = Repository::init(&folder.path().join("repository"));
    let mut random = fastrand::Rng::with_seed(5);
    for number in 0..20 {
        let content: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(2 << 20).collect();
        repository.commit("c", &[(&format!("{number}"), &content)]);
    }
    let script = format!(
        r#"
        "$PLIMSOLL" import git "{path}" "$MOUNT/store" > /dev/null; echo "ended with $?"
        "$PLIMSOLL" scan "$MOUNT/store" --keys | head -n 1
        mount -o remount,size=100m "$MOUNT"
        "$PLIMSOLL" import git "{path}" "$MOUNT/store" > /dev/null; echo "ended with $?"
        "$PLIMSOLL" scan "$MOUNT/store" --keys | wc -l
        "$PLIMSOLL" get "$MOUNT/store" 19 | cmp - "{path}/19" && echo same
        "#,
        path = repository.path()
    );
    let Some(ran) = with_small_disk(&script) else { return };
    let ran = ran.fails(
        0,
        &["No space left", "commits were imported", "run the same command again to continue"],
    );
    assert_eq!(ran.text(), "ended with 6\n0\nended with 0\n20\nsame\n", "{}", ran.err);
}

#[test]
fn read_only_file_system_refuses_writers() {
    let script = r#"
        set -e
        "$PLIMSOLL" put "$MOUNT/store" k v > /dev/null
        mount -o remount,ro "$MOUNT"
        "$PLIMSOLL" get "$MOUNT/store" k && echo
        "$PLIMSOLL" verify "$MOUNT/store" > /dev/null && echo sound
        "$PLIMSOLL" put "$MOUNT/store" k w || echo "put ended with $?"
        "$PLIMSOLL" put "$MOUNT/new" k w || echo "put ended with $?"
    "#;
    let Some(ran) = with_small_disk(script) else { return };
    let ran = ran.fails(0, &["ead-only file system"]);
    assert_eq!(ran.text(), "v\nsound\nput ended with 6\nput ended with 6\n", "{}", ran.err);
}

#[test]
fn file_size_limit_fails_the_transaction_only() {
    let folder = Folder::new();
    let store = folder.at("store");
    // The limit is in units of half a KiB: 4 MiB. The signal that accompanies it does not end the
    // command.
    let script = r#"
        "$PLIMSOLL" put "$STORE" k v
        (ulimit -f 8192; head -c 9000000 /dev/zero | "$PLIMSOLL" put "$STORE" large
         echo "put ended with $?"
         "$PLIMSOLL" put "$STORE" small w)
        "$PLIMSOLL" scan "$STORE"
        "$PLIMSOLL" verify "$STORE" > /dev/null && echo sound
    "#;
    let ran = Ran::of(shell("sh", &["-c"], script).env("STORE", &store).output().unwrap());
    let ran = ran.fails(0, &["File too large"]);
    assert_eq!(ran.text(), "1\nput ended with 6\n2\nk\tv\nsmall\tw\nsound\n", "{}", ran.err);
}

/// Runs as nobody if this user is root, because root needs no permission.
fn run_as_nobody(program: &str, arguments: &[&str]) -> Ran {
    const NOBODY: u32 = 65_534;
    let mut command = Command::new(program);
    command.args(arguments).env("PLIMSOLL_MEMORY", "16MiB").stdin(Stdio::null());
    if fs::metadata("/proc/self").unwrap().uid() == 0 {
        command.uid(NOBODY).gid(NOBODY);
    }
    Ran::of(command.output().unwrap())
}

#[test]
fn another_users_store_refuses_writers() {
    let folder = Folder::new();
    let store = folder.at("store");
    run(&["put", &store, "k", "v"]).ok();
    let program = folder.program("plimsoll", env!("CARGO_BIN_EXE_plimsoll"));
    let set_mode =
        |path: &str, mode| fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    let folders =
        [folder.at("store/log"), folder.at("store/index"), folder.at("store"), folder.at("")];
    folders.iter().for_each(|path| set_mode(path, 0o555));
    let nobody = |arguments: &[&str]| run_as_nobody(&program, arguments);
    assert_eq!(nobody(&["get", &store, "k"]).ok().out, b"v");
    nobody(&["verify", &store]).ok();
    let remedy = "This user may not write to the store; \"Users, containers, builds\" in \
                  docs/explanation/processes.md";
    nobody(&["put", &store, "k", "w"]).fails(6, &["ermission denied", &store, remedy]);
    let ran = nobody(&["put", &folder.at("new"), "k", "w"]);
    let ran = ran.fails(6, &["ermission denied", "new", "This user may not create a store there;"]);
    assert!(!ran.err.contains("docs/explanation/processes.md"), "{}", ran.err);
    folders.iter().for_each(|path| set_mode(path, 0o755));
    assert_eq!(run(&["get", &store, "k"]).ok().out, b"v");
}
