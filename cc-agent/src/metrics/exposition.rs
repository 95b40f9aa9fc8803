//! The metrics of an agent: names, types, units and help texts.

use std::fmt;

use cc_core::status::{Count, Distribution, Snapshot};
use cc_ebpf::Mode;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, NoLabelSet},
    metrics::MetricType,
    registry::Unit,
};

use super::page::{self, Page, add_distribution};

/// The metrics of an agent in this state; `None` for one that does not answer, of which there is
/// nothing but `rlcc_up 0`.
pub fn encode(state: Option<&Snapshot>) -> String {
    page::encode(Scrape(state.cloned()))
}

#[derive(Debug)]
struct Scrape(Option<Snapshot>);

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        let up = u64::from(self.0.is_some());
        page.gauge(
            "up",
            "1 when the agent answers on its socket, and 0 when it does not: then flows run on the \
             fallback, or on another congestion control; RlccAgentDown in docs/runbook.md",
            None,
            up,
        )?;
        let Some(state) = &self.0 else {
            return Ok(());
        };
        page.of_process(state)?;
        page.of_flows(state)?;
        for count in state.counters() {
            page.of_count(&count)?;
        }
        page.of_server(state)?;
        page.of_distributions(state)
    }
}

impl Page<'_> {
    fn of_process(&mut self, state: &Snapshot) -> fmt::Result {
        self.info(
            "build",
            "the agent, and the congestion control that it serves",
            &[
                ("version", state.version.as_str()),
                ("congestion_control", state.name.as_str()),
            ],
        )?;
        self.info(
            "policy",
            "the policy that decides",
            &[
                ("policy", state.policy.as_str()),
                ("sha256", state.policy_sha256.as_deref().unwrap_or_default()),
            ],
        )?;
        self.gauge(
            "uptime",
            "time since the agent's start",
            Some(&Unit::Seconds),
            state.uptime_s,
        )?;
        if let Some(age) = state.heartbeat_age_ms {
            self.gauge(
                "heartbeat_age",
                "time since the last heartbeat; above 2 s nothing is decided and flows fall back: \
                 the policy hangs or has failed, see `cc-agent status` and RlccNotDeciding in \
                 docs/runbook.md",
                Some(&Unit::Seconds),
                age / 1e3,
            )?;
        }
        let mut cpu = self.family(
            "cpu",
            "processor time that the agent has used",
            Some(&Unit::Seconds),
            MetricType::Counter,
        )?;
        cpu.encode_counter::<NoLabelSet, f64, f64>(&state.cpu_s, None)
    }

    fn of_flows(&mut self, state: &Snapshot) -> fmt::Result {
        self.gauge(
            "slots",
            "flows that can be served at the same time",
            None,
            state.slots as u64,
        )?;
        self.gauge(
            "live_flows",
            "flows that are open; beyond rlcc_slots, further ones run on Reno: RlccSlotsShort in \
             docs/runbook.md",
            None,
            state.live_flows as u64,
        )?;
        self.gauge(
            "flows_on_former_programs",
            "open flows on the BPF programs of a former agent: they are decided about, but a \
             change of the programs does not reach them until they close",
            None,
            state.flows_on_former_programs as u64,
        )?;
        let mut flows = self.family(
            "flows_by_mode",
            "open flows by what sets their cwnd; those on the fallback are not decided about, and \
             run on Reno: RlccFlowsOnFallback in docs/runbook.md",
            None,
            MetricType::Gauge,
        )?;
        // An older agent does not tell.
        let known = !state.modes.is_empty() || state.live_flows == 0;
        for mode in Mode::ALL.iter().filter(|_| known) {
            let label = [("mode", mode.name())];
            let mut family = flows.encode_family(&label)?;
            let count = state.modes.get(mode.name()).copied().unwrap_or(0);
            family.encode_gauge(&(count as u64))?;
        }
        if state.default.is_some() {
            self.gauge(
                "default_held",
                "1 while the agent's congestion control is the host's default, as it was told to \
                 be; 0 when somebody has set another one, which new flows use: RlccDefaultTaken in \
                 docs/runbook.md",
                None,
                u64::from(state.default_taken_by().is_none()),
            )?;
        }
        self.gauge(
            "policy_differs",
            "1 when the policy is another one than a command last put into service before the \
             agent's start: RlccPolicyDiffers in docs/runbook.md",
            None,
            u64::from(state.differs.is_some()),
        )?;
        self.gauge(
            "canary_running",
            "1 while a canary tries a candidate policy",
            None,
            u64::from(state.canary.is_some()),
        )
    }

    /// A counter of the agent or the datapath, with what a rise of it means.
    fn of_count(&mut self, count: &Count) -> fmt::Result {
        let meaning = count.meaning;
        let help = match count.entry {
            Some(entry) => format!("should not rise: {meaning} {entry} in docs/runbook.md"),
            None if meaning.is_empty() => "counts what a later version knows of".to_owned(),
            None => meaning.to_owned(),
        };
        self.counter(&count.name, help.trim_end_matches('.'), count.value)
    }

    fn of_server(&mut self, state: &Snapshot) -> fmt::Result {
        let Some(remote) = &state.remote else {
            return Ok(());
        };
        self.gauge(
            "server_connected",
            "1 while there is a connection to the policy server; without one the local policy \
             decides: RlccPolicyServerAway in docs/runbook.md",
            None,
            u64::from(remote.connected),
        )?;
        let counts = &remote.counts;
        let mut questions = self.family(
            "server_questions",
            "questions to the policy server by what became of them; the local policy decided late \
             and lost ones, and refused are replies of no use. They rise where the network or the \
             server is slow, or away: RlccPolicyServerAway in docs/runbook.md",
            None,
            MetricType::Counter,
        )?;
        for (outcome, value) in [
            ("answered", counts.answered),
            ("late", counts.late),
            ("lost", counts.lost),
            ("refused", counts.refused),
        ] {
            let label = [("outcome", outcome)];
            let mut family = questions.encode_family(&label)?;
            family.encode_counter::<NoLabelSet, u64, f64>(&value, None)?;
        }
        Ok(())
    }

    fn of_distributions(&mut self, state: &Snapshot) -> fmt::Result {
        let all = &state.distributions;
        let windows = &all.windows;
        for (name, help, durations) in [
            (
                "decision_delay",
                "time from a window's end to the publication of its decision; when its 99th \
                 percentile nears the length of a window, decisions are about a past that is \
                 over: RlccDecisionsLate in docs/runbook.md",
                &all.decision_delay,
            ),
            (
                "inference",
                "time that the policy took for a batch of flows; when it rises, decisions come \
                 later: a smaller policy, `--nice` or fewer flows",
                &all.inference,
            ),
            (
                "window_length",
                "length of each observation interval of each flow, from its start to the ACK that \
                 closed it, or to when the agent closed it; above what the policy was made for \
                 (`window_ms`, usually 0.1 s) ACKs come seldom, and so do decisions",
                &windows.length,
            ),
            (
                "window_srtt",
                "smoothed RTT, the mean of each observation interval of each flow; it rises where \
                 paths become longer or queues fuller",
                &windows.srtt,
            ),
            (
                "window_queueing_delay",
                "RTT above the smallest of the last seconds, the mean of each observation interval \
                 of each flow; it rises where queues of the paths fill",
                &windows.queueing,
            ),
        ] {
            self.histogram(name, help, Unit::Seconds, (durations, 1e3))?;
        }
        self.histogram(
            "cwnd",
            "congestion window at the end of each observation interval of each flow; it falls \
             where paths lose or applications send little",
            Unit::Other("segments".to_owned()),
            (&windows.cwnd, 1.0),
        )
    }

    /// A histogram whose unit is the given number of times that of the distribution.
    fn histogram(
        &mut self,
        name: &str,
        help: &str,
        unit: Unit,
        (all, scale): (&Distribution, f64),
    ) -> fmt::Result {
        if all.counts.is_empty() {
            // An older agent has none.
            return Ok(());
        }
        let mut metric = self.family(name, help, Some(&unit), MetricType::Histogram)?;
        add_distribution(&mut metric, all, scale)
    }
}

