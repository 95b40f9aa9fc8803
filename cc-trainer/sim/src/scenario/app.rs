//! Applications of flows: what a flow sends, and when.

use std::time::Duration;

/// The application of a flow.
///
/// Data travel in the forward direction, from the near end to the far end. Where a client asks for
/// them ([`RequestResponse`], [`Video`]), the client is at the far end, opens the connections and
/// sends its requests in the reverse direction; elsewhere the near end opens them. All applications
/// but [`Bulk`](Self::Bulk) disable Nagle's algorithm.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum App {
    /// One connection that always has data to send.
    #[default]
    Bulk,
    /// Periods of sending, with pauses between them.
    OnOff(OnOff),
    /// A client that asks, and asks again some time after the response.
    RequestResponse(RequestResponse),
    /// A player that fetches a video chunk by chunk.
    Video(Video),
    /// A list of writes and pauses.
    Script(Script),
    /// Connections that arrive at random, each of which carries one transfer.
    ShortFlows(ShortFlows),
    /// Single small writes, which the far end echoes.
    Keystrokes(Keystrokes),
}

/// Periods of sending, with pauses between them, on one connection.
#[derive(Clone, Debug, PartialEq)]
pub struct OnOff {
    /// Length of a period of sending.
    pub on: Duration,
    /// Length of a pause between two periods.
    pub off: Duration,
    /// Rate of the data while sending, bit/s of payload, written every [`OnOff::STEP`]; `None`
    /// sends as much as the connection takes.
    pub bits_per_second: Option<f64>,
    /// Whether both lengths are means of exponential distributions.
    pub random: bool,
}

/// A client at the far end that asks for data and asks again after a pause.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestResponse {
    /// Sizes of the responses, bytes; requests go through them in order, again and again.
    pub bytes: Vec<u64>,
    /// Size of a request, bytes.
    pub request_bytes: u32,
    /// Pause between the end of a response and the next request.
    pub think: Duration,
    /// Whether the pause is the mean of an exponential distribution.
    pub random: bool,
    /// Whether every request opens a connection of its own.
    pub new_connections: bool,
    /// Number of requests; `None` goes on until the flow stops.
    pub count: Option<u32>,
}

/// A player at the far end that fetches a video in chunks of constant playing time.
///
/// It asks for the next chunk as soon as its buffer has room for it, in the highest bitrate that is
/// at most [`Video::SAFETY`] of the throughput of the chunk before, or else in the lowest. It plays
/// from the first chunk on, and pauses while its buffer is empty.
#[derive(Clone, Debug, PartialEq)]
pub struct Video {
    /// Bitrates of the video, bit/s, in ascending order.
    pub bitrates: Vec<f64>,
    /// Playing time of a chunk.
    pub chunk: Duration,
    /// Playing time that the buffer holds; at least that of a chunk.
    pub buffer: Duration,
    /// Size of a request, bytes.
    pub request_bytes: u32,
}

/// A list of steps on one connection, carried out once or again and again.
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    /// The steps, in the order in which they are carried out.
    pub steps: Vec<Step>,
    /// Whether the first step follows the last one.
    pub repeat: bool,
}

/// A step of a [`Script`].
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Nothing is written for some time.
    Pause(Duration),
    /// Data are written, at once or several times. The script does not wait for their delivery.
    Write {
        /// Name of these messages in results.
        name: String,
        /// Size of a write, bytes.
        bytes: u64,
        /// Time from one write to the next.
        every: Duration,
        /// Number of writes. Each takes `every`, the last one too.
        times: u32,
    },
}

/// Connections that arrive as a Poisson process, each of which carries one transfer.
#[derive(Clone, Debug, PartialEq)]
pub struct ShortFlows {
    /// Mean number of arrivals per second.
    pub per_second: f64,
    /// Distribution of the transfers' sizes.
    pub sizes: Sizes,
    /// Number of arrivals; `None` goes on until the flow stops.
    pub count: Option<u32>,
}

/// A heavy-tailed distribution of sizes, bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sizes {
    /// A Pareto distribution that is cut off at both ends.
    Pareto {
        /// Tail index; the smaller, the heavier the tail.
        shape: f64,
        /// Smallest size, bytes, at least 1.
        least: u64,
        /// Largest size, bytes, at which the distribution ends.
        most: u64,
    },
    /// A log-normal distribution. Larger sizes count as the largest one.
    LogNormal {
        /// Median of the sizes, bytes, at least 1.
        median: u64,
        /// Standard deviation of the natural logarithm.
        sigma: f64,
        /// Largest size, bytes, at which the distribution ends.
        most: u64,
    },
}

/// Small writes with exponentially distributed gaps, as of a person at a remote shell. The far end
/// answers each with an echo.
#[derive(Clone, Debug, PartialEq)]
pub struct Keystrokes {
    /// Size of a write, bytes.
    pub bytes: u64,
    /// Size of an echo, bytes.
    pub echo_bytes: u32,
    /// Mean time from one keystroke to the next.
    pub mean: Duration,
}

