//! A snapshot as text, for `cc-agent status`.

use std::fmt;

use super::{
    CanaryStatus, Incident, Percentiles, RecordingStatus, RemoteCounts, RemoteStatus, Snapshot,
};
use crate::canary::{ArmReport, CanaryBy};

/// The latest incidents that are shown.
const INCIDENTS: usize = 5;
/// The cgroups by command that are shown.
const CGROUPS: usize = 3;

impl fmt::Display for Incident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.trouble { "! " } else { "" };
        write!(f, "{} {mark}{}", self.at, self.text)
    }
}

impl fmt::Display for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let recent = self.since(None);
        writeln!(
            f,
            "{}: cc-agent {}, process {}, up {}, {} s of processor time ({} %)",
            self.name,
            self.version,
            self.pid,
            clock(self.uptime_s),
            digits(self.cpu_s),
            digits(100.0 * recent.cpu),
        )?;
        if let Some(remote) = &self.remote {
            writeln!(f, "server      {remote}")?;
        }
        let local = if self.remote.is_some() { "local: " } else { "" };
        writeln!(f, "policy      {local}{}", self.policy)?;
        if let Some(served) = &self.served {
            writeln!(f, "serves      {served}")?;
        }
        if let Some(cgroups) = &self.cgroups {
            write!(f, "cgroups     {} by command", cgroups.len())?;
            for (index, directory) in cgroups.iter().take(CGROUPS).enumerate() {
                let head = if index == 0 { ": " } else { ", " };
                write!(f, "{head}{}", directory.display())?;
            }
            match cgroups.len().saturating_sub(CGROUPS) {
                0 => writeln!(f)?,
                more => writeln!(f, ", and {more} more (`cc-agent cgroup list`)")?,
            }
        }
        write!(
            f,
            "flows       {} live, {} slots",
            self.live_flows, self.slots
        )?;
        if self.adopted_flows > 0 {
            write!(f, ", {} taken over from a former agent", self.adopted_flows)?;
        }
        if let Some(gap_ms) = self.takeover_gap_ms {
            write!(f, " within {} ms", digits(gap_ms))?;
        }
        match self.flows_on_former_programs {
            0 => writeln!(f)?,
            former => writeln!(f, ", {former} on its BPF programs")?,
        }
        writeln!(
            f,
            "decisions   {}, {} a second since the start",
            self.agent.decisions,
            digits(recent.decisions_per_s),
        )?;
        writeln!(f, "delay       {}", self.decision_delay)?;
        write!(f, "inference   {}", self.inference)?;
        if self.inference.count > 0 {
            write!(f, "; {} flows in a batch", digits(self.mean_batch))?;
        }
        if let Some(canary) = &self.canary {
            write!(f, "\n{canary}")?;
        }
        if let Some(news) = &self.news {
            write!(f, "\nnews        {news}")?;
        }
        let latest = self.incidents.len().saturating_sub(INCIDENTS);
        for (index, incident) in self.incidents[latest..].iter().enumerate() {
            let head = if index == 0 {
                "\nhistory     "
            } else {
                "\n            "
            };
            write!(f, "{head}{incident}")?;
        }
        if let Some(differs) = &self.differs {
            write!(f, "\nbefore      {differs}")?;
        }
        if let Some(found) = self.default_taken_by() {
            write!(
                f,
                "\ndefault     {found}, set by somebody else in the place of {}",
                self.name
            )?;
        }
        if let Some(recording) = &self.recording {
            write!(f, "\nrecording   {recording}")?;
        }
        if let Some(capabilities) = &self.capabilities {
            write!(f, "\nprivileges  {capabilities}")?;
        }
        let mut counters = self.counters();
        counters.retain(|count| count.value > 0);
        if counters.is_empty() {
            return Ok(());
        }
        let name_width = counters.iter().map(|c| c.name.len()).max().unwrap_or(0);
        let value_width = counters
            .iter()
            .map(|c| c.value.to_string().len())
            .max()
            .unwrap_or(0);
        write!(f, "\n\ncounters")?;
        for count in &counters {
            write!(
                f,
                "\n  {:name_width$}  {:>value_width$}",
                count.name, count.value
            )?;
            if let Some(entry) = count.entry {
                write!(f, "  {} See {entry} in docs/runbook.md.", count.meaning)?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for CanaryStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = match self.by {
            CanaryBy::Time => format!("flows in its blocks of {} s", self.block_s),
            CanaryBy::Path => "paths".to_owned(),
            CanaryBy::Host => "hosts".to_owned(),
        };
        write!(
            f,
            "candidate   {} has {} % of the {share}: {} after {} of {} {}",
            self.candidate,
            self.percent,
            self.finding,
            self.units(),
            self.units_needed,
            self.by.units(),
        )?;
        for (arm, counts) in [
            ("current", &self.incumbent_flows),
            ("candidate", &self.candidate_flows),
        ] {
            let ArmReport {
                flows, decisions, ..
            } = counts;
            write!(f, "\n  {arm:9} {flows} flows, {decisions} decisions")?;
        }
        for found in self.metrics.iter().filter(|found| found.units > 0) {
            write!(f, "\n  {found}: {}", found.finding)?;
        }
        for found in &self.neighbours {
            write!(f, "\n  beside it, {found}: {}", found.finding)?;
        }
        if let Some(shift) = &self.shift {
            write!(f, "\n  {shift}")?;
        }
        Ok(())
    }
}

