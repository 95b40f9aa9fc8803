//! BOLA, which chooses by buffer alone, with a proof of near-optimality.

use crate::{Chooser, View, chooser::throughput};

/// BOLA of Spiteri, Urgaonkar and Sitaraman (INFOCOM 2016, IEEE/ACM ToN 2020).
///
/// A quality of bitrate `S` has the utility `u = ln(S / S_lowest)`; chosen is the one with the
/// largest `(V (u + g) - B) / S`, where `B` is the buffer, and `V` such that nothing is worth
/// downloading one chunk below the target buffer. That is BOLA-BASIC; beyond it there are:
///
/// - BOLA-FINITE: near the beginning and the end of a video the target is smaller, half the time
///   from or to there, at least three chunks.
/// - BOLA-U: the quality rises to at most one above what the last throughput carries, unless it was
///   higher before.
///
/// The pause when nothing is worth downloading is left out: a [`crate::session`] decides by itself
/// when it sleeps, and the highest quality is chosen then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bola {
    /// Buffer that the rule aims at, s.
    pub target_s: f64,
    /// The paper's γp: how much avoiding rebuffering counts beside utility.
    pub gp: f64,
    /// BOLA-BASIC, without the rules of BOLA-FINITE and BOLA-U.
    pub is_basic: bool,
}

impl Bola {
    /// BOLA-BASIC with the settings of the paper and of its authors' simulator Sabre: 25 s, 5.
    pub const BASIC: Self = Self {
        target_s: 25.0,
        gp: 5.0,
        is_basic: true,
    };

    /// The same with the rules of BOLA-FINITE and BOLA-U.
    pub const FINITE: Self = Self {
        is_basic: false,
        ..Self::BASIC
    };

    fn by_buffer(&self, view: &View<'_>) -> usize {
        let utility = |kbps: f64| (kbps / view.kbps[0]).ln();
        let highest = utility(view.kbps[view.kbps.len() - 1]);
        let mut target_s = self.target_s;
        if !self.is_basic {
            let done = view.chunks - view.left;
            let chunks = (done.min(view.left) as f64 / 2.0).max(3.0);
            target_s = target_s.min(chunks * view.chunk_s);
        }
        let v = (target_s - view.chunk_s) / (highest + self.gp);
        let score = |kbps: f64| (v * (utility(kbps) + self.gp) - view.buffer_s) / kbps;
        let mut best = 0;
        for (quality, &kbps) in view.kbps.iter().enumerate() {
            if score(kbps) > score(view.kbps[best]) {
                best = quality;
            }
        }
        best
    }
}

