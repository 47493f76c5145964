//! The model machine: experiments on `isotherm-mm` in virtual time, the same each time for the same seed.
//!
//! [`Patterns`] runs patterns of `isotherm-workloads` on it as the seeds ran theirs (orig, rec, thp, ethp, prcl), and [`Accuracies`]
//! judges what DAMON says of them. [`cores`] is another model: page faults on up to 64 cores.

mod accuracy;
pub mod cores;
mod machine;
mod monitor;
mod patterns;
mod prices;
mod table;
mod tlb;

pub use accuracy::{Accuracies, Checked};
pub use machine::{Error, Events, Resident};
pub use monitor::Sampling;
pub use patterns::{Configuration, Done, Patterns, Setup, Subject, run};
pub use table::{accuracy_table, table};
