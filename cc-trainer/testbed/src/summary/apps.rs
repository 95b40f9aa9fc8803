//! Measures of applications: how long their messages took.

use std::collections::BTreeMap;

use cc_sim::app::Playback;
use serde::{Deserialize, Serialize};

use super::{RunFile, Series, aggregate::CONFIDENCE, finite, statistics};

/// Seed of the bootstrap, fixed so that the same messages always give the same interval.
const SEED: u64 = 3;
/// Number of samples from which the interval of a mean is that of the normal distribution. The
/// bootstrap of fewer also covers skewed samples.
const MANY: usize = 2_000;
/// The 97.5 % quantile of the standard normal distribution.
const Z: f64 = 1.959_964;

/// A message of an application: a response, a chunk, a burst, a transfer or a keystroke.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MessageRecord {
    /// Name of its kind, such as `response`.
    pub name: String,
    /// Number of its flow in the scenario's order, from 0.
    pub flow: u32,
    /// When it was asked for or written, s since the scenario's start.
    #[serde(serialize_with = "finite")]
    pub start_s: f64,
    /// Size of the message in bytes.
    pub bytes: u64,
    /// Time from then until the receiver had its first byte, ms; `None` when that never happened.
    pub first_byte_ms: Option<f64>,
    /// Time until the receiver had all of it, ms.
    pub completion_ms: Option<f64>,
    /// Time until the sender had the receiver's echo, ms; `None` also for other applications.
    pub echo_ms: Option<f64>,
    /// Number of segments that were retransmitted from its first byte to that of the next message
    /// on the connection.
    pub retransmissions: u64,
}

/// Measures of the messages of one name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AppMeasures {
    /// Number of messages that began.
    pub count: u64,
    /// Number of messages that were complete before the flow's stop.
    pub completed: u64,
    /// Bytes of the complete messages.
    pub bytes: u64,
    /// Time from a message's start until its receiver had all of it.
    #[serde(flatten)]
    pub completion: Completion,
    /// Median of the time until the receiver had the first byte, ms.
    pub first_byte_median_ms: Option<f64>,
    /// 99th percentile of that time, ms.
    pub first_byte_p99_ms: Option<f64>,
    /// Median of the time from a keystroke to its echo, ms; `None` for other applications.
    pub echo_median_ms: Option<f64>,
    /// 99th percentile of that time, ms.
    pub echo_p99_ms: Option<f64>,
    /// Number of segments that were retransmitted for these messages.
    pub retransmissions: u64,
    /// Largest number of segments that were retransmitted for one message.
    pub most_retransmissions: u64,
    /// Packets that the link dropped in those tenths of a second in which a message was under way,
    /// of any flow.
    pub dropped: u64,
    /// Playing of a video; `None` for other applications.
    pub playback: Option<PlaybackMeasures>,
}

/// The distribution of completion times, with intervals at the level [`CONFIDENCE`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// Mean, ms; `None` without a complete message.
    pub mean_ms: Option<f64>,
    /// Interval of the mean, ms.
    pub mean_interval_ms: Option<(f64, f64)>,
    /// Median of the completion times, ms.
    pub median_ms: Option<f64>,
    /// Interval of the median by order statistics, ms.
    pub median_interval_ms: Option<(f64, f64)>,
    /// 99th percentile of the completion times, ms.
    pub p99_ms: Option<f64>,
    /// Interval of the 99th percentile by order statistics, ms; `None` for fewer than 368 messages,
    /// whose largest may be below it.
    pub p99_interval_ms: Option<(f64, f64)>,
}

/// What the video players of a run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PlaybackMeasures {
    /// Time from the first request to the first frame, ms; `None` when nothing was played.
    pub startup_ms: Option<f64>,
    /// Number of pauses because the buffer was empty.
    pub stalls: u64,
    /// Time that these pauses took, s.
    #[serde(serialize_with = "finite")]
    pub stalled_s: f64,
    /// Mean bitrate of the chunks, Mbit/s; `None` without a chunk.
    pub bitrate_mbps: Option<f64>,
}

