//! What can go wrong with a guest.

use std::path::PathBuf;
use std::time::Duration;

/// Why a guest could not be booted, asked or looked at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no QEMU.
    #[error("cannot run {program}: {source}; on Debian it is in the package qemu-system-x86 or qemu-system-arm", program = .program.display())]
    NoQemu {
        /// What was to be run.
        program: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// There is no guest program.
    #[error("there is no guest program at {path}: {source}; `cargo xtask guest --build` makes one", path = .path.display())]
    NoProgram {
        /// Where it was looked for.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// QEMU or the guest ended in the middle of something.
    #[error("the guest ended while {during}: {how}{said}")]
    Ended {
        /// What was going on.
        during: String,
        /// How it ended.
        how: crate::Ended,
        /// What it had said last, on lines of their own.
        said: String,
    },
    /// The guest understood, and could not.
    #[error("the guest refused {command:?}: {reason}")]
    Refused {
        /// What it was asked for.
        command: String,
        /// Its reason.
        reason: String,
    },
    /// No answer came.
    #[error("no answer to {what} after {waited:?}{said}")]
    Silent {
        /// What was asked, and of whom.
        what: String,
        /// How long was waited.
        waited: Duration,
        /// What was said last, on lines of their own.
        said: String,
    },
    /// An answer of another form than expected: guest program and runner are not of one version, or QEMU is another.
    #[error("cannot make sense of the answer to {what}: {answer}")]
    Odd {
        /// What was asked, and of whom.
        what: String,
        /// The answer.
        answer: String,
    },
    /// QEMU's monitor said no.
    #[error("QEMU refused {command}: {reason}")]
    Monitor {
        /// The monitor command.
        command: String,
        /// Its reason.
        reason: String,
    },
    /// Talking to QEMU or looking at it failed.
    #[error("cannot {doing}: {source}")]
    Io {
        /// What was tried.
        doing: String,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The caller wants to end.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }
}
