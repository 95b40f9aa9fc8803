//! Bitrate selection: one video after the other over drawn traces, as Pensieve trains.
//!
//! An episode is one session of [`cc_abr`]: each turn asks for the quality of the next chunk, from
//! the second one on, since nobody chooses the first. The reward is the quality of experience of
//! the chunk, so that the mean reward of an episode is the session's score. The end of the video is
//! a terminal state.
//!
//! The observation is Pensieve's state of six rows and eight columns ([`cc_abr::state`]), row after
//! row. Its values are scaled already and need no normaliser. [`Turn::observed_reward`] is 0
//! throughout, because Pensieve's network sees no reward, and a server cannot know how long a
//! player stood still.
//!
//! The critic may see what is ahead ([`Turn::privileged`]): the mean throughputs of the trace from
//! where the session stands over the next seconds. What a session can earn depends on its trace
//! more than on its actions, and a baseline that knows the trace takes that variance out of the
//! policy's gradient without a bias (H. Mao et al., "Variance Reduction for Reinforcement Learning
//! in Input-Driven Environments", ICLR 2019, arXiv 1807.02264).

mod config;
mod error;
mod world;

use std::sync::Arc;

use cc_abr::{
    View,
    session::{Download, Session, TRAINING_NOISE},
    state::{COLUMNS, ROWS, SIZES, State},
    trace::Trace,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};

pub use config::{AbrConfig, Lacking, TraceSource, ValidationConfig, VideoSource};
pub use error::AbrConfigError;
pub use world::AbrWorld;

use super::{End, Environment, Series, Spec, Turn};
use world::Played;

/// The times over which the critic sees the trace's mean throughput, s.
const OUTLOOK_S: [f64; 8] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0];

/// The environment, with one seat. Its tasks are the sources of traces.
#[derive(Debug)]
pub struct AbrEnvironment {
    world: Arc<AbrWorld>,
    random: StdRng,
    traces: Traces,
    /// The session in progress; `None` before the first turn.
    playing: Option<Playing>,
    action: Option<usize>,
}

/// The traces of an environment's sessions.
#[derive(Clone, Debug)]
enum Traces {
    /// Drawn from all sources.
    Any,
    /// Drawn from one source, by its index.
    Source(usize),
    /// The same one each time, from its beginning and without noise.
    One(Arc<Trace>),
}

/// A session in progress.
#[derive(Clone, Debug)]
struct Playing {
    session: Session,
    history: Vec<Download>,
    played: Played,
    task: usize,
}

impl AbrEnvironment {
    /// Creates an environment. The seed determines everything random in it.
    pub fn new(world: Arc<AbrWorld>, seed: u64) -> Self {
        Self {
            world,
            random: StdRng::seed_from_u64(seed),
            traces: Traces::Any,
            playing: None,
            action: None,
        }
    }

    /// Restricts the environment to the traces of one source, by its index.
    #[must_use]
    pub fn of_source(mut self, source: usize) -> Self {
        self.traces = Traces::Source(source);
        self
    }

    /// Has every session play this trace from its beginning and without noise, as in tests.
    #[must_use]
    pub fn of_trace(mut self, trace: Arc<Trace>) -> Self {
        self.traces = Traces::One(trace);
        self
    }

