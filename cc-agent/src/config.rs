//! What `cc-agent run` is told: by the command line, by a TOML file, by a policy's own file.

use std::{fs, path::PathBuf, str::FromStr, time::Duration};

use cc_ebpf::{AckFilter, Startup};
use clap::Args;
use serde::{Deserialize, Deserializer, de::Error as _};

use crate::{
    deploy::{Canary, DeployError, Loaded, Loader},
    kernel,
    record::RecordOptions,
};
use cc_core::{
    action::ActionSpace,
    canary::GuardRails,
    interface::Interface,
    policy::{ActionSelection, PolicySpec},
    rows::{AddressKey, Addresses},
    status::default_socket,
};
use cc_recording::Limits;

/// Options of `cc-agent run`, each also a key of the file (with `_` for `-`); the command line wins.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunOptions {
    /// Policy that decides: `default` (embedded), a FILE.onnx, `fixed:N` (a window of N segments),
    /// `random` (any action), or `heuristic` (a rule set by hand).
    #[arg(long, value_name = "POLICY")]
    #[serde(deserialize_with = "text")]
    pub policy: Option<PolicySpec>,

    /// How a policy file's action is chosen: `greedy`, `softmax`, or `softmax:T` at temperature T [default: as the
    /// file asks].
    #[arg(long, value_name = "HOW")]
    #[serde(deserialize_with = "text")]
    pub serving: Option<ActionSelection>,

    /// Seed of every random choice.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Share of the new flows that the policy --candidate decides for, in percent: 0 to 100.
    #[arg(long, value_name = "PERCENT")]
    pub canary: Option<f64>,

    /// Policy on trial beside the current one, see --canary; withdrawn by itself when its flows fare worse.
    #[arg(long, value_name = "POLICY")]
    #[serde(deserialize_with = "text")]
    pub candidate: Option<PolicySpec>,

    /// Flows that each side of a trial needs before it may be concluded that the candidate is worse [default: 20].
    #[arg(long, value_name = "N")]
    pub canary_flows: Option<u64>,

    /// Name under which the congestion control is registered [default: rlcc].
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    /// Length of an observation window in ms; a policy file brings its own [default: 100].
    #[arg(long, value_name = "MS")]
    pub window_ms: Option<u32>,

    /// Action space, for example `0,/2,-10,+10,*2`; a policy file brings its own.
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    #[serde(deserialize_with = "text")]
    pub actions: Option<ActionSpace>,

    /// Past decisions in an observation; a policy file brings its own [default: 20].
    #[arg(long, value_name = "K")]
    pub history: Option<usize>,

    /// Smallest window that a decision may set, in segments [default: 2].
    #[arg(long, value_name = "N")]
    pub cwnd_min: Option<u32>,

    /// Largest window that anything may set, in segments; a policy file's own bound holds as well
    /// [default: 2000].
    #[arg(long, value_name = "N")]
    pub cwnd_max: Option<u32>,

    /// Pace at this multiple of cwnd / srtt; a policy file brings its own [default: unpaced].
    #[arg(long, value_name = "X")]
    pub pacing_gain: Option<f32>,

    /// Until a flow's first decision: `slow-start`, or `constant` at the initial window
    /// [default: slow-start].
    #[arg(long, value_name = "HOW")]
    #[serde(deserialize_with = "text")]
    pub startup: Option<StartupOption>,

    /// Flows fall back to Reno when the agent has been silent for this long, in ms [default: 1000].
    #[arg(long, value_name = "MS")]
    pub heartbeat_ms: Option<u32>,

    /// Flows that can be served at once; the surplus runs on the fallback [default: 16384].
    #[arg(long, value_name = "N")]
    pub slots: Option<u32>,

    /// Record single ACKs of `all` flows, of `slot:N`, of `port:N`, or of `one-in:N` flows
    /// [default: off].
    #[arg(long, value_name = "WHICH")]
    #[serde(deserialize_with = "text")]
    pub per_ack: Option<AckFilterOption>,

    /// Where recorded ACKs go, as CSV [default: acks.csv].
    #[arg(long, value_name = "FILE")]
    pub per_ack_file: Option<PathBuf>,

    /// Record every flow's windows and decisions as Parquet into this directory.
    #[arg(long, value_name = "DIR")]
    pub record: Option<PathBuf>,

    /// What recordings tell of addresses: `absent`, `hashed:KEYFILE` (equal ones are told from others by a hash under
    /// a key of 16 bytes or more), or `plain` [default: absent].
    #[arg(long, value_name = "HOW")]
    #[serde(deserialize_with = "text")]
    pub record_addresses: Option<AddressesOption>,

    /// Complete a recorded file at this size, in MB [default: 64].
    #[arg(long, value_name = "MB")]
    pub record_file_mb: Option<u64>,

    /// Complete a recorded file at this age, in s [default: 3600].
    #[arg(long, value_name = "SECS")]
    pub record_file_s: Option<u64>,

    /// Rows are on the disk after this time at the latest, in s; what a crash loses [default: 30].
    #[arg(long, value_name = "SECS")]
    pub record_delay_s: Option<u64>,

    /// Remove the oldest recordings in the directory beyond this, in MB [default: 10000].
    #[arg(long, value_name = "MB")]
    pub record_limit_mb: Option<u64>,

    /// Add this to the time of every inference, in ms: to study late decisions.
    #[arg(long, value_name = "MS")]
    pub added_delay_ms: Option<u64>,

    /// Niceness of the agent, -20 to 19: it needs little time, but needs it soon [default: -15].
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub nice: Option<i32>,

    /// Sockets of this cgroup v2 directory use the congestion control.
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<PathBuf>,

    /// Make it the host's default congestion control; what was the default is restored on exit.
    #[arg(long, num_args = 0..=1, default_missing_value = "true")]
    pub default: Option<bool>,

    /// Socket for `status` and `top` [default: /run/cc-agent/NAME.sock].
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// Stop after this many seconds [default: never].
    #[arg(long, value_name = "SECS")]
    pub duration: Option<f64>,

    /// Log lines instead of the live view, also on a terminal.
    #[arg(long, num_args = 0..=1, default_missing_value = "true")]
    pub plain: Option<bool>,
}

