use super::*;
use crate::pattern::BUILTIN;
use crate::pattern::{Pattern, PatternError};

const PAGES: PageSizes = PageSizes { base: 4096, huge: 2 << 20 };

fn plan(text: &str, over: &Overrides) -> Result<Plan, PatternError> {
    Plan::new(&Pattern::parse("test", text, &[])?, over, PAGES)
}

#[test]
fn every_builtin_pattern_can_be_planned_on_either_page_size() {
    for (name, _) in BUILTIN {
        for page in [Page::Base, Page::Huge] {
            let pattern = Pattern::load(name, &[]).unwrap();
            let over = Overrides { page: Some(page), ..Overrides::default() };
            let plan = Plan::new(&pattern, &over, PAGES).unwrap();
            assert_eq!(&plan.pattern, name);
            assert!(!pattern.summary.is_empty(), "{name} lacks a summary");
            for phase in &plan.phases {
                for s in &phase.streams {
                    assert_eq!((s.offset % plan.unit, s.size % plan.unit), (0, 0), "{name}");
                    assert!(s.offset + s.size <= plan.areas[s.area].max_size, "{name}");
                }
            }
        }
    }
}

#[test]
fn stairs_is_ten_steps_of_ten_megabytes_one_at_a_time() {
    let pattern = Pattern::load("stairs", &[]).unwrap();
    let over = Overrides { time_scale: Some(0.2), ..Overrides::default() };
    let plan = Plan::new(&pattern, &over, PAGES).unwrap();
    assert_eq!(plan.areas.len(), 10);
    for (i, phase) in plan.phases.iter().enumerate() {
        assert_eq!(phase.duration, Some(1_000_000_000));
        assert_eq!(phase.streams.len(), 1);
        assert_eq!((phase.streams[0].area, phase.streams[0].size), (i, 10 << 20));
    }
}

#[test]
fn huge_pages_round_sizes_up_and_a_moving_range_stays_inside() {
    let text = r#"
        name = "t"
        [[area]]
        name = "a"
        size = "9M"
        [[phase]]
        repeat = 20
        duration = "1s"
        access = [{ area = "a", size = "1M", offset = "3M", step = "3M", rate = 5 }]
    "#;
    let plan = plan(text, &Overrides { page: Some(Page::Huge), ..Overrides::default() }).unwrap();
    assert_eq!(plan.areas[0].size, 10 << 20);
    let offsets: std::collections::BTreeSet<_> =
        plan.phases.iter().map(|p| p.streams[0].offset >> 21).collect();
    assert_eq!(offsets.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
}

#[test]
fn what_cannot_be_carried_out_is_refused_by_name() {
    let head = "name = \"t\"\n[[area]]\nname = \"a\"\nsize = \"1M\"\n[[phase]]\n";
    for (tail, part) in [
        ("duration = \"1s\"\naccess = [{ area = \"b\", rate = 1 }]", "no area `b`"),
        ("duration = \"1s\"\naccess = [{ area = \"a\", size = \"2M\", rate = 1 }]", "does not fit"),
        ("duration = \"1s\"\naccess = [{ area = \"a\", size = \"1M\", offset = 4096, rate = 1 }]", "exceed"),
        ("access = [{ area = \"a\", rate = 1 }]", "no end"),
        ("duration = 0", "no end"),
        ("duration = 1\nrepeat = 1000000", "phases"),
        ("access = [{ area = \"a\", rate = 1, work = \"1M\", units = 2 }]", "max"),
        ("access = [{ area = \"a\", rate = \"max\", work = \"1M\" }]", "go together"),
        ("duration = 1\naccess = [{ area = \"a\", rate = 1, repeat = 600, thread = \"{j}\" }]", "threads"),
        ("duration = 1\nresize = [{ area = \"a\", size = 0 }]", "shrink"),
        ("duration = 1\n[[area]]\nname = \"a\"\nsize = 1", "two areas"),
        ("duration = 1\n[[area]]\nname = \"c\"\nsize = 1\ncount = 2", "{i}"),
    ] {
        let error = plan(&format!("{head}{tail}"), &Overrides::default()).unwrap_err().to_string();
        assert!(error.contains(part), "{tail}: {error}");
    }
    let over = Overrides { cycles: Some(0), ..Overrides::default() };
    assert!(plan(&format!("{head}duration = 1"), &over).is_err());
    let over = Overrides { time_scale: Some(f64::NAN), ..Overrides::default() };
    assert!(plan(&format!("{head}duration = 1"), &over).is_err());
}

#[test]
fn a_child_of_a_phase_is_planned_for_each_phase_of_that_name() {
    let pattern = Pattern::load("bgsave", &[("saves".to_owned(), "3".to_owned())]).unwrap();
    let plan = Plan::new(&pattern, &Overrides::default(), PAGES).unwrap();
    assert_eq!(
        (&plan.processes[..], &plan.lasting[..]),
        (&["main".to_owned(), "child".to_owned()][..], &[0][..])
    );
    let forks: Vec<_> = plan.phases.iter().map(|p| (p.name.as_str(), p.forks.len())).collect();
    assert_eq!(forks, [("before", 0), ("saving", 1), ("after", 0)].repeat(3));
    // The parent may have to copy what it writes to, once for each child, and each time only while that lives.
    assert_eq!(plan.copied_bytes(), 16 << 20);
    let named = "[[process]]\nname = \"p{i}\"\ncount = 2\nphase = \"save{i}\"\n[[area]]\nname = \"a\"\nsize = 1\n\
                 [[phase]]\nname = \"save{i}\"\nrepeat = 2\nduration = 1\n\
                 access = [{ process = \"p{i}\", area = \"a\", rate = 1 }]\n";
    let plan = plan_of(named);
    assert_eq!(plan.phases.iter().map(|p| &p.forks[..]).collect::<Vec<_>>(), [[1], [2]]);
}

fn plan_of(text: &str) -> Plan {
    plan(&format!("name = \"own\"\n{text}"), &Overrides::default()).unwrap()
}
