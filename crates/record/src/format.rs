//! The file formats: names, extensions, how each is recognised, what each cannot carry.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// A file format for recordings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// Isotherm's own (`.rec`); see [`crate::rec`].
    Rec,
    /// damo's default: JSON in one zlib stream (`.json_compressed`, `damon.data`).
    JsonCompressed,
    /// The same JSON, not compressed (`.json`).
    Json,
    /// What `perf script` prints of `damon:damon_aggregated` (`.perf.txt`, `.txt`).
    PerfScript,
    /// damo's former binary format before it had a version number.
    RecordV0,
    /// The same with 32-bit target ids (pids).
    RecordV1,
    /// The same with 64-bit target ids (`.damon`).
    RecordV2,
    /// Apache Parquet, a row a region (`.parquet`); read back if it was written here.
    Parquet,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 8] = [
        Self::Rec,
        Self::JsonCompressed,
        Self::Json,
        Self::PerfScript,
        Self::RecordV0,
        Self::RecordV1,
        Self::RecordV2,
        Self::Parquet,
    ];

    /// The name a command line uses.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rec => "rec",
            Self::JsonCompressed => "json_compressed",
            Self::Json => "json",
            Self::PerfScript => "perf-script",
            Self::RecordV0 => "record-v0",
            Self::RecordV1 => "record-v1",
            Self::RecordV2 => "record-v2",
            Self::Parquet => "parquet",
        }
    }

    /// All names, for messages.
    pub(crate) fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// The format a file name stands for: by extension, and damo's `damon.data`.
    pub fn from_path(path: &Path) -> Option<Self> {
        // What stands before the ending may be any bytes.
        let name = path.file_name()?.to_string_lossy().to_ascii_lowercase();
        let by_ending = [
            (".rec", Self::Rec),
            (".json_compressed", Self::JsonCompressed),
            ("damon.data", Self::JsonCompressed),
            (".json", Self::Json),
            (".perf.txt", Self::PerfScript),
            (".txt", Self::PerfScript),
            (".damon", Self::RecordV2),
            (".parquet", Self::Parquet),
        ];
        by_ending.into_iter().find(|(ending, _)| name.ends_with(ending)).map(|(_, format)| format)
    }

    /// Whether names of files tell this format from that: those of damo's binary format do not tell its versions.
    pub fn shares_names_with(self, other: Self) -> bool {
        let binary = |format: Self| matches!(format, Self::RecordV0 | Self::RecordV1 | Self::RecordV2);
        self == other || binary(self) && binary(other)
    }

    /// The format a file's first bytes show; a few KiB suffice. The binary format's version 0 has no mark of its own:
    /// it is recognised by its first snapshot making sense.
    pub fn detect(head: &[u8]) -> Option<Self> {
        // A file cut within its first bytes is still what it was.
        let begins = |magic: &[u8]| {
            let len = magic.len().min(head.len());
            len > 0 && head.get(..len) == magic.get(..len)
        };
        if begins(&crate::rec::MAGIC) {
            return Some(Self::Rec);
        }
        if begins(b"PAR1") {
            return Some(Self::Parquet);
        }
        if head.starts_with(crate::binary::MAGIC) {
            let version = head.get(16..20).and_then(|v| v.try_into().ok()).map(i32::from_le_bytes);
            return Some(if version == Some(1) { Self::RecordV1 } else { Self::RecordV2 });
        }
        // RFC 1950: deflate with a 32 KiB window, no dictionary, and a checksum modulo 31.
        if let [0x78, flags, ..] = *head
            && (0x7800 | u16::from(flags)).is_multiple_of(31)
            && flags & 0x20 == 0
        {
            return Some(Self::JsonCompressed);
        }
        match head.iter().find(|b| !b.is_ascii_whitespace()) {
            Some(b'[' | b'{') => return Some(Self::Json),
            None => return None,
            Some(_) => {}
        }
        let text = String::from_utf8_lossy(head);
        if text.contains("damon_aggregated:") || text.contains("damos_before_apply:") {
            return Some(Self::PerfScript);
        }
        crate::binary::looks_like_v0(head).then_some(Self::RecordV0)
    }

    /// Whether rates stay what they are in it, with what is not known and what is not there ([`crate::NOT_TOLD`] of all others).
    pub const fn keeps_rates(self) -> bool {
        matches!(self, Self::Rec | Self::Parquet)
    }

    /// What a recording can hold and this format cannot, a phrase each. Empty for Isotherm's own format, and
    /// for Parquet.
    pub fn losses(self) -> Vec<&'static str> {
        let own: &[&str] = match self {
            Self::Rec | Self::Parquet => return Vec::new(),
            Self::JsonCompressed | Self::Json => &[BOUNDS, FRACTIONS],
            Self::PerfScript => &[
                ATTRS,
                "start times of snapshots (taken from the end of the one before)",
                "fractions of a microsecond in the times",
                "snapshots without a region",
            ],
            Self::RecordV0 | Self::RecordV1 | Self::RecordV2 => {
                &[ATTRS, "start times of snapshots (taken from the end of the one before)", "ages of regions"]
            }
        };
        // None of damo's formats has a place for these.
        let all = [
            "host, kernel and command line",
            "the targets' names and command lines, and when they ended",
            "mappings and their names",
            "backend and blind spots",
            "the monitor's cost and what its budget cut",
            "actions of schemes",
            "fractions of an access (counts are whole: of 0.1 of one, every tenth snapshot has one)",
            "what is not known (such regions read as 0 accesses) and what is resident",
            "how much of a region is idle between the pages in use (all of them read as accessed alike)",
        ];
        [&all, own].concat()
    }

    /// Of what a recording in the format `from` can hold, what this format cannot: [`Format::losses`] without what was
    /// lost already.
    pub fn losses_from(self, from: Self) -> Vec<&'static str> {
        let before = from.losses();
        let has_attrs = !before.contains(&ATTRS);
        let of_attrs = |loss: &&str| [ATTRS, BOUNDS, FRACTIONS].contains(loss);
        let lost = self.losses().into_iter().filter(|loss| !before.contains(loss));
        lost.filter(|loss| has_attrs || !of_attrs(loss)).collect()
    }
}

/// The losses that go for the monitoring attributes: all of them, or details.
const ATTRS: &str = "the monitoring attributes";
const BOUNDS: &str = "bounds of the number of regions";
const FRACTIONS: &str = "fractions of a microsecond in the intervals";

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// No format has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no recording format is called {name:?}; there are {}", Format::names())]
pub struct UnknownFormatName {
    name: String,
}

impl FromStr for Format {
    type Err = UnknownFormatName;

    /// By [`Format::name`], with `-` and `_` alike; `record` is version 2, the one damo last wrote.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let plain = |s: &str| s.to_ascii_lowercase().replace('_', "-");
        if plain(name) == "record" {
            return Ok(Self::RecordV2);
        }
        Self::ALL
            .into_iter()
            .find(|f| plain(f.name()) == plain(name))
            .ok_or_else(|| UnknownFormatName { name: name.to_owned() })
    }
}