    /// What is known before the decision that the last turn asked for; `None` before the first
    /// turn.
    pub fn view(&self) -> Option<View<'_>> {
        let playing = self.playing.as_ref()?;
        Some(playing.session.view(&playing.history))
    }

    fn is_in_training(&self) -> bool {
        !matches!(self.traces, Traces::One(_))
    }

    /// Begins a session and downloads its first chunk.
    fn begin(&mut self) {
        let (task, trace) = match &self.traces {
            Traces::One(trace) => (0, Arc::clone(trace)),
            Traces::Source(source) => (*source, self.world.draw_trace(*source, &mut self.random)),
            Traces::Any => {
                let source = self.world.draw_source(&mut self.random);
                (source, self.world.draw_trace(source, &mut self.random))
            }
        };
        let played = self.world.draw_video(&mut self.random);
        let in_training = self.is_in_training();
        let random = &mut self.random;
        let session = self
            .world
            .session(&played.video, trace, in_training, random);
        let first = session.rules().first_quality(played.video.levels());
        self.playing = Some(Playing {
            session,
            history: Vec::with_capacity(played.video.chunks()),
            played,
            task,
        });
        self.download(first);
    }

    /// Downloads the next chunk. Returns how long playback stood still, s.
    fn download(&mut self, quality: usize) -> f64 {
        let noise = match self.is_in_training() && self.world.config().noise {
            true => self.random.random_range(TRAINING_NOISE),
            false => 1.0,
        };
        let Some(playing) = &mut self.playing else {
            unreachable!("a session has begun");
        };
        let download = playing.session.download(quality, noise);
        playing.history.push(download);
        download.rebuffer_ms / 1e3
    }

    /// Carries out an action and returns its reward.
    fn play(&mut self, action: usize) -> f64 {
        let Some(playing) = &self.playing else {
            unreachable!("a turn has asked for the action");
        };
        let known = playing.played.qualities[action];
        let config = self.world.config();
        let (divisor, cost) = match known {
            Some(_) => (config.reward_divisor, 0.0),
            None => (config.reward_divisor, config.lacking_cost),
        };
        let kbps = playing.played.video.kbps();
        let quality = known.unwrap_or_else(|| self.world.actions().nearest_lower(kbps, action));
        let last = playing.history.last().map_or(quality, |last| last.quality);
        let rebuffer_s = self.download(quality);
        let metric = self.playing.as_ref().map(|playing| &playing.played.metric);
        let score = metric.map_or(0.0, |metric| metric.score(quality, last, rebuffer_s));
        score / divisor - cost
    }
}

impl Environment for AbrEnvironment {
    fn spec(&self) -> Spec {
        self.world.spec()
    }

    fn next(&mut self, turn: &mut Turn) {
        turn.seat = 0;
        turn.observed_reward = 0.0;
        turn.first = None;
        match self.action.take() {
            None => {
                turn.reward = 0.0;
                turn.first = Some(End::Truncated);
                self.begin();
            }
            Some(action) => {
                turn.reward = self.play(action) as f32;
                let is_over = |playing: &Playing| playing.session.is_over();
                if self.playing.as_ref().is_some_and(is_over) {
                    turn.first = Some(End::Terminated);
                    self.begin();
                }
            }
        }
        let Some(playing) = &self.playing else {
            unreachable!("a session has begun");
        };
        turn.task = playing.task;
        let qualities = &playing.played.qualities;
        let view = playing.session.view(&playing.history);
        let config = self.world.config();
        let state = State::of(&view, qualities).recent(config.past_chunks);
        let state = state.with_throughput(config.throughput);
        turn.observation.clear();
        turn.observation.extend(state.flat());
        let ahead = playing.session.outlook(&OUTLOOK_S);
        turn.privileged.clear();
        turn.privileged.extend(ahead.map(outlook));
        turn.allowed.clear();
        if self.world.masks() && qualities.contains(&None) {
            turn.allowed.extend(qualities.iter().map(Option::is_some));
        }
    }

    fn act(&mut self, action: usize) {
        let may = |playing: &Playing| playing.played.qualities[action].is_some();
        assert!(
            !self.world.masks() || self.playing.as_ref().is_some_and(may),
            "the video does not have action {action}"
        );
        self.action = Some(action);
    }

    fn series(&self) -> Vec<Series> {
        let config = self.world.config();
        series(config.past_chunks, config.actions.len())
    }
}

impl AbrWorld {
    /// The sizes of the environments.
    pub fn spec(&self) -> Spec {
        Spec {
            seats: 1,
            observation: ROWS * COLUMNS,
            privileged: OUTLOOK_S.len(),
            actions: self.actions().kbps().len(),
            tasks: self.sources().len(),
        }
    }
}

/// What the critic sees of a mean throughput in Mbit/s: about 0.3 for 0.2, 0.8 for 1 and 1.8 for 10.
fn outlook(mbps: f64) -> f32 {
    ((4.0 * mbps).ln_1p() / 2.0) as f32
}

/// The parts of an observation that Pensieve's network reads: the throughputs and delays of the
/// last `past` chunks, the sizes of the next chunk for `actions` actions, and the last bitrate, the
/// buffer, and the chunks left.
fn series(past: usize, actions: usize) -> Vec<Series> {
    let last = |row: usize, length: usize| Series {
        from: (row + 1) * COLUMNS - length,
        length,
        is_context: false,
    };
    let sizes = Series {
        from: SIZES * COLUMNS,
        length: actions,
        is_context: false,
    };
    vec![
        last(2, past),
        last(3, past),
        sizes,
        last(0, 1),
        last(1, 1),
        last(5, 1),
    ]
}

#[cfg(test)]
mod tests;
