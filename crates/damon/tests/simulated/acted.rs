//! What a scheme does to a target, and what that tells of it.

use isotherm_damon::schemes::{Actions, Outcome, Refusal, Request, Schemes};
use isotherm_damon::*;
use isotherm_simulated::{Keep, MIB, Simulated, areas};

/// Actions that cleared bits.
#[derive(Default)]
struct Told(Vec<(TargetId, AddrRange)>);

impl Actions for Told {
    fn apply(&mut self, _request: &Request<'_>) -> Result<Outcome, Refusal> {
        Err(Refusal::Pass)
    }

    fn take_cleared(&mut self, cleared: &mut Vec<(TargetId, AddrRange)>) {
        cleared.append(&mut self.0);
    }
}

/// MiB of a target that are known to be idle, and to be accessed, some time after a scheme cleared the bits of all of it, by a
/// sampler that may look but not clear.
fn known_after_a_clear(tells: bool) -> (u64, u64) {
    let pattern = areas(&[(0, 64 << 10, 0.0), (0, 16 << 10, 31.0), (0, 64 << 10, 0.0)]);
    let whole = AddrRange::new(pattern.areas[0].0.start, pattern.areas[2].0.end);
    let mut watch = Watch::new();
    watch.set_sweeps(false);
    let mut monitor = Monitor::new(Attrs::default(), Simulated::new(pattern), watch, 7).unwrap();
    let id = TargetId(1);
    monitor.add_target(id).unwrap();
    let allowance = Allowance { prepares: 0, prepares_per_aggr: 0, ..Allowance::UNLIMITED };
    let (mut schemes, mut told) = (Schemes::new(), Told::default());
    let (mut keep, mut now, mut acted) = (Keep::default(), 0, false);
    while now < 700 {
        if now >= 400 && !acted {
            acted = true;
            // All of it was accessed once, so nothing goes, and all bits are cleared.
            monitor.ops().page_out(id, whole);
            assert_eq!(monitor.ops().paged_out(id), 0);
            told.0.extend(tells.then_some((id, whole)));
        }
        let mut metrics = ();
        let mut callbacks = schemes.driver(&mut told, &mut metrics, &mut keep);
        now += monitor.tick(now * 5_000_000, allowance, &mut callbacks);
        monitor.ops().now = now;
    }
    assert_eq!(monitor.tally().pages_cleared + monitor.tally().pages_swept, 0);
    let regions = &keep.0.last().unwrap().targets[0].regions;
    let of = |idle: bool| {
        let known = regions.iter().filter(|r| !r.is_unknown() && (r.accesses_bp() == 0) == idle);
        known.map(|r| r.range.intersection(whole).size()).sum::<u64>() / MIB
    };
    (of(true), of(false))
}

#[test]
fn what_a_scheme_cleared_is_known_without_another_clear() {
    let (idle, accessed) = known_after_a_clear(true);
    assert!(
        (126..=129).contains(&idle) && (15..=18).contains(&accessed),
        "{idle} of 128, {accessed} of 16 MiB"
    );
    assert_eq!(known_after_a_clear(false), (0, 0), "nobody told of it");
}
