//! The host's default congestion control, `net.ipv4.tcp_congestion_control`.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// The sysctl's file, of this network namespace.
const FILE: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// What the default goes back to when the former one is unknown: the first that the kernel has.
/// Linux is built with reno in any case.
const USUAL: [&str; 2] = ["cubic", "reno"];

/// Why the default could not be changed.
#[derive(Debug, thiserror::Error)]
#[error("{what} {}: {source}{}", file.display(), hint(.source))]
pub struct SysctlError {
    what: String,
    file: PathBuf,
    source: io::Error,
}

/// The default congestion control, changed until this is dropped.
///
/// On drop the former one comes back, unless another one has been set meanwhile. New sockets must
/// not find an unregistered default, so drop this before the datapath.
#[derive(Debug)]
pub struct DefaultCongestionControl {
    file: PathBuf,
    name: String,
    /// `None` where the name had been left behind by an agent that was killed.
    former: Option<String>,
}

impl DefaultCongestionControl {
    /// Makes the registered congestion control `name` the default of new sockets in this network
    /// namespace.
    ///
    /// # Errors
    /// When the sysctl cannot be read or written, or the kernel knows no such congestion control.
    pub fn set(name: &str) -> Result<Self, SysctlError> {
        Self::set_in(Path::new(FILE), name)
    }

    fn set_in(file: &Path, name: &str) -> Result<Self, SysctlError> {
        let former = read(file)?;
        // Also where it is the default already: that may be a dead agent's of the same name.
        write(file, name)?;
        Ok(Self {
            file: file.to_owned(),
            name: name.to_owned(),
            former: (former != name).then_some(former),
        })
    }

    fn restore(&self) -> Result<(), SysctlError> {
        let present = read(&self.file)?;
        if present != self.name {
            tracing::info!(
                "the default congestion control is {present} by now and stays so; {} is not put \
                 back",
                self.former.as_deref().unwrap_or("the former one")
            );
            return Ok(());
        }
        match &self.former {
            Some(former) => write(&self.file, former),
            None => {
                let [best, last] = USUAL;
                write(&self.file, best).or_else(|_| write(&self.file, last))
            }
        }
    }
}

impl Drop for DefaultCongestionControl {
    fn drop(&mut self) {
        if let Err(error) = self.restore() {
            tracing::error!(
                "{} is still the default congestion control: {error}; set it back with \
                 `sysctl net.ipv4.tcp_congestion_control={}`",
                self.name,
                self.former.as_deref().unwrap_or(USUAL[0])
            );
        }
    }
}

fn read(file: &Path) -> Result<String, SysctlError> {
    match fs::read_to_string(file) {
        Ok(name) => Ok(name.trim().to_owned()),
        Err(source) => Err(SysctlError {
            what: "cannot read the default congestion control from".into(),
            file: file.to_owned(),
            source,
        }),
    }
}

fn write(file: &Path, name: &str) -> Result<(), SysctlError> {
    fs::write(file, name).map_err(|source| SysctlError {
        what: format!("cannot make {name} the default congestion control in"),
        file: file.to_owned(),
        source,
    })
}

fn hint(source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES | libc::EROFS) => {
            " (root is needed, and a writable /proc/sys; or leave out --default)"
        }
        // tcp_set_default_congestion_control, net/ipv4/tcp_cong.c.
        Some(libc::ENOENT) => {
            " (the kernel knows no such congestion control; \
             net.ipv4.tcp_available_congestion_control lists them)"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn the_former_default_comes_back() {
        let sysctl = Sysctl::with("cubic\n");
        let default = DefaultCongestionControl::set_in(&sysctl.file, "rlcc").expect("sets");
        assert_eq!(sysctl.value(), "rlcc");
        drop(default);
        assert_eq!(sysctl.value(), "cubic");
    }

    #[test]
    fn another_default_that_was_set_meanwhile_stays() {
        let sysctl = Sysctl::with("cubic\n");
        let default = DefaultCongestionControl::set_in(&sysctl.file, "rlcc").expect("sets");
        fs::write(&sysctl.file, "bbr\n").expect("writes");
        drop(default);
        assert_eq!(sysctl.value(), "bbr\n");
    }

    #[test]
    fn what_a_killed_agent_left_is_not_put_back() {
        let sysctl = Sysctl::with("rlcc\n");
        drop(DefaultCongestionControl::set_in(&sysctl.file, "rlcc").expect("sets"));
        assert_eq!(sysctl.value(), "cubic");
    }

    #[test]
    fn errors_name_the_file_and_the_remedy() {
        let file = Path::new("/nonexistent/tcp_congestion_control");
        let error = DefaultCongestionControl::set_in(file, "rlcc").expect_err("no such file");
        let text = error.to_string();
        assert!(
            text.contains("/nonexistent/tcp_congestion_control"),
            "{text}"
        );
        let refused = SysctlError {
            what: "cannot write".into(),
            file: file.into(),
            source: io::Error::from_raw_os_error(libc::EACCES),
        };
        assert!(refused.to_string().contains("root is needed"), "{refused}");
    }

    struct Sysctl {
        file: PathBuf,
        _directory: TempDir,
    }

    impl Sysctl {
        fn with(value: &str) -> Self {
            let directory = TempDir::new().expect("a directory for the test");
            let file = directory.path().join("tcp_congestion_control");
            fs::write(&file, value).expect("writes");
            Self {
                file,
                _directory: directory,
            }
        }

        fn value(&self) -> String {
            fs::read_to_string(&self.file).expect("reads")
        }
    }
}
