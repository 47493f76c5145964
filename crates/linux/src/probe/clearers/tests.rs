use super::*;
use std::fs;
use tempfile::TempDir;

/// Flags of the kernel's threads, PF_KTHREAD among them.
const KTHREAD: u32 = 0x0020_8040;

/// A directory tree that stands in for the kernel's files.
struct Machine {
    dir: TempDir,
    paths: ClearerPaths,
}

impl Machine {
    /// One without DAMON, MGLRU and page_idle.
    fn bare() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        let paths = ClearerPaths {
            proc: at("proc"),
            modules: at("module"),
            damon: at("damon"),
            lru_gen: at("lru_gen"),
            page_idle: at("page_idle"),
        };
        let machine = Self { dir, paths };
        machine.thread(2, "kthreadd", KTHREAD);
        machine.put("module/zswap/parameters/enabled", "Y\n");
        machine
    }

    /// One whose kernel has all of it, and nobody at work.
    fn at_rest() -> Self {
        let machine = Self::bare();
        machine.put("damon/admin/kdamonds/nr_kdamonds", "0\n");
        for module in DamonModule::ALL {
            machine.put(&format!("module/{}/parameters/enabled", module.name()), "N\n");
            machine.put(&format!("module/{}/parameters/kdamond_pid", module.name()), "-1\n");
        }
        machine.put("lru_gen", "0x0000\n");
        machine
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn thread(&self, pid: u32, comm: &str, flags: u32) {
        let zeros = " 0".repeat(43);
        self.put(&format!("proc/{pid}/stat"), &format!("{pid} ({comm}) I 2 0 0 0 -1 {flags}{zeros}\n"));
        self.put(&format!("proc/{pid}/comm"), &format!("{comm}\n"));
    }

    fn kdamond(&self, index: u32, state: &str, pid: &str, operations: &str) {
        let at = format!("damon/admin/kdamonds/{index}");
        self.put(&format!("{at}/state"), state);
        self.put(&format!("{at}/pid"), pid);
        self.put(&format!("{at}/contexts/0/operations"), operations);
    }

    fn found(&self) -> Vec<AccessedBitClearer> {
        let all = AccessedBitClearers::look_in(&self.paths, Among::ALL);
        assert!(all.unreadable.is_empty(), "{:?}", all.unreadable);
        all.found
    }
}

#[test]
fn where_nobody_is_at_work_nobody_is_found() {
    for machine in [Machine::bare(), Machine::at_rest()] {
        machine.thread(500, "kdamond.0", 0x0040_0000);
        machine.kdamond(0, "off\n", "-1\n", "vaddr\n");
        assert_eq!(
            machine.found(),
            [],
            "a program that calls itself kdamond is none, nor is one that is off"
        );
        assert_eq!(AccessedBitClearers::look_in(&machine.paths, Among::ALL).blind_spot(), None);
    }
}

#[test]
fn a_module_that_is_on_is_named_once() {
    for module in DamonModule::ALL {
        let machine = Machine::at_rest();
        machine.put(&format!("module/{}/parameters/enabled", module.name()), "Y\n");
        machine.put(&format!("module/{}/parameters/kdamond_pid", module.name()), "77\n");
        machine.thread(77, "kdamond.0", KTHREAD);
        assert_eq!(machine.found(), [AccessedBitClearer::Module { module, kdamond: Some(77) }]);
        let sentence = AccessedBitClearers::look_in(&machine.paths, Among::ALL).blind_spot().unwrap();
        assert!(sentence.contains(&format!("{} of the kernel, pid 77", module.name())), "{sentence}");
    }
}

/// DAMON_STAT before 7.2.
#[test]
fn a_module_that_does_not_tell_its_kdamond_has_the_only_one_there_is() {
    let machine = Machine::at_rest();
    machine.put("module/damon_stat/parameters/enabled", "Y\n");
    fs::remove_file(machine.paths.modules.join("damon_stat/parameters/kdamond_pid")).unwrap();
    machine.thread(77, "kdamond.0", KTHREAD);
    let stat = || AccessedBitClearer::Module { module: DamonModule::DamonStat, kdamond: None };
    assert_eq!(machine.found(), [stat()]);
    machine.thread(78, "kdamond.1", KTHREAD);
    let [first, second] = [77, 78].map(|pid| AccessedBitClearer::Kdamond { pid });
    assert_eq!(machine.found(), [stat(), first, second], "either of the two may be somebody else's");
}

