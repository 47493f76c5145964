//! `isotherm report html` as people meet it: in a browser.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod browser;
#[path = "../common/mod.rs"]
mod common;
mod recorded;
mod regression;

use browser::Page;
use common::run;
use isotherm_report::colour::{self, Colour};
use recorded::{COLD, FIRST_HALF, HOT, Spot, UNKNOWN, WARM, sample, unmapped};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Instant;
use tempfile::tempdir;

/// A page of the sample recording with these options, in a browser; `None`, said aloud, where there is none.
fn open(dir: &Path, options: &[&str], dark: bool) -> Option<Page> {
    sample(dir);
    run(dir, &[&["report", "html", "-o", "page.html", "--area", "all"], options].concat()).ok();
    Page::open(&dir.join("page.html"), dark)
}

/// The area that shows the heap.
fn heap(page: &mut Page) -> String {
    let at = page.number(
        "[...document.querySelectorAll('.area h3')].findIndex((h) => h.textContent.startsWith('heap'))",
    );
    format!("#area-{at}")
}

/// Where a spot of the heap is drawn when all of it is in view.
fn place_of(page: &mut Page, spot: Spot) -> (f64, f64) {
    let canvas = heap(page);
    let [x, y, width, height] = page.place(&canvas);
    (x + width * spot.time, y + height * (1.0 - spot.share))
}

/// What the tooltip says about the spot under the pointer.
fn tip(page: &mut Page, at: (f64, f64)) -> Value {
    page.mouse("mouseMoved", at, json!({}));
    page.settle();
    let found = "[...document.querySelectorAll('.area .tip')].find((tip) => !tip.hidden)";
    let tip = page.text(&format!("JSON.stringify({{...{found}.dataset, text: {found}.innerText}})"));
    serde_json::from_str(&tip).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_str().unwrap().parse().unwrap()
}

/// The same cell as `isotherm report heatmap` has it: mean rate, how many cells are unknown, and how many there are.
fn reported(dir: &Path, tip: &Value) -> (f64, usize, usize) {
    let ms = |key: &str| format!("{}ms", (number(&tip[key]) / 1e6).round());
    let time = format!("{}..{}", ms("fromNs"), ms("toNs"));
    let address = format!("{}-{}", tip["low"].as_str().unwrap(), tip["high"].as_str().unwrap());
    let args = ["report", "heatmap", "--json", "--target", "11", "--time", &time, "--address", &address];
    let json = run(dir, &args).json();
    let rows = json["panels"][0]["rates_hz"].as_array().unwrap();
    let cells: Vec<&Value> = rows.iter().flat_map(|row| row.as_array().unwrap()).collect();
    let rates: Vec<f64> = cells.iter().filter_map(|cell| cell.as_f64()).collect();
    let unknown = cells.iter().filter(|cell| **cell == "unknown").count();
    (rates.iter().sum::<f64>() / rates.len().max(1) as f64, unknown, cells.len())
}

/// That tooltip and report say the same of the spot under the pointer.
fn agrees(dir: &Path, page: &mut Page, at: (f64, f64)) -> Value {
    let tip = tip(page, at);
    let (hz, unknown, cells) = reported(dir, &tip);
    match tip["kind"].as_str().unwrap() {
        "unknown" => assert_eq!(unknown, cells, "{tip}"),
        "rate" if hz == 0.0 => assert_eq!(number(&tip["hz"]), 0.0, "{tip}"),
        "rate" => assert!((number(&tip["hz"]) / hz - 1.0).abs() < 0.03, "{tip}: {hz}"),
        other => panic!("{other}: {tip}"),
    }
    tip
}

