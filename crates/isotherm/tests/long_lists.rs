//! Lists of mappings that take longer to read than a recording lasts.
#![allow(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod common;

use common::*;
use isotherm_record::Item;
use std::fs;
use tempfile::tempdir;

const PAGE: usize = 4096;

/// A process of so many mappings: every other page may not be read.
struct Mapped(libc::pid_t);

impl Mapped {
    fn start(mappings: usize) -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let (both, size) = (libc::PROT_READ | libc::PROT_WRITE, mappings * PAGE);
        // SAFETY: a mapping of one's own at a place of the kernel's choice.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), size, both, flags, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        // SAFETY: the child makes nothing but system calls, and writes to pages that it mapped itself.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            for page in 0..mappings {
                // SAFETY: within the mapping made above, each page that is written to before nothing is allowed there.
                unsafe {
                    match page % 2 {
                        0 => base.cast::<u8>().add(page * PAGE).write_volatile(1),
                        _ => _ = libc::mprotect(base.byte_add(page * PAGE), PAGE, libc::PROT_NONE),
                    }
                }
            }
            loop {
                // SAFETY: without descriptors poll only waits.
                unsafe { libc::poll(std::ptr::null_mut(), 0, 100) };
            }
        }
        // SAFETY: the mapping made above, which nothing here refers to.
        unsafe { libc::munmap(base, size) };
        Self(pid)
    }

    fn count(&self) -> usize {
        fs::read_to_string(format!("/proc/{}/maps", self.0)).unwrap().lines().count()
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: a child of this process that nobody else waits for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

#[test]
fn a_recording_says_that_a_list_was_not_read_to_its_end() {
    if !pte_works() {
        return;
    }
    let most = fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    if most.trim().parse::<usize>().unwrap() < 62_000 {
        return skip_but_in_ci("a process may not have so many mappings here (vm.max_map_count)");
    }
    let target = Mapped::start(60_000);
    wait_until("its mappings", || target.count() >= 60_000);
    let dir = tempdir().unwrap();
    let pid = target.0.to_string();
    // At the usual ceiling that is half of the time that it takes to read all of it.
    run(dir.path(), &["record", "-q", "-d", "3s", "--pid", &pid]).ok();
    let items = read(&dir.path().join("isotherm.rec")).unwrap();
    let mut lists =
        items.iter().filter_map(|item| if let Item::Mappings(list) = item { Some(list) } else { None });
    let last = lists.next_back().expect("a list, or the beginning of one");
    assert_eq!(last.partial, last.maps.len() < 60_000, "{} mappings", last.maps.len());
    if !last.partial {
        return skip("this machine reads 60,000 mappings within the ceiling in 3 s");
    }
    let text = run(dir.path(), &["report", "summary"]).ok();
    assert!(text.contains("not known to the end of the list") && text.contains("unknown mapping"), "{text}");
}
