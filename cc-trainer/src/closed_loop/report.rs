//! The reports of a loop for people: a line a step, and a table of all.

use std::fmt::Write as _;

use super::{
    figures::{Figure, Measured, TurnReport},
    state::LoopState,
};

/// The report of a step in a line.
pub(super) fn line(report: &TurnReport) -> String {
    let mut line = report.name.clone();
    if let Some(decision) = &report.decision {
        let _ = write!(line, ": {} ({})", decision.word(), decision.reason());
    }
    if let Some(Measured {
        power,
        throughput_mbps,
        p95_owd_ms,
        loss,
        beside_cubic,
        entropy,
        ..
    }) = &report.measured
    {
        let _ = write!(
            line,
            "; power {power:.1}{}, {:.2} Mbit/s, p95 delay {:.1} ms, loss {:.2} %{}, entropy \
             {entropy:.3}",
            against("turn 0's", report.against_first),
            throughput_mbps.mean,
            p95_owd_ms.mean,
            100.0 * loss.mean,
            beside_cubic.map_or_else(String::new, |share| format!(
                ", {:.0} % beside cubic",
                100.0 * share.mean
            )),
        );
    }
    if report.is_regression() {
        line += "; WORSE than before on fresh runs";
    }
    line
}

/// A ratio with whose it is.
fn against(whose: &str, ratio: Option<Figure>) -> String {
    ratio.map_or_else(String::new, |ratio| format!(" ({ratio:.2} × {whose})"))
}

/// The table of all steps, in Markdown.
pub(super) fn markdown(state: &LoopState) -> String {
    let config = &state.config;
    let mut text = format!(
        "# A closed loop\n\nBegan with `{}`, served `{}`, on `{}`. Intervals are at 95 %, over \
         rounds of runs.\n\n\
         | step | candidate | power, Mbit/s per s | × turn 0 | × before | Mbit/s | p95 delay, ms | \
         loss, % | share beside cubic | entropy, nats | effective sample size |\n\
         |---|---|---|---|---|---|---|---|---|---|---|\n",
        config.policy, config.serving, config.scenarios,
    );
    for report in &state.done {
        text += &row(report);
    }
    text += "\n## Why\n\n";
    for report in &state.done {
        if let Some(decision) = &report.decision {
            let _ = writeln!(
                text,
                "- **{}** {}: {}",
                report.name,
                decision.word(),
                decision.reason()
            );
        }
    }
    text
}

fn row(report: &TurnReport) -> String {
    let dash = || "–".to_owned();
    let shown = |figure: Option<Figure>, digits: usize, factor: f64| {
        figure.map_or_else(dash, |Figure { mean, interval }| {
            let interval = interval.map(|(low, high)| (factor * low, factor * high));
            let mean = factor * mean;
            format!("{:.digits$}", Figure { mean, interval })
        })
    };
    let measured = report.measured.as_ref();
    let cells = [
        report.name.clone(),
        report
            .decision
            .as_ref()
            .map_or_else(dash, |decision| decision.word().to_owned()),
        shown(measured.map(|m| m.power), 1, 1.0),
        shown(report.against_first, 2, 1.0),
        shown(report.against_former, 2, 1.0),
        shown(measured.map(|m| m.throughput_mbps), 2, 1.0),
        shown(measured.map(|m| m.p95_owd_ms), 1, 1.0),
        shown(measured.map(|m| m.loss), 2, 100.0),
        shown(measured.and_then(|m| m.beside_cubic), 2, 1.0),
        measured.map_or_else(dash, |m| format!("{:.3}", m.entropy)),
        report.estimated.as_ref().map_or_else(dash, |estimated| {
            format!("{:.0} of {}", estimated.effective, estimated.clusters)
        }),
    ];
    format!("| {} |\n", cells.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::closed_loop::gate::Decision;

    #[test]
    fn a_step_is_a_line_and_a_row() {
        let figure = |mean: f64| Figure {
            mean,
            interval: Some((0.9 * mean, 1.1 * mean)),
        };
        let report = TurnReport {
            name: "turn-2".to_owned(),
            decision: Some(Decision::Promoted {
                reason: "it passed".to_owned(),
            }),
            measured: Some(Measured {
                power: figure(200.0),
                throughput_mbps: figure(8.0),
                p95_owd_ms: figure(40.0),
                loss: figure(0.001),
                beside_cubic: Some(figure(0.3)),
                entropy: 1.25,
                rounds: Vec::new(),
            }),
            against_first: Some(figure(1.3)),
            against_former: Some(Figure {
                mean: 0.8,
                interval: Some((0.7, 0.9)),
            }),
            ..TurnReport::default()
        };
        let line = line(&report);
        for part in [
            "turn-2: promoted (it passed); power 200.0 [180.0, 220.0]",
            " (1.30 [1.17, 1.43] × turn 0's)",
            "8.00 Mbit/s, p95 delay 40.0 ms, loss 0.10 %, 30 % beside cubic, entropy 1.250",
            "WORSE than before",
        ] {
            assert!(line.contains(part), "{line}");
        }
        let row = row(&report);
        assert!(
            row.starts_with("| turn-2 | promoted | 200.0 [180.0, 220.0] | 1.30 ["),
            "{row}"
        );
        assert!(
            row.contains("| 0.10 [0.09, 0.11] | 0.30 [0.27, 0.33] | 1.250 | – |"),
            "{row}"
        );
        let refused = TurnReport {
            name: "trial-a".to_owned(),
            ..TurnReport::default()
        };
        let row = super::row(&refused);
        assert_eq!(row.matches(" – ").count(), 10, "{row}");
    }
}
