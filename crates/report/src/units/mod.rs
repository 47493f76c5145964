//! Sizes, times, rates and shares as people write and read them: `2.0 MiB`, `100 ms`, `200 Hz`, `0.3 %`.
//!
//! Parsing takes what the scheme files of the seeds use (`K M G`, `us ms s m h d`, `null` for no bound) and what the
//! formatting half prints, so that a figure copied from a report is a valid argument.

mod format;
mod parse;

pub use format::{
    counted, format_address, format_address_range, format_rate, format_seconds, format_share, format_size,
    format_size_tick, format_size_up, format_time, format_time_exactly, noun, significant,
};
pub use parse::{
    Bounds, Rate, UnitError, parse_address, parse_address_range, parse_bound, parse_bounds, parse_rate,
    parse_share, parse_size, parse_time,
};

/// Nanoseconds in a second.
pub(crate) const SECOND_NS: f64 = 1e9;
