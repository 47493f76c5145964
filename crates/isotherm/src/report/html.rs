//! `isotherm report html`.

use crate::args::HtmlArgs;
use crate::output::{Content, Draft, is_standard};
use crate::reading::Recording;
use anyhow::{Context, anyhow};
use isotherm_damon::TargetId;
use isotherm_record::{Item, RecordChoice, shell_word};
use isotherm_report::heatmap::{Survey, SurveyOptions};
use isotherm_report::holdings::Holdings;
use isotherm_report::html::{self, Canvas, Contents};
use isotherm_report::trend::{Definition, Measure, TrendAnalysis, TrendOptions};
use isotherm_report::units::format_size;
use isotherm_report::{Accumulate, GaveUp, WithoutEnds};
use std::io::{self, BufWriter, Write};

/// Stretches of time that the working set is kept for, at most.
const BUCKETS: usize = 2048;

/// Regions of a snapshot beyond which a recording is read by one thread at a time. A guess: a reader takes 120 bytes for each.
const WIDE: usize = 200_000;

/// Most bytes of the names of files in the command that a page gives: as a shell's line, more serves nobody. A guess.
const MAX_FILES: usize = 8192;

/// Runs the command.
///
/// # Errors
/// What went wrong, in words for the person who asked.
pub fn run(args: &HtmlArgs) -> anyhow::Result<()> {
    let draft = Draft::of(Content::Page, &args.output)?;
    let mut recording = Recording::new(&args.input).within(args.time);
    if recording.is_stream() {
        misuse!(
            "a page takes two passes over the recording, and a stream can be read once: save it to a file first"
        );
    }
    let targets = recording.targets(&args.input.target)?;
    // Heat, and the figures beside it, by a thread each: decoding twice takes less time than waiting for each other. Where snapshots
    // are that large it takes much memory.
    let (canvas, figures) = if has_wide_snapshots(&recording) {
        let canvas = draw(args, &mut recording, targets.clone())?;
        (canvas, Figures::read(args, targets)?)
    } else {
        read_beside(args, &mut recording, &targets)?
    };
    let contents = Contents {
        title: args.title.clone(),
        trend: figures.trend.finish(),
        holdings: figures.holdings,
        gave_up: figures.gave_up,
        command: command(args),
        max_bytes: args.max_size,
    };
    write(draft, args, canvas, &contents)
}

/// Reads for heat and figures at a time.
fn read_beside(
    args: &HtmlArgs,
    recording: &mut Recording,
    targets: &[TargetId],
) -> anyhow::Result<(Canvas, Figures)> {
    std::thread::scope(|scope| {
        let figures = scope.spawn(|| Figures::read(args, targets.to_vec()));
        let canvas = draw(args, recording, targets.to_vec())?;
        let figures = figures.join().map_err(|_| anyhow!("reading the recording failed"))??;
        anyhow::Ok((canvas, figures))
    })
}

/// Whether the first snapshot is so large that each reader of it takes tens of megabytes. Files of other formats would be read whole
/// to know it.
fn has_wide_snapshots(recording: &Recording) -> bool {
    let is_own = recording.files().first().is_some_and(|file| isotherm_record::is_own(file));
    // What is wrong with it is said when it is read.
    let Some(mut reader) = is_own.then(|| recording.open().ok()).flatten() else { return false };
    loop {
        match reader.next_ref() {
            Ok(Some(Item::Snapshot(snapshot))) => return snapshot.nr_regions() > WIDE,
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => return false,
        }
    }
}

/// The heat: one pass to find the areas worth showing, one to draw them.
fn draw(args: &HtmlArgs, recording: &mut Recording, targets: Vec<TargetId>) -> anyhow::Result<Canvas> {
    let choice = super::area_choice(args.object.as_deref(), args.address, &args.area);
    let mut survey = Survey::new(SurveyOptions {
        targets: targets.clone(),
        by_object: args.object.is_some(),
        ..SurveyOptions::default()
    });
    recording.read_into(&mut survey)?;
    // From the hottest area on: what people look for is on top.
    let mut areas = survey.areas(&choice, usize::from(args.max_areas))?;
    areas.reverse();
    let time = survey.time_range().context("the recording holds no snapshot in the chosen time")?;
    let mut canvas = Canvas::new(areas, time, survey.provenance()).of_targets(targets);
    drop(survey);
    let ended = recording.read_into(&mut canvas)?;
    canvas.set_reading(ended.reading);
    Ok(canvas)
}

/// What the page shows besides the heat.
struct Figures {
    trend: TrendAnalysis,
    holdings: Holdings,
    gave_up: Vec<GaveUp>,
}

impl Figures {
    fn read(args: &HtmlArgs, targets: Vec<TargetId>) -> anyhow::Result<Self> {
        let mut trend = TrendAnalysis::new(TrendOptions {
            targets: targets.clone(),
            buckets: BUCKETS,
            ..TrendOptions::new(Measure::WorkingSet(Definition::default()))
        });
        let mut holdings = WithoutEnds::new(Holdings::new(targets));
        Recording::new(&args.input).within(args.time).silent().read(&mut |item| {
            trend.item(item);
            holdings.item(item);
            Ok(())
        })?;
        let (holdings, gave_up) = holdings.finish();
        Ok(Self { trend, holdings, gave_up })
    }
}

fn write(draft: Draft, args: &HtmlArgs, canvas: Canvas, contents: &Contents) -> anyhow::Result<()> {
    let path = args.output.display();
    if is_standard(&args.output) {
        let mut out = BufWriter::new(io::stdout().lock());
        html::write(canvas, contents, &mut out).context("cannot write to standard output")?;
        return out.flush().context("cannot write to standard output");
    }
    let mut out = BufWriter::new(draft.open()?);
    let written = html::write(canvas, contents, &mut out).with_context(|| format!("cannot write {path}"))?;
    out.flush().with_context(|| format!("cannot write {path}"))?;
    drop(out);
    draft.keep()?;
    say!("isotherm: wrote {path} ({}); open it in a browser", format_size(written.bytes));
    Ok(())
}

/// The command that draws heatmaps of the same recording.
fn command(args: &HtmlArgs) -> String {
    let input = &args.input;
    let files: Vec<String> =
        input.input.iter().map(|path| shell_word(&path.to_string_lossy()).into_owned()).collect();
    let mut files = files.join(" ");
    if files.len() > MAX_FILES {
        "FILE...".clone_into(&mut files);
    }
    let mut words = vec![format!("isotherm report heatmap -i {files}")];
    if let Some(format) = input.foreign.from {
        words.push(format!("--from {format}"));
    }
    for (option, time) in [("--sample", input.foreign.sample), ("--aggr", input.foreign.aggr)] {
        words.extend(time.map(|time| format!("{option} {}us", time.as_micros())));
    }
    words.extend(match input.foreign.record {
        None | Some(RecordChoice::Main) => None,
        Some(RecordChoice::Nth(n)) => Some(format!("--record {n}")),
        Some(RecordChoice::All) => Some("--record all".to_owned()),
    });
    words.join(" ")
}
