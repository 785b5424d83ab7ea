//! A load interrupted by Ctrl-C or SIGTERM ends at once and reports the rows it kept.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::io::ioctl_fionread;
use rustix::process::{Pid, Signal, kill_process};

use crate::run::{Folder, Ran, plimsoll, run};
use crate::signals::{stopped, wait_until_signals_are_heard};

fn scanned(store: &str) -> String {
    run(&["scan", store]).ok().text()
}

/// Waits until a load has put all rows written to its stdin and waits for more. Rows of an
/// uncommitted batch are not visible outside the process.
fn wait_until_rows_are_put(load: &Child, stdin: &ChildStdin) {
    let threads = PathBuf::from(format!("/proc/{}/task", load.id()));
    let begun = Instant::now();
    let wait_until = |is_so: &dyn Fn() -> bool| {
        while !is_so() {
            assert!(begun.elapsed() < Duration::from_secs(60), "the rows are not taken");
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    let read =
        |thread: &Path, file: &str| std::fs::read_to_string(thread.join(file)).unwrap_or_default();
    // The reader thread has read the rows and sleeps until there are more.
    wait_until(&|| {
        let mut threads = std::fs::read_dir(&threads).unwrap().map(|thread| thread.unwrap().path());
        let is_asleep =
            |thread: &Path| read(thread, "stat").rsplit(')').next().unwrap().starts_with(" S");
        let reader = threads.find(|thread| read(thread, "comm").trim() == "read-rows");
        reader.is_some_and(|reader| ioctl_fionread(stdin).unwrap() == 0 && is_asleep(&reader))
    });
    // The store is open, or nearly; this is the last thread that opening starts.
    wait_until(&|| {
        let mut threads = std::fs::read_dir(&threads).unwrap().map(|thread| thread.unwrap().path());
        threads.any(|thread| read(&thread, "comm").trim() == "plimsoll-member")
    });
    // The main thread takes the queued rows several times a second, and sleeps in between.
    let main = threads.join(load.id().to_string());
    let sleeps = || {
        let status = read(&main, "status");
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.map_or(0, |count| count.trim().parse::<u64>().unwrap())
    };
    let before = sleeps();
    wait_until(&|| sleeps() >= before + 10);
}

#[test]
fn interrupted_load_keeps_rows_read() {
    let folder = Folder::new();
    let store = folder.at("store");
    let mut command = plimsoll();
    command.args([
        "load",
        &store,
        "-",
        "--format",
        "csv",
        "--no-header",
        "--value",
        "2",
        "--batch",
        "100",
    ]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"1,a\n2,b\n").unwrap();
    wait_until_rows_are_put(&child, &stdin);
    // The signal is noticed although no further row arrives.
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let ran = Ran::of(child.wait_with_output().unwrap())
        .fails(130, &["interrupted", "resume with --skip"]);
    let rows = scanned(&store).lines().count();
    drop(stdin);
    assert_eq!(rows, 2, "{}", ran.err);
    assert!(ran.err.contains(&format!("--skip {rows}")), "{}", ran.err);
}

#[test]
fn interrupted_load_without_batches_loads_nothing() {
    let folder = Folder::new();
    let store = folder.at("store");
    let mut command = plimsoll();
    command.args(["load", &store, "-", "--format", "csv", "--no-header", "--value", "2"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"1,a\n2,b\n").unwrap();
    while !std::fs::exists(format!("{store}/log")).unwrap() {
        std::thread::sleep(Duration::from_millis(10));
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    Ran::of(child.wait_with_output().unwrap())
        .fails(130, &["plimsoll: interrupted. Nothing was loaded; "]);
    drop(stdin);
}

#[test]
fn interrupted_load_without_input_creates_no_store() {
    let folder = Folder::new();
    let (store, fifo) = (folder.at("store"), folder.at("rows.csv"));
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    for (file, format, signal) in
        [("-", "csv", Signal::INT), ("-", "tsv", Signal::TERM), (&fifo, "tsv", Signal::INT)]
    {
        let mut command = plimsoll();
        command.args(["load", &store, file, "--format", format, "--key", "k"]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = child.stdin.take();
        wait_until_signals_are_heard(&child);
        // Leave time to start waiting for the input; an earlier signal is handled in any case.
        std::thread::sleep(Duration::from_millis(100));
        stopped(child, signal).fails(130, &["plimsoll: interrupted. Nothing was loaded."]);
        drop(stdin);
        assert!(!std::fs::exists(&store).unwrap());
    }
}

#[test]
fn silent_named_pipe_can_be_interrupted() {
    let folder = Folder::new();
    let fifo = folder.at("rows.csv");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let mut command = plimsoll();
    command
        .args(["load", &folder.at("store"), &fifo])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    // Opens once the load opens it for reading.
    let writer = std::fs::File::options().write(true).open(&fifo).unwrap();
    stopped(child, Signal::INT).fails(130, &["interrupted. Nothing was loaded."]);
    drop(writer);
}

fn blob_files(store: &str) -> usize {
    let files =
        std::fs::read_dir(format!("{store}/log")).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|it| it == "blob")).count()
}

#[test]
fn interrupted_merge_of_rows_leaves_no_files() {
    if std::thread::available_parallelism().unwrap().get() == 1 {
        // No thread shows a merge from outside then.
        return;
    }
    let folder = Folder::new();
    let store = folder.at("store");
    // In random order, so that runs overlap; several MiB more than fits in memory.
    let rows = |number: u64| {
        format!("{:016x},{number:0100}\n", number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    };
    let file = folder.file("rows.csv", (0..400_000).map(rows).collect::<String>());
    let mut command = plimsoll();
    command
        .args(["load", &store, &file, "--no-header", "--value", "2"])
        .env("PLIMSOLL_MEMORY", "16MiB");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let threads = format!("/proc/{}/task", child.id());
    let merges = || {
        let names = std::fs::read_dir(&threads).into_iter().flatten().map(|thread| {
            std::fs::read_to_string(thread.unwrap().path().join("comm")).unwrap_or_default()
        });
        names.into_iter().any(|name| name.trim() == "plimsoll-merge")
    };
    while !merges() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before a merge was seen");
        std::thread::sleep(Duration::from_millis(1));
    }
    stopped(child, Signal::INT).fails(130, &["plimsoll: interrupted. Nothing was loaded; "]);
    assert_eq!((scanned(&store).as_str(), blob_files(&store)), ("", 0));
}

#[test]
fn load_under_nohup_survives_its_terminal() {
    let folder = Folder::new();
    let store = folder.at("store");
    let mut command = Command::new("nohup");
    command.arg(env!("CARGO_BIN_EXE_plimsoll")).args(["load", &store, "-", "--format", "csv"]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until_signals_are_heard(&child);
    kill_process(Pid::from_child(&child), Signal::HUP).unwrap();
    child.stdin.take().unwrap().write_all(b"key,value\na,1\n").unwrap();
    Ran::of(child.wait_with_output().unwrap()).ok();
    assert_eq!(run(&["count", &store]).ok().text(), "1\n");
}
