//! Random loss.

use rand::RngExt;
use rand::rngs::StdRng;

use crate::scenario::Loss;

/// Decides of one packet after the other whether it is lost.
#[derive(Debug)]
pub(super) struct Losses {
    model: Loss,
    /// The state of the Gilbert-Elliott chain, which starts in the good one.
    bad: bool,
    random: StdRng,
}

impl Losses {
    /// A process that has seen no packet.
    pub(super) fn new(model: Loss, random: StdRng) -> Self {
        Self {
            model,
            bad: false,
            random,
        }
    }

    /// Whether the next packet is lost.
    #[inline]
    pub(super) fn takes(&mut self) -> bool {
        match self.model {
            Loss::None => false,
            Loss::Bernoulli(probability) => self.happens(probability),
            Loss::GilbertElliott {
                to_bad,
                to_good,
                good,
                bad,
            } => {
                let change = if self.bad { to_good } else { to_bad };
                self.bad ^= self.happens(change);
                self.happens(if self.bad { bad } else { good })
            }
        }
    }

    fn happens(&mut self, probability: f64) -> bool {
        self.random.random::<f64>() < probability
    }
}
