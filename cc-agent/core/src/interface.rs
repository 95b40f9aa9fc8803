//! The settings that a policy was trained for and that its file carries.
//!
//! Agent and trainer read everything that shapes observation, action and reward from here, so that
//! a policy is served exactly as it was trained.

use cc_ebpf::{FEATURES, FEATURES_VERSION, Feature, Fraction, Settings, WindowRecord};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    action::{ActionSpace, CwndBounds},
    objective::Objective,
};

/// The statistics of each feature over a window: sum, mean, standard deviation, minimum, maximum.
pub const STATISTICS: usize = 5;

/// Defines a policy's observations, actions and rewards, and the datapath that it was trained with.
///
/// `Default` is the setting of the mvfst-rl paper (arXiv 1910.04054) with the later reward of its
/// authors. Fields that a configuration file leaves out take these defaults; a policy file must
/// state every field but the objective and those that are not written where they are off or 0.
///
/// ```
/// use cc_core::interface::Interface;
///
/// let interface = Interface { history: 3, ..Interface::default() };
/// // Five statistics of 20 features, then three times five actions and a cwnd.
/// assert_eq!(interface.observation_len(), 5 * 20 + 3 * (5 + 1));
/// assert!(interface.validate().is_ok());
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Interface {
    /// The version of what is observed of a window, from 1 to [`FEATURES_VERSION`]. Version 2 adds
    /// two [`Fraction`]s of the window to the statistics of the features.
    pub features_version: u32,
    /// Length of an observation window in milliseconds: the time between decisions.
    pub window_ms: u32,
    /// Number k of past decisions in the observation; may be 0.
    pub history: usize,
    /// Number of the last windows that the observation compares with all of the flow's: the
    /// [`Aspect`]s of its situation. 0 leaves them out, as do files from before there were any.
    #[serde(skip_serializing_if = "is_zero")]
    pub situation: usize,
    /// Whether the situation compares with what all flows between the same hosts know, and not only
    /// with the flow's own past: with the least RTT that they had lately, and with a largest rate
    /// that is shared among as many flows as they are. [`crate::rows::Row::path`] records it. Files
    /// without this field, all of those from before it, compare with the flow's own.
    #[serde(skip_serializing_if = "is_off")]
    pub shared_path: bool,
    /// Number of windows in which the largest rate that [`Aspect::Slowdown`] compares with falls by
    /// a factor of e, down to the recent rate. 0 never lets it fall, as do files from before there
    /// was such a number.
    #[serde(skip_serializing_if = "is_zero")]
    pub rate_memory: usize,
    /// Number of windows in which the regression of the RTT on the cwnd forgets by a factor of e:
    /// [`Aspect::Response`] and [`Aspect::Swing`], which are observed with the situation. 0 leaves
    /// them out, as do files from before there were any.
    #[serde(skip_serializing_if = "is_zero")]
    pub response: usize,
    /// Number of windows in which the regression of the RTT's changes on the cwnd's forgets by a
    /// factor of e: [`Aspect::ChangeResponse`] and [`Aspect::ChangeSwing`], which are observed with
    /// the response. 0 leaves them out, as do files from before there were any.
    #[serde(skip_serializing_if = "is_zero")]
    pub changes: usize,
    /// Number of windows whose [`Quantity`]s the observation ends with, as time series: the last
    /// ones, the observed window included. 0 leaves the series out, as do files from before there
    /// were any.
    #[serde(skip_serializing_if = "is_zero")]
    pub series: usize,
    /// The actions that the policy chooses from.
    pub actions: ActionSpace,
    /// The range in segments that decided cwnds are clamped to.
    pub cwnd: CwndBounds,
    /// Whether actions are masked that would lead to the same cwnd as an earlier one, at the bounds
    /// and where the cwnd is small: they are never chosen. Files without this field, all of those
    /// from before there were masks, have none.
    #[serde(skip_serializing_if = "is_off")]
    pub mask_actions: bool,
    /// Whether slow start is the datapath's until it has found a limit of the path, a queue or a
    /// loss: the policy is asked about windows from then on, and a queue is
    /// [drained](Settings::drains_slow_start) first. Files without this field decide from the first
    /// window on, and so end slow start.
    #[serde(skip_serializing_if = "is_off")]
    pub after_slow_start: bool,
    /// The divisors of raw features.
    pub scales: Scales,
    /// The settings of the reward function, whose value is an input of the policy's network.
    pub reward: RewardSettings,
    /// What the policy was trained for, in quantities that a host observes. `None` in policy files
    /// and recordings of before there were objectives; [`Self::objective`] has what takes its
    /// place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objective: Option<Objective>,
    /// Pacing rate as a multiple of cwnd / RTT; `None` leaves the flow unpaced.
    pub pacing_gain: Option<f32>,
    /// Length in seconds of the windowed minimum RTT, on which the features `RTT_MIN` and `DELAY`
    /// rest.
    pub min_rtt_window_s: u32,
}

