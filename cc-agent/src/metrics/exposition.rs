//! The metrics of an agent: names, types, units and help texts.

use std::fmt;

use cc_core::status::{Count, Distribution, Snapshot};
use cc_ebpf::{Counter, Mode};
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
             fallback, or on another congestion control",
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
        page.of_delays(state)
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
                 the policy hangs or has failed, see `cc-agent status`",
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
            "flows that are open; beyond rlcc_slots, further ones run on Reno",
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
            "open flows by what sets their cwnd; those on the fallback are not decided about",
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
                 be; 0 when somebody has set another one, which new flows use",
                None,
                u64::from(state.default_taken_by().is_none()),
            )?;
        }
        self.gauge(
            "policy_differs",
            "1 when the policy is another one than a command last put into service before the \
             agent's start",
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
        let known = Counter::ALL.iter().find(|known| known.name() == count.name);
        let help = match (count.trouble, known) {
            (Some(trouble), _) => format!("should not rise: {}", trouble.trim()),
            (None, Some(counter)) => counter.meaning().trim().to_owned(),
            (None, None) => format!("{} since the agent's start", count.name.replace('_', " ")),
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
             decides",
            None,
            u64::from(remote.connected),
        )?;
        let counts = &remote.counts;
        let mut questions = self.family(
            "server_questions",
            "questions to the policy server by what became of them; late and lost ones were \
             decided by the local policy",
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

    fn of_delays(&mut self, state: &Snapshot) -> fmt::Result {
        let all = &state.distributions;
        for (name, help, distribution) in [
            (
                "decision_delay",
                "time from a window's end to the publication of its decision",
                &all.decision_delay,
            ),
            (
                "inference",
                "time that the policy took for a batch of flows",
                &all.inference,
            ),
            (
                "window_srtt",
                "smoothed RTT, the mean of each observation interval of each flow",
                &all.srtt,
            ),
            (
                "window_queueing_delay",
                "RTT above the smallest of the last seconds, the mean of each observation interval \
                 of each flow",
                &all.queueing,
            ),
        ] {
            self.histogram(name, help, distribution)?;
        }
        Ok(())
    }

    fn histogram(&mut self, name: &str, help: &str, all: &Distribution) -> fmt::Result {
        if all.counts.is_empty() {
            // An older agent has none.
            return Ok(());
        }
        let mut metric = self.family(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
        add_distribution(&mut metric, all)
    }
}

#[cfg(test)]
mod tests {
    use cc_core::status::{DELAY_MS, RemoteStatus, samples::busy};

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
            assert_eq!(
                help.starts_with("should not rise: "),
                count.trouble.is_some()
            );
            assert!(help.len() > 10, "{help}");
        }
    }
}
