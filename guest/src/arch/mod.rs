//! What is different from processor to processor. Each has the same modules:
//!
//! | module | what |
//! |---|---|
//! | `boot` | entry of the processors, and symbols that its assembly and Rust have in common |
//! | `clock` | time |
//! | `faults` | exceptions, told in words or handed to the experiment with page tables |
//! | `interrupts` | holding interrupts back, and sleeping until one comes |
//! | `paging` | the identity map |
//! | `power` | how a run ends |
//! | `processor` | which processor this is |
//! | `serial` | the port of the serial line |
//! | `transport` | where the balloon is, if there is one |
//!
//! and `wake`, which ends another processor's sleep.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub use self::x86_64::*;
