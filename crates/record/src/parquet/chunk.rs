//! Reads a column of a group: pages in, values out. The encodings are those that `pages` writes, with what other programs
//! make of the same columns when they copy them with zstd or without compression.

use super::footer::{ChunkAt, Kind};
use super::thrift::{FALSE, I32, STRUCT, TRUE, Thrift};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use zstd::bulk::Decompressor;

/// Longest page, decompressed; one that is longer is not read.
pub(super) const MAX_PAGE: usize = 64 << 20;

/// Most bytes of a page header. Statistics in it may be as long as the longest text.
const MAX_HEADER: usize = 64 << 10;

const UNCOMPRESSED: i64 = 0;
pub(super) const ZSTD: i64 = 6;

const PLAIN: i64 = 0;
const PLAIN_DICTIONARY: i64 = 2;
const RLE_DICTIONARY: i64 = 8;

/// Physical types.
const INT32: i64 = 1;
const INT64: i64 = 2;
const DOUBLE: i64 = 5;
const BYTE_ARRAY: i64 = 6;

/// What is wrong with a column.
#[derive(Debug)]
pub(super) enum Fault {
    Io(io::Error),
    /// It makes no sense.
    Bad(&'static str),
    /// It is not to be read here; of a file that was written here it makes no sense either.
    Unsupported(&'static str),
}

impl From<io::Error> for Fault {
    fn from(e: io::Error) -> Self {
        if e.kind() == io::ErrorKind::UnexpectedEof {
            Self::Bad("a column ends before it should")
        } else {
            Self::Io(e)
        }
    }
}

type Result<T> = std::result::Result<T, Fault>;

fn sane<T>(value: Option<T>) -> Result<T> {
    value.ok_or(Fault::Bad("a page does not make sense"))
}

/// A page, decompressed.
#[derive(Debug, Default)]
pub(super) struct Page {
    dictionary: bool,
    encoding: i64,
    rows: usize,
    /// Definition levels, without their length, and what follows them.
    levels: Vec<u8>,
    body: Vec<u8>,
}

#[derive(Default)]
struct Header {
    kind: i64,
    plain_len: u64,
    len: u64,
    /// Checksum of the page as it stands in the file.
    crc: Option<i64>,
    rows: u64,
    encoding: i64,
    /// Of version 2.
    levels: Option<u64>,
    compressed: bool,
}

/// The pages of a column, one after another.
pub(super) struct Pages<'a> {
    file: &'a File,
    at: u64,
    end: u64,
    codec: i64,
    kind: Kind,
    decompressor: Decompressor<'static>,
    raw: Vec<u8>,
}

impl<'a> Pages<'a> {
    pub(super) fn new(file: &'a File, chunk: ChunkAt, kind: Kind) -> Result<Self> {
        if !matches!(chunk.codec, UNCOMPRESSED | ZSTD) {
            return Err(Fault::Unsupported("it is compressed otherwise than by zstd"));
        }
        Ok(Self {
            file,
            at: chunk.offset,
            end: sane(chunk.offset.checked_add(chunk.len))?,
            codec: chunk.codec,
            kind,
            decompressor: Decompressor::new()?,
            raw: Vec::new(),
        })
    }

    /// Where the next page begins, to go on later.
    pub(super) const fn rest(&self) -> ChunkAt {
        ChunkAt { offset: self.at, len: self.end.saturating_sub(self.at), codec: self.codec }
    }

    pub(super) fn next(&mut self) -> Result<Option<Page>> {
        if self.at >= self.end {
            return Ok(None);
        }
        let mut head = vec![0; usize::try_from(self.end - self.at).unwrap_or(MAX_HEADER).min(MAX_HEADER)];
        let len = read_at_most(self.file, &mut head, self.at)?;
        head.truncate(len);
        let mut thrift = Thrift::new(&head, 0);
        let header = sane(page_header(&mut thrift))?;
        let (plain_len, len) =
            (sane(usize::try_from(header.plain_len).ok())?, sane(usize::try_from(header.len).ok())?);
        if plain_len > MAX_PAGE || len > MAX_PAGE + (MAX_PAGE >> 4) {
            return Err(Fault::Unsupported("a page is longer than 64 MiB"));
        }
        let from = self.at + thrift.at() as u64;
        self.at = sane(from.checked_add(len as u64))?;
        if self.at > self.end || self.at > self.file.metadata()?.len() {
            return Err(Fault::Bad("a column ends before it should"));
        }
        self.raw.resize(len, 0);
        self.file.read_exact_at(&mut self.raw, from)?;
        // Files of earlier versions, and copies that other programs make, have no checksums.
        if header.crc.is_some_and(|crc| crc as u32 != crc32fast::hash(&self.raw)) {
            return Err(Fault::Bad("a page is damaged: its checksum does not fit"));
        }
        self.page(&header, plain_len).map(Some)
    }

