//! Calls into libraries that read what others have made.

use std::{
    any::Any,
    fmt::Display,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// Calls into a library whose errors and panics both come back as text: libraries check most of
/// what a file may get wrong, but not all, and flows must not lose their agent over a bad file.
///
/// Whatever the call has changed must not be used again once it failed.
///
/// # Errors
///
/// Returns the library's error, or the message of its panic.
pub fn guarded<T, E: Display>(call: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| format!("{error:#}")),
        Err(panic) => Err(format!("internal error: {}", message(panic.as_ref()))),
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("unknown")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_and_panics_become_text() {
        let text = |call: fn() -> Result<(), &'static str>| guarded(call).expect_err("an error");
        assert_eq!(guarded(|| Ok::<_, String>(7)), Ok(7));
        assert_eq!(text(|| Err("no")), "no");
        assert_eq!(text(|| panic!("at {}", 7)), "internal error: at 7");
        assert_eq!(text(|| panic!("plain")), "internal error: plain");
        assert_eq!(text(|| std::panic::panic_any(7)), "internal error: unknown");
    }
}
