use super::*;
use rustix::process::Pid;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::rc::Rc;

/// DAMON's and the tracing system's files as the kernel keeps them, as far as this backend uses them.
#[derive(Clone, Default)]
struct Fake(Rc<RefCell<State>>);

#[derive(Default)]
struct State {
    /// Files under the kdamonds' directory and under tracefs, by whole path.
    files: BTreeMap<PathBuf, String>,
    instances: BTreeSet<PathBuf>,
    pipe: Rc<RefCell<VecDeque<u8>>>,
    running: bool,
    /// Thread ids given out.
    threads: u32,
    operations: &'static str,
    /// The errno that turning on gives.
    refuses_on: Option<i32>,
    log: Vec<String>,
    pipes_open: Rc<RefCell<u32>>,
}

const KDAMONDS: &str = "/damon/kdamonds";
const TRACING: &str = "/tracing";
const MODULES: &str = "/modules";

fn paths() -> KernelPaths {
    KernelPaths { kdamonds: KDAMONDS.into(), tracing: TRACING.into(), modules: MODULES.into() }
}

fn errno(errno: rustix::io::Errno) -> io::Error {
    errno.into()
}

impl Fake {
    fn new() -> Self {
        let fake = Self::default();
        {
            let mut state = fake.0.borrow_mut();
            state.operations = "vaddr\nfvaddr\npaddr\n";
            state.threads = 1000;
            state.files.insert(Path::new(KDAMONDS).join("nr_kdamonds"), "0".into());
        }
        fake
    }

    fn get(&self, file: &str) -> String {
        self.0.borrow().files.get(&Path::new(KDAMONDS).join(file)).cloned().unwrap_or_default()
    }

    fn put(&self, file: &str, value: &str) {
        self.0.borrow_mut().files.insert(Path::new(KDAMONDS).join(file), value.into());
    }

    fn trace(&self, text: &str) {
        self.0.borrow().pipe.borrow_mut().extend(text.as_bytes());
    }

    fn instances(&self) -> usize {
        self.0.borrow().instances.len()
    }

    /// The kdamond turns itself off when its targets are gone.
    fn turn_itself_off(&self) {
        self.0.borrow_mut().stop();
    }
}

impl State {
    fn stop(&mut self) {
        self.running = false;
        self.set("0/state", "off");
        self.set("0/pid", "-1");
    }

    fn set(&mut self, file: &str, value: &str) {
        self.files.insert(Path::new(KDAMONDS).join(file), value.into());
    }

    fn remove_below(&mut self, dir: &str) {
        let dir = Path::new(KDAMONDS).join(dir);
        self.files.retain(|path, _| path.parent().is_none_or(|parent| !parent.starts_with(&dir)));
    }

    fn write_kdamonds(&mut self, file: &str, value: &str) -> io::Result<()> {
        let number = value.parse::<u32>();
        match file {
            "nr_kdamonds" => {
                if self.running {
                    return Err(errno(rustix::io::Errno::BUSY));
                }
                self.remove_below("0");
                if number == Ok(1) {
                    for (file, value) in
                        [("0/state", "off"), ("0/pid", "-1"), ("0/contexts/nr_contexts", "0")]
                    {
                        self.set(file, value);
                    }
                }
            }
            "0/contexts/nr_contexts" => {
                let attrs = "0/contexts/0/monitoring_attrs";
                for file in [
                    "intervals/sample_us",
                    "intervals/aggr_us",
                    "intervals/update_us",
                    "nr_regions/min",
                    "nr_regions/max",
                ] {
                    self.set(&format!("{attrs}/{file}"), "0");
                }
                self.set("0/contexts/0/operations", "paddr");
                let operations = self.operations;
                self.set("0/contexts/0/avail_operations", operations);
                self.set("0/contexts/0/targets/nr_targets", "0");
            }
            "0/contexts/0/operations" if !self.operations.contains(value) => {
                return Err(errno(rustix::io::Errno::INVAL));
            }
            "0/contexts/0/targets/nr_targets" => {
                self.remove_below("0/contexts/0/targets/0");
                self.files.retain(|path, _| path.file_name().is_none_or(|name| name != "pid_target"));
                for i in 0..number.unwrap() {
                    self.set(&format!("0/contexts/0/targets/{i}/pid_target"), "0");
                }
            }
            "0/state" => match value {
                "on" => {
                    if let Some(refusal) = self.refuses_on {
                        return Err(io::Error::from_raw_os_error(refusal));
                    }
                    self.running = true;
                    self.threads += 1;
                    let pid = self.threads.to_string();
                    self.set("0/pid", &pid);
                }
                "off" if !self.running => return Err(errno(rustix::io::Errno::PERM)),
                "off" => self.stop(),
                "commit" if self.running => {
                    // Reading the file goes on to say `on`.
                    self.log.push("commit".into());
                    return Ok(());
                }
                _ => return Err(errno(rustix::io::Errno::INVAL)),
            },
            _ => {}
        }
        let path = Path::new(KDAMONDS).join(file);
        if !self.files.contains_key(&path) {
            return Err(errno(rustix::io::Errno::NOENT));
        }
        self.set(file, value);
        self.log.push(format!("{file}={value}"));
        Ok(())
    }
}

