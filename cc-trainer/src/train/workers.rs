//! Workers on other machines, as the learner's run has them.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use sha2::{Digest, Sha256};

use super::{Run, TrainError, TrainEvent};
use super::{
    distributed::{Figures, LearnerServer, Offer},
    exchange::LocalExchange,
};

impl Run {
    /// Begins to serve workers, if the run is to listen for them. There is a checkpoint from then
    /// on, so that a learner that is started again trains the run that they act for.
    pub(super) fn listen(
        &mut self,
        exchange: &Arc<LocalExchange>,
        watch: &mut dyn FnMut(TrainEvent<'_>),
    ) -> Result<Option<LearnerServer>, TrainError> {
        let Some(listening) = &self.listening else {
            return Ok(None);
        };
        let name = self.record.run.take().unwrap_or_else(new_name);
        let offer = Offer {
            run: name.clone(),
            config: self.record.config.clone(),
            shape: self.record.shape.clone(),
            tasks: self.source.spec().tasks,
            normalizer: self.normalizer.as_deref().cloned(),
            steps: self.statistics.steps,
        };
        self.record.run = Some(name);
        let listening = listening.clone();
        self.save()?;
        let server = LearnerServer::start(&listening, &offer, exchange.clone())?;
        watch(TrainEvent::Listening {
            address: server.address(),
            run: &offer.run,
        });
        self.workers = Some(server.figures());
        if let Some(exporter) = &self.exporter {
            exporter.meter().listen(&offer.run, server.counts());
        }
        Ok(Some(server))
    }

    /// Number of actors that act at the moment, here and elsewhere; at least 1.
    pub(super) fn acting(&self) -> u64 {
        let workers = self.workers.as_ref();
        let elsewhere = workers.map_or(0, Figures::actors);
        (self.record.config.actors() as u64 + elsewhere).max(1)
    }
}

/// A name for a run that no other has: no secret, but of this moment and this process.
fn new_name() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let text = format!("{:?} {}", now.unwrap_or_default(), std::process::id());
    let digest = format!("{:x}", Sha256::digest(text));
    digest[..16].to_owned()
}
