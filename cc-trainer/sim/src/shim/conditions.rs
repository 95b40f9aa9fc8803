//! What a network does to messages: presets, and tables of TOML files.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
    time::Duration,
};

use cc_core::regular_file;
use serde::{Deserialize, Serialize};

use super::{
    Channel, Medium, Way,
    recording::{MAX_BYTES, Recording, RecordingError},
};
use crate::{
    path::Nanos,
    scenario::{Loss, Millis},
    seed,
};

/// Shortest time after which a stream sends a lost piece again, where none is set: that of a path
/// without any delay.
const LEAST_RETRANSMISSION: Duration = Duration::from_millis(1);

/// What a network does to messages in both directions.
#[derive(Clone, Debug, PartialEq)]
pub struct Conditions {
    /// The way of questions: observations to a policy, a client's bytes to its server.
    pub there: OneWay,
    /// The way of answers, whose losses and delays are independent of the questions'.
    pub back: OneWay,
    /// Time after which a [stream](Medium::Stream) sends a piece again whose first transmission was
    /// lost; it doubles with each further loss. `None` is the mean round trip, at least 1 ms.
    pub retransmission: Option<Duration>,
}

/// What a network does to messages in one direction.
#[derive(Clone, Debug, PartialEq)]
pub enum OneWay {
    /// Each message is lost, or arrives after a normally distributed delay that is 0 where it would
    /// be negative.
    Drawn {
        /// Mean of the delay, before negative ones become 0.
        delay: Duration,
        /// Standard deviation of the delay.
        jitter: Duration,
        /// Loss of messages; the chain of bursty loss moves once per message.
        loss: Loss,
    },
    /// What happened to each message of a recording in turn, from the beginning again after its
    /// end: the delay in ns, or `None` for a lost message. There is at least one.
    Replayed(Arc<[Option<Nanos>]>),
}

/// Conditions of both directions with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// 2 ± 0.5 ms in each direction without loss (CALF).
    Ethernet,
    /// Exactly 50 ms in each direction without loss: what CALF trains with for delay alone.
    #[serde(rename = "fixed-50")]
    Fixed50,
    /// 100 ± 20 ms in each direction and 0.5 % loss: the order of a path between continents. Chosen
    /// for this project, not measured.
    Wan,
    /// 80 ± 40 ms in each direction and 10 % loss (CALF).
    WifiDegraded,
    /// 30 ± 10 ms in each direction and 2 % loss (CALF).
    WifiNormal,
}

/// Why there are no conditions.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConditionsError {
    /// A recording and figures describe the same direction.
    #[error(
        "the table {table} has both `replay` and `{key}` for one direction: a recording says all \
         of it, so keep one of them"
    )]
    Conflict {
        /// Table with the key: `[there]`, `[back]`, or that of both.
        table: &'static str,
        /// Key beside `replay` that contradicts it.
        key: &'static str,
    },
    /// A recording has nothing about a direction.
    #[error(
        "the recording {} has no messages of the direction `{way}`: add lines `{way} MS` or \
         `{way} lost`, or replay it in the other direction only",
        path.display()
    )]
    Nothing {
        /// Path of the recording's file.
        path: PathBuf,
        /// Direction of which there are no messages.
        way: Way,
    },
    /// A recording could not be read.
    #[error("cannot read the recording {}: {error}", path.display())]
    Read {
        /// Path of the recording's file.
        path: PathBuf,
        /// The error that the operating system returned.
        error: io::Error,
    },
    /// A recording has a line that is none.
    #[error("{}:{}: {}", path.display(), error.line, error.fault)]
    Recording {
        /// Path of the recording's file.
        path: PathBuf,
        /// The line, and what is wrong with it.
        error: RecordingError,
    },
    /// There is no preset of this name.
    #[error("no preset is called `{name}`: there are {known}")]
    UnknownPreset {
        /// Name that was asked for.
        name: String,
        /// Names of the presets, the most similar one first.
        known: String,
    },
}