impl Interface {
    /// The length of an observation: 5 statistics of 20 features and the
    /// [fractions](Self::fractions) of the window, then the [aspects](Self::aspects) of the flow's
    /// situation, then for each of the k past decisions its action (one-hot) and the cwnd that it
    /// led to, then the [series](Self::series).
    pub fn observation_len(&self) -> usize {
        self.series_offset() + self.series * Quantity::ALL.len()
    }

    /// The index in the observation at which the first series begins. Each has [`Self::series`]
    /// values, and they are in the order of [`Quantity::ALL`].
    pub fn series_offset(&self) -> usize {
        self.history_offset() + self.history * self.history_stride()
    }

    /// The index in the observation at which the oldest past decision begins.
    pub fn history_offset(&self) -> usize {
        self.situation_offset() + self.aspects().len()
    }

    /// The index in the observation at which the [aspects](Self::aspects) begin.
    pub fn situation_offset(&self) -> usize {
        STATISTICS * FEATURES + self.fractions().len()
    }

    /// The fractions of the window that an observation has after the statistics: none in version 1
    /// of the features, and all of them in version 2.
    pub fn fractions(&self) -> &'static [Fraction] {
        match self.features_version {
            ..=1 => &[],
            _ => &Fraction::ALL,
        }
    }

    /// The aspects of a flow's situation that an observation has after the fractions: none without
    /// [`situation`](Self::situation), those of a [`response`](Self::response) and of
    /// [`changes`](Self::changes) only with it.
    pub fn aspects(&self) -> &'static [Aspect] {
        let aspects = match (self.situation, self.response, self.changes) {
            (0, _, _) => 0,
            (_, 0, _) => Aspect::COMPARISONS,
            (_, _, 0) => Aspect::COMPARISONS + Aspect::OF_RESPONSE,
            _ => Aspect::ALL.len(),
        };
        Aspect::ALL.split_at(aspects).0
    }

    /// The length of one past decision in the observation: |A| + 1.
    pub fn history_stride(&self) -> usize {
        self.actions.len() + 1
    }

    /// The index in the observation at which the one-hot action of the `j`-th newest past decision
    /// begins, `j` from 1 to `history`. The cwnd that it led to follows.
    ///
    /// # Panics
    ///
    /// Panics in debug builds if `j` is larger than `history`.
    pub fn past_action(&self, j: usize) -> usize {
        self.history_offset() + (self.history - j) * self.history_stride()
    }

    /// Why the policy is not asked about a window; `None` where it is.
    pub fn unasked(&self, window: &WindowRecord) -> Option<Unasked> {
        if window.is_application_limited() {
            return Some(Unasked::ApplicationLimited);
        }
        (self.after_slow_start && window.slow_start != 0).then_some(Unasked::SlowStart)
    }

    /// Writes which actions may be chosen where the cwnd is `cwnd` segments: `[A]`, of which the
    /// first is always allowed. Without [`mask_actions`](Self::mask_actions) it writes nothing,
    /// which stands for all of them.
    ///
    /// Agent, simulator and trainer all call this function. A recording has what it needs, the
    /// interface and the cwnd that each action was applied to, so that whoever reads a recording
    /// calls it too.
    ///
    /// ```
    /// use cc_core::interface::Interface;
    ///
    /// let interface = Interface { mask_actions: true, ..Interface::default() };
    /// let mut allowed = Vec::new();
    /// interface.allowed(interface.cwnd.min, &mut allowed);
    /// assert_eq!(allowed, [true, false, false, true, true], "`0`, `/2` and `-10` all keep 2");
    /// ```
    pub fn allowed(&self, cwnd: u32, into: &mut Vec<bool>) {
        match self.mask_actions {
            true => self.actions.distinct(cwnd, self.cwnd, into),
            false => into.clear(),
        }
    }

    /// The objective that recordings, estimates and canaries judge the policy by: the one that is
    /// stated, or else one [derived](Objective::derived) from the reward.
    pub fn objective(&self) -> Objective {
        self.objective
            .unwrap_or_else(|| Objective::derived(&self.reward))
    }

    /// The datapath's settings for policies of this interface: window length, minimum-RTT filter,
    /// cwnd bounds and pacing. All others are as in [`Settings::default`]: the heartbeat never
    /// times out, and flows begin with slow start.
    pub fn datapath_settings(&self) -> Settings {
        Settings {
            window_ns: u64::from(self.window_ms) * 1_000_000,
            min_rtt_window_ns: u64::from(self.min_rtt_window_s) * 1_000_000_000,
            cwnd_min: self.cwnd.min,
            cwnd_max: self.cwnd.max,
            drains_slow_start: self.after_slow_start.into(),
            ..Settings::default()
        }
        .with_pacing_gain(self.pacing_gain)
    }

    /// Checks that every setting is within its range.
    ///
    /// # Errors
    ///
    /// Returns an error that names the first setting out of range, its value and its range.
    pub fn validate(&self) -> Result<(), InterfaceError> {
        let check = |ok: bool, field, found: String, expected| {
            if ok {
                Ok(())
            } else {
                Err(InterfaceError::Setting {
                    field,
                    found,
                    expected,
                })
            }
        };
        let (scales, reward) = (&self.scales, &self.reward);
        if !(1..=FEATURES_VERSION).contains(&self.features_version) {
            return Err(InterfaceError::FeaturesVersion {
                found: self.features_version,
            });
        }
        check(
            (1..=10_000).contains(&self.window_ms),
            "window_ms",
            self.window_ms.to_string(),
            "1 to 10000 milliseconds",
        )?;
        check(
            self.history <= 1_000,
            "history",
            self.history.to_string(),
            "0 to 1000 past decisions",
        )?;
        check(
            self.situation <= 1_000,
            "situation",
            self.situation.to_string(),
            "0 to 1000 windows",
        )?;
        check(
            !self.shared_path || self.situation > 0,
            "shared_path",
            self.shared_path.to_string(),
            "false without a situation",
        )?;
        check(
            self.rate_memory <= 100_000 && (self.rate_memory == 0 || self.situation > 0),
            "rate_memory",
            self.rate_memory.to_string(),
            "0 to 100000 windows, and 0 without a situation",
        )?;
        check(
            self.response <= 1_000 && (self.response == 0 || self.situation > 0),
            "response",
            self.response.to_string(),
            "0 to 1000 windows, and 0 without a situation",
        )?;
        check(
            self.changes <= 1_000 && (self.changes == 0 || self.response > 0),
            "changes",
            self.changes.to_string(),
            "0 to 1000 windows, and 0 without a response",
        )?;
        check(
            self.series <= 1_000,
            "series",
            self.series.to_string(),
            "0 to 1000 windows",
        )?;
        check(
            self.cwnd.min >= 1,
            "cwnd.min",
            self.cwnd.min.to_string(),
            "at least 1 segment",
        )?;
        check(
            (self.cwnd.min..=1_000_000).contains(&self.cwnd.max),
            "cwnd.max",
            self.cwnd.max.to_string(),
            "at least cwnd.min and at most 1000000 segments",
        )?;
        for (field, scale) in [
            ("scales.time_ms", scales.time_ms),
            ("scales.bytes", scales.bytes),
        ] {
            check(
                scale.is_finite() && scale > 0.0,
                field,
                scale.to_string(),
                "a positive finite number",
            )?;
        }
        for (field, factor) in [
            ("reward.throughput_factor", reward.throughput_factor),
            ("reward.delay_factor", reward.delay_factor),
            ("reward.loss_factor", reward.loss_factor),
        ] {
            check(
                factor.is_finite(),
                field,
                factor.to_string(),
                "a finite number",
            )?;
        }
        for (field, offset) in [
            ("reward.throughput_offset", reward.throughput_offset),
            ("reward.delay_offset", reward.delay_offset),
            ("reward.loss_offset", reward.loss_offset),
        ] {
            // The logarithm of a quantity that may be zero needs a positive offset.
            check(
                offset.is_finite() && (reward.kind == RewardKind::Linear || offset > 0.0),
                field,
                offset.to_string(),
                "a finite number, positive where reward.kind is \"log\"",
            )?;
        }
        if let Some((field, found, expected)) =
            self.objective.as_ref().and_then(Objective::wrong_setting)
        {
            check(false, field, found.to_string(), expected)?;
        }
        check(
            self.pacing_gain
                .is_none_or(|gain| (0.75..=4.0).contains(&gain)),
            "pacing_gain",
            self.pacing_gain
                .map_or_else(String::new, |gain| gain.to_string()),
            "nothing (unpaced), or 0.75 to 4: below, a flow never fills its cwnd",
        )?;
        check(
            (1..=1_000_000).contains(&self.min_rtt_window_s),
            "min_rtt_window_s",
            self.min_rtt_window_s.to_string(),
            "1 to 1000000 seconds",
        )
    }
}

