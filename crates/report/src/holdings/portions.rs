//! A region that covers several lines, shared out among them.

use super::Figures;
use super::bounds::Span;
use super::figures::Sums;
use super::objects::Scale;

/// What a line was given of regions, and what it may have of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Given {
    pub sums: Sums,
    pub span: Span,
}

impl Given {
    pub fn add(&mut self, other: &Self) {
        self.sums.add(&other.sums, 1.0);
        self.span.add(&other.span, 1.0);
    }

    /// In whole bytes, of what has been observed for so many seconds.
    pub fn figures(&self, observed_s: f64, scale: &Scale) -> Figures {
        Figures { bounds: self.span.bounds(&self.sums), ..self.sums.figures(observed_s, scale) }
    }
}

/// The portions that the lines have of one region.
#[derive(Clone, Debug, Default)]
pub(super) struct Portions {
    /// By line, as they come; of most regions it is one line.
    lines: Vec<(usize, Sums)>,
    all: Sums,
    strewn: bool,
}

impl Portions {
    /// Adds `bytes` of which each says this to those of a line. `strewn`: which bytes of the region are accessed is not known.
    pub fn add(&mut self, line: usize, one: &Sums, bytes: f64, strewn: bool) {
        self.all.add(one, bytes);
        self.strewn |= strewn;
        // A file has a few mappings beside each other, and a process may have a hundred thousand files.
        match self.lines.iter_mut().rev().take(4).find(|(of, _)| *of == line) {
            Some((_, sums)) => sums.add(one, bytes),
            None => {
                let mut sums = Sums::default();
                sums.add(one, bytes);
                self.lines.push((line, sums));
            }
        }
    }

    /// Whether it is not known which bytes of the region are accessed.
    pub fn is_strewn(&self) -> bool {
        self.strewn
    }

    /// Hands out what each line is given, in the order of lines, and begins anew.
    pub fn give(&mut self, mut each: impl FnMut(usize, &Given)) {
        let Self { lines, all, strewn } = self;
        lines.sort_by_key(|(line, _)| *line);
        lines.dedup_by(|(next, more), (line, sums)| {
            let is_same = next == line;
            if is_same {
                sums.add(more, 1.0);
            }
            is_same
        });
        let is_one = lines.len() == 1;
        for (line, sums) in lines.drain(..) {
            if is_one {
                each(line, &Given { span: Span::of(&sums), sums });
                continue;
            }
            let mut own = sums;
            if *strewn && all.mapped > 0.0 {
                own = Sums::default();
                own.add(all, sums.mapped / all.mapped);
            }
            each(line, &Given { sums: own, span: Span::of_part(&own, all) });
        }
        (*all, *strewn) = (Sums::default(), false);
    }
}
