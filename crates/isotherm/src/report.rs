//! `isotherm report`.

mod diff;
mod holdings;
mod html;

use crate::args::{AccessArgs, HeatmapArgs, RawArgs, ReportCommand, TrendArgs};
use crate::background::Background;
use crate::output::{Content, Draft};
use crate::reading::Recording;
use crate::terminal;
use anyhow::Context;
use isotherm_damon::AddrRange;
use isotherm_report::access::{self, AccessAnalysis, AccessOptions, Pattern, Selection, SortKey};
use isotherm_report::heatmap::{
    self, AreaChoice, GridSpec, Heatmap, PictureOptions, Raster, Survey, SurveyOptions, TerminalOptions,
};
use isotherm_report::json;
use isotherm_report::raw::{RawFormat, RawWriter};
use isotherm_report::trend::{self, ChartOptions, Measure, TextOptions, TrendAnalysis, TrendOptions};
use isotherm_report::units::{Rate, format_rate};
use serde::Serialize;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Runs the command.
///
/// # Errors
/// What went wrong, in words for the person who asked.
pub fn run(command: &ReportCommand) -> anyhow::Result<ExitCode> {
    match command {
        ReportCommand::Diff(args) => return diff::run(args),
        ReportCommand::Summary(args) => holdings::summary(args),
        ReportCommand::Info(args) => holdings::info(args),
        ReportCommand::Access(args) => access(args),
        ReportCommand::Heatmap(args) => heatmap(args),
        ReportCommand::Wss(args) => trend(&args.trend, Measure::WorkingSet(args.definition())),
        ReportCommand::Regions(args) => trend(args, Measure::Regions),
        ReportCommand::Raw(args) => raw(args),
        ReportCommand::Html(args) => html::run(args),
    }
    .map(|()| ExitCode::SUCCESS)
}

fn access(args: &AccessArgs) -> anyhow::Result<()> {
    let mut recording = match args.time {
        Selection::Last => Recording::new(&args.input),
        Selection::At(moment) => Recording::new(&args.input).at(moment),
        between @ Selection::Between(..) => Recording::new(&args.input).within(Some(between)),
    };
    let targets = recording.targets(&args.input.target)?;
    // What people look for stands on top: large, hot, old.
    let largest_first = matches!(args.sort, SortKey::Size | SortKey::Resident | SortKey::Rate | SortKey::Age);
    let mut analysis = AccessAnalysis::new(AccessOptions {
        selection: args.time,
        pattern: Pattern {
            size: args.size.unwrap_or_default(),
            resident: args.resident.unwrap_or_default(),
            min_rate: args.rate.and_then(|r| r.min),
            max_rate: args.rate.and_then(|r| r.max),
            age: args.age.unwrap_or_default(),
            addresses: args.address.clone(),
            targets: targets.iter().map(|id| id.0).collect(),
            mapping: args.mapping.clone(),
            unknown: args.unknown,
            ..Pattern::default()
        },
        by: args.by,
        limit: args.limit.filter(|most| *most > 0),
        sort: args.sort,
        descending: largest_first != args.reverse,
    });
    let ended = recording.read_into(&mut analysis)?;
    analysis.set_reading(ended.reading);
    let report = analysis.finish();
    if let Some(missing) = report.missing {
        return Err(missing.into());
    }
    if let Some(Rate::Hz(least)) = args.rate.and_then(|rates| rates.min)
        && let Some(highest) = report.provenance.highest_hz().filter(|highest| least > *highest)
    {
        let (least, highest) = (format_rate(least), format_rate(highest));
        say!(
            "isotherm: --rate: nothing can be accessed at {least} or more; the highest rate that can be seen is {highest}"
        );
    }
    if args.json {
        print_json(&report, true)
    } else {
        let width = args.width.map_or_else(|| terminal::size(io::stdout()).0, usize::from);
        print(|out| access::write_text(&report, width, out))
    }
}

/// How a heatmap is to be drawn.
enum Drawing {
    Picture(PictureFile, PictureOptions),
    Terminal(TerminalOptions),
    Json(PictureOptions),
}

impl Drawing {
    fn of(args: &HeatmapArgs) -> anyhow::Result<Self> {
        let default = PictureOptions::default();
        let picture = PictureOptions {
            width: args.width.map_or(default.width, usize::from),
            height: args.height.map_or(default.height, usize::from),
            scale: args.scale,
            title: args.title.clone(),
        };
        if let Some(path) = &args.output {
            return Ok(Self::Picture(PictureFile::new(path)?, picture));
        }
        if args.json {
            return Ok(Self::Json(picture));
        }
        let (width, lines) = terminal::size(io::stdout());
        // Room for head, foot, axis and the titles of the areas, so that all of it fits on a screen.
        let lines = lines.map_or(24, |lines| lines.saturating_sub(14).clamp(8, 60));
        Ok(Self::Terminal(TerminalOptions {
            width: args.width.map_or(width, usize::from),
            lines: args.height.map_or(lines, usize::from),
            mode: terminal::colours(&io::stdout(), args.color),
            scale: args.scale,
        }))
    }

    fn grid(&self, areas: Vec<heatmap::Area>, time: (u64, u64)) -> GridSpec {
        match self {
            Self::Picture(_, options) | Self::Json(options) => options.grid(areas, time),
            Self::Terminal(options) => options.grid(areas, time),
        }
    }

    fn write(self, map: &Heatmap) -> anyhow::Result<()> {
        match self {
            Self::Picture(file, options) => file.write(|kind, out| match kind {
                PictureKind::Png => heatmap::write_png(map, &options, out),
                PictureKind::Svg => heatmap::write_svg(map, &options, out),
            }),
            Self::Terminal(options) => print(|out| heatmap::write_terminal(map, &options, out)),
            Self::Json(_) => print_json(map, false),
        }
    }
}