impl Default for Interface {
    fn default() -> Self {
        Self {
            features_version: 1,
            window_ms: 100,
            history: 20,
            situation: 0,
            shared_path: false,
            rate_memory: 0,
            response: 0,
            changes: 0,
            series: 0,
            actions: ActionSpace::default(),
            cwnd: CwndBounds { min: 2, max: 2000 },
            mask_actions: false,
            after_slow_start: false,
            scales: Scales::default(),
            reward: RewardSettings::default(),
            objective: None,
            pacing_gain: None,
            min_rtt_window_s: 10,
        }
    }
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// Why a policy is not asked about a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unasked {
    /// The application limited the flow, so that the window says nothing about the path.
    ApplicationLimited,
    /// Slow start goes on ([`Interface::after_slow_start`]).
    SlowStart,
}

impl Unasked {
    /// The reason in words, as `cc-agent trace` writes it beside a window without a decision.
    pub fn reason(self) -> &'static str {
        match self {
            Self::ApplicationLimited => "limited by the application",
            Self::SlowStart => "in slow start",
        }
    }
}

/// An aspect of a flow's situation: a comparison of its recent windows, [`Interface::situation`] of
/// them, with all since it began. Logarithms of ratios; 0 where there is nothing to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aspect {
    /// ln of the least recent RTT over the least of all: the queue that has not been empty lately.
    /// A neighbour that fills the buffer keeps it above 0 (Copa's detector, NSDI 2018, section
    /// 2.2).
    Floor,
    /// ln of the largest recent RTT over the least of all.
    Ceiling,
    /// ln of the largest RTT of all over the least of all: how deep the buffer was seen to be.
    Depth,
    /// ln of the filtered minimum RTT ([`Feature::RttMin`]) over the least of all: what the filter
    /// has forgotten, because the path became longer or its queue has not been empty for as long.
    Drift,
    /// ln of the largest rate of acknowledged bytes that as many windows in succession had, as far
    /// as it is [remembered](Interface::rate_memory), over the recent one.
    Slowdown,
    /// The lost part of the bytes that were lost and acknowledged in the recent windows, 0 to 1.
    Loss,
    /// ln of 1 plus the number of windows since one with a loss.
    WithoutLoss,
    /// d ln RTT / d ln cwnd, −1 to 2, by a regression over the last windows: 1 where the flow's own
    /// packets are the queue, its part of what is in flight among others, and 0 where there is no
    /// queue or a neighbour makes room for each packet of the flow.
    Response,
    /// The standard deviation of ln cwnd in the same windows, at most 2: how much
    /// [`Self::Response`] rests on.
    Swing,
    /// d ln RTT / d ln cwnd, −1 to 2, by a regression over the changes of both within a round trip:
    /// a rate that falls, which turns [`Self::Response`] for seconds, is in few of them.
    ChangeResponse,
    /// The root of the mean square of these changes of ln cwnd, at most 2: how much
    /// [`Self::ChangeResponse`] rests on.
    ChangeSwing,
}

