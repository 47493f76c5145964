//! What the machine has to give, and what else it does.

/// Why a workload of `bytes` bytes should not be started on this machine; `None` when there is room for it.
pub fn shortage(bytes: u64) -> Option<String> {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = available(&text)?;
    // Page tables, the recorder, and room for whatever else goes on.
    let need = bytes.saturating_add(bytes / 20).saturating_add(256 << 20);
    (need > available).then(|| {
        format!(
            "it would take {} MiB of memory and {} MiB are available; free some, or name smaller --sizes",
            need >> 20,
            available >> 20
        )
    })
}

/// Bytes that could be allocated without swapping, by the kernel's estimate; `None` if it does not say.
pub fn available_memory() -> Option<u64> {
    available(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default())
}

fn available(meminfo: &str) -> Option<u64> {
    let kib = meminfo.lines().find_map(|l| l.strip_prefix("MemAvailable:")?.trim().strip_suffix("kB"))?;
    kib.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The machine's load over the last minute.
pub(crate) fn load() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().and_then(|l| l.parse().ok()).unwrap_or(0.0)
}

/// Has this thread run on one CPU, the `index`th of those it may run on; leaves it as it is if there is none.
pub(crate) fn pin(index: usize) {
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return };
    let cpus = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    let Some(cpu) = cpus.into_iter().nth(index) else { return };
    let mut one = rustix::thread::CpuSet::new();
    one.set(cpu);
    // Not pinned, figures spread more; they are not wrong.
    let _ = rustix::thread::sched_setaffinity(None, &one);
}

/// How many CPUs a thread of this process may run on.
pub(crate) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Until what is returned is dropped the calling thread runs on that CPU of those it may run on, then on any of them again: it
/// begins there, and the scheduler moves it as it likes.
pub(crate) fn begin_on(index: usize) -> impl Drop {
    struct Pinned(Option<rustix::thread::CpuSet>);
    impl Drop for Pinned {
        fn drop(&mut self) {
            if let Some(allowed) = &self.0 {
                let _ = rustix::thread::sched_setaffinity(None, allowed);
            }
        }
    }
    let allowed = rustix::thread::sched_getaffinity(None).ok();
    pin(index);
    Pinned(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_begins_on_one_cpu_and_may_run_on_all_afterwards() {
        let allowed = || {
            let set = rustix::thread::sched_getaffinity(None).unwrap();
            (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect::<Vec<_>>()
        };
        let all = allowed();
        let last = cpus().min(all.len()) - 1;
        let everywhere = begin_on(last);
        assert_eq!(allowed(), [all[last]]);
        drop(everywhere);
        assert_eq!(allowed(), all);
    }

    #[test]
    fn memory_that_is_not_there_is_told_before() {
        assert!(shortage(1 << 56).is_some_and(|why| why.contains("--sizes")));
        assert_eq!(shortage(0).filter(|_| available_here() > 1 << 30), None);
        assert_eq!(available("MemTotal: 1 kB\nMemAvailable:    2048 kB\n"), Some(2 << 20));
        assert_eq!(available("MemAvailable: much\n"), None);
    }

    fn available_here() -> u64 {
        available(&std::fs::read_to_string("/proc/meminfo").unwrap()).unwrap()
    }
}