impl Chooser for Bola {
    fn choose(&self, view: &View<'_>) -> usize {
        let quality = self.by_buffer(view);
        let last = view.last_quality();
        let (false, Some(download)) = (self.is_basic, view.history.last()) else {
            return quality;
        };
        let kbps = throughput(download) * 8e3;
        let carried = view.kbps.partition_point(|&rate| rate <= kbps);
        let carried = carried.saturating_sub(1);
        if quality <= last || quality <= carried {
            quality
        } else if last > carried {
            last
        } else {
            carried + 1
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;
    use crate::session::Download;

    const KBPS: [f64; 3] = [1000.0, 2000.0, 5000.0];

    fn choose(bola: Bola, done: usize, buffer_s: f64, quality: usize, mbps: f64) -> usize {
        let bytes = 500_000;
        let history = [Download {
            bytes,
            quality,
            delay_ms: f64::from(bytes) * 8.0 / mbps / 1e3,
            ..Download::default()
        }];
        bola.choose(&View {
            kbps: &KBPS,
            chunk_s: 3.0,
            upcoming: &[],
            left: 200 - done,
            chunks: 200,
            buffer_s,
            history: &history,
            past: &[],
        })
    }

    #[test]
    fn qualities_change_where_the_published_formula_says() {
        // Two qualities score the same where B = V (g + u1 - (u2 - u1) S1 / (S2 - S1)).
        let v = 22.0 / (5.0_f64.ln() + 5.0);
        let border = |one: f64, two: f64| {
            let (u1, u2) = ((one / 1000.0).ln(), (two / 1000.0).ln());
            v * (5.0 + u1 - (u2 - u1) * one / (two - one))
        };
        for (lower, kbps) in KBPS.windows(2).enumerate() {
            let at = border(kbps[0], kbps[1]);
            assert!((5.0..25.0).contains(&at), "{at}");
            assert_eq!(choose(Bola::BASIC, 100, at - 0.01, 0, 9.0), lower);
            assert_eq!(choose(Bola::BASIC, 100, at + 0.01, 0, 9.0), lower + 1);
        }
    }

    /// BOLA-BASIC, or BOLA-FINITE with BOLA-U, by the listings of the paper in its terms: qualities
    /// from 1, the highest, to M, and the buffer in chunks. The pause is left out.
    fn published(is_basic: bool, kbps: &[f64], state: &View<'_>) -> usize {
        let m_max = kbps.len();
        let p = state.chunk_s;
        let size = |m: usize| kbps[m_max - m] * p;
        let utility = |m: usize| (size(m) / size(m_max)).ln();
        let (q, q_max, gp) = (state.buffer_s / p, 25.0 / p, 5.0);
        let done = (state.chunks - state.left) as f64 * p;
        let playtime = done.min(state.left as f64 * p);
        let q_dynamic = if is_basic {
            q_max
        } else {
            q_max.min((playtime / 2.0).max(3.0 * p) / p)
        };
        let v = (q_dynamic - 1.0) / (utility(1) + gp);
        let rho = |m: usize| (v * (utility(m) + gp) - q) / size(m);
        let by_rho = (1..=m_max).max_by(|&one, &other| rho(one).total_cmp(&rho(other)));
        let mut chosen = by_rho.expect("there are qualities");
        let before = m_max - state.last_quality();
        if !is_basic && chosen < before {
            let r = state.history[state.history.len() - 1].mbps() * 1e3;
            let carried = (1..=m_max).find(|&m| size(m) / p <= r.max(size(m_max) / p));
            let carried = carried.expect("the lowest one is carried");
            chosen = if carried <= chosen {
                chosen
            } else if carried > before {
                before
            } else {
                carried - 1
            };
        }
        m_max - chosen
    }

    #[test]
    fn choices_are_those_of_the_published_listings() {
        let mut random = StdRng::seed_from_u64(5);
        let mut chosen = [0; 6];
        for case in 0..4000 {
            let levels = random.random_range(2..=6_usize);
            let mut kbps = vec![random.random_range(100.0..500.0)];
            while kbps.len() < levels {
                kbps.push(kbps[kbps.len() - 1] * random.random_range(1.2..2.5));
            }
            let bytes = random.random_range(10_000..2_000_000);
            let history = [Download {
                bytes,
                quality: random.random_range(0..levels),
                delay_ms: f64::from(bytes) * 8.0 / random.random_range(50.0..6000.0),
                ..Download::default()
            }];
            let chunks = random.random_range(2..100);
            let view = View {
                kbps: &kbps,
                chunk_s: random.random_range(1.0..5.0),
                upcoming: &[],
                left: random.random_range(1..chunks),
                chunks,
                buffer_s: random.random_range(0.0..60.0),
                history: &history,
                past: &[],
            };
            let basic = Bola::BASIC.choose(&view);
            assert_eq!(basic, published(true, &kbps, &view), "{case}: {view:?}");
            let finite = Bola::FINITE.choose(&view);
            assert_eq!(finite, published(false, &kbps, &view), "{case}: {view:?}");
            chosen[basic] += 1;
        }
        assert!(chosen.iter().all(|&count| count > 50), "{chosen:?}");
    }

    #[test]
    fn a_young_video_aims_at_less_buffer() {
        assert_eq!(choose(Bola::BASIC, 1, 9.0, 2, 9.0), 0);
        assert_eq!(choose(Bola::FINITE, 1, 9.0, 2, 9.0), 2);
        assert_eq!(choose(Bola::FINITE, 199, 9.0, 2, 9.0), 2);
    }

    #[test]
    fn the_quality_rises_one_above_what_the_throughput_carries() {
        // By buffer alone the highest one.
        assert_eq!(choose(Bola::FINITE, 100, 24.0, 0, 6.0), 2);
        assert_eq!(choose(Bola::FINITE, 100, 24.0, 0, 1.5), 1);
        assert_eq!(choose(Bola::FINITE, 100, 24.0, 1, 1.5), 1);
        assert_eq!(choose(Bola::FINITE, 100, 24.0, 2, 0.5), 2);
    }
}
