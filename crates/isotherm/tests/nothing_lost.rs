//! A recording that holds something is never lost to one that holds nothing, however that one ends; and who recorded nothing
//! is told so, once.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{
    Done, Group, Running, isotherm, made_up, pte_works, read, run, skip, sleeper, snapshots,
    wait_for_snapshots, wait_until, with_own_mounts,
};
use isotherm_record::{Format, Item};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use tempfile::tempdir;

/// No snapshot is taken with these before a minute is over.
const SLOW: [&str; 4] = ["--sample", "1s", "--aggr", "1m"];

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_recording_of_nothing_leaves_the_one_that_was_there() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let good = fs::read(made_up(dir.path(), "isotherm.rec", Format::Rec)).unwrap();
    for _ in 0..2 {
        run(dir.path(), &[&["record"], &SLOW[..], &["--", "true"]].concat())
            .fails(1, &["nothing was recorded", "isotherm.rec is the recording that it was before"]);
        // The shell says that it is a program; the kernel, that it is none.
        let script = dir.path().join("script");
        fs::write(&script, "#!/no/such/interpreter\n").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(!run(dir.path(), &["record", "--", "./script"]).status.success());
        fs::remove_file(script).unwrap();
        assert_eq!(fs::read(dir.path().join("isotherm.rec")).unwrap(), good);
        assert_eq!(names(dir.path()), ["isotherm.rec"]);
    }
    // Where nothing is lost there is a file, though nothing in it but how the target ended.
    run(dir.path(), &[&["record", "-o", "other.rec"], &SLOW[..], &["--", "true"]].concat())
        .fails(1, &["nothing was recorded", "other.rec only says what happened to the targets"]);
    assert_eq!(snapshots(&read(&dir.path().join("other.rec")).unwrap()), 0);
}

#[test]
fn a_recorder_killed_before_its_first_snapshot_changes_nothing_and_later_one_leaves_what_it_has() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let file = dir.path().join("isotherm.rec");
    let good = fs::read(made_up(dir.path(), "isotherm.rec", Format::Rec)).unwrap();
    let target = sleeper();
    let pid = target.pid().to_string();
    let record = |options: &[&str]| {
        let args = [&["record", "--quiet", "--pid", &pid], options].concat();
        Running::start(isotherm(dir.path(), &args))
    };
    for _ in 0..2 {
        let mut monitor = record(&SLOW);
        let threads = format!("/proc/{}/task", monitor.pid());
        // The thread that writes is there when the file is.
        let writes = |entry: fs::DirEntry| {
            fs::read_to_string(entry.path().join("comm")).is_ok_and(|comm| comm.starts_with("isotherm-reco"))
        };
        wait_until("the recorder", || fs::read_dir(&threads).unwrap().any(|entry| writes(entry.unwrap())));
        monitor.0.kill().unwrap();
        monitor.0.wait().unwrap();
        assert_eq!(fs::read(&file).unwrap(), good);
        // A file system without nameless files may keep a draft, under a name that tells what it is.
        let more: Vec<String> = names(dir.path()).into_iter().filter(|n| !n.ends_with(".partial")).collect();
        assert_eq!(more, ["isotherm.rec"]);
    }
    let mut monitor = record(&[]);
    wait_until("another recording", || fs::read(&file).unwrap() != good);
    wait_for_snapshots(&file, 1);
    monitor.0.kill().unwrap();
    monitor.0.wait().unwrap();
    assert!(snapshots(&read(&file).unwrap()) > 0);
    assert_eq!(fs::read(dir.path().join("isotherm.rec.old")).unwrap(), good);
}

/// In a mount namespace of its own, on a file system without room for even the first snapshot.
#[test]
fn a_full_disk_keeps_the_recording_that_was_there() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    made_up(dir.path(), "good.rec", Format::Rec);
    let script = r#"
        mkdir disk && mount --make-rprivate / && mount -t tmpfs -o size=8m none disk || exit 99
        cp good.rec disk/isotherm.rec && cd disk || exit 99
        dd if=/dev/zero of=ballast bs=4k 2>/dev/null
        for i in 1 2; do
            "$0" record --quiet --duration 1s --pid $$
            echo "status $?"
        done
        cmp isotherm.rec ../good.rec && echo same
        ls
    "#;
    let Some(done) = with_own_mounts(dir.path(), script) else { return };
    assert!(done.err.contains("No space left") && done.err.contains("free some space"), "{done:?}");
    let lines: Vec<&str> = done.out.lines().collect();
    assert_eq!(lines, ["status 1", "status 1", "same", "ballast", "isotherm.rec"], "{done:?}");
}

