use super::*;
use crate::Item;
use crate::synthetic::{Shape, Synthetic};
use crate::{Header, ItemReader, ItemWriter, Snapshot, rec};
use std::fs;

/// Writes a recording; `snapshots` of them.
fn record(output: Replacement, snapshots: usize) -> Replacement {
    let mut writer = rec::Writer::new(output, "x").unwrap();
    let mut reader = Synthetic::new(Shape { nr_regions: 100, ..Shape::default() });
    let mut taken = 0;
    while let Some(item) = reader.next_ref().unwrap() {
        let is_snapshot = matches!(item, Item::Snapshot(_));
        if !is_snapshot || taken < snapshots {
            taken += usize::from(is_snapshot);
            writer.write(item).unwrap();
        }
    }
    writer.finish().unwrap();
    writer.into_inner().unwrap()
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_file_has_its_name_when_it_is_given_it_and_the_one_before_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.rec");
    for round in 0..3 {
        let before = fs::read(&path).ok();
        let mut output = record(Replacement::create(&path).unwrap(), 1 + round);
        assert_eq!(fs::read(&path).ok(), before, "nothing is touched before");
        assert_eq!(output.would_replace(), round > 0);
        let placement = output.publish().unwrap();
        assert_eq!(placement.old.is_some(), round > 0);
        assert!(placement.instead.is_none());
        assert!(holds_something(&path));
        assert_eq!(placement.old.map(|old| fs::read(old).unwrap()), before);
        assert_eq!(output.publish().unwrap().old, None, "once");
    }
    assert_eq!(names(dir.path()), ["a.rec", "a.rec.old"]);
}

#[test]
fn what_has_no_name_yet_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.rec");
    drop(record(Replacement::create(&path).unwrap(), 3));
    assert!(names(dir.path()).is_empty());
}

#[test]
fn a_recording_of_nothing_is_not_kept_in_the_place_of_one_of_something() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.rec");
    let record = |snapshots| {
        let mut output = record(Replacement::create(&path).unwrap(), snapshots);
        output.publish().unwrap()
    };
    record(2);
    record(3);
    let old = fs::read(dir.path().join("a.rec.old")).unwrap();
    // As a monitor of an older version left it, or one whose user wants it so.
    fs::write(&path, "").unwrap();
    assert!(record(0).old.is_none());
    assert!(!holds_something(&path));
    assert!(record(1).old.is_none());
    assert_eq!(fs::read(dir.path().join("a.rec.old")).unwrap(), old);
}

#[test]
fn snapshots_of_no_process_hold_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.rec");
    let mut writer = rec::Writer::new(Replacement::create(&path).unwrap(), "x").unwrap();
    writer.write(&Item::Header(Header::default())).unwrap();
    writer.write_snapshot(&Snapshot { end_ns: 1, ..Snapshot::default() }).unwrap();
    writer.into_inner().unwrap().publish().unwrap();
    assert!(path.exists() && !holds_something(&path));
    fs::write(&path, "what is this").unwrap();
    assert!(holds_something(&path), "it may be one for all that is known");
}

#[test]
fn links_go_on_to_point_where_they_did() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("far")).unwrap();
    let (link, path) = (dir.path().join("link"), dir.path().join("far/a.rec"));
    std::os::unix::fs::symlink("far/a.rec", &link).unwrap();
    for _ in 0..2 {
        record(Replacement::create(&link).unwrap(), 2).publish().unwrap();
        assert!(link.is_symlink() && holds_something(&path));
    }
    assert_eq!(names(&dir.path().join("far")), ["a.rec", "a.rec.old"]);
}

