//! A decision for a player elsewhere: all that a [`Chooser`] may know, in one JSON object.
//!
//! The server keeps nothing between requests, as Pensieve's does not: a player can change servers,
//! and a server can be restarted, in the middle of a video.

use serde::{Deserialize, Serialize};

use crate::{
    Chooser, View,
    ladder::{self, LadderError},
    session::{Download, Rules},
    video::MAX_CHUNKS,
};

/// Most past chunks of a request.
pub const MAX_HISTORY: usize = 1_000;

/// Most chunks of which the sizes are given.
pub const MAX_UPCOMING: usize = 1_000;

/// Makes the chooser for a video with some bitrates (kbit/s, ascending), or says why there is none.
///
/// This is the seam between a server, or an evaluation, and what decides: choosers that plan need
/// the quality of each bitrate, and a learned policy the actions that the video has.
pub type ChooserFor = dyn Fn(&[f64]) -> Result<Box<dyn Chooser>, String> + Send + Sync;

/// What a player asks before each chunk.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// Bitrates that can be chosen, kbit/s, ascending.
    pub kbps: Vec<f64>,
    /// Length of a chunk, s.
    pub chunk_s: f64,
    /// Video in the buffer, s.
    pub buffer_s: f64,
    /// Number of chunks that are left to download, the one asked for included. `None` for a live
    /// video, whose end is far away.
    pub chunks_left: Option<usize>,
    /// What was downloaded before, oldest first. Choosers use up to ten chunks.
    #[serde(default)]
    pub history: Vec<Past>,
    /// Bytes of the next chunks in each bitrate, the one asked for first. What is missing counts as
    /// of its bitrate's nominal size.
    #[serde(default)]
    pub next_bytes: Vec<Vec<u32>>,
}

/// A chunk that a player has downloaded.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Past {
    /// Place of its bitrate in the request's list, from 0.
    pub quality: usize,
    /// Size of the chunk, bytes.
    pub bytes: u32,
    /// Time from the request for it to its last byte, ms.
    pub ms: f64,
    /// Buffer when it had arrived, s; learned policies read it.
    pub buffer_s: Option<f64>,
    /// Size of the chunk in each bitrate, bytes; learned policies with memory read it. Left out,
    /// the others are estimated from `bytes`.
    #[serde(default)]
    pub sizes: Vec<u32>,
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// Place of the chosen bitrate in the request's list, from 0.
    pub quality: usize,
    /// The bitrate that was chosen, kbit/s.
    pub kbps: f64,
}

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Serialize, thiserror::Error)]
#[error("{place}: {what}; {remedy}")]
pub struct RequestError {
    /// What is wrong with the request.
    #[serde(rename = "error")]
    pub what: String,
    /// Where in the request the fault is.
    #[serde(rename = "where")]
    pub place: String,
    /// How to mend the request.
    pub remedy: String,
}

impl RequestError {
    /// Creates an error from its three parts.
    pub fn new(place: &str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            place: place.to_owned(),
            remedy: remedy.into(),
        }
    }
}

/// Answers the request in a body of JSON.
///
/// # Errors
///
/// Returns what is wrong with the body, where, and how to mend it.
pub fn answer(body: &[u8], chooser_for: &ChooserFor) -> Result<Decision, RequestError> {
    let request: Request = serde_json::from_slice(body).map_err(|error| {
        let place = format!("line {}, column {}", error.line(), error.column());
        let text = error.to_string();
        let what = text.split(" at line ").next().unwrap_or_default();
        RequestError::new(
            &place,
            what,
            "send the JSON object that docs/abr.md describes",
        )
    })?;
    request.decide(chooser_for)
}

impl Request {
    /// Checks the request and has the chooser for its bitrates answer it. Before the first chunk,
    /// when nothing is known, the answer is the quality of [`Rules::PENSIEVE`].
    ///
    /// # Errors
    ///
    /// Returns the first fault of the request, that there is no chooser for its bitrates, or that
    /// the chooser failed.
    pub fn decide(&self, chooser_for: &ChooserFor) -> Result<Decision, RequestError> {
        self.check()?;
        let chooser = chooser_for(&self.kbps).map_err(|reason| {
            let remedy = "ask for bitrates that the server's scheme knows, or have it replaced";
            RequestError::new("kbps", reason, remedy)
        })?;
        let levels = self.kbps.len();
        let left = self.chunks_left.unwrap_or(MAX_CHUNKS);
        let quality = if self.history.is_empty() {
            Rules::PENSIEVE.first_quality(levels)
        } else {
            let history: Vec<Download> = self.downloads().collect();
            let past: Vec<Vec<u32>> = self.history.iter().map(|one| one.sizes.clone()).collect();
            let are_known = past.iter().all(|sizes| !sizes.is_empty());
            chooser.choose(&View {
                kbps: &self.kbps,
                chunk_s: self.chunk_s,
                upcoming: &self.next_bytes,
                left,
                chunks: left + self.history.len(),
                buffer_s: self.buffer_s,
                history: &history,
                past: if are_known { &past } else { &[] },
            })
        };
        let kbps = self.kbps.get(quality).copied().ok_or_else(|| {
            RequestError::new(
                "the server",
                format!("its policy chose {quality} of {levels} bitrates"),
                "ask for what the policy was made for, or have it replaced",
            )
        })?;
        Ok(Decision { quality, kbps })
    }