impl App {
    /// Name of the application in scenario files.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Bulk => "bulk",
            Self::OnOff(_) => "on-off",
            Self::RequestResponse(_) => "request-response",
            Self::Video(_) => "video",
            Self::Script(_) => "script",
            Self::ShortFlows(_) => "short-flows",
            Self::Keystrokes(_) => "keystrokes",
        }
    }

    /// Whether the far end opens the connections, since it asks for the data.
    pub fn has_client(&self) -> bool {
        matches!(self, Self::RequestResponse(_) | Self::Video(_))
    }

    /// Whether the flow opens more than one connection.
    pub fn opens_several_connections(&self) -> bool {
        match self {
            Self::ShortFlows(_) => true,
            Self::RequestResponse(app) => app.new_connections,
            _ => false,
        }
    }
}

impl OnOff {
    /// Time from one write to the next while sending at a rate.
    pub const STEP: Duration = Duration::from_millis(10);
}

impl Video {
    /// The share of the last chunk's throughput that the next chunk's bitrate may have.
    pub const SAFETY: f64 = 0.8;
}

impl Sizes {
    /// Mean size in bytes, with the limits taken into account.
    pub fn mean(&self) -> f64 {
        match *self {
            Self::Pareto { least, most, .. } if least == most => least as f64,
            Self::Pareto { shape, least, most } => {
                let (low, high) = (least as f64, most as f64);
                let ratio = low / high;
                if (shape - 1.0).abs() < 1e-9 {
                    return low * (1.0 / ratio).ln() / (1.0 - ratio);
                }
                let kept = 1.0 - ratio.powf(shape);
                low * shape / (shape - 1.0) * (1.0 - ratio.powf(shape - 1.0)) / kept
            }
            Self::LogNormal {
                median,
                sigma,
                most,
            } => {
                // E[min(X, M)] of a log-normal X.
                let z = (most as f64 / median as f64).ln() / sigma;
                let below = median as f64 * (sigma * sigma / 2.0).exp() * normal_cdf(z - sigma);
                below + most as f64 * normal_cdf(-z)
            }
        }
    }

    /// The size of a uniformly distributed `u` in [0, 1) and a standard normal `z`, whichever the
    /// distribution is made from.
    pub(crate) fn draw(&self, u: f64, z: f64) -> u64 {
        let (size, least, most) = match *self {
            Self::Pareto { shape, least, most } => {
                let kept = 1.0 - (least as f64 / most as f64).powf(shape);
                let size = least as f64 * (1.0 - u * kept).powf(-1.0 / shape);
                (size, least, most)
            }
            Self::LogNormal {
                median,
                sigma,
                most,
            } => (median as f64 * (sigma * z).exp(), 1, most),
        };
        (size as u64).clamp(least, most)
    }
}

/// The standard normal distribution function, with an error below 1e-6 (Abramowitz and Stegun,
/// formula 7.1.26).
fn normal_cdf(z: f64) -> f64 {
    let x = z.abs() / std::f64::consts::SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * x);
    let polynomial = t
        * (0.254_829_592
            + t * (-0.284_496_736
                + t * (1.421_413_741 + t * (-1.453_152_027 + t * 1.061_405_429))));
    let erf = 1.0 - polynomial * (-x * x).exp();
    if z < 0.0 {
        0.5 * (1.0 - erf)
    } else {
        0.5 * (1.0 + erf)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::{RngExt, SeedableRng, rngs::StdRng};
    use rand_distr::StandardNormal;

    use super::*;

    fn sample_mean(sizes: Sizes, draws: u32) -> f64 {
        let mut random = StdRng::seed_from_u64(1);
        let sum: f64 = (0..draws)
            .map(|_| sizes.draw(random.random(), random.sample(StandardNormal)) as f64)
            .sum();
        sum / f64::from(draws)
    }

    #[test]
    fn the_mean_is_that_of_the_draws() {
        let pareto = |shape, least, most| Sizes::Pareto { shape, least, most };
        let log_normal = |median, sigma, most| Sizes::LogNormal {
            median,
            sigma,
            most,
        };
        for sizes in [
            pareto(1.2, 1_000, 1_000_000),
            pareto(1.0, 1_000, 100_000),
            pareto(2.5, 500, 500),
            log_normal(10_000, 1.0, 1_000_000),
            log_normal(10_000, 2.0, 50_000),
        ] {
            let (expected, found) = (sizes.mean(), sample_mean(sizes, 400_000));
            assert!(
                (found / expected - 1.0).abs() < 0.02,
                "{sizes:?}: {expected} {found}"
            );
        }
    }

    proptest! {
        #[test]
        fn sizes_stay_within_their_limits(u in 0.0..1.0, z in -8.0..8.0, shape in 0.3..4.0) {
            let pareto = Sizes::Pareto { shape, least: 100, most: 10_000 };
            prop_assert!((100..=10_000).contains(&pareto.draw(u, z)));
            let log_normal = Sizes::LogNormal { median: 100, sigma: shape, most: 10_000 };
            prop_assert!((1..=10_000).contains(&log_normal.draw(u, z)));
        }
    }
}
