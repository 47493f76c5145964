use super::*;
use crate::probe::probe;
use isotherm_damon::schemes::{Filter, Filters, Goal, GoalMetric};

fn rule(action: Action) -> Rule {
    let scheme = Scheme::new(AccessPattern::ANY, action);
    Rule { name: action.name().into(), scheme, max_refault_rate: None, max_pressure: None }
}

/// A machine that can do everything, with so much swap.
fn machine(swap_total: u64, swap_free: u64) -> Report {
    let mut report = probe();
    for capability in &mut report.capabilities {
        capability.available = true;
    }
    (report.facts.swap_total, report.facts.swap_free) = (swap_total, swap_free);
    report
}

fn lacking(mut report: Report, name: &str) -> Report {
    let lacks = report.capabilities.iter_mut().find(|c| c.name == name).unwrap();
    lacks.available = false;
    (lacks.reason, lacks.remedy) = (Some(format!("no {name}")), Some(format!("add {name}")));
    report
}

fn found(rules: &[Rule], report: &Report) -> Vec<(Severity, String)> {
    let found = check(rules, &Attrs::default(), report, &[], &[]);
    found.into_iter().map(|finding| (finding.severity, finding.to_string())).collect()
}

#[test]
fn pageout_without_limits_gets_some() {
    let mut limited = rule(Action::Pageout);
    limited.scheme.quota.bytes = Some(1 << 20);
    let mut rules = [rule(Action::Pageout), limited.clone(), rule(Action::Cold)];
    let told = add_safe_defaults(&mut rules);
    assert_eq!(told.len(), 1);
    assert!(told[0].to_string().starts_with("scheme pageout: it has neither quota nor watermarks"));
    assert_eq!(rules[0].scheme.quota.bytes, Some(512 << 20));
    assert_eq!(rules[0].scheme.validate(), Ok(()));
    assert_eq!((&rules[1], &rules[2]), (&limited, &rule(Action::Cold)));
}

#[test]
fn what_swap_there_is_is_said_before() {
    let pageout = [rule(Action::Pageout)];
    let gib = 1 << 30;
    assert_eq!(found(&pageout, &machine(4 * gib, 3 * gib)), []);
    let none = found(&pageout, &lacking(machine(0, 0), "swap"));
    assert_eq!(none, [(Severity::Warning, "scheme pageout: no swap; add swap".to_owned())]);
    let full = found(&pageout, &machine(4 * gib, gib / 4));
    assert!(full.len() == 1 && full[0].1.contains("256 of 4096 MiB are free"), "{full:?}");
    assert!(full[0].1.contains("almost full"), "{full:?}");
    let small = found(&pageout, &machine(63 << 20, 63 << 20));
    assert!(small.len() == 1 && small[0].1.contains("there is little swap (63 of 63 MiB"), "{small:?}");
    // Who leaves anonymous memory alone needs no swap.
    let mut files = pageout.clone();
    files[0].scheme.filters = Filters { core: vec![], ops: vec![Filter::reject(PageKind::Anon)] };
    assert_eq!(found(&files, &lacking(machine(0, 0), "swap")), []);
}

#[test]
fn what_cannot_be_done_is_refused_unless_another_scheme_can() {
    let machine = lacking(machine(1 << 40, 1 << 40), "split");
    let alone = found(&[rule(Action::Nohugepage)], &machine);
    let want = "scheme nohugepage: nohugepage would do nothing: no split; add split".to_owned();
    assert_eq!(alone, [(Severity::Refusal, want.clone())]);
    let both = found(&[rule(Action::Hugepage), rule(Action::Nohugepage)], &machine);
    assert_eq!(both, [(Severity::Warning, want)]);
    assert_eq!(found(&[rule(Action::LruPrio)], &machine)[0].0, Severity::Refusal);
}

#[test]
fn schemes_that_can_match_nothing_are_refused() {
    let machine = machine(1 << 40, 1 << 40);
    let pattern = AccessPattern::ANY;
    let mut rules = vec![rule(Action::Stat); 4];
    rules[0].scheme.pattern = pattern.size(0, 4095);
    rules[1].scheme.pattern = pattern.nr_accesses(21, 30);
    rules[2].scheme.quota.bytes = Some(4095);
    rules[3].scheme.filters.ops = vec![Filter::allow(PageKind::Unmapped)];
    for one in rules {
        let found = found(std::slice::from_ref(&one), &machine);
        assert!(found.len() == 1 && found[0].0 == Severity::Refusal, "{one:?}: {found:?}");
    }
    let mut possible = rule(Action::Stat);
    possible.scheme.pattern = pattern.nr_accesses(20, 30);
    assert_eq!(found(&[possible], &machine), []);
}

#[test]
fn a_goal_that_cannot_be_read_is_refused() {
    let mut one = rule(Action::Cold);
    one.scheme.quota.goals = vec![Goal { metric: GoalMetric::NodeMemUsedBp(4_000_000), target: 5000 }];
    let found = found(&[one], &machine(1 << 40, 1 << 40));
    assert!(found.len() == 1 && found[0].1.contains("its quota stays 0"), "{found:?}");
}

#[test]
fn isotherm_does_not_act_on_itself() {
    let report = machine(1 << 40, 1 << 40);
    let found = check(&[rule(Action::Cold)], &Attrs::default(), &report, &[7, 9, 8], &[9, 8, 1]);
    let severities: Vec<Severity> = found.iter().map(|finding| finding.severity).collect();
    assert_eq!(severities, [Severity::Refusal, Severity::Warning]);
}
