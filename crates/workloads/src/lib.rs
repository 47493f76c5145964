//! Programs with known memory access patterns that print the truth about themselves.
//!
//! A [`Pattern`] (a TOML file, or one of the built-in ones) becomes a [`Plan`], and [`run()`] carries it out: it maps
//! and populates the areas, says `ready`, then lets threads access them phase by phase at the stated rates while the
//! process does nothing else. What happened is told as JSON lines ([`truth`]): for every byte of the areas and any
//! time in a phase, how often it was accessed. A monitor's record can be judged against that byte by byte.
//!
//! A pattern may have several processes: children of the first, which share its memory as a fork leaves it. One truth
//! speaks for all of them.
//!
//! Rates are accesses a second to *each page*, kept by an absolute schedule; what could not be kept is left out, not
//! made up for, and the truth states the achieved rate beside the wanted one. Between passes the threads sleep, so
//! that a pattern leaves a CPU to the monitor.
#![cfg_attr(doctest, doc = include_str!("../README.md"))]

mod area;
mod clock;
mod command;
mod control;
mod crew;
mod family;
mod lines;
mod order;
mod pattern;
mod plan;
mod quantity;
mod ranges;
mod replay;
mod rng;
mod run;
pub mod truth;
mod worker;

pub use clock::now_ns;
pub use command::{Args, CommandError, main};
pub use order::{Order, Popularity};
pub use pattern::{
    AccessSpec, AreaSpec, BUILTIN, Gaps, Kind, Layout, Pattern, PatternError, PhaseSpec, ProcessSpec,
    ResizeSpec, Touch,
};
pub use plan::{AreaPlan, Overrides, PageSizes, PhasePlan, Plan, Stream, ThreadPlan};
pub use quantity::{QuantityError, Rate, Size, Span, Speed};
pub use replay::{Machine, replay};
pub use rng::Rng;
pub use run::{Outcome, RunError, Start, run};