struct Pipe(Rc<RefCell<VecDeque<u8>>>, Rc<RefCell<u32>>);

impl Read for Pipe {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut pipe = self.0.borrow_mut();
        if pipe.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        // The kernel gives whole lines at most a page at a time; less is harder.
        let len = pipe.len().min(buf.len()).min(100);
        for (to, from) in buf.iter_mut().zip(pipe.drain(..len)) {
            *to = from;
        }
        Ok(len)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        *self.1.borrow_mut() -= 1;
    }
}

impl Files for Fake {
    fn read(&self, path: &Path) -> io::Result<String> {
        self.0.borrow().files.get(path).map(|text| format!("{text}\n")).ok_or(io::ErrorKind::NotFound.into())
    }

    fn write(&self, path: &Path, value: &str) -> io::Result<()> {
        let mut state = self.0.borrow_mut();
        match path.strip_prefix(KDAMONDS) {
            Ok(file) => state.write_kdamonds(file.to_str().unwrap(), value),
            Err(_) => {
                assert!(
                    state.instances.iter().any(|instance| path.starts_with(instance)),
                    "{}",
                    path.display()
                );
                state.files.insert(path.to_owned(), value.to_owned());
                Ok(())
            }
        }
    }

    fn make_dir(&self, path: &Path) -> io::Result<()> {
        assert!(self.0.borrow_mut().instances.insert(path.to_owned()));
        Ok(())
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.0.borrow_mut();
        if *state.pipes_open.borrow() > 0 {
            return Err(errno(rustix::io::Errno::BUSY));
        }
        assert!(state.instances.remove(path), "{}", path.display());
        state.files.retain(|file, _| !file.starts_with(path));
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        if path != Path::new(TRACING).join("instances") {
            return Err(io::ErrorKind::NotFound.into());
        }
        let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
        Ok(self.0.borrow().instances.iter().map(name).collect())
    }

    fn open_stream(&self, _: &Path) -> io::Result<Box<dyn Read>> {
        let state = self.0.borrow();
        *state.pipes_open.borrow_mut() += 1;
        Ok(Box::new(Pipe(Rc::clone(&state.pipe), Rc::clone(&state.pipes_open))))
    }
}

struct Sleeper(Child, Arc<Process>);

impl Sleeper {
    fn start() -> Self {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Process::open(Pid::from_raw(child.id() as i32).unwrap()).unwrap();
        Self(child, Arc::new(process))
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.end();
    }
}

fn driver(fake: &Fake) -> Driver<Fake> {
    Driver::start(fake.clone(), Attrs::default(), paths()).unwrap()
}

fn add(driver: &mut Driver<Fake>, id: u64, sleeper: &Sleeper) {
    driver.add(TargetId(id), Arc::clone(&sleeper.1));
}

fn tick(driver: &mut Driver<Fake>, now_ms: u64) -> Vec<Snapshot> {
    let mut told = Vec::new();
    driver.tick(now_ms * 1_000_000, &mut |snapshot| told.push(snapshot.clone())).unwrap();
    told
}

fn line(time_ms: u64, place: u64, nr: u64, start: u64, accesses: u32) -> String {
    let (s, us) = (time_ms / 1000, time_ms % 1000 * 1000);
    let end = start + 4096;
    format!(
        " kdamond.0-1001 [000] ..... {s}.{us:06}: damon_aggregated: target_id={place} nr_regions={nr} \
         {start}-{end}: {accesses} 2\n"
    )
}

