//! The report of a search as text.

use std::collections::BTreeMap;

use super::{Checked, Found, Judged, Report, Verdict};
use crate::summary::table::{aligned, figure, piped};

/// Formats what was found for a terminal: by kind of link, and the first of the links.
pub fn text(report: &Report, checked: Option<&Checked>) -> String {
    /// Number of links that a terminal shows.
    const SHOWN: usize = 20;
    let mut rows = links(report, checked);
    rows.truncate(1 + SHOWN);
    let mut text = headline(report) + "\n\n" + &aligned(&kinds(report, checked)) + "\n";
    text += &aligned(&rows);
    for note in notes(report, checked) {
        text += &format!("\n{note}\n");
    }
    text
}

/// Formats all of it in Markdown.
pub fn markdown(report: &Report, checked: Option<&Checked>) -> String {
    let mut text = format!("### {}\n\n", headline(report));
    for note in notes(report, checked) {
        text += &format!("{note}\n\n");
    }
    text += "#### By kind of link\n\n";
    text += &piped(&kinds(report, checked));
    text += "\n#### The links\n\n";
    text += &piped(&links(report, checked));
    text
}

/// What was searched, in one line.
fn headline(report: &Report) -> String {
    let settings = &report.settings;
    format!(
        "{} links of {} tried on which {} ({}) loses most to the best of {}",
        report.worst.len(),
        report.tried,
        settings.scheme,
        settings.policy,
        settings.against.join(", ")
    )
}

fn notes(report: &Report, checked: Option<&Checked>) -> Vec<String> {
    let settings = &report.settings;
    let families: Vec<&str> = settings
        .families
        .iter()
        .map(|family| family.name())
        .collect();
    let mut notes = vec![format!(
        "Searched: {}, seed {}; {} of {} regimes have a link. {} links of test or validation sets \
         were left out.",
        families.join(", "),
        settings.seed,
        report.filled,
        report.cells,
        report.of_sets
    )];
    notes.push(match report.is_complete {
        true => format!(
            "`×` is how many times better the best control is: in the search, and in runs with \
             other seeds, {} of each scheme. The links that lost in the search and not in these \
             runs are left out; there were {}.",
            settings.runs, report.vanished
        ),
        false => "The search was ended early: the links were not run again with other seeds, so \
                  some of the losses are luck. The same command continues."
            .to_owned(),
    });
    if let Some(checked) = checked {
        notes.push(verdicts(checked));
    }
    notes
}

/// The result of a check in a few sentences.
fn verdicts(checked: &Checked) -> String {
    let count = |is: fn(&Verdict) -> bool| {
        checked
            .links
            .iter()
            .filter(|link| is(&link.verdict))
            .count()
    };
    let real = count(|verdict| *verdict == Verdict::Real);
    let simulated = count(|verdict| *verdict == Verdict::Simulated);
    let not_judged = count(|verdict| matches!(verdict, Verdict::NotJudged(_)));
    let mut text = format!(
        "Checked on {} ({}) against {}: of {} links judged, {real} losses are real (at least half \
         of the simulator's, as logarithms) and {simulated} are the simulator's.",
        place(checked),
        checked.host.kernel,
        checked.controls.join(", "),
        real + simulated
    );
    if not_judged > 0 {
        let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for link in &checked.links {
            if let Verdict::NotJudged(reason) = &link.verdict {
                reasons.entry(reason).or_default().push(&link.name);
            }
        }
        let reasons: Vec<String> = reasons
            .into_iter()
            .map(|(reason, links)| format!("{} ({reason})", links.join(", ")))
            .collect();
        text += &format!(" {not_judged} could not be judged: {}.", reasons.join("; "));
    }
    if checked.left_out > 0 {
        text += &format!(" {} links were not run.", checked.left_out);
    }
    if checked.is_cancelled {
        text += " The check was ended early; the same command continues.";
    }
    text
}

fn place(checked: &Checked) -> &'static str {
    match checked.on {
        crate::summary::Platform::Kernel => "the kernel",
        crate::summary::Platform::Sim => "the simulator",
    }
}

