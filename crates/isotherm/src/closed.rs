//! A standard output that the caller closed (`isotherm report >&-`).
//!
//! Rust's runtime opens `/dev/null` in its place before `main`, and its `Stdout` takes EBADF for success, so what is printed would
//! be lost without a word. Other tools fail: `ls >&-` says "write error". So a look at it is taken before the runtime's, and a
//! socket without a peer put in its place, on which every write fails.

use std::sync::atomic::{AtomicBool, Ordering};

static CLOSED: AtomicBool = AtomicBool::new(false);

extern "C" fn look() {
    // SAFETY: it takes two numbers; no descriptor is touched.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    CLOSED.store(flags == -1, Ordering::Relaxed);
}

// SAFETY: the loader calls what stands there before `main`, while there is one thread, and `look` needs nothing of the runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

/// Has what is printed fail if standard output was closed. Programs that are started have it closed, too.
pub fn refuse() {
    if !CLOSED.load(Ordering::Relaxed) {
        return;
    }
    // SAFETY: all are numbers. Descriptor 1 is the runtime's `/dev/null`, which nobody uses yet; the new one is ours.
    unsafe {
        let refuses = libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        if refuses >= 0 {
            libc::dup3(refuses, libc::STDOUT_FILENO, libc::O_CLOEXEC);
            libc::close(refuses);
        }
    }
}

/// What is said, with the cause where it is that standard output was closed.
pub fn with_cause(said: &str) -> Option<String> {
    let error = CLOSED.load(Ordering::Relaxed).then(|| std::io::Error::from_raw_os_error(libc::ENOTCONN))?;
    Some(said.replace(&error.to_string(), "it was closed by who started this"))
}
