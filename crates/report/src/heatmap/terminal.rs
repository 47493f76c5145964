//! A heatmap for a terminal.
//!
//! With colours a line shows two rows of cells (the upper and the lower half of a character); without, a line shows one
//! row as digits: 0 is 0 Hz, 1 to 9 are ninths of the highest rate, ? is unknown, blank is not monitored.

use super::{Area, GridSpec, Heatmap, Level, Panel, Scale, Tick};
use crate::colour::{self, Colour, ColourMode};
use crate::columns::{self, shortened};
use crate::units::{format_rate, format_share, format_size};
use std::io::{self, Write};

/// How to draw on a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminalOptions {
    /// Columns of the terminal; at least 12 are used.
    pub width: usize,
    /// Lines for the cells of all panels together.
    pub lines: usize,
    /// Colours or digits.
    pub mode: ColourMode,
    /// How rates become colours or digits.
    pub scale: Scale,
}

impl Default for TerminalOptions {
    fn default() -> Self {
        Self { width: 100, lines: 24, mode: ColourMode::Plain, scale: Scale::Auto }
    }
}

/// A character of unknown cells, half covered with stripes.
const UNKNOWN: char = '\u{2592}';

/// A character of cells in which an action of a scheme took effect.
const ACTED: char = 'x';

/// Columns that are used at the least.
pub const NARROWEST: usize = 12;

/// Columns that notes take at the least.
const NOTES: usize = 30;

/// Width of an address, `0x7ffc00000000`.
const ADDRESS: usize = 14;

impl TerminalOptions {
    /// The cells that fit: give it to a [`super::Raster`] and the result to [`write_terminal`].
    pub fn grid(&self, areas: Vec<Area>, time: (u64, u64)) -> GridSpec {
        let unit = self.rows_per_line();
        GridSpec::new(areas, time, self.columns(), self.lines * unit, unit, 2 * unit)
    }

    fn rows_per_line(&self) -> usize {
        if self.mode == ColourMode::Plain { 1 } else { 2 }
    }

    /// Width of the mappings' names, with the space before them.
    fn names(&self) -> usize {
        if self.width >= 70 { (self.width / 6).min(24) } else { 0 }
    }

    fn gutter(&self) -> usize {
        if self.width >= 40 { ADDRESS + 1 } else { 0 }
    }

    fn columns(&self) -> usize {
        self.width.max(NARROWEST) - self.gutter() - self.names()
    }
}

