//! Lines of a stream that comes in pieces, with a limit on their length.

/// A line is longer than it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLong;

/// Puts pieces together to lines.
#[derive(Debug)]
pub(super) struct Lines {
    limit: usize,
    buffer: Vec<u8>,
    /// Bytes at the start of the buffer that hold no end of a line.
    searched: usize,
}

impl Lines {
    /// Lines of at most `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            buffer: Vec::new(),
            searched: 0,
        }
    }

    /// Appends a piece of the stream.
    pub(super) fn push(&mut self, piece: &[u8]) {
        self.buffer.extend_from_slice(piece);
    }

    /// Whether the stream so far ends within a line.
    pub(super) fn is_within_one(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Takes the next line, without its end; `None` when it is not complete. Lines of no bytes are
    /// left out.
    ///
    /// # Errors
    ///
    /// Returns an error when it is longer than the limit, complete or not.
    pub(super) fn next(&mut self) -> Result<Option<Vec<u8>>, TooLong> {
        loop {
            let end = self.buffer[self.searched..]
                .iter()
                .position(|&it| it == b'\n');
            let Some(end) = end.map(|end| self.searched + end) else {
                self.searched = self.buffer.len();
                return match self.buffer.len() > self.limit {
                    true => Err(TooLong),
                    false => Ok(None),
                };
            };
            self.searched = 0;
            let rest = self.buffer.split_off(end + 1);
            let mut line = std::mem::replace(&mut self.buffer, rest);
            line.truncate(end);
            match line.len() {
                0 => {}
                length if length > self.limit => return Err(TooLong),
                _ => return Ok(Some(line)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_line_that_does_not_end_is_refused() {
        let mut lines = Lines::new(4);
        lines.push(b"ab\ncd");
        assert_eq!(lines.next(), Ok(Some(b"ab".to_vec())));
        assert_eq!(lines.next(), Ok(None));
        lines.push(b"ef");
        assert_eq!(lines.next(), Ok(None));
        lines.push(b"g");
        assert_eq!(lines.next(), Err(TooLong));
        let mut lines = Lines::new(4);
        lines.push(b"abcde\nf\n");
        assert_eq!(lines.next(), Err(TooLong));
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_the_pieces(
            text in "[a-c\n]{0,40}",
            sizes in proptest::collection::vec(1_usize..7, 40),
        ) {
            let mut lines = Lines::new(100);
            let mut found = Vec::new();
            let mut rest = text.as_bytes();
            for size in sizes {
                let (piece, after) = rest.split_at(size.min(rest.len()));
                rest = after;
                lines.push(piece);
                while let Ok(Some(line)) = lines.next() {
                    found.push(line);
                }
            }
            let complete = text.rsplit_once('\n').map_or("", |(complete, _)| complete);
            let expected: Vec<_> = (complete.split('\n').filter(|line| !line.is_empty()))
                .map(|line| line.as_bytes().to_vec())
                .collect();
            prop_assert_eq!(found, expected);
        }
    }
}
