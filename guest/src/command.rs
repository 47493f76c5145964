//! The language spoken on the serial line: a command a line, words apart by blanks.

use crate::job::Job;
use core::fmt;
use core::str::SplitAsciiWhitespace;
use isotherm_frames::Order;

/// Random operations of `paging` when it is not given their number.
const OPERATIONS: u64 = 2000;

/// Rounds of `processes`, and memory for their pages, when they are not given.
const ROUNDS: u64 = 3;
const MEMORY: u64 = 8 << 20;

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// `alloc`, `touch`, `check`, `free`, `rounds`, `memhog`: what all processors have a share of.
    Work(Job),
    /// `report on|off`: whether free memory is reported to the host.
    Report {
        /// On or off.
        on: bool,
    },
    /// `sweep`: report all free memory now, whatever the delay; prints how much.
    Sweep,
    /// `paging [SEED] [N] [without LAPSE]`: have the processor walk the page tables under test.
    Paging {
        /// Of the random operations.
        seed: u64,
        /// How many random operations there are.
        operations: u64,
        /// A duty that is left out, to show that it is noticed.
        lapse: Option<Lapse>,
    },
    /// `processes [SEED] [ROUNDS] [SIZE]`: user programs on isotherm-mm.
    Processes {
        /// Of what they write.
        seed: u64,
        /// Rounds of each program.
        rounds: u64,
        /// Memory for their pages.
        bytes: u64,
    },
    /// `stats`: print what memory is used for.
    Stats,
    /// `crash panic|fault|lost|stack`: end the run the way bugs do.
    Crash(Crash),
    /// `help`: list the commands.
    Help,
    /// `exit`: end the run.
    Exit,
}

/// Ways to crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// A panic.
    Panic,
    /// A read at address 0.
    Fault,
    /// A live page overwritten, then checked.
    Lost,
    /// Endless recursion.
    Stack,
}

/// Duties of a kernel that can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lapse {
    /// Other processors get no message of what to forget.
    Shootdown,
    /// This processor does not forget.
    Flush,
    /// A page is not copied when a write fault needs a copy.
    Copy,
    /// A frame is not given back.
    Free,
    /// A page table is given back while others may still walk through it.
    Grace,
}

/// What the guest says to `help`, a line a command.
pub const HELP: [&str; 14] = [
    "alloc SIZE [ORDER]   allocate in blocks of ORDER (default 9), a share on each processor",
    "touch                stamp every live page",
    "check                check every live page's stamps",
    "free SIZE|all        free the youngest blocks",
    "rounds N [SIZE]      N rounds of allocate, stamp, check, free, report, with up to SIZE live (default 64M)",
    "memhog SIZE          allocate, write every byte, free",
    "report on|off        report free memory to the host, or not",
    "sweep                report all free memory now",
    "paging [SEED] [N] [without shootdown|flush|copy|free|grace]   page tables walked by the processor, N random operations",
    "processes [SEED] [ROUNDS] [SIZE]   user programs that fault, fork, share and are swapped, in SIZE of memory (default 8M)",
    "stats                what memory is used for",
    "crash panic|fault|lost|stack   end the run as a bug would",
    "help                 this",
    "exit                 end the run",
];

/// Why a line is no command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseError<'a> {
    /// No such command.
    Unknown(&'a str),
    /// A word is missing: what it would say.
    Missing(&'static str),
    /// A word that says something else than it should: the word, and what it should say.
    Wrong(&'a str, &'static str),
    /// A word too many.
    Surplus(&'a str),
}

impl fmt::Display for ParseError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(word) => write!(f, "unknown command {word:?}; see help"),
            Self::Missing(what) => write!(f, "{what} is missing; see help"),
            Self::Wrong(word, what) => write!(f, "{word:?} is not {what}"),
            Self::Surplus(word) => write!(f, "{word:?} is one word too many; see help"),
        }
    }
}

impl Command {
    /// Reads a line.
    ///
    /// # Errors
    /// Names the first word that cannot be understood.
    pub fn parse(line: &str) -> Result<Self, ParseError<'_>> {
        let mut words = line.split_ascii_whitespace();
        let name = words.next().unwrap_or_default();
        let command = match name {
            "alloc" => {
                let bytes = take_size(&mut words)?;
                let order = match words.next() {
                    None => Order::HUGE,
                    Some(word) => {
                        let order = word.parse().ok().and_then(Order::new);
                        order.ok_or(ParseError::Wrong(word, "an order, 0 to 10"))?
                    }
                };
                Self::Work(Job::Alloc { bytes, order })
            }
            "touch" => Self::Work(Job::Touch),
            "check" => Self::Work(Job::Check),
            "free" => {
                if words.clone().next() == Some("all") {
                    words.next();
                    Self::Work(Job::Free { bytes: u64::MAX })
                } else {
                    Self::Work(Job::Free { bytes: take_size(&mut words)? })
                }
            }
            "rounds" => {
                const COUNT: &str = "a number of rounds";
                let word = words.next().ok_or(ParseError::Missing(COUNT))?;
                let rounds = word.parse().map_err(|_| ParseError::Wrong(word, COUNT))?;
                let bytes = if words.clone().next().is_some() { take_size(&mut words)? } else { 64 << 20 };
                Self::Work(Job::Rounds { rounds, bytes })
            }
            "memhog" => Self::Work(Job::Memhog { bytes: take_size(&mut words)? }),
            "report" => match words.next().ok_or(ParseError::Missing("on or off"))? {
                "on" => Self::Report { on: true },
                "off" => Self::Report { on: false },
                word => return Err(ParseError::Wrong(word, "on or off")),
            },
            "sweep" => Self::Sweep,
            "paging" => {
                let (seed, operations) = (take_number(&mut words, 1), take_number(&mut words, OPERATIONS));
                let lapse = match words.next() {
                    None => None,
                    Some("without") => Some(take_lapse(&mut words)?),
                    Some(word) => {
                        return Err(ParseError::Wrong(
                            word,
                            "\"without\", nor one of the two numbers before it",
                        ));
                    }
                };
                Self::Paging { seed, operations, lapse }
            }
            "processes" => {
                let (seed, rounds) = (take_number(&mut words, 1), take_number(&mut words, ROUNDS));
                if rounds == 0 {
                    return Err(ParseError::Wrong("0", "a number of rounds"));
                }
                let bytes = if words.clone().next().is_some() { take_size(&mut words)? } else { MEMORY };
                Self::Processes { seed, rounds, bytes }
            }
            "stats" => Self::Stats,
            "crash" => {
                const WAYS: &str = "panic, fault, lost or stack";
                Self::Crash(match words.next().ok_or(ParseError::Missing(WAYS))? {
                    "panic" => Crash::Panic,
                    "fault" => Crash::Fault,
                    "lost" => Crash::Lost,
                    "stack" => Crash::Stack,
                    word => return Err(ParseError::Wrong(word, WAYS)),
                })
            }
            "help" => Self::Help,
            "exit" => Self::Exit,
            word => return Err(ParseError::Unknown(word)),
        };
        words.next().map_or(Ok(command), |word| Err(ParseError::Surplus(word)))
    }
}