#[test]
fn kdamonds_of_sysfs_are_those_that_are_on() {
    let machine = Machine::at_rest();
    machine.kdamond(0, "off\n", "-1\n", "vaddr\n");
    machine.kdamond(1, "on\n", "81\n", "paddr\n");
    machine.thread(81, "kdamond.0", KTHREAD);
    machine.thread(90, "kdamond.1", KTHREAD);
    let sysfs = AccessedBitClearer::Sysfs { index: 1, pid: Some(81), operations: Some("paddr".to_owned()) };
    assert_eq!(machine.found(), [sysfs, AccessedBitClearer::Kdamond { pid: 90 }]);
    let sentence = AccessedBitClearers::look_in(&machine.paths, Among::ALL).blind_spot().unwrap();
    assert!(sentence.contains("kdamond 1 of DAMON's sysfs files, pid 81, operations paddr"), "{sentence}");
    assert!(sentence.contains("and by a kdamond of an unknown owner, pid 90"), "{sentence}");
}

/// As a user who may not read who owns a kdamond, but may list the kernel's threads.
#[test]
fn a_kdamond_is_found_also_where_its_owner_may_not_be_read() {
    let machine = Machine::bare();
    machine.thread(77, "kdamond.0", KTHREAD);
    // Reading a directory fails for root as well.
    let state = "damon/admin/kdamonds/0/state";
    fs::create_dir_all(machine.dir.path().join(state)).unwrap();
    let all = AccessedBitClearers::look_in(&machine.paths, Among::ALL);
    assert_eq!(all.found, [AccessedBitClearer::Kdamond { pid: 77 }]);
    assert!(all.unreadable.len() == 1 && all.unreadable[0].contains(state), "{:?}", all.unreadable);
    assert!(all.blind_spot().is_some());
}

#[test]
fn mglru_and_page_idle_are_told_but_are_not_at_work_all_the_time() {
    let machine = Machine::bare();
    machine.put("lru_gen", "0x0007\n");
    machine.put("page_idle", "");
    assert_eq!(machine.found(), [AccessedBitClearer::LruGen { switches: 7 }, AccessedBitClearer::PageIdle]);
    assert_eq!(AccessedBitClearers::look_in(&machine.paths, Among::ALL).blind_spot(), None);
    machine.put("lru_gen", "0x0006\n");
    assert_eq!(machine.found(), [AccessedBitClearer::PageIdle], "bit 0 is the main switch");
    for rubbish in ["", "7\n", "0x\n", "0xfffffffff\n"] {
        machine.put("lru_gen", rubbish);
        assert_eq!(machine.found(), [AccessedBitClearer::PageIdle], "{rubbish:?}");
    }
}

#[test]
fn everyone_found_has_a_name_and_a_remedy() {
    let machine = Machine::at_rest();
    machine.put("module/damon_stat/parameters/enabled", "Y\n");
    machine.kdamond(0, "on\n", "81\n", "paddr\n");
    machine.thread(81, "kdamond.0", KTHREAD);
    machine.thread(82, "kdamond.1", KTHREAD);
    machine.thread(83, "kdamond.2", KTHREAD);
    machine.put("lru_gen", "0x0003\n");
    machine.put("page_idle", "");
    let found = machine.found();
    assert_eq!(found.len(), 6);
    for one in &found {
        assert!(!one.to_string().is_empty() && !one.remedy().is_empty());
    }
    assert!(found[0].remedy().contains("echo N > /sys/module/damon_stat/parameters/enabled"));
}

