//! The bitrates of a video, and one action set for videos with different ones.

/// Most bitrates of a video. An exhaustive search over five chunks stays below some milliseconds.
pub const MAX_LEVELS: usize = 16;

/// What is wrong with a list of bitrates.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LadderError {
    /// The list is empty, or longer than [`MAX_LEVELS`].
    #[error("{0} bitrates: give 1 to {MAX_LEVELS}")]
    Count(usize),
    /// A bitrate is not a usable number.
    #[error("bitrate {place}, {kbps} kbit/s: give a number from 1 to 1000000")]
    Bitrate {
        /// Place in the list, from 0.
        place: usize,
        /// The number that was found, kbit/s.
        kbps: f64,
    },
    /// A bitrate is not above the one before it.
    #[error(
        "bitrate {place}, {kbps} kbit/s, is not above the one before it: sort them in ascending \
         order, each one once"
    )]
    Order {
        /// Place in the list, from 0.
        place: usize,
        /// The number that was found, kbit/s.
        kbps: f64,
    },
    /// None of a video's bitrates is left by a mask.
    #[error("the mask leaves no bitrate: keep at least one")]
    NothingLeft,
    /// A mask has another length than the list of bitrates.
    #[error("the mask has {mask} entries for {levels} bitrates: give one for each")]
    MaskLength {
        /// Number of entries of the mask.
        mask: usize,
        /// Number of bitrates in the list.
        levels: usize,
    },
    /// A video has a bitrate that is none of the actions.
    #[error(
        "{kbps} kbit/s is none of the actions ({actions} kbit/s): mask it out of the video, or \
         take a policy that has it"
    )]
    NoAction {
        /// The bitrate without an action, kbit/s.
        kbps: f64,
        /// The bitrates of all actions.
        actions: String,
    },
}

/// Checks bitrates, in kbit/s: 1 to [`MAX_LEVELS`] of them, ascending.
///
/// # Errors
///
/// Returns the first fault that is found.
pub fn check(kbps: &[f64]) -> Result<(), LadderError> {
    if kbps.is_empty() || kbps.len() > MAX_LEVELS {
        return Err(LadderError::Count(kbps.len()));
    }
    for (place, &rate) in kbps.iter().enumerate() {
        if !(1.0..=1e6).contains(&rate) {
            return Err(LadderError::Bitrate { place, kbps: rate });
        }
        if place > 0 && rate <= kbps[place - 1] {
            return Err(LadderError::Order { place, kbps: rate });
        }
    }
    Ok(())
}

/// The actions of one policy for videos with different bitrates, as Pensieve's section 5.3 has
/// them: each action is a bitrate, and those that a video lacks are masked.
#[derive(Clone, Debug, PartialEq)]
pub struct Actions {
    kbps: Vec<f64>,
}

impl Actions {
    /// Creates the set of actions from their bitrates, kbit/s, ascending.
    ///
    /// # Errors
    ///
    /// Returns what is wrong with the bitrates.
    pub fn new(kbps: Vec<f64>) -> Result<Self, LadderError> {
        check(&kbps)?;
        Ok(Self { kbps })
    }

    /// Bitrates of the actions, kbit/s, ascending.
    pub fn kbps(&self) -> &[f64] {
        &self.kbps
    }

    /// For each action the quality of a video with these bitrates (kbit/s, ascending) that it
    /// selects, counted from 0; `None` where the action is masked.
    ///
    /// # Errors
    ///
    /// Returns an error when the video has a bitrate without an action.
    pub fn qualities(&self, video: &[f64]) -> Result<Vec<Option<usize>>, LadderError> {
        check(video)?;
        let known = |kbps: &&f64| !self.kbps.contains(kbps);
        if let Some(&kbps) = video.iter().find(known) {
            let actions: Vec<String> = self.kbps.iter().map(f64::to_string).collect();
            return Err(LadderError::NoAction {
                kbps,
                actions: actions.join(", "),
            });
        }
        let quality = |kbps: &f64| video.iter().position(|one| one == kbps);
        Ok(self.kbps.iter().map(quality).collect())
    }

    /// The quality of a video with these bitrates (kbit/s, ascending) that comes nearest to an
    /// action from below: the highest one whose bitrate is not above the action's, or the lowest
    /// one if there is none.
    ///
    /// # Panics
    ///
    /// Panics when there is no such action.
    pub fn nearest_lower(&self, video: &[f64], action: usize) -> usize {
        let not_above = |kbps: &f64| *kbps <= self.kbps[action];
        video.iter().rposition(not_above).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_that_a_video_lacks_are_masked() {
        let actions = Actions::new(vec![200.0, 300.0, 750.0, 1200.0]).expect("ascending");
        assert_eq!(
            actions.qualities(&[300.0, 1200.0]),
            Ok(vec![None, Some(0), None, Some(1)])
        );
        let error = actions.qualities(&[300.0, 500.0]).expect_err("no action");
        assert!(error.to_string().contains("500 kbit/s"), "{error}");
        assert_eq!(actions.qualities(&[]), Err(LadderError::Count(0)));
    }

    #[test]
    fn an_action_that_is_lacking_has_a_neighbour_below() {
        let actions = Actions::new(vec![200.0, 300.0, 750.0, 1200.0, 4300.0]).expect("ascending");
        let nearest: Vec<usize> = (0..5)
            .map(|action| actions.nearest_lower(&[300.0, 1200.0], action))
            .collect();
        assert_eq!(nearest, [0, 0, 0, 1, 1]);
    }

    #[test]
    fn unsorted_and_unusable_bitrates_are_refused() {
        assert!(matches!(
            check(&[300.0, 300.0]),
            Err(LadderError::Order { place: 1, .. })
        ));
        for bad in [f64::NAN, 0.0, -1.0, f64::INFINITY] {
            assert!(matches!(
                check(&[bad]),
                Err(LadderError::Bitrate { place: 0, .. })
            ));
        }
        let many: Vec<f64> = (1..=17).map(f64::from).collect();
        assert_eq!(check(&many), Err(LadderError::Count(17)));
    }
}
