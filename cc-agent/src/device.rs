//! Network devices as users write them.

use std::{fmt, str::FromStr};

/// Name of a network device, in whatever network namespace a connection is. There need be none of
/// that name yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device([u8; 16]);

impl Device {
    /// The device of connections within one network namespace.
    pub(crate) const LOOPBACK: Self = Self(*b"lo\0\0\0\0\0\0\0\0\0\0\0\0\0\0");

    /// The name, NUL-padded, as the datapath compares it.
    pub(crate) fn words(&self) -> [u32; 4] {
        bytemuck::cast(self.0)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(String::from_utf8_lossy(&self.0).trim_end_matches('\0'))
    }
}

impl FromStr for Device {
    type Err = String;

    /// Takes what the kernel takes (`dev_valid_name`, net/core/dev.c, Linux 6.18), but for `*`,
    /// which would look like a pattern.
    fn from_str(text: &str) -> Result<Self, String> {
        let is_odd = |c: char| matches!(c, '/' | ':' | '*') || c.is_whitespace();
        if !(1..16).contains(&text.len()) || matches!(text, "." | "..") || text.contains(is_odd) {
            return Err(format!(
                "`{text}`: expected the name of a network device, of 1 to 15 characters; `ip link` \
                 lists them"
            ));
        }
        let mut name = [0; 16];
        name[..text.len()].copy_from_slice(text.as_bytes());
        Ok(Self(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_the_kernel_takes() {
        for name in ["lo", "eth0", "enp0s31f6.100", "fifteen_letters", "wg-a@b"] {
            assert_eq!(name.parse::<Device>().expect(name).to_string(), name);
        }
        assert_eq!("lo".parse(), Ok(Device::LOOPBACK));
        for name in [
            "",
            "sixteen_letters_",
            ".",
            "..",
            "a/b",
            "a:b",
            "a b",
            "eth*",
        ] {
            let error = name.parse::<Device>().expect_err(name);
            assert!(error.contains("`ip link` lists them"), "{error}");
        }
    }
}