#[test]
fn kdamonds_are_looked_for_among_the_children_of_kthreadd() {
    let machine = Machine::at_rest();
    for pid in [70, 71, 72] {
        machine.thread(pid, "kdamond.0", if pid == 72 { 0 } else { KTHREAD });
    }
    let proc = &machine.paths.proc;
    assert_eq!(
        kdamonds(proc, Among::ALL).unwrap(),
        [70, 71],
        "where children are not listed, all are looked at"
    );
    machine.put("proc/2/task/2/children", "70 72 ");
    assert_eq!(kdamonds(proc, Among::ALL).unwrap(), [70]);
    assert_eq!(kdamonds(proc, Among::Those(&[71, 72])).unwrap(), [71]);
    machine.thread(2, "bash", 0);
    assert_eq!(
        kdamonds(proc, Among::ALL).unwrap(),
        [0; 0],
        "another namespace shows no thread of the kernel"
    );
}

#[test]
fn what_is_at_work_on_this_machine_is_found() {
    let all = AccessedBitClearers::look(Among::ALL);
    let json = serde_json::to_string(&all).unwrap();
    assert_eq!(serde_json::from_str::<AccessedBitClearers>(&json).unwrap(), all);
    let threads = kdamonds(Path::new("/proc"), Among::ALL).unwrap();
    let kernels =
        |one: &AccessedBitClearer| one.is_at_work() && !matches!(one, AccessedBitClearer::Isotherm { .. });
    assert_eq!(all.found.iter().any(kernels), !threads.is_empty(), "{all:?}");
}

#[test]
fn another_isotherm_is_found_by_what_it_watches() {
    use std::os::unix::fs::symlink;
    let machine = Machine::bare();
    let watcher = |pid: u32, comm: &str, targets: &[(&str, i64)]| {
        machine.put(&format!("proc/{pid}/comm"), comm);
        machine.put(&format!("proc/{pid}/fd/.keep"), "");
        for (fd, (link, target)) in targets.iter().enumerate() {
            machine.put(
                &format!("proc/{pid}/fdinfo/{fd}"),
                &format!("pos:\t0\nPid:\t{target}\nNSpid:\t{target}\n"),
            );
            symlink(link, machine.dir.path().join(format!("proc/{pid}/fd/{fd}"))).unwrap();
        }
    };
    watcher(
        600,
        "isotherm\n",
        &[("anon_inode:[pidfd]", 7), ("pidfd:[41]", 9), ("anon_inode:[pidfd]", -1), ("/dev/null", 8)],
    );
    watcher(601, "isotherm\n", &[("/dev/null", 8)]);
    watcher(602, "systemd\n", &[("pidfd:[41]", 9)]);
    let all = AccessedBitClearers::look_in(&machine.paths, Among::ALL);
    assert_eq!(all.found, [AccessedBitClearer::Isotherm { pid: 600, targets: [7, 9].into() }]);
    assert!(all.blind_spot().unwrap().contains("another isotherm, pid 600, that watches 2 processes"));
    let spared = AccessedBitClearers::look_in(&machine.paths, Among::All { but: &BTreeSet::from([600]) });
    assert_eq!(spared.found, [], "it is known to be another program");
    for (those, found) in [(&[600, 602][..], &all.found[..]), (&[601, 602], &[])] {
        assert_eq!(AccessedBitClearers::look_in(&machine.paths, Among::Those(those)).found, found);
    }
    assert_eq!(all.clone().of(&[9].into()).found.len(), 1);
    assert_eq!(all.of(&[8].into()).blind_spot(), None, "what it watches is nothing of ours");
}

#[test]
fn a_sentence_names_a_few_and_counts_the_others() {
    let of = |pids: std::ops::Range<u32>| {
        let found = pids.map(|pid| AccessedBitClearer::Isotherm { pid, targets: [1].into() }).collect();
        AccessedBitClearers { found, ..AccessedBitClearers::default() }.blind_spot().unwrap()
    };
    assert!(!of(600..608).contains("more"), "{}", of(600..608));
    let many = of(600..3600);
    assert!(many.contains("pid 607, that watches 1 process and by 2992 more: "), "{many}");
    assert!(!many.contains("pid 608"), "{many}");
}
