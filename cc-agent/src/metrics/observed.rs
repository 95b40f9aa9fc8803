//! The metrics of an observer: sums over the flows of each congestion control in each cgroup, and
//! how much of them it has seen.

use std::fmt;

use cc_core::{
    foreign::groups::{Group, Sums},
    status::Distribution,
};
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet},
    metrics::MetricType,
    registry::Unit,
};
use tokio::sync::oneshot;

use super::page::{self, Page, add_durations};

/// A question for what an observer has seen, with the place for the answer.
pub(crate) type Question = oneshot::Sender<Observed>;

/// What an observer has seen.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    /// How it is attached to the kernel's TCP.
    pub(crate) way: String,
    /// Flows that can be observed at once.
    pub(crate) slots: u64,
    /// Flows that are observed at the moment.
    pub(crate) live: u64,
    /// Cgroups that have a label of their own at the moment.
    pub(crate) cgroups: u64,
    /// What escaped it since its start.
    pub(crate) losses: Losses,
    /// The sums of all groups, in the order of their names.
    pub(crate) groups: Vec<Group>,
}

/// What escaped an observer since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Losses {
    pub(crate) flows_without_slot: u64,
    pub(crate) records_dropped: u64,
    pub(crate) acks_missed: u64,
}

impl Losses {
    /// Each kind: the metric's name, how many there were, and what happened to them, to be read
    /// after the number. Each has a row of its name in docs/runbook.md.
    pub(crate) fn each(&self) -> [(&'static str, u64, &'static str); 3] {
        [
            (
                "observer_flows_without_slot",
                self.flows_without_slot,
                "flows found no slot and were not observed: raise --slots, or select fewer flows",
            ),
            (
                "observer_records_dropped",
                self.records_dropped,
                "records were lost because the observer was behind: their windows are in no \
                 figure; give it more processor time, or select fewer flows",
            ),
            (
                "observer_acks_missed",
                self.acks_missed,
                "ACKs were missed because a traced program was interrupted by another ACK on its \
                 CPU: what they acknowledged is in no figure",
            ),
        ]
    }
}

/// The page with what was observed.
pub(crate) fn encode(observed: Observed) -> String {
    page::encode(observed)
}

impl Collector for Observed {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        page.of_observer(self)?;
        page.of_groups(&self.groups)
    }
}

/// A count of the groups: name, help text, unit and value.
type GroupCount = (&'static str, &'static str, Option<Unit>, fn(&Sums) -> u64);

const GROUP_COUNTS: [GroupCount; 9] = [
    (
        "observed_opened_flows",
        "flows that were opened; many beside few open ones are short",
        None,
        |sums| sums.opened,
    ),
    (
        "observed_sent",
        "payload that was sent, retransmissions included; without \
         rlcc_observed_retransmitted_bytes and divided by rlcc_observed_sending_seconds it is the \
         mean rate of a flow. Lower under one congestion control than under the others of a \
         cgroup: it yields to them, or its applications have less to send",
        Some(Unit::Bytes),
        |sums| sums.sent_bytes,
    ),
    (
        "observed_retransmitted",
        "payload that was sent again; more than rlcc_observed_lost_bytes where timeouts send again \
         what had arrived",
        Some(Unit::Bytes),
        |sums| sums.retransmitted_bytes,
    ),
    (
        "observed_acked",
        "payload that was acknowledged, in whole segments: a short message counts as one",
        Some(Unit::Bytes),
        |sums| sums.measured.acked_bytes,
    ),
    (
        "observed_lost",
        "payload that was marked lost, in whole segments; divided by itself and \
         rlcc_observed_acked_bytes it is the loss. Higher under one congestion control than under \
         the others of a cgroup: it overruns the paths",
        Some(Unit::Bytes),
        |sums| sums.measured.lost_bytes,
    ),
    (
        "observed_marked",
        "payload that was acknowledged with the ECN echo, in whole segments; rises behind an AQM",
        Some(Unit::Bytes),
        |sums| sums.measured.marked_bytes,
    ),
    (
        "observed_timeouts",
        "retransmission timeouts; they rise where whole windows are lost, or paths break",
        None,
        |sums| sums.measured.timeouts,
    ),
    (
        "observed_windows",
        "windows of flows, ten a second for each busy flow",
        None,
        |sums| sums.windows,
    ),
    (
        "observed_application_limited_windows",
        "windows in which the application had too little to send; where they are most of \
         rlcc_observed_windows, rates are the applications' and not the congestion control's",
        None,
        |sums| sums.application_limited_windows,
    ),
];

/// Durations of the groups: name, help text and value.
type GroupDurations = (&'static str, &'static str, fn(&Sums) -> &Distribution);

const GROUP_DURATIONS: [GroupDurations; 2] = [
    (
        "observed_srtt",
        "smoothed RTT, the mean of each window; differs between the congestion controls of a \
         cgroup where their peers do, or where one fills queues all the time",
        |sums| &sums.srtt,
    ),
    (
        "observed_queueing_delay",
        "RTT above the smallest that the flow has seen in the last seconds, the mean of each \
         window; a queue that is never empty is not in it. Higher under one congestion control \
         than under the others of a cgroup: it fills the queues of its paths",
        |sums| &sums.queueing,
    ),
];