#[test]
fn tooltips_and_tables_say_what_the_reports_say_at_every_zoom() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    let Some(mut page) = open(dir, &[], false) else { return };
    for (spot, kind, words) in [
        (HOT, "rate", "200 Hz"),
        (WARM, "rate", "Hz"),
        (COLD, "rate", "0 Hz: not accessed"),
        (UNKNOWN, "unknown", "unknown"),
        (Spot { time: 0.75, ..HOT }, "rate", "0 Hz"),
    ] {
        let at = place_of(&mut page, spot);
        let tip = agrees(dir, &mut page, at);
        assert_eq!(tip["kind"], kind, "{tip}");
        let text = tip["text"].as_str().unwrap();
        assert!(text.contains(words) && text.contains("[heap]") && text.contains("0x1"), "{tip}");
    }
    // The warm part has kept its rate from the start: at the middle its age is half the recording's length.
    let at = place_of(&mut page, WARM);
    let age_s = number(&tip(&mut page, at)["ageNs"]) / 1e9;
    assert!((age_s / recorded::LENGTH_S * 2.0 - 1.0).abs() < 0.1, "{age_s}");

    // Zoomed in by a drag, by the wheel and by buttons, the same spot still says the same, of a smaller cell or no larger.
    let whole = page.eval("[time.low, time.high, time.length]");
    let [left, top, right, bottom] = [(0.1, 0.45), (0.9, 0.05)]
        .map(|(time, share)| place_of(&mut page, Spot { time, share }))
        .map(|(x, y)| [x, y])
        .as_flattened()
        .try_into()
        .unwrap();
    page.drag((left, top), (right, bottom));
    let span = page.number("time.high - time.low");
    assert!((span / page.number("time.length") - 0.8).abs() < 0.01, "{whole} {span}");
    let canvas = heap(&mut page);
    let [x, y, width, height] = page.place(&canvas);
    // 0.05..0.45 of the addresses are in view now, of which the hot part is 0..0.25.
    let hot = (x + width * 0.1, y + height * 0.75);
    assert_eq!(agrees(dir, &mut page, hot)["kind"], "rate");
    page.wheel(hot, -200, 0);
    page.wheel(hot, -200, 8);
    assert!(page.number("time.high - time.low") < span * 0.6);
    let near = agrees(dir, &mut page, hot);
    assert!(number(&near["hz"]) > 195.0, "{near}");
    page.click("#time-in");
    assert!(page.number("time.high - time.low") < span * 0.3);
    page.click("#whole");
    assert_eq!(page.eval("[time.low, time.high, time.length]"), whole);

    // The working set: distribution, and over time.
    let wss = run(dir, &["report", "wss", "--json"]).json();
    page.click("#trend-table summary");
    let table = page.text("document.querySelector('#trend-table').innerText");
    for percentile in wss["percentiles"].as_array().unwrap() {
        let bytes = percentile["value"].as_u64().unwrap();
        let row = format!("{} %\t{}", percentile["percent"], isotherm_report::units::format_size(bytes));
        assert!(table.contains(&row), "{row} in {table}");
    }
    let [x, y, width, height] = page.place("#trend-plot .plot");
    page.mouse("mouseMoved", (x + width / 2.0, y + height / 2.0), json!({}));
    page.settle();
    let shown = page.number("+document.querySelector('#trend-plot .tip').dataset.mean");
    let from = page.number("+document.querySelector('#trend-plot .tip').dataset.fromNs");
    let buckets = wss["over_time"].as_array().unwrap();
    let within = |b: &&Value| {
        let at = |key: &str| b[key].as_f64().unwrap() - wss["origin_ns"].as_f64().unwrap();
        at("start_ns") <= from && from < at("end_ns")
    };
    let there = buckets.iter().find(within).unwrap()["mean"].as_f64().unwrap();
    assert!((shown / there - 1.0).abs() < 0.01, "{shown} {there}");
    page.close();
}

