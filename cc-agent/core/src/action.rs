//! The actions that a policy chooses from: what each does to the congestion window (cwnd).
//!
//! An action space is written as in the mvfst-rl paper (arXiv 1910.04054, section 3), as tokens
//! separated by commas: `0,/2,-10,+10,*2`. Token `0` keeps the cwnd, `+V` and `-V` add and subtract
//! V segments, `*V` and `/V` multiply and divide.
//!
//! [`base_cwnd`] defines the cwnd that an action is applied to, [`ActionSpace::apply`] the cwnd
//! that it leads to.

use std::fmt;
use std::str::FromStr;

use cc_ebpf::{Decision, Mode, WindowRecord};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The most actions that an [`ActionSpace`] may have.
pub const MAX_ACTIONS: usize = 64;

/// An ordered list of actions; a policy's output `i` stands for action `i`.
///
/// Parsed from and displayed as `0,/2,-10,+10,*2`; serde uses the same string. The first action is
/// always [`Action::Hold`], because observations are padded with action 0.
///
/// ```
/// use cc_core::action::{ActionSpace, CwndBounds};
///
/// let actions: ActionSpace = "0,/2,-10,+10,*2".parse()?;
/// let bounds = CwndBounds { min: 2, max: 2000 };
/// assert_eq!(actions.apply(4, 30, bounds), 60);
/// assert_eq!(actions.apply(2, 5, bounds), 2, "clamped");
/// # Ok::<(), cc_core::action::ActionError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ActionSpace {
    actions: Vec<Action>,
}

impl ActionSpace {
    /// The number of actions, |A|; at least 1.
    #[allow(
        clippy::len_without_is_empty,
        reason = "an action space is never empty"
    )]
    pub fn len(&self) -> usize {
        self.actions.len()
    }

    /// The actions, in the order of a policy's outputs.
    pub fn actions(&self) -> &[Action] {
        &self.actions
    }

    /// The cwnd that action `index` sets where the cwnd is `cwnd`, both in segments, within
    /// `bounds`.
    ///
    /// Multiplication and division round half away from zero, addition and subtraction saturate,
    /// and the bounds hold for every action, [`Action::Hold`] included. An index outside the space
    /// counts as [`Action::Hold`].
    pub fn apply(&self, index: usize, cwnd: u32, bounds: CwndBounds) -> u32 {
        let action = self.actions.get(index).copied().unwrap_or(Action::Hold);
        action
            .apply(cwnd)
            .clamp(bounds.min, bounds.max.max(bounds.min))
    }

    /// What each action does where the cwnd is `cwnd`: for each, the index of the first action that
    /// leads to the same cwnd within `bounds`, which is its own where no earlier one does.
    ///
    /// ```
    /// use cc_core::action::{ActionSpace, CwndBounds};
    ///
    /// let actions: ActionSpace = "0,/1.05,*1.05,*2".parse()?;
    /// let bounds = CwndBounds { min: 2, max: 2000 };
    /// let mut effects = Vec::new();
    /// actions.effects(5, bounds, &mut effects);
    /// assert_eq!(effects, [0, 0, 0, 3], "5, 5, 5 and 10 segments");
    /// # Ok::<(), cc_core::action::ActionError>(())
    /// ```
    pub fn effects(&self, cwnd: u32, bounds: CwndBounds, into: &mut Vec<u8>) {
        into.clear();
        self.each_effect(cwnd, bounds, |_, first| into.push(first as u8));
    }

    /// Whether each action leads to another cwnd than all actions before it where the cwnd is
    /// `cwnd`. The first one always does.
    ///
    /// ```
    /// use cc_core::action::{ActionSpace, CwndBounds};
    ///
    /// let actions: ActionSpace = "0,/1.05,*1.05,*2".parse()?;
    /// let bounds = CwndBounds { min: 2, max: 2000 };
    /// let mut distinct = Vec::new();
    /// actions.distinct(5, bounds, &mut distinct);
    /// assert_eq!(distinct, [true, false, false, true], "5, 5, 5 and 10 segments");
    /// # Ok::<(), cc_core::action::ActionError>(())
    /// ```
    pub fn distinct(&self, cwnd: u32, bounds: CwndBounds, into: &mut Vec<bool>) {
        into.clear();
        self.each_effect(cwnd, bounds, |index, first| into.push(first == index));
    }

    /// Calls `with` with the index of each action and that of the first action with its effect.
    fn each_effect(&self, cwnd: u32, bounds: CwndBounds, mut with: impl FnMut(usize, usize)) {
        let mut after = [0; MAX_ACTIONS];
        for index in 0..self.len().min(MAX_ACTIONS) {
            after[index] = self.apply(index, cwnd, bounds);
            let first = after[..index].iter().position(|&cwnd| cwnd == after[index]);
            with(index, first.unwrap_or(index));
        }
    }

    /// The index of the action that comes nearest to changing the cwnd from `from` to `to`
    /// segments: the action whose cwnd, within `bounds`, differs from `to` by the smallest factor;
    /// of equally near ones the first.
    pub fn nearest(&self, from: u32, to: u32, bounds: CwndBounds) -> usize {
        let log = |segments: u32| f64::from(segments.max(1)).ln();
        let distance = |index: usize| (log(self.apply(index, from, bounds)) - log(to)).abs();
        (0..self.len())
            .min_by(|&a, &b| distance(a).total_cmp(&distance(b)))
            .unwrap_or(0)
    }
}

