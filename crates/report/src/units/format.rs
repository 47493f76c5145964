//! Figures with their units, for people.

use super::parse::parse_time;
use isotherm_damon::AddrRange;
use std::time::Duration;

const SIZE_UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// Bytes with a binary unit and one decimal: `512 B`, `2.0 MiB`.
pub fn format_size(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    let mut unit = 0;
    // 1023.95 would print as 1024.0.
    while value >= 1023.95 && unit + 1 < SIZE_UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", SIZE_UNITS[unit])
}

/// The same rounded up, as an upper bound is printed: never less than `bytes`, as far as a float tells them apart.
pub fn format_size_up(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    let mut unit = 0;
    while (value * 10.0).ceil() >= 10_240.0 && unit + 1 < SIZE_UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{:.1} {}", (value * 10.0).ceil() / 10.0, SIZE_UNITS[unit])
}

/// Bytes for an axis: as many digits as a round value needs, up to four: `512 MiB`, `1.25 GiB`.
pub fn format_size_tick(bytes: u64) -> String {
    let unit = (bytes.max(1).ilog2() / 10) as usize;
    format!("{} {}", significant(bytes as f64 / 2f64.powi(10 * unit as i32), 4), SIZE_UNITS[unit.min(6)])
}

/// A time of `ns` nanoseconds in its most fitting unit: `850 ns`, `100 ms`, `12.5 s`, `3m 20s`, `2h 5m`, `3d 4h`.
pub fn format_time(ns: u64) -> String {
    let value = ns as f64;
    let rounded_s = ns.saturating_add(500_000_000) / 1_000_000_000;
    match ns {
        0 => "0 s".to_owned(),
        1..1_000 => format!("{ns} ns"),
        1_000..999_500 => format!("{} us", significant(value / 1e3, 3)),
        999_500..999_500_000 => format!("{} ms", significant(value / 1e6, 3)),
        999_500_000..99_950_000_000 => format!("{} s", significant(value / 1e9, 3)),
        _ => match rounded_s {
            0..3_600 => two_units(rounded_s, 60, "m", 1, "s"),
            3_600..86_400 => two_units(rounded_s, 3_600, "h", 60, "m"),
            _ => two_units(rounded_s, 86_400, "d", 3_600, "h"),
        },
    }
}

/// A time without rounding, in the same units: `900 ms`, `1.000000001 s`. For messages that compare what was given with what
/// is allowed: rounded, both might look the same.
pub fn format_time_exactly(time: Duration) -> String {
    let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let rounded = format_time(ns);
    if parse_time(&rounded) == Ok(Duration::from_nanos(ns)) {
        return rounded;
    }
    let (unit, digits, name) = match ns {
        0..1_000_000 => (1_000, 3, "us"),
        1_000_000..1_000_000_000 => (1_000_000, 6, "ms"),
        _ => (1_000_000_000, 9, "s"),
    };
    let decimal = format!("{}.{:0digits$}", ns / unit, ns % unit);
    format!("{} {name}", decimal.trim_end_matches('0').trim_end_matches('.'))
}

/// Seconds with millisecond resolution, for columns that line up: `12.300`.
pub fn format_seconds(ns: u64) -> String {
    format!("{}.{:03}", ns / 1_000_000_000, ns / 1_000_000 % 1_000)
}

fn two_units(seconds: u64, large: u64, large_name: &str, small: u64, small_name: &str) -> String {
    let rest = seconds % large / small;
    match rest {
        0 => format!("{}{large_name}", seconds / large),
        _ => format!("{}{large_name} {rest}{small_name}", seconds / large),
    }
}

/// An access rate in hertz (accesses seen a second): `0 Hz`, `0.25 Hz`, `200 Hz`, `1.2 kHz`, `3 MHz`.
pub fn format_rate(hz: f64) -> String {
    match hz {
        _ if !hz.is_finite() => "? Hz".to_owned(),
        _ if hz < 999.5 => format!("{} Hz", significant(hz, 3)),
        _ if hz < 999_500.0 => format!("{} kHz", significant(hz / 1e3, 3)),
        _ => format!("{} MHz", significant(hz / 1e6, 3)),
    }
}

/// A share as a percentage: 0.003 is `0.3 %`. Three significant digits, none past the fourth decimal.
pub fn format_share(share: f64) -> String {
    if share.is_finite() { format!("{} %", significant(share * 100.0, 3)) } else { "? %".to_owned() }
}

/// How many of what: `1 file`, `2 files`, `0 processes`.
pub fn counted(count: u64, one: &str) -> String {
    format!("{count} {}", noun(count, one))
}

