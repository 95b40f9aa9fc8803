//! The live view's drawing: a pure function of a snapshot and what the view remembers.

use std::collections::{HashSet, VecDeque};

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line, Span},
    widgets::{Block, Cell, Row, Sparkline, Table},
};

use super::state::{Past, Sort, ViewState, newest};
use cc_core::status::{FlowView, Snapshot, clock, digits};
use cc_ebpf::Mode;

/// The curves are left out where fewer rows than this are there.
const HEIGHT_WITH_CURVES: u16 = 20;
/// Rows of the curves, with their title.
const CURVES_HEIGHT: u16 = 4;
/// Rows of a flow's past: its name, and two rows of curves.
const PAST_HEIGHT: u16 = 1 + 2 * CURVES_HEIGHT;
/// All columns are shown from this width on; the order's own is always shown.
const WIDTH_WITH_ALL_COLUMNS: u16 = 150;
/// The footer has more than the keys from this width on.
const WIDTH_WITH_WORDS: u16 = 110;
/// The columns that tell the flow show both ends from this width on.
const WIDTH_WITH_BOTH_ENDS: u16 = 110;

/// Counters that the header always shows, as short names.
const ALWAYS_SHOWN: [(&str, &str); 3] = [
    ("decisions_late", "late"),
    ("windows_skipped", "skipped"),
    ("windows_missed", "missed"),
];

/// Draws the view on the whole frame, whatever its size.
pub fn draw(frame: &mut Frame<'_>, snapshot: &Snapshot, state: &ViewState) {
    let header = header(snapshot, state);
    let area = frame.area();
    let opened = state.opened(snapshot);
    let curves_height = match area.height {
        HEIGHT_WITH_CURVES.. if opened.is_some() => PAST_HEIGHT,
        HEIGHT_WITH_CURVES.. => CURVES_HEIGHT,
        // Somebody has asked for it: there is place for few flows.
        _ if opened.is_some() => PAST_HEIGHT,
        _ => 0,
    };
    let [top, middle, flows, bottom] = Layout::vertical([
        Constraint::Length(header.len() as u16),
        Constraint::Length(curves_height),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(area);
    for (line, row) in header.into_iter().zip(top.rows()) {
        frame.render_widget(line, row);
    }
    match opened {
        Some((key, past, flow)) => draw_past(frame, middle, key, past, flow),
        None if curves_height > 0 => draw_curves(frame, middle, snapshot, state),
        None => {}
    }
    draw_flows(frame, flows, snapshot, state);
    frame.render_widget(footer(state, area.width), bottom);
}

fn header(snapshot: &Snapshot, state: &ViewState) -> Vec<Line<'static>> {
    let recent = state.recent();
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let counters = snapshot.counters();
    let value_of = |name: &str| {
        let count = counters.iter().find(|count| count.name == name);
        count.map_or(0, |count| count.value)
    };
    let mut shown = Vec::new();
    for (name, short) in ALWAYS_SHOWN {
        let value = value_of(name);
        shown.push(Span::raw(format!("  {short} ")));
        shown.push(Span::styled(value.to_string(), alarm(value > 0)));
    }
    let mut delays = vec![Span::raw(format!("delay {}", snapshot.decision_delay))];
    delays.extend(shown);
    let filtered = match state.filter().is_empty() {
        true => String::new(),
        false => {
            let shown = snapshot.matching_flows;
            let shown = shown.unwrap_or_else(|| state.shown(snapshot));
            format!(", {shown} for `{}`", state.filter())
        }
    };
    let mut lines = vec![
        Line::from(vec![
            Span::styled(snapshot.name.clone(), bold.fg(Color::Cyan)),
            Span::raw(format!(
                "  up {}  {}",
                clock(snapshot.uptime_s),
                snapshot.policy
            )),
        ]),
        Line::raw(format!(
            "flows {} of {}{filtered}  decisions {}/s  CPU {} %",
            snapshot.live_flows,
            snapshot.slots,
            digits(recent.decisions_per_s),
            digits(100.0 * recent.cpu),
        )),
        Line::from(delays),
    ];
    let troubles: Vec<String> = snapshot
        .troubles()
        .into_iter()
        .filter(|count| ALWAYS_SHOWN.iter().all(|(name, _)| *name != count.name))
        .map(|count| format!("{} {}", count.name, count.value))
        .collect();
    if !troubles.is_empty() {
        lines.push(Line::styled(troubles.join("  "), alarm(true)));
    }
    lines
}

fn draw_curves(frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot, state: &ViewState) {
    let recent = state.recent();
    let [left, right] = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)])
        .spacing(2)
        .areas(area);
    let points = usize::from(left.width.max(right.width));
    let rates: Vec<u64> = state.rates_kbps(points).collect();
    let queues: Vec<u64> = state.queues_us(points).collect();
    let of = match snapshot.is_partial() {
        true => format!(" of {} flows", snapshot.flows.len()),
        false => String::new(),
    };
    let rate = format!("rate{of} {} Mbit/s", digits(recent.rate_mbps));
    let queue = format!("longest queueing delay {} ms", digits(recent.queue_ms));
    frame.render_widget(curve(rate, Color::Green, rates), left);
    frame.render_widget(curve(queue, Color::Yellow, queues), right);
}

