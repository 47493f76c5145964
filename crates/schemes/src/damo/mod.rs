//! damo's JSON: a list of schemes as `damo --schemes` takes it, or a whole setup as `damo args damon --format json` prints it.
//!
//! Numbers may be numbers, or strings with commas and units, or `min` and `max`; a number without a unit has that of its key. What
//! means "no limit" there (a quota of 0, watermarks of the metric `none`) is none here. Written are schemes as a list.

mod figures;
mod keys;
mod read;
mod write;

pub(crate) use read::read;
pub(crate) use write::write;
