//! A pool of what others did: flows of classical congestion controls on the links of a family,
//! recorded as `cc-agent observe` records flows of the kernel, and other links of the same family
//! to choose and to judge policies on.
//!
//! The idea is Sage's (Yen et al., "Computers Can Learn from the Heuristic Designs and Master
//! Internet Congestion Control", SIGCOMM 2023): learn from a pool of what existing controls did,
//! and from nothing else. Here the pool is made in the simulator ([`record`]), or under the kernel
//! on the same links (docs/offline.md). [`judge`] compares the policy with its teachers.

pub mod judge;
mod record;

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use cc_core::interface::{Interface, InterfaceError};
use cc_recording::RecordingError;
use cc_sim::{
    scenario::{self, Scenario, ScenarioError, content},
    seed,
    sim::Control,
};
use rand::{SeedableRng, rngs::Xoshiro256PlusPlus};
use serde::{Deserialize, Serialize};

pub use record::{Recorded, record};

use crate::environment::network::{NetworkConfigError, RandomLinks};

/// Settings of a pool: its links, and the teachers that are recorded on them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PoolConfig {
    /// Determines the links, and the losses and controls on them.
    pub seed: u64,
    /// Length of a recorded flow, s.
    pub seconds: f64,
    /// Number of recorded flows of each control on each link.
    pub runs: u32,
    /// The teachers: congestion controls of the simulator.
    pub schemes: Vec<String>,
    /// Number of links of each part.
    pub links: PartSizes,
    /// The family that all links are drawn from.
    pub family: RandomLinks,
    /// Length of a window, actions and reward of the recordings, as in `cc-agent observe`.
    pub policy: Interface,
}

/// Number of links in each part of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PartSizes {
    /// Links that the teachers are recorded on.
    pub training: usize,
    /// Links on which methods and settings are chosen.
    pub validation: usize,
    /// Links on which the chosen policy is judged, once.
    pub test: usize,
}

impl Default for PartSizes {
    fn default() -> Self {
        Self {
            training: 96,
            validation: 12,
            test: 24,
        }
    }
}

impl Default for PoolConfig {
    /// Steady links of 2 to 50 Mbit/s with RTTs of 10 to 100 ms and buffers of 0.3 to 4 BDP, of
    /// which a quarter lose up to a packet in two hundred at random.
    fn default() -> Self {
        Self {
            seed: 1,
            seconds: 30.0,
            runs: 1,
            schemes: ["bbr", "cubic", "reno"].map(str::to_owned).to_vec(),
            links: PartSizes::default(),
            family: RandomLinks {
                rate_mbps: [2.0, 50.0],
                delay_ms: [5.0, 50.0],
                queue_bdp: [0.3, 4.0],
                ..RandomLinks::default()
            },
            policy: Interface::default(),
        }
    }
}

/// Why a pool cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// A setting is out of its range.
    #[error("{setting} is {found}; expected {expected}")]
    Setting {
        /// Name of the setting, as configurations have it.
        setting: &'static str,
        /// The value that was found, as text.
        found: String,
        /// The values that it may have.
        expected: String,
    },
    /// The family's settings are not valid.
    #[error(transparent)]
    Family(#[from] NetworkConfigError),
    /// The interface is not valid.
    #[error("policy.{0}")]
    Interface(#[from] InterfaceError),
    /// The family's links cannot be written to a file.
    #[error("family: {0}")]
    Trace(#[from] scenario::TraceInLine),
    /// A file of links that was written cannot be read again.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The directory holds a pool or part of one.
    #[error(
        "{} exists; a pool needs a directory of its own, and nothing is overwritten: choose \
         another one with --out",
        .0.display()
    )]
    Exists(PathBuf),
    /// A recording cannot be written.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// A file of the pool cannot be written.
    #[error("writing {}: {source}", path.display())]
    Write {
        /// Path of the file or directory to be written.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The caller asked to stop.
    #[error("ended early; what was written is no pool: remove it and start again")]
    Cancelled,
}

/// The three parts of a pool, with links that do not overlap.
pub const PARTS: [&str; 3] = ["training", "validation", "test"];

/// The links of a pool, each part in the order of [`PARTS`].
#[derive(Clone, Debug)]
pub struct Links {
    /// Links of each part; no link is in two.
    pub parts: [Vec<Scenario>; 3],
    /// The text of each part's scenario file.
    texts: [String; 3],
}

/// A part of a pool, as `pool.json` describes it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PartFacts {
    /// Name of the part, of [`PARTS`].
    pub part: &'static str,
    /// Number of links in the part.
    pub links: usize,
    /// SHA-256 of the links' content, as `cc-trainer sets` computes it.
    pub sha256: String,
}

