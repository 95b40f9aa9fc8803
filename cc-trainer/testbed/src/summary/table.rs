//! Tables of mean values as text.

use super::{
    Application, Summary,
    aggregate::{Estimate, Group, MEASURES, MEASURES_OF_SHARING, Measure, groups},
    means, splits,
};

/// Formats a table for a terminal, with one block per scenario and aligned columns. It shows means
/// over the valid runs with their 95 % bootstrap intervals in brackets; several scenarios are
/// followed by their geometric means.
pub fn text(summary: &Summary) -> String {
    let block = |title: &str, rows: &[Vec<String>]| format!("{title}\n{}", aligned(rows));
    let notes = splits::notes(&summary.settings).into_iter();
    let notes: String = notes.map(|note| format!("{note}\n")).collect();
    let gap = if notes.is_empty() { "" } else { "\n" };
    by_scenario(summary, block) + &applications(summary, block) + gap + &notes
}

/// Formats the same table in Markdown.
pub fn markdown(summary: &Summary) -> String {
    let block =
        |title: &str, rows: &[Vec<String>]| format!("### {}\n\n{}", escape(title), piped(rows));
    let notes = splits::notes(&summary.settings).into_iter();
    let notes: String = notes.map(|note| format!("- {}\n", escape(&note))).collect();
    let gap = if notes.is_empty() { "" } else { "\n" };
    by_scenario(summary, block) + &applications(summary, block) + gap + &notes
}