    fn downloads(&self) -> impl Iterator<Item = Download> {
        let count = self.history.len();
        let of = move |(chunk, past): (usize, &Past)| {
            let newest = chunk + 1 == count;
            let buffer_s = past
                .buffer_s
                .unwrap_or(if newest { self.buffer_s } else { 0.0 });
            Download {
                chunk,
                quality: past.quality,
                bytes: past.bytes,
                delay_ms: past.ms,
                buffer_ms: buffer_s * 1e3,
                ..Download::default()
            }
        };
        self.history.iter().enumerate().map(of)
    }

    fn check(&self) -> Result<(), RequestError> {
        ladder::check(&self.kbps).map_err(|error| {
            let place = match error {
                LadderError::Bitrate { place, .. } | LadderError::Order { place, .. } => {
                    format!("kbps[{place}]")
                }
                _ => "kbps".to_owned(),
            };
            let text = error.to_string();
            let (what, remedy) = text.split_once(": ").unwrap_or((&text, "see docs/abr.md"));
            RequestError::new(&place, what, remedy)
        })?;
        within("chunk_s", self.chunk_s, 0.1, 60.0)?;
        within("buffer_s", self.buffer_s, 0.0, 86_400.0)?;
        if self
            .chunks_left
            .is_some_and(|left| left == 0 || left > MAX_CHUNKS)
        {
            return Err(RequestError::new(
                "chunks_left",
                "there is nothing to choose, or more than any video has",
                format!("give 1 to {MAX_CHUNKS}, or leave it out for a live video"),
            ));
        }
        for (place, count, most) in [
            ("history", self.history.len(), MAX_HISTORY),
            ("next_bytes", self.next_bytes.len(), MAX_UPCOMING),
        ] {
            if count > most {
                let remedy = format!("give at most {most}: the nearest ones");
                return Err(RequestError::new(place, format!("{count} chunks"), remedy));
            }
        }
        let levels = self.kbps.len();
        for (place, past) in self.history.iter().enumerate() {
            let place = |key: &str| format!("history[{place}].{key}");
            if past.quality >= levels {
                return Err(RequestError::new(
                    &place("quality"),
                    format!("{} of {levels} bitrates", past.quality),
                    "count the bitrates of `kbps` from 0",
                ));
            }
            if past.bytes == 0 {
                let remedy = "give the bytes of the chunk, or leave the chunk out";
                return Err(RequestError::new(&place("bytes"), "0 bytes", remedy));
            }
            let sizes = &past.sizes;
            if !sizes.is_empty() && (sizes.len() != levels || sizes.contains(&0)) {
                return Err(RequestError::new(
                    &place("sizes"),
                    format!("{} sizes, or one of 0 bytes", sizes.len()),
                    format!("give the bytes of each of the {levels} bitrates, or none"),
                ));
            }
            within(&place("ms"), past.ms, 1e-3, 1e9)?;
            within(
                &place("buffer_s"),
                past.buffer_s.unwrap_or(0.0),
                0.0,
                86_400.0,
            )?;
        }
        for (chunk, sizes) in self.next_bytes.iter().enumerate() {
            if sizes.len() != levels || sizes.contains(&0) {
                return Err(RequestError::new(
                    &format!("next_bytes[{chunk}]"),
                    format!("{} sizes, or one of 0 bytes", sizes.len()),
                    format!("give the bytes of each of the {levels} bitrates"),
                ));
            }
        }
        Ok(())
    }
}

