//! Workers on other machines, as the learner's run has them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use sha2::{Digest, Sha256};

use super::{Run, TrainError, TrainEvent};
use super::{
    distributed::{Figures, Leader, LearnerServer, Offer, ServeError, group},
    exchange::{Exchange, LocalExchange},
};

/// How often a learner that waits for replicas looks whether it was interrupted.
const LOOK: Duration = Duration::from_millis(100);

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
        if listening.learners > 1 && self.source.recorded().is_some() {
            return Err(ServeError::Recordings.into());
        }
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
        if let Some(group) = server.group() {
            self.learner
                .learn_with(Box::new(Leader::new(group.clone())));
            self.group = Some(group);
        }
        if let Some(exporter) = &self.exporter {
            exporter.meter().listen(&offer.run, server.counts());
        }
        Ok(Some(server))
    }

    /// Waits for the replicas that the next update is to be made with. Those that have no rollouts
    /// in time are not waited for any more. Returns whether the update can be made, and not so when
    /// the run is to end before.
    pub(super) fn wait_for_replicas(
        &self,
        exchange: &LocalExchange,
        stop: &AtomicBool,
        watch: &mut dyn FnMut(TrainEvent<'_>),
    ) -> bool {
        let Some(group) = &self.group else {
            return true;
        };
        let since = Instant::now();
        while !group.wait(LOOK) {
            if stop.load(Relaxed) || exchange.is_over() {
                return false;
            }
            if since.elapsed() >= group::PATIENCE {
                let (replicas, most) = group.replicas();
                watch(TrainEvent::Warning(&format!(
                    "{replicas} of {most} replicas are there, and not all of them have rollouts: \
                     the updates go on without the others until they have some",
                )));
                group.go_on();
            }
        }
        true
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
