//! Long help that fits the terminal, and the same text as a manual page.
//!
//! What stands behind the options of a command (examples, prose, tables) is written in lines of the source. Here it is taken
//! apart again: lines of prose are a paragraph, which is broken anew at the width at hand; an indented line is an example or a
//! row of a table, with what it is after two spaces or more.

use crate::args::Cli;
use clap::{Command, CommandFactory};

/// Columns of help where the terminal has more.
const WIDEST: usize = 110;
/// Columns to which what belongs to the line above is indented.
const INDENT: usize = 6;
/// Tables with a first column of more than this have the second one below it when they do not fit.
const NARROW: usize = 24;

/// The command line, whose help fits `width` columns.
pub fn command(width: usize) -> Command {
    let width = width.min(WIDEST);
    fitted(Cli::command().term_width(width), width)
}

fn fitted(mut command: Command, width: usize) -> Command {
    let text = command.get_after_help().map(ToString::to_string);
    if let Some(text) = text {
        command = command.after_help(as_text(&blocks(&text), width));
    }
    command.mut_subcommands(|subcommand| fitted(subcommand, width))
}

/// The commands below another that have this name, as they are typed.
pub fn places_of(name: &str) -> Vec<String> {
    let whole = Cli::command();
    let above = whole.get_subcommands().filter(|above| above.find_subcommand(name).is_some());
    above.map(|above| format!("`{} {} {name}`", whole.get_name(), above.get_name())).collect()
}

/// A part of a help text.
#[derive(Debug, PartialEq, Eq)]
pub enum Block {
    /// A paragraph.
    Prose(String),
    /// Lines of two columns, of which the second may be missing.
    Rows(Vec<(String, String)>),
    /// An empty line.
    Gap,
}

/// Takes a help text apart.
pub fn blocks(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for line in text.lines() {
        let words = line.trim();
        let indent = line.len() - line.trim_start().len();
        match blocks.last_mut() {
            _ if words.is_empty() => blocks.push(Block::Gap),
            // What the second column of the row before goes on with.
            Some(Block::Rows(rows)) if indent > 2 * INDENT => {
                if let Some((_, second)) = rows.last_mut() {
                    second.push_str(if second.is_empty() { "" } else { " " });
                    second.push_str(words);
                }
            }
            last if indent > 0 => {
                let row = match words.split_once("  ") {
                    Some((first, second)) => (first.to_owned(), second.trim().to_owned()),
                    None => (words.to_owned(), String::new()),
                };
                match last {
                    Some(Block::Rows(rows)) => rows.push(row),
                    _ => blocks.push(Block::Rows(vec![row])),
                }
            }
            // A heading stands alone.
            Some(Block::Prose(prose)) if !prose.ends_with(':') => {
                prose.push(' ');
                prose.push_str(words);
            }
            _ => blocks.push(Block::Prose(words.to_owned())),
        }
    }
    blocks
}

fn as_text(blocks: &[Block], width: usize) -> String {
    let mut lines = Vec::new();
    for block in blocks {
        match block {
            Block::Gap => lines.push(String::new()),
            Block::Prose(prose) => wrap(prose, 0, "", width, &mut lines),
            Block::Rows(rows) => {
                let first = rows.iter().filter(|(_, second)| !second.is_empty());
                let first = first.map(|(first, _)| first.chars().count()).max().unwrap_or(0);
                let column = 2 + first + 2;
                let fits = rows.iter().all(|(_, second)| column + second.chars().count() <= width);
                for (first, second) in rows {
                    if second.is_empty() {
                        lines.push(format!("  {first}"));
                    } else if fits || column <= NARROW {
                        let begin = format!("  {first:<0$}", column - 2);
                        wrap(second, column, &begin, width, &mut lines);
                    } else {
                        lines.push(format!("  {first}"));
                        wrap(second, INDENT, &" ".repeat(INDENT), width, &mut lines);
                    }
                }
            }
        }
    }
    lines.join("\n")
}