/// Everything decided, checked and loaded.
pub struct Settings {
    /// How the datapath is to run.
    pub datapath: kernel::Options,
    /// The policy, ready to decide.
    pub policy: Loaded,
    /// How the next policies are loaded.
    pub loader: Loader,
    /// What candidates must not breach.
    pub rails: GuardRails,
    /// A candidate to begin with.
    pub canary: Option<Canary>,
    /// What to record.
    pub record: Option<RecordOptions>,
    /// Added to every inference.
    pub added_delay: Duration,
    /// Niceness of the agent.
    pub niceness: i32,
    /// Where per-ACK records go, if there are any.
    pub per_ack_file: Option<PathBuf>,
    /// Whether to become the host's default.
    pub default: bool,
    /// The status socket.
    pub socket: PathBuf,
    /// When to stop.
    pub duration: Option<Duration>,
    /// Whether to keep off the terminal.
    pub plain: bool,
}

/// Why options do not make an agent.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The configuration file cannot be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The configuration file is wrong.
    #[error("{path}: {source}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: Box<toml::de::Error>,
    },
    /// The policy cannot be used.
    #[error(transparent)]
    Policy(#[from] DeployError),
    /// An option contradicts the policy file.
    #[error(
        "{option} {asked} does not fit the policy {policy}, which was made for {has}: leave the option out, or use another policy"
    )]
    Contradiction {
        /// The option.
        option: &'static str,
        /// Its value.
        asked: String,
        /// The policy.
        policy: PolicySpec,
        /// The value in the policy's file.
        has: String,
    },
    /// An option is out of range.
    #[error("{option} {found}: expected {expected}")]
    Range {
        /// The option.
        option: &'static str,
        /// Its value.
        found: String,
        /// What would do.
        expected: String,
    },
    /// The name cannot be a congestion control's.
    #[error(transparent)]
    Name(kernel::Error),
}