impl Aspect {
    /// Every aspect, in the order of the observation.
    pub const ALL: [Self; 11] = [
        Self::Floor,
        Self::Ceiling,
        Self::Depth,
        Self::Drift,
        Self::Slowdown,
        Self::Loss,
        Self::WithoutLoss,
        Self::Response,
        Self::Swing,
        Self::ChangeResponse,
        Self::ChangeSwing,
    ];

    /// Number of those, at the beginning, that compare recent windows with all of the flow's.
    const COMPARISONS: usize = 7;
    /// Number of those of the response, which follow.
    const OF_RESPONSE: usize = 2;

    /// The name in lists of inputs, such as `features.json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::Ceiling => "ceiling",
            Self::Depth => "depth",
            Self::Drift => "drift",
            Self::Slowdown => "slowdown",
            Self::Loss => "loss",
            Self::WithoutLoss => "without_loss",
            Self::Response => "response",
            Self::Swing => "swing",
            Self::ChangeResponse => "change_response",
            Self::ChangeSwing => "change_swing",
        }
    }
}

/// A quantity of a window whose last values an observation can hold as a time series
/// ([`Interface::series`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// The mean of a feature over the window's ACKs.
    Mean(Feature),
    /// A fraction of the window.
    Fraction(Fraction),
}