#[test]
fn the_keyboard_reaches_everything_and_a_screen_reader_hears_it() {
    let dir = tempdir().unwrap();
    let Some(mut page) = open(dir.path(), &[], false) else { return };
    let heap = heap(&mut page);
    // From the top of the page on, Tab comes by every control before the heatmaps, and to them.
    let mut passed = Vec::new();
    for _ in 0..80 {
        page.key("Tab", 0);
        let at = page.text("document.activeElement.id || document.activeElement.textContent");
        passed.push(at.clone());
        if heap == format!("#{at}") {
            break;
        }
    }
    for control in ["theme", "time-in", "scale", "layout"] {
        assert!(passed.iter().any(|at| at == control), "{control} in {passed:?}");
    }
    assert_eq!(format!("#{}", passed.last().unwrap()), heap, "{passed:?}");
    let heard = |page: &mut Page| page.text("document.getElementById('live').textContent");
    let first = heard(&mut page);
    assert!(first.contains("[heap]") && first.contains("0x1"), "{first}");
    page.key("ArrowUp", 0);
    assert_ne!(heard(&mut page), first);
    // Down to the bottom: the hot part, which is so in the first half only.
    for _ in 0..400 {
        let before = heard(&mut page);
        page.key("ArrowDown", 0);
        if heard(&mut page) == before {
            break;
        }
    }
    for _ in 0..5 {
        page.key("ArrowLeft", 0);
    }
    assert!(heard(&mut page).contains("200 Hz"), "{}", heard(&mut page));
    let whole = page.number("time.high - time.low");
    page.key("+", 0);
    assert!((page.number("time.high - time.low") / whole - 0.5).abs() < 0.01);
    assert!(heard(&mut page).starts_with("Showing"), "{}", heard(&mut page));
    let low = page.number("time.low");
    page.key("ArrowRight", 8);
    assert!(page.number("time.low") > low);
    page.key("Home", 0);
    assert_eq!(page.number("time.high - time.low"), whole);

    page.eval("document.querySelectorAll('details').forEach((details) => { details.open = true; })");
    page.settle();
    let tree = page.accessible();
    let find = |role: &str, name: &str| tree.iter().any(|(r, n, _)| r == role && n.contains(name));
    for (role, name) in [
        ("application", "Heatmap of heap of server (pid 11): 64.0 MiB"),
        ("application", "Working set over time: median"),
        ("button", "Zoom in on time"),
        ("button", "Zoom in on addresses, heap"),
        ("heading", "Heat: addresses over time"),
        ("table", "Mean access rates of heap"),
        ("table", "share of the time"),
        ("combobox", "Scale"),
        ("checkbox", "heap of server"),
        // What can be scrolled takes the focus, and says what it is.
        ("region", "Mean access rates of heap of server"),
        ("region", "share of the time"),
    ] {
        assert!(find(role, name), "{role} {name} in {tree:#?}");
    }
    // Values of the table: what is hot, and what is unknown, by name.
    assert!(find("cell", "200 Hz") && find("cell", "unknown"), "{tree:#?}");
    assert!(tree.iter().any(|(role, _, value)| role == "combobox" && value == "linear"), "{tree:#?}");
    // Whoever cannot see the picture is not sent through its strokes.
    assert!(!find("StaticText", "time from the start of the recording"));
    page.close();
}

/// Within what rounding of colours may do.
fn near(seen: [u8; 3], expected: Colour) -> bool {
    seen.iter().zip([expected.r, expected.g, expected.b]).all(|(a, b)| a.abs_diff(b) <= 6)
}

#[test]
fn in_both_schemes_heat_unknown_and_nothing_have_their_colours() {
    let dir = tempdir().unwrap();
    let mut papers = Vec::new();
    for dark in [false, true] {
        let Some(mut page) = open(dir.path(), &[], dark) else { return };
        let spots = [HOT, WARM, COLD, UNKNOWN].map(|spot| place_of(&mut page, spot));
        let picture = page.picture();
        let [hot, warm, cold, unknown] = spots;
        let level = |hz: f64| colour::heat(hz / 200.0);
        for (at, hz) in [(hot, 200.0), (warm, recorded::WARM_HZ), (cold, 0.0)] {
            assert!(near(picture.pixel(at), level(hz)), "{dark} {hz}: {:?}", picture.pixel(at));
        }
        // Striped: along a line there are both of its colours and no others.
        let line: Vec<[u8; 3]> =
            (0..40).map(|i| picture.pixel((unknown.0 + f64::from(i), unknown.1))).collect();
        for colour in [colour::UNKNOWN, colour::UNKNOWN_STRIPE] {
            assert!(line.iter().any(|pixel| near(*pixel, colour)), "{line:?}");
        }
        let striped = |pixel: &[u8; 3]| near(*pixel, colour::UNKNOWN) || near(*pixel, colour::UNKNOWN_STRIPE);
        assert!(line.iter().all(striped), "{line:?}");
        // What was never mapped looks like none of them, and fits the paper.
        let nothing = picture.pixel(unmapped(&mut page));
        let paper = picture.pixel((3.0, 3.0));
        assert!(!striped(&nothing) && !near(nothing, level(0.0)), "{nothing:?}");
        assert!(nothing.iter().zip(paper).all(|(a, b)| a.abs_diff(b) < 40), "{nothing:?} {paper:?}");
        papers.push(paper);
        // The choice on the page outdoes the system's.
        page.eval("theme.value = 'dark', theme.dispatchEvent(new Event('change'))");
        page.settle();
        assert!(page.picture().pixel((3.0, 3.0)).iter().max() < Some(&60));
        // Paper is white, without controls.
        page.media("print", "dark");
        page.settle();
        assert_eq!(page.picture().pixel((3.0, 3.0)), [255, 255, 255]);
        assert_eq!(page.number("document.getElementById('toolbar').offsetHeight"), 0.0);
        let at = unmapped(&mut page);
        assert!(page.picture().pixel(at).iter().min() > Some(&200), "what is not monitored is light, too");
        page.close();
    }
    assert!(papers[0].iter().min() > Some(&200) && papers[1].iter().max() < Some(&60), "{papers:?}");
}

