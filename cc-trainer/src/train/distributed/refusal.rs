//! Why a worker's stream is refused.

use cc_remote::rpc::is_broken_protocol;
use tonic::{Code, Status};

/// Why a worker's stream is refused, at its first message or at a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The worker does not know the secret.
    Token,
    /// It has another version of the protocol.
    Protocol,
    /// It acts for another run than the learner trains.
    Run,
    /// It insists on other settings.
    Settings,
    /// Its environments make another network.
    Network,
    /// A message cannot be read, or holds what cannot be.
    Message,
    /// It did not say in time what was due.
    Silence,
}

impl Refusal {
    /// All of them; each one's index is its discriminant.
    pub const ALL: [Self; 7] = [
        Self::Token,
        Self::Protocol,
        Self::Run,
        Self::Settings,
        Self::Network,
        Self::Message,
        Self::Silence,
    ];

    /// The value of the label `reason` in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Protocol => "protocol",
            Self::Run => "run",
            Self::Settings => "settings",
            Self::Network => "network",
            Self::Message => "message",
            Self::Silence => "silence",
        }
    }

    /// The end of a stream that is refused, with what the worker is told.
    pub(super) fn because(self, message: impl Into<String>) -> StreamEnd {
        let code = match self {
            Self::Token => Code::Unauthenticated,
            Self::Protocol | Self::Run | Self::Settings | Self::Network => Code::FailedPrecondition,
            Self::Message => Code::InvalidArgument,
            Self::Silence => Code::DeadlineExceeded,
        };
        StreamEnd {
            refusal: Some(self),
            status: Status::new(code, message),
        }
    }
}

/// How a stream ends before its time.
#[derive(Debug)]
pub(super) struct StreamEnd {
    /// Why the learner refuses it; `None` for a stream that was cut.
    pub(super) refusal: Option<Refusal>,
    pub(super) status: Status,
}

impl From<Status> for StreamEnd {
    /// The transport's own errors: a message that cannot be decoded, or a connection that is gone.
    fn from(status: Status) -> Self {
        let refusal = is_broken_protocol(status.code()).then_some(Refusal::Message);
        Self { refusal, status }
    }
}