/// Formats rows for a terminal, with aligned columns.
pub fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:<width$}"));
        format!("  {}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

/// Formats rows in Markdown, the first one as the head.
pub(crate) fn piped(rows: &[Vec<String>]) -> String {
    let line = |row: &Vec<String>| {
        let cells: Vec<_> = row.iter().map(|cell| escape(cell)).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let rule = |row: &Vec<String>| format!("|{}\n", " --- |".repeat(row.len()));
    let head = rows.iter().take(1).map(|row| line(row) + &rule(row));
    head.chain(rows.iter().skip(1).map(line)).collect()
}

/// Formats a number with three significant digits, but no integer digit removed; a dash for a
/// number that is not finite.
pub fn figure(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    let decimals = match value.abs() {
        size if size >= 99.95 || size == 0.0 => 0,
        size if size >= 9.995 => 1,
        size if size >= 0.9995 => 2,
        _ => 3,
    };
    let figure = format!("{value:.decimals$}");
    // Rounding can leave a negative zero.
    if figure
        .trim_start_matches('-')
        .chars()
        .all(|c| c == '0' || c == '.')
    {
        return "0".to_owned();
    }
    figure
}

/// Formats a setting as [`figure`] does, without trailing zeros.
pub fn setting(value: f64) -> String {
    let figure = figure(value);
    match figure.contains('.') {
        true => figure
            .trim_end_matches('0')
            .trim_end_matches('.')
            .to_owned(),
        false => figure,
    }
}

/// Formats a cell: the mean, its interval, and the number of runs behind it when the measure is
/// undefined in some valid runs.
pub fn cell(group: &Group<'_>, measure: &Measure) -> String {
    let Some(Estimate {
        mean,
        interval,
        samples,
    }) = group.estimate(measure)
    else {
        return "–".to_owned();
    };
    let valid = group.valid().count();
    let interval = interval.map(|(low, high)| format!(" [{}, {}]", figure(low), figure(high)));
    let some = (samples < valid).then(|| format!(" ({samples} of {valid} runs)"));
    figure(mean) + &interval.unwrap_or_default() + &some.unwrap_or_default()
}

/// Measures that are shown for these groups.
pub fn measures(groups: &[Group<'_>]) -> Vec<Measure> {
    let is_shared = groups.iter().any(Group::is_shared);
    let sharing = MEASURES_OF_SHARING.into_iter().filter(|_| is_shared);
    MEASURES.into_iter().chain(sharing).collect()
}

/// Heading of a measure's column, with the unit.
pub fn heading(measure: &Measure) -> String {
    match measure.unit {
        "" => measure.name.to_owned(),
        unit => format!("{}, {unit}", measure.name),
    }
}

fn by_scenario(summary: &Summary, block: impl Fn(&str, &[Vec<String>]) -> String) -> String {
    let groups = groups(summary);
    let scenarios = groups.chunk_by(|a, b| a.scenario == b.scenario);
    let mut blocks: Vec<String> = scenarios
        .map(|groups| block(groups[0].scenario, &rows(groups)))
        .collect();
    let means = means::of(&groups);
    if let Some(first) = means.first().filter(|first| first.scenarios > 1) {
        let title = format!("geometric mean of {} scenarios", first.scenarios);
        blocks.push(block(&title, &overall(&means)));
    }
    blocks.join("\n")
}

/// A block for each kind of messages on each scenario; empty where all flows are bulk flows.
fn applications(summary: &Summary, block: impl Fn(&str, &[Vec<String>]) -> String) -> String {
    let kind =
        |a: &Application, b: &Application| (&a.scenario, &a.message) == (&b.scenario, &b.message);
    let cells = summary.applications.chunk_by(kind);
    let blocks = cells.map(|cells| {
        let title = format!("{}: {}", cells[0].scenario, cells[0].message);
        format!("\n{}", block(&title, &application_rows(cells)))
    });
    blocks.collect()
}

/// The rows of one kind of messages on one scenario, with the head.
pub fn application_rows(cells: &[Application]) -> Vec<Vec<String>> {
    let echoes = cells
        .iter()
        .any(|cell| cell.measures.echo_median_ms.is_some());
    let plays = cells.iter().any(|cell| cell.measures.playback.is_some());
    let mut head = vec![
        "scheme",
        "complete",
        "mean, ms",
        "median, ms",
        "p99, ms",
        "first byte, ms",
        "p99, ms",
    ];
    if echoes {
        head.extend(["echo, ms", "p99, ms"]);
    }
    if plays {
        head.extend(["start, ms", "pauses", "paused, s", "bitrate, Mbit/s"]);
    }
    head.extend(["retrans.", "most", "dropped"]);
    let show = |value: Option<f64>| value.map_or("–".to_owned(), figure);
    let with_interval = |value: Option<f64>, interval: Option<(f64, f64)>| {
        let interval = interval.map(|(low, high)| format!(" [{}, {}]", figure(low), figure(high)));
        show(value) + &interval.unwrap_or_default()
    };
    let row = |cell: &Application| {
        let measures = &cell.measures;
        let completion = &measures.completion;
        let mut row = vec![
            cell.scheme.clone(),
            format!("{}/{}", measures.completed, measures.count),
            with_interval(completion.mean_ms, completion.mean_interval_ms),
            with_interval(completion.median_ms, completion.median_interval_ms),
            with_interval(completion.p99_ms, completion.p99_interval_ms),
            show(measures.first_byte_median_ms),
            show(measures.first_byte_p99_ms),
        ];
        if echoes {
            row.extend([show(measures.echo_median_ms), show(measures.echo_p99_ms)]);
        }
        if plays {
            let playback = measures.playback.unwrap_or_default();
            row.extend([
                show(playback.startup_ms),
                playback.stalls.to_string(),
                figure(playback.stalled_s),
                show(playback.bitrate_mbps),
            ]);
        }
        let counts = [
            measures.retransmissions,
            measures.most_retransmissions,
            measures.dropped,
        ];
        row.extend(counts.map(|count| count.to_string()));
        row
    };
    let head = head.into_iter().map(str::to_owned).collect();
    [head].into_iter().chain(cells.iter().map(row)).collect()
}

fn overall(means: &[means::Means<'_>]) -> Vec<Vec<String>> {
    let head = [
        "scheme",
        "throughput, Mbit/s",
        "of the best other's",
        "power, Mbit/s per s",
        "of the best other's",
    ];
    let row = |means: &means::Means<'_>| {
        let cells = [means.throughput, means.power].map(|mean| {
            let ratio = mean.against_best_other.map_or("–".to_owned(), figure);
            [figure(mean.mean), ratio]
        });
        let scheme = [means.scheme.to_owned()];
        scheme
            .into_iter()
            .chain(cells.into_iter().flatten())
            .collect()
    };
    [head.map(str::to_owned).to_vec()]
        .into_iter()
        .chain(means.iter().map(row))
        .collect()
}

fn rows(groups: &[Group<'_>]) -> Vec<Vec<String>> {
    let measures = measures(groups);
    let head = ["scheme".to_owned()]
        .into_iter()
        .chain(measures.iter().map(heading))
        .chain(["valid runs".to_owned()]);
    let row = |group: &Group<'_>| {
        let runs = format!("{}/{}", group.valid().count(), group.runs.len());
        [group.scheme.to_owned()]
            .into_iter()
            .chain(measures.iter().map(|measure| cell(group, measure)))
            .chain([runs])
            .collect()
    };
    [head.collect()]
        .into_iter()
        .chain(groups.iter().map(row))
        .collect()
}

fn escape(cell: &str) -> String {
    cell.replace('\\', "\\\\").replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::{AppMeasures, FlowRun, Host, Run, Settings, Validity, apps::Completion};

    fn summary() -> Summary {
        let run = |scheme: &str, run, throughput_mbps: f64, reasons: &[&str]| Run {
            scenario: "a|b".into(),
            scheme: scheme.into(),
            run,
            throughput_mbps,
            utilization: Some(0.5),
            p95_owd_ms: Some(88.0),
            convergence_s: (run == 0).then_some(3.0),
            flows: vec![FlowRun::default(); 2],
            validity: Validity {
                reasons: reasons.iter().map(|reason| (*reason).to_owned()).collect(),
                ..Validity::default()
            },
            ..Run::default()
        };
        Summary {
            runs: vec![
                run("cubic", 0, 11.0, &[]),
                run("cubic", 1, 12.0, &[]),
                run("cubic", 2, 99.0, &["late"]),
                run("bbr", 0, 7.0, &["late"]),
            ],
            applications: Vec::new(),
            host: Host::default(),
            settings: Settings::default(),
        }
    }

    #[test]
    fn figures_have_three_digits() {
        for (value, shown) in [
            (123.4, "123"),
            (12.34, "12.3"),
            (1.234, "1.23"),
            (0.1234, "0.123"),
            (0.0, "0"),
            (-1e-9, "0"),
            (99.96, "100"),
            (f64::NAN, "–"),
        ] {
            assert_eq!(figure(value), shown);
        }
        assert_eq!([12.0, 0.25, 300.0].map(setting), ["12", "0.25", "300"]);
    }

    #[test]
    fn invalid_runs_are_counted_and_kept_out() {
        let text = text(&summary());
        assert!(text.contains("11.5 [11.0, 12.0]"), "{text}");
        assert!(text.contains("3.00 (1 of 2 runs)"), "{text}");
        assert!(text.contains("2/3"), "{text}");
        assert!(!text.contains("99"), "{text}");
        let bbr = text
            .lines()
            .find(|line| line.contains("bbr"))
            .expect("a row");
        assert!(bbr.contains('–') && bbr.ends_with("0/1"), "{text}");
    }

    #[test]
    fn several_scenarios_are_followed_by_their_geometric_mean() {
        assert!(!text(&summary()).contains("geometric"));
        let mut two = summary();
        two.runs.truncate(1);
        two.runs.extend(two.runs.clone());
        two.runs[1].scenario = "c".into();
        two.runs[1].throughput_mbps = 4.0 * 11.0;
        let text = text(&two);
        // 2 · 11 Mbit/s, and over 88 ms.
        assert!(text.contains("geometric mean of 2 scenarios"), "{text}");
        let row = "cubic   22.0                –                    250                  –\n";
        assert!(text.ends_with(row), "{text}");
    }

    #[test]
    fn messages_of_applications_have_a_block_of_their_own() {
        let mut summary = summary();
        let cell = |scheme: &str, median_ms| Application {
            scenario: "a|b".into(),
            scheme: scheme.into(),
            message: "keystroke".into(),
            measures: AppMeasures {
                count: 12,
                completed: 11,
                completion: Completion {
                    median_ms: Some(median_ms),
                    median_interval_ms: Some((20.0, 30.0)),
                    ..Completion::default()
                },
                echo_median_ms: Some(61.0),
                ..AppMeasures::default()
            },
            ..Application::default()
        };
        summary.applications = vec![cell("cubic", 25.0), cell("bbr", 21.0)];
        let text = text(&summary);
        assert!(text.contains("\na|b: keystroke\n"), "{text}");
        assert!(text.contains("25.0 [20.0, 30.0]"), "{text}");
        assert!(text.contains("11/12") && text.contains("61.0"), "{text}");
        assert!(!text.contains("bitrate"), "no video: {text}");
        let rows = markdown(&summary);
        let rows = rows.lines().rev().take_while(|line| line.starts_with('|'));
        let cells: Vec<usize> = rows.map(|row| row.matches('|').count()).collect();
        assert_eq!(cells, [13; 4], "head, rule and two rows");
    }

    #[test]
    fn markdown_rows_have_one_cell_per_column() {
        let text = markdown(&summary());
        let rows = text.lines().filter(|line| line.starts_with('|'));
        let cells: Vec<usize> = rows.map(|row| row.matches('|').count()).collect();
        assert_eq!(cells, [12; 4], "{text}");
        assert!(text.starts_with("### a\\|b\n"), "{text}");
    }
}