/// Writes `map` with axes, names of mappings, legend, and the head and foot of its recording.
///
/// # Errors
/// Those of `out`.
pub fn write_terminal(map: &Heatmap, options: &TerminalOptions, out: &mut impl Write) -> io::Result<()> {
    for line in map.provenance.head_within(options.width.max(40)) {
        writeln!(out, "{line}")?;
    }
    write_body(map, options, out)?;
    for line in map.provenance.foot_within(options.width.max(NOTES)) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// The panels, the time axis and the legend only.
pub fn write_body(map: &Heatmap, options: &TerminalOptions, out: &mut impl Write) -> io::Result<()> {
    let scale = map.scale(options.scale);
    for panel in map.panels.iter().rev() {
        writeln!(out, "{}", title(map, panel, options.width.max(NARROWEST)))?;
        write_panel(map, panel, options, scale, out)?;
    }
    write_time_axis(map, options, out)?;
    write_legend(map, options, scale, out)?;
    if map.has_actions() {
        writeln!(out, "{ACTED}: an action of a scheme took effect there")?;
    }
    for line in map.provenance.actions_in_words() {
        writeln!(out, "actions: {line}")?;
    }
    if let Some(share) = map.heat_share() {
        let heat =
            format!("{} of the recorded heat (Hz x bytes x s) lies in the areas shown", format_share(share));
        write_wrapped(&heat, options, out)?;
    }
    if let Some(left_out) = map.left_out() {
        write_wrapped(&left_out, options, out)?;
    }
    Ok(())
}

/// Writes a note in lines that fit.
fn write_wrapped(note: &str, options: &TerminalOptions, out: &mut impl Write) -> io::Result<()> {
    columns::wrapped(note, options.width.max(NOTES)).iter().try_for_each(|line| writeln!(out, "{line}"))
}

/// What a panel shows, in a line of at most `width` characters. A figure is there whole or not at all.
pub(super) fn title(map: &Heatmap, panel: &Panel, width: usize) -> String {
    let mut title = panel.area.name.clone();
    // The head names the target when there is only one.
    if let Some(target) = panel.area.target()
        && !panel.area.is_object()
        && map.provenance.nr_targets != 1
    {
        title.push_str(&format!(" of {}", map.provenance.target_name(target)));
    }
    let size = panel.area.extent();
    let row = format!("{} a row", format_size(panel.row_bytes()));
    let share = panel.area.heat_share.map(|share| format!("{} of the heat", format_share(share)));
    let figures = |list: &[Option<&String>]| {
        list.iter().flatten().map(|figure| figure.as_str()).collect::<Vec<_>>().join(", ")
    };
    let mapped = panel.area.mapped.map_or_else(|| size.clone(), format_size);
    let choices = [
        figures(&[Some(&size), Some(&row), share.as_ref()]),
        figures(&[Some(&size), share.as_ref()]),
        size,
        mapped,
    ];
    let fits = |figures: &&String| columns::width(&title) + 2 + columns::width(figures) <= width;
    match choices.iter().find(fits) {
        Some(figures) => format!("{title}: {figures}"),
        None => shortened(&title, width),
    }
}

/// Cells of a character: the upper row and, with colours, the lower.
fn write_panel(
    map: &Heatmap,
    panel: &Panel,
    options: &TerminalOptions,
    scale: Scale,
    out: &mut impl Write,
) -> io::Result<()> {
    let unit = options.rows_per_line();
    let lines = panel.rows.div_ceil(unit);
    let names = line_names(panel, lines, unit);
    let level = |row: usize, column: usize| map.level(panel, row, column, scale);
    for (line, name) in names.iter().enumerate() {
        // Addresses grow upwards.
        let low = (lines - 1 - line) * unit;
        if options.gutter() > 0 {
            let labelled = line == 0 || line + 1 == lines || (line % 4 == 0 && line + 3 < lines);
            // Where the line begins, the top line too: labels are as far apart as their lines.
            let address = panel.row_range(low).start;
            match labelled {
                true => write!(out, "{:>ADDRESS$} ", format!("{address:#x}"))?,
                false => write!(out, "{:ADDRESS$} ", "")?,
            }
        }
        if options.mode == ColourMode::Plain {
            let digits: String = (0..map.columns)
                .map(|column| if panel.is_acted_on(low, column) { ACTED } else { level(low, column).digit() })
                .collect();
            match name {
                Some(name) if options.names() > 0 => write!(out, "{digits}")
                    .and_then(|()| writeln!(out, " {}", shortened(name, options.names() - 1)))?,
                _ => writeln!(out, "{}", digits.trim_end())?,
            }
            continue;
        }
        write_half_blocks(
            map.columns,
            |column| {
                let glyph = Glyph::of(level(low + 1, column), level(low, column));
                let acted = panel.is_acted_on(low + 1, column) || panel.is_acted_on(low, column);
                if acted { glyph.acted_on() } else { glyph }
            },
            options.mode,
            out,
        )?;
        match name {
            Some(name) if options.names() > 0 => writeln!(out, " {}", shortened(name, options.names() - 1))?,
            _ => writeln!(out)?,
        }
    }
    Ok(())
}

/// A character that shows two cells, one above the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Glyph {
    /// The character.
    pub symbol: char,
    /// Its colour; `None`: the terminal's own.
    pub fg: Option<Colour>,
    /// The colour behind it; `None`: the terminal's own.
    pub bg: Option<Colour>,
    /// Whether it is dim.
    pub dim: bool,
}

impl Glyph {
    /// The character for an upper and a lower cell.
    pub fn of(upper: Level, lower: Level) -> Self {
        let (symbol, fg, bg, dim) = match (upper, lower) {
            (Level::Empty, Level::Empty) => ('\u{b7}', None, None, true),
            (Level::Unknown, Level::Unknown) => {
                (UNKNOWN, Some(colour::UNKNOWN_STRIPE), upper.colour(), false)
            }
            // The lower half block leaves the upper half to the terminal's own background.
            (Level::Empty, _) => ('\u{2584}', lower.colour(), None, false),
            _ => ('\u{2580}', upper.colour(), lower.colour(), false),
        };
        Self { symbol, fg, bg, dim }
    }

    /// The same where an action of a scheme took effect: the sign, before the colour of the lower cell.
    fn acted_on(self) -> Self {
        Self { symbol: ACTED, fg: Some(colour::ACTED), dim: false, ..self }
    }
}

