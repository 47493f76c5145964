//! The records of a file: several views of the same memory, of which a report wants one.

use std::fmt;

/// Which of the records of a file to read. damo writes one for each scheme it was told to look through: the same memory
/// again and again, which must not be added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RecordChoice {
    /// The first that shows all of the memory: of no scheme; or else of one without filters; or else the first.
    #[default]
    Main,
    /// This one, counted from 1.
    Nth(u32),
    /// All, as targets of their own.
    All,
}

/// What tells a record from the others in its file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Record {
    pub(crate) kdamond: u64,
    pub(crate) context: u64,
    /// The scheme through which the memory was seen; none where it was monitored as such.
    pub(crate) scheme: Option<u64>,
    /// The scheme's filters, in words; empty without.
    pub(crate) filters: String,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kdamond > 0 {
            write!(f, "kdamond {}, ", self.kdamond)?;
        }
        write!(f, "context {}", self.context)?;
        if let Some(scheme) = self.scheme {
            write!(f, ", scheme {scheme}")?;
        }
        if !self.filters.is_empty() {
            write!(f, " ({})", self.filters)?;
        }
        Ok(())
    }
}

/// The index of the record that `choice` means; `None` for all of them. An error says which one there is not.
pub(super) fn choose(records: &[Record], choice: RecordChoice) -> Result<Option<usize>, u32> {
    match choice {
        RecordChoice::All => Ok(None),
        RecordChoice::Nth(nth) => {
            let index = usize::try_from(nth).ok().and_then(|n| n.checked_sub(1));
            index.filter(|&i| i < records.len()).map(Some).ok_or(nth)
        }
        RecordChoice::Main => {
            let monitoring = |r: &Record| r.scheme.is_none() && r.filters.is_empty();
            let first = records.iter().position(monitoring);
            let first = first.or_else(|| records.iter().position(|r| r.filters.is_empty()));
            Ok(Some(first.unwrap_or(0)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_record_is_the_one_that_leaves_nothing_out() {
        let record =
            |scheme, filters: &str| Record { scheme, filters: filters.to_owned(), ..Record::default() };
        let list = [record(Some(0), "allow anon"), record(Some(1), ""), record(None, "")];
        assert_eq!(choose(&list, RecordChoice::Main), Ok(Some(2)));
        assert_eq!(choose(&list[..2], RecordChoice::Main), Ok(Some(1)));
        assert_eq!(choose(&list[..1], RecordChoice::Main), Ok(Some(0)));
        assert_eq!(choose(&list, RecordChoice::Nth(1)), Ok(Some(0)));
        assert_eq!(choose(&list, RecordChoice::Nth(4)), Err(4));
        assert_eq!(choose(&list, RecordChoice::Nth(0)), Err(0));
        assert_eq!(choose(&list, RecordChoice::All), Ok(None));
        assert_eq!(list[0].to_string(), "context 0, scheme 0 (allow anon)");
    }
}
