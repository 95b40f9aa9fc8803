//! The traces and videos of a configuration, which all its environments share.

use std::sync::Arc;

use cc_abr::{
    generate,
    ladder::Actions,
    qoe::{Aim, Metric},
    session::{Rules, Session},
    state::COLUMNS,
    trace::Trace,
    video::Video,
};
use rand::{RngExt, rngs::StdRng, seq::SliceRandom};

use super::{AbrConfig, AbrConfigError, Lacking, TraceSource, VideoSource, files};

/// The checked settings with the files that they name.
#[derive(Clone, Debug)]
pub struct AbrWorld {
    config: AbrConfig,
    actions: Actions,
    sources: Vec<Source>,
    videos: Vec<LoadedVideo>,
    /// Traces that policies are judged on.
    judges: Vec<Arc<Trace>>,
}

/// A source of traces that was read.
#[derive(Clone, Debug)]
struct Source {
    name: String,
    weight: f64,
    /// The traces of files; empty for a family, whose traces are drawn when they are needed.
    traces: Vec<Arc<Trace>>,
    settings: TraceSource,
}

/// A video that was read, with what follows from its bitrates.
#[derive(Clone, Debug)]
struct LoadedVideo {
    weight: f64,
    least_levels: Option<usize>,
    played: Played,
}

/// A video with the quality of each action and the measure for its bitrates.
#[derive(Clone, Debug)]
pub(super) struct Played {
    pub(super) video: Arc<Video>,
    /// `[A]`: quality of each action; `None` for those that the video lacks.
    pub(super) qualities: Vec<Option<usize>>,
    pub(super) metric: Metric,
}

impl AbrWorld {
    /// Checks the settings and reads the files that they name.
    ///
    /// # Errors
    ///
    /// Returns an error that names the setting, and for files the file and the line.
    pub fn open(config: AbrConfig) -> Result<Self, AbrConfigError> {
        check_numbers(&config)?;
        if config.actions.len() > COLUMNS {
            return Err(AbrConfigError::Actions(config.actions.len()));
        }
        let actions = Actions::new(config.actions.clone()).map_err(|source| {
            let place = "actions".to_owned();
            AbrConfigError::Ladder { place, source }
        })?;
        if config.sources.is_empty() {
            return Err(AbrConfigError::NoSources);
        }
        if config.videos.is_empty() {
            return Err(AbrConfigError::NoVideos);
        }
        let mut judges = Vec::new();
        let mut sources = Vec::new();
        for (index, settings) in config.sources.iter().enumerate() {
            let place = format!("sources[{index}]");
            let mut source = Source::open(settings, &place)?;
            judges.extend(source.hold_out(config.hold_out, &place)?);
            sources.push(source);
        }
        if let Some(validation) = &config.validation {
            if validation.scales.is_empty() {
                return Err(AbrConfigError::NoScales);
            }
            for (index, &scale) in validation.scales.iter().enumerate() {
                check_scale(|| format!("validation.scales[{index}]"), scale)?;
            }
            for (index, settings) in validation.sources.iter().enumerate() {
                let place = format!("validation.sources[{index}]");
                judges.extend(Source::open(settings, &place)?.all(&place)?);
            }
            if judges.is_empty() {
                return Err(AbrConfigError::NothingHeldOut);
            }
            let at = |&scale: &f64| judges.iter().map(move |trace| scaled(trace, scale));
            judges = validation.scales.iter().flat_map(at).collect();
        }
        let load = |(index, source): (usize, &VideoSource)| {
            LoadedVideo::open(source, &config, &actions, &format!("videos[{index}]"))
        };
        let videos = config.videos.iter().enumerate().map(load);
        let videos = videos.collect::<Result<_, _>>()?;
        Ok(Self {
            actions,
            sources,
            videos,
            judges,
            config,
        })
    }

    /// The settings that the world was made from.
    pub fn config(&self) -> &AbrConfig {
        &self.config
    }

    /// The actions of policies, which are bitrates.
    pub fn actions(&self) -> &Actions {
        &self.actions
    }

    /// Name of each source of traces, by its index.
    pub fn sources(&self) -> Vec<String> {
        self.sources
            .iter()
            .map(|source| source.name.clone())
            .collect()
    }

    /// What is trained on, in words: the sources with their numbers of traces.
    pub fn summary(&self) -> String {
        let one = |source: &Source| match (source.traces.len(), source.settings.count) {
            (0, None) => format!("{} (without end)", source.name),
            (0, Some(count)) => format!("{} ({count} traces)", source.name),
            (count, _) => format!("{} ({count} traces)", source.name),
        };
        let all: Vec<String> = self.sources.iter().map(one).collect();
        all.join(", ")
    }

    /// The traces that policies are judged on and not trained on, in their order.
    pub fn judges(&self) -> &[Arc<Trace>] {
        &self.judges
    }

    /// Whether all videos have the same number of chunks, so that all sessions have.
    pub fn has_equal_chunks(&self) -> bool {
        let mut chunks = self.videos.iter().map(|one| one.played.video.chunks());
        let first = chunks.next();
        chunks.all(|count| Some(count) == first)
    }

