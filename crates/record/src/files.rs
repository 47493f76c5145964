//! Opening and creating recordings, whatever their format.

use crate::{
    Error, Format, Item, ItemReader, ItemWriter, RecordChoice, RecordedAttrs, Warning, binary, json, parquet,
};
use crate::{perf_script, rec};
use std::fs::{File, OpenOptions};
use std::io::{self, Cursor, Read, Seek};
use std::os::fd::AsFd;
use std::path::Path;

/// How to read a file that does not say everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadOptions {
    /// The format, when it is not to be found out.
    pub format: Option<Format>,
    /// Intervals to assume where the file holds none (perf script text, the binary format, some of damo's JSON); zero:
    /// leave unknown.
    pub intervals: RecordedAttrs,
    /// Which of several records of the same memory.
    pub record: RecordChoice,
}

/// Opens a recording for reading; `-` is standard input. The format is found out by content, then by extension.
///
/// # Errors
/// [`Error::Io`], [`Error::Empty`], [`Error::UnknownFormat`], [`Error::Unsupported`] (a newer version, a tracer's own
/// file, Parquet of other programs), and
/// [`Error::Malformed`] when nothing in the file can be read.
pub fn open(path: &Path) -> Result<Box<dyn ItemReader>, Error> {
    open_with(path, &ReadOptions::default())
}

/// As [`open`], told what the file does not say.
///
/// # Errors
/// As [`open`].
pub fn open_with(path: &Path, options: &ReadOptions) -> Result<Box<dyn ItemReader>, Error> {
    let file = name_of(path, "standard input");
    if is_standard(path) {
        return read(Box::new(io::stdin()), None, file, None, options);
    }
    let open = || File::open(path).map_err(|e| Error::io("open", &file, e));
    let input = Box::new(open()?);
    let whole = if path.metadata().is_ok_and(|m| m.is_file()) { Some(open()?) } else { None };
    read(input, whole, file.clone(), Format::from_path(path), options)
}

/// Reads a recording that comes from anywhere, called `name` in messages. The format is found out by content.
///
/// # Errors
/// As [`open`].
pub fn open_from(
    input: impl Read + Send + 'static,
    name: &str,
    options: &ReadOptions,
) -> Result<Box<dyn ItemReader>, Error> {
    read(Box::new(input), None, name.to_owned(), None, options)
}

/// `whole`: the same input again, where it can be read in any order.
fn read(
    mut input: Box<dyn Read + Send>,
    whole: Option<File>,
    file: String,
    by_name: Option<Format>,
    options: &ReadOptions,
) -> Result<Box<dyn ItemReader>, Error> {
    let head = read_head(&mut input).map_err(|e| Error::io("read", &file, e))?;
    if head.is_empty() {
        return Err(Error::Empty { file });
    }
    if let Some(why) = foreign(&head).filter(|_| options.format.is_none()) {
        return Err(Error::Unsupported { file, why: why.to_owned() });
    }
    // Whatever its name: a sparse file of terabytes would be looked through for blocks to its end. A short one may be a binary
    // record of snapshots without anything in them.
    if options.format.is_none() && head.len() as u64 == HEAD && head.iter().all(|&byte| byte == 0) {
        let why = "it begins with zeros, so it is no recording, or its beginning was never written; --from rec looks for what \
                   is left of one, to its end";
        return Err(Error::Unsupported { file, why: why.to_owned() });
    }
    let format = options.format.or_else(|| Format::detect(&head)).or(by_name);
    let Some(format) = format else { return Err(Error::UnknownFormat { file }) };
    let input = Cursor::new(head).chain(input);
    Ok(match format {
        // What comes through a pipe comes when it comes.
        Format::Rec if whole.is_some() => Box::new(rec::Ahead::new(rec::Reader::new(input, &*file)?, file)),
        Format::Rec => Box::new(rec::Reader::new(input, file)?),
        Format::JsonCompressed | Format::Json => Box::new(json::read(input, file, format, options)?),
        Format::PerfScript => Box::new(perf_script::read(input, file, options)?),
        Format::RecordV0 | Format::RecordV1 | Format::RecordV2 => {
            Box::new(binary::read(input, file, format, options)?)
        }
        // Parquet is read from its end.
        Format::Parquet => {
            let whole = whole.map_or_else(|| copied(input, &file), Ok)?;
            Box::new(parquet::Reader::new(whole, file)?)
        }
    })
}

/// What comes out of `input`, in a file.
fn copied(mut input: impl Read, file: &str) -> Result<File, Error> {
    let name = format!("a temporary file in {} (for {file})", std::env::temp_dir().display());
    let mut copy = tempfile::tempfile().map_err(|e| Error::io("create", &name, e))?;
    io::copy(&mut input, &mut copy).map_err(|e| Error::io("copy to a temporary file", file, e))?;
    Ok(copy)
}

