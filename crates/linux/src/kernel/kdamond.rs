//! A kdamond of our own, by DAMON's sysfs files (kernel document admin-guide/mm/damon/usage.rst).
//!
//! Writing `nr_kdamonds` destroys whatever kdamonds there are, so one of our own is made only where there is none, and
//! taken away only while it is provably ours.
//!
//! # Whose kdamond is it?
//! Events are traced into a tracefs instance of our own, named after our pid and start time. Its event filter names the
//! kdamond's pid and, in a term that always holds, the pid of its first target: `common_pid == 77 &&
//! target_id != 4294968530`. Both live exactly as long as the kdamond's own settings, until somebody takes them away or
//! the machine goes down. An instance whose owner is dead is left over; the kdamond is left over too if it is the
//! only one and both pids are those of the filter. While the kdamond's pid or its targets are not settled yet, they
//! stand in the filter as 0.

use super::files::Files;
use crate::proc_file::parse_number;
use crate::process::{Process, raw};
use crate::source::SourceError;
use isotherm_damon::Attrs;
use rustix::process::Pid;
use std::io;
use std::path::{Path, PathBuf};

/// Where DAMON and the tracing system show themselves.
#[derive(Clone, Debug)]
pub struct KernelPaths {
    /// DAMON's directory of kdamonds in sysfs.
    pub kdamonds: PathBuf,
    /// Mount point of tracefs.
    pub tracing: PathBuf,
    /// Where parts of the kernel show their parameters.
    pub modules: PathBuf,
}

impl Default for KernelPaths {
    fn default() -> Self {
        let kdamonds = "/sys/kernel/mm/damon/admin/kdamonds".into();
        let mounted = |path: &&str| Path::new(path).join("instances").is_dir();
        let tracing = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"].into_iter().find(mounted);
        Self {
            kdamonds,
            tracing: tracing.unwrap_or("/sys/kernel/tracing").into(),
            modules: "/sys/module".into(),
        }
    }
}

/// Parts of the kernel that use DAMON for themselves alone: while one is on, no other kdamond starts.
const EXCLUSIVE: [&str; 3] = ["damon_stat", "damon_reclaim", "damon_lru_sort"];

const OURS: &str = "isotherm-";
/// Added to a pid in the filter's second term: no target has so high a place in its context.
const ABOVE_ALL_TARGETS: u64 = 1 << 32;

/// Our kdamond and our tracefs instance.
pub(super) struct Kdamond<F: Files> {
    files: F,
    paths: KernelPaths,
    instance: PathBuf,
    /// What the filter says: pid of the kdamond that was last turned on, and of its first target.
    identity: (u64, u64),
    /// Whether `nr_kdamonds` was written by us.
    made: bool,
}

fn unavailable(reason: impl Into<String>, remedy: &str) -> SourceError {
    SourceError::Unavailable { what: "kernel".to_owned(), reason: reason.into(), remedy: remedy.to_owned() }
}

fn failed(what: &Path, source: io::Error) -> SourceError {
    SourceError::Io { what: format!("kernel DAMON, {}", what.display()), source }
}

