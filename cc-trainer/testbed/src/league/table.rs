//! The standings of a league as text.

use super::{
    Against, By, Disturbed, Estimate, Kind, Measure, Property, Standing, Standings, Standoff, WEAK,
    against::ENOUGH,
};
use crate::summary::table::{aligned, figure, piped};

/// Formats the standings for a terminal: the measures with their intervals, the lead of the first
/// scheme over the others on the same links, and the segments.
pub fn text(standings: &Standings) -> String {
    blocks(standings, |title, rows| {
        format!("{title}\n{}", aligned(rows))
    })
}

/// Formats the same tables in Markdown.
pub fn markdown(standings: &Standings) -> String {
    blocks(standings, |title, rows| {
        format!("### {title}\n\n{}", piped(rows))
    })
}

fn blocks(standings: &Standings, block: impl Fn(&str, &[Vec<String>]) -> String) -> String {
    let mut blocks = vec![block(&headline(standings), &measures(standings))];
    if let [first, _, ..] = standings.order.as_slice() {
        blocks.push(block(
            &format!("lead of {first} over the others, on the same links"),
            &leads(standings),
        ));
    }
    if let Some(against) = &standings.against {
        let title = format!("power against {}", yardstick(against));
        blocks.push(block(&title, &powers(against)));
    }
    for by in &standings.by {
        blocks.push(block(&by_title(by), &kinds(by, &standings.order)));
    }
    let segments = segments(standings);
    if segments.len() > 1 && standings.schemes.values().any(|s| s.segments.len() > 1) {
        blocks.push(block("wins and score by segment", &segments));
    }
    let mut text = blocks.join("\n");
    for note in notes(standings) {
        text += &format!("\n{note}\n");
    }
    text
}

/// The league in one line: what was played, and by whom.
pub fn headline(standings: &Standings) -> String {
    let sample = standings.settings.sample.map_or_else(String::new, |share| {
        format!(" (a sample of {} %)", figure(100.0 * share))
    });
    format!(
        "{}{sample}: {} games on {} links, league of {}",
        standings.set,
        standings.games,
        standings.links,
        standings.order.join(", ")
    )
}

/// What a reader must know of the sets, of the policies' training, and of the links that do not
/// count.
pub fn notes(standings: &Standings) -> Vec<String> {
    let mut notes = standings.settings.notes.clone();
    if !standings.duplicates.is_empty() {
        let of: Vec<String> = standings
            .duplicates
            .iter()
            .map(|copy| format!("{} (as {})", copy.link, copy.of))
            .collect();
        notes.push(format!("equal links that count once: {}", of.join(", ")));
    }
    notes.extend(standings.against.as_ref().and_then(weak));
    notes.extend(standings.settings.disturbed.map(disturbed));
    if !standings.incomplete.is_empty() {
        notes.push(format!(
            "links without a valid run of some scheme, which count for nobody: {}",
            standings.incomplete.join(", ")
        ));
    }
    notes
}

/// What a reader must know of the runs that count although the host disturbed them.
fn disturbed(of: Disturbed) -> String {
    let Disturbed {
        runs,
        of: all,
        lateness_p999_ms: median,
        greatest_p999_ms: greatest,
        lossy,
    } = of;
    let lossy = match lossy {
        0 => String::new(),
        _ => format!("; in {lossy} of them packets were lost outside of the emulated link"),
    };
    format!(
        "the host disturbed {runs} of {all} runs, which count all the same: one packet in a \
         thousand came {} ms late or more in the median of them, and {} ms in the worst{lossy}",
        figure(median),
        figure(greatest)
    )
}

/// The measures of all schemes with their intervals, those that won most first.
pub fn measures(standings: &Standings) -> Vec<Vec<String>> {
    let head = ["scheme".to_owned(), "games won".to_owned()].into_iter();
    let head = head.chain(standings.measures().map(heading));
    let row = |(name, standing): (&str, &Standing)| {
        let cells = standings.measures().map(|measure| {
            let figure = standing.measures.get(measure.key);
            figure.map_or_else(dash, |figure| cell(measure, figure.estimate))
        });
        [name.to_owned(), standing.wins.to_string()]
            .into_iter()
            .chain(cells)
            .collect()
    };
    let rows = standings.ranked().into_iter().map(row);
    std::iter::once(head.collect()).chain(rows).collect()
}

/// The lead of the first scheme over each other one: a difference, or a factor for measures whose
/// mean is geometric.
pub fn leads(standings: &Standings) -> Vec<Vec<String>> {
    let names = standings
        .measures()
        .map(|measure| match measure.is_geometric {
            true => format!("{}, ×", measure.name),
            false => heading(measure),
        });
    let head = std::iter::once("over".to_owned()).chain(names);
    let first = standings.order.first().map(String::as_str);
    let others = standings.ranked().into_iter();
    let row = |(name, standing): (&str, &Standing)| {
        let cells = standings.measures().map(|measure| {
            let figure = standing.measures.get(measure.key);
            figure.map_or_else(dash, |figure| {
                let none = if measure.is_geometric { 1.0 } else { 0.0 };
                // An asterisk: the interval leaves no doubt that there is a difference.
                let sure = if figure.lead.may_be(none) { "" } else { " *" };
                cell(measure, figure.lead) + sure
            })
        });
        std::iter::once(name.to_owned()).chain(cells).collect()
    };
    let rows = others.filter(|(name, _)| Some(*name) != first).map(row);
    std::iter::once(head.collect()).chain(rows).collect()
}

