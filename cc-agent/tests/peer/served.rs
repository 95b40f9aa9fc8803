//! The datapath that the tests share, since the kernel takes two seconds to attach one.

use std::sync::{Mutex, PoisonError};

use cc_ebpf::{Decision, Header};
use cc_lab::{Tap, TestAgent, datapath_options, unique_name};

/// Slots of the datapath: few, so that it is quick to see whether all of them are free.
pub(crate) const SLOTS: u32 = 8;

/// A datapath that decides only what a script publishes.
pub(crate) struct Served {
    pub(crate) agent: Tap<TestAgent>,
    /// The name of its congestion control.
    pub(crate) name: String,
}

/// The datapath of the tests that have passed; `None` before the first test and after one that has
/// failed, whose flows may still be open.
static SHARED: Mutex<Option<Served>> = Mutex::new(None);

/// Calls `test` with a datapath on which no flow is open.
pub(crate) fn with_datapath<T>(test: impl FnOnce(&Served) -> T) -> T {
    let shared = || SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    let served = shared().take();
    let served = served.unwrap_or_else(Served::attach);
    let result = test(&served);
    *shared() = Some(served);
    result
}

/// Detaches the datapath of the tests.
pub(crate) fn detach() {
    drop(SHARED.lock().unwrap_or_else(PoisonError::into_inner).take());
}

impl Served {
    fn attach() -> Self {
        let name = unique_name();
        let mut options = datapath_options(&name);
        options.slots = SLOTS;
        // A machine that stalls for some seconds is not an agent that is gone.
        options.settings.heartbeat_limit_ns = 60_000_000_000;
        // No window ends within a script: the script itself decides, and nothing depends on its
        // pace.
        options.settings.window_ns = 3_600_000_000_000;
        let agent = Tap::serve(&options);
        Self { agent, name }
    }

    /// Returns how many flows have been announced so far.
    pub(crate) fn announced(&self) -> usize {
        self.agent.seen(|seen| seen.opened.len())
    }

    /// Publishes a decision for the flow with these ports that was announced after that many
    /// others, and waits for the announcement.
    pub(crate) fn decide(&self, after: usize, ports: (u16, u16), window: u32, cwnd: u32) {
        let Header {
            slot, generation, ..
        } = self.agent.wait_for("the flow was opened", |seen| {
            let opened = seen.opened[after..].iter();
            let ours = opened.filter(|o| (o.identity.local_port, o.identity.remote_port) == ports);
            ours.map(|o| o.header).next_back()
        });
        let decision = Decision {
            generation,
            window,
            cwnd,
        };
        self.agent
            .with_datapath(|datapath| datapath.publish(slot, decision));
    }
}
