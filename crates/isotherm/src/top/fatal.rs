//! Giving the terminal back when a signal ends the program at once: a failed allocation, a fault, a limit, whatever somebody
//! sends.
//!
//! [`super::terminal::give_back`] locks and allocates, which a signal handler must not: the thread that holds the lock may be
//! the one that is interrupted. So what undoes taking the terminal over lies ready ([`READY`]), and the handler only makes
//! calls that POSIX lists as safe there (signal-safety(7)). Then what would have happened without it happens.

use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// What gives the terminal back.
struct Ready {
    fd: RawFd,
    /// Whether writing to it may block.
    blocks: bool,
    before: libc::termios,
    end: Vec<u8>,
}

/// Null while the terminal is not taken.
static READY: AtomicPtr<Ready> = AtomicPtr::new(null_mut());

/// What signals did before. Filled before any handler is installed.
static BEFORE: OnceLock<Vec<(c_int, libc::sigaction)>> = OnceLock::new();

/// Those of an instruction that cannot be executed: once their handler returns it is executed again.
const FAULTS: [c_int; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL];

/// What the handler waits at a time for a terminal that takes nothing, ms, and how often, before what it did not take is
/// thrown away and after: as long as [`super::terminal`] does.
const WAIT_MS: c_int = 50;
const WAITS: u32 = 5;

/// From now on a signal that ends the program gives the terminal back first: by writing `end` to it, and with the modes
/// that it has now. `fd` must stay open until [`disarm`].
pub fn arm(fd: RawFd, blocks: bool, end: Vec<u8>) {
    // SAFETY: all bits zero is a valid termios, to be filled in.
    let mut before: libc::termios = unsafe { std::mem::zeroed() };
    // SAFETY: `before` is live. That it is filled in is checked.
    if unsafe { libc::tcgetattr(fd, &raw mut before) } != 0 {
        return;
    }
    // Never freed: a handler may be reading it, on whatever thread. The terminal is taken once, and again after each Ctrl-Z.
    let ready = Box::leak(Box::new(Ready { fd, blocks, before, end }));
    READY.store(ready, Ordering::Release);
    BEFORE.get_or_init(actions).iter().for_each(|(signal, _)| install(*signal));
}

/// The terminal was given back.
pub fn disarm() {
    READY.store(null_mut(), Ordering::Release);
}

/// Whether the terminal is the program's: no signal has given it back yet.
pub fn is_armed() -> bool {
    !READY.load(Ordering::Acquire).is_null()
}

/// The signals that would end the program, and what they do now: nothing of their own, or, of faults, the standard
/// library's message on a stack that is full.
fn actions() -> Vec<(c_int, libc::sigaction)> {
    // Those that ask to end ([`crate::stop`]) are heard as any time, and those that stop a process do not end it.
    let others = [
        libc::SIGHUP,
        libc::SIGINT,
        libc::SIGQUIT,
        libc::SIGTERM,
        libc::SIGKILL,
        libc::SIGSTOP,
        libc::SIGTSTP,
        libc::SIGTTIN,
        libc::SIGTTOU,
        libc::SIGCONT,
        libc::SIGCHLD,
        libc::SIGURG,
        libc::SIGWINCH,
    ];
    let deadly = (1..libc::SIGSYS + 1).chain(libc::SIGRTMIN()..=libc::SIGRTMAX());
    let action = |signal: c_int| {
        // SAFETY: all bits zero is a valid sigaction, to be filled in; without a new action the call changes nothing.
        let (done, action) = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            (libc::sigaction(signal, std::ptr::null(), &raw mut action), action)
        };
        let ends = action.sa_sigaction == libc::SIG_DFL
            || (action.sa_sigaction != libc::SIG_IGN && FAULTS.contains(&signal));
        (done == 0 && ends).then_some((signal, action))
    };
    deadly.filter(|signal| !others.contains(signal)).filter_map(action).collect()
}

fn install(signal: c_int) {
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = give_back;
    // SAFETY: the action is filled in but for fields where zero says nothing; all pointers are to live values. The handler
    // keeps to what is safe in one.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        // On the other stack: this one may be full.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // All others wait, SIGTTOU too: from the background the terminal may be set then.
        libc::sigfillset(&raw mut action.sa_mask);
        libc::sigaction(signal, &raw const action, null_mut());
    }
}

/// The handler. What the signal does without it is done once it returns.
extern "C" fn give_back(signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    let ready = READY.swap(null_mut(), Ordering::AcqRel);
    // SAFETY: what was stored is never freed, and not written to any more.
    if let Some(ready) = unsafe { ready.as_ref() } {
        restore(ready);
    }
    // SAFETY: the system hands a handler with SA_SIGINFO a valid pointer. Codes above 0 are the kernel's own.
    let is_fault = FAULTS.contains(&signal) && unsafe { info.as_ref() }.is_some_and(|info| info.si_code > 0);
    // SAFETY: all bits zero is the default action without flags; pointers are to live values. raise(3) is of this thread, so it
    // waits until this handler, which blocks it, is left.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = libc::SIG_DFL;
        let before = BEFORE.get().and_then(|all| all.iter().find(|(of, _)| *of == signal));
        if let Some((_, before)) = before.filter(|_| is_fault) {
            action = *before;
        }
        libc::sigaction(signal, &raw const action, null_mut());
        if !is_fault {
            libc::raise(signal);
        }
    }
}

/// As [`super::terminal::give_back`], with no more than write(2), poll(2), tcflush(3) and tcsetattr(3).
fn restore(ready: &Ready) {
    if !write(ready) {
        // It stands still, full of frames.
        // SAFETY: no memory is handed over.
        unsafe { libc::tcflush(ready.fd, libc::TCOFLUSH) };
        write(ready);
    }
    // SAFETY: the modes are live.
    unsafe { libc::tcsetattr(ready.fd, libc::TCSANOW, &raw const ready.before) };
}

/// Whether all of it was taken, or nobody is there to see it.
fn write(ready: &Ready) -> bool {
    let (mut rest, mut waits) = (ready.end.as_slice(), 0);
    while let Some(first) = rest.first() {
        let mut poll = libc::pollfd { fd: ready.fd, events: libc::POLLOUT, revents: 0 };
        // SAFETY: one entry, which is live.
        if unsafe { libc::poll(&raw mut poll, 1, WAIT_MS) } != 1 {
            waits += 1;
            if waits == WAITS {
                return false;
            }
            continue;
        }
        // Of the room that poll reports, one byte is certain.
        let piece = if ready.blocks { std::slice::from_ref(first) } else { rest };
        // SAFETY: the bytes are live.
        let written = unsafe { libc::write(ready.fd, piece.as_ptr().cast(), piece.len()) };
        let Ok(written) = usize::try_from(written) else {
            // SAFETY: it has the address of this thread's own.
            match unsafe { *libc::__errno_location() } {
                libc::EAGAIN | libc::EINTR => {
                    waits += 1;
                    if waits == WAITS {
                        return false;
                    }
                    continue;
                }
                _ => return true,
            }
        };
        rest = rest.get(written..).unwrap_or_default();
    }
    true
}