fn heatmap(args: &HeatmapArgs) -> anyhow::Result<()> {
    let drawing = Drawing::of(args)?;
    let mut recording = Recording::new(&args.input).within(args.time);
    let targets = recording.targets(&args.input.target)?;
    let choice = area_choice(args.object.as_deref(), args.address, &args.area);
    // What comes through a pipe is seen once: the survey itself has to keep enough to draw from.
    let once = recording.is_stream();
    let mut survey = Survey::new(SurveyOptions {
        targets: targets.clone(),
        every_snapshot: once,
        by_object: args.object.is_some(),
        ..SurveyOptions::default()
    });
    let ended = recording.read_into(&mut survey)?;
    survey.set_reading(ended.reading.clone());
    let areas = survey.areas(&choice, usize::from(args.max_areas))?;
    let time = survey.time_range().context("the recording holds no snapshot in the chosen time")?;
    let grid = drawing.grid(areas, time);
    let map = if once {
        survey.draw(&grid)
    } else {
        drop(survey);
        let mut raster = Raster::new(&grid).of_targets(targets);
        recording.read_into(&mut raster)?;
        raster.set_reading(ended.reading);
        raster.finish()
    };
    drawing.write(&map)
}

/// The areas that are asked for: an object or addresses, where they are, else by kind or name.
fn area_choice(object: Option<&str>, address: Option<AddrRange>, area: &AreaChoice) -> AreaChoice {
    match (object, address) {
        (Some(object), _) => AreaChoice::Object(object.to_owned()),
        (None, Some(range)) => AreaChoice::Address(range),
        (None, None) => area.clone(),
    }
}

fn trend(args: &TrendArgs, measure: Measure) -> anyhow::Result<()> {
    let picture = args.output.as_deref().map(PictureFile::new).transpose()?;
    let mut recording = Recording::new(&args.input).within(args.time);
    let targets = recording.targets(&args.input.target)?;
    let mut analysis = TrendAnalysis::new(TrendOptions { targets, ..TrendOptions::new(measure) });
    let ended = recording.read_into(&mut analysis)?;
    analysis.set_reading(ended.reading);
    let report = analysis.finish();
    if let Some(file) = picture {
        let default = ChartOptions::default();
        let options = ChartOptions {
            width: args.width.map_or(default.width, usize::from),
            height: args.height.map_or(default.height, usize::from),
            title: args.title.clone(),
        };
        return file.write(|kind, out| match kind {
            PictureKind::Png => trend::write_png(&report, &options, out),
            PictureKind::Svg => trend::write_svg(&report, &options, out),
        });
    }
    if args.json {
        return print_json(&report, true);
    }
    let (width, _) = terminal::size(io::stdout());
    let options = TextOptions {
        width: args.width.map_or(width, usize::from),
        lines: args.height.map_or(TextOptions::default().lines, usize::from),
    };
    print(|out| trend::write_text(&report, &options, out))
}

fn raw(args: &RawArgs) -> anyhow::Result<()> {
    let mut recording = Recording::new(&args.input).within(args.time);
    let targets = recording.targets(&args.input.target)?;
    let format = if args.json { RawFormat::JsonLines } else { RawFormat::Text };
    let stdout = File::from(io::stdout().as_fd().try_clone_to_owned().map_err(unprinted)?);
    let out = Background::new(stdout).map_err(unprinted)?;
    let mut writer = RawWriter::new(out, format, targets);
    let ended = recording.read(&mut |item| writer.item(item).map_err(unprinted))?;
    let out = writer.finish(ended.reading).map_err(unprinted)?;
    out.finish().map_err(unprinted)?;
    Ok(())
}

fn unprinted(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot write to standard output: {error}"))
}

/// Prints to standard output, all of it or an error.
pub fn print(write: impl FnOnce(&mut BufWriter<io::StdoutLock<'_>>) -> io::Result<()>) -> anyhow::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    write(&mut out).and_then(|()| out.flush()).map_err(|error| unprinted(error).into())
}

pub fn print_json(value: &impl Serialize, pretty: bool) -> anyhow::Result<()> {
    print(|out| {
        if pretty {
            json::to_writer_pretty(&mut *out, value)?;
        } else {
            json::to_writer(&mut *out, value)?;
        }
        out.write_all(b"\n")
    })
}

#[derive(Clone, Copy)]
pub enum PictureKind {
    Png,
    Svg,
}

/// A picture to be written. It replaces a picture of one's own or nothing.
pub struct PictureFile {
    path: PathBuf,
    kind: PictureKind,
    draft: Draft,
}

impl PictureFile {
    pub fn new(path: &Path) -> anyhow::Result<Self> {
        let ending = path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase());
        let kind = match ending.as_deref() {
            Some("png") => PictureKind::Png,
            Some("svg") => PictureKind::Svg,
            _ => {
                misuse!(
                    "{}: pictures are drawn as .png or .svg; end the name with one of them",
                    path.display()
                )
            }
        };
        let draft = Draft::of(Content::Picture, path)?;
        Ok(Self { path: path.to_owned(), kind, draft })
    }

    pub fn write(self, draw: impl FnOnce(PictureKind, &mut Vec<u8>) -> io::Result<()>) -> anyhow::Result<()> {
        let path = self.path.display();
        let mut picture = Vec::new();
        draw(self.kind, &mut picture).with_context(|| format!("cannot draw {path}"))?;
        self.draft.open()?.write_all(&picture).with_context(|| format!("cannot write {path}"))?;
        self.draft.keep()?;
        say!("isotherm: wrote {path}");
        Ok(())
    }
}