impl Default for ActionSpace {
    /// The paper's five actions: `0,/2,-10,+10,*2`.
    fn default() -> Self {
        Self {
            actions: vec![
                Action::Hold,
                Action::Divide(2.0),
                Action::Subtract(10.0),
                Action::Add(10.0),
                Action::Multiply(2.0),
            ],
        }
    }
}

impl fmt::Display for ActionSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, action) in self.actions.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            write!(f, "{action}")?;
        }
        Ok(())
    }
}

impl FromStr for ActionSpace {
    type Err = ActionError;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        if s.trim().is_empty() {
            return Err(ActionError::Empty);
        }
        let count = s.split(',').count();
        if count > MAX_ACTIONS {
            return Err(ActionError::TooMany { count });
        }
        let actions = s
            .split(',')
            .enumerate()
            .map(|(i, token)| {
                Action::parse(token.trim()).map_err(|reason| ActionError::Token {
                    token: token.trim().to_owned(),
                    position: i + 1,
                    reason,
                })
            })
            .collect::<Result<Vec<_>, _>>()?;
        if actions[0] != Action::Hold {
            return Err(ActionError::FirstNotHold {
                token: actions[0].to_string(),
            });
        }
        Ok(Self { actions })
    }
}

impl TryFrom<String> for ActionSpace {
    type Error = ActionError;

    fn try_from(s: String) -> Result<Self, Self::Error> {
        s.parse()
    }
}

impl From<ActionSpace> for String {
    fn from(space: ActionSpace) -> Self {
        space.to_string()
    }
}

/// The cwnd in segments that the action chosen on a window is applied to. `published` is the newest
/// decision that the agent has published for the flow; `None` when it has published none.
///
/// While a decision governs the flow ([`Mode::is_decided`]) and the flow has not taken up
/// `published` yet, that is the decision's cwnd. Otherwise it is the cwnd at the window's end,
/// which is less than the decision where the flow has not used its cwnd that far or has answered
/// congestion since; after a timeout it is the decision that slow start is on its way back to.
pub fn base_cwnd(window: &WindowRecord, published: Option<Decision>) -> u32 {
    let taken = Decision::from_cell(window.decision);
    match Mode::from_raw(window.mode) {
        Mode::AfterTimeout => published
            .or(taken)
            .map_or(window.cwnd, |decision| decision.cwnd),
        Mode::Decided => match published {
            Some(decision) if decision.to_cell() != window.decision => decision.cwnd,
            _ => window.cwnd,
        },
        Mode::Startup | Mode::Fallback | Mode::ApplicationLimited => window.cwnd,
    }
}

/// What one action does to the cwnd.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Action {
    /// `+V`: add V segments.
    Add(f32),
    /// `/V`: divide the cwnd by V.
    Divide(f32),
    /// `0`: keep the cwnd (the no-op).
    Hold,
    /// `*V`: multiply the cwnd by V.
    Multiply(f32),
    /// `-V`: subtract V segments.
    Subtract(f32),
}

impl Action {
    /// The cwnd in segments after this action, before any bounds.
    fn apply(self, cwnd: u32) -> u32 {
        let segments = f64::from(cwnd);
        let after = match self {
            Self::Add(v) => segments + f64::from(v),
            Self::Divide(v) => segments / f64::from(v),
            Self::Hold => return cwnd,
            Self::Multiply(v) => segments * f64::from(v),
            Self::Subtract(v) => segments - f64::from(v),
        };
        // `round` goes half away from zero, and the cast saturates at 0 and u32::MAX.
        after.round() as u32
    }