/// What to do with a file of a tracer, which only the tracer reads.
fn foreign(head: &[u8]) -> Option<&'static str> {
    if head.starts_with(b"PERFILE2") || head.starts_with(b"2ELIFREP") {
        return Some(
            "this is perf.data, as `perf record` writes it; turn it into text, which is read here: \
             perf script -i FILE > perf.txt",
        );
    }
    head.starts_with(b"\x17\x08\x44tracing").then_some(
        "this is trace.dat, as `trace-cmd record` writes it; turn it into text, which is read here: \
         trace-cmd report -i FILE > perf.txt",
    )
}

/// Creates a recording; `-` is standard output. A file that exists is replaced when it is a recording or empty.
///
/// # Errors
/// [`Error::WouldClobber`]; [`Error::Io`].
pub fn create(path: &Path, format: Format) -> Result<Box<dyn ItemWriter>, Error> {
    let (output, file) = create_file(path)?;
    create_on(output, file, format)
}

/// Creates a recording in a file that is open and empty, called `file` in errors.
///
/// # Errors
/// [`Error::Io`].
pub fn create_on(output: File, file: String, format: Format) -> Result<Box<dyn ItemWriter>, Error> {
    Ok(match format {
        Format::Rec => Box::new(rec::Writer::new(output, file)?),
        Format::JsonCompressed | Format::Json => Box::new(json::Writer::new(output, file, format)),
        Format::PerfScript => Box::new(perf_script::Writer::new(output, file)),
        Format::RecordV0 | Format::RecordV1 | Format::RecordV2 => {
            Box::new(binary::Writer::new(output, file, format))
        }
        Format::Parquet => Box::new(parquet::Writer::new(output, file)?),
    })
}

/// Creates a file for writing and says what to call it. Nothing is written yet.
fn create_file(path: &Path) -> Result<(File, String), Error> {
    let file = name_of(path, "standard output");
    let io = |e| Error::io("create", &file, e);
    if is_standard(path) {
        let stdout = io::stdout().as_fd().try_clone_to_owned().map_err(io)?;
        return Ok((File::from(stdout), file));
    }
    // Pipes and devices can be written to without being readable.
    let regular = std::fs::metadata(path).is_ok_and(|m| m.is_file());
    let mut options = OpenOptions::new();
    let mut output = options.read(regular).write(true).create(true).truncate(false).open(path).map_err(io)?;
    if regular {
        let head = read_head(&mut output).map_err(io)?;
        if !head.is_empty() && Format::detect(&head).is_none() {
            return Err(Error::WouldClobber { file });
        }
        output.set_len(0).map_err(io)?;
        output.rewind().map_err(io)?;
    }
    Ok((output, file))
}

/// What [`convert`] did.
#[derive(Clone, Debug, Default)]
pub struct Conversion {
    /// Snapshots written.
    pub snapshots: u64,
    /// Their regions.
    pub regions: u64,
    /// What was wrong with the input.
    pub warnings: Vec<Warning>,
    /// What the output's format cannot carry of what the input's can.
    pub lost: Vec<&'static str>,
}

/// Converts a recording from one file to another, in memory that does not depend on its length. The output's format is
/// `to`, or what its name says, or else Isotherm's own.
///
/// # Errors
/// As [`open`] and [`create`]; [`Error::Unsupported`] when input and output are the same file.
pub fn convert(
    input: &Path,
    output: &Path,
    options: &ReadOptions,
    to: Option<Format>,
) -> Result<Conversion, Error> {
    if let (Ok(from), Ok(to)) = (input.canonicalize(), output.canonicalize())
        && from == to
        && !is_standard(input)
    {
        let why = "input and output are the same file; write to another and rename it";
        return Err(Error::Unsupported { file: name_of(input, ""), why: why.to_owned() });
    }
    let format = to.or_else(|| Format::from_path(output)).unwrap_or(Format::Rec);
    let mut reader = open_with(input, options)?;
    let mut writer = create(output, format)?;
    let mut done = Conversion { lost: format.losses_from(reader.format()), ..Conversion::default() };
    while let Some(item) = reader.next_ref()? {
        if let Item::Snapshot(snapshot) = item {
            done.snapshots += 1;
            done.regions += snapshot.nr_regions() as u64;
        }
        writer.write(item)?;
    }
    writer.finish()?;
    done.warnings = reader.warnings().to_vec();
    Ok(done)
}

pub(crate) fn is_standard(path: &Path) -> bool {
    path.as_os_str() == "-"
}

pub(crate) fn name_of(path: &Path, standard: &str) -> String {
    if is_standard(path) { standard.to_owned() } else { path.display().to_string() }
}

/// Bytes that the format is found out by.
const HEAD: u64 = 16 << 10;

/// The first few KiB, for [`Format::detect`].
pub(crate) fn read_head(input: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    input.by_ref().take(HEAD).read_to_end(&mut head)?;
    Ok(head)
}