impl Page<'_> {
    fn of_observer(&mut self, observed: &Observed) -> fmt::Result {
        self.info(
            "observer",
            "the observer, and how it sees ACKs: exactly by fentry, by received segments otherwise",
            &[
                ("version", env!("CARGO_PKG_VERSION")),
                ("way", observed.way.as_str()),
            ],
        )?;
        self.gauge(
            "observer_slots",
            "flows that can be observed at the same time",
            None,
            observed.slots,
        )?;
        self.gauge(
            "observer_live_flows",
            "flows that are observed; beyond rlcc_observer_slots, further ones are not",
            None,
            observed.live,
        )?;
        self.gauge(
            "observer_cgroups",
            "cgroups with a label of their own; when --cgroup-labels have one, further ones count \
             as `other`",
            None,
            observed.cgroups,
        )?;
        for (name, count, meaning) in observed.losses.each() {
            let help = format!("should not rise: {meaning}; Counters in docs/runbook.md");
            self.counter(name, &help, count)?;
        }
        Ok(())
    }

    fn of_groups(&mut self, groups: &[Group]) -> fmt::Result {
        self.of_each(
            groups,
            "observed_flows",
            "flows that are open; none under one congestion control: sockets of the cgroup choose \
             another one",
            (None, MetricType::Gauge),
            |metric, sums| metric.encode_gauge(&sums.open),
        )?;
        for (name, help, unit, value) in GROUP_COUNTS {
            let kind = (unit.as_ref(), MetricType::Counter);
            self.of_each(groups, name, help, kind, |metric, sums| {
                metric.encode_counter::<NoLabelSet, u64, f64>(&value(sums), None)
            })?;
        }
        self.of_each(
            groups,
            "observed_sending",
            "time in which flows sent or waited for ACKs; it rises by a second each second for \
             each flow that always does",
            (Some(&Unit::Seconds), MetricType::Counter),
            |metric, sums| {
                let seconds = sums.measured.ns as f64 / 1e9;
                metric.encode_counter::<NoLabelSet, f64, f64>(&seconds, None)
            },
        )?;
        for (name, help, durations) in GROUP_DURATIONS {
            let kind = (Some(&Unit::Seconds), MetricType::Histogram);
            self.of_each(groups, name, help, kind, |metric, sums| {
                add_durations(metric, durations(sums))
            })?;
        }
        Ok(())
    }

    /// A family with a sample of each group.
    fn of_each(
        &mut self,
        groups: &[Group],
        name: &str,
        help: &str,
        (unit, kind): (Option<&Unit>, MetricType),
        add: impl Fn(&mut MetricEncoder<'_>, &Sums) -> fmt::Result,
    ) -> fmt::Result {
        let mut family = self.family(name, help, unit, kind)?;
        for group in groups {
            let labels = [
                ("congestion_control", &*group.congestion_control),
                ("cgroup", &*group.cgroup),
            ];
            add(&mut family.encode_family(&labels)?, &group.sums)?;
        }
        Ok(())
    }
}

/// The page of an observer that has seen flows of one group.
#[cfg(test)]
pub(crate) fn page() -> String {
    encode(tests::observed(&[("/web", "rlcc")]))
}

#[cfg(test)]
pub(super) mod tests {
    use cc_core::objective::Measured;

    use super::{super::page::tests::parse, *};

    /// What an observer has seen of these groups: names of the cgroup and of the congestion
    /// control.
    pub(in crate::metrics) fn observed(groups: &[(&str, &str)]) -> Observed {
        let mut sums = Sums {
            open: 2,
            opened: 7,
            windows: 2,
            measured: Measured {
                ns: 1_500_000_000,
                acked_bytes: 10_000,
                lost_bytes: 500,
                ..Measured::default()
            },
            ..Sums::default()
        };
        for ms in [0.2, 40.0] {
            sums.queueing.add(ms);
        }
        let groups = groups.iter().map(|&(cgroup, control)| Group {
            cgroup: cgroup.into(),
            congestion_control: control.into(),
            sums: sums.clone(),
        });
        Observed {
            way: "fentry".into(),
            slots: 16,
            live: 4,
            cgroups: 1,
            losses: Losses {
                records_dropped: 3,
                ..Losses::default()
            },
            groups: groups.collect(),
        }
    }

    #[test]
    fn each_group_has_its_labels() {
        let page = encode(observed(&[("/web", "cubic"), ("/web", "rlcc")]));
        let samples = parse(&page);
        let value = |name: &str| samples.get(name).copied().unwrap_or(f64::NAN);
        for control in ["cubic", "rlcc"] {
            let labels = format!("congestion_control=\"{control}\",cgroup=\"/web\"");
            assert_eq!(value(&format!("rlcc_observed_flows{{{labels}}}")), 2.0);
            for (name, expected) in [
                ("opened_flows", 7.0),
                ("acked_bytes", 10_000.0),
                ("lost_bytes", 500.0),
                ("sending_seconds", 1.5),
                ("timeouts", 0.0),
            ] {
                let name = format!("rlcc_observed_{name}_total{{{labels}}}");
                assert_eq!(value(&name), expected, "{name}: {page}");
            }
            let delay = "rlcc_observed_queueing_delay_seconds";
            assert_eq!(value(&format!("{delay}_count{{{labels}}}")), 2.0);
            assert_eq!(value(&format!("{delay}_sum{{{labels}}}")), 0.0402);
            let bucket = format!("{delay}_bucket{{le=\"0.05\",{labels}}}");
            assert_eq!(value(&bucket), 2.0, "{page}");
        }
        assert_eq!(value("rlcc_observer_records_dropped_total"), 3.0);
        assert_eq!(value("rlcc_observer_live_flows"), 4.0);
    }

    #[test]
    fn any_name_of_a_cgroup_is_a_label() {
        let page = encode(observed(&[("/a \"b\"\\x2d\nc", "cubic")]));
        // Each sample is on a line of its own.
        parse(&page);
        assert!(page.contains(r#"cgroup="/a \"b\"\\x2d\nc""#), "{page}");
    }

    #[test]
    fn without_flows_the_families_are_described() {
        let page = encode(observed(&[]));
        parse(&page);
        assert!(page.contains("# TYPE rlcc_observed_flows gauge"), "{page}");
    }
}
