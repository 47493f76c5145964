//! Lists of mappings that take longer to read than a recording lasts.
#![allow(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod common;

use common::*;
use isotherm_record::Item;
use isotherm_testing::{ManyMappings, Writes};
use tempfile::tempdir;

#[test]
fn a_recording_says_that_a_list_was_not_read_to_its_end() {
    if !pte_works() {
        return;
    }
    if ManyMappings::most().unwrap() < 62_000 {
        return skip_but_in_ci("a process may not have so many mappings here (vm.max_map_count)");
    }
    let target = ManyMappings::start(60_000, Writes::AllOnce).unwrap();
    wait_until("its mappings", || target.count().unwrap() >= 60_000);
    let dir = tempdir().unwrap();
    let pid = target.pid().to_string();
    // At the usual ceiling that is half of the time that it takes to read all of it.
    run(dir.path(), &["record", "-q", "-d", "3s", "--pid", &pid]).ok();
    let items = read(&dir.path().join("isotherm.rec")).unwrap();
    let mut lists =
        items.iter().filter_map(|item| if let Item::Mappings(list) = item { Some(list) } else { None });
    let last = lists.next_back().expect("a list, or the beginning of one");
    assert_eq!(last.partial, last.maps.len() < 60_000, "{} mappings", last.maps.len());
    if !last.partial {
        return skip("this machine reads 60,000 mappings within the ceiling in 3 s");
    }
    let text = run(dir.path(), &["report", "summary"]).ok();
    assert!(text.contains("not known to the end of the list") && text.contains("unknown mapping"), "{text}");
}
