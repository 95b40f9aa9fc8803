//! `cc-agent bundle`: one archive with what a report of a bug needs, for people to read and send.
//!
//! Each part that cannot be had says why in its place. Peers' addresses and secrets are left out
//! ([`scrub`]) before anything is written.

mod parts;
mod scrub;

use std::{
    fmt,
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use anyhow::Context;
use clap::Args;
use flate2::{Compression, write::GzEncoder};

use self::scrub::Scrubber;

/// The directory that the archive unpacks into.
const DIRECTORY: &str = "cc-agent-bundle";

/// What a report has in it, and where it goes.
#[derive(Args, Debug)]
pub struct BundleOptions {
    /// The archive to write, such as report.tar.gz. It must not exist yet.
    pub file: PathBuf,

    /// Keep the addresses of flows' ends and of servers, which are replaced otherwise.
    #[arg(long)]
    pub addresses: bool,

    /// Lines of the journal, at most, the newest ones.
    #[arg(long, value_name = "LINES", default_value_t = 500)]
    pub journal: u32,
}

/// A file of the report, or what is known of one that cannot be had.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    name: &'static str,
    /// What it is, in a few words.
    what: &'static str,
    /// Its text, or the reason why there is none.
    text: Result<String, String>,
}

/// The parts of a report, for people to read.
struct Contents<'a>(&'a [Part]);

impl fmt::Display for Contents<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Part { name, what, text } in self.0 {
            write!(f, "\n  {name:14} {what}: ")?;
            match text {
                Ok(text) => write!(f, "{} bytes", text.len())?,
                Err(reason) => write!(f, "absent, {reason}")?,
            }
        }
        Ok(())
    }
}

impl BundleOptions {
    /// Collects the report about this host and the agent of `name` at `socket`, and writes it.
    /// `say` takes the lines for the user: what is in the report, before and after writing it.
    ///
    /// # Errors
    ///
    /// Returns an error when the file exists already or cannot be written. A part that cannot be
    /// had is none.
    pub fn write(
        &self,
        name: &str,
        socket: &Path,
        mut say: impl FnMut(&str) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut parts = parts::collect(name, socket, self.journal);
        let mut scrubber = Scrubber::new(self.addresses);
        for part in &mut parts {
            let (Ok(text) | Err(text)) = &mut part.text;
            *text = scrubber.scrub(text);
        }
        let left_out = match self.addresses {
            true => "Addresses are kept, as --addresses asks; secrets are left out.".to_owned(),
            false => format!(
                "Secrets are left out, and addresses: {} were replaced (--addresses keeps them).",
                scrubber.replaced()
            ),
        };
        let contents = format!("{left_out}{}", Contents(&parts));
        say(&format!("the report will contain\n{contents}"))?;
        let archive = archive(&contents, &parts).context("making the archive")?;
        write_new(&self.file, &archive).with_context(|| self.file.display().to_string())?;
        let file = self.file.display();
        say(&format!(
            "\nwrote {file}: {} bytes, for its owner only. Read it before you send it:\n  \
             tar -xzOf {file} | less",
            archive.len()
        ))
    }
}

/// The archive, as the bytes of a .tar.gz file.
fn archive(contents: &str, parts: &[Part]) -> io::Result<Vec<u8>> {
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    let mut add = |name: &str, text: &str| {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        archive.append_data(&mut header, format!("{DIRECTORY}/{name}"), text.as_bytes())
    };
    add("CONTENTS", &format!("{contents}\n"))?;
    for Part { name, text, .. } in parts {
        if let Ok(text) = text {
            add(name, text)?;
        }
    }
    archive.into_inner()?.finish()
}

/// Writes a file that does not exist yet, for its owner only. None is left when that fails.
fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    let write = || {
        // Whatever the process's umask is.
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write_or_remove(path, write)
}

fn write_or_remove(path: &Path, write: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    write().inspect_err(|_| {
        let _ = fs::remove_file(path);
    })
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, io::Read};

    use flate2::read::GzDecoder;
    use tempfile::TempDir;

    use super::*;

    fn unpack(bytes: &[u8]) -> BTreeMap<String, String> {
        let mut archive = tar::Archive::new(GzDecoder::new(bytes));
        let entries = archive.entries().expect("an archive");
        let read = entries.map(|entry| {
            let mut entry = entry.expect("an entry");
            assert_eq!(entry.header().mode().expect("a mode"), 0o600);
            let path = entry.path().expect("a path").display().to_string();
            let mut text = String::new();
            entry.read_to_string(&mut text).expect("it is text");
            (path, text)
        });
        read.collect()
    }

    #[test]
    fn an_archive_has_the_parts_and_says_which_are_absent() {
        let part = |name, text| Part {
            name,
            what: "something",
            text,
        };
        let parts = [
            part("here.txt", Ok("text".into())),
            part("gone.txt", Err("it is gone".into())),
        ];
        let contents = Contents(&parts).to_string();
        let found = unpack(&archive(&contents, &parts).expect("it fits in memory"));
        let names: Vec<_> = found.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            ["cc-agent-bundle/CONTENTS", "cc-agent-bundle/here.txt"]
        );
        assert_eq!(found["cc-agent-bundle/here.txt"], "text");
        let contents = &found["cc-agent-bundle/CONTENTS"];
        for line in [
            "  here.txt       something: 4 bytes\n",
            "  gone.txt       something: absent, it is gone\n",
        ] {
            assert!(contents.contains(line), "{contents}");
        }
    }

    #[test]
    fn a_report_is_written_once_and_for_its_owner() {
        let directory = TempDir::new().expect("a directory for the test");
        let options = BundleOptions {
            file: directory.path().join("report.tar.gz"),
            addresses: false,
            journal: 5,
        };
        let nobody = directory.path().join("nobody.sock");
        let mut said = Vec::new();
        let mut write = |options: &BundleOptions| {
            options.write("cc_nobody", &nobody, |line| {
                said.push(line.to_owned());
                Ok(())
            })
        };
        write(&options).expect("writes");
        let written = fs::read(&options.file).expect("reads");
        let mode = fs::metadata(&options.file).expect("is there").permissions();
        assert_eq!(mode.mode() & 0o7777, 0o600);
        write(&options).expect_err("it is there already");
        assert_eq!(fs::read(&options.file).expect("reads"), written);
        assert!(
            said[0].contains("status.json") && said[1].contains("Read it"),
            "{said:?}"
        );
        let parts = unpack(&written);
        assert!(!parts.contains_key("cc-agent-bundle/status.json"));
        let contents = &parts["cc-agent-bundle/CONTENTS"];
        assert!(
            contents.contains("absent, no agent is running"),
            "{contents}"
        );
        let host = &parts["cc-agent-bundle/host.txt"];
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("Linux has one");
        assert!(host.contains(release.trim()), "{host}");
    }

    #[test]
    fn a_file_that_cannot_be_written_does_not_stay() {
        let directory = TempDir::new().expect("a directory for the test");
        let path = directory.path().join("report.tar.gz");
        fs::write(&path, "half").expect("writes");
        let full = || Err(io::ErrorKind::StorageFull.into());
        write_or_remove(&path, full).expect_err("the disk is full");
        assert!(!path.exists());
    }
}