#[test]
fn a_link_that_another_user_made_where_everyone_may_is_not_followed() {
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can make a link of another user's");
        return;
    }
    const NOBODY: u32 = 65534;
    let dir = tempfile::tempdir().unwrap();
    let (shared, far) = (dir.path().join("shared"), dir.path().join("far"));
    fs::create_dir(&shared).unwrap();
    fs::create_dir(&far).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).unwrap();
    let link = shared.join("a.rec");
    symlink(far.join("a.rec"), &link).unwrap();
    let by_way = dir.path().join("by way");
    symlink(&link, &by_way).unwrap();
    assert!(Replacement::create(&link).is_ok(), "one's own");
    lchown(&link, Some(NOBODY), None).unwrap();
    for path in [&link, &by_way] {
        let error = Replacement::create(path).unwrap_err().to_string();
        assert!(error.contains("is a link that another user made"), "{error}");
    }
    assert!(link.is_symlink() && names(&far).is_empty());
    lchown(&shared, Some(NOBODY), None).unwrap();
    assert!(Replacement::create(&link).is_ok(), "the directory's owner's");
    lchown(&shared, Some(0), None).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(Replacement::create(&link).is_ok(), "where not everyone can make one");
}

#[test]
fn what_cannot_be_replaced_has_a_neighbour() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.rec");
    record(Replacement::create(&path).unwrap(), 2).publish().unwrap();
    let before = fs::read(&path).unwrap();
    fs::create_dir(dir.path().join("a.rec.old")).unwrap();
    let placement = record(Replacement::create(&path).unwrap(), 3).publish().unwrap();
    let (instead, _why) = placement.instead.unwrap();
    assert!(holds_something(&instead));
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn what_is_no_recording_stays_though_it_is_called_old() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.rec");
    fs::write(dir.path().join("a.rec.old"), "buy milk").unwrap();
    for round in 0..3 {
        let placement = record(Replacement::create(&path).unwrap(), 2).publish().unwrap();
        assert_eq!(placement.old, (round > 0).then(|| dir.path().join("a.rec.old.1")));
    }
    assert_eq!(fs::read(dir.path().join("a.rec.old")).unwrap(), b"buy milk");
    assert_eq!(names(dir.path()), ["a.rec", "a.rec.old", "a.rec.old.1"]);
}

/// What begins like a recording may be anything: JSON, text about damo's, what is compressed.
#[test]
fn what_only_looks_like_a_recording_stays_though_it_is_called_old() {
    let mut compressed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    compressed.write_all(b"precious").unwrap();
    let compressed = compressed.finish().unwrap();
    for content in [
        &br#"{"name": "my shop", "precious": true}"#[..],
        b"[1,2,3,\"precious\"]",
        b"how to use damon:damon_aggregated: and other events",
        &compressed,
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.rec");
        fs::write(dir.path().join("a.rec.old"), content).unwrap();
        record(Replacement::create(&path).unwrap(), 2).publish().unwrap();
        let placement = record(Replacement::create(&path).unwrap(), 2).publish().unwrap();
        assert_eq!(placement.old, Some(dir.path().join("a.rec.old.1")));
        assert_eq!(fs::read(dir.path().join("a.rec.old")).unwrap(), content);
    }
}

#[test]
fn what_is_new_takes_nobodys_place_and_is_locked_while_it_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let name = |number: u32| dir.path().join(format!("a-{number}.rec"));
    let new = || record(Replacement::create_new(&name(1), PRIVATE).unwrap(), 1);
    let (mut first, mut second) = (new(), new());
    assert_eq!(first.publish_new((1..9).map(name)).unwrap(), name(1));
    assert_eq!(second.publish_new((1..9).map(name)).unwrap(), name(2));
    assert!(new().publish_new((1..3).map(name)).is_err(), "all are taken");
    assert_eq!(names(dir.path()), ["a-1.rec", "a-2.rec"]);
    assert!(is_being_written(&name(1)) && is_being_written(&name(2)));
    drop(first);
    assert!(!is_being_written(&name(1)) && is_being_written(&name(2)));
    assert!(holds_something(&name(1)));
}

