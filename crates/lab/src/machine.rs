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

#[cfg(test)]
mod tests {
    use super::*;

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
