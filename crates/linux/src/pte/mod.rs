//! The `pte` backend.
mod bpf;
pub mod walk;
