//! The commands of the book under `docs/`: those marked are run, page by page, in order.
//!
//! A comment before a block marks it: `<!-- run -->`, or `<!-- run as root -->` for what needs the backend `pte`.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{pte_works, skip};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A block of commands.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    /// Line of the page on which its first command stands, from 1.
    line: usize,
    root: bool,
    commands: String,
}

/// The marked blocks of a page, and how many shell blocks it has besides.
fn blocks(page: &str) -> (Vec<Block>, usize) {
    let (mut found, mut others, mut mark) = (Vec::new(), 0, None);
    let mut lines = page.lines().enumerate();
    while let Some((i, line)) = lines.next() {
        match line.trim() {
            "<!-- run -->" => mark = Some(false),
            "<!-- run as root -->" => mark = Some(true),
            "```sh" => {
                let body = lines.by_ref().map(|(_, line)| line).take_while(|l| l.trim() != "```");
                let commands: String = body.flat_map(|l| [l, "\n"]).collect();
                match mark.take() {
                    Some(root) => found.push(Block { line: i + 2, root, commands }),
                    None => others += 1,
                }
            }
            "" => {}
            text => {
                assert!(!text.starts_with("<!-- run"), "line {}: no such mark: {text}", i + 1);
                assert!(mark.is_none(), "line {}: a mark without a block", i + 1);
            }
        }
    }
    (found, others)
}

fn book() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

fn pages() -> Vec<PathBuf> {
    let mut pages: Vec<PathBuf> = std::fs::read_dir(book()).unwrap().map(|e| e.unwrap().path()).collect();
    pages.retain(|path| path.extension().is_some_and(|e| e == "md"));
    pages.sort();
    pages
}

#[test]
fn marks_and_blocks_are_found() {
    let page = "a\n<!-- run -->\n```sh\none\ntwo\n```\n```sh\nthree\n```\n<!-- run as root -->\n\n```sh\nfour\n```\n";
    let block = |line, root, commands: &str| Block { line, root, commands: commands.to_owned() };
    assert_eq!(blocks(page), (vec![block(4, false, "one\ntwo\n"), block(13, true, "four\n")], 1));
}

#[test]
fn marked_commands_work_as_written() {
    let programs = Path::new(env!("CARGO_BIN_EXE_isotherm")).parent().unwrap();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([programs.to_owned()].into_iter().chain(std::env::split_paths(&path)));
    let path = path.unwrap();
    let root = pte_works();
    let mut ran = 0;
    for page in pages() {
        let name = page.file_name().unwrap().to_string_lossy().into_owned();
        let dir = tempfile::tempdir().unwrap();
        for block in blocks(&std::fs::read_to_string(&page).unwrap()).0 {
            if block.root && !root {
                skip(&format!("{name}, line {}: the commands need the backend pte", block.line));
                continue;
            }
            let mut shell = Command::new("bash");
            shell.args(["-eu", "-o", "pipefail", "-c", &block.commands]);
            let done =
                shell.current_dir(dir.path()).env("PATH", &path).stdin(Stdio::null()).output().unwrap();
            assert!(
                done.status.success(),
                "{name}, line {}: {}\n{}{}{}",
                block.line,
                done.status,
                block.commands,
                String::from_utf8_lossy(&done.stdout),
                String::from_utf8_lossy(&done.stderr)
            );
            ran += 1;
        }
    }
    assert!(ran >= 1 || !root, "nothing is marked");
}

#[test]
fn every_page_is_in_the_table_of_contents_and_every_link_leads_somewhere() {
    let contents = std::fs::read_to_string(book().join("README.md")).unwrap();
    for page in pages() {
        let name = page.file_name().unwrap().to_string_lossy().into_owned();
        assert!(
            name == "README.md" || contents.contains(&format!("]({name})")),
            "{name} is not in README.md"
        );
        let text = std::fs::read_to_string(&page).unwrap();
        for part in text.split("](").skip(1) {
            let link = part.split(')').next().unwrap();
            let file = link.split('#').next().unwrap();
            if !file.is_empty() && !file.starts_with("http") {
                assert!(page.parent().unwrap().join(file).exists(), "{name}: {link}");
            }
        }
    }
}
