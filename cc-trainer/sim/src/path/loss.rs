//! Random loss of packets and of messages: independent, or in bursts.

use rand::RngExt;
use rand::rngs::StdRng;

use crate::scenario::Loss;

/// Decides for each packet in turn whether it is lost.
#[derive(Debug)]
pub(crate) struct Losses {
    model: Loss,
    /// State of the Gilbert-Elliott chain, which starts as good.
    bad: bool,
    random: StdRng,
}

impl Losses {
    /// A loss process in its initial state.
    pub(crate) fn new(model: Loss, random: StdRng) -> Self {
        Self {
            model,
            bad: false,
            random,
        }
    }

    /// Whether the next packet is lost.
    #[inline]
    pub(crate) fn takes(&mut self) -> bool {
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