/// A row for each kind of link, those with the most links first.
fn kinds(report: &Report, checked: Option<&Checked>) -> Vec<Vec<String>> {
    let mut kinds: BTreeMap<&str, Vec<&Found>> = BTreeMap::new();
    for found in &report.worst {
        kinds.entry(&found.kind).or_default().push(found);
    }
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by_key(|(_, links)| std::cmp::Reverse(links.len()));
    let mut head = vec![
        "kind",
        "links",
        "× median",
        "× most",
        "rule",
        "best control",
        "rate, Mbit/s",
        "RTT, ms",
        "buffer, BDP",
    ];
    head.extend(checked.map(|_| "real ÷ judged"));
    let row = |(kind, links): (&str, Vec<&Found>)| {
        let mut times: Vec<f64> = links.iter().map(|found| times(found)).collect();
        times.sort_by(f64::total_cmp);
        let mut row = vec![
            kind.to_owned(),
            links.len().to_string(),
            figure(times[times.len() / 2]),
            times.last().copied().map_or_else(dash, figure),
            links[0].rule.clone(),
            rivals(&links),
            range(&links, |found| found.rate_mbps),
            range(&links, |found| found.rtt_ms),
            range(&links, |found| found.buffer_bdp),
        ];
        row.extend(checked.map(|checked| {
            let of_kind: Vec<&Judged> = links.iter().filter_map(|f| judged(checked, f)).collect();
            let real = of_kind
                .iter()
                .filter(|link| link.verdict == Verdict::Real)
                .count();
            let not = of_kind
                .iter()
                .filter(|link| link.verdict == Verdict::Simulated)
                .count();
            format!("{real} ÷ {}", real + not)
        }));
        row
    };
    let head = head.into_iter().map(str::to_owned).collect();
    std::iter::once(head)
        .chain(kinds.into_iter().map(row))
        .collect()
}

/// A row for each link.
fn links(report: &Report, checked: Option<&Checked>) -> Vec<Vec<String>> {
    let mut head = vec![
        "link",
        "rate, Mbit/s",
        "RTT, ms",
        "buffer, BDP",
        "best control",
        "× search",
        "× again",
    ];
    if checked.is_some() {
        head.extend(["against", "× simulated", "× measured", "verdict"]);
    }
    head.push("description");
    let row = |found: &Found| {
        let mut row = vec![
            found.name.clone(),
            figure(found.rate_mbps),
            figure(found.rtt_ms),
            figure(found.buffer_bdp),
            found.rival.clone(),
            figure(found.found),
            found.again.map_or_else(dash, figure),
        ];
        if let Some(checked) = checked {
            let judged = judged(checked, found);
            let shown = |value: Option<f64>| value.map_or_else(dash, figure);
            row.extend([
                judged
                    .and_then(|link| link.rival.clone())
                    .unwrap_or_else(dash),
                shown(judged.and_then(|link| link.simulated)),
                shown(judged.and_then(|link| link.measured)),
                judged.map_or_else(dash, |link| word(&link.verdict).to_owned()),
            ]);
        }
        row.push(found.description.clone());
        row
    };
    let head = head.into_iter().map(str::to_owned).collect();
    std::iter::once(head)
        .chain(report.worst.iter().map(row))
        .collect()
}

fn word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Real => "real",
        Verdict::Simulated => "the simulator's",
        Verdict::NotJudged(_) => "not judged",
    }
}

fn judged<'a>(checked: &'a Checked, found: &Found) -> Option<&'a Judged> {
    checked.links.iter().find(|link| link.name == found.name)
}

fn times(found: &Found) -> f64 {
    found.again.unwrap_or(found.found)
}

/// The best controls on some links with their numbers of links, the most frequent first.
fn rivals(links: &[&Found]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for found in links {
        *counts.entry(&found.rival).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    let counts = counts.into_iter();
    let counts = counts.map(|(rival, count)| format!("{rival} {count}"));
    counts.collect::<Vec<_>>().join(", ")
}

fn range(links: &[&Found], value: fn(&Found) -> f64) -> String {
    let values = || links.iter().map(|found| value(found));
    let least = values().fold(f64::INFINITY, f64::min);
    let most = values().fold(0.0, f64::max);
    match least == most {
        true => figure(least),
        false => format!("{} to {}", figure(least), figure(most)),
    }
}

fn dash() -> String {
    "–".to_owned()
}