#[test]
fn names_that_are_markup_stay_names() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    let evil = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=2>";
    recorded::named(dir, evil);
    run(dir, &["report", "html", "-o", "page.html", "--area", "all", "--title", evil]).ok();
    let html = std::fs::read_to_string(dir.join("page.html")).unwrap();
    assert_eq!(html.matches("<script").count(), 3, "data, blocks, program");
    assert!(!html.contains("<img"));
    let Some(mut page) = Page::open(&dir.join("page.html"), false) else { return };
    assert_eq!(page.text("document.title"), evil);
    assert_eq!(page.eval("typeof window.hacked"), "undefined");
    let at = {
        let [x, y, width, height] = page.place(".area canvas");
        (x + width / 2.0, y + height / 2.0)
    };
    let tip = tip(&mut page, at);
    assert!(tip["text"].as_str().unwrap().contains("<img"), "{tip}");
    let names = page.eval("[...document.querySelectorAll('.area h3')].map((h) => h.textContent)");
    assert!(names[0].as_str().unwrap().contains("</script>"), "{names}");
    assert_eq!(page.eval("[...document.images].length"), 0);
    // Even what got in would not run.
    page.eval("document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.hacked = 3'}))");
    assert_eq!(page.eval("typeof window.hacked"), "undefined");
}

/// Times so large that numbers of a browser hold them to a microsecond only, and cells of nanoseconds.
#[test]
fn no_times_of_a_recording_hang_the_page() {
    let dir = tempdir().unwrap();
    recorded::far_away(dir.path());
    run(dir.path(), &["report", "html", "-o", "page.html"]).ok();
    let Some(mut page) = Page::open(&dir.path().join("page.html"), false) else { return };
    assert!(page.number("document.querySelectorAll('.area canvas').length") >= 1.0);
    let [x, y, width, height] = page.place(".area canvas");
    for turned in [-400, -400, 200] {
        page.wheel((x + width / 2.0, y + height / 2.0), turned, 0);
        page.wheel((x + width / 2.0, y + height / 2.0), turned, 8);
    }
    assert_eq!(tip(&mut page, (x + width / 2.0, y + height / 2.0))["kind"], "rate");
    page.close();
}

#[test]
fn text_without_end_neither_bloats_nor_breaks_the_page() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    let make = |long: usize| {
        recorded::named(dir, &"x".repeat(long));
        let title = "t".repeat(long);
        run(dir, &["report", "html", "-o", "page.html", "--area", "all", "--title", &title]).ok();
        dir.join("page.html").metadata().unwrap().len()
    };
    let (short, long) = (make(200), make(100_000));
    assert!(long < short + 20_000, "{short} {long}");
    let Some(mut page) = Page::open(&dir.join("page.html"), false) else { return };
    let wide = page.number("document.documentElement.scrollWidth - document.documentElement.clientWidth");
    assert_eq!(wide, 0.0, "it is no wider than the window");
    let [x, y, width, height] = page.place(".area canvas");
    assert!(tip(&mut page, (x + width / 2.0, y + height / 2.0))["text"].as_str().unwrap().contains("xxx"));
    page.close();

    // Many files: each would be named in the command of each area.
    let files: Vec<String> = (0..400).map(|i| format!("part-of-a-long-run-{i:060}.rec")).collect();
    let mut args = vec!["report", "html", "-o", "page.html"];
    for (i, file) in files.iter().enumerate() {
        recorded::part(&dir.join(file), i as u64);
        args.extend(["-i", file]);
    }
    run(dir, &args).ok();
    let html = std::fs::read_to_string(dir.join("page.html")).unwrap();
    assert!(html.contains("isotherm report heatmap -i FILE...") && !html.contains(&files[7]));
}