/// The next word if it is a number, else a default, and the word stays.
fn take_number(words: &mut SplitAsciiWhitespace<'_>, default: u64) -> u64 {
    match words.clone().next().map(str::parse) {
        Some(Ok(number)) => {
            words.next();
            number
        }
        _ => default,
    }
}

fn take_lapse<'a>(words: &mut SplitAsciiWhitespace<'a>) -> Result<Lapse, ParseError<'a>> {
    const LAPSES: &str = "shootdown, flush, copy, free or grace";
    match words.next().ok_or(ParseError::Missing(LAPSES))? {
        "shootdown" => Ok(Lapse::Shootdown),
        "flush" => Ok(Lapse::Flush),
        "copy" => Ok(Lapse::Copy),
        "free" => Ok(Lapse::Free),
        "grace" => Ok(Lapse::Grace),
        word => Err(ParseError::Wrong(word, LAPSES)),
    }
}

fn take_size<'a>(words: &mut SplitAsciiWhitespace<'a>) -> Result<u64, ParseError<'a>> {
    const SIZE: &str = "a size such as 4096, 64K, 512M or 2G";
    let word = words.next().ok_or(ParseError::Missing(SIZE))?;
    parse_size(word).ok_or(ParseError::Wrong(word, SIZE))
}

/// Bytes: a number, with K, M, G or T for powers of 1024.
fn parse_size(word: &str) -> Option<u64> {
    let units = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];
    let unit = units.iter().find_map(|&(letter, shift)| Some((word.strip_suffix(letter)?, shift)));
    let (digits, shift) = unit.unwrap_or((word, 0));
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_understood_with_their_defaults() {
        for (line, command) in [
            ("alloc 512M", Command::Work(Job::Alloc { bytes: 512 << 20, order: Order::HUGE })),
            ("  alloc 4096   0 ", Command::Work(Job::Alloc { bytes: 4096, order: Order::BASE })),
            ("free all", Command::Work(Job::Free { bytes: u64::MAX })),
            ("free 2G", Command::Work(Job::Free { bytes: 2 << 30 })),
            ("rounds 1000", Command::Work(Job::Rounds { rounds: 1000, bytes: 64 << 20 })),
            ("rounds 3 1T", Command::Work(Job::Rounds { rounds: 3, bytes: 1 << 40 })),
            ("paging", Command::Paging { seed: 1, operations: OPERATIONS, lapse: None }),
            ("paging 7 50", Command::Paging { seed: 7, operations: 50, lapse: None }),
            (
                "paging 7 without copy",
                Command::Paging { seed: 7, operations: OPERATIONS, lapse: Some(Lapse::Copy) },
            ),
            ("processes", Command::Processes { seed: 1, rounds: 3, bytes: 8 << 20 }),
            ("processes 7 2 4M", Command::Processes { seed: 7, rounds: 2, bytes: 4 << 20 }),
            ("report off", Command::Report { on: false }),
            ("crash stack", Command::Crash(Crash::Stack)),
            ("exit", Command::Exit),
        ] {
            assert_eq!(Command::parse(line), Ok(command), "{line}");
        }
    }

    #[test]
    fn what_is_no_command_is_told_by_its_word() {
        for (line, told) in [
            ("", "unknown command \"\""),
            ("allocate 1M", "\"allocate\""),
            ("alloc", "a size such as"),
            ("alloc 1Q", "\"1Q\""),
            ("alloc M", "\"M\""),
            ("alloc +5", "\"+5\""),
            ("alloc 99999999999999T", "\"99999999999999T\""),
            ("alloc 1M 11", "an order, 0 to 10"),
            ("rounds -1", "a number of rounds"),
            ("report maybe", "on or off"),
            ("paging 5 6 7", "\"7\" is not \"without\""),
            ("paging -1", "\"-1\""),
            ("paging without", "shootdown, flush, copy, free or grace is missing"),
            ("paging without care", "\"care\""),
            ("exit now", "one word too many"),
        ] {
            let error = Command::parse(line).expect_err(line).to_string();
            assert!(error.contains(told), "{line}: {error}");
        }
    }

    #[test]
    fn help_names_every_command() {
        for line in HELP {
            let name = line.split(' ').next().unwrap();
            assert!(!matches!(Command::parse(name), Err(ParseError::Unknown(_))), "{name}");
        }
    }
}