#[test]
fn a_kdamond_is_set_up_as_asked_and_nothing_of_it_stays() {
    let fake = Fake::new();
    let sleeper = Sleeper::start();
    let mut driver = driver(&fake);
    assert_eq!(fake.get("0/state"), "off");
    add(&mut driver, 7, &sleeper);
    assert!(tick(&mut driver, 1000).is_empty());
    let attrs = "0/contexts/0/monitoring_attrs";
    for (file, value) in [
        ("0/state", "on"),
        ("0/contexts/0/operations", "vaddr"),
        (&format!("{attrs}/intervals/sample_us"), "5000"),
        (&format!("{attrs}/intervals/aggr_us"), "100000"),
        (&format!("{attrs}/intervals/update_us"), "1000000"),
        (&format!("{attrs}/nr_regions/min"), "10"),
        (&format!("{attrs}/nr_regions/max"), "1000"),
        ("0/contexts/0/targets/0/pid_target", &sleeper.pid().to_string()),
    ] {
        assert_eq!(fake.get(file), value, "{file}");
    }
    let enabled =
        |(file, value): (&PathBuf, &String)| file.ends_with("damon_aggregated/enable") && value == "1";
    assert!(fake.0.borrow().files.iter().any(enabled));
    drop(driver);
    assert_eq!((fake.get("nr_kdamonds").as_str(), fake.instances()), ("0", 0));
    assert!(!fake.0.borrow().running);
}

#[test]
fn what_the_kernel_traces_becomes_snapshots() {
    let fake = Fake::new();
    let (a, b) = (Sleeper::start(), Sleeper::start());
    let mut driver = driver(&fake);
    add(&mut driver, 7, &a);
    add(&mut driver, 8, &b);
    tick(&mut driver, 1000);
    for time in [1100, 1200] {
        for place in 0..2 {
            fake.trace(&line(time, place, 2, 4096, 20));
            fake.trace(&line(time, place, 2, 8192 + place * 4096, 0));
        }
    }
    let snapshots = tick(&mut driver, 1210);
    assert_eq!(snapshots.len(), 2);
    let last = &snapshots[1];
    assert_eq!((last.start_ns, last.end_ns), (1_100_000_000, 1_200_000_000));
    assert_eq!((last.sample_ns, last.max_nr_accesses), (5_000_000, 20));
    let ids: Vec<_> = last.targets.iter().map(|t| t.id).collect();
    assert_eq!(ids, [TargetId(7), TargetId(8)]);
    let region = last.targets[1].regions[0];
    assert_eq!((region.nr_accesses, region.nr_accesses_bp, region.age), (20, 200_000, 2));
    assert_eq!(driver.counters.max_checks_per_sample, 4);
    assert!(tick(&mut driver, 1220).is_empty());
}

#[test]
fn a_process_that_joins_keeps_the_others_regions() {
    let fake = Fake::new();
    let (a, b) = (Sleeper::start(), Sleeper::start());
    let mut driver = driver(&fake);
    add(&mut driver, 7, &a);
    tick(&mut driver, 1000);
    add(&mut driver, 8, &b);
    tick(&mut driver, 2000);
    assert_eq!(fake.0.borrow().log.last().unwrap(), "commit");
    assert_eq!(fake.get("0/contexts/0/targets/1/pid_target"), b.pid().to_string());
    assert_eq!((fake.get("0/state").as_str(), driver.restarts), ("on", 0));
}

