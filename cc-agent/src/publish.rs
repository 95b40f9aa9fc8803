//! `cc-agent channel-key` and `cc-agent publish`: the publisher's end of a channel.

use std::{
    path::PathBuf,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::Context;
use cc_channel::{Announcement, CanaryTerms, SigningKey, Store, publish};
use cc_core::canary::CanaryBy;
use clap::Args;

/// What is published, and where.
#[derive(Args, Debug)]
pub struct PublishOptions {
    /// The policy file, in the format of docs/policy.md.
    pub policy: PathBuf,

    /// The channel: a directory, or the URL of one or of an object store.
    #[arg(long, value_name = "URL")]
    pub channel: String,

    /// The private key, a file that `cc-agent channel-key` has made.
    #[arg(long, value_name = "FILE")]
    pub key: PathBuf,

    /// Agents first try the policy on this share of the flows, paths or hosts, in percent, and
    /// serve it to all flows when it is not worse.
    #[arg(long, value_name = "PERCENT")]
    pub canary: Option<f64>,

    /// What is compared then: blocks of `time`, `path`s (remote prefixes) or remote `host`s.
    #[arg(long, value_name = "HOW", requires = "canary", default_value_t)]
    pub canary_by: CanaryBy,
}

impl PublishOptions {
    /// Publishes the policy, and returns the announcement.
    ///
    /// # Errors
    ///
    /// Returns an error when the policy or the key is not one, or the channel cannot be written to.
    pub async fn publish(self) -> anyhow::Result<Announcement> {
        if let Some(percent) = self.canary
            && !(percent > 0.0 && percent < 100.0)
        {
            anyhow::bail!("--canary {percent}: expected more than 0 and less than 100 percent");
        }
        let key = SigningKey::read(&self.key).context("--key")?;
        let store = Store::open(&self.channel).context("--channel")?;
        let canary = self.canary.map(|percent| CanaryTerms {
            percent,
            by: self.canary_by,
        });
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_s = now.context("the clock is before 1970")?.as_secs();
        Ok(publish(&store, &key, &self.policy, canary, now_s).await?)
    }
}
