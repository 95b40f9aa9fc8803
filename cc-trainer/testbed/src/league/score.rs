//! Who wins a game, and how good a result is without a league.
//!
//! A game is one scored segment of a link, and all schemes play it. The winners are those within
//! [`MARGIN`] of the best, so a game may have several. How often a scheme wins depends on who else
//! is in the league; its [absolute score](absolute) does not.

/// A scheme wins when it is at most this much worse than the best.
///
/// `win_margin=10` in ccBench's `league.sh` (github.com/Soheil-ab/ccBench, commit 4481376,
/// pantheon-modified/src/experiments), the league of Sage (Yen et al., SIGCOMM 2023).
pub const MARGIN: f64 = 0.1;

/// The least absolute score: a segment in which nothing arrives does not make a geometric mean 0.
pub(super) const LEAST: f64 = 1e-6;

/// What a scheme's flow got in a segment, in one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Played {
    /// Delivered rate of IP packets, Mbit/s.
    pub throughput_mbps: f64,
    /// Mean one-way delay of the data packets plus the propagation delay of the way back, which is
    /// about their mean RTT, ms; `None` when no packet arrived.
    pub delay_ms: Option<f64>,
    /// Least throughput of the flows under test divided by their largest; 1 for a single flow.
    pub balance: f64,
}

/// How the winners of a game are found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// What is compared between the schemes.
    pub game: Game,
    /// Whether throughputs and delays are rounded to whole Mbit/s and ms first, as Sage's league
    /// does. On a slow link that makes equal what is not: at 12 Mbit/s a step is 8 %.
    pub rounds: bool,
}

/// What is compared in a game.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Game {
    /// The power with exponent 2, throughput² / delay (`league-piecewise.py` of ccBench): for flows
    /// that have the link for themselves.
    Power,
    /// The distance of the throughput from the fair share of the link
    /// (`league-piecewise-2flows.py` of ccBench): for a flow that has neighbours.
    Share {
        /// The fair share of the link in Mbit/s.
        fair_mbps: f64,
    },
    /// The balance of the flows under test, for several flows of one scheme.
    Balance,
}

impl Rule {
    /// Which schemes win a game. `league` holds the results of each scheme's runs; a scheme without
    /// a run does not win.
    ///
    /// **Power**: the score of a scheme is the mean of throughput² / delay over its runs in which a
    /// packet arrived; the winners have at least 0.9 of the highest score.
    ///
    /// **Share**: m is the least mean distance of a scheme's throughput r from the fair share f;
    /// the winners' mean throughput is within 0.9 (f - m) and 1.1 (f + m). A run in which no packet
    /// arrived counts as a throughput of 0.
    ///
    /// **Balance**: as power, with the balance as the score.
    pub fn winners(&self, league: &[&[Played]]) -> Vec<bool> {
        match self.game {
            Game::Power => near_the_best(league.iter().map(|runs| self.power(runs))),
            Game::Balance => near_the_best(league.iter().map(|runs| balance(runs))),
            Game::Share { fair_mbps } => {
                let means: Vec<_> = league
                    .iter()
                    .map(|runs| self.distance_and_mean(runs, fair_mbps))
                    .collect();
                let least = means.iter().flatten().map(|(distance, _)| *distance);
                let least = least.fold(f64::INFINITY, f64::min);
                let (low, high) = (
                    (fair_mbps - least) * (1.0 - MARGIN),
                    (fair_mbps + least) * (1.0 + MARGIN),
                );
                let wins = |mean: &Option<(f64, f64)>| {
                    mean.is_some_and(|(_, throughput)| (low..=high).contains(&throughput))
                };
                means.iter().map(wins).collect()
            }
        }
    }

    /// The mean score of the runs in which a packet arrived; `None` without such a run.
    fn power(&self, runs: &[Played]) -> Option<f64> {
        let score = |run: &Played| {
            let throughput = self.rounded(run.throughput_mbps);
            Some(throughput * throughput / self.rounded(run.delay_ms?))
        };
        mean(runs.iter().filter_map(score))
    }

    /// The mean distance from the fair share, and the mean throughput; `None` without a run.
    fn distance_and_mean(&self, runs: &[Played], fair_mbps: f64) -> Option<(f64, f64)> {
        let throughput = |run: &Played| match run.delay_ms {
            Some(_) => self.rounded(run.throughput_mbps),
            None => 0.0,
        };
        let distance = |run: &Played| (fair_mbps - throughput(run)).abs();
        Some((
            mean(runs.iter().map(distance))?,
            mean(runs.iter().map(throughput))?,
        ))
    }

    fn rounded(&self, value: f64) -> f64 {
        match self.rounds {
            // Half away from zero, as Python 2 rounds.
            true => value.round(),
            false => value,
        }
    }
}

/// The mean balance of the runs in which a packet arrived; `None` without such a run.
fn balance(runs: &[Played]) -> Option<f64> {
    let played = runs.iter().filter(|run| run.delay_ms.is_some());
    mean(played.map(|run| run.balance))
}