    fn parse(token: &str) -> Result<Self, TokenError> {
        if token == "0" {
            return Ok(Self::Hold);
        }
        let mut rest = token.chars();
        let operator = rest.next().ok_or(TokenError::Empty)?;
        let action = match operator {
            '+' => Self::Add,
            '/' => Self::Divide,
            '*' => Self::Multiply,
            '-' => Self::Subtract,
            _ => return Err(TokenError::Operator { operator }),
        };
        let number = rest.as_str();
        if number.is_empty() {
            return Err(TokenError::NoNumber);
        }
        // `parse` would also take a second sign, "inf" and "nan".
        if !number.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
            return Err(TokenError::Number);
        }
        let value: f32 = number.parse().map_err(|_| TokenError::Number)?;
        if value.is_finite() && value > 0.0 {
            Ok(action(value))
        } else {
            Err(TokenError::Number)
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Add(v) => write!(f, "+{v}"),
            Self::Divide(v) => write!(f, "/{v}"),
            Self::Hold => f.write_str("0"),
            Self::Multiply(v) => write!(f, "*{v}"),
            Self::Subtract(v) => write!(f, "-{v}"),
        }
    }
}

/// The range in segments, inclusive, that a policy's decisions are clamped to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CwndBounds {
    /// The smallest cwnd, at least 1 segment.
    pub min: u32,
    /// The largest cwnd, at least `min` segments.
    pub max: u32,
}

/// Why a string is not an [`ActionSpace`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ActionError {
    /// The list is empty or nothing but white space.
    #[error(
        "the action list is empty; write at least the no-op `0`, for example `0,/2,-10,+10,*2`"
    )]
    Empty,
    /// The first action is not the no-op.
    #[error(
        "the first action is `{token}`; put the no-op `0` first, for example `0,/2,-10,+10,*2`"
    )]
    FirstNotHold {
        /// The first token, as understood.
        token: String,
    },
    /// A token is not an action.
    #[error("action {position}, `{token}`: {reason}")]
    Token {
        /// The token without the white space around it.
        token: String,
        /// Its place in the list, from 1.
        position: usize,
        /// What is wrong with it.
        reason: TokenError,
    },
    /// The list has more than [`MAX_ACTIONS`] actions.
    #[error("{count} actions are too many; use at most {MAX_ACTIONS}")]
    TooMany {
        /// Number of actions in the list.
        count: usize,
    },
}