#[test]
fn deeper_than_the_file_the_page_gives_the_command_that_goes_on() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    common::made_up(dir, "it's mine.rec", isotherm_record::Format::Rec);
    let make = |size: &str, name: &str| {
        run(dir, &["report", "html", "-i", "it's mine.rec", "--max-size", size, "-o", name]).ok();
        dir.join(name).metadata().unwrap().len()
    };
    let (large, small) = (make("5M", "large.html"), make("110K", "small.html"));
    assert!(small <= 110 << 10 && small < large, "{small} {large}");
    let refused = run(dir, &["report", "html", "-i", "it's mine.rec", "--max-size", "1K", "-o", "no.html"]);
    refused.fails(1, &["no.html", "at least", "1024"]);
    assert!(!dir.join("no.html").exists());
    let Some(mut page) = Page::open(&dir.join("small.html"), false) else { return };
    let [x, y, width, height] = page.place(".area canvas");
    let at = (x + width * 0.6, y + height * 0.4);
    for _ in 0..12 {
        page.wheel(at, -200, 0);
        page.wheel(at, -200, 8);
    }
    let command = page.text("document.querySelector('.area .note code').textContent");
    assert!(command.starts_with("isotherm report heatmap"), "{command}");
    let told = page.text("document.querySelector('.area .note').textContent");
    assert!(told.contains("finest detail"), "{told}");
    let rest = command.strip_prefix("isotherm").unwrap();
    let shell = std::process::Command::new("sh")
        .arg("-c")
        .arg(format!("{}{rest}", common::ISOTHERM))
        .current_dir(dir)
        .output()
        .unwrap();
    assert!(shell.status.success(), "{command}: {}", String::from_utf8_lossy(&shell.stderr));
    assert!(dir.join("detail.png").exists());
    page.close();
}

#[test]
fn only_a_page_of_ours_is_replaced() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    sample(dir);
    let page = ["report", "html", "-o", "page.html"];
    run(dir, &page).ok();
    run(dir, &page).ok();
    for (name, content) in [("notes.html", "<!doctype html>\n<html><body>mine"), ("notes.txt", "mine")] {
        std::fs::write(dir.join(name), content).unwrap();
        run(dir, &["report", "html", "-o", name]).fails(1, &[name, "left as it is"]);
        assert_eq!(std::fs::read_to_string(dir.join(name)).unwrap(), content);
    }
    run(dir, &["report", "html", "-o", "isotherm.rec"]).fails(1, &["left as it is"]);
    let out = run(dir, &["report", "html", "-o", "-"]).ok();
    assert_eq!(out, std::fs::read_to_string(dir.join("page.html")).unwrap());
    assert!(out.len() < 100_000, "{}", out.len());
}

#[test]
fn options_choose_what_the_page_holds() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    let half = format!("..{FIRST_HALF}s");
    let Some(mut page) = open(dir, &["--time", &half, "--target", "server", "--title", "Half"], false) else {
        return;
    };
    assert_eq!(page.text("document.querySelector('h1').textContent"), "Half");
    let length = page.number("time.length") / 1e9;
    assert!((length - f64::from(FIRST_HALF as u32)).abs() < 0.2, "{length}");
    let at = place_of(&mut page, Spot { time: 0.9, ..HOT });
    assert_eq!(number(&tip(&mut page, at)["hz"]).round(), 200.0);
    page.close();
    let help = run(dir, &["report", "html", "--help"]).ok();
    assert!(help.contains("Examples:") && help.contains("--max-size"), "{help}");
}

#[test]
fn what_is_only_unknown_is_striped_and_called_so() {
    let dir = tempdir().unwrap();
    recorded::unobserved(dir.path());
    run(dir.path(), &["report", "html", "-o", "page.html"]).ok();
    let Some(mut page) = Page::open(&dir.path().join("page.html"), false) else { return };
    let [x, y, width, height] = page.place(".area canvas");
    let picture = page.picture();
    let pixels = (0..200).map(|i| {
        let share = f64::from(i) / 200.0;
        picture.pixel((x + 2.0 + (width - 4.0) * share, y + 2.0 + (height - 4.0) * share))
    });
    let striped = |pixel: [u8; 3]| near(pixel, colour::UNKNOWN) || near(pixel, colour::UNKNOWN_STRIPE);
    assert!(pixels.into_iter().all(striped));
    assert!(page.text("document.getElementById('legend').textContent").contains("nothing was accessed"));
    let tip = tip(&mut page, (x + width / 2.0, y + height / 2.0));
    assert_eq!(tip["kind"], "unknown", "{tip}");
    let row = page.text("document.querySelector('#holdings tbody tr').textContent");
    assert!(row.ends_with("64.0 MiB"), "all of it in the column of what is unknown: {row}");
    page.close();
}