/// A line of half blocks.
fn write_half_blocks(
    columns: usize,
    glyph: impl Fn(usize) -> Glyph,
    mode: ColourMode,
    out: &mut impl Write,
) -> io::Result<()> {
    // 38 and 48 set the colour of text and background, 39 and 49 take it back.
    let paint = |colour: Option<Colour>, ground: u8| match (colour, mode) {
        (None, _) => format!("{}", ground + 1),
        (Some(c), ColourMode::True) => format!("{ground};2;{};{};{}", c.r, c.g, c.b),
        (Some(c), _) => format!("{ground};5;{}", c.ansi256()),
    };
    let mut state = String::new();
    for column in 0..columns {
        let Glyph { symbol, fg, bg, dim } = glyph(column);
        let wanted = format!("{};{};{}", if dim { 2 } else { 22 }, paint(fg, 38), paint(bg, 48));
        if state != wanted {
            write!(out, "\x1b[{wanted}m")?;
            state = wanted;
        }
        write!(out, "{symbol}")?;
    }
    write!(out, "\x1b[0m")
}

/// Which mapping's name stands beside which line: the largest mappings first, in the middle of their lines.
fn line_names(panel: &Panel, lines: usize, unit: usize) -> Vec<Option<String>> {
    let mut names: Vec<Option<String>> = vec![None; lines];
    for (start, end, name) in panel.names() {
        let middle = (start + end) / 2.0;
        let row = ((middle * panel.rows as f64) as usize).min(panel.rows.saturating_sub(1));
        let line = lines - 1 - (row / unit).min(lines - 1);
        if names[line].is_none() {
            names[line] = Some(name.to_owned());
        }
    }
    names
}

fn write_time_axis(map: &Heatmap, options: &TerminalOptions, out: &mut impl Write) -> io::Result<()> {
    let indent = options.gutter();
    let mut marks = vec![b'-'; map.columns];
    let mut labels = String::new();
    for Tick { place, text } in map.time_ticks(map.columns / 12) {
        let at = (place * map.columns as f64) as usize;
        let at = at.min(map.columns.saturating_sub(1));
        // A label may reach past the last column, where names stand above, but not past the terminal.
        if labels.len() <= at && indent + at + text.len() <= options.width.max(NARROWEST) {
            labels.push_str(&" ".repeat(at - labels.len()));
            labels.push_str(&text);
            labels.push(' ');
            marks[at] = b'+';
        }
    }
    let unit = if indent >= 8 { "time (s)" } else { "" };
    writeln!(out, "{:indent$}{}", "", String::from_utf8_lossy(&marks))?;
    writeln!(out, "{unit:indent$}{}", labels.trim_end())
}

