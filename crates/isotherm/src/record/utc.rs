//! Wall-clock time in words: of summaries, and in the names of files.

/// A moment of UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utc {
    date: (i64, u64, u64),
    second_of_day: u64,
    millisecond: u64,
}

impl Utc {
    /// From nanoseconds since 1970.
    pub fn from_ns(ns: u64) -> Self {
        let seconds = ns / 1_000_000_000;
        let millisecond = ns / 1_000_000 % 1000;
        Self { date: date_of((seconds / 86_400) as i64), second_of_day: seconds % 86_400, millisecond }
    }

    fn clock(self) -> (u64, u64, u64) {
        (self.second_of_day / 3600, self.second_of_day / 60 % 60, self.second_of_day % 60)
    }

    /// As RFC 3339 has it, to the millisecond: `2026-08-01T12:00:00.250Z`.
    pub fn rfc_3339(self) -> String {
        let ((year, month, day), (hour, minute, second)) = (self.date, self.clock());
        let millisecond = self.millisecond;
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millisecond:03}Z")
    }

    /// For the name of a file, in which names sort by time: `20260801T120000Z`.
    pub fn for_name(self) -> String {
        let ((year, month, day), (hour, minute, second)) = (self.date, self.clock());
        format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
    }
}

/// Year, month and day of the proleptic Gregorian calendar from days since 1970-01-01 (H. Hinnant, "chrono-compatible low-level
/// date algorithms", `civil_from_days`): years begin in March, so that the day that a leap year has more is its last.
fn date_of(days: i64) -> (i64, u64, u64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month.unsigned_abs(), day.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_date() {
        // Each as `date -u -d @SECONDS` prints it.
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00"),
            (951_782_399, "2000-02-28T23:59:59"),
            (951_782_400, "2000-02-29T00:00:00"),
            (1_709_251_199, "2024-02-29T23:59:59"),
            (1_767_225_599, "2025-12-31T23:59:59"),
            (1_785_585_600, "2026-08-01T12:00:00"),
            (4_107_542_400, "2100-03-01T00:00:00"),
        ] {
            let utc = Utc::from_ns(seconds * 1_000_000_000 + 7_000_000);
            assert_eq!(utc.rfc_3339(), format!("{text}.007Z"));
            assert_eq!(utc.for_name(), text.replace(['-', ':'], "") + "Z");
        }
    }
}
