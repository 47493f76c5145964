//! Draws a recording: `heatmap.png`, `heatmap.svg`, `wss.png`, `wss.svg` and `regions.png` into a folder, the heatmap on the
//! terminal, and how long each step took.
//!
//! `cargo run --release -p isotherm-report --example pictures FOLDER [RECORDING]`; without a recording, a made-up one of
//! a million regions.
use isotherm_record::synthetic::{Shape, Synthetic};
use isotherm_record::{ItemReader, open};
use isotherm_report::colour::{ColourChoice, ColourMode};
use isotherm_report::heatmap::{
    self, AreaChoice, PictureOptions, Raster, Survey, SurveyOptions, TerminalOptions,
};
use isotherm_report::trend::{self, ChartOptions, Definition, Measure, TrendAnalysis, TrendOptions};
use isotherm_report::{Accumulate, access};
use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, IsTerminal};
use std::path::Path;
use std::time::Instant;

/// Gives every item of the recording to every analysis.
fn read(recording: Option<&str>, analyses: &mut [&mut dyn Accumulate]) -> Result<(), Box<dyn Error>> {
    let mut reader: Box<dyn ItemReader> = match recording {
        Some(path) => open(Path::new(path))?,
        None => Box::new(Synthetic::new(Shape::default())),
    };
    while let Some(item) = reader.next_ref()? {
        analyses.iter_mut().for_each(|analysis| analysis.item(item));
    }
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let folder = Path::new(arguments.first().ok_or("usage: pictures FOLDER [RECORDING]")?);
    let recording = arguments.get(1).map(String::as_str);
    let file = |name: &str| File::create(folder.join(name)).map(BufWriter::new);

    let start = Instant::now();
    let mut survey = Survey::new(SurveyOptions::default());
    read(recording, &mut [&mut survey])?;
    let time = survey.time_range().ok_or("no snapshot")?;
    let areas = survey.areas(&AreaChoice::Hot, 4)?;
    let surveyed = start.elapsed();

    let picture = PictureOptions::default();
    let mut raster = Raster::new(&picture.grid(areas.clone(), time));
    read(recording, &mut [&mut raster])?;
    let map = raster.finish();
    heatmap::write_png(&map, &picture, file("heatmap.png")?)?;
    println!(
        "survey {surveyed:?}, then {:?} to a heatmap of {} regions",
        start.elapsed() - surveyed,
        map.provenance.regions
    );
    heatmap::write_svg(&map, &picture, file("heatmap.svg")?)?;

    let is_terminal = std::io::stdout().is_terminal();
    let variable = |name: &str| std::env::var(name).ok();
    let (no_color, colorterm, term) = (variable("NO_COLOR"), variable("COLORTERM"), variable("TERM"));
    let (no_color, colorterm, term) = (no_color.as_deref(), colorterm.as_deref(), term.as_deref());
    let mode = ColourMode::detect(ColourChoice::Auto, is_terminal, no_color, colorterm, term);
    let terminal = TerminalOptions { mode, ..TerminalOptions::default() };
    let mut raster = Raster::new(&terminal.grid(areas, time));
    let mut wss = TrendAnalysis::new(TrendOptions::new(Measure::WorkingSet(Definition::default())));
    let mut regions = TrendAnalysis::new(TrendOptions::new(Measure::Regions));
    let sort = access::SortKey::Rate;
    let mut last =
        access::AccessAnalysis::new(access::AccessOptions { sort, descending: true, ..Default::default() });
    read(recording, &mut [&mut raster, &mut wss, &mut regions, &mut last])?;
    heatmap::write_terminal(&raster.finish(), &terminal, &mut std::io::stdout())?;
    let (wss, regions, mut last) = (wss.finish(), regions.finish(), last.finish());
    last.targets.iter_mut().for_each(|target| target.regions.truncate(10));
    trend::write_text(&wss, &trend::TextOptions::default(), &mut std::io::stdout())?;
    access::write_text(&last, 100, &mut std::io::stdout())?;
    trend::write_png(&wss, &ChartOptions::default(), file("wss.png")?)?;
    trend::write_svg(&wss, &ChartOptions::default(), file("wss.svg")?)?;
    trend::write_png(&regions, &ChartOptions::default(), file("regions.png")?)?;
    Ok(())
}
