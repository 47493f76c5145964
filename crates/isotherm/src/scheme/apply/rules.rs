//! From a scheme file to the rules of an engine, and when to read it again.

use crate::args::ApplyArgs;
use isotherm_linux::schemes::Rule;
use isotherm_linux::schemes::preflight::{Finding, add_safe_defaults};
use isotherm_schemes::{Entry, Source, presets};
use std::time::{Duration, SystemTime};

/// What a file says.
pub struct Loaded {
    pub rules: Vec<Rule>,
    /// Where the values of goals come from: scheme, goal, source.
    pub inputs: Vec<(usize, usize, Source)>,
    /// Limits that were added.
    pub added: Vec<Finding>,
}

/// Reads it.
///
/// # Errors
/// All that is wrong with it.
pub fn load(args: &ApplyArgs) -> anyhow::Result<Loaded> {
    let file = crate::scheme::load(&args.schemes.schemes, args.schemes.from)?;
    for remark in &file.remarks {
        say!("isotherm: {}: {remark}", args.schemes.schemes);
    }
    let mut rules: Vec<Rule> =
        file.entries.iter().enumerate().map(|(index, entry)| rule(args, index, entry)).collect();
    let added = add_safe_defaults(&mut rules);
    let of = |(scheme, entry): (usize, &Entry)| {
        let sources = entry.sources.iter();
        sources.map(|(goal, source)| (scheme, *goal, source.clone())).collect::<Vec<_>>()
    };
    let inputs = file.entries.iter().enumerate().flat_map(of).collect();
    Ok(Loaded { rules, inputs, added })
}

fn rule(args: &ApplyArgs, index: usize, entry: &Entry) -> Rule {
    let share = |bp: Option<u32>| bp.map(|bp| f64::from(bp) / 10_000.0);
    Rule {
        name: entry.title(index),
        scheme: entry.scheme.clone(),
        max_refault_rate: share(entry.guard.max_refault_bp).or(args.max_refault_rate),
        max_pressure: share(entry.guard.max_psi_bp).or(args.max_pressure).map(|share| share * 100.0),
    }
}

/// A changed file has to look the same for so long before it is read: while somebody writes it its first half may be a valid file.
const STILL: Duration = Duration::from_millis(200);

/// Notices that a file was changed.
pub struct Changes {
    path: Option<String>,
    /// When it was changed and how long it was: as it was last taken, and as it was last seen, how often in a row.
    taken: Option<(SystemTime, u64)>,
    last: Option<(SystemTime, u64)>,
    still: u32,
    /// How often that has to be.
    enough: u32,
}

impl Changes {
    /// Of what is looked at every `step`. A preset does not change, and standard input is read once.
    pub fn of(source: &str, step: Duration) -> Self {
        let path = (source != "-" && !presets::is_preset(source)).then(|| source.to_owned());
        let enough = STILL.as_nanos().div_ceil(step.as_nanos().max(1));
        let enough = u32::try_from(enough).unwrap_or(u32::MAX);
        let mut changes = Self { path, taken: None, last: None, still: 0, enough };
        changes.taken = changes.state();
        changes
    }

    fn state(&self) -> Option<(SystemTime, u64)> {
        let metadata = std::fs::metadata(self.path.as_ref()?).ok()?;
        Some((metadata.modified().ok()?, metadata.len()))
    }

    /// Whether there is anything that can be read again.
    pub const fn is_file(&self) -> bool {
        self.path.is_some()
    }

    /// It is read now, whether it changed or not.
    pub fn take(&mut self) {
        self.taken = self.state().or(self.taken);
    }

    /// Whether it changed since it was last taken, and is written; it is taken then. A file that is away for a moment, as editors do, has
    /// not changed.
    pub fn take_changed(&mut self) -> bool {
        let now = self.state();
        let same = std::mem::replace(&mut self.last, now) == now;
        self.still = if same { self.still.saturating_add(1) } else { 0 };
        let changed = now.is_some() && now != self.taken && self.still >= self.enough;
        if changed {
            self.taken = now;
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_taken_once_it_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("schemes.toml");
        let write = |text: &str| std::fs::write(&path, text).unwrap();
        write("old");
        let mut changes = Changes::of(path.to_str().unwrap(), STILL / 4);
        let looks = |changes: &mut Changes, times: u32| (0..times).filter(|_| changes.take_changed()).count();
        assert_eq!(looks(&mut changes, 10), 0, "nobody changed it");
        for part in ["n", "ne", "new", "newer"] {
            write(part);
            assert_eq!(looks(&mut changes, 4), 0, "it is being written");
        }
        assert_eq!(looks(&mut changes, 10), 1);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(looks(&mut changes, 10), 0, "it is away for a moment");
        write("a third one");
        changes.take();
        assert_eq!(looks(&mut changes, 10), 0, "it was read when somebody asked for it");
    }
}