/// Breaks `text` into lines, the first behind `begin` and the others behind `indent` spaces.
pub fn wrap(text: &str, indent: usize, begin: &str, width: usize, lines: &mut Vec<String>) {
    let mut line = begin.to_owned();
    let mut empty = true;
    for word in text.split_whitespace() {
        if !empty && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
            empty = true;
        }
        line.push_str(if empty { "" } else { " " });
        line.push_str(word);
        empty = false;
    }
    lines.push(line);
}

/// The part of a manual page that a help text makes.
pub fn as_roff(blocks: &[Block]) -> String {
    let mut page = String::new();
    let mut section = "";
    let mut begin = |page: &mut String, name: &'static str| {
        if section != name {
            section = name;
            page.push_str(&format!(".SH {name}\n"));
        }
    };
    for block in blocks {
        match block {
            Block::Gap => {}
            Block::Prose(prose) if prose == "Examples:" => begin(&mut page, "EXAMPLES"),
            Block::Prose(prose) => {
                begin(&mut page, "NOTES");
                page.push_str(&format!(".PP\n{}\n", roff_text(prose)));
            }
            Block::Rows(rows) => {
                for (first, second) in rows {
                    page.push_str(&format!(".TP\n\\fB{}\\fR\n", roff_text(first)));
                    if !second.is_empty() {
                        page.push_str(&format!("{}\n", roff_text(second)));
                    }
                }
            }
        }
    }
    page
}

/// Text of which nothing is a request or an escape.
fn roff_text(text: &str) -> String {
    let escaped = text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq").replace('`', "\\(ga");
    if escaped.starts_with('.') { format!("\\&{escaped}") } else { escaped }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
Examples:
  isotherm x                     what it does, in words that are
                                 several
  isotherm x --with -o option
  isotherm longer --option       more

Prose of
two lines. 'And' -more.
  name   a row";

    #[test]
    fn prose_is_broken_anew_and_rows_stay_rows() {
        let wide = as_text(&blocks(TEXT), 100);
        assert!(
            wide.contains(&format!("  {:<26}what it does, in words that are several\n", "isotherm x")),
            "{wide}"
        );
        assert!(wide.contains("Prose of two lines. 'And' -more.\n  name  a row"), "{wide}");
        let narrow = as_text(&blocks(TEXT), 40);
        assert!(
            narrow.contains(
                "  isotherm x\n      what it does, in words that are\n      several\n  isotherm x --with"
            ),
            "{narrow}"
        );
        assert!(narrow.lines().all(|line| line.chars().count() <= 40), "{narrow}");
    }

    #[test]
    fn no_line_of_any_help_is_longer_than_the_terminal_nor_broken_without_need() {
        fn look(command: &mut Command, width: usize) {
            let help = command.render_long_help().to_string();
            for line in help.lines() {
                let len = line.chars().count();
                // What cannot be broken: an example.
                assert!(len <= width || line.starts_with("  isotherm"), "{}: {line}", command.get_name());
            }
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines: Vec<&str> = after.lines().collect();
            for pair in lines.windows(2).filter(|pair| !pair[0].starts_with(' ') && !pair[1].starts_with(' '))
            {
                let word = pair[1].split(' ').next().unwrap_or_default();
                let room = pair[0].is_empty() || word.is_empty() || pair[0].ends_with(':');
                assert!(
                    room || pair[0].chars().count() + 1 + word.chars().count() > width,
                    "{} at {width}: {pair:?}",
                    command.get_name()
                );
            }
            for subcommand in command.get_subcommands_mut() {
                look(subcommand, width);
            }
        }
        for width in [80, 100] {
            let mut command = command(width);
            command.build();
            look(&mut command, width);
        }
    }

    #[test]
    fn a_manual_page_has_examples_of_its_own_lines() {
        let page = as_roff(&blocks(TEXT));
        assert!(page.contains(".SH EXAMPLES\n.TP\n\\fBisotherm x\\fR\nwhat it does"), "{page}");
        assert!(page.contains("\\fBisotherm x \\-\\-with \\-o option\\fR\n.TP\n"), "{page}");
        assert!(page.contains(".SH NOTES\n.PP\nProse of two lines. \\(aqAnd\\(aq \\-more."), "{page}");
    }
}