/// Whether a kdamond could be had, as far as can be told without making one: an instance and kdamond left over by a
/// monitor that was killed do not stand in the way.
pub(super) fn look(files: &impl Files, paths: &KernelPaths) -> Result<(), SourceError> {
    let nr = match files.read(&paths.kdamonds.join("nr_kdamonds")) {
        Ok(nr) => nr,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(unavailable(
                format!("the kernel has no {}", paths.kdamonds.display()),
                "boot a kernel with CONFIG_DAMON_SYSFS and CONFIG_DAMON_VADDR (Debian 13, Fedora, RHEL 9 and Amazon \
                 Linux 2023 have them) or use another backend",
            ));
        }
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            return Err(unavailable(
                "DAMON's files may be used by root alone",
                "run as root, outside of containers",
            ));
        }
        Err(error) => return Err(failed(&paths.kdamonds, error)),
    };
    if parse_number(nr.as_bytes()) != Some(0)
        && leftovers(files, paths).all(|(_, identity)| !matches(files, paths, identity))
    {
        let state = files.read(&paths.kdamonds.join("0/state")).unwrap_or_default();
        let operations = files.read(&paths.kdamonds.join("0/contexts/0/operations")).unwrap_or_default();
        return Err(unavailable(
            format!(
                "somebody else's kdamond is there ({} of them; the first is {}, operations {}), and making another \
                 would destroy it",
                nr.trim(),
                or_unknown(&state),
                or_unknown(&operations)
            ),
            "stop it with the tool that made it (`damo stop`) or use another backend",
        ));
    }
    for module in EXCLUSIVE {
        let enabled = paths.modules.join(module).join("parameters/enabled");
        if files.read(&enabled).is_ok_and(|enabled| enabled.trim() == "Y") {
            return Err(unavailable(
                format!("DAMON is in use by the kernel itself ({module})"),
                &format!("turn that off (`echo N > {}`) or use another backend", enabled.display()),
            ));
        }
    }
    files.list(&paths.tracing.join("instances")).map(drop).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => unavailable(
            format!("tracefs is not mounted on {}", paths.tracing.display()),
            "mount it: `mount -t tracefs nodev /sys/kernel/tracing`",
        ),
        io::ErrorKind::PermissionDenied => unavailable("tracefs may be used by root alone", "run as root"),
        _ => failed(&paths.tracing, error),
    })
}

fn or_unknown(text: &str) -> &str {
    match text.trim() {
        "" => "unknown",
        text => text,
    }
}

/// Tracefs instances whose owner is dead, each with the kdamond and first target its filter names.
fn leftovers<'a>(
    files: &'a impl Files,
    paths: &'a KernelPaths,
) -> impl Iterator<Item = (PathBuf, Option<(u64, u64)>)> + 'a {
    let instances = paths.tracing.join("instances");
    let names = files.list(&instances).unwrap_or_default().into_iter().filter(|name| is_left_over(name));
    names.map(move |name| {
        let instance = instances.join(name);
        let identity = files.read(&instance.join(FILTER)).ok().and_then(|filter| parse_filter(&filter));
        (instance, identity)
    })
}

fn is_left_over(name: &str) -> bool {
    let Some((pid, start)) = name.strip_prefix(OURS).and_then(|rest| rest.split_once('-')) else {
        return false;
    };
    let (Ok(pid), Ok(start)) = (pid.parse(), start.parse::<u64>()) else { return false };
    let Some(pid) = Pid::from_raw(pid) else { return false };
    match Process::open(pid) {
        Ok(process) => process.start_time() != start,
        Err(error) => error.is_gone(),
    }
}

const FILTER: &str = "events/damon/damon_aggregated/filter";

fn filter((kdamond, first_target): (u64, u64)) -> String {
    format!("common_pid == {kdamond} && target_id != {}", ABOVE_ALL_TARGETS + first_target)
}

fn parse_filter(text: &str) -> Option<(u64, u64)> {
    let (kdamond, target) = text.trim().strip_prefix("common_pid == ")?.split_once(" && target_id != ")?;
    Some((kdamond.parse().ok()?, target.parse::<u64>().ok()?.checked_sub(ABOVE_ALL_TARGETS)?))
}

/// Whether there is one kdamond, and it is the one of these pids: running as that kernel thread, or off by now (as it
/// turns itself when its targets are gone), and set to that target.
fn matches(files: &impl Files, paths: &KernelPaths, identity: Option<(u64, u64)>) -> bool {
    let Some((kdamond, first_target)) = identity else { return false };
    let number = |file: &str| {
        let text = files.read(&paths.kdamonds.join(file)).unwrap_or_default();
        text.trim().parse::<i64>().ok()
    };
    let running = files.read(&paths.kdamonds.join("0/state")).is_ok_and(|state| state.trim() == "on");
    let right_thread = !running || kdamond == 0 || number("0/pid") == i64::try_from(kdamond).ok();
    let right_targets = match first_target {
        0 => !running && matches!(number("0/contexts/0/targets/nr_targets"), None | Some(0)),
        pid => number("0/contexts/0/targets/0/pid_target") == i64::try_from(pid).ok(),
    };
    number("nr_kdamonds") == Some(1) && right_thread && right_targets
}

