//! The document: markup, data and program in one file.
//!
//! Names of processes and mappings are chosen by whoever runs them. So text goes into the markup escaped, and into the
//! data as JSON in which no `<` is left, and the program only ever makes text nodes of it. Should anything slip through
//! all the same, the page's Content-Security-Policy runs no script and applies no style but the two whose hashes it
//! names, and loads nothing at all.

use super::pyramid::base64_len;
use crate::canvas::base64;
use isotherm_record::disturbs;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::io::{self, Write};

const STYLE: &str = include_str!("style.css");
const MARKUP: &str = include_str!("page.html");
/// The program, in the order in which its parts need each other.
const SCRIPT: &str = concat!(
    "'use strict';\n",
    include_str!("base.js"),
    include_str!("cells.js"),
    include_str!("view.js"),
    include_str!("axes.js"),
    include_str!("area.js"),
    include_str!("trend.js"),
    include_str!("holdings.js"),
    include_str!("main.js"),
);

/// How a page of ours begins: what may be replaced by another. A version of the layout may follow.
pub const SIGNATURE: &str = "<!doctype html>\n<html lang=\"en\" data-made-by=\"isotherm report html\"";

/// Base64 blocks one after the other; each is named by where it begins and how long it is.
#[derive(Clone, Debug, Default)]
pub(super) struct Blocks {
    text: String,
}

/// First character and number of characters in [`Blocks`].
pub(super) type Block = (usize, usize);

impl Blocks {
    pub fn push(&mut self, bytes: &[u8]) -> Block {
        let at = self.text.len();
        self.text.push_str(&base64(bytes));
        (at, base64_len(bytes.len()))
    }

    pub fn len(&self) -> usize {
        self.text.len()
    }
}

/// Static text of the page.
pub(super) struct Words {
    pub title: String,
    /// Below the title.
    pub head: Vec<String>,
    /// What limits what the page says.
    pub foot: Vec<String>,
}

/// Writes the page.
pub(super) fn write(
    words: &Words,
    model: &impl Serialize,
    blocks: &Blocks,
    out: &mut impl Write,
) -> io::Result<()> {
    let list =
        |lines: &[String]| lines.iter().map(|l| format!("<li>{}</li>\n", escaped(l))).collect::<String>();
    let values = [
        ("policy", policy()),
        ("title", escaped(&words.title)),
        ("head", words.head.iter().map(|l| format!("<p>{}</p>\n", escaped(l))).collect()),
        ("foot", list(&words.foot)),
        ("version", escaped(env!("CARGO_PKG_VERSION"))),
        ("model", json(model)?),
    ];
    out.write_all(SIGNATURE.as_bytes())?;
    // Values are never looked through for placeholders.
    let mut rest = MARKUP;
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, behind) = after.split_once("}}").unwrap_or((after, ""));
        out.write_all(before.as_bytes())?;
        match name {
            "style" => out.write_all(STYLE.as_bytes())?,
            "script" => out.write_all(SCRIPT.as_bytes())?,
            "blocks" => out.write_all(blocks.text.as_bytes())?,
            _ => {
                let value = values.iter().find(|(key, _)| *key == name).map_or("", |(_, value)| value);
                out.write_all(value.as_bytes())?;
            }
        }
        rest = behind;
    }
    out.write_all(rest.as_bytes())
}

/// Bytes of a page without data.
pub(super) fn frame_len() -> usize {
    MARKUP.len() + STYLE.len() + SCRIPT.len() + SIGNATURE.len()
}

fn policy() -> String {
    let hash = |text: &str| base64(&Sha256::digest(text.as_bytes()));
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'",
        hash(SCRIPT),
        hash(STYLE)
    )
}

/// JSON that can stand in a script element: HTML ends that at `</script`, and enters a state of its own at `<!--`.
fn json(model: &impl Serialize) -> io::Result<String> {
    Ok(crate::json::to_string(model)?.replace('<', "\\u003c"))
}

/// `text` as HTML character data or in a quoted attribute; what would disturb a terminal becomes `?`.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if disturbs(c) => out.push('?'),
            c => out.push(c),
        }
    }
    out
}
