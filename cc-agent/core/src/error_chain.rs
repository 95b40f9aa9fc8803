//! An error and its causes in one line, for people.

use std::error::Error;

/// Joins the messages of an error and its causes with `: `. A cause that the line already contains
/// is left out, because many errors include their cause in their own message.
///
/// ```
/// use std::io;
///
/// let full = io::Error::other("no space left on device");
/// assert_eq!(cc_core::error_chain(&full), "no space left on device");
/// ```
pub fn error_chain(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !line.contains(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        cause = error.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: &'static str,
        source: Option<Box<Layer>>,
    }

    fn layer(text: &'static str, source: Option<Layer>) -> Layer {
        let source = source.map(Box::new);
        Layer { text, source }
    }

    #[test]
    fn each_cause_is_named_once() {
        let cause = layer("no space", None);
        let error = layer("cannot write a.bin: no space", Some(cause));
        let error = layer("the run stopped", Some(error));
        let expected = "the run stopped: cannot write a.bin: no space";
        assert_eq!(error_chain(&error), expected);
    }
}