#[test]
fn after_an_end_places_do_not_get_mixed_up() {
    let fake = Fake::new();
    let (mut a, b, c) = (Sleeper::start(), Sleeper::start(), Sleeper::start());
    let mut driver = driver(&fake);
    add(&mut driver, 7, &a);
    add(&mut driver, 8, &b);
    tick(&mut driver, 1000);
    a.end();
    driver.slots.iter_mut().filter(|slot| slot.id == TargetId(7)).for_each(|slot| slot.removed = true);
    // The kernel goes on to trace the dead target at its place.
    fake.trace(&line(1100, 0, 1, 4096, 0));
    fake.trace(&line(1100, 1, 1, 8192, 3));
    let snapshot = tick(&mut driver, 1110).pop().unwrap();
    assert_eq!(snapshot.targets.iter().map(|t| t.id).collect::<Vec<_>>(), [TargetId(8)]);
    // A new one makes the kernel's list anew; what was traced under the old one is not taken for the new.
    fake.trace(&line(1200, 0, 1, 4096, 0));
    add(&mut driver, 9, &c);
    assert!(tick(&mut driver, 1210).is_empty());
    assert_eq!(driver.restarts, 1);
    fake.trace(&line(1300, 0, 1, 8192, 3));
    fake.trace(&line(1300, 1, 1, 4096, 5));
    let snapshot = tick(&mut driver, 1310).pop().unwrap();
    let first = |i: usize| (snapshot.targets[i].id, snapshot.targets[i].regions[0].nr_accesses);
    assert_eq!((first(0), first(1)), ((TargetId(8), 3), (TargetId(9), 5)));
    assert!(driver.blind_spots().iter().any(|spot| spot.contains("began anew 1 times")));
}

#[test]
fn it_goes_on_after_all_targets_ended() {
    let fake = Fake::new();
    let (mut a, b) = (Sleeper::start(), Sleeper::start());
    let mut driver = driver(&fake);
    add(&mut driver, 7, &a);
    tick(&mut driver, 1000);
    a.end();
    fake.turn_itself_off();
    driver.slots[0].removed = true;
    tick(&mut driver, 5000);
    add(&mut driver, 8, &b);
    tick(&mut driver, 6000);
    assert_eq!(fake.get("0/state"), "on");
    assert_eq!(fake.get("0/contexts/0/targets/0/pid_target"), b.pid().to_string());
    // Somebody turns it off behind our back.
    fake.turn_itself_off();
    tick(&mut driver, 6500);
    let error = driver.tick(8_000_000_000, &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("turned off by somebody else"), "{error}");
}

#[test]
fn somebody_elses_kdamond_is_never_touched() {
    let fake = Fake::new();
    fake.write(&Path::new(KDAMONDS).join("nr_kdamonds"), "1").unwrap();
    fake.write(&Path::new(KDAMONDS).join("0/contexts/nr_contexts"), "1").unwrap();
    fake.write(&Path::new(KDAMONDS).join("0/state"), "on").unwrap();
    let before = (fake.0.borrow().files.clone(), fake.0.borrow().log.len());
    let error = Driver::start(fake.clone(), Attrs::default(), paths()).err().unwrap().to_string();
    assert!(
        error.contains("somebody else's kdamond is there (1 of them; the first is on, operations paddr)"),
        "{error}"
    );
    assert_eq!((fake.0.borrow().files.clone(), fake.0.borrow().log.len()), before);
    assert_eq!(fake.instances(), 0);

    // Nor one that took the place of ours.
    let fake = Fake::new();
    let sleeper = Sleeper::start();
    let mut driver = driver(&fake);
    add(&mut driver, 7, &sleeper);
    tick(&mut driver, 1000);
    fake.put("0/pid", "4242");
    drop(driver);
    assert_eq!((fake.get("nr_kdamonds").as_str(), fake.get("0/state").as_str()), ("1", "on"));
    assert_eq!(fake.instances(), 0);
}

/// What a monitor leaves that is killed: everything, under the name of a process that is dead.
fn killed_monitor(fake: &Fake, sleeper: Option<&Sleeper>) {
    let mut driver = driver(fake);
    if let Some(sleeper) = sleeper {
        add(&mut driver, 7, sleeper);
        tick(&mut driver, 1000);
    }
    driver.stream = None;
    std::mem::forget(driver);
    let mut state = fake.0.borrow_mut();
    let ours = state.instances.pop_first().unwrap();
    // No process of ours ever started at tick 1, which is the first after boot.
    let dead = ours.with_file_name(format!("isotherm-{}-1", std::process::id()));
    state.instances.insert(dead.clone());
    let files = std::mem::take(&mut state.files).into_iter().map(|(path, value)| {
        let moved = path.strip_prefix(&ours).map(|rest| dead.join(rest));
        (moved.unwrap_or(path), value)
    });
    state.files = files.collect();
}

