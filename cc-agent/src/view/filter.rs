//! Which flows the live view shows, as the user writes it.

use std::{fmt, path::Path, str::FromStr};

use cc_core::status::FlowView;
use cc_ebpf::Mode;

use crate::{kernel::cgroup_id, network::Network};

/// A condition on flows: words, all of which must hold. It shows every flow by default.
///
/// A word is the name of a mode (`fallback`), an address or a network of either end
/// (`10.0.0.0/8`), a cgroup (`cgroup=PATH`, or `cgroup=ID`), a network namespace (`netns=INODE`), a
/// socket's cookie (`sk:HEX`, as `ss -e` writes it), or a part of the ends' text (`:443`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    text: String,
    words: Vec<Word>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Word {
    Mode(Mode),
    Network(Network),
    Cgroup(u64),
    Namespace(u32),
    Cookie(u64),
    Part(String),
}

impl Filter {
    /// Whether it has no word, and so shows every flow.
    pub(super) fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The same condition in words that do not depend on who reads them: cgroups by their ids.
    pub(crate) fn canonical(&self) -> String {
        let words: Vec<String> = self.words.iter().map(Word::to_string).collect();
        words.join(" ")
    }

    /// Whether all words hold for a flow, which is shown then.
    pub(crate) fn shows(&self, flow: &FlowView) -> bool {
        let holds = |word: &Word| match word {
            Word::Mode(mode) => flow.mode == *mode,
            Word::Network(network) => {
                network.contains(flow.local.ip()) || network.contains(flow.remote.ip())
            }
            Word::Cgroup(id) => flow.cgroup_id == *id,
            Word::Namespace(inode) => flow.netns == *inode,
            Word::Cookie(cookie) => flow.cookie == *cookie,
            Word::Part(part) => format!("{} {}", flow.local, flow.remote).contains(part),
        };
        self.words.iter().all(holds)
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Filter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words = text.split_whitespace().map(Word::from_str);
        Ok(Self {
            text: text.trim().to_owned(),
            words: words.collect::<Result<_, _>>()?,
        })
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mode(mode) => f.write_str(mode.name()),
            Self::Network(network) => network.fmt(f),
            Self::Cgroup(id) => write!(f, "cgroup={id}"),
            Self::Namespace(inode) => write!(f, "netns={inode}"),
            Self::Cookie(cookie) => write!(f, "sk:{cookie:x}"),
            Self::Part(part) => f.write_str(part),
        }
    }
}

impl FromStr for Word {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        if let Some(mode) = Mode::ALL.into_iter().find(|mode| mode.name() == word) {
            return Ok(Self::Mode(mode));
        }
        if let Some(cgroup) = word.strip_prefix("cgroup=") {
            let id = match cgroup.parse() {
                Ok(id) => id,
                Err(_) => cgroup_id(Path::new(cgroup)).map_err(|error| error.to_string())?,
            };
            return Ok(Self::Cgroup(id));
        }
        if let Some(inode) = word.strip_prefix("netns=") {
            let inode = inode.parse().map_err(|_| {
                format!(
                    "netns={inode}: expected an inode number, as `lsns -t net` and `ls -i \
                     /run/netns` show it"
                )
            })?;
            return Ok(Self::Namespace(inode));
        }
        if let Some(cookie) = word.strip_prefix("sk:") {
            let cookie = u64::from_str_radix(cookie, 16)
                .map_err(|_| format!("sk:{cookie}: expected a cookie, as `ss -e` shows it"))?;
            return Ok(Self::Cookie(cookie));
        }
        match word.parse() {
            Ok(network) => Ok(Self::Network(network)),
            // Meant as a network.
            Err(error) if word.contains('/') => Err(error),
            Err(_) => Ok(Self::Part(word.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cc_core::status::samples::flow;

    #[test]
    fn all_words_must_hold() {
        let mut flow = flow(3);
        flow.cgroup_id = 77;
        let shows = |text: &str| text.parse::<Filter>().expect(text).shows(&flow);
        for text in [
            "",
            "decided",
            "10.0.0.0/8",
            "10.0.0.2",
            ":40003",
            "cgroup=77",
            "netns=4026531840 sk:4",
            " decided  10.0.0.1 cgroup=77 :5201",
        ] {
            assert!(shows(text), "{text}");
            // As the agent is asked for it.
            let filter: Filter = text.parse().expect(text);
            assert!(shows(&filter.canonical()), "{text}");
        }
        for text in [
            "fallback",
            "11.0.0.0/8",
            ":40002",
            "cgroup=7",
            "netns=4026531841",
            "sk:40",
            "decided 10.0.0.9",
        ] {
            assert!(!shows(text), "{text}");
        }
    }

    #[test]
    fn what_is_meant_as_a_network_or_cgroup_must_be_one() {
        for (text, part) in [
            ("10.0.0.0/99", "at most 32"),
            ("10.0.0.1/8", "10.0.0.1/8"),
            ("cgroup=/proc", "no directory of a cgroup"),
            ("netns=/run/netns/a", "an inode number"),
            ("sk:x", "a cookie"),
        ] {
            let error = text.parse::<Filter>().expect_err(text);
            assert!(error.contains(part), "{error}");
        }
    }
}