/// Measures of the messages of one name, over all valid runs of a scheme on a scenario.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Application {
    /// Name of the scenario that the runs were made on.
    pub scenario: String,
    /// Name of the scheme under test.
    pub scheme: String,
    /// Name of the kind of messages.
    pub message: String,
    /// Number of valid runs whose messages are pooled.
    pub runs: u32,
    /// Measures of the messages of these runs.
    #[serde(flatten)]
    pub measures: AppMeasures,
}

/// Measures the messages of a run.
pub(crate) fn measure(
    messages: &[MessageRecord],
    playbacks: &BTreeMap<String, Vec<Playback>>,
    series: &Series,
) -> BTreeMap<String, AppMeasures> {
    let mut measures = BTreeMap::new();
    for (name, own) in by_name(messages) {
        let measured = AppMeasures {
            dropped: dropped(&own, series),
            playback: playbacks.get(name).map(|playbacks| playback(playbacks)),
            ..of(&own)
        };
        measures.insert(name.to_owned(), measured);
    }
    measures
}

/// Measures the messages of all valid runs of each scheme on each scenario together.
pub fn pool<'a>(files: impl IntoIterator<Item = &'a RunFile>) -> Vec<Application> {
    let mut cells: Vec<(&str, &str, Vec<&RunFile>)> = Vec::new();
    for file in files {
        let run = &file.run;
        if !run.is_valid() || run.apps.is_empty() {
            continue;
        }
        let known = |cell: &&mut (&str, &str, Vec<&RunFile>)| {
            (cell.0, cell.1) == (run.scenario.as_str(), run.scheme.as_str())
        };
        match cells.iter_mut().find(known) {
            Some((.., files)) => files.push(file),
            None => cells.push((&run.scenario, &run.scheme, vec![file])),
        }
    }
    let mut applications = Vec::new();
    for (scenario, scheme, files) in cells {
        let messages = files.iter().flat_map(|file| &file.messages);
        for (name, own) in by_name(messages) {
            let runs = || files.iter().filter_map(|file| file.run.apps.get(name));
            applications.push(Application {
                scenario: scenario.to_owned(),
                scheme: scheme.to_owned(),
                message: name.to_owned(),
                runs: files.len() as u32,
                measures: AppMeasures {
                    dropped: runs().map(|measures| measures.dropped).sum(),
                    playback: pool_playback(runs().filter_map(|measures| measures.playback)),
                    ..of(&own)
                },
            });
        }
    }
    // By scenario, name and scheme, each in the order of their appearance.
    let place = |of: fn(&Application) -> &str, wanted: &str| {
        applications.iter().position(|other| of(other) == wanted)
    };
    let keys: Vec<_> = (applications.iter())
        .map(|cell| {
            let scenario = place(|cell| &cell.scenario, &cell.scenario);
            (scenario, place(|cell| &cell.message, &cell.message))
        })
        .collect();
    let mut keyed: Vec<_> = keys.into_iter().zip(applications).collect();
    keyed.sort_by_key(|(key, _)| *key);
    keyed.into_iter().map(|(_, cell)| cell).collect()
}

/// The messages of each name, the names in their order of appearance.
fn by_name<'a>(
    messages: impl IntoIterator<Item = &'a MessageRecord>,
) -> Vec<(&'a str, Vec<&'a MessageRecord>)> {
    let mut named: Vec<(&str, Vec<&MessageRecord>)> = Vec::new();
    for message in messages {
        match named.iter_mut().find(|(name, _)| *name == message.name) {
            Some((_, own)) => own.push(message),
            None => named.push((&message.name, vec![message])),
        }
    }
    named
}

