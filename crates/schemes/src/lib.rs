//! Scheme files: what an engineer writes, the core applies, and a recording can be asked about beforehand.
//!
//! [`parse`] reads any of three formats ([`Format`]) into [`Entry`]s, each a [`Scheme`](isotherm_damon::schemes::Scheme) of the
//! core and what only its application needs ([`Guard`], [`Source`]). [`write()`] writes them in any of the three, and says what the
//! format cannot say ([`Loss`]). [`preset`](presets::preset) makes schemes by name.
//!
//! What is wrong with a file is found at once, each with its line, scheme and field ([`Errors`]). Reading takes time and memory in
//! proportion to the file.
//!
//! ```
//! // As printed in the patches that introduced schemes.
//! let file = isotherm_schemes::parse("2M null    null 5    1s null      nohugepage", None)?;
//! assert_eq!(
//!     isotherm_schemes::write(&file.entries, isotherm_schemes::Format::Toml).0,
//!     "[[scheme]]\naction = \"nohugepage\"\nmin_size = \"2M\"\nmax_access = \"5%\"\nmin_age = \"1s\"\n"
//! );
//! # Ok::<(), isotherm_schemes::Errors>(())
//! ```
#![forbid(unsafe_code)]

mod convert;
mod damo;
mod entry;
mod error;
mod explain;
mod format;
pub mod presets;
mod text;
mod toml;
pub mod trial;
mod values;
mod words;

pub use convert::{Loss, write};
pub use entry::{Entry, Guard, Source};
pub use error::{Errors, FileError, Problem};
pub use explain::explain;
pub use format::Format;

/// The JSON schema of the TOML format (a TOML file is checked as the JSON it stands for).
pub const JSON_SCHEMA: &str = include_str!("../schema.json");

/// What a scheme file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemeFile {
    /// Its schemes, in order; at least one.
    pub entries: Vec<Entry>,
    /// The format it was read as.
    pub format: Format,
    /// What of it was not heeded, a sentence each.
    pub remarks: Vec<String>,
}

/// Reads a scheme file; without a format it is found out by the first line.
///
/// # Errors
/// All that is wrong with it: what cannot be understood, what has no meaning, and schemes that undo each other's work.
pub fn parse(text: &str, format: Option<Format>) -> Result<SchemeFile, Errors> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let format = format.unwrap_or_else(|| Format::detect(text));
    let (entries, remarks) = match format {
        Format::Toml => (toml::read(text)?, Vec::new()),
        Format::Text => (text::read(text)?, Vec::new()),
        Format::Damo => damo::read(text)?,
    };
    Ok(SchemeFile { entries, format, remarks })
}