#[test]
fn what_is_still_written_is_neither_replaced_nor_renamed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.rec");
    let begun = || record(Replacement::create(&path).unwrap(), 2);
    // Both began before either had its name.
    let (mut first, mut second) = (begun(), begun());
    first.publish().unwrap();
    let before = fs::read(&path).unwrap();
    let refused = Replacement::create(&path).unwrap_err();
    assert!(matches!(refused, Error::BeingWritten { .. }), "{refused}");
    let (instead, why) = second.publish().unwrap().instead.unwrap();
    assert!(holds_something(&instead) && why.contains("another recorder"), "{why}");
    assert_eq!(fs::read(&path).unwrap(), before);
    // Nor does what became the old one while it was written.
    fs::rename(&path, dir.path().join("a.rec.old")).unwrap();
    drop(second);
    begun().publish().unwrap();
    let placement = begun().publish().unwrap();
    assert_eq!(placement.old.unwrap(), dir.path().join("a.rec.old.1"));
    drop(first);
    assert_eq!(fs::read(dir.path().join("a.rec.old")).unwrap(), before);
}

#[test]
fn what_began_before_a_recorder_did_does_not_take_its_files_place() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.rec");
    for keeps in [false, true] {
        let mut conversion = record(Replacement::create(&path).unwrap(), 3);
        let mut recorder = record(Replacement::create(&path).unwrap(), 2);
        recorder.publish().unwrap();
        let before = fs::read(&path).unwrap();
        let refused = conversion.replace(keeps).unwrap_err();
        assert!(matches!(refused, Error::BeingWritten { .. }), "{refused}");
        assert_eq!((fs::read(&path).unwrap(), names(dir.path()).len()), (before, 1));
        drop(recorder);
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_file_that_is_overwritten_in_place_is_one_recorders() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.rec");
    drop(record(Replacement::create(&path).unwrap(), 2).publish());
    let waiting = |path: &Path| {
        let file = OpenOptions::new().write(true).open(path).unwrap();
        in_place(file, path.to_owned(), "a".to_owned())
    };
    let first = waiting(&path).unwrap();
    let refused = waiting(&path).unwrap_err();
    assert!(matches!(refused, Error::BeingWritten { .. }), "{refused}");
    drop(first);
    assert!(waiting(&path).is_ok());
}

#[test]
fn a_recording_is_its_owners_alone_and_has_the_mode_of_what_it_replaces() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.rec");
    let mode = || path.metadata().unwrap().mode() & 0o777;
    record(Replacement::create(&path).unwrap(), 2).publish().unwrap();
    assert_eq!(mode(), 0o600);
    for chosen in [0o640, 0o604, 0o600] {
        fs::set_permissions(&path, Permissions::from_mode(chosen)).unwrap();
        record(Replacement::create(&path).unwrap(), 2).publish().unwrap();
        assert_eq!(mode(), chosen);
    }
    const NOBODY: u32 = 65534;
    if std::os::unix::fs::chown(&path, Some(NOBODY), Some(NOBODY)).is_err() {
        println!("skipped: only root can give files away");
        return;
    }
    record(Replacement::create(&path).unwrap(), 2).publish().unwrap();
    let owner = path.metadata().unwrap();
    assert_eq!((owner.uid(), owner.gid(), mode()), (NOBODY, NOBODY, 0o600));
    // Where everyone may make files, one that was laid there before is no claim.
    fs::set_permissions(dir.path(), Permissions::from_mode(0o1777)).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    record(Replacement::create(&path).unwrap(), 2).publish().unwrap();
    let own = rustix::process::geteuid().as_raw();
    assert_eq!((path.metadata().unwrap().uid(), mode()), (own, 0o600));
}

#[test]
fn devices_and_other_files_are_what_they_were() {
    let null = Replacement::create(Path::new("/dev/null")).unwrap();
    assert!(matches!(null.state, State::Placed) && !null.would_replace());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notes");
    fs::write(&path, "buy milk").unwrap();
    assert!(matches!(Replacement::create(&path), Err(Error::WouldClobber { .. })));
    let file = File::create(dir.path().join("redirected")).unwrap();
    let open = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let output = Replacement::create(&open).unwrap();
    assert!(matches!(output.state, State::Placed), "as /dev/stdout, which links to such a one");
    assert!(Replacement::create(&dir.path().join("no/such/dir/a.rec")).is_err());
}