/// What is counted, in the number that goes with `count`: `file`, `files`. Of the noun's last word the plural is made by
/// the common rule.
pub fn noun(count: u64, one: &str) -> String {
    match count {
        1 => one.to_owned(),
        _ if one.ends_with(['s', 'x']) => format!("{one}es"),
        _ => format!("{one}s"),
    }
}

/// An address as the kernel prints it in `/proc/PID/maps`, with `0x` before it.
pub fn format_address(address: u64) -> String {
    format!("{address:#x}")
}

/// A range of addresses, as it can be given back.
pub fn format_address_range(range: AddrRange) -> String {
    format!("{}-{}", format_address(range.start), format_address(range.end))
}

/// `value` rounded to `digits` significant digits, without trailing zeros and with at most four decimals: 12.5, 200,
/// 0.25. What is not 0 but rounds to it prints as `<0.0001`.
pub fn significant(value: f64, digits: i32) -> String {
    if value == 0.0 || !value.is_finite() {
        return if value == 0.0 { "0".to_owned() } else { "?".to_owned() };
    }
    let magnitude = value.abs().log10().floor() as i32;
    let decimals = (digits - 1 - magnitude).clamp(0, 4) as usize;
    let text = format!("{value:.decimals$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    if text == "0" || text == "-0" { "<0.0001".to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exact_time_is_what_was_given() {
        for (ns, text) in [
            (0, "0 s"),
            (999, "999 ns"),
            (1_500, "1.5 us"),
            (999_999, "999.999 us"),
            (900_000_000, "900 ms"),
            (999_999_999, "999.999999 ms"),
            (1_000_000_001, "1.000000001 s"),
            (200_000_000_000, "3m 20s"),
            (200_500_000_000, "200.5 s"),
        ] {
            let time = Duration::from_nanos(ns);
            assert_eq!(format_time_exactly(time), text);
            assert_eq!(parse_time(text), Ok(time));
        }
    }

    #[test]
    fn bounds_are_rounded_up() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1025, "1.1 KiB"),
            (2 << 20, "2.0 MiB"),
            ((2 << 20) + 1, "2.1 MiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            ((1 << 30) + 1, "1.1 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(format_size_up(bytes), text, "{bytes}");
        }
    }

    #[test]
    fn sizes_have_a_binary_unit_and_one_decimal() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (4096, "4.0 KiB"),
            (2 << 20, "2.0 MiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (1536 << 20, "1.5 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(format_size(bytes), text);
        }
    }

    #[test]
    fn one_is_singular() {
        for (count, what, text) in [
            (0, "file", "0 files"),
            (1, "file", "1 file"),
            (2, "file", "2 files"),
            (1, "process", "1 process"),
            (3, "process", "3 processes"),
            (1, "sampling interval", "1 sampling interval"),
        ] {
            assert_eq!(counted(count, what), text);
        }
    }

    #[test]
    fn ticks_are_exact_where_round() {
        for (bytes, text) in [(0, "0 B"), (512 << 20, "512 MiB"), (5 << 28, "1.25 GiB"), (1 << 60, "1 EiB")] {
            assert_eq!(format_size_tick(bytes), text);
        }
    }

    #[test]
    fn times_pick_the_unit_a_person_would() {
        for (ns, text) in [
            (0, "0 s"),
            (850, "850 ns"),
            (5_000_000, "5 ms"),
            (12_500, "12.5 us"),
            (100_000_000, "100 ms"),
            (999_999_999, "1 s"),
            (12_345_000_000, "12.3 s"),
            (100_000_000_000, "1m 40s"),
            (3_600_000_000_000, "1h"),
            (7_500_000_000_000, "2h 5m"),
            (100 * 3_600_000_000_000, "4d 4h"),
        ] {
            assert_eq!(format_time(ns), text);
        }
        assert_eq!(format_seconds(12_345_678_901), "12.345");
        assert!(format_time(u64::MAX).ends_with('h'));
    }

    #[test]
    fn rates_and_shares_keep_three_digits() {
        for (hz, text) in [
            (0.0, "0 Hz"),
            (200.0, "200 Hz"),
            (0.25, "0.25 Hz"),
            (33.333, "33.3 Hz"),
            (1200.0, "1.2 kHz"),
            (2e6, "2 MHz"),
        ] {
            assert_eq!(format_rate(hz), text);
        }
        assert_eq!(format_share(0.003), "0.3 %");
        assert_eq!(format_share(1.0), "100 %");
        assert_eq!(format_share(0.000_000_001), "<0.0001 %");
        assert_eq!(format_rate(f64::NAN), "? Hz");
    }
}