impl Quantity {
    /// Every quantity, in the order of the observation.
    pub const ALL: [Self; 7] = [
        Self::Mean(Feature::Throughput),
        Self::Mean(Feature::LatestRtt),
        Self::Mean(Feature::Delay),
        Self::Mean(Feature::Cwnd),
        Self::Mean(Feature::InFlight),
        Self::Mean(Feature::Lost),
        Self::Fraction(Fraction::Marked),
    ];
}

/// Whether a setting is off, and need not be stated.
fn is_off(setting: &bool) -> bool {
    !setting
}

/// The divisors of raw features in an observation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scales {
    /// Divisor of times, in milliseconds.
    pub time_ms: f32,
    /// Divisor of byte counts, in bytes, and of rates, in bytes per second.
    pub bytes: f32,
}

impl Default for Scales {
    fn default() -> Self {
        Self {
            time_ms: 100.0,
            bytes: 1000.0,
        }
    }
}

/// The settings of the reward function, which combines a window's mean throughput (MB/s), its
/// queueing delay (ms) and the bytes lost in it (MB).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RewardSettings {
    /// Whether the quantities or their logarithms are combined.
    pub kind: RewardKind,
    /// The weight a of throughput, added.
    pub throughput_factor: f32,
    /// The weight b of delay, subtracted.
    pub delay_factor: f32,
    /// The weight c of loss, subtracted.
    pub loss_factor: f32,
    /// Offset added to the throughput inside the logarithm, MB/s.
    pub throughput_offset: f32,
    /// Offset added to the delay inside the logarithm, ms.
    pub delay_offset: f32,
    /// Offset added to the loss inside the logarithm, MB.
    pub loss_offset: f32,
    /// Whether the delay is the largest of the window rather than the mean.
    pub max_delay: bool,
}

impl Default for RewardSettings {
    fn default() -> Self {
        Self {
            kind: RewardKind::Log,
            throughput_factor: 1.0,
            delay_factor: 0.2,
            loss_factor: 0.0,
            throughput_offset: 1e-5,
            delay_offset: 1e-5,
            loss_offset: 1e-5,
            max_delay: true,
        }
    }
}

impl Objective {
    /// The objective of a policy that states none: the weights of throughput and delay in a
    /// logarithmic reward, and of a linear one, whose weights have units, the default's. Loss and
    /// marks cost as much beside the throughput as in the default, whatever the reward has: in
    /// most, loss is free.
    pub fn derived(reward: &RewardSettings) -> Self {
        let default = Self::default();
        let (a, b) = (
            f64::from(reward.throughput_factor),
            f64::from(reward.delay_factor),
        );
        if reward.kind == RewardKind::Linear || a <= 0.0 || b < 0.0 {
            return default;
        }
        Self {
            throughput: a,
            delay: b,
            loss: default.loss * a / default.throughput,
            marks: default.marks * a / default.throughput,
            ..default
        }
    }
}

/// The form of the reward function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RewardKind {
    /// The paper's form: the weighted difference of the quantities; offsets are not used.
    Linear,
    /// The weighted difference of the logarithms of (offset + quantity).
    Log,
}

/// A setting of an [`Interface`] that is out of its range.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InterfaceError {
    /// The features are of a version that this build does not compute.
    #[error(
        "features_version is {found}, but this build computes versions 1 to {FEATURES_VERSION}; \
         use a policy made for one of these, or the release that made this one"
    )]
    FeaturesVersion {
        /// The version that the interface states.
        found: u32,
    },
    /// Any other setting that is out of its range.
    #[error("{field} is {found}; expected {expected}")]
    Setting {
        /// The setting's name with its section, for example `scales.bytes`.
        field: &'static str,
        /// The value found, as text.
        found: String,
        /// The range, with its unit.
        expected: &'static str,
    },
}

#[cfg(test)]
mod tests {
    use bytemuck::Zeroable;