impl RunOptions {
    /// Reads a TOML file.
    pub fn read(path: &PathBuf) -> Result<Self, ConfigError> {
        let text = fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.clone(),
            source,
        })?;
        toml::from_str(&text).map_err(|source| ConfigError::Parse {
            path: path.clone(),
            source: Box::new(source),
        })
    }

    /// These options, with `other`'s where there are none.
    pub fn or(self, other: Self) -> Self {
        Self {
            policy: self.policy.or(other.policy),
            serving: self.serving.or(other.serving),
            seed: self.seed.or(other.seed),
            canary: self.canary.or(other.canary),
            candidate: self.candidate.or(other.candidate),
            canary_flows: self.canary_flows.or(other.canary_flows),
            name: self.name.or(other.name),
            window_ms: self.window_ms.or(other.window_ms),
            actions: self.actions.or(other.actions),
            history: self.history.or(other.history),
            cwnd_min: self.cwnd_min.or(other.cwnd_min),
            cwnd_max: self.cwnd_max.or(other.cwnd_max),
            pacing_gain: self.pacing_gain.or(other.pacing_gain),
            startup: self.startup.or(other.startup),
            heartbeat_ms: self.heartbeat_ms.or(other.heartbeat_ms),
            slots: self.slots.or(other.slots),
            per_ack: self.per_ack.or(other.per_ack),
            per_ack_file: self.per_ack_file.or(other.per_ack_file),
            record: self.record.or(other.record),
            record_addresses: self.record_addresses.or(other.record_addresses),
            record_file_mb: self.record_file_mb.or(other.record_file_mb),
            record_file_s: self.record_file_s.or(other.record_file_s),
            record_delay_s: self.record_delay_s.or(other.record_delay_s),
            record_limit_mb: self.record_limit_mb.or(other.record_limit_mb),
            added_delay_ms: self.added_delay_ms.or(other.added_delay_ms),
            nice: self.nice.or(other.nice),
            cgroup: self.cgroup.or(other.cgroup),
            default: self.default.or(other.default),
            socket: self.socket.or(other.socket),
            duration: self.duration.or(other.duration),
            plain: self.plain.or(other.plain),
        }
    }

    /// Checks everything and loads the policy. Touches nothing of the kernel.
    pub fn resolve(self) -> Result<Settings, ConfigError> {
        let name = self.name.clone().unwrap_or_else(|| "rlcc".into());
        kernel::datapath::check_name(&name).map_err(ConfigError::Name)?;
        let heartbeat_ms = self.heartbeat_ms.unwrap_or(1_000);
        within("--heartbeat-ms", u64::from(heartbeat_ms), 20, 60_000)?;
        let slots = self.slots.unwrap_or(16_384);
        within("--slots", u64::from(slots), 1, 1 << 20)?;
        let niceness = self.nice.unwrap_or(-15);
        if !(-20..=19).contains(&niceness) {
            return Err(out_of_range("--nice", niceness, "-20 to 19"));
        }
        if let Some(duration) = self.duration
            && !(duration.is_finite() && (0.0..=1e9).contains(&duration))
        {
            return Err(out_of_range(
                "--duration",
                duration,
                "a number of seconds, 0 or more",
            ));
        }

        let spec = self.policy.clone().unwrap_or_default();
        let loader = Loader {
            interface: self.interface(),
            serving: self.serving,
            seed: self.seed.unwrap_or(0),
        };
        let policy = loader.load(&spec)?;
        let interface = policy.policy.interface().clone();
        self.check_against(&spec, &interface)?;
        let cwnd_max = self
            .cwnd_max
            .unwrap_or(interface.cwnd.max)
            .min(interface.cwnd.max);
        if let PolicySpec::Fixed(cwnd) = spec
            && !(interface.cwnd.min..=cwnd_max).contains(&cwnd)
        {
            let expected = format!(
                "a window within --cwnd-min {} and --cwnd-max {cwnd_max}",
                interface.cwnd.min
            );
            return Err(out_of_range("--policy", &spec, expected));
        }
        let rails = self.rails()?;
        let canary = self.canary(&loader, rails, &interface)?;
        let ack_filter = self
            .per_ack
            .clone()
            .map_or(AckFilter::Off, |option| option.0);
        let startup = self.startup.clone();
        let datapath = cc_ebpf::Settings {
            heartbeat_limit_ns: u64::from(heartbeat_ms) * 1_000_000,
            cwnd_max,
            ..interface.datapath_settings()
        }
        .with_startup(startup.map_or(Startup::SlowStart, |option| option.0))
        .with_ack_filter(ack_filter);
        Ok(Settings {
            datapath: kernel::Options {
                slots,
                settings: datapath,
                cgroup: self.cgroup.clone(),
                name: name.clone(),
            },
            record: self.recording()?,
            policy,
            loader,
            rails,
            canary,
            added_delay: Duration::from_millis(self.added_delay_ms.unwrap_or(0)),
            niceness,
            per_ack_file: (ack_filter != AckFilter::Off)
                .then(|| self.per_ack_file.unwrap_or_else(|| "acks.csv".into())),
            default: self.default.unwrap_or(false),
            socket: self.socket.unwrap_or_else(|| default_socket(&name)),
            duration: self.duration.map(Duration::from_secs_f64),
            plain: self.plain.unwrap_or(false),
        })
    }

    /// What candidates must not breach.
    fn rails(&self) -> Result<GuardRails, ConfigError> {
        let mut rails = GuardRails::default();
        if let Some(flows) = self.canary_flows {
            within("--canary-flows", flows, 2, 1_000_000)?;
            rails.flows = flows;
        }
        Ok(rails)
    }

    /// A candidate to begin with.
    fn canary(
        &self,
        loader: &Loader,
        rails: GuardRails,
        running: &Interface,
    ) -> Result<Option<Canary>, ConfigError> {
        let (percent, spec) = match (self.canary, &self.candidate) {
            (None, None) => return Ok(None),
            (Some(percent), Some(spec)) => (percent, spec),
            (Some(percent), None) => {
                return Err(out_of_range("--canary", percent, "also --candidate POLICY"));
            }
            (None, Some(spec)) => {
                return Err(out_of_range("--candidate", spec, "also --canary PERCENT"));
            }
        };
        if !(0.0..=100.0).contains(&percent) {
            return Err(out_of_range("--canary", percent, "0 to 100 percent"));
        }
        Ok(Some(Canary {
            candidate: loader.load_beside(spec, running)?,
            percent,
            rails,
        }))
    }

    /// What to record.
    fn recording(&self) -> Result<Option<RecordOptions>, ConfigError> {
        const MB: u64 = 1_000_000;
        let file_mb = self.record_file_mb.unwrap_or(64);
        within("--record-file-mb", file_mb, 1, 100_000)?;
        let file_s = self.record_file_s.unwrap_or(3_600);
        within("--record-file-s", file_s, 1, 1_000_000)?;
        let delay_s = self.record_delay_s.unwrap_or(30);
        within("--record-delay-s", delay_s, 1, 3_600)?;
        let limit_mb = self.record_limit_mb.unwrap_or(10_000);
        // Room for the file being written beside a complete one.
        within("--record-limit-mb", limit_mb, 2 * file_mb, 1_000_000_000)?;
        let addresses = match self.record_addresses.clone().unwrap_or_default() {
            AddressesOption::Absent => Addresses::Absent,
            AddressesOption::Plain => Addresses::Plain,
            AddressesOption::Hashed(path) => Addresses::Hashed(read_key(&path)?),
        };
        Ok(self.record.clone().map(|directory| RecordOptions {
            limits: Limits {
                directory,
                file_bytes: file_mb * MB,
                file_age: Duration::from_secs(file_s),
                group_age: Duration::from_secs(delay_s),
                total_bytes: limit_mb * MB,
            },
            addresses,
        }))
    }

    /// The environment that policies without a file of their own work in.
    fn interface(&self) -> Interface {
        let mut interface = Interface::default();
        let defaults = interface.cwnd;
        interface.window_ms = self.window_ms.unwrap_or(interface.window_ms);
        interface.history = self.history.unwrap_or(interface.history);
        interface.cwnd.min = self.cwnd_min.unwrap_or(defaults.min);
        interface.cwnd.max = self.cwnd_max.unwrap_or(defaults.max);
        interface.pacing_gain = self.pacing_gain;
        if let Some(actions) = &self.actions {
            interface.actions = actions.clone();
        }
        interface
    }

    /// Refuses options that a policy's file has other values for.
    fn check_against(&self, spec: &PolicySpec, has: &Interface) -> Result<(), ConfigError> {
        let contradiction = |option, asked: String, has: String| ConfigError::Contradiction {
            option,
            asked,
            policy: spec.clone(),
            has,
        };
        fn differ<T: PartialEq + ToString>(asked: &Option<T>, has: &T) -> Option<(String, String)> {
            let asked = asked.as_ref().filter(|asked| *asked != has)?;
            Some((asked.to_string(), has.to_string()))
        }
        let pairs = [
            ("--window-ms", differ(&self.window_ms, &has.window_ms)),
            ("--history", differ(&self.history, &has.history)),
            ("--actions", differ(&self.actions, &has.actions)),
            ("--cwnd-min", differ(&self.cwnd_min, &has.cwnd.min)),
            (
                "--pacing-gain",
                differ(&self.pacing_gain, &has.pacing_gain.unwrap_or(0.0)),
            ),
        ];
        match pairs
            .into_iter()
            .find_map(|(option, pair)| Some((option, pair?)))
        {
            Some((option, (asked, has))) => Err(contradiction(option, asked, has)),
            None => Ok(()),
        }
    }
}