/// Which scores are at most [`MARGIN`] below the highest.
fn near_the_best(scores: impl Iterator<Item = Option<f64>>) -> Vec<bool> {
    let scores: Vec<_> = scores.collect();
    let best = scores.iter().flatten().copied().fold(0.0, f64::max);
    let wins = |score: &Option<f64>| score.is_some_and(|score| best * (1.0 - MARGIN) <= score);
    scores.iter().map(wins).collect()
}

/// The absolute score of a segment, (r/C)² · RTTmin/d: 1 when the flow gets all of `capacity_mbps`
/// and its packets never wait; 1/4 when it gets half of it, or when packets wait for three times
/// the propagation delay.
///
/// `capacity_mbps` is what the flow may take: all of the link, or its fair share where it has
/// neighbours. Taking more earns nothing. `None` for a link without a rate. The result is in
/// [10⁻⁶, 1].
pub fn absolute(result: &Played, capacity_mbps: Option<f64>, base_rtt_ms: f64) -> Option<f64> {
    let capacity = capacity_mbps.filter(|&capacity| capacity > 0.0)?;
    let Some(delay) = result.delay_ms else {
        return Some(LEAST);
    };
    let share = (result.throughput_mbps / capacity).min(1.0);
    Some((share * share * (base_rtt_ms / delay).min(1.0)).max(LEAST))
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    const SAGE_POWER: Rule = Rule {
        game: Game::Power,
        rounds: true,
    };

    fn sage_share(fair_mbps: f64) -> Rule {
        Rule {
            game: Game::Share { fair_mbps },
            rounds: true,
        }
    }

    fn result(throughput_mbps: f64, delay_ms: f64) -> Played {
        Played {
            throughput_mbps,
            delay_ms: Some(delay_ms),
            balance: 1.0,
        }
    }

    const NOTHING: Played = Played {
        throughput_mbps: 0.0,
        delay_ms: None,
        balance: 0.0,
    };

    fn winners(rule: Rule, league: &[Played]) -> Vec<bool> {
        let league: Vec<&[Played]> = league.iter().map(std::slice::from_ref).collect();
        rule.winners(&league)
    }

    #[test]
    fn throughput_counts_twice_and_figures_are_rounded() {
        // 11² / 20 = 6.05, 12² / 24 = 6.0, 12² / 30 = 4.8.
        let league = [result(11.4, 20.4), result(11.6, 23.7), result(12.0, 30.0)];
        assert_eq!(winners(SAGE_POWER, &league), [true, true, false]);
        // Unrounded: 6.37, 5.68, 4.8; the second is 11 % below the first.
        let exact = Rule {
            rounds: false,
            ..SAGE_POWER
        };
        assert_eq!(winners(exact, &league), [true, false, false]);
    }

    #[test]
    fn the_margin_belongs_to_the_winners() {
        let exact = Rule {
            rounds: false,
            ..SAGE_POWER
        };
        // 10² / 10 = 10 and 9 exactly.
        let league = [result(10.0, 10.0), result(3.0, 1.0), result(2.99, 1.0)];
        assert_eq!(winners(exact, &league), [true, true, false]);
    }

    #[test]
    fn who_delivers_nothing_does_not_win_by_power() {
        let league = [NOTHING, result(0.2, 30.0)];
        assert_eq!(
            winners(SAGE_POWER, &league),
            [false, true],
            "a rounded 0 is the best of those that play"
        );
        assert_eq!(winners(SAGE_POWER, &[NOTHING, NOTHING]), [false, false]);
    }

    #[test]
    fn the_nearest_to_the_fair_share_wins() {
        // Fair is 24; the least distance is 4: winners are within 18 and 30.8.
        let league = [20.0, 31.0, 30.0, 18.0, 17.4].map(|rate| result(rate, 50.0));
        let expected = [true, false, true, true, false];
        assert_eq!(winners(sage_share(24.0), &league), expected);
        // Whoever takes nothing is as far from the share as whoever takes all.
        let league = [NOTHING, result(48.0, 50.0)];
        assert_eq!(winners(sage_share(24.0), &league), [true, true]);
    }

    #[test]
    fn the_most_balanced_wins() {
        let rule = Rule {
            game: Game::Balance,
            rounds: false,
        };
        let league = [0.5, 0.8, 0.73, 0.71].map(|balance| Played {
            balance,
            ..result(10.0, 50.0)
        });
        assert_eq!(winners(rule, &league), [false, true, true, false]);
        assert_eq!(winners(rule, &[NOTHING, league[0]]), [false, true]);
    }

    #[test]
    fn the_absolute_score_needs_no_league() {
        let of = |rate, delay| absolute(&result(rate, delay), Some(10.0), 40.0);
        assert_eq!(of(10.0, 40.0), Some(1.0));
        assert_eq!(of(5.0, 40.0), Some(0.25));
        assert_eq!(of(10.0, 160.0), Some(0.25));
        assert_eq!(
            of(14.0, 39.0),
            Some(1.0),
            "more than everything is no better"
        );
        assert_eq!(absolute(&NOTHING, Some(10.0), 40.0), Some(LEAST));
        assert_eq!(absolute(&result(5.0, 40.0), None, 40.0), None);
        assert_eq!(absolute(&result(5.0, 40.0), Some(0.0), 40.0), None);
    }

    /// Sage's two rules once more, written for one run and as directly as possible.
    mod reference {
        /// Set I: (throughput, mean one-way delay) of each scheme on a link of one-way delay `owd`.
        pub(super) fn single(league: &[(f64, f64)], owd: f64) -> Vec<usize> {
            let mut scores = Vec::new();
            for &(throughput, delay) in league {
                scores.push(throughput.round().powi(2) / (delay + owd).round());
            }
            let mut best = 0.0;
            for &score in &scores {
                if score > best {
                    best = score;
                }
            }
            (0..scores.len())
                .filter(|&i| scores[i] >= best * (1.0 - 10.0 / 100.0))
                .collect()
        }

        /// Set II: the throughput of the second flow of each scheme on a link of `link` Mbit/s.
        pub(super) fn beside_cubic(league: &[f64], link: f64) -> Vec<usize> {
            let rates: Vec<f64> = league.iter().map(|rate| rate.round()).collect();
            let mut least = f64::MAX;
            for rate in &rates {
                least = least.min(((link / 2.0 - rate) * (link / 2.0 - rate)).sqrt());
            }
            (0..rates.len())
                .filter(|&i| rates[i] <= (link / 2.0 + least) * (1.0 + 10.0 / 100.0))
                .filter(|&i| rates[i] >= (link / 2.0 - least) * (1.0 - 10.0 / 100.0))
                .collect()
        }
    }

    fn places(winners: &[bool]) -> Vec<usize> {
        (0..winners.len()).filter(|&i| winners[i]).collect()
    }

    proptest! {
        #[test]
        fn power_is_judged_as_by_the_reference(
            league in vec((0.0..200.0_f64, 5.0..700.0_f64), 1..12),
            owd in prop::sample::select(vec![5.0, 10.0, 20.0, 40.0, 80.0]),
        ) {
            let results: Vec<_> = league.iter().map(|&(r, d)| result(r, d + owd)).collect();
            let found = places(&winners(SAGE_POWER, &results));
            prop_assert_eq!(found, reference::single(&league, owd));
        }

        #[test]
        fn shares_are_judged_as_by_the_reference(
            league in vec(0.0..200.0_f64, 1..12),
            link in prop::sample::select(vec![12.0, 24.0, 48.0, 96.0, 192.0]),
        ) {
            let results: Vec<_> = league.iter().map(|&rate| result(rate, 50.0)).collect();
            let found = places(&winners(sage_share(link / 2.0), &results));
            prop_assert_eq!(found, reference::beside_cubic(&league, link));
        }

        #[test]
        fn winners_do_not_depend_on_the_order_of_the_league(
            league in vec((0.0..200.0_f64, 5.0..700.0_f64), 1..12),
            seed in any::<u64>(),
            power in any::<bool>(),
        ) {
            let rule = if power { SAGE_POWER } else { sage_share(48.0) };
            let results: Vec<_> = league.iter().map(|&(r, d)| result(r, d)).collect();
            let mut order: Vec<usize> = (0..results.len()).collect();
            order.sort_by_key(|&i| (i as u64).wrapping_mul(seed | 1));
            let shuffled: Vec<_> = order.iter().map(|&i| results[i]).collect();
            let (before, after) = (winners(rule, &results), winners(rule, &shuffled));
            for (place, &i) in order.iter().enumerate() {
                prop_assert_eq!(before[i], after[place]);
            }
        }

        #[test]
        fn a_scheme_that_plays_twice_wins_twice_and_takes_nobody_s_win(
            league in vec((0.0..200.0_f64, 5.0..700.0_f64), 1..12),
            power in any::<bool>(),
        ) {
            let rule = if power { SAGE_POWER } else { sage_share(48.0) };
            let mut results: Vec<_> = league.iter().map(|&(r, d)| result(r, d)).collect();
            let once = winners(rule, &results);
            results.push(results[0]);
            let twice = winners(rule, &results);
            prop_assert_eq!(&twice[..once.len()], &once[..]);
            prop_assert_eq!(twice[once.len()], once[0]);
        }

        #[test]
        fn somebody_wins_by_power(league in vec((0.0..200.0_f64, 5.0..700.0_f64), 1..12)) {
            let results: Vec<_> = league.iter().map(|&(r, d)| result(r, d)).collect();
            prop_assert!(winners(SAGE_POWER, &results).contains(&true));
            prop_assert!(winners(sage_share(48.0), &results).contains(&true));
        }
    }
}