/// Measures of these messages, without what a run alone knows.
fn of(messages: &[&MessageRecord]) -> AppMeasures {
    let sorted = |value: fn(&MessageRecord) -> Option<f64>| {
        let mut values: Vec<f64> = messages
            .iter()
            .filter_map(|&message| value(message))
            .collect();
        values.sort_by(f64::total_cmp);
        values
    };
    let completion = sorted(|message| message.completion_ms);
    let first_byte = sorted(|message| message.first_byte_ms);
    let echo = sorted(|message| message.echo_ms);
    let complete = messages
        .iter()
        .filter(|message| message.completion_ms.is_some());
    let retransmissions = || messages.iter().map(|message| message.retransmissions);
    AppMeasures {
        count: messages.len() as u64,
        completed: completion.len() as u64,
        bytes: complete.map(|message| message.bytes).sum(),
        completion: Completion {
            mean_ms: statistics::mean(&completion),
            mean_interval_ms: mean_interval(&completion),
            median_ms: statistics::percentile(&completion, 50.0),
            median_interval_ms: statistics::quantile_interval(&completion, 0.5, CONFIDENCE),
            p99_ms: statistics::percentile(&completion, 99.0),
            p99_interval_ms: statistics::quantile_interval(&completion, 0.99, CONFIDENCE),
        },
        first_byte_median_ms: statistics::percentile(&first_byte, 50.0),
        first_byte_p99_ms: statistics::percentile(&first_byte, 99.0),
        echo_median_ms: statistics::percentile(&echo, 50.0),
        echo_p99_ms: statistics::percentile(&echo, 99.0),
        retransmissions: retransmissions().sum(),
        most_retransmissions: retransmissions().max().unwrap_or(0),
        dropped: 0,
        playback: None,
    }
}

/// Confidence interval of the mean.
fn mean_interval(samples: &[f64]) -> Option<(f64, f64)> {
    if samples.len() < MANY {
        return statistics::bootstrap_interval(samples, CONFIDENCE, SEED);
    }
    let mean = statistics::mean(samples)?;
    let squares = samples.iter().map(|sample| (sample - mean).powi(2));
    let n = samples.len() as f64;
    let error = Z * (squares.sum::<f64>() / (n - 1.0) / n).sqrt();
    Some((mean - error, mean + error))
}

/// Packets dropped in the bins in which one of the messages was under way.
fn dropped(messages: &[&MessageRecord], series: &Series) -> u64 {
    if series.bin_s <= 0.0 {
        return 0;
    }
    let bin = |seconds: f64| ((seconds / series.bin_s) as usize).min(series.dropped.len());
    let mut busy = vec![false; series.dropped.len()];
    for message in messages {
        let to = match message.completion_ms {
            Some(time) => bin(message.start_s + time / 1e3) + 1,
            None => busy.len(),
        };
        let to = to.min(busy.len());
        if let Some(span) = busy.get_mut(bin(message.start_s)..to) {
            span.fill(true);
        }
    }
    let counted = series.dropped.iter().zip(busy).filter(|(_, busy)| *busy);
    counted.map(|(dropped, _)| dropped).sum()
}

fn playback(playbacks: &[Playback]) -> PlaybackMeasures {
    let startups: Vec<f64> = (playbacks.iter())
        .filter_map(|playback| Some(playback.startup? as f64 / 1e6))
        .collect();
    let chunks: u32 = playbacks.iter().map(|playback| playback.chunks).sum();
    let bitrates: f64 = playbacks.iter().map(|playback| playback.bitrate_sum).sum();
    PlaybackMeasures {
        startup_ms: statistics::mean(&startups),
        stalls: playbacks
            .iter()
            .map(|playback| u64::from(playback.stalls))
            .sum(),
        stalled_s: playbacks
            .iter()
            .map(|playback| playback.stalled as f64 / 1e9)
            .sum(),
        bitrate_mbps: (chunks > 0).then(|| bitrates / f64::from(chunks) / 1e6),
    }
}

