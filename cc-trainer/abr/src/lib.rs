//! Bitrate selection over the networks of traces, as Pensieve defines it.
//!
//! A player downloads a [`video`] chunk by chunk over a [`trace`] of throughput, and a [`Chooser`]
//! selects the bitrate of each chunk. A [`session`] is the chunk-level simulator of Pensieve (Mao,
//! Netravali and Alizadeh, SIGCOMM 2017), rule by rule; [`qoe`] scores what the viewer got.
//! [`baseline`] has the classical choosers, [`optimum`] what perfect knowledge of the trace would
//! achieve, and [`state`] what a learned policy observes. [`request`] is the same decision for a
//! real player, with all history in the request, and [`dash`] makes streams that one plays.
//!
//! The crate is pure: it opens no file and no socket, reads no clock, and starts no thread.
//!
//! ```
//! use std::sync::Arc;
//!
//! use cc_abr::{
//!     baseline::BufferBased,
//!     play,
//!     qoe::{Metric, Qoe},
//!     session::{Rules, Session},
//!     trace::Trace,
//!     video::{self, Video},
//! };
//!
//! let video = Arc::new(Video::envivio());
//! // Two Mbit/s, for a minute that repeats.
//! let trace = Arc::new(Trace::new("steady", vec![0.0, 60.0], vec![2.0, 2.0])?);
//! let metric = Metric::new(Qoe::Linear, video.kbps())?;
//! let session = Session::new(video, trace, Rules::PENSIEVE);
//! let downloads = play::play(session, &BufferBased::PENSIEVE)?;
//! let score = play::Score::of(&downloads, &metric, &video::ENVIVIO_KBPS);
//! assert_eq!(downloads.len(), 48);
//! assert!((0.5..2.0).contains(&score.qoe), "{score:?}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod baseline;
pub mod chooser;
pub mod dash;
pub mod generate;
pub mod ladder;
pub mod optimum;
pub mod play;
pub mod qoe;
pub mod request;
pub mod session;
pub mod state;
pub mod trace;
pub mod video;

pub use chooser::{Chooser, View};
