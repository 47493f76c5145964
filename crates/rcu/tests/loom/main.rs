//! The protocol of `Qsbr` under loom, which tries the orders in which threads can run and what their loads may return:
//! `CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true RUSTFLAGS='--cfg loom' cargo test --release --test loom`.
//!
//! Loom tries all orders with up to as many preemptions as each model states; a thread that yields or ends is none. The
//! variable `LOOM_MAX_PREEMPTIONS` sets another bound.
//!
//! | module | what its models are about |
//! |---|---|
//! | `periods` | when a grace period is over |
//! | `moved` | callers that change their CPU in the middle of a function, and interrupts |
//! | `lists` | CPUs that contend for the callbacks of one |
//!
//! Objects, and in these builds also heads and lists, are cells that loom watches: it reports accesses that are not ordered.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod lists;
mod moved;
mod periods;
mod world;
