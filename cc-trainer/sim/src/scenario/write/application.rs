//! The keys of an application.

use super::{
    super::app::{App, Keystrokes, OnOff, RequestResponse, Script, ShortFlows, Sizes, Step, Video},
    list, mbps, milliseconds, pair, quoted, seconds, table,
};

/// The keys that an application has beside `kind`.
pub(super) fn keys(app: &App) -> Vec<String> {
    match app {
        App::Bulk => Vec::new(),
        App::OnOff(OnOff {
            on,
            off,
            bits_per_second,
            random,
        }) => {
            let mut keys = vec![pair("on_s", seconds(*on)), pair("off_s", seconds(*off))];
            keys.extend(bits_per_second.map(|rate| pair("rate_mbps", mbps(rate))));
            keys.push(pair("random", random));
            keys
        }
        App::RequestResponse(RequestResponse {
            bytes,
            request_bytes,
            think,
            random,
            new_connections,
            count,
        }) => {
            let connection = if *new_connections {
                "new"
            } else {
                "keep-alive"
            };
            let mut keys = vec![
                pair("bytes", list(bytes.iter().map(u64::to_string))),
                pair("request_bytes", request_bytes),
                pair("think_ms", milliseconds(*think)),
                pair("random", random),
                pair("connection", quoted(connection)),
            ];
            keys.extend(count.map(|count| pair("count", count)));
            keys
        }
        App::Video(Video {
            bitrates,
            chunk,
            buffer,
            request_bytes,
        }) => vec![
            pair(
                "bitrates_mbps",
                list(bitrates.iter().map(|&rate| mbps(rate))),
            ),
            pair("chunk_s", seconds(*chunk)),
            pair("buffer_s", seconds(*buffer)),
            pair("request_bytes", request_bytes),
        ],
        App::Script(Script { steps, repeat }) => vec![
            pair("steps", list(steps.iter().map(step))),
            pair("repeat", repeat),
        ],
        App::ShortFlows(ShortFlows {
            per_second,
            sizes,
            count,
        }) => {
            let mut keys = vec![pair("per_s", per_second), pair("sizes", sizes_table(sizes))];
            keys.extend(count.map(|count| pair("count", count)));
            keys
        }
        App::Keystrokes(Keystrokes {
            bytes,
            echo_bytes,
            mean,
        }) => vec![
            pair("mean_ms", milliseconds(*mean)),
            pair("bytes", bytes),
            pair("echo_bytes", echo_bytes),
        ],
    }
}

fn step(step: &Step) -> String {
    match step {
        Step::Pause(time) => table([pair("pause_s", seconds(*time))]),
        Step::Write {
            name,
            bytes,
            every,
            times,
        } => {
            let mut keys = vec![pair("name", quoted(name)), pair("bytes", bytes)];
            if !every.is_zero() {
                keys.push(pair("every_ms", milliseconds(*every)));
                keys.push(pair("for_s", seconds(*every * *times)));
            }
            table(keys)
        }
    }
}

fn sizes_table(sizes: &Sizes) -> String {
    match sizes {
        Sizes::Pareto { shape, least, most } => table([
            pair("pareto", shape),
            pair("least_bytes", least),
            pair("most_bytes", most),
        ]),
        Sizes::LogNormal {
            median,
            sigma,
            most,
        } => table([
            pair("median_bytes", median),
            pair("sigma", sigma),
            pair("most_bytes", most),
        ]),
    }
}