    /// Draws a source in proportion to the weights.
    pub(super) fn draw_source(&self, random: &mut StdRng) -> usize {
        draw(self.sources.iter().map(|source| source.weight), random)
    }

    /// Draws a trace of a source.
    pub(super) fn draw_trace(&self, source: usize, random: &mut StdRng) -> Arc<Trace> {
        let Source {
            traces, settings, ..
        } = &self.sources[source];
        let trace = match settings.family {
            Some(family) => {
                let number = random.random_range(0..settings.count.unwrap_or(u64::MAX));
                Arc::new(generate::trace(
                    family,
                    settings.seed,
                    number,
                    settings.seconds,
                ))
            }
            None => Arc::clone(&traces[random.random_range(0..traces.len())]),
        };
        let mut factor = |range: Option<[f64; 2]>| {
            range.map(|[least, most]| random.random_range(least.ln()..=most.ln()).exp())
        };
        let trace = match factor(settings.scale) {
            Some(factor) => scaled(&trace, factor),
            None => trace,
        };
        match factor(settings.stretch) {
            Some(factor) => Arc::new(trace.stretched(factor)),
            None => trace,
        }
    }

    /// Draws a video, and which of its bitrates it has where that is to be drawn.
    pub(super) fn draw_video(&self, random: &mut StdRng) -> Played {
        let weights = self.videos.iter().map(|video| video.weight);
        let loaded = &self.videos[draw(weights, random)];
        let levels = loaded.played.video.levels();
        let Some(least) = loaded.least_levels.filter(|&least| least < levels) else {
            return loaded.played.clone();
        };
        let kept = random.random_range(least..=levels);
        let mut keep: Vec<bool> = (0..levels).map(|level| level < kept).collect();
        keep.shuffle(random);
        let video = loaded.played.video.masked(&keep);
        let video = video.unwrap_or_else(|error| unreachable!("at least one is kept: {error}"));
        let played = Played::new(video, &self.config, &self.actions, "videos");
        played.unwrap_or_else(|error| unreachable!("with more bitrates it was one: {error}"))
    }

    /// Begins a session, at a random point of the trace if `in_training` and configured so.
    pub(super) fn session(
        &self,
        video: &Arc<Video>,
        trace: Arc<Trace>,
        in_training: bool,
        random: &mut StdRng,
    ) -> Session {
        let (video, rules) = (Arc::clone(video), Rules::PENSIEVE);
        match in_training && self.config.random_start {
            true => Session::in_training(video, trace, rules, random),
            false => Session::new(video, trace, rules),
        }
    }

    /// Whether actions that a video lacks are masked.
    pub(super) fn masks(&self) -> bool {
        self.config.lacking == Lacking::Masked
    }
}

/// A trace with its throughputs multiplied by a factor.
fn scaled(trace: &Arc<Trace>, factor: f64) -> Arc<Trace> {
    match factor == 1.0 {
        true => Arc::clone(trace),
        false => Arc::new(trace.scaled(factor)),
    }
}

/// Draws an index in proportion to weights, of which at least one is above 0.
fn draw(weights: impl Iterator<Item = f64> + Clone, random: &mut StdRng) -> usize {
    let sum: f64 = weights.clone().sum();
    let mut left = random.random_range(0.0..sum);
    let mut last = 0;
    for (index, weight) in weights.enumerate().filter(|(_, weight)| *weight > 0.0) {
        left -= weight;
        last = index;
        if left < 0.0 {
            break;
        }
    }
    last
}

impl Source {
    fn open(settings: &TraceSource, place: &str) -> Result<Self, AbrConfigError> {
        let (name, traces) = match (&settings.traces, settings.family) {
            (Some(path), None) => {
                let set = files::traces(path).map_err(|source| AbrConfigError::Traces {
                    place: place.to_owned(),
                    source,
                })?;
                (set.name, set.traces)
            }
            (None, Some(family)) => {
                let known = generate::Family::NAMED.iter();
                let mut names = known.filter(|(_, known)| *known == family);
                let name = names.next().map_or("generated", |(name, _)| *name);
                (format!("{name}-{}", settings.seed), Vec::new())
            }
            _ => {
                let place = place.to_owned();
                return Err(AbrConfigError::Source { place });
            }
        };
        check(
            || format!("{place}.weight"),
            settings.weight,
            settings.weight.is_finite() && settings.weight > 0.0,
            "above 0",
        )?;
        check(
            || format!("{place}.seconds"),
            settings.seconds,
            (1..=1_000_000).contains(&settings.seconds),
            "from 1 to 1000000",
        )?;
        check(
            || format!("{place}.count"),
            settings.count.unwrap_or(1),
            settings.count != Some(0),
            "at least 1, or left out",
        )?;
        for (name, range) in settings.factors() {
            for (index, factor) in range.into_iter().enumerate() {
                check_scale(|| format!("{place}.{name}[{index}]"), factor)?;
            }
            let [least, most] = range;
            let expected = format!("at least {name}[0], {least}");
            check(
                || format!("{place}.{name}[1]"),
                most,
                least <= most,
                &expected,
            )?;
        }
        Ok(Self {
            name,
            weight: settings.weight,
            traces,
            settings: settings.clone(),
        })
    }

