//! What of a run is scored: its length, the flow, the segments of time, and the rule.
//!
//! A scenario says it in its [`Scoring`], which is empty in most of them. The methods of
//! [`Scenario`] fill in what it leaves open, and are what evaluations and leagues should ask.

use std::{ops::Range, time::Duration};

use super::Scenario;

/// Length of a run where neither the scenario nor the user gives one.
pub const DEFAULT_LENGTH: Duration = Duration::from_secs(30);

/// How long a scenario runs, and what of a run is scored. The default leaves everything open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scoring {
    /// Length of a run that the scenario is made for.
    pub length: Option<Duration>,
    /// Rule by which segments are scored.
    pub rule: Option<Rule>,
    /// Index of the flow that is scored.
    pub flow: Option<usize>,
    /// Segments of time that are scored one by one, counted from the start of the scored flow.
    pub segments: Vec<Range<Duration>>,
}

/// Rule by which a segment of a run is scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rule {
    /// Power of the scored flow: throughput against delay.
    Power,
    /// Distance of the scored flow's throughput from its fair share of the link.
    Share,
    /// Balance of the flows under test that are there for the whole segment: the smallest
    /// throughput of any of them over the largest.
    Balance,
}

impl Rule {
    /// All rules, for errors that name the possible ones.
    pub const ALL: [Self; 3] = [Self::Power, Self::Share, Self::Balance];

    /// Name of the rule in scenario files and results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Power => "power",
            Self::Share => "share",
            Self::Balance => "balance",
        }
    }
}

impl Scenario {
    /// Length of a run: `given` by the user, or else the scenario's own, or else
    /// [`DEFAULT_LENGTH`].
    pub fn length(&self, given: Option<Duration>) -> Duration {
        given.or(self.scoring.length).unwrap_or(DEFAULT_LENGTH)
    }

    /// Index of the flow that is scored: the one that the scenario names, or else the first one
    /// under test, or else the first one.
    pub fn scored_flow(&self) -> usize {
        let under_test = || self.flows.iter().position(|flow| flow.scheme.is_none());
        self.scoring.flow.or_else(under_test).unwrap_or(0)
    }

    /// Rule by which segments are scored. Where the scenario does not say, it follows from the
    /// flows: power for a single one, the share beside flows with schemes of their own, and the
    /// balance of several flows under test.
    pub fn rule(&self) -> Rule {
        let all_under_test = self.flows.iter().all(|flow| flow.scheme.is_none());
        self.scoring.rule.unwrap_or(match self.flows.len() {
            0 | 1 => Rule::Power,
            _ if all_under_test => Rule::Balance,
            _ => Rule::Share,
        })
    }

    /// The segments that are scored in a run of this length, in scenario time. They are cut off at
    /// the end of the run, and left out if they begin after it. Where the scenario names none, it
    /// is the whole time of the scored flow.
    pub fn segments(&self, length: Duration) -> Vec<Range<Duration>> {
        let flow = self.flows.get(self.scored_flow());
        let start = flow.map_or(Duration::ZERO, |flow| flow.start);
        let since_start = |segment: &Range<Duration>| start + segment.start..start + segment.end;
        let segments = match self.scoring.segments.as_slice() {
            [] => vec![start..flow.and_then(|flow| flow.stop).unwrap_or(length)],
            own => own.iter().map(since_start).collect(),
        };
        let cut = segments.into_iter();
        let cut = cut.map(|segment| segment.start..segment.end.min(length));
        cut.filter(|segment| !segment.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn scenario(more: &str) -> Scenario {
        let text = format!("[[scenario]]\nname = \"a\"\nrate_mbps = 12\ndelay_ms = 20\n{more}");
        let scenarios = crate::scenario::parse(&text, Path::new("test.toml"));
        scenarios.expect("valid").remove(0)
    }

    fn seconds(segments: Vec<Range<Duration>>) -> Vec<(u64, u64)> {
        let seconds = |segment: Range<Duration>| (segment.start.as_secs(), segment.end.as_secs());
        segments.into_iter().map(seconds).collect()
    }

    #[test]
    fn what_a_scenario_leaves_open_follows_from_its_flows() {
        let one = scenario("");
        assert_eq!((one.rule(), one.scored_flow()), (Rule::Power, 0));
        assert_eq!(one.length(None), Duration::from_secs(30));
        assert_eq!(one.length(Some(Duration::from_secs(5))).as_secs(), 5);
        assert_eq!(seconds(one.segments(Duration::from_secs(30))), [(0, 30)]);

        let two = scenario("flow = [{}, { start_s = 8, stop_s = 20 }]");
        assert_eq!((two.rule(), two.scored_flow()), (Rule::Balance, 0));

        let beside = scenario("flow = [{ scheme = \"cubic\" }, { start_s = 5, stop_s = 20 }]");
        assert_eq!((beside.rule(), beside.scored_flow()), (Rule::Share, 1));
        assert_eq!(seconds(beside.segments(Duration::from_secs(30))), [(5, 20)]);
    }

    #[test]
    fn segments_count_from_the_flows_start_and_end_with_the_run() {
        let own = scenario(
            "seconds = 60\nscore = { rule = \"power\", flow = 1, segments_s = [[0, 10], [10, 30], \
             [50, 70]] }\nflow = [{ scheme = \"cubic\" }, { start_s = 5 }]",
        );
        assert_eq!((own.rule(), own.scored_flow()), (Rule::Power, 1));
        assert_eq!(own.length(None).as_secs(), 60);
        let segments = |length| seconds(own.segments(Duration::from_secs(length)));
        assert_eq!(segments(60), [(5, 15), (15, 35), (55, 60)]);
        assert_eq!(segments(20), [(5, 15), (15, 20)]);
    }
}
