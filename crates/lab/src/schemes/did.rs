//! What schemes did, added up from the log of `isotherm scheme apply`.

use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// A line of the log, as far as it is needed here.
#[derive(Deserialize)]
struct Line {
    scheme: String,
    action: String,
    window_ns: Option<u64>,
    tried: u64,
    applied: u64,
    #[serde(default)]
    left: BTreeMap<String, u64>,
    latency_us: u64,
    /// How long of that others had the CPU.
    #[serde(default)]
    waited_us: u64,
}

/// What all schemes of a run did.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Did {
    /// Actions.
    pub actions: u64,
    /// Bytes paged out.
    pub paged_out: u64,
    /// Bytes on which any other action took effect.
    pub acted_on: u64,
    /// Bytes left alone, by reason.
    pub left: BTreeMap<String, u64>,
    /// Time that actions took, ns.
    pub acting_ns: u64,
    /// Bytes tried in a second of the time that actions took, by action.
    pub throughput: BTreeMap<String, u64>,
    /// Most bytes tried in one window of a scheme's quota.
    pub most_in_window: u64,
    /// The most time that actions of one such window took, ns.
    pub longest_in_window_ns: u64,
}

impl Did {
    /// Adds up a log.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let file = File::open(path).context("the schemes left no log")?;
        let mut did = Self::default();
        let mut windows: BTreeMap<(String, u64), (u64, u64)> = BTreeMap::new();
        let mut by_action: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        for line in BufReader::new(file).lines() {
            let line: Line = serde_json::from_str(&line?).context("a line of the log is none")?;
            did.actions += 1;
            let of_kind = if line.action == "pageout" { &mut did.paged_out } else { &mut did.acted_on };
            *of_kind += line.applied;
            line.left.into_iter().for_each(|(reason, bytes)| *did.left.entry(reason).or_default() += bytes);
            let ns = line.latency_us.saturating_sub(line.waited_us).saturating_mul(1000);
            did.acting_ns += ns;
            let (tried, took) = by_action.entry(line.action).or_default();
            (*tried, *took) = (*tried + line.tried, *took + ns);
            if let Some(window) = line.window_ns {
                let (tried, took) = windows.entry((line.scheme, window)).or_default();
                (*tried, *took) = (*tried + line.tried, *took + ns);
                did.most_in_window = did.most_in_window.max(*tried);
                did.longest_in_window_ns = did.longest_in_window_ns.max(*took);
            }
        }
        // An action of which nothing was long enough to measure has none.
        let known = by_action.into_iter().filter(|(_, (tried, took))| *tried > 0 && *took > 0);
        did.throughput = known
            .map(|(action, (tried, took))| {
                let rate = u128::from(tried) * 1_000_000_000 / u128::from(took);
                (action, u64::try_from(rate).unwrap_or(u64::MAX))
            })
            .collect();
        Ok(did)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_added_up_by_window_and_reason() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let line = |action: &str, window: u64, applied: u64| {
            format!(
                r#"{{"scheme":"s","action":"{action}","window_ns":{window},"tried":10,"applied":{applied},"left":{{"shared":3}},"latency_us":7}}"#
            )
        };
        let lines = [line("pageout", 1, 10), line("pageout", 1, 8), line("cold", 2, 5)];
        std::fs::write(&path, lines.join("\n")).unwrap();
        let did = Did::read(&path).unwrap();
        assert_eq!((did.actions, did.paged_out, did.acted_on), (3, 18, 5));
        assert_eq!((did.most_in_window, did.longest_in_window_ns, did.acting_ns), (20, 14_000, 21_000));
        assert_eq!(did.left["shared"], 9);
        // 20 bytes in 14 us.
        assert_eq!((did.throughput["pageout"], did.throughput["cold"]), (1_428_571, 1_428_571));
        std::fs::write(&path, "{\n").unwrap();
        assert!(Did::read(&path).is_err());
    }
}