fn read_key(path: &PathBuf) -> Result<AddressKey, ConfigError> {
    let text = fs::read(path).map_err(|source| ConfigError::Read {
        path: path.clone(),
        source,
    })?;
    AddressKey::new(text.trim_ascii_end()).ok_or_else(|| {
        let expected = format!("a file of at least {} bytes", AddressKey::SHORTEST);
        let found = format!("hashed:{}", path.display());
        out_of_range("--record-addresses", found, expected)
    })
}

fn within(option: &'static str, found: u64, least: u64, most: u64) -> Result<(), ConfigError> {
    if (least..=most).contains(&found) {
        Ok(())
    } else {
        Err(out_of_range(option, found, format!("{least} to {most}")))
    }
}

fn out_of_range(
    option: &'static str,
    found: impl ToString,
    expected: impl Into<String>,
) -> ConfigError {
    ConfigError::Range {
        option,
        found: found.to_string(),
        expected: expected.into(),
    }
}

/// [`Startup`] as an option.
#[derive(Clone, Debug, PartialEq)]
pub struct StartupOption(pub Startup);

impl FromStr for StartupOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "slow-start" => Ok(Self(Startup::SlowStart)),
            "constant" => Ok(Self(Startup::Constant)),
            _ => Err(format!("`{text}`: expected `slow-start` or `constant`")),
        }
    }
}

