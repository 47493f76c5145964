use super::*;

fn header() -> String {
    let line = Line::Workload(Workload {
        version: VERSION,
        pattern: "t".into(),
        pid: 1,
        page: Page::Huge,
        unit: 2 << 20,
        clock: "CLOCK_MONOTONIC".into(),
        seed: 1,
        time_scale: 1.0,
        hot_hz: 10.0,
        params: serde_json::json!({}),
    });
    serde_json::to_string(&line).unwrap() + "\n"
}

fn phase(index: u32, start_ns: u64, end_ns: u64, ranges: &[(u64, u64)]) -> String {
    let ranges = ranges
        .iter()
        .map(|&(start, end)| RangeLine {
            pid: 0,
            area: "a".into(),
            start,
            end,
            unit: 4096,
            rate: Stated::Max(Max::Max),
            achieved_hz: 3.5,
            arrivals: Arrivals::Periodic,
            write: false,
            hot: true,
            touches: 7,
            missed: 0,
            max_gap_ns: 0,
            shared: false,
            courses: Vec::new(),
        })
        .collect();
    let line = Line::Phase(PhaseLine {
        index,
        name: "p".into(),
        start_ns,
        end_ns,
        complete: true,
        ranges,
        courses: Vec::new(),
    });
    serde_json::to_string(&line).unwrap() + "\n"
}

#[test]
fn a_truth_cut_in_a_line_reads_up_to_it() {
    let text = header() + &phase(0, 5, 9, &[(4096, 8192)]) + &phase(1, 9, 12, &[]);
    let whole = Truth::read(text.as_bytes()).unwrap();
    assert_eq!(whole.phases.len(), 2);
    assert_eq!(whole.phases[0].ranges[0].rate, Stated::Max(Max::Max));
    let cut = Truth::read(&text.as_bytes()[..text.len() - 3]).unwrap();
    assert_eq!(cut.phases, whole.phases[..1]);
    assert!(matches!(Truth::read(&b""[..]), Err(TruthError::Empty)));
}

#[test]
fn a_truth_that_contradicts_itself_is_refused() {
    for (lines, part) in [
        (phase(0, 9, 5, &[]), "back in time"),
        (phase(0, 0, 5, &[]) + &phase(1, 4, 8, &[]), "back in time"),
        (phase(0, 0, 5, &[(4096, 8192), (4096, 12288)]), "sorted"),
        (phase(0, 0, 5, &[(8192, 8192)]), "sorted"),
        ("{\"kind\":\"phase\"}\n".to_owned(), "missing field"),
        ("nonsense\n".to_owned(), "line 2"),
    ] {
        let error = Truth::read((header() + &lines).as_bytes()).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let other = header().replace("\"version\":2", "\"version\":9");
    assert!(Truth::read(other.as_bytes()).unwrap_err().to_string().contains("version 9"));
}
