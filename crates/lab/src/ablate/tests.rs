use super::*;
use std::sync::Arc;

fn simulated(names: &[&str], patterns: &[Pattern], stop: bool) -> (Ablations, Result<(), Interrupted>) {
    let constants: Vec<&Constant> = names.iter().map(|name| constant(name).expect(name)).collect();
    let mut found = Ablations::default();
    let mut progress = |_: &str| {};
    let mut watch = Watch { stop: Arc::new(move || stop), progress: &mut progress };
    let setup = Setup { seeds: 2, factor: 2.0 };
    let outcome = found.simulate(&constants, patterns, setup, &mut watch);
    (found, outcome)
}

#[test]
fn the_same_seeds_give_the_same_figures_and_what_matters_makes_a_difference() {
    let names = ["half_life_for", "window_hits", "surprise_idle"];
    let (found, outcome) = simulated(&names, &[Pattern::Stairs], false);
    assert_eq!(outcome, Ok(()));
    let again = simulated(&names, &[Pattern::Stairs], false).0;
    assert_eq!(serde_json::to_string(&found).unwrap(), serde_json::to_string(&again).unwrap());
    let default = found.defaults[0].figures[0];
    assert!(default.f1.unwrap() > 0.9 && default.second.unwrap() > 0.9, "{default:?}");
    assert!(default.found_s.unwrap() < 1.0 && default.cpu_share < 0.01, "{default:?}");
    let effects: Vec<_> = found.ablations.iter().map(|a| (a.constant, a.change, a.effect)).collect();
    // A single target never comes to what counts for many.
    assert_eq!(effects[0], ("half_life_for", Change::Times(0.5), Effect::Unused));
    assert_eq!(effects[4], ("surprise_idle", Change::Without, Effect::Differs));
    // What was hot is not found to have fallen silent.
    assert!(found.ablations[4].mean(Measure::F1).unwrap() < -0.05, "{:?}", found.ablations[4]);
    let told = table(&found, true);
    assert!(told.contains("Never came into play in these patterns: half_life_for\n"), "{told}");
    assert!(told.contains("surprise_idle, without: no limit"), "{told}");
}

#[test]
fn every_pattern_has_what_it_is_judged_by() {
    let seconds = [Pattern::Front, Pattern::Sweep];
    for pattern in [Pattern::Rates, Pattern::Front, Pattern::Swarm, Pattern::Nap] {
        let mut simulation = pattern.simulation();
        // Long enough that what may be spent at once at the start is made good.
        for phase in simulation.phases.iter_mut().filter(|_| pattern == Pattern::Swarm) {
            phase.aggregations = 240;
        }
        let figures = judge::judge(&simulation, Tuning::DEFAULT, 11);
        assert!(figures.second.is_some(), "{pattern:?}: {figures:?}");
        assert_eq!(figures.f1.is_none(), seconds.contains(&pattern), "{pattern:?}: {figures:?}");
        assert_eq!(figures.found_s.is_some(), figures.f1.is_some(), "{pattern:?}: {figures:?}");
        let share = figures.cpu_share;
        assert!(share > 0.001 && share < 0.0105, "{pattern:?}: {figures:?}");
    }
}

#[test]
fn a_difference_counts_beyond_the_spread_and_beyond_nothing() {
    let of =
        |f1: &[f64]| f1.iter().map(|f1| Figures { f1: Some(*f1), ..Figures::default() }).collect::<Vec<_>>();
    let counts = |a: &[f64], b: &[f64]| Difference::of(Measure::F1, &of(a), &of(b)).unwrap().counts();
    assert!(counts(&[0.90, 0.91, 0.92], &[0.85, 0.86, 0.87]));
    assert!(!counts(&[0.90, 0.91, 0.92], &[0.80, 0.86, 0.98]), "seeds differ as much");
    assert!(!counts(&[0.950, 0.950], &[0.947, 0.947]), "nobody would notice");
    let none = vec![Figures::default()];
    assert_eq!(Difference::of(Measure::F1, &none, &none), None);
}

#[test]
fn constants_are_tried_without_or_at_parts_and_multiples() {
    let of = |name: &str, factor| Change::of(constant(name).unwrap(), factor);
    assert_eq!(of("surprise_row", 2.0), [Change::Without]);
    assert_eq!(of("few", 2.0), [Change::Times(0.5), Change::Times(2.0)]);
    // 4 / 1.05 and 4 x 1.05 are 4.
    assert_eq!(of("few", 1.05), []);
    for constant in Tuning::CONSTANTS {
        assert!(!Change::of(constant, 2.0).is_empty(), "{}", constant.name);
    }
}

#[test]
fn unknown_names_are_refused_with_the_nearest() {
    assert_eq!(constant("surprise-rwo").unwrap_err().first(), Some(&"surprise_row"));
    assert_eq!(constant("surprise").unwrap_err(), ["surprise_hit", "surprise_idle", "surprise_row"]);
    assert_eq!(pattern("zipff").unwrap_err().first(), Some(&"zipf"));
    assert_eq!(pattern("zipf"), Ok(Pattern::Zipf));
}

#[test]
fn what_was_simulated_before_the_end_stays() {
    let (found, outcome) = simulated(&["price"], &[Pattern::Front], true);
    assert_eq!(outcome, Err(Interrupted));
    assert!(found.ablations.is_empty());
}
