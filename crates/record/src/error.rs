//! What can go wrong with a recording, and what can be wrong with one that is still read.

use crate::Format;
use std::fmt;
use std::io;

/// A recording cannot be read or written. Every variant names the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    #[error("cannot {doing} {file}: {source}{}", remedy(.source))]
    Io {
        /// What was tried: `open`, `read`, `write`, `create`.
        doing: &'static str,
        /// The file, or `standard input` / `standard output`.
        file: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The file has no bytes at all.
    #[error("{file} is empty: nothing was recorded in it")]
    Empty {
        /// The file.
        file: String,
    },
    /// No format fits the content.
    #[error(
        "{file} is not a recording in any format known here ({}); name the format if it is one after all",
        Format::names()
    )]
    UnknownFormat {
        /// The file.
        file: String,
    },
    /// The format is known, but this cannot be done with it.
    #[error("{file}: {why}")]
    Unsupported {
        /// The file.
        file: String,
        /// What cannot be done, and what to do instead.
        why: String,
    },
    /// Nothing in the file can be read as the format it should have.
    #[error("{file} cannot be read as {format}: {why}")]
    Malformed {
        /// The file.
        file: String,
        /// The format it was read as.
        format: Format,
        /// Where and what.
        why: String,
    },
    /// A snapshot larger than a recording holds.
    #[error(
        "cannot write to {file}: a snapshot of {regions} regions; a recording holds at most {max} (lower max_nr_regions)"
    )]
    TooManyRegions {
        /// The file.
        file: String,
        /// Regions of the snapshot.
        regions: usize,
        /// The limit.
        max: usize,
    },
    /// An item cannot be encoded.
    #[error("cannot write to {file}: {what} cannot be encoded: {why}")]
    Encode {
        /// The file.
        file: String,
        /// Which item.
        what: &'static str,
        /// Why.
        why: String,
    },
    /// Another recorder writes to the output.
    #[error("{file} is being written to by another recorder; it is left to it (choose another name)")]
    BeingWritten {
        /// The file.
        file: String,
    },
    /// The output exists and is not a recording.
    #[error("{file} exists and is not a recording; it is left as it is (remove it, or choose another name)")]
    WouldClobber {
        /// The file.
        file: String,
    },
}

/// The remedy for the errors people meet, as a clause to append.
fn remedy(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            " (free some space; what was saved before, if anything, stays readable)"
        }
        io::ErrorKind::IsADirectory => " (name a file in it)",
        io::ErrorKind::PermissionDenied => " (choose a path you may use, or change its permissions)",
        io::ErrorKind::NotFound => " (check the path)",
        _ => "",
    }
}

impl Error {
    pub(crate) fn io(doing: &'static str, file: &str, source: io::Error) -> Self {
        Self::Io { doing, file: file.to_owned(), source }
    }
}

/// What is wrong with a recording that is read all the same. Complete once the reader has returned `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// The file ends in the middle of something: it was cut, or the writer was killed.
    Truncated {
        /// Where the unreadable tail begins.
        offset: u64,
        /// Its length, bytes; 0 where the format cannot tell.
        lost_bytes: u64,
        /// End of the last snapshot read, ns; 0 when there is none.
        last_ns: u64,
    },
    /// A stretch in the middle cannot be read; reading went on behind it.
    Damaged {
        /// Where the stretch begins.
        offset: u64,
        /// Its length, bytes.
        lost_bytes: u64,
        /// End of the last snapshot before it, ns; 0 when there is none.
        from_ns: u64,
        /// Start of the first snapshot after it, ns.
        to_ns: u64,
    },
    /// Whole blocks are not there, as the numbers of the others show.
    Missing {
        /// Where they would stand.
        offset: u64,
        /// How many.
        blocks: u64,
        /// End of the last snapshot before them, ns; 0 when there is none.
        from_ns: u64,
        /// Start of the first snapshot after them, ns.
        to_ns: u64,
    },
    /// Reading stopped at something that does not belong to the format; what came before was read.
    Stopped {
        /// Where and what.
        why: String,
        /// End of the last snapshot read, ns; 0 when there is none.
        last_ns: u64,
    },
    /// The recording has no end: the recorder was killed, or still runs.
    Unfinished {
        /// End of the last snapshot, ns; 0 when there is none.
        last_ns: u64,
    },
    /// The recording's header is lost: host, command line and attributes are not known.
    HeaderLost,
    /// Parts the reader does not know, or cannot use, were left out.
    Skipped {
        /// How many.
        count: u64,
        /// What they are, plural: `lines that are no damon_aggregated event`.
        what: &'static str,
    },
    /// The file holds several records of the same memory.
    Records {
        /// What each is, a phrase, behind its number.
        list: Vec<String>,
        /// The one that is read, counted from 1; `None`: all of them.
        used: Option<usize>,
    },
    /// Something the file does not say was worked out.
    Assumed {
        /// What, as a sentence.
        what: String,
    },
}

/// What is left of a file that cannot be read to its end.
fn used(last_ns: u64) -> &'static str {
    if last_ns > 0 { "the snapshots before that are used" } else { "no snapshot comes before that" }
}

/// What a stretch that cannot be read leaves, where it is known when it was.
fn gap(from_ns: u64, to_ns: u64) -> Option<String> {
    let gap = to_ns.checked_sub(from_ns).filter(|_| from_ns > 0)?;
    Some(format!(": a gap of {:.3} s", gap as f64 / 1e9))
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { offset, lost_bytes: 0, last_ns } => {
                write!(f, "the recording is cut off at byte {offset}; {}", used(*last_ns))
            }
            Self::Truncated { offset, lost_bytes, last_ns } => write!(
                f,
                "the recording is cut off: the last {lost_bytes} bytes, from byte {offset}, are incomplete; {}",
                used(*last_ns)
            ),
            Self::Damaged { offset, lost_bytes, from_ns, to_ns } => {
                write!(f, "{lost_bytes} bytes at byte {offset} are damaged")?;
                match gap(*from_ns, *to_ns) {
                    Some(gap) => f.write_str(&gap),
                    None => f.write_str("; what they held is missing"),
                }
            }
            Self::Missing { offset, blocks, from_ns, to_ns } => {
                let are = if *blocks == 1 { "1 block is" } else { &format!("{blocks} blocks are") };
                let gap = gap(*from_ns, *to_ns).unwrap_or_default();
                write!(f, "{are} missing before byte {offset}{gap}")
            }
            Self::Stopped { why, last_ns } => write!(f, "reading stopped: {why}; {}", used(*last_ns)),
            Self::Records { list, used } => {
                let list = list.join("; ");
                match used {
                    Some(nth) => write!(f, "it holds several records ({list}); record {nth} is read"),
                    None => {
                        write!(f, "it holds several records ({list}); all are read, as targets of their own")
                    }
                }
            }
            Self::Unfinished { .. } => {
                write!(
                    f,
                    "the recording was not finished: the recorder was killed, or still runs, or what it was made of was cut off"
                )
            }
            Self::HeaderLost => {
                write!(f, "the recording's header is lost: host, command line and attributes are not known")
            }
            Self::Skipped { count: 1, what } => write!(f, "left out: 1 of the {what}"),
            Self::Skipped { count, what } => write!(f, "left out: {count} {what}"),
            Self::Assumed { what } => f.write_str(what),
        }
    }
}