/// Why one token is not an action.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TokenError {
    /// There is nothing between two commas.
    #[error("nothing stands between the commas; remove one or write an action such as `+10`")]
    Empty,
    /// An operator has no number after it.
    #[error("the number is missing; write it right after the operator, for example `*1.5`")]
    NoNumber,
    /// Not a finite number greater than zero.
    #[error(
        "what follows the operator must be a positive finite number, for example `/2` or `*1.5`"
    )]
    Number,
    /// The token begins with something else than `+`, `-`, `*` or `/`.
    #[error("unknown operator `{operator}`; use one of + - * / and a number, or `0` for the no-op")]
    Operator {
        /// The character where an operator should be.
        operator: char,
    },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn actions_work_on_the_newest_decision_while_one_governs_the_flow() {
        let decision = |window, cwnd| Decision {
            generation: 1,
            window,
            cwnd,
        };
        let window = |mode: Mode, decided: Option<u32>| {
            let cell = decided.map_or(0, |cwnd| decision(1, cwnd).to_cell());
            WindowRecord {
                mode: mode as u32,
                cwnd: 7,
                decision: cell,
                ..bytemuck::Zeroable::zeroed()
            }
        };
        for mode in [Mode::Decided, Mode::AfterTimeout] {
            let newer = decision(2, 20);
            assert_eq!(base_cwnd(&window(mode, Some(40)), Some(newer)), 20);
        }
        let taken = Some(decision(1, 40));
        let after_timeout = window(Mode::AfterTimeout, Some(40));
        assert_eq!(
            base_cwnd(&after_timeout, taken),
            40,
            "where slow start ends"
        );
        assert_eq!(base_cwnd(&after_timeout, None), 40, "adopted");
        let reduced = window(Mode::Decided, Some(40));
        assert_eq!(base_cwnd(&reduced, taken), 7, "less than was decided");
        assert_eq!(base_cwnd(&reduced, None), 7, "adopted");
        for mode in [Mode::Startup, Mode::Fallback, Mode::ApplicationLimited] {
            assert_eq!(base_cwnd(&window(mode, Some(40)), taken), 7);
        }
    }

    const PAPER: CwndBounds = CwndBounds { min: 2, max: 2000 };

    fn space(s: &str) -> ActionSpace {
        s.parse().expect("a valid action list")
    }

    #[test]
    fn the_papers_actions_do_what_they_say() {
        let paper = space("0,/2,-10,+10,*2");
        assert_eq!(paper, ActionSpace::default());
        let after = |cwnd| {
            (0..5)
                .map(|i| paper.apply(i, cwnd, PAPER))
                .collect::<Vec<_>>()
        };
        assert_eq!(after(100), [100, 50, 90, 110, 200]);
        // Half away from zero; subtraction stops at the lower bound.
        assert_eq!(after(5), [5, 3, 2, 15, 10]);
        assert_eq!(after(1500), [1500, 750, 1490, 1510, 2000]);
        // The bounds hold for the no-op too.
        assert_eq!(after(5000)[0], 2000);
        assert_eq!(after(0)[0], 2);
    }

    #[test]
    fn extreme_values_saturate() {
        let extreme = space("0,*3e38,+3e38,-3e38,/3e38,/1e-30");
        let all = CwndBounds {
            min: 0,
            max: u32::MAX,
        };
        let after: Vec<_> = (0..6).map(|i| extreme.apply(i, u32::MAX, all)).collect();
        assert_eq!(after, [u32::MAX, u32::MAX, u32::MAX, 0, 0, u32::MAX]);
    }

    #[test]
    fn an_index_outside_the_space_holds() {
        assert_eq!(ActionSpace::default().apply(5, 77, PAPER), 77);
    }

    #[test]
    fn errors_name_the_token_its_position_and_the_remedy() {
        for (input, expected) in [
            ("", "the action list is empty; write at least"),
            (" ", "the action list is empty"),
            ("/2,0", "the first action is `/2`; put the no-op `0` first"),
            ("0,,+1", "action 2, ``: nothing stands between the commas"),
            ("0,+1,*", "action 3, `*`: the number is missing"),
            (
                "0,10",
                "action 2, `10`: unknown operator `1`; use one of + - * /",
            ),
            ("0,%2", "action 2, `%2`: unknown operator `%`"),
            ("0,×2", "action 2, `×2`: unknown operator `×`"),
            (
                "0,*two",
                "action 2, `*two`: what follows the operator must be a positive finite number",
            ),
            ("0,--10", "action 2, `--10`: what follows"),
            ("0,/0", "action 2, `/0`: what follows"),
            ("0,+nan", "action 2, `+nan`: what follows"),
            ("0,*inf", "action 2, `*inf`: what follows"),
            ("0,*1e99", "action 2, `*1e99`: what follows"),
        ] {
            let error = input.parse::<ActionSpace>().expect_err(input).to_string();
            assert!(error.starts_with(expected), "{input:?} gave {error:?}");
        }
        let many = vec!["0"; MAX_ACTIONS + 1].join(",");
        assert_eq!(
            many.parse::<ActionSpace>()
                .expect_err("too many")
                .to_string(),
            "65 actions are too many; use at most 64"
        );
    }

    #[test]
    fn serde_uses_the_string() {
        let json = serde_json::to_string(&ActionSpace::default()).expect("serialises");
        assert_eq!(json, r#""0,/2,-10,+10,*2""#);
        let error = serde_json::from_str::<ActionSpace>(r#""0,?3""#).expect_err("refused");
        assert!(error.to_string().contains("action 2, `?3`"), "{error}");
    }

    fn any_action() -> impl Strategy<Value = Action> {
        let value = (1e-30f32..1e30).prop_union(0.1f32..100.0);
        prop_oneof![
            Just(Action::Hold),
            value.clone().prop_map(Action::Add),
            value.clone().prop_map(Action::Subtract),
            value.clone().prop_map(Action::Multiply),
            value.prop_map(Action::Divide),
        ]
    }

    #[test]
    fn the_nearest_is_the_fewest_times_away() {
        let space = ActionSpace::default();
        let bounds = CwndBounds { min: 2, max: 2_000 };
        let nearest = |from, to| space.actions()[space.nearest(from, to, bounds)].to_string();
        assert_eq!(nearest(100, 100), "0");
        assert_eq!(nearest(100, 103), "0");
        assert_eq!(nearest(100, 107), "+10");
        // Cubic's reduction lies between two actions: 70 is 1.4 times 50, 90 is 1.29 times 70.
        assert_eq!(nearest(100, 70), "-10");
        assert_eq!(nearest(100, 60), "/2");
        assert_eq!(nearest(100, 200), "*2");
        assert_eq!(nearest(100, 5_000), "*2");
        assert_eq!(nearest(100, 0), "/2");
        // Beyond the bounds an action is what it would set there.
        assert_eq!(nearest(4_000, 3_900), "0");
        assert_eq!(nearest(3_000, 1_500), "/2");
    }

    fn any_space() -> impl Strategy<Value = ActionSpace> {
        prop::collection::vec(any_action(), 0..MAX_ACTIONS).prop_map(|mut actions| {
            actions.insert(0, Action::Hold);
            ActionSpace { actions }
        })
    }

    proptest! {
        #[test]
        fn display_round_trips(space in any_space()) {
            prop_assert_eq!(space.to_string().parse::<ActionSpace>(), Ok(space));
        }

        #[test]
        fn never_outside_the_bounds(
            space in any_space(),
            index in 0..2 * MAX_ACTIONS,
            cwnd: u32,
            (min, max) in (any::<u32>(), any::<u32>()).prop_map(|(a, b)| (a.min(b), a.max(b))),
        ) {
            let after = space.apply(index, cwnd, CwndBounds { min, max });
            prop_assert!((min..=max).contains(&after));
        }

        /// The nearest action is the one that was applied, or an earlier one that leads to the
        /// same cwnd.
        #[test]
        fn an_action_is_nearest_to_itself(
            space in any_space(),
            index in 0..MAX_ACTIONS,
            from in 1..100_000u32,
        ) {
            let bounds = CwndBounds { min: 2, max: 2_000 };
            let to = space.apply(index, from, bounds);
            let nearest = space.nearest(from, to, bounds);
            prop_assert!(nearest < space.len());
            prop_assert_eq!(space.apply(nearest, from, bounds), to);
            prop_assert!(nearest <= index || index >= space.len());
        }

        /// Two actions have the same effect exactly where they lead to the same cwnd, and the
        /// effect is named by the first of them.
        #[test]
        fn effects_are_classes_of_equal_cwnds(space in any_space(), cwnd in 0..100_000u32) {
            let bounds = CwndBounds { min: 2, max: 2_000 };
            let mut effects = vec![7];
            space.effects(cwnd, bounds, &mut effects);
            let after = |index: usize| space.apply(index, cwnd, bounds);
            let most = space.len().min(MAX_ACTIONS);
            prop_assert_eq!(effects.len(), most);
            for a in 0..most {
                prop_assert!(usize::from(effects[a]) <= a);
                for b in 0..most {
                    prop_assert_eq!(effects[a] == effects[b], after(a) == after(b));
                }
            }
        }

        /// The distinct actions reach every cwnd that any action reaches, each of them once, and
        /// the action that is nearest to anything is one of them.
        #[test]
        fn distinct_actions_reach_every_cwnd_once(
            space in any_space(),
            cwnd in 0..100_000u32,
            target in 0..100_000u32,
        ) {
            let bounds = CwndBounds { min: 2, max: 2_000 };
            let mut distinct = Vec::new();
            space.distinct(cwnd, bounds, &mut distinct);
            let most = space.len().min(MAX_ACTIONS);
            prop_assert_eq!(distinct.len(), most);
            prop_assert!(distinct[0], "one is left in any case");
            let reached = |index: &usize| space.apply(*index, cwnd, bounds);
            let own: Vec<u32> =
                (0..most).filter(|&index| distinct[index]).map(|index| reached(&index)).collect();
            let all: std::collections::BTreeSet<u32> =
                (0..most).map(|index| reached(&index)).collect();
            prop_assert_eq!(own.len(), all.len());
            prop_assert!(own.iter().all(|cwnd| all.contains(cwnd)));
            let nearest = space.nearest(cwnd, target, bounds);
            prop_assert!(nearest >= most || distinct[nearest]);
        }

        #[test]
        fn no_string_panics(s in "\\PC*") {
            let _ = s.parse::<ActionSpace>();
        }

        #[test]
        fn no_near_miss_panics(s in "[0,+*/.e -]{0,24}") {
            if let Ok(space) = s.parse::<ActionSpace>() {
                prop_assert_eq!(space.actions()[0], Action::Hold);
            }
        }
    }
}