impl PoolConfig {
    /// Checks that all settings are within their ranges.
    ///
    /// # Errors
    ///
    /// Returns an error that names the setting out of its range.
    pub fn validate(&self) -> Result<(), PoolError> {
        let wrong = |setting, found: String, expected: &str| {
            Err(PoolError::Setting {
                setting,
                found,
                expected: expected.to_owned(),
            })
        };
        if !(1.0..=3_600.0).contains(&self.seconds) {
            return wrong("seconds", self.seconds.to_string(), "1 to 3600");
        }
        if self.runs == 0 {
            return wrong("runs", "0".to_owned(), "at least 1");
        }
        let PartSizes {
            training,
            validation,
            test,
        } = self.links;
        for (setting, count) in [
            ("links.training", training),
            ("links.validation", validation),
            ("links.test", test),
        ] {
            if !(1..=MOST_LINKS).contains(&count) {
                return wrong(setting, count.to_string(), "1 to 10000 links");
            }
        }
        if self.schemes.is_empty() {
            return wrong("schemes", "empty".to_owned(), "at least one control");
        }
        for scheme in &self.schemes {
            if Control::named(scheme, 1).is_none() {
                let expected = Control::NAMES.join(", ");
                return wrong("schemes", format!("`{scheme}`"), &expected);
            }
        }
        self.family.check(|field| format!("family.{field}"))?;
        self.policy.validate()?;
        Ok(())
    }

    /// Draws the links of all parts, which the seed determines.
    ///
    /// # Errors
    ///
    /// Returns an error when a setting is out of its range, or the family has links that a scenario
    /// file cannot hold.
    pub fn draw(&self) -> Result<Links, PoolError> {
        self.validate()?;
        let sizes = [self.links.training, self.links.validation, self.links.test];
        let mut parts: [Vec<Scenario>; 3] = Default::default();
        let mut texts: [String; 3] = Default::default();
        for (index, (part, count)) in PARTS.into_iter().zip(sizes).enumerate() {
            let seed = seed::fold(seed::fold(LINKS, self.seed), index as u64);
            let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
            let links: Vec<Scenario> = (0..count)
                .map(|number| Scenario {
                    name: format!("{part}-{number}"),
                    ..self.family.draw(self.seconds, &mut random)
                })
                .collect();
            texts[index] = scenario::write(&links)?;
            // As others will read them: numbers may be rounded on their way through the file.
            parts[index] = scenario::parse(&texts[index], &PathBuf::from(format!("{part}.toml")))?;
        }
        Ok(Links { parts, texts })
    }

    /// Length of a recorded flow.
    pub fn length(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

/// Keeps the seed of links apart from others that are made of the same number.
const LINKS: u64 = 0x6c69_6e6b;

/// Most links in a part: each has a /24 network of its own in recordings.
const MOST_LINKS: usize = 10_000;

impl Links {
    /// Writes each part as a scenario file, `training.toml`, `validation.toml` and `test.toml`, to
    /// a directory that has none of them yet.
    ///
    /// # Errors
    ///
    /// Returns an error when one of them exists or cannot be written.
    pub fn write(&self, directory: &Path) -> Result<Vec<PartFacts>, PoolError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| PoolError::Write { path, source }
        };
        fs::create_dir_all(directory).map_err(failed(directory))?;
        let path = |part| directory.join(format!("{part}.toml"));
        if let Some(taken) = PARTS.into_iter().map(path).find(|path| path.exists()) {
            return Err(PoolError::Exists(taken));
        }
        let mut facts = Vec::new();
        for ((part, text), links) in PARTS.into_iter().zip(&self.texts).zip(&self.parts) {
            let path = path(part);
            fs::write(&path, text).map_err(failed(&path))?;
            facts.push(PartFacts {
                part,
                links: links.len(),
                sha256: content::set(links),
            });
        }
        Ok(facts)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn parts_share_no_link_and_a_seed_determines_them() {
        let config = PoolConfig::default();
        let links = config.draw().expect("valid");
        let digests =
            |links: &Links| -> Vec<_> { links.parts.iter().flatten().map(content::link).collect() };
        let all = digests(&links);
        assert_eq!(all.len(), 96 + 12 + 24);
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        assert_eq!(all, digests(&config.draw().expect("valid")));
        let other = PoolConfig { seed: 2, ..config };
        let other = digests(&other.draw().expect("valid"));
        assert!(all.iter().all(|link| !other.contains(link)));
    }

    #[test]
    fn the_files_hold_the_links_that_are_recorded() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let links = PoolConfig::default().draw().expect("valid");
        let facts = links.write(scratch.path()).expect("written");
        for (facts, part) in facts.iter().zip(&links.parts) {
            let path = scratch.path().join(format!("{}.toml", facts.part));
            let read = scenario::load(path.to_str().expect("UTF-8")).expect("a scenario file");
            assert_eq!(&read, part, "{}", facts.part);
            assert_eq!(facts.sha256, content::set(&read));
        }
        let again = links.write(scratch.path()).expect_err("it is there");
        assert!(
            again.to_string().contains("training.toml exists"),
            "{again}"
        );
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let refused = |text: &str| {
            let config: PoolConfig = toml::from_str(text).expect("TOML");
            config.validate().expect_err(text).to_string()
        };
        assert!(refused("schemes = [\"tahoe\"]").contains("schemes is `tahoe`; expected reno"));
        assert!(refused("schemes = []").contains("at least one control"));
        assert!(refused("seconds = 0.5").starts_with("seconds is 0.5; expected 1 to 3600"));
        assert!(refused("runs = 0").starts_with("runs is 0"));
        assert!(refused("links = { test = 0 }").starts_with("links.test is 0"));
        assert!(refused("family = { rate_mbps = [0, 1] }").contains("family.rate_mbps"));
        assert!(refused("policy = { window_ms = 0 }").contains("policy.window_ms"));
        assert!(toml::from_str::<PoolConfig>("links = { tests = 1 }").is_err());
    }
}