/// Takes away a kdamond that [`matches`].
fn remove_kdamond(files: &impl Files, paths: &KernelPaths) -> io::Result<()> {
    let state = paths.kdamonds.join("0/state");
    if files.read(&state)?.trim() == "on" {
        // It may turn itself off in between, and then refuses.
        let _ = files.write(&state, "off");
    }
    files.write(&paths.kdamonds.join("nr_kdamonds"), "0")
}

/// Cleans up after monitors that were killed.
fn remove_leftovers(files: &impl Files, paths: &KernelPaths) -> Result<(), SourceError> {
    let left: Vec<_> = leftovers(files, paths).collect();
    for (instance, identity) in left {
        if matches(files, paths, identity) {
            remove_kdamond(files, paths).map_err(|error| failed(&paths.kdamonds, error))?;
        }
        remove_instance(files, &instance).map_err(|error| failed(&instance, error))?;
    }
    Ok(())
}

fn remove_instance(files: &impl Files, instance: &Path) -> io::Result<()> {
    // Fails where the event never was; the directory's own answer counts.
    let _ = files.write(&instance.join("events/damon/damon_aggregated/enable"), "0");
    files.remove_dir(instance)
}

impl<F: Files> Kdamond<F> {
    /// Makes the kdamond's directory and the tracefs instance; nothing runs yet. Cleans up first what killed monitors
    /// left.
    pub(super) fn make(files: F, paths: KernelPaths, attrs: &Attrs) -> Result<Self, SourceError> {
        look(&files, &paths)?;
        remove_leftovers(&files, &paths)?;
        let own = Process::open(rustix::process::getpid())
            .map_err(|source| SourceError::Process { source: Box::new(source) })?;
        let name = format!("{OURS}{}-{}", raw(own.pid()), own.start_time());
        let instance = paths.tracing.join("instances").join(name);
        files.make_dir(&instance).map_err(|error| failed(&instance, error))?;
        // From here on dropping it takes away what there is.
        let mut kdamond = Self { files, paths, instance, identity: (0, 0), made: false };
        kdamond.set_up(attrs)?;
        Ok(kdamond)
    }

    fn set_up(&mut self, attrs: &Attrs) -> Result<(), SourceError> {
        self.set_trace("trace_clock", "mono")?;
        // A thousand regions take some 70 KB an aggregation, on whatever CPU the kdamond runs; this holds ten.
        self.set_trace("buffer_size_kb", "1024")?;
        self.identify((0, 0))?;
        self.set("nr_kdamonds", "1")?;
        self.made = true;
        self.set("0/contexts/nr_contexts", "1")?;
        let available = self.files.read(&self.paths.kdamonds.join("0/contexts/0/avail_operations"));
        // The file is there from 6.0 on.
        if available.is_ok_and(|operations| operations.split_whitespace().all(|word| word != "vaddr")) {
            return Err(no_vaddr());
        }
        self.set("0/contexts/0/operations", "vaddr").map_err(|_| no_vaddr())?;
        let intervals = "0/contexts/0/monitoring_attrs/intervals";
        for (file, interval) in
            [("sample_us", attrs.sample), ("aggr_us", attrs.aggr), ("update_us", attrs.update)]
        {
            self.set(&format!("{intervals}/{file}"), &interval.as_micros().to_string())?;
        }
        let nr_regions = "0/contexts/0/monitoring_attrs/nr_regions";
        self.set(&format!("{nr_regions}/min"), "3")?;
        // In an order that never has the least above the most.
        self.set(&format!("{nr_regions}/max"), &attrs.max_nr_regions.to_string())?;
        self.set(&format!("{nr_regions}/min"), &attrs.min_nr_regions.to_string())
    }

