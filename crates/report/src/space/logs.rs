//! Shares of memory that several targets map, put together.

use std::collections::BTreeMap;

/// Of several shares, each as `-ln(1 - share)`, the same of what they come to: their sum where which bytes each is of is independent
/// of the others, the largest where they are of the same bytes.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    sum: i64,
    /// Each as often as it was put in, but for 0; where the largest is what counts.
    each: Option<BTreeMap<i64, i64>>,
}

impl Logs {
    pub fn new(is_same: bool) -> Self {
        Self { sum: 0, each: is_same.then(BTreeMap::new) }
    }

    /// Puts one in, or takes it out (-1).
    pub fn change(&mut self, log: i64, by: i64) {
        self.sum += by * log;
        if let Some(each) = &mut self.each
            && log != 0
        {
            let count = each.entry(log).or_insert(0);
            *count += by;
            if *count == 0 {
                each.remove(&log);
            }
        }
    }

    /// Whether all are of the same bytes.
    pub fn are_same(&self) -> bool {
        self.each.is_some()
    }

    /// What they come to.
    pub fn get(&self) -> i64 {
        match &self.each {
            None => self.sum,
            Some(each) => each.last_key_value().map_or(0, |(log, _)| *log),
        }
    }
}

/// Numbers, each as often as it was put in.
#[derive(Debug, Default)]
pub(super) struct Multiset(BTreeMap<u32, usize>);

impl Multiset {
    /// Puts a number in, or takes it out.
    pub fn change(&mut self, value: u32, begins: bool) {
        if begins {
            *self.0.entry(value).or_default() += 1;
        } else if let Some(count) = self.0.get_mut(&value) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&value);
            }
        }
    }

    /// The lowest number in it.
    pub fn lowest(&self) -> Option<u32> {
        self.0.keys().next().copied()
    }
}
