//! Bitrate selection ([`cc_abr`]) with files, threads and a server around it.

pub mod evaluate;
pub mod http;
pub mod player;
pub mod policy;
pub mod schemes;
pub mod serve;
pub mod tabular;
