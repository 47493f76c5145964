//! The formats of scheme files, and how to tell which one a file has.

/// A format of scheme files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Isotherm's own, which says everything.
    Toml,
    /// The one-line format of the DAMON patches.
    Text,
    /// damo's JSON: a list of schemes, or a whole kdamonds setup.
    Damo,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 3] = [Self::Toml, Self::Text, Self::Damo];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Toml => "toml",
            Self::Text => "text",
            Self::Damo => "damo",
        }
    }

    /// The format that a file seems to have: by the first line that is neither empty nor a comment.
    pub fn detect(text: &str) -> Self {
        let first = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
        let first = first.unwrap_or_default();
        let after = first.strip_prefix('[').map(str::trim_start);
        if first.starts_with('{') || after.is_some_and(|rest| rest.is_empty() || rest.starts_with(['{', ']']))
        {
            return Self::Damo;
        }
        let before_comment = first.split('#').next().unwrap_or_default();
        if first.starts_with('[') || before_comment.contains('=') { Self::Toml } else { Self::Text }
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let format = Self::ALL.into_iter().find(|format| format.name() == text);
        format.ok_or_else(|| {
            format!("there is no format {text:?} of scheme files; there are toml, text and damo")
        })
    }
}