fn within(place: &str, value: f64, least: f64, most: f64) -> Result<(), RequestError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    let remedy = format!("give a number from {least} to {most}");
    Err(RequestError::new(place, format!("{value}"), remedy))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::{
        baseline::{Fixed, NAMES, named},
        play::play,
        qoe::{Metric, Qoe},
        session::Session,
        trace::Trace,
        video::Video,
    };

    fn fixed(quality: usize) -> impl Fn(&[f64]) -> Result<Box<dyn Chooser>, String> {
        move |_| Ok(Box::new(Fixed(quality)))
    }

    #[test]
    fn bitrates_that_the_scheme_does_not_know_are_refused() {
        let chooser_for = |kbps: &[f64]| -> Result<Box<dyn Chooser>, String> {
            let metric = Metric::new(Qoe::Hd, kbps).map_err(|error| error.to_string())?;
            Ok(named("mpc", &metric).expect("a known name"))
        };
        let body = br#"{"kbps": [300, 800], "chunk_s": 4, "buffer_s": 0}"#;
        let error = answer(body, &chooser_for).expect_err("800 has no quality");
        assert!(
            error.place == "kbps" && error.what.contains("800 kbit/s"),
            "{error}"
        );
    }

    #[test]
    fn an_answer_is_what_the_chooser_selects_in_a_session() {
        let video = Arc::new(Video::envivio());
        let times: Vec<f64> = (0..200).map(f64::from).collect();
        let mbps = times
            .iter()
            .map(|time| 0.4 + (time / 9.0).sin().abs() * 2.5)
            .collect();
        let trace = Arc::new(Trace::new("t", times, mbps).expect("valid"));
        let metric = Metric::new(Qoe::Linear, video.kbps()).expect("its own bitrates");
        for name in NAMES {
            let chooser = named(name, &metric).expect("a known name");
            let metric = metric.clone();
            let chooser_for = move |_: &[f64]| Ok(named(name, &metric).expect("a known name"));
            let session = Session::new(video.clone(), trace.clone(), Rules::PENSIEVE);
            let downloads = play(session, &*chooser).expect("qualities of the video");
            for (chunk, download) in downloads.iter().enumerate() {
                let past = downloads[..chunk].iter().map(|one| {
                    json!({
                        "quality": one.quality, "bytes": one.bytes, "ms": one.delay_ms,
                        "buffer_s": one.buffer_ms / 1e3,
                    })
                });
                let buffer_s = downloads[..chunk]
                    .last()
                    .map_or(0.0, |last| last.buffer_ms / 1e3);
                let request = json!({
                    "kbps": video.kbps(), "chunk_s": 4.0, "buffer_s": buffer_s,
                    "chunks_left": 48 - chunk, "history": past.collect::<Vec<_>>(),
                    "next_bytes": &video.sizes()[chunk..],
                });
                let found = answer(request.to_string().as_bytes(), &chooser_for);
                let quality = found.map(|decision| decision.quality);
                assert_eq!(quality, Ok(download.quality), "{name}, chunk {chunk}");
            }
        }
    }

    #[test]
    fn a_malformed_request_is_told_where() {
        let fine = json!({
            "kbps": [300, 750], "chunk_s": 4, "buffer_s": 8.5, "chunks_left": 3,
            "history": [{"quality": 1, "bytes": 1000, "ms": 20, "sizes": [500, 1000]}],
            "next_bytes": [[1, 2]],
        });
        let ask = |body: &Value| answer(body.to_string().as_bytes(), &fixed(1));
        let expected = Decision {
            quality: 1,
            kbps: 750.0,
        };
        assert_eq!(ask(&fine), Ok(expected));
        for (pointer, value, place) in [
            ("/kbps", json!([]), "kbps"),
            ("/kbps", json!([750, 300]), "kbps[1]"),
            ("/kbps/0", json!(0), "kbps[0]"),
            ("/chunk_s", json!(0), "chunk_s"),
            ("/buffer_s", json!(-1), "buffer_s"),
            ("/chunks_left", json!(0), "chunks_left"),
            ("/history/0/quality", json!(2), "history[0].quality"),
            ("/history/0/bytes", json!(0), "history[0].bytes"),
            ("/history/0/ms", json!(0), "history[0].ms"),
            ("/history/0/sizes", json!([1]), "history[0].sizes"),
            ("/next_bytes/0", json!([1]), "next_bytes[0]"),
            ("/next_bytes/0", json!([1, 0]), "next_bytes[0]"),
            ("/history/0/ms", json!("fast"), "line 1, column "),
            ("/history/0", json!(null), "line 1, column "),
            ("/buffer_s", json!(null), "line 1, column "),
        ] {
            let mut body = fine.clone();
            *body.pointer_mut(pointer).expect("a key of the request") = value;
            let error = ask(&body).expect_err(pointer);
            assert!(error.place.starts_with(place), "{pointer}: {error}");
            assert!(!error.remedy.is_empty());
        }
        for body in ["", "{", "[]", "null", "{\"kbps\": [1]}", "\u{feff}{}"] {
            assert!(answer(body.as_bytes(), &fixed(0)).is_err(), "{body}");
        }
        let mut extra = fine.clone();
        extra["bitrate"] = json!(1);
        let error = ask(&extra).expect_err("an unknown key");
        assert!(error.what.contains("unknown field `bitrate`"), "{error}");
        let mut long = fine.clone();
        long["history"] = Value::Array(vec![fine["history"][0].clone(); MAX_HISTORY + 1]);
        assert_eq!(
            ask(&long).map_err(|error| error.place),
            Err("history".to_owned())
        );
    }

    #[test]
    fn nothing_is_known_before_the_first_chunk() {
        let body = br#"{"kbps": [300, 750, 1200], "chunk_s": 4, "buffer_s": 0}"#;
        assert_eq!(answer(body, &fixed(2)).map(|one| one.quality), Ok(1));
        let body = br#"{"kbps": [300], "chunk_s": 4, "buffer_s": 0}"#;
        assert_eq!(answer(body, &fixed(2)).map(|one| one.quality), Ok(0));
    }
}