    use super::*;

    #[test]
    fn the_default_is_the_papers_observation() {
        let interface = Interface::default();
        assert_eq!(interface.validate(), Ok(()));
        assert_eq!(interface.observation_len(), 220);
        assert_eq!(
            Interface {
                history: 0,
                ..interface
            }
            .observation_len(),
            100
        );
    }

    #[test]
    fn version_2_observes_two_fractions_before_the_past_decisions() {
        let first = Interface::default();
        let second = Interface {
            features_version: 2,
            ..first.clone()
        };
        assert_eq!((first.features_version, second.validate()), (1, Ok(())));
        assert_eq!((first.history_offset(), first.fractions().len()), (100, 0));
        assert_eq!(second.history_offset(), 102);
        assert_eq!(second.observation_len(), first.observation_len() + 2);
        assert_eq!(second.past_action(20), 102);
        assert_eq!(second.past_action(1), first.past_action(1) + 2);
    }

    #[test]
    fn series_come_last_and_are_not_written_where_there_are_none() {
        let without = Interface::default();
        let json = serde_json::to_string(&without).expect("serialises");
        assert!(!json.contains("series"), "{json}");
        let with = Interface {
            series: 8,
            ..without.clone()
        };
        assert_eq!(with.series_offset(), without.observation_len());
        assert_eq!(with.observation_len(), 220 + 7 * 8);
        assert_eq!(with.past_action(1), without.past_action(1));
        let json = serde_json::to_string(&with).expect("serialises");
        let read: Interface = serde_json::from_str(&json).expect("parses");
        assert_eq!(read, with);
        let error = Interface {
            series: 1_001,
            ..without
        };
        let error = error.validate().expect_err("too many").to_string();
        assert_eq!(error, "series is 1001; expected 0 to 1000 windows");
    }

