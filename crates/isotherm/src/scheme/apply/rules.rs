//! From a scheme file to the rules of an engine, and when to read it again.

use crate::args::ApplyArgs;
use isotherm_linux::schemes::Rule;
use isotherm_linux::schemes::preflight::{Finding, add_safe_defaults};
use isotherm_schemes::{Entry, Source, presets};
use std::time::SystemTime;

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

/// Notices that a file was changed.
pub struct Changes {
    path: Option<String>,
    seen: Option<SystemTime>,
}

impl Changes {
    /// A preset does not change, and standard input is read once.
    pub fn of(source: &str) -> Self {
        let path = (source != "-" && !presets::is_preset(source)).then(|| source.to_owned());
        let mut changes = Self { path, seen: None };
        changes.seen = changes.time();
        changes
    }

    fn time(&self) -> Option<SystemTime> {
        std::fs::metadata(self.path.as_ref()?).ok()?.modified().ok()
    }

    /// Whether there is anything that can be read again.
    pub const fn is_file(&self) -> bool {
        self.path.is_some()
    }

    /// Whether it changed since it was last asked. A file that is away for a moment, as editors do, has not.
    pub fn take(&mut self) -> bool {
        let now = self.time();
        let changed = now.is_some() && now != self.seen;
        if changed {
            self.seen = now;
        }
        changed
    }
}
