//! The TOML format of scheme files: what it means stands in `docs/schemes.md`.

mod read;
mod table;
mod write;

pub(crate) use read::read;
pub(crate) use write::write;
