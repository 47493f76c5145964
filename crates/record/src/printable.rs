//! Names that cannot harm where they are shown: a process, a file or a host may be called anything.

use std::borrow::Cow;

/// Whether a character would disturb a terminal: control characters, of which escape sequences begin with one, and those that
/// turn the direction of what follows, so that it reads as something else (Unicode Standard Annex 9, explicit formatting).
pub fn disturbs(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// `text` with a `?` for each character that [`disturbs`].
pub fn printable(text: &str) -> Cow<'_, str> {
    printable_but(text, |_| false)
}

/// The same of a text of several lines: ends of lines and tabs stay.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    printable_but(text, |c| matches!(c, '\n' | '\t'))
}

fn printable_but(text: &str, kept: impl Fn(char) -> bool) -> Cow<'_, str> {
    let goes = |c: char| disturbs(c) && !kept(c);
    match text.chars().any(goes) {
        true => Cow::Owned(text.chars().map(|c| if goes(c) { '?' } else { c }).collect()),
        false => Cow::Borrowed(text),
    }
}

/// `word` as one word for a shell: as it is, or in quotes.
pub fn shell_word(word: &str) -> Cow<'_, str> {
    let plain = |c: char| c.is_alphanumeric() || "/._-+:@%,=".contains(c);
    match !word.is_empty() && !word.starts_with('=') && word.chars().all(plain) {
        true => Cow::Borrowed(word),
        false => Cow::Owned(format!("'{}'", word.replace('\'', r"'\''"))),
    }
}

/// A command with its arguments, to be shown: where one ends and the next begins is told by quotes, as a shell would take
/// it, and nothing in it [`disturbs`]. A program that calls itself something else (`postgres: checkpointer`) does so
/// in one word, with nothing behind it; that is left alone.
pub fn command_line(words: &[String]) -> String {
    let shown = match words {
        [title, rest @ ..] if rest.iter().all(String::is_empty) => title.clone(),
        _ => words.iter().map(|word| shell_word(word)).collect::<Vec<_>>().join(" "),
    };
    printable(&shown).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_an_argument_ends_is_seen() {
        let shown = |words: &[&str]| command_line(&words.iter().map(|&w| w.to_owned()).collect::<Vec<_>>());
        assert_eq!(shown(&["sh", "-c", "sleep 1; echo 'a  b'"]), r"sh -c 'sleep 1; echo '\''a  b'\'''");
        assert_eq!(shown(&["java", "-Xmx=1g", "/srv/größe.jar", ""]), "java -Xmx=1g /srv/größe.jar ''");
        assert_eq!(shown(&["echo", "a\u{1b}[2J b"]), "echo 'a?[2J b'");
        assert_eq!(shown(&["postgres: checkpointer ", "", ""]), "postgres: checkpointer ");
        assert_eq!(shown(&[]), "");
    }

    #[test]
    fn a_shell_takes_any_name_as_one_word() {
        assert_eq!(shell_word("a/b-1.rec"), "a/b-1.rec");
        assert_eq!(shell_word("my file"), "'my file'");
        assert_eq!(shell_word("it's $HOME"), r"'it'\''s $HOME'");
        assert_eq!(shell_word("=ls"), "'=ls'");
        assert_eq!(shell_word(""), "''");
    }

    #[test]
    fn no_name_can_send_escape_sequences_or_turn_the_text_around() {
        assert_eq!(printable("a\u{1b}[2Jb\u{9b}31mc\u{7f}\n"), "a?[2Jb?31mc??");
        assert_eq!(printable("x\u{202e}cod.exe"), "x?cod.exe");
        for c in
            "\u{202a}\u{202b}\u{202c}\u{202d}\u{2066}\u{2067}\u{2068}\u{2069}\u{200e}\u{200f}\u{61c}".chars()
        {
            assert_eq!(printable(&c.to_string()), "?", "U+{:04X}", u32::from(c));
        }
        assert!(matches!(printable("日本語 עברית é"), Cow::Borrowed("日本語 עברית é")));
        assert_eq!(printable_lines("a\n\tb\u{1b}[m\r"), "a\n\tb?[m?");
    }
}
