//! A child whose memory is known: this test program again, which does what it is asked to line by line.

use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mlock, mmap_anonymous, mprotect};
use rustix::process::Pid;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

pub const PAGE: u64 = 4096;
pub const HUGE: u64 = 2 << 20;

/// Set in the child.
const ROLE: &str = "ISOTHERM_TEST_CHILD";

/// The child, held by the test.
pub struct Known {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    /// Where each kind of memory begins, a multiple of 2 MiB.
    starts: HashMap<String, u64>,
}

impl Drop for Known {
    fn drop(&mut self) {
        drop(self.input.take());
        // Both fail only for a child that is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Known {
    /// Starts it; `test` is the name of the test that calls [`serve`].
    pub fn start(test: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(ROLE, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let mut known = Self { child, input, output, starts: HashMap::new() };
        while let Some((name, start)) = known.answer().split_once(' ') {
            known.starts.insert(name.to_owned(), start.parse().unwrap());
        }
        known
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub fn at(&self, name: &str) -> u64 {
        self.starts[name]
    }

    /// Has it do something, and waits until it is done.
    pub fn ask(&mut self, what: &str) {
        self.tell(what);
        assert_eq!(self.answer(), "done");
    }

    pub fn tell(&mut self, what: &str) {
        writeln!(self.input.as_mut().unwrap(), "{what}").unwrap();
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    pub fn wait(&mut self) {
        self.child.wait().unwrap();
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the child ended");
            // The test harness prints lines of its own.
            if let Some((_, answer)) = line.trim_end().split_once("@") {
                return answer.to_owned();
            }
        }
    }
}

/// Memory of `size` bytes at a multiple of 2 MiB, alone in its block or blocks.
pub fn map(size: u64, prot: ProtFlags, flags: MapFlags, huge: bool) -> u64 {
    let len = (size.next_multiple_of(HUGE) + HUGE) as usize;
    // SAFETY: a new mapping at an address of the kernel's choice, never unmapped.
    let at = unsafe { mmap_anonymous(std::ptr::null_mut(), len, prot, flags) }.unwrap();
    let start = (at as u64).next_multiple_of(HUGE);
    let advice = if huge { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
    // SAFETY: inside the mapping just made; the advice changes no contents.
    unsafe { madvise(start as *mut _, size as usize, advice) }.unwrap();
    start
}

pub fn write(start: u64, size: u64) {
    for addr in (start..start + size).step_by(PAGE as usize) {
        // SAFETY: inside a mapping made above, writable.
        unsafe { (addr as *mut u8).write_volatile(1) };
    }
}

pub fn read(start: u64, size: u64) {
    for addr in (start..start + size).step_by(PAGE as usize) {
        // SAFETY: inside a mapping made above, readable.
        unsafe { (addr as *const u8).read_volatile() };
    }
}

pub fn protect(start: u64, size: u64, how: MprotectFlags) {
    // SAFETY: part of a mapping made above, not accessed meanwhile.
    unsafe { mprotect(start as *mut _, size as usize, how) }.unwrap();
}

/// A huge page at `start` becomes a large folio mapped page by page.
pub fn split_mapping(start: u64) {
    let both = MprotectFlags::READ | MprotectFlags::WRITE;
    protect(start + HUGE / 2, PAGE, MprotectFlags::READ);
    protect(start + HUGE / 2, PAGE, both);
    write(start, HUGE);
}

/// The child's side; returns at once in a test.
pub fn serve() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let both = ProtFlags::READ | ProtFlags::WRITE;
    let sizes = [
        ("small", HUGE),
        ("huge", 2 * HUGE),
        ("folio", HUGE),
        ("shared", HUGE),
        ("locked", HUGE),
        ("none", HUGE),
    ];
    let mut starts: HashMap<&str, (u64, u64)> = HashMap::new();
    for (name, size) in sizes {
        let flags = if name == "shared" { MapFlags::SHARED } else { MapFlags::PRIVATE };
        let start = map(size, both, flags, matches!(name, "huge" | "folio"));
        write(start, size);
        starts.insert(name, (start, size));
    }
    let zero = map(HUGE, both, MapFlags::PRIVATE, false);
    read(zero, HUGE);
    starts.insert("zero", (zero, HUGE));
    // SAFETY: this child's own mapping.
    unsafe { mlock(starts["locked"].0 as *mut _, HUGE as usize) }.unwrap();
    split_mapping(starts["folio"].0);
    protect(starts["none"].0 + 16 * PAGE, 16 * PAGE, MprotectFlags::empty());
    for (name, (start, _)) in &starts {
        println!("@{name} {start}");
    }
    println!("@ready");

    let mut forked = None;
    for line in std::io::stdin().lines() {
        match line.unwrap().split_once(' ') {
            Some(("write", name)) => write(starts[name].0, starts[name].1),
            Some(("fork", _)) => forked = Some(fork_paused(starts["shared"].0)),
            Some(("unfork", _)) => {
                let pid: Pid = forked.take().unwrap();
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
                rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).unwrap();
            }
            Some(("exec", _)) => {
                use std::os::unix::process::CommandExt;
                panic!("exec: {}", Command::new("sleep").arg("1000").exec());
            }
            other => panic!("{other:?}"),
        }
        println!("@done");
    }
    std::process::exit(0);
}

/// Forks a child that maps the shared memory too, and pauses.
fn fork_paused(shared: u64) -> Pid {
    let mut pipe = [0; 2];
    // SAFETY: an array of two, as pipe(2) wants it.
    assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
    // SAFETY: the child only touches memory that it has, writes a byte and pauses; it runs no code of the parent's.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        read(shared, HUGE);
        // SAFETY: a byte to a descriptor just made; pause takes nothing; _exit runs no handlers. It ends with its parent.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::write(pipe[1], [0u8].as_ptr().cast(), 1);
            libc::pause();
            libc::_exit(0)
        }
    }
    let mut byte = [0u8];
    // SAFETY: one byte of room; the descriptor is the pipe's.
    assert_eq!(unsafe { libc::read(pipe[0], byte.as_mut_ptr().cast(), 1) }, 1);
    Pid::from_raw(pid).unwrap()
}