/// A line of bars, with the highest at the full height.
fn curve(title: String, color: Color, data: Vec<u64>) -> Sparkline<'static> {
    Sparkline::default()
        .block(Block::new().title(title))
        .style(Style::new().fg(color))
        .data(data)
}

/// What was seen of a flow: its name, and curves of its rate, srtt, cwnd and loss.
fn draw_past(
    frame: &mut Frame<'_>,
    area: Rect,
    (slot, generation): (u32, u32),
    past: &Past,
    flow: Option<&FlowView>,
) {
    let [top, upper, lower] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Fill(1),
    ])
    .areas(area);
    let title = match flow {
        Some(flow) => format!(
            "flow {slot}.{generation}  {} → {}  sk:{:x}  netns {}",
            flow.local, flow.remote, flow.cookie, flow.netns
        ),
        None => format!("flow {slot}.{generation} has closed"),
    };
    let bold = Style::new().add_modifier(Modifier::BOLD);
    frame.render_widget(Line::styled(title, bold), top);
    let last = |points: &VecDeque<u64>, unit: f64| {
        let highest = points.iter().max().copied().unwrap_or(0);
        let latest = points.back().copied().unwrap_or(0);
        let figure = |value: u64| match unit {
            // Whole segments.
            1.0 => value.to_string(),
            unit => digits(value as f64 / unit),
        };
        format!("{}, at most {}", figure(latest), figure(highest))
    };
    let curves = [
        (upper, "rate", "Mbit/s", &past.rates_kbps, 1e3, Color::Green),
        (upper, "srtt", "ms", &past.srtts_us, 1e3, Color::Yellow),
        (lower, "cwnd", "segments", &past.cwnds, 1.0, Color::Cyan),
        (lower, "loss", "%", &past.losses_ppm, 1e4, Color::Red),
    ];
    for (number, (rows, name, unit, points, scale, color)) in curves.into_iter().enumerate() {
        let halves = Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).spacing(2);
        let [left, right] = halves.areas(rows);
        let place = if number % 2 == 0 { left } else { right };
        let title = format!("{name} {} {unit}", last(points, scale));
        let data = newest(points, usize::from(place.width)).collect();
        frame.render_widget(curve(title, color, data), place);
    }
}

/// A column of the flows' figures.
struct Column {
    title: &'static str,
    width: u16,
    sort: Option<Sort>,
    /// Whether narrow terminals leave it out.
    wide: bool,
    text: fn(&FlowView, &Snapshot) -> String,
}

