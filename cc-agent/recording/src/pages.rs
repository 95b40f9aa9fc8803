//! Bounds of what reading a file takes, checked before any of it is decompressed.
//!
//! A page states how large it is once it is decompressed, up to 2 GiB, and the Parquet library
//! allocates what it states. Of run-length encoded values, a few bytes may stand for as many.

use std::{fs::File, io, os::unix::fs::FileExt, path::Path};

use parquet::{basic::Type, file::metadata::RowGroupMetaData};

use crate::RecordingError;

/// The largest page once it is decompressed, bytes. Writers make pages of about 1 MiB.
const MAX_PAGE: u64 = 64 << 20;
/// The most values of a column in one row group, 256 MiB of 32-bit numbers.
const MAX_VALUES: u64 = 1 << 26;
/// The first read of a page's header, bytes, and the longest header.
const HEADER: usize = 256;
const MAX_HEADER: usize = 1 << 20;

/// Reads the headers of all pages of a file's row groups and returns the size in bytes of the
/// largest page of texts, each of whose rows may hold all of it.
///
/// # Errors
///
/// Returns an error that names the file, which has this path, and the column.
pub(crate) fn check(
    path: &Path,
    file: &File,
    groups: &[RowGroupMetaData],
) -> Result<u64, RecordingError> {
    let io = |source| RecordingError::io(path, source);
    let end = file.metadata().map_err(io)?.len();
    let mut texts = 0;
    for group in groups {
        for column in group.columns() {
            let text = |what: &str| format!("column {}: {what}", column.column_path().string());
            let broken = |what: &str| RecordingError::Broken {
                path: path.into(),
                reason: text(what),
            };
            let large = |what: &str| RecordingError::TooLarge {
                path: path.into(),
                reason: text(what),
            };
            let damaged = || broken("the place of its pages is impossible");
            let data = column.data_page_offset();
            let start = column.dictionary_page_offset().unwrap_or(data).min(data);
            let mut at = u64::try_from(start).map_err(|_| damaged())?;
            let length = u64::try_from(column.compressed_size()).map_err(|_| damaged())?;
            let stop = at.checked_add(length).filter(|stop| *stop <= end);
            let stop = stop.ok_or_else(damaged)?;
            let mut values = 0u64;
            while at < stop {
                let page =
                    Page::read(file, at, stop).map_err(|error| broken(&error.to_string()))?;
                if page.uncompressed > MAX_PAGE {
                    let size = page.uncompressed;
                    return Err(large(&format!(
                        "a page of {size} bytes; expected at most {MAX_PAGE}"
                    )));
                }
                values = values.saturating_add(page.values);
                if values > MAX_VALUES {
                    return Err(large(&format!(
                        "more than {MAX_VALUES} values in a row group"
                    )));
                }
                if column.column_type() == Type::BYTE_ARRAY {
                    texts = texts.max(page.uncompressed);
                }
                at = at.saturating_add(page.length);
            }
        }
    }
    Ok(texts)
}

/// What the header of a page states.
#[derive(Debug, Default, PartialEq)]
struct Page {
    /// Size once it is decompressed, bytes.
    uncompressed: u64,
    values: u64,
    /// Size in the file with the header, bytes.
    length: u64,
}

impl Page {
    /// Reads the header of the page that begins at `at`, in a column that ends at `stop`.
    fn read(file: &File, at: u64, stop: u64) -> io::Result<Self> {
        let most = usize::try_from(stop - at).unwrap_or(usize::MAX);
        let mut size = HEADER;
        loop {
            let mut bytes = vec![0; size.min(most)];
            file.read_exact_at(&mut bytes, at)?;
            if let Some(page) = Self::parse(&bytes) {
                return Ok(page);
            }
            if size >= most.min(MAX_HEADER) {
                let text = "the header of a page is damaged";
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            size *= 4;
        }
    }

    /// Decodes a header, a `PageHeader` of parquet.thrift in the compact protocol. `None` if it is
    /// damaged or goes on after these bytes.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let mut thrift = Compact { bytes };
        let mut page = Self::default();
        let mut compressed = 0;
        let mut field = 0;
        while let Some((id, kind)) = thrift.field(field)? {
            field = id;
            match (id, kind) {
                (2, Compact::I32) => page.uncompressed = thrift.size()?,
                (3, Compact::I32) => compressed = thrift.size()?,
                // The headers of data pages of both versions and of dictionaries.
                (5 | 7 | 8, Compact::STRUCT) => page.values = thrift.values()?,
                _ => thrift.skip(kind, DEPTH)?,
            }
        }
        let header = bytes.len() - thrift.bytes.len();
        page.length = (header as u64).checked_add(compressed)?;
        Some(page)
    }
}

/// Structures that may lie within each other.
const DEPTH: usize = 16;

/// Thrift's compact protocol, as far as the headers of pages use it.
struct Compact<'a> {
    bytes: &'a [u8],
}

impl Compact<'_> {
    const I32: u8 = 5;
    const STRUCT: u8 = 12;

    fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(byte)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for place in 0..10 {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << (7 * place);
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// A signed number (zigzag) that must not be negative.
    fn size(&mut self) -> Option<u64> {
        let raw = self.varint()?;
        (raw & 1 == 0).then_some(raw >> 1)
    }

    /// The id and type of the next field, which follows the field `last`; `Some(None)` at the end.
    fn field(&mut self, last: u64) -> Option<Option<(u64, u8)>> {
        let head = self.byte()?;
        let (step, kind) = (head >> 4, head & 0xf);
        Some(match (step, kind) {
            (_, 0) => None,
            (0, kind) => Some((self.size()?, kind)),
            (step, kind) => Some((last.checked_add(u64::from(step))?, kind)),
        })
    }

    /// The first field of a structure, `num_values`.
    fn values(&mut self) -> Option<u64> {
        let (mut values, mut last) = (0, 0);
        while let Some((id, kind)) = self.field(last)? {
            last = id;
            match (id, kind) {
                (1, Self::I32) => values = self.size()?,
                _ => self.skip(kind, DEPTH)?,
            }
        }
        Some(values)
    }

    fn skip(&mut self, kind: u8, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match kind {
            // Booleans have no bytes of their own.
            1 | 2 => {}
            3 => drop(self.byte()?),
            4..=6 => drop(self.varint()?),
            7 => self.bytes = self.bytes.get(8..)?,
            8 => {
                let length = usize::try_from(self.varint()?).ok()?;
                self.bytes = self.bytes.get(length..)?;
            }
            12 => {
                let mut last = 0;
                while let Some((id, kind)) = self.field(last)? {
                    last = id;
                    self.skip(kind, depth)?;
                }
            }
            // Headers of pages have no lists, sets or maps.
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_header_is_read_as_parquet_writes_it() {
        // Type 3 (data page of version 2), 300 bytes, 100 compressed; 8.1: 7 values, 8.7: true.
        let header = [
            0x15, 0x06, 0x15, 0xd8, 0x04, 0x15, 0xc8, 0x01, 0x5c, 0x15, 0x0e, 0x61, 0x00, 0x00,
        ];
        let expected = Page {
            uncompressed: 300,
            values: 7,
            length: 114,
        };
        assert_eq!(Page::parse(&header), Some(expected));
        for cut in 0..header.len() {
            assert_eq!(Page::parse(&header[..cut]), None);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            if let Some(page) = Page::parse(&bytes) {
                prop_assert!(page.length > 0);
            }
        }
    }
}
