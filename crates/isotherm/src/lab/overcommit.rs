//! `isotherm lab overcommit`.

use super::experiment::{Report, stop_on_signals};
use crate::args::{OvercommitArgs, OvercommitPart};
use anyhow::bail;
use isotherm_lab::Watch;
use isotherm_lab::machine::available_memory;
use isotherm_lab::overcommit::{Budget, Memhog, Overcommit, Setup, details, fit, memhog, table};
use isotherm_qemu::{Accel, DEFAULT_PROGRAM, Error, Machine};
use std::path::PathBuf;
use std::process::ExitCode;

/// Does both experiments, or the one that is asked for.
///
/// # Errors
/// The sizes make no sense or this machine has not got that much memory; a guest cannot be booted, or ends.
pub fn run(args: &OvercommitArgs) -> anyhow::Result<ExitCode> {
    let setup = setup(args)?;
    let mut progress = |line: &str| say!("lab overcommit: {line}");
    let mut watch = Watch { stop: stop_on_signals()?, progress: &mut progress };
    let mut results = Overcommit::default();
    let outcome = measure(args.only, &setup, &mut results, &mut watch);
    if let (Some(OvercommitPart::Enforced), Some(why)) = (args.only, &results.not_enforced) {
        bail!("no budget can be enforced here: {why}");
    }
    let interrupted = matches!(outcome, Err(Error::Interrupted));
    let report = Report { ok: results.ok(), interrupted, setup, results };
    let text = |report: &Report<Setup, Overcommit>| {
        let details = if args.details { details(&report.results) } else { String::new() };
        details + &table(&report.setup, &report.results)
    };
    report.tell("overcommit", args.json, text, outcome)
}

fn measure(
    only: Option<OvercommitPart>,
    setup: &Setup,
    results: &mut Overcommit,
    watch: &mut Watch<'_>,
) -> Result<(), Error> {
    if only.is_none_or(|only| only == OvercommitPart::Fit) {
        for reporting in [false, true] {
            results.fit.push(fit(setup, reporting, watch)?);
        }
    }
    if only.is_none_or(|only| only == OvercommitPart::Memhog) {
        results.memhog = [false, true].map(|reporting| Memhog { reporting, ..Memhog::default() }).into();
        // In turn, so that a machine that grows slower does so for both.
        for _ in 0..setup.runs {
            for result in &mut results.memhog {
                memhog(setup, result, None, watch)?;
            }
        }
    }
    if only.is_none_or(|only| only == OvercommitPart::Enforced) {
        let budget = match Budget::new(setup.budget, 4 * setup.hog_memory) {
            Ok(budget) => budget,
            Err(why) => {
                results.not_enforced = Some(format!("{why:#}"));
                return Ok(());
            }
        };
        results.enforced =
            [false, true].map(|reporting| Memhog { reporting, enforced: true, ..Memhog::default() }).into();
        for _ in 0..setup.runs {
            for result in &mut results.enforced {
                memhog(setup, result, Some(&budget), watch)?;
            }
        }
    }
    Ok(())
}

fn setup(args: &OvercommitArgs) -> anyhow::Result<Setup> {
    if !args.scale.is_finite() || args.scale <= 0.0 {
        misuse!("--scale {} is no factor to divide sizes by", args.scale);
    }
    let program = args.guest.clone().unwrap_or_else(built_program);
    let mut setup = Setup::scaled(Machine::new(program, 0), args.scale);
    setup.machine.qemu.clone_from(&args.qemu);
    if args.kvm {
        setup.machine.accel = Accel::Kvm;
    }
    setup.budget = args.budget.unwrap_or(setup.budget);
    // QEMU takes whole MiB.
    setup.memory = args.memory.map_or(setup.memory, |bytes| bytes >> 20 << 20);
    setup.touch = args.touch.unwrap_or(setup.touch);
    setup.guests = args.guests;
    setup.runs = args.runs;
    if let Some(why) = setup.fault() {
        misuse!("{why}");
    }
    let (most, available) = (setup.most_resident(), available_memory());
    if let Some(available) = available.filter(|available| *available < most) {
        bail!(
            "up to {} MiB would be resident and {} MiB are available; free some, or give a larger --scale",
            most >> 20,
            available >> 20
        );
    }
    Ok(setup)
}

/// Where the guest program is: below this directory, or in the target directory that this program itself lies in.
fn built_program() -> PathBuf {
    let here = PathBuf::from(DEFAULT_PROGRAM);
    if here.exists() {
        return here;
    }
    let own = std::env::current_exe().ok();
    let beside = own
        .as_deref()
        .and_then(|exe| exe.ancestors().nth(2))
        .and_then(|target| Some(target.join(here.strip_prefix("target").ok()?)));
    beside.filter(|path| path.exists()).unwrap_or(here)
}
