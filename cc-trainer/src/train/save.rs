//! What a run leaves in its directory: checkpoint, record and policy file.

use std::{collections::BTreeMap, path::PathBuf, time::Instant};

use super::{
    Run, TrainError,
    checkpoint::{Checkpoint, Header},
    held_out, splits,
};
use crate::learner::Diverged;
use cc_core::{durable::replace_durably, policy::PolicyMeta};
use cc_testbed::summary::utc_now;

impl Run {
    /// Writes `checkpoint.bin`, `train.json`, `held_out.csv` if flows are held out, and, for
    /// environments whose policies have files, `policy.onnx`, unless that of the best judgement is
    /// to stay. Each replaces the former one durably, and only if the network is
    /// one of finite numbers. The checkpoint is the first, so that there is one whenever another
    /// of these files is there; the others follow from it.
    pub(super) fn save(&mut self) -> Result<(), TrainError> {
        // A run that had nothing left to do keeps the figures that it ended with.
        let last = match self.statistics.has_updates() {
            true => self.point(),
            false => self.record.last.clone(),
        };
        if let Some(part) = self.record.parts.last_mut() {
            part.seconds = last.seconds - self.seconds_before;
        }
        self.record.last = last;
        self.record.finish = self.finish();
        let mut checkpoint = Checkpoint {
            header: Header::new(
                self.record.clone(),
                self.statistics.clone(),
                self.learner.state(),
                self.normalizer.as_deref().cloned(),
            ),
            parameters: Vec::new(),
            moments: Vec::new(),
            average: self.learner.state().average.clone(),
        };
        let device = self.learner.device();
        device
            .parameters(&mut checkpoint.parameters)
            .and_then(|()| device.moments(&mut checkpoint.moments))
            .map_err(|cause| self.device_failed(cause))?;
        for (what, numbers) in [
            ("a parameter", &checkpoint.parameters),
            ("a moment of the optimiser", &checkpoint.moments),
        ] {
            if !numbers.iter().all(|number| number.is_finite()) {
                let updates = self.learner.updates();
                return Err(self.diverged(Diverged { what, updates }));
            }
        }
        replace_durably(&self.dir.join("checkpoint.bin"), &checkpoint.encode())?;
        self.kept.steps = Some(self.statistics.steps);
        let json = serde_json::to_vec_pretty(&self.record)
            .unwrap_or_else(|error| unreachable!("plain data serialises: {error}"));
        replace_durably(&self.dir.join("train.json"), &json)?;
        if !self.record.held_out.is_empty() {
            let csv = held_out::csv(&self.record.held_out);
            replace_durably(&self.dir.join("held_out.csv"), csv.as_bytes())?;
        }
        if !self.keeps_best() || !self.policy_path().exists() {
            self.save_policy(checkpoint.served_parameters())?;
        }
        if let Some(copier) = &self.copier {
            copier.copy();
        }
        self.saved = Instant::now();
        Ok(())
    }

    /// Writes `policy.onnx` with these parameters, for environments whose policies have files. It
    /// replaces the former one durably.
    pub(super) fn save_policy(&self, parameters: &[f32]) -> Result<(), TrainError> {
        // A file has one baseline.
        let values = &self.learner.state().values;
        let (shape, parameters) = values.single(&self.record.shape, parameters);
        let policy = self.source.policy(
            &shape,
            &parameters,
            self.normalizer.as_deref(),
            self.record.config.serving,
            self.provenance(),
        );
        if let Some(policy) = policy {
            replace_durably(&self.policy_path(), &policy?)?;
        }
        Ok(())
    }

    fn policy_path(&self) -> PathBuf {
        self.dir.join("policy.onnx")
    }

    /// Where the policy came from, for its file. `train.json`, which has the same digest of
    /// the configuration, holds the details.
    fn provenance(&self) -> BTreeMap<String, String> {
        let record = &self.record;
        let init = (record.init_sha256.as_ref())
            .map(|sha256| ("init".to_owned(), format!("sha256 {sha256}")));
        let entries = [
            ("trainer", format!("cc-trainer {}", record.version)),
            ("algorithm", "IMPALA with V-trace".to_owned()),
            ("config", format!("sha256 {}", record.config_sha256)),
            ("date", utc_now()),
            ("steps", self.statistics.steps.to_string()),
            ("updates", self.statistics.updates.to_string()),
            ("seed", record.config.seed.to_string()),
            ("tasks", self.tasks.join(", ")),
            (PolicyMeta::TEST_SETS, splits::stated(&record.test_sets)),
        ]
        .map(|(name, value)| (name.to_owned(), value));
        entries.into_iter().chain(init).collect()
    }
}