/// [`AckFilter`] as an option.
#[derive(Clone, Debug, PartialEq)]
pub struct AckFilterOption(pub AckFilter);

impl FromStr for AckFilterOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let filter = match text.split_once(':') {
            None if text == "off" => Some(AckFilter::Off),
            None if text == "all" => Some(AckFilter::All),
            Some(("slot", slot)) => slot.parse().ok().map(AckFilter::Slot),
            Some(("port", port)) => port.parse().ok().map(AckFilter::Port),
            Some(("one-in", n)) => n.parse().ok().filter(|n| *n > 0).map(AckFilter::OneIn),
            _ => None,
        };
        filter.map(Self).ok_or_else(|| {
            format!("`{text}`: expected `off`, `all`, `slot:N`, `port:N`, or `one-in:N`")
        })
    }
}

/// [`Addresses`] as an option, the key still in its file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AddressesOption {
    /// `absent`.
    #[default]
    Absent,
    /// `hashed:KEYFILE`.
    Hashed(PathBuf),
    /// `plain`.
    Plain,
}

impl FromStr for AddressesOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "absent" => Ok(Self::Absent),
            None if text == "plain" => Ok(Self::Plain),
            Some(("hashed", file)) if !file.is_empty() => Ok(Self::Hashed(file.into())),
            _ => Err(format!(
                "`{text}`: expected `absent`, `hashed:KEYFILE`, or `plain`"
            )),
        }
    }
}