#[test]
fn what_is_no_file_is_written_to_as_ever() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let target = sleeper();
    let pid = target.pid().to_string();
    let record = |output: &str| {
        let args = ["record", "--quiet", "--duration", "500ms", "--pid", &pid, "-o", output];
        isotherm(dir.path(), &args)
    };
    let piped = record("/dev/stdout").output().unwrap();
    assert!(piped.status.success(), "{}", String::from_utf8_lossy(&piped.stderr));
    fs::write(dir.path().join("piped.rec"), &piped.stdout).unwrap();
    assert!(snapshots(&read(&dir.path().join("piped.rec")).unwrap()) > 0);

    let redirected = dir.path().join("redirected.rec");
    let mut command = record("/dev/stdout");
    Done::from(command.stdout(fs::File::create(&redirected).unwrap()).output().unwrap()).ok();
    assert!(snapshots(&read(&redirected).unwrap()) > 0);

    Done::from(Command::new("mkfifo").arg(dir.path().join("fifo")).output().unwrap()).ok();
    let mut reader = Command::new("cat");
    reader.arg(dir.path().join("fifo")).stdout(fs::File::create(dir.path().join("copy.rec")).unwrap());
    let mut reader = Running::start(reader);
    Done::from(record("fifo").output().unwrap()).ok();
    assert!(reader.0.wait().unwrap().success());
    assert!(snapshots(&read(&dir.path().join("copy.rec")).unwrap()) > 0);
    assert_eq!(names(dir.path()), ["copy.rec", "fifo", "piped.rec", "redirected.rec"]);

    // While nobody reads it, it can be ended.
    let mut command = isotherm(dir.path(), &["record", "--pid", &pid, "-o", "fifo"]);
    command.stderr(fs::File::create(dir.path().join("err")).unwrap());
    let waiting = Running::start(command);
    let told = || fs::read_to_string(dir.path().join("err")).unwrap_or_default();
    wait_until("it says what it waits for", || told().contains("a pipe that nobody reads yet"));
    waiting.signal(Signal::TERM);
    let mut waiting = waiting;
    assert_eq!(waiting.0.wait().unwrap().code(), Some(143), "{}", told());
}

#[test]
fn of_an_empty_control_group_one_thing_is_told() {
    if !pte_works() {
        return;
    }
    let Some(group) = Group::new("empty") else { return skip("no cgroup hierarchy lets a group be made") };
    let dir = tempdir().unwrap();
    let good = fs::read(made_up(dir.path(), "isotherm.rec", Format::Rec)).unwrap();
    let path = group.0.to_str().unwrap();
    let done = run(dir.path(), &["record", "--duration", "900ms", "--cgroup", path]);
    assert_eq!(done.err.lines().count(), 1, "{}", done.err);
    done.fails(1, &["nothing was recorded: no process was in the control group", "it was before"]);
    assert_eq!(fs::read(dir.path().join("isotherm.rec")).unwrap(), good);
    // The same of a file: nothing says that there is no snapshot where there are some.
    run(dir.path(), &["record", "-o", "empty.rec", "--duration", "900ms", "--cgroup", path])
        .fails(1, &["nothing was recorded", "empty.rec only says what happened to the targets"]);
    let taken = snapshots(&read(&dir.path().join("empty.rec")).unwrap());
    assert!(taken > 0);
}

#[test]
fn too_few_open_files_are_told_with_the_remedy() {
    let dir = tempdir().unwrap();
    for limit in 4..24 {
        let script = format!("ulimit -n {limit}; exec \"$0\" record --quiet -d 1s -- sleep 2");
        let mut command = Command::new("sh");
        let done: Done =
            command.args(["-c", &script, common::ISOTHERM]).current_dir(dir.path()).output().unwrap().into();
        if done.err.contains("os error 24") || done.err.contains("oo many open files") {
            assert!(done.err.contains("`ulimit -n`") && done.err.contains("LimitNOFILE"), "{}", done.err);
            assert!(!done.status.success());
        }
        assert!(!done.err.contains("panicked"), "{limit}: {}", done.err);
    }
}

#[test]
fn what_holds_no_snapshot_is_not_converted_over_what_holds_some() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, items: &[Item]| {
        let mut writer = isotherm_record::create(&dir.path().join(name), Format::Rec).unwrap();
        items.iter().for_each(|item| writer.write(item).unwrap());
        writer.finish().unwrap();
    };
    let header = || Item::Header(isotherm_record::Header::default());
    write("empty.rec", &[header()]);
    write("good.rec", &[header(), Item::Snapshot(isotherm_damon::Snapshot::default())]);
    let good = fs::read(dir.path().join("good.rec")).unwrap();
    run(dir.path(), &["convert", "empty.rec", "good.rec"])
        .fails(1, &["empty.rec", "no snapshot", "good.rec", "stays as it is"]);
    assert_eq!(fs::read(dir.path().join("good.rec")).unwrap(), good);
    // Over what holds none, and the other way round, it is as ever.
    write("other.rec", &[header()]);
    run(dir.path(), &["convert", "-q", "empty.rec", "other.rec"]).ok();
    run(dir.path(), &["convert", "-q", "good.rec", "other.rec"]).ok();
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3, "no draft is left");
}