/// Defines the tables of a TOML file. The keys of a direction are also keys of both, and are listed
/// once here, as serde's `flatten` would lose the positions and the errors of unknown keys.
macro_rules! tables {
    ($($key:ident: $kind:ty,)*) => {
        /// The conditions of a TOML file, by themselves or as a table of a larger configuration.
        ///
        /// All keys are optional; without any, messages arrive at once.
        ///
        /// - `preset`: the name of a [`Preset`], which the other keys change.
        /// - `delay_ms`, `jitter_ms`: mean and standard deviation of the delay in ms, 0 to 60,000.
        /// - `loss`: a probability, or `{ to_bad, to_good, good = 0, bad = 1 }` for bursts
        ///   ([`Loss::GilbertElliott`]).
        /// - `replay`: a file of recorded delays and losses ([`super::recording`]) instead of the
        ///   three keys above. Its path is relative to the file that names it.
        /// - `there`, `back`: tables with any of the keys above, which hold for one direction and
        ///   precede those outside.
        /// - `retransmission_ms`: [`Conditions::retransmission`].
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct ConditionsTable {
            $(
                #[serde(skip_serializing_if = "Option::is_none")]
                $key: Option<$kind>,
            )*
            #[serde(skip_serializing_if = "Option::is_none")]
            retransmission_ms: Option<Millis>,
            #[serde(skip_serializing_if = "Option::is_none")]
            there: Option<OneWayTable>,
            #[serde(skip_serializing_if = "Option::is_none")]
            back: Option<OneWayTable>,
        }

        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        struct OneWayTable {
            $(
                #[serde(skip_serializing_if = "Option::is_none")]
                $key: Option<$kind>,
            )*
        }

        impl ConditionsTable {
            /// The keys outside `there` and `back`.
            fn both(&self) -> OneWayTable {
                OneWayTable { $($key: self.$key.clone(),)* }
            }
        }
    };
}

tables! {
    preset: Preset,
    delay_ms: Millis,
    jitter_ms: Millis,
    loss: Loss,
    replay: PathBuf,
}

impl Conditions {
    /// The channels of both ways with a source of chance each, which `seed` determines.
    pub fn channels<A, B>(&self, medium: Medium, seed: u64) -> (Channel<A>, Channel<B>) {
        let wait = self
            .retransmission
            .unwrap_or_else(|| (self.there.mean() + self.back.mean()).max(LEAST_RETRANSMISSION));
        (
            Channel::new(&self.there, medium, wait, seed::output(seed, 1)),
            Channel::new(&self.back, medium, wait, seed::output(seed, 2)),
        )
    }
}

impl From<Preset> for Conditions {
    fn from(preset: Preset) -> Self {
        let one_way = preset.one_way();
        Self {
            there: one_way.clone(),
            back: one_way,
            retransmission: None,
        }
    }
}

impl OneWay {
    /// Every message arrives at once.
    pub const PERFECT: Self = Self::Drawn {
        delay: Duration::ZERO,
        jitter: Duration::ZERO,
        loss: Loss::None,
    };

    /// Mean delay of the messages that arrive, as it is set for drawn ones; 0 where none does.
    fn mean(&self) -> Duration {
        match self {
            Self::Drawn { delay, .. } => *delay,
            Self::Replayed(fates) => {
                let arrived = fates.iter().flatten().count().max(1);
                let sum: f64 = fates.iter().flatten().map(|&delay| delay as f64).sum();
                Duration::from_nanos((sum / arrived as f64) as u64)
            }
        }
    }
}

impl Preset {
    /// All presets, in the order of their names.
    pub const ALL: [Self; 5] = [
        Self::Ethernet,
        Self::Fixed50,
        Self::Wan,
        Self::WifiDegraded,
        Self::WifiNormal,
    ];

    /// Mean delay, standard deviation of the delay, and loss in each direction.
    pub(super) fn figures(self) -> (Duration, Duration, Loss) {
        let (delay_us, jitter_us, loss) = match self {
            Self::Ethernet => (2_000, 500, Loss::None),
            Self::Fixed50 => (50_000, 0, Loss::None),
            Self::Wan => (100_000, 20_000, Loss::Bernoulli(0.005)),
            Self::WifiDegraded => (80_000, 40_000, Loss::Bernoulli(0.1)),
            Self::WifiNormal => (30_000, 10_000, Loss::Bernoulli(0.02)),
        };
        (
            Duration::from_micros(delay_us),
            Duration::from_micros(jitter_us),
            loss,
        )
    }