/// A value that the file writes as the command line does.
fn text<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr,
    T::Err: std::fmt::Display,
{
    let text = String::deserialize(deserializer)?;
    text.parse().map(Some).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(toml: &str) -> Result<Settings, String> {
        let options: RunOptions = toml::from_str(toml).map_err(|error| error.to_string())?;
        options.resolve().map_err(|error| error.to_string())
    }

    #[test]
    fn nothing_is_the_default_policy_as_rlcc() {
        let settings = resolve("").expect("defaults are valid");
        assert_eq!(settings.datapath.name, "rlcc");
        assert_eq!(settings.datapath.settings.window_ns, 100_000_000);
        assert_eq!(
            settings.datapath.settings.ack_filter,
            AckFilter::Off.encode().0
        );
        assert_eq!(settings.per_ack_file, None);
        assert!(settings.record.is_none());
        assert_eq!(settings.policy.name.len(), 64, "a SHA-256");
        assert!(settings.policy.text.starts_with("default: "));
    }

    #[test]
    fn the_command_line_wins_over_the_file() {
        let file: RunOptions = toml::from_str("policy = 'fixed:7'\nslots = 12").expect("valid");
        let line = RunOptions {
            slots: Some(99),
            ..RunOptions::default()
        };
        let settings = line.or(file).resolve().expect("valid");
        assert_eq!(settings.datapath.slots, 99);
        assert_eq!(settings.policy.text, "fixed:7");
    }

    #[test]
    fn every_option_has_a_key() {
        let settings = resolve(
            "policy = 'random'\nserving = 'softmax:0.5'\nseed = 3\nname = 'x'\nwindow_ms = 50\n\
             actions = '0,*2'\nhistory = 0\ncwnd_min = 4\ncwnd_max = 50\npacing_gain = 1.5\n\
             startup = 'constant'\nheartbeat_ms = 500\nslots = 5\nper_ack = 'port:80'\n\
             per_ack_file = 'f'\nadded_delay_ms = 25\nnice = 3\ncgroup = '/c'\ndefault = true\nsocket = 's'\n\
             duration = 2.5\nplain = true\ncanary = 12.5\ncandidate = 'fixed:9'\ncanary_flows = 4\nrecord = 'r'\nrecord_addresses = 'plain'\n\
             record_file_mb = 3\nrecord_file_s = 4\nrecord_delay_s = 5\nrecord_limit_mb = 6\n",
        )
        .expect("valid");
        assert_eq!(
            settings.datapath,
            kernel::Options {
                name: "x".into(),
                slots: 5,
                settings: cc_ebpf::Settings {
                    window_ns: 50_000_000,
                    heartbeat_limit_ns: 500_000_000,
                    min_rtt_window_ns: 10_000_000_000,
                    cwnd_min: 4,
                    cwnd_max: 50,
                    ..cc_ebpf::Settings::default()
                }
                .with_startup(Startup::Constant)
                .with_pacing_gain(Some(1.5))
                .with_ack_filter(AckFilter::Port(80)),
                cgroup: Some("/c".into()),
            }
        );
        assert_eq!(settings.added_delay, Duration::from_millis(25));
        assert_eq!(settings.niceness, 3);
        assert_eq!(settings.duration, Some(Duration::from_millis(2500)));
        assert_eq!(settings.per_ack_file, Some("f".into()));
        assert!(settings.default && settings.plain);
        let canary = settings.canary.expect("a candidate");
        assert_eq!((canary.percent, canary.rails.flows), (12.5, 4));
        assert_eq!(canary.candidate.text, "fixed:9");
        let record = settings.record.expect("a recording");
        assert!(matches!(record.addresses, Addresses::Plain));
        let limits = Limits {
            directory: "r".into(),
            file_bytes: 3_000_000,
            file_age: Duration::from_secs(4),
            group_age: Duration::from_secs(5),
            total_bytes: 6_000_000,
        };
        assert_eq!(record.limits, limits);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (toml, expected) in [
            ("polciy = 'random'", "unknown field `polciy`"),
            ("policy = 'nonsense'", "no policy is called `nonsense`"),
            ("policy = 'random'\nactions = '0,/0'", "/0"),
            ("name = 'far_too_long_a_name'", "1 to 15 characters"),
            ("slots = 0", "--slots 0: expected 1 to"),
            ("heartbeat_ms = 1", "--heartbeat-ms 1: expected"),
            (
                "window_ms = 50",
                "--window-ms 50 does not fit the policy default",
            ),
            ("actions = '0,*2'", "--actions 0,*2 does not fit"),
            ("pacing_gain = 2.0", "--pacing-gain 2 does not fit"),
            ("policy = 'fixed:5000'", "--cwnd-max 2000"),
            ("policy = 'random'\nwindow_ms = 0", "window_ms is 0"),
            ("serving = 'softmax:0'", "`softmax:0`: expected"),
            ("per_ack = 'one-in:0'", "`one-in:0`: expected"),
            ("nice = 20", "--nice 20: expected -20 to 19"),
            ("startup = 'fast'", "`fast`: expected"),
            ("duration = -1.0", "--duration -1"),
            ("record_addresses = 'some'", "`some`: expected `absent`"),
            ("record_addresses = 'hashed:/no/such'", "/no/such: "),
            (
                "record_addresses = 'hashed:/dev/null'",
                "--record-addresses hashed:/dev/null: expected a file of at least 16",
            ),
            (
                "record_limit_mb = 100",
                "--record-limit-mb 100: expected 128",
            ),
            ("canary = 10.0", "--canary 10: expected also --candidate"),
            (
                "candidate = 'random'",
                "--candidate random: expected also --canary",
            ),
            (
                "candidate = 'random'\ncanary = 101.0",
                "--canary 101: expected 0 to 100",
            ),
            (
                "policy = 'random'\nwindow_ms = 50\ncandidate = 'default'\ncanary = 1.0",
                "policy default was made for window_ms 100, but the running agent has 50",
            ),
            ("record_file_mb = 0", "--record-file-mb 0: expected"),
        ] {
            let error = resolve(toml).err().expect(toml);
            assert!(error.contains(expected), "{toml}: {error}");
        }
    }
}
