use super::*;
use proptest::prelude::*;
use std::fs::{create_dir_all, write};

const MOUNTINFO: &str = "\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:9 master:3 - cgroup2 cgroup2 rw,nsdelegate
32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:10 - cgroup cgroup rw,cpu,cpuacct
33 30 0:29 /docker/abc /sys/fs/cgroup/mem\\040ory rw,nosuid - cgroup cgroup rw,memory
34 30 0:30 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
nonsense
35 30 - cgroup
";

fn group(dir: &Path, pids: &str) {
    create_dir_all(dir).unwrap();
    write(dir.join("cgroup.procs"), pids).unwrap();
}

fn hierarchy(mount_point: &Path, controllers: &[&str]) -> Hierarchy {
    Hierarchy {
        mount_point: mount_point.to_owned(),
        root: "/".into(),
        unified: controllers.is_empty(),
        controllers: controllers.iter().map(|&c| c.to_owned()).collect(),
    }
}

#[test]
fn hierarchies_of_both_versions_are_found_among_the_mounts() {
    let found = hierarchies(MOUNTINFO);
    assert_eq!(found.len(), 4);
    assert!(found[0].unified && found[0].mount_point == Path::new("/sys/fs/cgroup/unified"));
    assert_eq!(found[1].controllers, ["cpu", "cpuacct"]);
    assert_eq!(found[2].mount_point, Path::new("/sys/fs/cgroup/mem ory"));
    assert_eq!(found[2].root, Path::new("/docker/abc"));
    assert!(found[3].controllers.contains(&"name=systemd".to_owned()));
}

#[test]
fn a_group_is_found_by_each_of_its_names() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    let (v2, memory, cpu) = (root.join("unified"), root.join("memory"), root.join("cpu"));
    group(&v2.join("system.slice/db.service"), "10\n");
    group(&memory.join("docker/box"), "20\n");
    group(&cpu.join("docker/box"), "20\n");
    group(&cpu.join("only/cpu"), "30\n");
    let hierarchies =
        [hierarchy(&cpu, &["cpu", "cpuacct"]), hierarchy(&memory, &["memory"]), hierarchy(&v2, &[])];
    let directory = |name: &str| Cgroup::find_in(&hierarchies, name, None).unwrap().directory;

    let service = v2.join("system.slice/db.service");
    for name in ["system.slice/db.service", "/system.slice/db.service", "0::/system.slice/db.service"] {
        assert_eq!(directory(name), service);
    }
    assert_eq!(directory(service.to_str().unwrap()), service);
    assert_eq!(directory(&format!("{}/", service.display())), service);
    assert_eq!(directory("docker/box"), memory.join("docker/box"));
    assert_eq!(directory("7:cpu,cpuacct:/docker/box"), cpu.join("docker/box"));
    assert_eq!(directory("/only/cpu"), cpu.join("only/cpu"));
    assert_eq!(Cgroup::find_in(&hierarchies, "only/cpu", None).unwrap().version(), 1);

    for name in ["none", "/none", "", "0::/docker/box", "../../etc", "/proc"] {
        let error = Cgroup::find_in(&hierarchies, name, None);
        assert!(matches!(error, Err(CgroupError::NotFound { .. })), "{name:?}: {error:?}");
    }
    assert!(matches!(Cgroup::find_in(&[], "x", None), Err(CgroupError::NotMounted { .. })));
}

#[test]
fn of_several_hierarchies_the_one_with_processes_counts() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    let (v2, memory) = (root.join("unified"), root.join("memory"));
    group(&v2.join("job"), "");
    group(&memory.join("job"), "5\n");
    let hierarchies = [hierarchy(&memory, &["memory"]), hierarchy(&v2, &[])];
    assert_eq!(Cgroup::find_in(&hierarchies, "job", None).unwrap().directory, memory.join("job"));
    // A file that only one of them has decides.
    write(memory.join("job/memory.stat"), "anon 0\n").unwrap();
    write(v2.join("job/memory.pressure"), "some\n").unwrap();
    for (file, directory) in [("memory.stat", &memory), ("memory.pressure", &v2)] {
        let found = Cgroup::find_in(&hierarchies, "job", Some(file)).unwrap();
        assert_eq!(found.directory, directory.join("job"), "{file}");
    }
    assert!(Cgroup::find_in(&hierarchies, "job", Some("memory.numa_stat")).is_err());
    write(memory.join("job/cgroup.procs"), "").unwrap();
    assert_eq!(Cgroup::find_in(&hierarchies, "job", None).unwrap().directory, v2.join("job"));
}