    #[test]
    fn serde_round_trips_and_fills_in_defaults() {
        let interface = Interface {
            pacing_gain: Some(1.25),
            ..Interface::default()
        };
        let json = serde_json::to_string(&interface).expect("serialises");
        assert_eq!(
            serde_json::from_str::<Interface>(&json).expect("parses"),
            interface
        );
        let partial: Interface =
            serde_json::from_str(r#"{"window_ms": 50, "reward": {"kind": "linear"}}"#)
                .expect("parses");
        assert_eq!(partial.window_ms, 50);
        assert_eq!(partial.reward.kind, RewardKind::Linear);
        assert_eq!(partial.history, 20);
    }

    #[test]
    fn masks_are_stated_only_where_there_are_any() {
        let mut interface = Interface::default();
        let json = serde_json::to_string(&interface).expect("serialises");
        assert!(!json.contains("mask"), "as before there were masks: {json}");
        let mut allowed = vec![false];
        interface.allowed(2, &mut allowed);
        assert_eq!(allowed, [false; 0], "all of them");
        interface.mask_actions = true;
        let json = serde_json::to_string(&interface).expect("serialises");
        let read: Interface = serde_json::from_str(&json).expect("parses");
        assert_eq!(read, interface);
        for (cwnd, expected) in [
            (2, [true, false, false, true, true]),
            (100, [true; 5]),
            // `+10` and `*2` both end at the upper bound, and there `0` does, too.
            (1995, [true, true, true, true, false]),
            (2000, [true, true, true, false, false]),
        ] {
            interface.allowed(cwnd, &mut allowed);
            assert_eq!(allowed, expected, "{cwnd}");
        }
    }

    #[test]
    fn who_decides_after_slow_start_is_not_asked_within_it() {
        let mut window = WindowRecord::zeroed();
        window.add(&[1_000; FEATURES]);
        let within = WindowRecord {
            slow_start: 1,
            ..window
        };
        let limited = WindowRecord {
            app_limited_acks: 1,
            ..within
        };
        let mut interface = Interface::default();
        let json = serde_json::to_string(&interface).expect("serialises");
        assert!(!json.contains("slow_start"), "as in earlier files: {json}");
        for (after_slow_start, expected) in [(false, None), (true, Some(Unasked::SlowStart))] {
            interface.after_slow_start = after_slow_start;
            assert_eq!(interface.unasked(&window), None);
            assert_eq!(interface.unasked(&within), expected);
            let unasked = interface.unasked(&limited);
            assert_eq!(unasked, Some(Unasked::ApplicationLimited));
        }
        let json = serde_json::to_string(&interface).expect("serialises");
        let read: Interface = serde_json::from_str(&json).expect("parses");
        assert_eq!(read, interface);
    }

    #[test]
    fn an_interface_without_an_objective_has_that_of_its_reward() {
        let mut interface = Interface::default();
        let json = serde_json::to_string(&interface).expect("serialises");
        assert!(!json.contains("objective"), "{json}");
        assert_eq!(interface.objective(), Objective::derived(&interface.reward));
        let stated = Objective {
            throughput: 2.0,
            ..Objective::default()
        };
        interface.objective = Some(stated);
        let json = serde_json::to_string(&interface).expect("serialises");
        let read: Interface = serde_json::from_str(&json).expect("parses");
        assert_eq!((read.objective, read.objective()), (Some(stated), stated));
    }

    #[test]
    fn what_states_no_objective_gets_that_of_its_reward() {
        let log = Objective::derived(&RewardSettings::default());
        assert_eq!((log.throughput, log.delay), (1.0, f64::from(0.2_f32)));
        assert_eq!(log.loss, 4.0, "not free, though the reward says so");
        assert_eq!(log.wrong_setting(), None);
        for reward in [
            RewardSettings {
                kind: RewardKind::Linear,
                ..RewardSettings::default()
            },
            RewardSettings {
                throughput_factor: -1.0,
                ..RewardSettings::default()
            },
        ] {
            assert_eq!(Objective::derived(&reward), Objective::default());
        }
    }

    #[test]
    fn unknown_fields_are_named() {
        for (json, field) in [
            (r#"{"window": 50}"#, "window"),
            (r#"{"scales": {"rate": 1}}"#, "rate"),
            (r#"{"reward": {"alpha": 1}}"#, "alpha"),
            (r#"{"objective": {"gamma": 1}}"#, "gamma"),
        ] {
            let error = serde_json::from_str::<Interface>(json)
                .expect_err("refused")
                .to_string();
            assert!(
                error.contains(&format!("unknown field `{field}`")),
                "{error}"
            );
        }
    }

    #[test]
    fn validation_names_the_field() {
        type Change = fn(&mut Interface);
        let changes: [(&str, Change); 18] = [
            ("window_ms is 0", |e| e.window_ms = 0),
            ("history is 5000", |e| e.history = 5000),
            // Each of these four needs another.
            ("shared_path is true", |e| e.shared_path = true),
            ("rate_memory is 200", |e| e.rate_memory = 200),
            ("response is 40", |e| e.response = 40),
            ("changes is 20", |e| e.changes = 20),
            ("cwnd.min is 0", |e| e.cwnd.min = 0),
            ("cwnd.max is 1", |e| e.cwnd.max = 1),
            ("scales.time_ms is NaN", |e| e.scales.time_ms = f32::NAN),
            ("scales.bytes is -1", |e| e.scales.bytes = -1.0),
            ("reward.throughput_factor is inf", |e| {
                e.reward.throughput_factor = f32::INFINITY;
            }),
            ("reward.delay_factor is NaN", |e| {
                e.reward.delay_factor = f32::NAN;
            }),
            ("reward.loss_offset is 0", |e| e.reward.loss_offset = 0.0),
            ("objective.loss is -1", |e| {
                e.objective = Some(Objective {
                    loss: -1.0,
                    ..Objective::default()
                });
            }),
            ("pacing_gain is 0.5", |e| e.pacing_gain = Some(0.5)),
            ("pacing_gain is inf", |e| {
                e.pacing_gain = Some(f32::INFINITY);
            }),
            ("min_rtt_window_s is 0", |e| e.min_rtt_window_s = 0),
            ("min_rtt_window_s is 4294967295", |e| {
                e.min_rtt_window_s = u32::MAX;
            }),
        ];
        for (expected, change) in changes {
            let mut interface = Interface::default();
            change(&mut interface);
            let error = interface.validate().expect_err(expected).to_string();
            assert!(
                error.starts_with(&format!("{expected}; expected ")),
                "{error}"
            );
        }
        for unknown in [0, 3, 99] {
            let other = Interface {
                features_version: unknown,
                ..Interface::default()
            };
            let error = other.validate().expect_err("refused").to_string();
            assert_eq!(
                error,
                format!(
                    "features_version is {unknown}, but this build computes versions 1 to 2; use \
                     a policy made for one of these, or the release that made this one"
                )
            );
        }
    }
}