const COLUMNS: [Column; 13] = [
    Column {
        title: "cwnd",
        width: 6,
        sort: Some(Sort::Cwnd),
        wide: false,
        text: |flow, _| flow.cwnd.to_string(),
    },
    Column {
        title: "Mbit/s",
        width: 7,
        sort: Some(Sort::Rate),
        wide: false,
        text: |flow, _| digits(flow.rate_mbps),
    },
    Column {
        title: "srtt",
        width: 6,
        sort: Some(Sort::Rtt),
        wide: false,
        text: |flow, _| digits(flow.srtt_ms),
    },
    Column {
        title: "queue",
        width: 6,
        sort: Some(Sort::Queue),
        wide: false,
        text: |flow, _| digits(flow.queue_ms),
    },
    Column {
        title: "loss%",
        width: 6,
        sort: Some(Sort::Loss),
        wide: false,
        text: |flow, _| digits(100.0 * flow.loss),
    },
    Column {
        title: "mode",
        width: 8,
        sort: None,
        wide: false,
        text: |flow, _| match flow.mode {
            Mode::AfterTimeout => "timeout".into(),
            Mode::ApplicationLimited => "app-lim".into(),
            mode => mode.name().into(),
        },
    },
    Column {
        title: "action",
        width: 6,
        sort: None,
        wide: false,
        text: |flow, _| flow.action.clone(),
    },
    Column {
        title: "delay",
        width: 6,
        sort: Some(Sort::Delay),
        wide: false,
        text: |flow, _| digits(flow.decision_delay_ms),
    },
    Column {
        title: "p99",
        width: 6,
        sort: None,
        wide: true,
        text: |flow, _| digits(flow.decision_delay_p99_ms),
    },
    Column {
        title: "age",
        width: 8,
        sort: Some(Sort::Age),
        wide: true,
        text: |flow, snapshot| match (flow.opened_ns, snapshot.taken_ns) {
            (0, _) | (_, 0) => "-".into(),
            (opened, taken) => clock(taken.saturating_sub(opened) as f64 / 1e9),
        },
    },
    Column {
        title: "cgroup",
        width: 8,
        sort: None,
        wide: true,
        text: |flow, _| flow.cgroup_id.to_string(),
    },
    Column {
        title: "sk",
        width: 8,
        sort: None,
        wide: true,
        text: |flow, _| format!("{:x}", flow.cookie),
    },
    Column {
        title: "netns",
        width: 10,
        sort: None,
        wide: true,
        text: |flow, _| flow.netns.to_string(),
    },
];

fn draw_flows(frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot, state: &ViewState) {
    let is_narrow = area.width < WIDTH_WITH_ALL_COLUMNS;
    let has_place = |column: &&Column| match column.wide {
        true => !is_narrow || column.sort == Some(state.sort()),
        // The age takes its place.
        false => !(is_narrow && state.sort() == Sort::Age && column.sort == Some(Sort::Delay)),
    };
    let columns: Vec<&Column> = COLUMNS.iter().filter(has_place).collect();
    let figures: u16 = columns.iter().map(|column| column.width + 1).sum();
    let both_ends = area.width >= WIDTH_WITH_BOTH_ENDS;
    let place = area.width.saturating_sub(figures);
    let name_width = match both_ends {
        // The figures stand beside the names, and not at the other end of the screen.
        true => usize::from(place.min(width_of_names(snapshot))),
        false => usize::from(place),
    };
    let is_shared = !both_ends && have_common_ends(&snapshot.flows);
    let name = |flow: &FlowView| {
        if both_ends {
            // An arrow between two spaces divides them.
            let end = (name_width - 3) / 2;
            let local = fit(flow.local.to_string(), end);
            format!("{local} → {}", fit(flow.remote.to_string(), end))
        } else if is_shared {
            let both = format!("{}→{}", flow.local.port(), flow.remote);
            fit(both, name_width)
        } else {
            fit(flow.remote.to_string(), name_width)
        }
    };
    let title = match snapshot.is_partial() {
        true => {
            let all = snapshot.matching_flows.unwrap_or(snapshot.live_flows);
            format!("{} of {all} flows", snapshot.flows.len())
        }
        false if both_ends => "local → remote".into(),
        false if is_shared => "port→remote".into(),
        false => "remote".into(),
    };
    let mut titles = vec![Cell::from(title)];
    titles.extend(columns.iter().map(|column| {
        let chosen = column.sort == Some(state.sort());
        let mark = if chosen { "▼" } else { "" };
        Cell::from(Line::raw(format!("{}{mark}", column.title)).right_aligned())
    }));
    let visible = usize::from(area.height.saturating_sub(1));
    let rows = state
        .rows(snapshot, visible)
        .into_iter()
        .map(|(is_chosen, flow)| {
            let mut cells = vec![Cell::from(name(flow))];
            cells.extend(
                columns
                    .iter()
                    .map(|column| (column.text)(flow, snapshot))
                    .map(|text| Cell::from(Line::raw(text).right_aligned())),
            );
            let style = match flow.mode {
                // What it shows is old.
                _ if state.recent().is_quiet(flow) => Style::new().fg(Color::DarkGray),
                Mode::Fallback => alarm(true),
                _ => Style::new(),
            };
            Row::new(cells).style(match is_chosen {
                true => style.add_modifier(Modifier::UNDERLINED),
                false => style,
            })
        });
    let mut widths = vec![Constraint::Length(name_width as u16)];
    widths.extend(
        columns
            .iter()
            .map(|column| Constraint::Length(column.width)),
    );
    let table = Table::new(rows, widths)
        .header(Row::new(titles).style(Style::new().add_modifier(Modifier::REVERSED)));
    frame.render_widget(table, area);
}