#[test]
fn inside_a_container_paths_are_relative_to_what_is_mounted() {
    let inside = Hierarchy { root: "/docker/abc".into(), ..hierarchy(Path::new("/cg"), &[]) };
    assert_eq!(inside.directory_of(Path::new("/docker/abc/job")), Some("/cg/job".into()));
    assert_eq!(inside.directory_of(Path::new("/job")), Some("/cg/job".into()));
    assert_eq!(inside.directory_of(Path::new("/../other")), None);
}

#[test]
fn members_of_nested_groups_count() {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().join("top");
    group(&top, "1\n2\n");
    group(&top.join("a"), "3\n0\n");
    group(&top.join("a/deep/er"), "4\n");
    group(&top.join("a/deep"), "");
    group(&top.join("b"), "5\nrubbish\n99999999999999999999\n");
    let cgroup = Cgroup { directory: top.clone(), unified: true };
    assert_eq!(cgroup.members().unwrap(), BTreeSet::from([1, 2, 3, 4, 5]));
    fs::remove_dir_all(&top).unwrap();
    assert!(!cgroup.exists());
    assert!(matches!(cgroup.members(), Err(CgroupError::Io { .. })));
}

#[test]
fn this_process_is_a_member_of_its_own_groups() {
    let mut tried = 0;
    for line in fs::read_to_string("/proc/self/cgroup").unwrap().lines() {
        match Cgroup::find(line) {
            Ok(cgroup) => {
                assert!(cgroup.members().unwrap().contains(&std::process::id()), "{line}");
                tried += 1;
            }
            // Version 1 controllers that are not mounted are listed too.
            Err(error) => println!("skipped: {error}"),
        }
    }
    assert!(tried > 0 || !Path::new("/sys/fs/cgroup").exists(), "no cgroup of this process is mounted");
}

#[test]
fn the_room_in_a_group_is_that_of_the_tightest_around_it() {
    let dir = tempfile::tempdir().unwrap();
    let write = |file: &str, text: &str| fs::write(dir.path().join(file), text).unwrap();
    ["v2", "v2/a", "v2/a/b", "v1", "v1/a"].iter().for_each(|name| group(&dir.path().join(name), ""));
    let of = |name: &str, unified| Cgroup { directory: dir.path().join(name), unified }.memory_room();
    assert_eq!(of("v2/a/b", true), u64::MAX);
    write("v2/a/b/memory.max", "max\n");
    write("v2/a/b/memory.current", "1000\n");
    // Not a group, whatever it holds.
    write("memory.max", "1\n");
    assert_eq!(of("v2/a/b", true), u64::MAX);
    write("v2/a/memory.max", "9000\n");
    write("v2/a/memory.current", "3000\n");
    assert_eq!(of("v2/a/b", true), 6000);
    write("v2/a/b/memory.high", "1500\n");
    assert_eq!(of("v2/a/b", true), 500);
    write("v1/a/memory.limit_in_bytes", "9223372036854771712\n");
    write("v1/a/memory.usage_in_bytes", "4096\n");
    write("v1/memory.limit_in_bytes", "10000\n");
    write("v1/memory.usage_in_bytes", "12000\n");
    assert_eq!(of("v1/a", false), 0, "it may be above its limit");
}

#[test]
fn memory_is_charged_where_the_controller_is() {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap();
    let Some(found) = Cgroup::of_memory(&own) else { return println!("skipped: no memory controller here") };
    assert!(found.members().unwrap().contains(&std::process::id()), "{found:?}");
    assert!(found.directory().join("memory.stat").is_file());
    assert_eq!(Cgroup::of_memory("7:cpu,cpuacct:/\n"), None);
}

proptest! {
    #[test]
    fn rubbish_mounts_never_panic(text in "([ -~]{0,80}\n){0,10}") {
        let _ = hierarchies(&text);
        let _ = unescape(&text);
        let _ = split_proc_line(&text);
    }

    #[test]
    fn escapes_are_undone(path in "/[a-z \\\\\t\n]{0,30}") {
        let escaped: String = path
            .chars()
            .map(|c| if " \\\t\n".contains(c) { format!("\\{:03o}", c as u32) } else { c.to_string() })
            .collect();
        prop_assert_eq!(unescape(&escaped), PathBuf::from(path));
    }
}