#[test]
fn what_a_killed_monitor_left_is_cleaned_up() {
    // Killed before it had targets, while it ran, and after its targets had ended.
    for case in 0..3 {
        let fake = Fake::new();
        let sleeper = Sleeper::start();
        killed_monitor(&fake, (case > 0).then_some(&sleeper));
        if case == 2 {
            fake.turn_itself_off();
        }
        assert_eq!(fake.get("nr_kdamonds"), "1");
        assert!(kdamond::look(&fake, &paths()).is_ok());
        let driver = driver(&fake);
        assert_eq!((fake.get("0/state").as_str(), fake.instances()), ("off", 1));
        drop(driver);
        assert_eq!((fake.get("nr_kdamonds").as_str(), fake.instances()), ("0", 0));
    }
}

#[test]
fn beside_a_left_instance_somebody_elses_kdamond_is_still_theirs() {
    for (file, value) in [("0/pid", "4242"), ("0/contexts/0/targets/0/pid_target", "1"), ("nr_kdamonds", "2")]
    {
        let fake = Fake::new();
        let sleeper = Sleeper::start();
        killed_monitor(&fake, Some(&sleeper));
        fake.put(file, value);
        assert!(Driver::start(fake.clone(), Attrs::default(), paths()).is_err(), "{file}");
        assert_eq!(fake.get("0/state"), "on");
    }
}

#[test]
fn a_living_monitor_is_not_taken_for_a_killed_one() {
    let fake = Fake::new();
    let _held = driver(&fake);
    assert!(Driver::start(fake.clone(), Attrs::default(), paths()).is_err());
    assert_eq!((fake.get("nr_kdamonds").as_str(), fake.instances()), ("1", 1));
}

#[test]
fn a_kernel_that_cannot_says_why_and_nothing_stays() {
    let fake = Fake::new();
    fake.0.borrow_mut().operations = "paddr\n";
    let error = Driver::start(fake.clone(), Attrs::default(), paths()).err().unwrap().to_string();
    assert!(error.contains("CONFIG_DAMON_VADDR"), "{error}");
    assert_eq!((fake.get("nr_kdamonds").as_str(), fake.instances()), ("0", 0));

    let fake = Fake::new();
    fake.0.borrow_mut().files.clear();
    let error = Driver::start(fake.clone(), Attrs::default(), paths()).err().unwrap().to_string();
    assert!(error.contains("CONFIG_DAMON_SYSFS"), "{error}");

    let fake = Fake::new();
    let elsewhere = KernelPaths { tracing: "/nowhere".into(), ..paths() };
    let error = Driver::start(fake.clone(), Attrs::default(), elsewhere).err().unwrap().to_string();
    assert!(error.contains("mount -t tracefs"), "{error}");

    let fake = Fake::new();
    fake.0.borrow_mut().refuses_on = Some(16);
    let sleeper = Sleeper::start();
    let mut driver = driver(&fake);
    add(&mut driver, 7, &sleeper);
    let error = driver.tick(1, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("came into use"), "{error}");
    drop(driver);
    assert_eq!((fake.get("nr_kdamonds").as_str(), fake.instances()), ("0", 0));
}

#[test]
fn a_part_of_the_kernel_that_has_damon_for_itself_is_found_before_anything_is_set_up() {
    for module in ["damon_stat", "damon_reclaim", "damon_lru_sort"] {
        let fake = Fake::new();
        let enabled = Path::new(MODULES).join(module).join("parameters/enabled");
        fake.0.borrow_mut().files.insert(enabled.clone(), "Y\n".into());
        let error = Driver::start(fake.clone(), Attrs::default(), paths()).err().unwrap().to_string();
        assert!(error.contains(module) && error.contains("echo N > /modules/"), "{error}");
        assert_eq!((fake.get("nr_kdamonds").as_str(), fake.instances()), ("0", 0));

        fake.0.borrow_mut().files.insert(enabled, "N\n".into());
        assert!(Driver::start(fake, Attrs::default(), paths()).is_ok());
    }
}

#[test]
fn lines_torn_between_reads_come_out_whole() {
    let bytes: VecDeque<u8> = "first\nsecond\n".repeat(50).bytes().collect();
    let mut tail = Tail::new(Box::new(Pipe(Rc::new(RefCell::new(bytes)), Rc::new(RefCell::new(1)))));
    let mut lines = Vec::new();
    tail.read(&mut [0; 7], |line| lines.push(String::from_utf8(line.to_vec()).unwrap())).unwrap();
    assert_eq!(lines.len(), 100);
    assert!(lines.chunks(2).all(|pair| pair == ["first", "second"]));
}