#[cfg(test)]
mod tests {
    use cc_core::status::{DELAY_MS, RemoteStatus, WindowDistributions, samples::busy};

    use super::{super::page::tests::parse, *};

    #[test]
    fn an_agent_that_does_not_answer_is_down() {
        assert_eq!(parse(&encode(None)), [("rlcc_up".to_owned(), 0.0)].into());
    }

    #[test]
    fn all_that_a_status_counts_is_there() {
        let mut state = busy(3);
        state.heartbeat_age_ms = Some(250.0);
        state.modes = [("decided".to_owned(), 2), ("fallback".to_owned(), 1)].into();
        state.remote = Some(RemoteStatus {
            connected: true,
            ..RemoteStatus::default()
        });
        state.policy = "a \"quoted\" one\\two".into();
        state.distributions.decision_delay = Distribution::new(&DELAY_MS);
        for ms in [0.05, 0.2, 0.2, 2e3] {
            state.distributions.decision_delay.add(ms);
        }
        state.distributions.windows = WindowDistributions::new();
        state.distributions.windows.length.add(103.0);
        for segments in [10.0, 40.0] {
            state.distributions.windows.cwnd.add(segments);
        }
        let page = encode(Some(&state));
        let samples = parse(&page);
        let value = |name: &str| samples.get(name).copied().unwrap_or(f64::NAN);
        assert_eq!(value("rlcc_up"), 1.0);
        assert_eq!(value("rlcc_heartbeat_age_seconds"), 0.25);
        assert_eq!(value("rlcc_flows_by_mode{mode=\"fallback\"}"), 1.0);
        assert_eq!(value("rlcc_flows_by_mode{mode=\"startup\"}"), 0.0);
        assert_eq!(value("rlcc_decisions_total"), 270.0);
        assert_eq!(value("rlcc_cpu_seconds_total"), 0.4);
        assert_eq!(value("rlcc_server_connected"), 1.0);
        // Buckets are cumulative.
        let bucket = |le: &str| {
            value(&format!(
                "rlcc_decision_delay_seconds_bucket{{le=\"{le}\"}}"
            ))
        };
        assert_eq!(
            [bucket("0.0001"), bucket("0.00025"), bucket("1.0")],
            [1.0, 3.0, 3.0]
        );
        assert_eq!(bucket("+Inf"), 4.0);
        assert_eq!(value("rlcc_decision_delay_seconds_count"), 4.0);
        assert!((value("rlcc_decision_delay_seconds_sum") - 2.00045).abs() < 1e-9);
        let length = "rlcc_window_length_seconds_bucket";
        assert_eq!(value(&format!("{length}{{le=\"0.102\"}}")), 0.0);
        assert_eq!(value(&format!("{length}{{le=\"0.105\"}}")), 1.0);
        assert!((value("rlcc_window_length_seconds_sum") - 0.103).abs() < 1e-9);
        let cwnd = "rlcc_cwnd_segments_bucket";
        assert_eq!(value(&format!("{cwnd}{{le=\"10.0\"}}")), 1.0, "{page}");
        assert_eq!(value(&format!("{cwnd}{{le=\"64.0\"}}")), 2.0);
        assert_eq!(value("rlcc_cwnd_segments_sum"), 50.0);
        assert!(
            page.contains("# UNIT rlcc_cwnd_segments segments\n"),
            "{page}"
        );
        for count in state.counters() {
            let name = format!("rlcc_{}_total", count.name);
            assert_eq!(value(&name), count.value as f64, "{name}");
        }
        assert!(page.contains(r#"policy="a \"quoted\" one\\two""#), "{page}");
    }

    #[test]
    fn what_should_not_rise_says_so() {
        let page = encode(Some(&busy(1)));
        for count in busy(1).counters() {
            let text = format!("# HELP rlcc_{} ", count.name);
            let at = page.find(&text).unwrap_or_else(|| panic!("{text}"));
            let help = page[at + text.len()..].lines().next().unwrap_or_default();
            assert_eq!(help.starts_with("should not rise: "), count.entry.is_some());
            assert!(help.contains(count.entry.unwrap_or_default()), "{help}");
            // The consequence, or when it is normal, and not the name again.
            let name = count.name.replace('_', " ");
            assert!(help.len() > name.len() + 20, "{help}");
        }
    }
}
