//! One flow's windows and the decisions on them, as `cc-agent trace` shows them.

use std::fmt;

use cc_ebpf::Mode;
use serde::{Deserialize, Serialize};

use super::{digits, flow::mode_name};

/// A window of a flow that is traced, and what was decided on it: a line of JSON over the agent's
/// socket.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TracedWindow {
    /// When the window ended, ns (`CLOCK_MONOTONIC`).
    pub end_ns: u64,
    /// Number of the window in its flow.
    pub window: u32,
    /// What set the flow's cwnd.
    #[serde(with = "mode_name")]
    pub mode: Mode,
    /// Number of ACKs that arrived in the window.
    pub acks: u32,
    /// Throughput since the window before, Mbit/s.
    pub rate_mbps: f64,
    /// Mean smoothed RTT of the window, ms.
    pub srtt_ms: f64,
    /// Mean queueing delay of the window, ms.
    pub queue_ms: f64,
    /// Lost bytes over lost and acknowledged bytes.
    pub loss: f64,
    /// The window's reward under the settings of its policy.
    pub reward: f64,
    /// The cwnd at the window's end, segments.
    pub cwnd: u32,
    /// The decision; `None` when there was none.
    pub decision: Option<TracedDecision>,
    /// Why there was no decision; `None` when there was one.
    pub reason: Option<String>,
    /// Windows before this one that the client was not told of, because it read too slowly.
    pub lost: u64,
    /// Cookie of the flow's socket, by which `ss -e` names it; 0 when unknown.
    #[serde(default)]
    pub cookie: u64,
    /// Inode number of the socket's network namespace; 0 when unknown.
    #[serde(default)]
    pub netns: u32,
}

/// What a policy decided on a window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TracedDecision {
    /// The action as the action space writes it, or `=N` for a cwnd that was set to N segments.
    pub action: String,
    /// The probability of the action; `None` where the policy sets the cwnd directly.
    pub probability: Option<f32>,
    /// The cwnd that the action was applied to, segments.
    pub base_cwnd: u32,
    /// The cwnd that was decided, segments.
    pub cwnd: u32,
    /// Delay from the window's end to the publication, ms.
    pub delay_ms: f64,
}

impl fmt::Display for TracedWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lost > 0 {
            writeln!(f, "({} windows are not shown)", self.lost)?;
        }
        write!(
            f,
            "{:.2} s: window {} {}, {} acks, {} Mbit/s, srtt {} ms, queue {} ms, loss {} %, cwnd \
             {}: ",
            self.end_ns as f64 / 1e9,
            self.window,
            self.mode.name(),
            self.acks,
            digits(self.rate_mbps),
            digits(self.srtt_ms),
            digits(self.queue_ms),
            digits(100.0 * self.loss),
            self.cwnd,
        )?;
        match &self.decision {
            None => write!(f, "{}", self.reason.as_deref().unwrap_or("no decision")),
            Some(decision) => {
                write!(f, "{}", decision.action)?;
                if let Some(probability) = decision.probability {
                    write!(f, " (probability {probability:.2})")?;
                }
                let TracedDecision {
                    base_cwnd, cwnd, ..
                } = decision;
                let delay = digits(decision.delay_ms);
                write!(f, " on {base_cwnd} makes {cwnd} after {delay} ms")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_window_and_the_decision_or_why_there_is_none() {
        let mut window = TracedWindow {
            end_ns: 12_340_000_000,
            window: 7,
            mode: Mode::Decided,
            acks: 12,
            rate_mbps: 3.5,
            srtt_ms: 20.0,
            queue_ms: 1.25,
            loss: 0.01,
            reward: 0.5,
            cwnd: 10,
            decision: Some(TracedDecision {
                action: "*2".into(),
                probability: Some(0.75),
                base_cwnd: 10,
                cwnd: 20,
                delay_ms: 0.4,
            }),
            reason: None,
            lost: 0,
            cookie: 0x9cbe7,
            netns: 4_026_531_840,
        };
        let line = "12.34 s: window 7 decided, 12 acks, 3.50 Mbit/s, srtt 20.0 ms, queue 1.25 ms, \
                    loss 1.00 %, cwnd 10: *2 (probability 0.75) on 10 makes 20 after 0.40 ms";
        assert_eq!(window.to_string(), line);
        let json = serde_json::to_string(&window).expect("serialises");
        assert_eq!(
            serde_json::from_str::<TracedWindow>(&json).expect("parses"),
            window
        );
        window.decision = None;
        window.reason = Some("unusable answer".into());
        window.lost = 3;
        let text = window.to_string();
        assert!(text.starts_with("(3 windows are not shown)\n"), "{text}");
        assert!(text.ends_with("cwnd 10: unusable answer"), "{text}");
    }
}