    fn one_way(self) -> OneWay {
        let (delay, jitter, loss) = self.figures();
        OneWay::Drawn {
            delay,
            jitter,
            loss,
        }
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ethernet => "ethernet",
            Self::Fixed50 => "fixed-50",
            Self::Wan => "wan",
            Self::WifiDegraded => "wifi-degraded",
            Self::WifiNormal => "wifi-normal",
        })
    }
}

impl FromStr for Preset {
    type Err = ConditionsError;

    fn from_str(name: &str) -> Result<Self, ConditionsError> {
        let mut known = Self::ALL.map(|preset| preset.to_string());
        if let Some(place) = known.iter().position(|one| one == name) {
            return Ok(Self::ALL[place]);
        }
        let unlike = |one: &String| -strsim::jaro_winkler(one, name);
        known.sort_by(|a, b| unlike(a).total_cmp(&unlike(b)));
        Err(ConditionsError::UnknownPreset {
            name: name.to_owned(),
            known: known.join(", "),
        })
    }
}

impl ConditionsTable {
    /// The conditions that the table describes. Recordings are read; their paths are relative to
    /// `folder`.
    ///
    /// # Errors
    ///
    /// Returns an error when keys contradict each other, or when a recording is of no use.
    pub fn conditions(&self, folder: &Path) -> Result<Conditions, ConditionsError> {
        let both = self.both();
        let one_way = |way| {
            let (name, own) = match way {
                Way::There => ("[there]", &self.there),
                Way::Back => ("[back]", &self.back),
            };
            let one_way = both.change(OneWay::PERFECT, "of both directions", way, folder)?;
            match own {
                Some(own) => own.change(one_way, name, way, folder),
                None => Ok(one_way),
            }
        };
        Ok(Conditions {
            there: one_way(Way::There)?,
            back: one_way(Way::Back)?,
            retransmission: self.retransmission_ms.map(Millis::duration),
        })
    }
}

impl From<Preset> for ConditionsTable {
    fn from(preset: Preset) -> Self {
        Self {
            preset: Some(preset),
            ..Self::default()
        }
    }
}

impl OneWayTable {
    /// Changes a direction's conditions as the table, which errors call `name`, says.
    fn change(
        &self,
        one_way: OneWay,
        name: &'static str,
        way: Way,
        folder: &Path,
    ) -> Result<OneWay, ConditionsError> {
        let keys = [
            ("preset", self.preset.is_some()),
            ("delay_ms", self.delay_ms.is_some()),
            ("jitter_ms", self.jitter_ms.is_some()),
            ("loss", self.loss.is_some()),
        ];
        let conflict = |first: usize| {
            let key = keys[first..].iter().find(|(_, is_set)| *is_set);
            key.map_or(Ok(()), |(key, _)| {
                Err(ConditionsError::Conflict { table: name, key })
            })
        };
        if let Some(file) = &self.replay {
            conflict(0)?;
            return replayed(&folder.join(file), way);
        }
        let base = self.preset.map_or(one_way, Preset::one_way);
        match base {
            OneWay::Drawn {
                delay,
                jitter,
                loss,
            } => Ok(OneWay::Drawn {
                delay: self.delay_ms.map_or(delay, Millis::duration),
                jitter: self.jitter_ms.map_or(jitter, Millis::duration),
                loss: self.loss.unwrap_or(loss),
            }),
            // A preset of this table has replaced any recording.
            OneWay::Replayed(_) => conflict(1).map(|()| base),
        }
    }
}

/// One direction of a recording.
fn replayed(path: &Path, way: Way) -> Result<OneWay, ConditionsError> {
    let text =
        regular_file::read_to_string(path, MAX_BYTES).map_err(|error| ConditionsError::Read {
            path: path.to_owned(),
            error,
        })?;
    let recording: Recording = text.parse().map_err(|error| ConditionsError::Recording {
        path: path.to_owned(),
        error,
    })?;
    match recording.way(way) {
        [] => Err(ConditionsError::Nothing {
            path: path.to_owned(),
            way,
        }),
        fates => Ok(OneWay::Replayed(fates.into())),
    }
}
