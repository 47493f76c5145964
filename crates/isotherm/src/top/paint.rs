//! From one frame to the next with few bytes: what only moved is moved by the terminal, and of the rest what differs is sent.

use crossterm::QueueableCommand;
use crossterm::cursor::MoveTo;
use ratatui::backend::{Backend, CrosstermBackend};
use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::Rect;
use std::io::{self, Write};

/// A part of the screen that moved left, all of its lines by as much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scroll {
    pub area: Rect,
    pub by: u16,
}

/// Puts what leads from `before` to `next` into `out`.
///
/// # Errors
/// None; writing to memory does not fail.
pub fn paint(before: &mut Buffer, next: &Buffer, scrolls: &[Scroll], out: &mut Vec<u8>) -> io::Result<()> {
    for scroll in scrolls {
        scroll_left(before, *scroll, out)?;
    }
    let mut backend = CrosstermBackend::new(&mut *out);
    let mut changed = before.diff_iter(next).peekable();
    if changed.peek().is_some() {
        backend.draw(changed)?;
    }
    before.clone_from(next);
    Ok(())
}

/// Deletes cells at the left edge of each line, which moves all to the right of it, and inserts as many at the right edge,
/// which puts back what stands beside the area.
fn scroll_left(before: &mut Buffer, Scroll { area, by }: Scroll, out: &mut Vec<u8>) -> io::Result<()> {
    let area = area.intersection(before.area);
    if by == 0 || by >= area.width {
        return Ok(());
    }
    let blank = Cell::default();
    for y in area.top()..area.bottom() {
        let beside = (area.right()..before.area.right()).any(|x| before[(x, y)] != blank);
        out.queue(MoveTo(area.left(), y))?;
        write!(out, "\x1b[{by}P")?;
        if beside {
            out.queue(MoveTo(area.right() - by, y))?;
            write!(out, "\x1b[{by}@")?;
        }
        for x in area.left()..area.right() {
            let moved = if x + by < area.right() { before[(x + by, y)].clone() } else { blank.clone() };
            before[(x, y)] = moved;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::style::{Color, Style};

    fn terminal(rows: u16, columns: u16) -> vt100::Parser {
        vt100::Parser::new(rows.try_into().unwrap(), columns.try_into().unwrap(), 0)
    }

    fn shown(parser: &vt100::Parser) -> Vec<String> {
        parser.screen().rows(0, 20).collect()
    }

    fn picture(offset: usize) -> Buffer {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 20, 4));
        buffer.set_string(0, 0, "title", Style::default());
        for y in 1..4 {
            for x in 0..10u16 {
                let at = usize::from(x) + offset;
                let colour = Color::Indexed((at * 7 % 200) as u8);
                buffer.set_string(
                    4 + x,
                    y,
                    ["a", "b", "c", "d"][at * 5 / 3 % 4],
                    Style::default().fg(colour),
                );
            }
            buffer.set_string(0, y, "0x1", Style::default());
            if y == 2 {
                buffer.set_string(15, y, "name", Style::default());
            }
        }
        buffer
    }

    #[test]
    fn a_terminal_that_scrolls_shows_the_next_frame() {
        let mut parser = terminal(4, 20);
        let mut before = Buffer::empty(Rect::new(0, 0, 20, 4));
        let mut out = Vec::new();
        paint(&mut before, &picture(0), &[], &mut out).unwrap();
        parser.process(&out);
        let whole = out.len();
        for (offset, by) in [(1, 1), (2, 1), (4, 2), (13, 9), (23, 10), (24, 0)] {
            out.clear();
            let scroll = Scroll { area: Rect::new(4, 1, 10, 3), by };
            paint(&mut before, &picture(offset), &[scroll], &mut out).unwrap();
            parser.process(&out);
            let mut anew = terminal(4, 20);
            let mut all = Vec::new();
            let mut empty = Buffer::empty(Rect::new(0, 0, 20, 4));
            paint(&mut empty, &picture(offset), &[], &mut all).unwrap();
            anew.process(&all);
            assert_eq!(shown(&parser), shown(&anew), "{offset}");
            for (y, x) in (0..4).flat_map(|y| (0..20).map(move |x| (y, x))) {
                let colour = |p: &vt100::Parser| p.screen().cell(y, x).unwrap().fgcolor();
                assert_eq!(colour(&parser), colour(&anew), "{offset}: {x} {y}");
            }
            if by == 1 {
                assert!(out.len() * 3 < whole, "{} of {whole}", out.len());
            }
        }
        out.clear();
        paint(&mut before, &picture(24), &[], &mut out).unwrap();
        assert_eq!(out, b"", "nothing changed, nothing is sent");
    }
}