    /// Turns it off, if it is on.
    pub(super) fn stop(&self) {
        if self.is_running() {
            // It may turn itself off in between, and then refuses.
            let _ = self.set("0/state", "off");
        }
    }

    /// Turns it on with these targets, at least one. Regions begin anew.
    pub(super) fn start(&mut self, pids: &[u32]) -> Result<(), SourceError> {
        let first = pids.first().copied().unwrap_or(0);
        self.identify((0, u64::from(first)))?;
        self.set_targets(pids)?;
        self.set("0/state", "on").map_err(|error| match error {
            SourceError::Io { source, .. } if source.kind() == io::ErrorKind::ResourceBusy => unavailable(
                "DAMON came into use by somebody else",
                "see who: `damo status`, and /sys/module/damon_*/parameters/enabled; turn it off or use another backend",
            ),
            error => error,
        })?;
        let file = self.paths.kdamonds.join("0/pid");
        let pid = self.files.read(&file).map_err(|error| failed(&file, error))?;
        // -1 if it is off again already, its targets having ended.
        if let Some(pid) = parse_number(pid.as_bytes()) {
            self.identify((pid, u64::from(first)))?;
        }
        self.set_trace("events/damon/damon_aggregated/enable", "1")
    }

    /// Has it take on targets at the end of the list, the first ones being what they were.
    pub(super) fn commit(&mut self, pids: &[u32]) -> Result<(), SourceError> {
        self.set_targets(pids)?;
        self.set("0/state", "commit")
    }

    pub(super) fn is_running(&self) -> bool {
        self.files.read(&self.paths.kdamonds.join("0/state")).is_ok_and(|state| state.trim() == "on")
    }

    /// Pid of the kernel thread, once it was turned on.
    pub(super) fn pid(&self) -> Option<u64> {
        Some(self.identity.0).filter(|&pid| pid != 0)
    }

    pub(super) fn open_trace(&self) -> Result<Box<dyn io::Read>, SourceError> {
        let pipe = self.instance.join("trace_pipe");
        self.files.open_stream(&pipe).map_err(|error| failed(&pipe, error))
    }

    fn set_targets(&self, pids: &[u32]) -> Result<(), SourceError> {
        self.set("0/contexts/0/targets/nr_targets", &pids.len().to_string())?;
        for (i, pid) in pids.iter().enumerate() {
            self.set(&format!("0/contexts/0/targets/{i}/pid_target"), &pid.to_string())?;
        }
        Ok(())
    }

    /// Traces this kdamond's aggregations and no other's, and makes it recognizable as ours.
    fn identify(&mut self, identity: (u64, u64)) -> Result<(), SourceError> {
        self.set_trace(FILTER, &filter(identity))?;
        self.identity = identity;
        Ok(())
    }

    fn set(&self, file: &str, value: &str) -> Result<(), SourceError> {
        let path = self.paths.kdamonds.join(file);
        self.files.write(&path, value).map_err(|error| failed(&path, error))
    }

    fn set_trace(&self, file: &str, value: &str) -> Result<(), SourceError> {
        let path = self.instance.join(file);
        self.files.write(&path, value).map_err(|error| failed(&path, error))
    }

    fn is_still_ours(&self) -> bool {
        self.made && matches(&self.files, &self.paths, Some(self.identity))
    }
}

fn no_vaddr() -> SourceError {
    unavailable(
        "this kernel's DAMON cannot monitor virtual address spaces",
        "boot a kernel with CONFIG_DAMON_VADDR or use another backend",
    )
}

impl<F: Files> Drop for Kdamond<F> {
    fn drop(&mut self) {
        // There is nobody to tell of a failure; the next start finds what is left.
        if self.is_still_ours() {
            let _ = remove_kdamond(&self.files, &self.paths);
        }
        let _ = remove_instance(&self.files, &self.instance);
    }
}