fn write_legend(
    map: &Heatmap,
    options: &TerminalOptions,
    scale: Scale,
    out: &mut impl Write,
) -> io::Result<()> {
    let highest = map.highest_hz;
    let plain = options.mode == ColourMode::Plain;
    if highest <= 0.0 {
        write!(out, "access rate: 0 Hz everywhere that is known, nothing was accessed while monitored")?;
        return match map.has_unknown() {
            true if plain => writeln!(out, "; ?: unknown"),
            true => writeln!(out, "; {UNKNOWN}: unknown"),
            false => writeln!(out),
        };
    }
    if options.mode == ColourMode::Plain {
        let up_to = |digit: u32| format_rate(scale.rate_hz(f64::from(digit) / 9.0, highest));
        let legend = format!(
            "access rate{}: 0 is 0 Hz, 1 up to {}, 3 up to {}, 6 up to {}, 9 up to {}; {}blank: not monitored",
            scale.remark(),
            up_to(1),
            up_to(3),
            up_to(6),
            up_to(9),
            if map.has_unknown() { "?: unknown; " } else { "" }
        );
        return write_wrapped(&legend, options, out);
    }
    let columns = options.width.max(NARROWEST);
    let (zero, most) = ("0 Hz ", format_rate(highest));
    let width = columns.saturating_sub(zero.len() + most.len() + 1).clamp(4, 24);
    let level = |column: usize| Level::Rate(1.0, column as f64 / (width - 1) as f64);
    let mut bar = zero.as_bytes().to_vec();
    write_half_blocks(width, |column| Glyph::of(level(column), level(column)), options.mode, &mut bar)?;
    write!(bar, " {most}")?;
    let middle = format!("(middle {});", format_rate(scale.rate_hz(0.5, highest)));
    let head = format!("access rate{}:", scale.remark());
    // What stays together, and the columns that it takes.
    let whole = |text: &str| (columns::width(text), text.as_bytes().to_vec());
    let mut parts: Vec<(usize, Vec<u8>)> = head.split(' ').map(whole).collect();
    parts.push((zero.len() + width + 1 + most.len(), bar));
    parts.push(whole(&middle));
    if map.has_unknown() {
        let mut sample = Vec::new();
        write_half_blocks(2, |_| Glyph::of(Level::Unknown, Level::Unknown), options.mode, &mut sample)?;
        sample.extend_from_slice(b" unknown;");
        parts.push((11, sample));
    }
    parts.push(whole("\u{b7}: not monitored"));
    let mut at = 0;
    for (wide, text) in parts {
        let separator: &[u8] = match at {
            0 => b"",
            at if at + 1 + wide > columns => b"\n",
            _ => b" ",
        };
        at = if separator == b" " { at + 1 + wide } else { wide };
        out.write_all(separator)?;
        out.write_all(&text)?;
    }
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Accumulate;
    use crate::heatmap::Raster;
    use crate::synthetic::{MIB, region, snapshot, stairs, unknown};
    use isotherm_record::{Item, Mapping, Mappings, SchemeAction};

    fn draw(options: &TerminalOptions) -> String {
        let area = Area {
            target: Some(1),
            start: 0x7f00_0000_0000,
            end: 0x7f00_0000_0000 + 110 * MIB,
            name: "mmap".to_owned(),
            heat_share: Some(1.0),
            ..Area::default()
        };
        let spec = options.grid(vec![area], (0, 10_000_000_000));
        let mut raster = Raster::new(&spec);
        let map = Mapping {
            start: 0x7f00_0000_0000,
            end: 0x7f00_0640_0000,
            name: "/tmp/data.bin".into(),
            ..Mapping::default()
        };
        raster.note(&Item::Mappings(Mappings { target: 1, maps: [map].into(), ..Mappings::default() }));
        stairs(0x7f00_0000_0000, 10).iter().for_each(|s| raster.snapshot(s));
        let mut out = Vec::new();
        write_terminal(&raster.finish(), options, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn visible(line: &str) -> usize {
        let mut escape = false;
        let shown = line.chars().filter(|c| match (escape, c) {
            (false, '\x1b') => {
                escape = true;
                false
            }
            (true, c) => {
                escape = *c != 'm';
                false
            }
            _ => true,
        });
        shown.count()
    }

    #[test]
    fn digits_climb_the_stairs() {
        let text = draw(&TerminalOptions { width: 80, lines: 11, ..TerminalOptions::default() });
        let rows: Vec<&str> = text.lines().filter(|l| l.contains("9999")).collect();
        assert_eq!(rows.len(), 10, "{text}");
        let starts: Vec<usize> = rows.iter().map(|l| l[15..].find('9').unwrap()).collect();
        assert!(starts.windows(2).all(|w| w[0] > w[1]), "upwards: {text}");
        // The eleventh step is mapped but was not monitored.
        assert!(text.lines().any(|l| l.trim_end() == "0x7f0006400000"), "{text}");
        let label = |line: &str| u64::from_str_radix(line.strip_prefix("0x")?.split(' ').next()?, 16).ok();
        let lines: Vec<&str> = text.lines().skip_while(|l| !l.starts_with("0x")).take(11).collect();
        for (nth, line) in lines.iter().enumerate().filter(|(_, l)| l.starts_with("0x")) {
            let start = 0x7f00_0000_0000 + (10 - nth as u64) * 10 * MIB;
            assert_eq!(label(line), Some(start), "where its line begins: {text}");
        }
        // Notes break where the terminal ends.
        let text = text.replace('\n', " ");
        for part in ["data.bin", "time (s)", "9 up to 200 Hz", "blank: not monitored", "100 % of the heat"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains('\x1b'));
    }

    #[test]
    fn unknown_has_a_look_of_its_own_in_every_mode() {
        let area = Area { end: 8192, ..Area::default() };
        for (hot, mode) in
            [(20, ColourMode::Plain), (20, ColourMode::True), (0, ColourMode::Plain), (0, ColourMode::True)]
        {
            let options = TerminalOptions { width: 60, lines: 2, mode, ..TerminalOptions::default() };
            let mut raster = Raster::new(&options.grid(vec![area.clone()], (0, 100_000_000)));
            raster.snapshot(&snapshot(0, 1, vec![region(0, 4096, hot), unknown(4096, 8192)]));
            let mut out = Vec::new();
            write_terminal(&raster.finish(), &options, &mut out).unwrap();
            let text = String::from_utf8(out).unwrap();
            let sign = if mode == ColourMode::Plain { '?' } else { UNKNOWN };
            let row = text.lines().filter(|l| l.matches(sign).count() > 30).count();
            assert_eq!(row, 1, "{text}");
            assert!(text.contains("unknown"), "a legend: {text}");
        }
        assert!(
            !draw(&TerminalOptions::default()).contains("unknown; "),
            "no legend for what does not occur"
        );
    }

    #[test]
    fn actions_have_a_sign_where_they_took_effect_and_a_legend() {
        let area = Area { end: 8 * 4096, target: Some(1), ..Area::default() };
        let done = |time_ns, target, applied| {
            Item::Action(SchemeAction {
                time_ns,
                target,
                start: 2 * 4096,
                end: 6 * 4096,
                scheme: "idle".to_owned(),
                action: "pageout".to_owned(),
                tried: 4 * 4096,
                applied,
            })
        };
        for (mode, rows) in [(ColourMode::Plain, 4), (ColourMode::True, 2)] {
            let options = TerminalOptions {
                mode,
                lines: 8 / if rows == 4 { 1 } else { 2 },
                ..TerminalOptions::default()
            };
            let grid = GridSpec::new(vec![area.clone()], (0, 100_000_000), 60, 8, 1, 8);
            let mut raster = Raster::new(&grid);
            raster.snapshot(&snapshot(0, 1, vec![region(0, 8 * 4096, 0)]));
            // What took effect on nothing, what was done to others, and what was done later leaves no mark.
            for item in [
                done(50_000_000, 1, 4096),
                done(60_000_000, 1, 0),
                done(70_000_000, 9, 4096),
                done(1 << 40, 1, 1),
            ] {
                raster.note(&item);
            }
            let map = raster.finish();
            let mut out = Vec::new();
            write_terminal(&map, &options, &mut out).unwrap();
            let text = String::from_utf8(out).unwrap();
            let panel = text.lines().take_while(|l| !l.contains("----"));
            let marked: usize = panel.map(|l| l.replace(" 0x", "").matches(ACTED).count()).sum();
            assert_eq!(marked, rows, "{text}");
            assert!(text.contains("x: an action of a scheme took effect there"), "{text}");
            assert!(
                text.contains("actions: 4 of pageout by idle: took effect on 8.0 KiB of 64.0 KiB"),
                "{text}"
            );
            let marks: Vec<usize> = (0..8).filter(|row| map.panels[0].is_acted_on(*row, 30)).collect();
            assert_eq!(marks, [2, 3, 4, 5]);
            assert_eq!((0..60).filter(|column| map.panels[0].is_acted_on(3, *column)).count(), 1);
        }
        assert!(
            !draw(&TerminalOptions::default()).contains("an action"),
            "no legend for what does not occur"
        );
    }

    #[test]
    fn every_mode_fits_every_width() {
        for mode in [ColourMode::Plain, ColourMode::Ansi256, ColourMode::True] {
            for width in [12, 20, 24, 40, 69, 80, 133, 300] {
                let text = draw(&TerminalOptions { width, mode, ..TerminalOptions::default() });
                let cells = text
                    .lines()
                    .filter(|l| width >= 40 || !l.contains("access rate") && !l.contains("0 Hz "))
                    .filter(|l| l.contains('\x1b') || l.contains("99"));
                for line in cells {
                    assert!(visible(line) <= width, "{mode:?} {width}: {line}");
                }
            }
        }
    }

    #[test]
    fn colours_are_those_of_the_mode() {
        let options = TerminalOptions { mode: ColourMode::True, ..TerminalOptions::default() };
        let text = draw(&options);
        assert!(text.contains("38;2;252;255;164") && text.contains('\u{2580}'), "{text}");
        let text = draw(&TerminalOptions { mode: ColourMode::Ansi256, ..options });
        assert!(text.contains("38;5;229") && !text.contains(";2;252"), "{text}");
    }

    #[test]
    fn a_recording_without_accesses_says_so() {
        let mut raster = Raster::new(
            &TerminalOptions::default().grid(vec![Area { end: 4096, ..Area::default() }], (0, 10)),
        );
        raster.snapshot(&snapshot(0, 1, vec![region(0, 4096, 0)]));
        let mut out = Vec::new();
        write_terminal(&raster.finish(), &TerminalOptions::default(), &mut out).unwrap();
        assert!(String::from_utf8(out).unwrap().contains("0 Hz everywhere"));
    }
}