#[test]
fn of_five_hundred_processes_the_table_finds_the_one_asked_for() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    recorded::many(dir);
    run(dir, &["report", "html", "-o", "page.html"]).ok();
    assert!(dir.join("page.html").metadata().unwrap().len() < 500_000);
    let Some(mut page) = Page::open(&dir.join("page.html"), false) else { return };
    let areas = page.eval("[...document.querySelectorAll('.area h3')].map((h) => h.textContent)");
    assert!(
        areas.as_array().unwrap().len() <= 8 && areas[0].as_str().unwrap().contains("worker-49"),
        "{areas}"
    );
    let rows = |page: &mut Page| -> Vec<String> {
        let rows = "[...document.querySelectorAll('#holdings tbody tr.process')].map((row) => row.innerText)";
        serde_json::from_value(page.eval(rows)).unwrap()
    };
    let first = rows(&mut page);
    assert_eq!(first.len(), 101, "all together, and a hundred");
    // By working set, largest first: 62 MiB of those from 496 on.
    assert!(first[1].contains("worker-49") && first[1].contains("62.0 MiB"), "{}", first[1]);
    page.click("#holdings-body > button");
    assert_eq!(rows(&mut page).len(), 401);
    page.eval("document.getElementById('holdings-filter').focus()");
    for key in "worker-77".chars() {
        page.key(&key.to_string(), 0);
    }
    let found = rows(&mut page);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("worker-77 (1077)") && found[0].contains("9.0 MiB"), "{found:?}");
    page.click("#holdings tbody button");
    assert!(page.text("document.querySelector('#holdings tr.mapping').innerText").starts_with("[heap]"));
    page.eval("document.getElementById('holdings-filter').value = '', document.getElementById('holdings-filter').dispatchEvent(new Event('input'))");
    // Sorted by name, from the first.
    page.click("#holdings th[data-key=name] button");
    assert!(rows(&mut page)[1].contains("worker-0 (1000)"));
    assert_eq!(
        page.text("document.querySelector('th[data-key=name]').getAttribute('aria-sort')"),
        "ascending"
    );
    page.close();
}

/// A day of a program: 50 million regions. What it takes is printed, for people to judge; `ci/html-day.sh` runs it.
#[test]
#[ignore = "takes minutes: ci/html-day.sh"]
fn a_day_of_fifty_million_regions() {
    use isotherm_record::synthetic::{Shape, Synthetic};
    use isotherm_record::{Format, ItemReader, create};
    let dir = tempdir().unwrap();
    let dir = dir.path();
    // 864,000 snapshots of 100 ms; of the most regions a target may have, some three quarters are the rule.
    let shape = Shape { nr_regions: 50_000_000, max_nr_regions: 78, ..Shape::default() };
    let mut reader = Synthetic::new(shape);
    let mut writer = create(&dir.join("isotherm.rec"), Format::Rec).unwrap();
    while let Some(item) = reader.next_ref().unwrap() {
        writer.write(item).unwrap();
    }
    writer.finish().unwrap();
    let size = |name: &str| std::fs::metadata(dir.join(name)).unwrap().len();
    let seconds = |start: Instant| start.elapsed().as_secs_f64();
    let start = Instant::now();
    run(dir, &["report", "html", "-o", "page.html", "--area", "all"]).ok();
    let (made, bytes) = (seconds(start), size("page.html"));
    assert!(bytes <= 5 << 20, "{bytes}");
    println!("recording {} bytes; page {bytes} bytes, made in {made:.1} s", size("isotherm.rec"));
    // Once to warm up: a browser's first start reads it from the disk.
    for what in ["first", "again"] {
        let start = Instant::now();
        let Some(mut page) = Page::open(&dir.join("page.html"), false) else { return };
        let with_browser = seconds(start);
        let opened = page.number(
            "(() => { const n = performance.getEntriesByType('navigation')[0]; return n.loadEventEnd - n.startTime })()",
        );
        let canvas = heap(&mut page);
        let [x, y, width, height] = page.place(&canvas);
        let mut slowest: f64 = 0.0;
        for step in 0..20 {
            let start = Instant::now();
            let at = (x + width * (0.3 + 0.02 * f64::from(step)), y + height / 2.0);
            page.wheel(at, if step < 14 { -240 } else { 240 }, 0);
            page.settle();
            slowest = slowest.max(seconds(start));
        }
        println!(
            "{what}: opened in {:.2} s, {with_browser:.2} s with the browser's start; the slowest of 20 zooms {slowest:.2} s",
            opened / 1000.0
        );
        page.close();
    }
}
