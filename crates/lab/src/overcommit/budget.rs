//! A budget that is enforced: a memory cgroup with swap in compressed memory, made for the experiment and removed after it.

use crate::zram::Zram;
use anyhow::{Context, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long is waited for the kernel to let go of a cgroup whose processes have ended.
const PATIENCE: Duration = Duration::from_secs(5);

/// A cgroup in which no more memory is resident than was said; what does not fit is swapped. Dropped, it is gone, and so is the
/// swap: all that was put into it must have ended.
#[derive(Debug)]
pub struct Budget {
    /// The cgroup's directory.
    path: PathBuf,
    unified: bool,
    _swap: Zram,
}

impl Budget {
    /// A budget of `bytes`, with room for `swap` bytes of pages beyond.
    ///
    /// # Errors
    /// It is not permitted, there is no memory controller, or the kernel has no zram.
    pub fn new(bytes: u64, swap: u64) -> anyhow::Result<Self> {
        let (parent, unified) = parent()?;
        let swap = Zram::new(swap)?;
        let path = parent.join(format!("isotherm-lab-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("cannot make the cgroup {}", path.display()))?;
        // From here on it is removed whatever happens.
        let budget = Self { path, unified, _swap: swap };
        let limit = if unified { "memory.max" } else { "memory.limit_in_bytes" };
        budget.write(limit, &bytes.to_string())?;
        Ok(budget)
    }

    /// Puts a process into it. What the process has already stays where it is accounted for.
    ///
    /// # Errors
    /// The system's reason.
    pub fn hold(&self, pid: u32) -> anyhow::Result<()> {
        self.write("cgroup.procs", &pid.to_string())
    }

    /// Bytes that are swapped out now.
    #[must_use]
    pub fn swapped(&self) -> u64 {
        let read = |name| fs::read_to_string(self.path.join(name)).unwrap_or_default();
        if self.unified {
            return read("memory.swap.current").trim().parse().unwrap_or(0);
        }
        let stat = read("memory.stat");
        let swap = stat.lines().find_map(|line| line.strip_prefix("swap "));
        swap.and_then(|bytes| bytes.parse().ok()).unwrap_or(0)
    }

    fn write(&self, name: &str, value: &str) -> anyhow::Result<()> {
        let path = self.path.join(name);
        fs::write(&path, value).with_context(|| format!("cannot write {value} to {}", path.display()))
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        let start = Instant::now();
        while let Err(error) = fs::remove_dir(&self.path) {
            if start.elapsed() > PATIENCE {
                eprintln!("isotherm: the cgroup {} is left behind: {error}", self.path.display());
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Where a cgroup with a limit of memory can be made, and whether the hierarchy is the unified one (cgroup v2).
fn parent() -> anyhow::Result<(PathBuf, bool)> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("cannot read /proc/self/mounts")?;
    let own = fs::read_to_string("/proc/self/cgroup").context("cannot read /proc/self/cgroup")?;
    if let Some(mount) =
        mounted(&mounts, |kind, options| kind == "cgroup" && options.split(',').any(|o| o == "memory"))
    {
        let own = own.lines().find_map(|line| line.split_once(":memory:")).map_or("/", |(_, path)| path);
        let inside = mount.join(own.trim_start_matches('/'));
        // In a container the mount may begin below the root that the path counts from.
        return Ok((if inside.is_dir() { inside } else { mount }, false));
    }
    let Some(mount) = mounted(&mounts, |kind, _| kind == "cgroup2") else {
        bail!("no cgroup hierarchy is mounted");
    };
    // Of its root, since no cgroup with processes of its own may have some that are limited.
    let enabled = fs::read_to_string(mount.join("cgroup.subtree_control")).unwrap_or_default();
    if !enabled.split_ascii_whitespace().any(|controller| controller == "memory") {
        bail!(
            "the memory controller is not enabled in {0}: echo +memory > {0}/cgroup.subtree_control",
            mount.display()
        );
    }
    Ok((mount, true))
}

/// The first mount for which `is` holds of its type and options.
fn mounted(mounts: &str, is: impl Fn(&str, &str) -> bool) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (path, kind, options) = (words.next()?, words.next()?, words.next()?);
        is(kind, options).then(|| Path::new(path).to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_controller_is_found_in_either_kind_of_hierarchy() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
                      cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup /sys/fs/cgroup/memory cgroup rw,nosuid,memory 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let memory =
            |kind: &str, options: &str| kind == "cgroup" && options.split(',').any(|o| o == "memory");
        assert_eq!(mounted(mounts, memory), Some("/sys/fs/cgroup/memory".into()));
        assert_eq!(mounted(mounts, |kind, _| kind == "cgroup2"), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(mounted(mounts, |kind, _| kind == "ext4"), None);
    }

    /// Only root may; whoever may finds nothing left afterwards.
    #[test]
    fn what_was_made_is_gone_afterwards() {
        let swaps = || fs::read_to_string("/proc/swaps").unwrap_or_default();
        let before = swaps();
        let Ok(budget) = Budget::new(64 << 20, 64 << 20) else { return };
        let path = budget.path.clone();
        assert!(path.is_dir() && swaps() != before && budget.swapped() == 0);
        drop(budget);
        assert!(!path.exists());
        assert_eq!(swaps(), before);
    }
}