/// Columns for both ends of any flow of the snapshot. It grows in steps, so that the figures seldom
/// move when a flow comes or goes.
fn width_of_names(snapshot: &Snapshot) -> u16 {
    const STEP: usize = 10;
    let ends = snapshot
        .flows
        .iter()
        .flat_map(|flow| [flow.local, flow.remote]);
    let longest = ends.map(|end| end.to_string().len()).max().unwrap_or(0);
    ((2 * longest + 3).next_multiple_of(STEP)) as u16
}

/// Whether flows have the same remote end, as those of a client of one server have: their own ports
/// tell them apart.
fn have_common_ends(flows: &[FlowView]) -> bool {
    let mut seen = HashSet::new();
    !flows.iter().all(|flow| seen.insert(flow.remote))
}

fn footer(state: &ViewState, width: u16) -> Line<'static> {
    if let Some((text, problem)) = state.draft() {
        let hint = "mode, address, network, cgroup=PATH or :PORT; Enter, Esc";
        return Line::from(vec![
            Span::raw(format!("filter: {text}▏  ")),
            Span::styled(problem.unwrap_or(hint).to_owned(), alarm(problem.is_some())),
        ]);
    }
    let head = match width >= WIDTH_WITH_WORDS {
        true => "times in ms  sort ",
        false => "",
    };
    let mut spans = vec![Span::raw(head)];
    for (key, name, sort) in Sort::ALL {
        let style = match sort == state.sort() {
            true => Style::new().add_modifier(Modifier::BOLD),
            false => Style::new().add_modifier(Modifier::DIM),
        };
        spans.push(Span::styled(format!("{key} {name}"), style));
        spans.push(Span::raw(" "));
    }
    spans.push(Span::raw(" / filter ↵ flow q quit"));
    Line::from(spans)
}

fn alarm(is_on: bool) -> Style {
    if is_on {
        Style::new().fg(Color::Red).add_modifier(Modifier::BOLD)
    } else {
        Style::new()
    }
}

