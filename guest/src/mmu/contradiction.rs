//! What the experiment ends with when hardware, page tables and expectation do not agree.

use alloc::string::String;
use core::fmt;
use isotherm_page::PageError;
use isotherm_pagetable::{Error, Stopped};

/// The first thing that was found to be otherwise than it must be, in words.
#[derive(Debug)]
pub struct Contradiction(pub String);

/// Done, or what was found.
pub type Checked<T = ()> = Result<T, Contradiction>;

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<Error> for Contradiction {
    fn from(why: Error) -> Self {
        Self(alloc::format!("an operation that must succeed failed: {why}"))
    }
}

impl From<PageError> for Contradiction {
    fn from(why: PageError) -> Self {
        Error::from(why).into()
    }
}

impl From<Stopped> for Contradiction {
    fn from(why: Stopped) -> Self {
        Self(alloc::format!("an operation that must succeed {why}"))
    }
}

/// Goes on if the condition holds, and else returns what is said behind it.
macro_rules! ensure {
    ($holds:expr, $($text:tt)+) => {
        if !$holds {
            return Err($crate::mmu::contradiction::Contradiction(alloc::format!($($text)+)));
        }
    };
}
pub(super) use ensure;