impl fmt::Display for RemoteStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RemoteCounts {
            asked,
            answered,
            late,
            lost,
            refused,
            local,
        } = self.counts;
        write!(f, "{}", self.server)?;
        if let Some(policy) = &self.policy {
            write!(f, ": {policy}")?;
        }
        match &self.trouble {
            None if self.connected => write!(f, "; connected")?,
            None => write!(f, "; not connected yet")?,
            Some(trouble) => write!(f, "; not connected: {trouble}")?,
        }
        write!(
            f,
            "\n  {asked} asked, {answered} answered, {late} late, {lost} lost, {refused} refused; \
             {local} decided by the local policy"
        )
    }
}

impl fmt::Display for RecordingStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} rows, {} files completed, {} MB there, addresses {}",
            self.directory.display(),
            self.rows,
            self.files,
            digits(self.bytes as f64 / 1e6),
            self.addresses,
        )?;
        match &self.trouble {
            Some(trouble) => write!(f, "; {trouble}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Percentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.count == 0 {
            return write!(f, "none yet");
        }
        write!(
            f,
            "p50 {} ms, p99 {} ms, max {} ms",
            digits(self.p50_ms),
            digits(self.p99_ms),
            digits(self.max_ms),
        )
    }
}

/// Formats a number with about three significant digits, without a unit.
pub fn digits(value: f64) -> String {
    // The limits are those of the rounded numbers, so that 9.996 does not become 10.00.
    match value.abs() {
        size if size < 9.995 => format!("{value:.2}"),
        size if size < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// Formats a time in seconds as `H:MM:SS`.
pub fn clock(seconds: f64) -> String {
    let seconds = seconds.max(0.0) as u64;
    format!(
        "{}:{:02}:{:02}",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    )
}

#[cfg(test)]
mod tests {
    use super::{super::samples::*, *};
    use crate::canary::{Comparison, Finding, Metric, Shift};

    #[test]
    fn numbers_keep_three_digits() {
        let cases = [
            (0.0, "0.00"),
            (9.996, "10.0"),
            (99.96, "100"),
            (12_345.6, "12346"),
        ];
        for (value, text) in cases {
            assert_eq!(digits(value), text);
        }
        assert_eq!(clock(3_723.9), "1:02:03");
    }

    #[test]
    fn the_summary_shows_what_counts_and_explains_trouble() {
        let mut snapshot = busy(3);
        snapshot.adopted_flows = 2;
        snapshot.agent.decisions_late = 17;
        snapshot.recording = Some(RecordingStatus {
            directory: "/var/lib/rlcc".into(),
            addresses: "hashed".into(),
            rows: 4_000,
            rows_lost_behind: 5,
            files: 2,
            bytes: 1_234_567,
            trouble: Some("no space".into()),
            ..RecordingStatus::default()
        });
        let found = |metric, incumbent, candidate, tolerated| Comparison {
            metric,
            incumbent,
            candidate,
            tolerated,
            units: 12,
            finding: Finding::NotWorse,
        };
        snapshot.canary = Some(CanaryStatus {
            candidate: "new.onnx".into(),
            by: CanaryBy::Time,
            percent: 10.0,
            block_s: 5.0,
            units_needed: 20,
            finding: Finding::Open,
            metrics: vec![
                found(Metric::Objective, 7.25, 7.5, 6.75),
                found(Metric::Loss, 0.01, 0.002, 0.0175),
            ],
            neighbours: vec![found(Metric::Throughput, 20.0, 19.5, 18.0)],
            shift: Some(Shift {
                own: 1.25,
                neighbours: 0.75,
                flows: [6, 40],
            }),
            incumbent_flows: ArmReport {
                flows: 90,
                decisions: 1_234,
                ..ArmReport::default()
            },
            candidate_flows: ArmReport {
                flows: 9,
                ..ArmReport::default()
            },
        });
        snapshot.news = Some("old.onnx was withdrawn".into());
        snapshot.served = Some("sockets that choose it; never to 10.0.0.0/8".into());
        snapshot.capabilities = Some("CAP_NET_ADMIN".into());
        snapshot.differs = Some("the policy last put into service was new.onnx".into());
        let text = snapshot.to_string();
        for part in [
            "candidate   new.onnx has 10 % of the flows in its blocks of 5 s: open after 12 of 20 \
             pairs of blocks",
            "  current   90 flows, 1234 decisions\n  candidate 9 flows, 0 decisions\n",
            "  objective 7.500, against 7.250; at least 6.750 is tolerated: not worse\n",
            "  loss 0.20 %, against 1.00 %; at most 1.75 % is tolerated: not worse\n",
            "  beside it, throughput 19.50 Mbit/s, against 20.00 Mbit/s; at least 18.00 Mbit/s is \
             tolerated: not worse\n",
            "  since the canary began, the throughput of its 6 flows is 1.25 times what it was, \
             and that of 40 flows of the current policy beside them 0.75 times\n",
            "news        old.onnx was withdrawn",
            "before      the policy last put into service was new.onnx",
            "serves      sockets that choose it; never to 10.0.0.0/8\n",
            "privileges  CAP_NET_ADMIN",
            "rlcc: cc-agent 0.1.0, process 4321, up 0:00:10, 0.40 s of processor time (4.00 %)",
            "3 live, 16384 slots, 2 taken over",
            "270, 27.0 a second",
            "p50 0.31 ms, p99 1.25 ms, max 7.50 ms",
            "inference   none yet",
            "recording   /var/lib/rlcc: 4000 rows, 2 files completed, 1.23 MB there, addresses \
             hashed; no space",
            "rows_lost_behind     5  Rows lost because the disk was behind. They are missing in \
             recordings; flows are not concerned. See RlccRowsLost in docs/runbook.md.",
            "decisions_late      17  Decisions later than 20 ms",
        ] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
        // Counters at zero and the meanings of ordinary ones would only hide what matters.
        assert!(
            !text.contains("slots_leaked") && text.contains("windows            300\n"),
            "{text}"
        );
    }

    #[test]
    fn cgroups_by_command_are_counted_and_the_first_are_shown() {
        let mut snapshot = idle();
        assert!(!snapshot.to_string().contains("cgroups"));
        for (directories, expected) in [
            (vec![], "\ncgroups     0 by command\nflows"),
            (
                vec!["/a", "/b"],
                "\ncgroups     2 by command: /a, /b\nflows",
            ),
            (
                vec!["/a", "/b", "/c", "/d", "/e"],
                "\ncgroups     5 by command: /a, /b, /c, and 2 more (`cc-agent cgroup list`)\n",
            ),
        ] {
            snapshot.cgroups = Some(directories.into_iter().map(Into::into).collect());
            let text = snapshot.to_string();
            assert!(text.contains(expected), "{text}");
        }
    }

    #[test]
    fn an_agent_without_flows_has_no_counters_to_show() {
        let text = idle().to_string();
        assert!(
            !text.contains("counters") && text.contains("delay       none yet"),
            "{text}"
        );
    }
}