/// An address in at most `width` columns: what is too much goes out of its middle, as its ends
/// tell flows apart.
fn fit(address: String, width: usize) -> String {
    let length = address.chars().count();
    if length <= width {
        return address;
    }
    let kept = width.saturating_sub(1);
    let (head, tail) = (kept / 2, kept - kept / 2);
    let start: String = address.chars().take(head).collect();
    let end: String = address.chars().skip(length - tail).collect();
    format!("{start}…{end}")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ratatui::{Terminal, backend::TestBackend, buffer::Buffer, crossterm::event::KeyCode};

    use super::*;
    use cc_core::status::samples::{busy, idle};

    #[test]
    fn a_usual_terminal_shows_the_figures() {
        let mut snapshot = busy(3);
        snapshot.agent.windows_skipped = 4;
        let screen = text(80, 24, &snapshot, &[]);
        for part in [
            "rlcc  up 0:00:10  default: impala, trained",
            "flows 3 of 16384  decisions 27.0/s  CPU 4.00 %",
            "delay p50 0.31 ms, p99 1.25 ms, max 7.50 ms  late 0  skipped 4  missed 0",
            "rate 6.00 Mbit/s",
            "longest queueing delay 0.20 ms",
            "remote                  cwnd Mbit/s▼   srtt  queue  loss%     mode action  delay",
            "10.0.0.2:40002            12    3.00   20.0   0.20   1.00  decided     *2   0.40",
            "q quit",
        ] {
            assert!(screen.contains(part), "{part:?} in\n{screen}");
        }
        assert!(order(&screen, ":40002", ":40000"), "{screen}");
        let screen = text(80, 24, &snapshot, &[KeyCode::Char('s')]);
        assert!(order(&screen, ":40000", ":40002"), "{screen}");
    }

    #[test]
    fn a_wide_terminal_shows_both_ends() {
        let screen = text(120, 40, &busy(1), &[]);
        assert!(
            screen.contains("10.0.0.1:5201 → 10.0.0.2:40000 "),
            "{screen}"
        );
        let mut snapshot = busy(1);
        let long = "[2001:db8:1111:2222:3333:4444:5555:6666]:40000";
        snapshot.flows[0].remote = long.parse().expect("an address");
        let screen = text(120, 40, &snapshot, &[]);
        assert!(
            screen.contains(" → [2001:db8:1") && screen.contains("6]:40000 "),
            "{screen}"
        );
    }

    #[test]
    fn flows_to_one_server_are_told_apart() {
        let mut snapshot = busy(2);
        for (flow, port) in snapshot.flows.iter_mut().zip(50_001..) {
            flow.local = format!("10.0.0.1:{port}").parse().expect("an address");
            flow.remote = "192.168.100.200:443".parse().expect("an address");
        }
        let screen = text(80, 24, &snapshot, &[]);
        for part in ["port→remote ", "50001→192.…00.200:443 ", "50002→192."] {
            assert!(screen.contains(part), "{part:?} in\n{screen}");
        }
    }

    /// What the view looks like: a change of it should be looked at.
    #[test]
    fn terminals_of_80_and_200_columns_look_as_they_did() {
        let mut snapshot = busy(5);
        snapshot.flows[1].mode = Mode::Fallback;
        snapshot.flows[3].mode = Mode::ApplicationLimited;
        let enter = [KeyCode::Down, KeyCode::Enter];
        for (name, width, height, keys) in [
            ("flows", 80, 20, &[][..]),
            ("flows", 200, 20, &[]),
            ("past", 80, 24, &enter),
            ("past", 200, 24, &enter),
            ("oldest", 80, 20, &[KeyCode::Char('a')]),
            ("filter", 80, 20, &[KeyCode::Char('/'), KeyCode::Char(':')]),
        ] {
            let file = format!("{name}-{width}.txt");
            let screen = text_after(10, width, height, &snapshot, keys);
            let screen: String = screen
                .lines()
                .map(|line| line.trim_end().to_owned() + "\n")
                .collect();
            let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("src/view/looks")
                .join(&file);
            if std::env::var_os("CC_VIEW_LOOKS").is_some() {
                std::fs::write(&path, &screen).expect("writes");
            }
            let expected = std::fs::read_to_string(&path).expect("it is kept");
            assert_eq!(screen, expected, "{file}; CC_VIEW_LOOKS=1 writes it anew");
        }
    }

    #[test]
    fn what_is_not_shown_is_counted() {
        let mut snapshot = busy(3);
        snapshot.live_flows = 5_000;
        let screen = text(80, 24, &snapshot, &[]);
        for part in [
            "flows 5000 of 16384",
            "3 of 5000 flows ",
            "rate of 3 flows 6.00",
        ] {
            assert!(screen.contains(part), "{part:?} in\n{screen}");
        }
        // The agent has looked for them among all.
        snapshot.matching_flows = Some(700);
        let filter = [KeyCode::Char('/'), KeyCode::Char('1'), KeyCode::Enter];
        let screen = text(80, 24, &snapshot, &filter);
        for part in [", 700 for `1`", "3 of 700 flows "] {
            assert!(screen.contains(part), "{part:?} in\n{screen}");
        }
        snapshot.matching_flows = Some(3);
        let screen = text(80, 24, &snapshot, &filter);
        assert!(screen.contains("\nremote "), "all of them: {screen}");
    }

    #[test]
    fn troubles_are_shown_in_red() {
        let mut snapshot = busy(2);
        snapshot.datapath.insert("fallbacks_entered".into(), 3);
        snapshot.flows[1].mode = Mode::Fallback;
        let buffer = buffer(80, 24, &snapshot, &[]);
        let screen = lines(&buffer);
        for part in ["fallbacks_entered 3", "fallback"] {
            let rows = screen
                .lines()
                .zip(0..)
                .filter(|(line, _)| line.contains(part));
            let (_, row) = rows.last().expect("is shown");
            assert_eq!(buffer[(0, row)].fg, Color::Red, "{part} in\n{screen}");
        }
    }

    #[test]
    fn any_number_of_flows_fits_any_terminal() {
        let mut partial = busy(200);
        partial.live_flows = 5_000;
        for snapshot in [idle(), busy(1), busy(1_000), partial] {
            for (width, height) in [(80, 24), (120, 40), (20, 5), (1, 1), (300, 3), (3, 100)] {
                text(
                    width,
                    height,
                    &snapshot,
                    &[KeyCode::PageDown, KeyCode::Char('c')],
                );
                let enter = [KeyCode::Down, KeyCode::Enter];
                text(width, height, &snapshot, &enter);
            }
        }
    }

    #[test]
    fn all_flows_can_be_reached() {
        let snapshot = busy(1_000);
        let down = [KeyCode::PageDown; 60];
        let screen = text(80, 24, &snapshot, &down);
        assert!(screen.contains("10.0.0.2:40000 "), "{screen}");
        // The last page is full.
        assert_eq!(screen.matches("10.0.0.2:").count(), 24 - 3 - 4 - 1 - 1);
    }

    #[test]
    fn addresses_lose_their_middle() {
        assert_eq!(fit("10.0.0.2:443".into(), 12), "10.0.0.2:443");
        assert_eq!(fit("10.0.0.2:443".into(), 9), "10.0…:443");
        assert_eq!(fit("10.0.0.2:443".into(), 1), "…");
    }

    fn text(width: u16, height: u16, snapshot: &Snapshot, keys: &[KeyCode]) -> String {
        lines(&buffer(width, height, snapshot, keys))
    }

    /// The screen after the agent was watched for some snapshots, in which the cwnds rose.
    fn text_after(
        times: u32,
        width: u16,
        height: u16,
        last: &Snapshot,
        keys: &[KeyCode],
    ) -> String {
        let mut state = ViewState::default();
        for before in (1..times).rev() {
            let mut snapshot = last.clone();
            snapshot.uptime_s -= 0.2 * f64::from(before);
            for flow in &mut snapshot.flows {
                flow.window -= 2 * before;
                flow.cwnd -= before;
                flow.rate_mbps /= f64::from(before);
            }
            state.observe(&Arc::new(snapshot));
        }
        lines(&draw_with(state, width, height, last, keys))
    }

    fn buffer(width: u16, height: u16, snapshot: &Snapshot, keys: &[KeyCode]) -> Buffer {
        draw_with(ViewState::default(), width, height, snapshot, keys)
    }

    fn draw_with(
        mut state: ViewState,
        width: u16,
        height: u16,
        snapshot: &Snapshot,
        keys: &[KeyCode],
    ) -> Buffer {
        state.observe(&Arc::new(snapshot.clone()));
        for &key in keys {
            state.on_key(key);
        }
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        let drawn = terminal.draw(|frame| draw(frame, snapshot, &state));
        drawn.expect("draws").buffer.clone()
    }

    fn lines(buffer: &Buffer) -> String {
        let width = usize::from(buffer.area.width);
        let rows = buffer.content.chunks(width);
        rows.map(|row| {
            row.iter()
                .map(ratatui::buffer::Cell::symbol)
                .collect::<String>()
                + "\n"
        })
        .collect()
    }

    fn order(text: &str, first: &str, second: &str) -> bool {
        text.find(first) < text.find(second) && text.contains(first)
    }
}