#[test]
fn what_another_recorder_is_writing_is_left_to_it() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let target = sleeper();
    let pid = target.pid().to_string();
    let record = |file: &str| {
        let mut command = isotherm(dir.path(), &["record", "-q", "--pid", &pid, "-o", file]);
        command.stderr(std::process::Stdio::null());
        Running::start(command)
    };
    let file = dir.path().join("isotherm.rec");
    let first = record("isotherm.rec");
    wait_for_snapshots(&file, 2);
    run(dir.path(), &["record", "-d", "1s", "--pid", &pid]).fails(1, &["isotherm.rec", "being written to"]);
    made_up(dir.path(), "other.rec", Format::Rec);
    run(dir.path(), &["convert", "other.rec", "isotherm.rec"])
        .fails(1, &["isotherm.rec", "being written to"]);
    let before = snapshots(&read(&file).unwrap());
    wait_for_snapshots(&file, before + 2);
    drop(first);
    assert_eq!(names(dir.path()), ["isotherm.rec", "other.rec"]);
}

#[test]
fn a_recording_is_not_lost_to_the_conversion_of_another() {
    let dir = tempdir().unwrap();
    let write = |name: &str, run: &str| {
        let mut writer = isotherm_record::create(&dir.path().join(name), Format::Rec).unwrap();
        let header = isotherm_record::Header { run: run.to_owned(), ..isotherm_record::Header::default() };
        writer.write(&Item::Header(header)).unwrap();
        let region = isotherm_damon::RegionSnapshot {
            range: isotherm_damon::AddrRange::new(4096, 8192),
            ..isotherm_damon::RegionSnapshot::default()
        };
        let target = isotherm_damon::TargetSnapshot::new(isotherm_damon::TargetId(1), vec![region]);
        let snapshot = isotherm_damon::Snapshot { targets: vec![target], end_ns: 1, ..Default::default() };
        writer.write(&Item::Snapshot(snapshot)).unwrap();
        writer.finish().unwrap();
        fs::read(dir.path().join(name)).unwrap()
    };
    let [_, second, third] =
        [("1.rec", "a"), ("2.rec", "b"), ("3.rec", "c")].map(|(name, run)| write(name, run));
    // As `*.rec` has it when the output was forgotten.
    run(dir.path(), &["convert", "1.rec", "2.rec", "3.rec"])
        .fails(2, &["3.rec", "may be one of the recordings"]);
    assert_eq!(fs::read(dir.path().join("3.rec")).unwrap(), third);
    let told = run(dir.path(), &["convert", "1.rec", "2.rec"]);
    assert!(told.err.contains("2.rec is kept as 2.rec.old"), "{}", told.err);
    assert_eq!(fs::read(dir.path().join("2.rec.old")).unwrap(), second);
    // What was made of it before is not worth keeping.
    run(dir.path(), &["convert", "1.rec", "2.rec"]).ok();
    assert_eq!(names(dir.path()), ["1.rec", "2.rec", "2.rec.old", "3.rec"]);
}

#[test]
fn a_conversion_that_comes_to_less_than_what_is_there_keeps_both() {
    let dir = tempdir().unwrap();
    made_up(dir.path(), "a.rec", Format::Rec);
    run(dir.path(), &["convert", "a.rec", "copy.rec"]).ok();
    let good = fs::read(dir.path().join("copy.rec")).unwrap();
    let all = snapshots(&read(&dir.path().join("copy.rec")).unwrap());
    // The original loses its end, and somebody makes the copy again.
    let whole = fs::read(dir.path().join("a.rec")).unwrap();
    fs::write(dir.path().join("a.rec"), &whole[..whole.len() * 6 / 10]).unwrap();
    let told = run(dir.path(), &["convert", "a.rec", "copy.rec"]);
    assert!(told.err.contains("copy.rec is kept as copy.rec.old"), "{}", told.err);
    assert_eq!(fs::read(dir.path().join("copy.rec.old")).unwrap(), good);
    assert!(snapshots(&read(&dir.path().join("copy.rec")).unwrap()) < all);
}

#[test]
fn who_asked_for_quiet_is_told_where_the_recording_is_if_not_where_it_was_to_be() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let good = fs::read(made_up(dir.path(), "isotherm.rec", Format::Rec)).unwrap();
    // Nothing can take this name.
    fs::create_dir(dir.path().join("isotherm.rec.old")).unwrap();
    let target = sleeper();
    run(dir.path(), &["record", "-q", "-d", "500ms", "--pid", &target.pid().to_string()])
        .fails(1, &["isotherm.rec could not be replaced", "the recording is complete", "mv isotherm.rec."]);
    assert_eq!(fs::read(dir.path().join("isotherm.rec")).unwrap(), good);
    let names = names(dir.path());
    let left = names.iter().find(|name| name.ends_with(".partial")).unwrap();
    assert!(snapshots(&read(&dir.path().join(left)).unwrap()) > 0, "it is there");
}