    /// Takes every so many-th trace of the files out, the last one of each such group.
    fn hold_out(&mut self, every: usize, place: &str) -> Result<Vec<Arc<Trace>>, AbrConfigError> {
        if every == 0 || self.traces.is_empty() {
            return Ok(Vec::new());
        }
        let count = self.traces.len();
        let numbered = std::mem::take(&mut self.traces).into_iter().enumerate();
        let (held, kept): (Vec<_>, Vec<_>) =
            numbered.partition(|(index, _)| index % every == every - 1);
        self.traces = kept.into_iter().map(|(_, trace)| trace).collect();
        match self.traces.is_empty() {
            true => Err(AbrConfigError::AllHeldOut {
                hold_out: every,
                traces: count,
                place: place.to_owned(),
            }),
            false => Ok(held.into_iter().map(|(_, trace)| trace).collect()),
        }
    }

    /// All traces of the source.
    fn all(self, place: &str) -> Result<Vec<Arc<Trace>>, AbrConfigError> {
        if let Some((name, [least, most])) = self.settings.factors().next() {
            return Err(AbrConfigError::Range {
                place: format!("{place}.{name}"),
                found: format!("[{least}, {most}]"),
                expected: "left out: judgements are at the factors of validation.scales".to_owned(),
            });
        }
        let TraceSource {
            family,
            seed,
            count,
            seconds,
            ..
        } = self.settings;
        let Some(family) = family else {
            return Ok(self.traces);
        };
        let count = count.ok_or_else(|| AbrConfigError::Range {
            place: format!("{place}.count"),
            found: "left out".to_owned(),
            expected: "the number of traces to judge on".to_owned(),
        })?;
        let trace = |number| Arc::new(generate::trace(family, seed, number, seconds));
        Ok((0..count).map(trace).collect())
    }
}

impl LoadedVideo {
    fn open(
        source: &VideoSource,
        config: &AbrConfig,
        actions: &Actions,
        place: &str,
    ) -> Result<Self, AbrConfigError> {
        let video = source.choice.load();
        let video = video.map_err(|source| AbrConfigError::Video {
            place: place.to_owned(),
            source,
        })?;
        check(
            || format!("the number of chunks of {place}"),
            video.chunks(),
            video.chunks() >= 2,
            "at least 2: the first one is not chosen",
        )?;
        check(
            || format!("{place}.least_levels"),
            source.least_levels.unwrap_or(1),
            source.least_levels != Some(0),
            "at least 1, or left out",
        )?;
        check(
            || format!("{place}.weight"),
            source.weight,
            source.weight.is_finite() && source.weight > 0.0,
            "above 0",
        )?;
        Ok(Self {
            weight: source.weight,
            least_levels: source.least_levels,
            played: Played::new(video, config, actions, place)?,
        })
    }
}

impl Played {
    fn new(
        video: Video,
        config: &AbrConfig,
        actions: &Actions,
        place: &str,
    ) -> Result<Self, AbrConfigError> {
        let qualities = actions.qualities(video.kbps());
        let aim = Aim {
            qoe: config.qoe,
            rebuffer_penalty: config.rebuffer_penalty,
        };
        let metric = aim.metric(video.kbps());
        Ok(Self {
            qualities: qualities.map_err(|source| AbrConfigError::Ladder {
                place: place.to_owned(),
                source,
            })?,
            metric: metric.map_err(|source| AbrConfigError::Qoe {
                place: place.to_owned(),
                source,
            })?,
            video: Arc::new(video),
        })
    }
}

fn check_numbers(config: &AbrConfig) -> Result<(), AbrConfigError> {
    let place = |name: &'static str| move || name.to_owned();
    check(
        place("past_chunks"),
        config.past_chunks,
        (1..=COLUMNS).contains(&config.past_chunks),
        &format!("from 1 to {COLUMNS}"),
    )?;
    check(
        place("reward_divisor"),
        config.reward_divisor,
        config.reward_divisor.is_finite() && config.reward_divisor > 0.0,
        "above 0",
    )?;
    check(
        place("lacking_cost"),
        config.lacking_cost,
        config.lacking_cost.is_finite() && config.lacking_cost >= 0.0,
        "0 or more",
    )?;
    let every = config.validation.as_ref().map_or(1, |own| own.every);
    check(place("validation.every"), every, every >= 1, "at least 1")
}

/// Checks a factor of throughputs. Within these bounds every usual trace stays one that videos can
/// be played over.
fn check_scale(place: impl FnOnce() -> String, factor: f64) -> Result<(), AbrConfigError> {
    let fits = (0.01..=100.0).contains(&factor);
    check(place, factor, fits, "from 0.01 to 100")
}

fn check(
    place: impl FnOnce() -> String,
    found: impl std::fmt::Display,
    fits: bool,
    expected: &str,
) -> Result<(), AbrConfigError> {
    match fits {
        true => Ok(()),
        false => Err(AbrConfigError::Range {
            place: place(),
            found: found.to_string(),
            expected: expected.to_owned(),
        }),
    }
}