    fn page(&mut self, header: &Header, plain_len: usize) -> Result<Page> {
        let level_len = sane(usize::try_from(header.levels.unwrap_or(0)).ok())?;
        let (levels, data) = sane(self.raw.split_at_checked(level_len))?;
        let mut levels = levels.to_vec();
        let mut body = if self.codec == ZSTD && header.compressed {
            let limit = sane(plain_len.checked_sub(level_len))?;
            if data.is_empty() {
                Vec::new()
            } else {
                let unpacked = self.decompressor.decompress(data, limit);
                unpacked.map_err(|_| Fault::Bad("a page cannot be decompressed"))?
            }
        } else {
            data.to_vec()
        };
        let dictionary = header.kind == 2;
        if !dictionary && header.levels.is_none() && self.kind.optional {
            let len = sane(body.first_chunk().map(|b| u32::from_le_bytes(*b) as usize))?;
            levels = sane(body.get(4..).and_then(|b| b.get(..len)))?.to_vec();
            body.drain(..4 + len);
        }
        let rows = sane(usize::try_from(header.rows).ok())?;
        Ok(Page { dictionary, encoding: header.encoding, rows, levels, body })
    }
}

fn read_at_most(file: &File, mut buffer: &mut [u8], mut at: u64) -> io::Result<usize> {
    let mut total = 0;
    while !buffer.is_empty() {
        match file.read_at(buffer, at) {
            Ok(0) => break,
            Ok(len) => {
                total += len;
                at += len as u64;
                buffer = &mut buffer[len..];
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(total)
}

fn page_header(thrift: &mut Thrift<'_>) -> Option<Header> {
    let mut header = Header { compressed: true, ..Header::default() };
    let mut last = 0;
    while let Some((number, kind)) = thrift.field(&mut last)? {
        match (number, kind) {
            (1, I32) => header.kind = thrift.int()?,
            (2, I32) => header.plain_len = thrift.size()?,
            (3, I32) => header.len = thrift.size()?,
            (4, I32) => header.crc = Some(thrift.int()?),
            (5 | 7, STRUCT) => {
                let mut last = 0;
                while let Some((number, kind)) = thrift.field(&mut last)? {
                    match (number, kind) {
                        (1, I32) => header.rows = thrift.size()?,
                        (2, I32) => header.encoding = thrift.int()?,
                        (_, kind) => thrift.skip(kind)?,
                    }
                }
            }
            (8, STRUCT) => {
                let mut levels = 0_u64;
                let mut last = 0;
                while let Some((number, kind)) = thrift.field(&mut last)? {
                    match (number, kind) {
                        (1, I32) => header.rows = thrift.size()?,
                        (4, I32) => header.encoding = thrift.int()?,
                        (5 | 6, I32) => levels = levels.checked_add(thrift.size()?)?,
                        (7, TRUE) => header.compressed = true,
                        (7, FALSE) => header.compressed = false,
                        (_, kind) => thrift.skip(kind)?,
                    }
                }
                header.levels = Some(levels);
            }
            (_, kind) => thrift.skip(kind)?,
        }
    }
    // Pages of data, of a dictionary, and of data in version 2.
    matches!(header.kind, 0 | 2 | 3).then_some(header)
}

/// The values of a column of numbers: as 64 bits, 0 where there is none; and, where it may be null, which there are.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    pub(super) values: Vec<u64>,
    pub(super) known: Vec<bool>,
}

/// Reads a column of numbers with so many rows.
pub(super) fn numbers(file: &File, chunk: ChunkAt, kind: Kind, rows: usize) -> Result<Numbers> {
    let width = match kind.physical {
        INT32 => 4,
        INT64 | DOUBLE => 8,
        _ => return Err(Fault::Unsupported("a column is not of the type it should have")),
    };
    let plain = |bytes: &[u8]| -> Vec<u64> {
        let value = |bytes: &[u8]| bytes.iter().rev().fold(0, |value, &b| value << 8 | u64::from(b));
        bytes.chunks_exact(width).map(value).collect()
    };
    let mut pages = Pages::new(file, chunk, kind)?;
    let mut dictionary = Vec::new();
    let mut out = Numbers::default();
    let mut ids = Vec::new();
    while let Some(page) = pages.next()? {
        if page.dictionary {
            dictionary = plain(&page.body);
            continue;
        }
        if page.rows > rows - out.values.len() {
            return Err(Fault::Bad("a column has more rows than its group"));
        }
        let from = out.known.len();
        let present = if kind.optional { levels(&page, &mut out.known)? } else { page.rows };
        let known = out.known.get(from..).unwrap_or_default();
        let mut put = |next: &mut dyn FnMut() -> Option<u64>| -> Option<()> {
            for row in 0..page.rows {
                let there = !kind.optional || known.get(row).is_some_and(|&k| k);
                out.values.push(if there { next()? } else { 0 });
            }
            Some(())
        };
        match page.encoding {
            PLAIN => {
                let values = plain(&page.body);
                let mut values = values.into_iter();
                sane(put(&mut || values.next()))?;
            }
            PLAIN_DICTIONARY | RLE_DICTIONARY => {
                ids.clear();
                let (&width, body) = sane(page.body.split_first())
                    .or_else(|e| if present == 0 { Ok((&1, &[][..])) } else { Err(e) })?;
                sane(hybrid(body, width, present, &mut ids))?;
                let mut ids = ids.iter();
                sane(put(&mut || dictionary.get(*ids.next()? as usize).copied()))?;
            }
            _ => return Err(Fault::Unsupported("a column is encoded in a way that is not read here")),
        }
    }
    if out.values.len() != rows {
        return Err(Fault::Bad("a column has fewer rows than its group"));
    }
    Ok(out)
}

/// Appends which rows of a page have a value, and returns how many.
fn levels(page: &Page, known: &mut Vec<bool>) -> Result<usize> {
    let mut ones = Vec::new();
    sane(hybrid(&page.levels, 1, page.rows, &mut ones))?;
    known.extend(ones.iter().map(|&level| level == 1));
    Ok(ones.iter().filter(|&&level| level == 1).count())
}

/// Appends `count` numbers of `width` bits that stand in runs and packed groups of eight.
fn hybrid(bytes: &[u8], width: u8, count: usize, out: &mut Vec<u32>) -> Option<()> {
    if width > 32 {
        return None;
    }
    let mut at = 0;
    let end = out.len() + count;
    while out.len() < end {
        let mut head = 0_u64;
        for shift in (0..35).step_by(7) {
            let byte = *bytes.get(at)?;
            at += 1;
            head |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        let left = end - out.len();
        let len = usize::try_from(head >> 1).ok()?;
        if head & 1 == 0 {
            let size = usize::from(width.div_ceil(8));
            let value = bytes.get(at..at.checked_add(size)?)?;
            let value = value.iter().rev().fold(0, |value, &b| value << 8 | u32::from(b));
            at += size;
            out.resize(out.len() + len.min(left), value);
            continue;
        }
        let size = len.checked_mul(usize::from(width))?;
        // The last group may be cut short by some writers; what is missing is not wanted then.
        let packed = bytes.get(at..bytes.len().min(at.checked_add(size)?))?;
        at += size;
        let wanted = len.checked_mul(8)?.min(left);
        let (mut held, mut bits) = (0_u64, 0_u8);
        let mask = u32::MAX.checked_shr(u32::from(32 - width)).unwrap_or(0);
        let mut packed = packed.iter();
        for _ in 0..wanted {
            while bits < width {
                held |= u64::from(*packed.next()?) << bits;
                bits += 8;
            }
            out.push(held as u32 & mask);
            held >>= width;
            bits -= width;
        }
    }
    Some(())
}

/// The text column: a page at a time, since its rows may be long.
#[derive(Debug, Default)]
pub(super) struct Texts {
    whole: ChunkAt,
    rest: ChunkAt,
    kind: Kind,
    /// Values of the dictionary, and where each begins.
    dictionary: Vec<u8>,
    starts: Vec<u32>,
    /// The page at hand: which rows have a text, and how far it was read.
    known: Vec<bool>,
    row: usize,
    body: Vec<u8>,
    at: usize,
    /// Numbers into the dictionary, if the page has those.
    ids: Option<std::vec::IntoIter<u32>>,
    /// Bytes that came out of the dictionary.
    repeated: usize,
}

/// Bytes of text that a row group may take from its dictionary, all repetitions counted: a text is written once and may stand for
/// a million rows, each of which is read anew. What is recorded repeats a few names and short items.
const MAX_REPEATED: usize = 256 << 20;

impl Texts {
    pub(super) fn new(chunk: ChunkAt, kind: Kind) -> Result<Self> {
        if kind.physical != BYTE_ARRAY {
            return Err(Fault::Unsupported("a column is not of the type it should have"));
        }
        Ok(Self { whole: chunk, rest: chunk, kind, ..Self::default() })
    }

    /// The part of the column that cannot be read: from the page on that could not, or all of it where there are too few.
    pub(super) const fn unread(&self) -> ChunkAt {
        if self.rest.len > 0 { self.rest } else { self.whole }
    }

    /// The texts of a group without rows, which are its dictionary.
    pub(super) fn lone(&self, file: &File) -> Result<Vec<u8>> {
        let page = Pages::new(file, self.rest, self.kind)?.next()?;
        let body = page.filter(|page| page.dictionary).map(|page| page.body).unwrap_or_default();
        let mut texts = Vec::new();
        let mut at = 0;
        while at < body.len() {
            texts.extend_from_slice(sane(text_at(&body, &mut at))?);
        }
        Ok(texts)
    }

    /// Reads the next page.
    fn load_page(&mut self, file: &File) -> Result<()> {
        let mut pages = Pages::new(file, self.rest, self.kind)?;
        let Some(page) = pages.next()? else {
            return Err(Fault::Bad("a column has fewer rows than its group"));
        };
        self.rest = pages.rest();
        if page.dictionary {
            self.dictionary = page.body;
            self.starts.clear();
            let mut at = 0;
            while at < self.dictionary.len() {
                self.starts.push(sane(u32::try_from(at).ok())?);
                sane(text_at(&self.dictionary, &mut at))?;
            }
            return Ok(());
        }
        if page.rows > super::rows::MAX_ROWS {
            return Err(Fault::Bad("a column has more rows than its group"));
        }
        self.known.clear();
        self.row = 0;
        self.at = 0;
        let present = if self.kind.optional {
            levels(&page, &mut self.known)?
        } else {
            self.known.resize(page.rows, true);
            page.rows
        };
        self.ids = None;
        if matches!(page.encoding, PLAIN_DICTIONARY | RLE_DICTIONARY) {
            let mut ids = Vec::new();
            let (&width, body) = page.body.split_first().unwrap_or((&1, &[]));
            sane(hybrid(body, width, present, &mut ids))?;
            self.ids = Some(ids.into_iter());
        } else if page.encoding != PLAIN {
            return Err(Fault::Unsupported("a column is encoded in a way that is not read here"));
        }
        self.body = page.body;
        Ok(())
    }

    /// The text of the next row, `None` where it has none.
    pub(super) fn next(&mut self, file: &File) -> Result<Option<Vec<u8>>> {
        while self.row == self.known.len() {
            let at = self.rest;
            self.load_page(file).inspect_err(|_| self.rest = at)?;
        }
        let there = self.known.get(self.row).is_some_and(|&k| k);
        self.row += 1;
        if !there {
            return Ok(None);
        }
        let text = match &mut self.ids {
            None => text_at(&self.body, &mut self.at),
            Some(ids) => ids.next().and_then(|id| {
                let mut at = *self.starts.get(id as usize)? as usize;
                text_at(&self.dictionary, &mut at)
            }),
        };
        let text = sane(text)?;
        if self.ids.is_some() {
            self.repeated += text.len();
            if self.repeated > MAX_REPEATED {
                return Err(Fault::Unsupported(
                    "its texts, repeated so often, are more than a row group may hold",
                ));
            }
        }
        Ok(Some(text.to_vec()))
    }
}

fn text_at<'a>(bytes: &'a [u8], at: &mut usize) -> Option<&'a [u8]> {
    let len = u32::from_le_bytes(*bytes.get(*at..)?.first_chunk()?) as usize;
    let from = *at + 4;
    *at = from.checked_add(len)?;
    bytes.get(from..*at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_stands_for_many_rows_ends_at_a_limit() {
        const LEN: usize = 1 << 20;
        let mut dictionary = (LEN as u32).to_le_bytes().to_vec();
        dictionary.resize(4 + LEN, b'x');
        let rows = MAX_REPEATED / LEN + 1;
        let mut texts = Texts {
            dictionary,
            starts: vec![0],
            known: vec![true; rows],
            ids: Some(vec![0; rows].into_iter()),
            ..Texts::default()
        };
        let file = tempfile::tempfile().unwrap();
        for _ in 1..rows {
            assert_eq!(texts.next(&file).ok().flatten().map(|text| text.len()), Some(LEN));
        }
        assert!(matches!(texts.next(&file), Err(Fault::Unsupported(_))));
    }
}
