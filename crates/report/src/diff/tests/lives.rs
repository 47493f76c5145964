//! Processes that come and go.

use super::*;
use isotherm_record::TargetEnd;
use proptest::prelude::*;

/// A process that maps a library, a file of its own, its heap and two runs of anonymous memory, and is in one snapshot.
fn live(profile: &mut Profile, nth: u64, id: u64, program: &str, file: u64) {
    profile.note(&Item::Target(TargetInfo { id, comm: program.to_owned(), ..TargetInfo::default() }));
    let at = id << 32;
    profile.note(&mappings(
        id,
        vec![
            mapping(at, at + MIB, "rw-p", "[heap]", 0, 0),
            mapping(at + 2 * MIB, at + 3 * MIB, "r-xp", "/usr/lib/libc.so.6", 7, 0),
            mapping(at + 4 * MIB, at + 5 * MIB, "r--p", &format!("/tmp/object{file}"), 100 + file, 0),
            mapping(at + 6 * MIB, at + 7 * MIB, "rw-p", &format!("/tmp/own{file}"), 0, 0),
            mapping(at + 10 * MIB, at + 11 * MIB, "rw-p", "", 0, 0),
            mapping(at + 20 * MIB, at + (21 + file % 3) * MIB, "rw-p", "", 0, 0),
        ],
    ));
    profile.snapshot(&snapshot(nth, id, vec![region(at, at + 30 * MIB, 5 + (id % 7) as u32)]));
}

fn end(profile: &mut Profile, target: u64) {
    profile.note(&Item::TargetEnd(TargetEnd { target, ..TargetEnd::default() }));
}

#[test]
fn memory_does_not_grow_with_processes_that_came_and_went() {
    let mut profile = Profile::new(Vec::new());
    let mut after = Vec::new();
    for id in 1..=12_000 {
        // Many are of one program, many of one that nobody else runs.
        let program = if id % 3 == 0 { format!("tmp{id}") } else { "cc".to_owned() };
        live(&mut profile, id, id, &program, id);
        end(&mut profile, id);
        if id % 6_000 == 0 {
            after.push(profile.held());
        }
    }
    let [areas, targets, programs, objects] = profile.held();
    // 4096 each of targets, objects and what ended, and one of all others for each program.
    assert!(areas <= 3 * 4096 + 1025, "{after:?}");
    assert!(targets <= 257 && programs <= 1025 && objects <= 4096, "{after:?}");
    let run = profile.finish(3.0);
    let row = |program: &str, name: &str| {
        run.areas.iter().find(|area| area.program == program && area.name == name).unwrap()
    };
    assert_eq!((row("cc", "[heap]").size, row("", "libc.so.6").size), (8_000 * MIB, MIB));
    // All that was in use is there still.
    let seen: f64 = run.areas.iter().flat_map(|area| &area.blocks).map(|block| block.seen).sum();
    assert!(seen > 6.0 * MIB as f64, "{seen}");
}

/// Which of six programs each process is of, how many others come before it ends, which file it maps.
fn lives() -> impl Strategy<Value = Vec<(u8, usize, u64)>> {
    proptest::collection::vec((0_u8..6, 0_usize..4, 0_u64..5), 1..40)
}

fn recorded(lives: &[(u8, usize, u64)], remembered: usize) -> Vec<run::AreaProfile> {
    let mut profile = Profile::new(Vec::new()).remembering(remembered);
    let mut ends: Vec<(usize, u64)> = Vec::new();
    for (nth, (program, others, file)) in lives.iter().enumerate() {
        let id = nth as u64 + 1;
        live(&mut profile, 4 * nth as u64, id, &format!("p{program}"), *file);
        ends.push((nth + others, id));
        ends.retain(|(when, id)| {
            if *when <= nth {
                end(&mut profile, *id);
            }
            *when > nth
        });
    }
    profile.finish(0.0).areas
}

proptest! {
    /// What is forgotten of targets that ended changes no figure.
    #[test]
    fn what_ended_adds_up_to_what_it_was(lives in lives(), remembered in 0_usize..6) {
        let (all, few) = (recorded(&lives, usize::MAX), recorded(&lives, remembered));
        prop_assert_eq!(all.len(), few.len());
        for (a, b) in all.iter().zip(&few) {
            prop_assert_eq!((&a.program, &a.name, a.object, a.anonymous), (&b.program, &b.name, b.object, b.anonymous));
            prop_assert_eq!(a.size, b.size, "{} {}", a.program, a.name);
            for (x, y) in a.blocks.iter().zip(&b.blocks) {
                let near = |x: f64, y: f64| (x - y).abs() <= 1e-9 * x.abs().max(1.0);
                prop_assert!(near(x.ws, y.ws) && near(x.heat, y.heat) && near(x.seen, y.seen), "{x:?} {y:?}");
            }
        }
    }
}
