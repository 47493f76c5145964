//! `isotherm doctor`.

use crate::terminal;
use isotherm_linux::probe::{AccessedBitClearers, Capability, CapabilityKind, KernelFacts, Report, probe};
use isotherm_report::units::{counted, format_size};
use std::io::{self, Write};
use std::process::ExitCode;

/// Runs the command: the status tells whether any backend works.
///
/// # Errors
/// When nothing can be printed.
pub fn run(json: bool) -> anyhow::Result<ExitCode> {
    let report = probe();
    let text = if json {
        let mut text = isotherm_report::json::to_string_pretty(&report)?;
        text.push('\n');
        text
    } else {
        table(&report, terminal::size(io::stdout()).0)
    };
    crate::report::print(|out| out.write_all(text.as_bytes()))?;
    Ok(if report.best_backend().is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

const KINDS: [(CapabilityKind, &str); 4] = [
    (CapabilityKind::Backend, "Backends, in the order `--backend auto` tries them"),
    (CapabilityKind::Scope, "Targets"),
    (CapabilityKind::Action, "Actions of schemes"),
    (CapabilityKind::Signal, "Signals for schemes"),
];

fn table(report: &Report, width: usize) -> String {
    let mut text = facts(&report.facts);
    let names = report.capabilities.iter().map(|c| c.name.len()).max().unwrap_or(0);
    for (kind, title) in KINDS {
        text.push_str(&format!("\n{title}\n"));
        for capability in report.capabilities.iter().filter(|c| c.kind == kind) {
            let verdict = if capability.available { "yes" } else { "no" };
            let head = format!("  {:<names$}  {verdict:<3}  ", capability.name);
            for (i, line) in lines(capability).iter().enumerate() {
                let gutter = if i == 0 { head.clone() } else { " ".repeat(head.len()) };
                text.push_str(&wrapped(&gutter, line, width));
            }
        }
    }
    text.push_str(&clearers(&report.accessed_bit_clearers, width));
    text.push_str(&match report.best_backend() {
        Some(best) => format!("\n`isotherm record` uses {} here.\n", best.name),
        None => "\nNo backend works here, so nothing can be recorded; the first remedy above helps most.\n"
            .to_owned(),
    });
    text
}

fn lines(capability: &Capability) -> Vec<String> {
    if capability.available {
        return vec![capability.detail.clone()];
    }
    let mut lines = vec![capability.detail.clone()];
    lines.extend(capability.reason.as_ref().map(|reason| format!("missing: {reason}")));
    lines.extend(
        capability.remedy.as_ref().filter(|r| !r.is_empty()).map(|remedy| format!("remedy: {remedy}")),
    );
    lines
}

/// Who else clears Accessed bits. Never silent: that nobody is known to is worth a line, and has its limits.
fn clearers(clearers: &AccessedBitClearers, width: usize) -> String {
    let mut text = "\nWho else clears Accessed bits (costs pte and idle accesses)\n".to_owned();
    let mut line = |line: &str| text.push_str(&wrapped("  ", line, width));
    for one in &clearers.found {
        line(&one.to_string());
        line(&format!("remedy: {}", one.remedy()));
    }
    for unreadable in &clearers.unreadable {
        line(&format!("not known: {unreadable}"));
    }
    if clearers.found.is_empty() && clearers.unreadable.is_empty() {
        line("nobody; of writers of /proc/PID/clear_refs the kernel does not tell");
    }
    text
}

fn facts(facts: &KernelFacts) -> String {
    let swap = match facts.swap_total {
        0 => "no swap".to_owned(),
        total => format!("swap {} ({} free)", format_size(total), format_size(facts.swap_free)),
    };
    let user = match (facts.uid, facts.capabilities.is_empty()) {
        (0, _) => "root".to_owned(),
        (uid, true) => format!("uid {uid}"),
        (uid, false) => format!("uid {uid} with {}", facts.capabilities.join(", ")),
    };
    format!(
        "Linux {} {}, {}, {} pages, huge pages: {}, {swap}, cgroup {}, lockdown {}, {user}\n",
        facts.release,
        facts.machine,
        counted(facts.cpus.into(), "CPU"),
        format_size(facts.page_size),
        facts.thp.as_deref().unwrap_or("none"),
        facts.cgroup,
        facts.lockdown
    )
}

/// `text` behind `gutter`, broken between words so that lines keep to `width` where words allow.
fn wrapped(gutter: &str, text: &str, width: usize) -> String {
    let room = width.saturating_sub(gutter.len()).max(30);
    let mut out = String::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > room {
            push_line(&mut out, gutter, &line);
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    push_line(&mut out, gutter, &line);
    out
}

/// The first line stands behind the gutter, the others below it.
fn push_line(out: &mut String, gutter: &str, line: &str) {
    if out.is_empty() {
        out.push_str(gutter);
    } else {
        out.push_str(&" ".repeat(gutter.len()));
    }
    out.push_str(line);
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_comes_with_its_reason_and_its_remedy_within_the_width() {
        let capability = |name: &str, available: bool| Capability {
            kind: CapabilityKind::Backend,
            name: name.to_owned(),
            available,
            detail: "pages, one by one".to_owned(),
            reason: (!available)
                .then(|| "the kernel has no such file, however hard one looks for it".to_owned()),
            remedy: (!available).then(|| "boot another".to_owned()),
        };
        let mut report = Report {
            facts: KernelFacts::gather(),
            capabilities: vec![capability("first", false), capability("second", true)],
            accessed_bit_clearers: AccessedBitClearers::default(),
        };
        let text = table(&report, 60);
        for part in [
            "  first   no   pages",
            "missing: the kernel",
            "remedy: boot another",
            "  second  yes  pages",
            "uses second",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(text.lines().skip(1).all(|line| line.chars().count() <= 60), "{text}");
        report.capabilities.truncate(1);
        assert!(table(&report, 60).contains("No backend works here"));
    }
}