/// What the power of every scheme is compared with, in words.
pub fn yardstick(against: &Against) -> String {
    let best_of = match against.best_of.as_slice() {
        [one] => one.clone(),
        several => format!("the best of {}", several.join(", ")),
    };
    format!(
        "{best_of} on the same link, over the {} links that a flow has for itself",
        against.links
    )
}

/// The power of every scheme against the best of those named.
pub fn powers(against: &Against) -> Vec<Vec<String>> {
    let first = against.best_of.first().map_or("", String::as_str);
    let head = [
        "scheme".to_owned(),
        "power ÷ best of those".to_owned(),
        "least".to_owned(),
        format!("links below {WEAK}"),
        format!("links with {ENOUGH} of {first}'s throughput, %"),
    ];
    let row = |scheme: &Standoff| {
        vec![
            scheme.scheme.clone(),
            with_interval(scheme.power),
            format!("{} ({})", figure(scheme.least.power), scheme.least.link),
            scheme.weak.len().to_string(),
            figure(100.0 * scheme.enough),
        ]
    };
    let rows = against.schemes.iter().map(row);
    std::iter::once(head.into()).chain(rows).collect()
}

/// What a table by kinds of links shows.
pub fn by_title(by: &By) -> String {
    let properties: Vec<&str> = by.properties.iter().map(|by| by.name()).collect();
    format!(
        "{} by {}: mean (least, greatest)",
        by.measure().map_or("", |measure| measure.name),
        properties.join(" and ")
    )
}

/// A measure of all schemes by kinds of links. The schemes are in the order of the league.
pub fn kinds(by: &By, schemes: &[String]) -> Vec<Vec<String>> {
    let properties = by.properties.iter().copied().map(Property::heading);
    let head = properties.map(str::to_owned).chain(["links".to_owned()]);
    let head = head.chain(schemes.iter().cloned());
    let row = |kind: &Kind| {
        let cells = kind.schemes.iter().map(|spread| {
            let [mean, least, greatest] = [spread.mean, spread.least, spread.greatest].map(figure);
            format!("{mean} ({least}, {greatest})")
        });
        let kind = kind.of.iter().cloned().chain([kind.links.to_string()]);
        kind.chain(cells).collect()
    };
    let rows = by.kinds.iter().map(row);
    std::iter::once(head.collect()).chain(rows).collect()
}

/// The links on which the first scheme is weak, in a sentence; `None` where there are none.
fn weak(against: &Against) -> Option<String> {
    let first = against.schemes.first()?;
    let links: Vec<String> = first
        .weak
        .iter()
        .map(|weak| format!("{} ({})", weak.link, figure(weak.power)))
        .collect();
    let names = links.join(", ");
    (!links.is_empty()).then(|| {
        format!(
            "links on which {} has less than {WEAK} of the best of {}: {names}",
            first.scheme,
            against.best_of.join(", ")
        )
    })
}

/// The wins and the score of each segment.
pub fn segments(standings: &Standings) -> Vec<Vec<String>> {
    let count = standings.schemes.values().map(|s| s.segments.len()).max();
    let head = (1..=count.unwrap_or(0)).map(|segment| format!("segment {segment}"));
    let head = std::iter::once("scheme".to_owned()).chain(head);
    let row = |(name, standing): (&str, &Standing)| {
        let cells = standing.segments.iter().map(|part| {
            let share = 100.0 * part.wins as f64 / part.games.max(1) as f64;
            let score = part.score.map_or_else(dash, figure);
            format!("{} %, {score}", figure(share))
        });
        std::iter::once(name.to_owned()).chain(cells).collect()
    };
    let rows = standings.ranked().into_iter().map(row);
    std::iter::once(head.collect()).chain(rows).collect()
}

/// Heading of a measure's column, with the unit.
pub fn heading(measure: &Measure) -> String {
    match measure.unit {
        "" => measure.name.to_owned(),
        unit => format!("{}, {unit}", measure.name),
    }
}

/// A figure in the unit that is shown, with its interval.
pub fn cell(measure: &Measure, estimate: Estimate) -> String {
    with_interval(estimate.map(|value| value * measure.shown))
}

fn with_interval(estimate: Estimate) -> String {
    let interval = estimate
        .low
        .zip(estimate.high)
        .map(|(low, high)| format!(" [{}, {}]", figure(low), figure(high)));
    figure(estimate.mean) + &interval.unwrap_or_default()
}

fn dash() -> String {
    "–".to_owned()
}