/// Playing over several runs: sums of the pauses, means of the rest.
fn pool_playback(runs: impl Iterator<Item = PlaybackMeasures>) -> Option<PlaybackMeasures> {
    let runs: Vec<PlaybackMeasures> = runs.collect();
    let mean = |value: fn(&PlaybackMeasures) -> Option<f64>| {
        statistics::mean(&runs.iter().filter_map(value).collect::<Vec<f64>>())
    };
    (!runs.is_empty()).then(|| PlaybackMeasures {
        startup_ms: mean(|run| run.startup_ms),
        stalls: runs.iter().map(|run| run.stalls).sum(),
        stalled_s: runs.iter().map(|run| run.stalled_s).sum(),
        bitrate_mbps: mean(|run| run.bitrate_mbps),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::{Run, Validity};

    fn message(name: &str, start_s: f64, completion_ms: Option<f64>) -> MessageRecord {
        MessageRecord {
            name: name.into(),
            start_s,
            bytes: 1_000,
            completion_ms,
            retransmissions: 2,
            ..MessageRecord::default()
        }
    }

    fn file(scheme: &str, run: u32, messages: Vec<MessageRecord>, reason: Option<&str>) -> RunFile {
        RunFile {
            run: Run {
                scenario: "a".into(),
                scheme: scheme.into(),
                run,
                apps: measure(&messages, &BTreeMap::new(), &Series::default()),
                validity: Validity {
                    reasons: reason.map(str::to_owned).into_iter().collect(),
                    ..Validity::default()
                },
                ..Run::default()
            },
            messages,
            ..RunFile::default()
        }
    }

    #[test]
    fn a_message_that_is_not_complete_is_counted_but_has_no_time() {
        let messages = [
            message("response", 0.0, Some(50.0)),
            message("response", 1.0, Some(70.0)),
            message("response", 2.0, None),
            message("burst", 3.0, Some(900.0)),
        ];
        let measures = measure(&messages, &BTreeMap::new(), &Series::default());
        let response = &measures["response"];
        assert_eq!((response.count, response.completed), (3, 2));
        assert_eq!(response.bytes, 2_000);
        assert_eq!(response.completion.mean_ms, Some(60.0));
        assert_eq!(response.completion.median_ms, Some(50.0));
        assert_eq!(
            (response.retransmissions, response.most_retransmissions),
            (6, 2)
        );
        assert_eq!(measures["burst"].completion.p99_ms, Some(900.0));
    }

    #[test]
    fn losses_count_while_a_message_is_under_way() {
        let series = Series {
            bin_s: 0.1,
            dropped: (1..=10).collect(),
            ..Series::default()
        };
        let own = [
            message("a", 0.25, Some(100.0)),
            message("a", 0.31, Some(1.0)),
        ];
        let measures = measure(&own, &BTreeMap::new(), &series);
        assert_eq!(measures["a"].dropped, 3 + 4, "each once");
        let endless = [message("a", 0.85, None)];
        assert_eq!(
            measure(&endless, &BTreeMap::new(), &series)["a"].dropped,
            9 + 10
        );
    }

    #[test]
    fn valid_runs_are_pooled() {
        let few = |times: &[f64]| -> Vec<MessageRecord> {
            times
                .iter()
                .map(|&time| message("flow", 0.0, Some(time)))
                .collect()
        };
        let files = [
            file("cubic", 0, few(&[1.0, 2.0]), None),
            file("bbr", 0, few(&[9.0]), None),
            file("cubic", 1, few(&[3.0]), None),
            file("cubic", 2, few(&[900.0]), Some("late")),
        ];
        let pooled = pool(&files);
        let schemes: Vec<&str> = pooled.iter().map(|cell| cell.scheme.as_str()).collect();
        assert_eq!(schemes, ["cubic", "bbr"]);
        assert_eq!((pooled[0].runs, pooled[0].measures.count), (2, 3));
        assert_eq!(pooled[0].measures.completion.mean_ms, Some(2.0));
    }

    #[test]
    fn measures_are_read_as_they_were_written() {
        let times = (0..500).map(|n| message("flow", 0.0, Some(f64::from(n))));
        let file = file("cubic", 0, times.collect(), None);
        let text = serde_json::to_string(&file).expect("every number is finite");
        let read: RunFile = serde_json::from_str(&text).expect("just written");
        assert_eq!(read, file);
        let completion = file.run.apps["flow"].completion;
        let (low, high) = completion.p99_interval_ms.expect("500 are enough");
        assert!(low < 494.0 && high > 494.0, "{completion:?}");
        // Runs of bulk flows have none of the keys.
        let bulk = serde_json::to_string(&RunFile::default()).expect("every number is finite");
        assert!(
            !bulk.contains("apps") && !bulk.contains("messages"),
            "{bulk}"
        );
    }
}
