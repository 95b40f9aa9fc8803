//! A gRPC method of two streams, as tonic's generator would write it from a .proto file with
//! `rpc Method (stream Up) returns (stream Down)`.
//!
//! One definition for all services of this kind: each names its path and its messages.

use std::{convert::Infallible, error::Error};

use cc_core::error_chain;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Code, Request, Response, Status, Streaming,
    body::Body,
    client,
    codegen::{BoxFuture, Context, Poll, Service, http, http::uri::PathAndQuery},
    server::{self, StreamingService},
    transport::Channel,
};
use tonic_prost::ProstCodec;

/// The messages of a stream that are on their way out of a server.
pub type Outgoing<M> = ReceiverStream<Result<M, Status>>;

/// A message that a stream can carry, in either direction.
pub trait Carried: prost::Message + Default + 'static {}

impl<M: prost::Message + Default + 'static> Carried for M {}

/// Serves the streams of clients, each of which carries messages both ways.
pub trait Serve: Clone + Send + Sync + 'static {
    /// The path of the method, such as `/cc.PolicyServer/Decide`.
    const PATH: &'static str;
    /// A message from the client to the server.
    type Up: Carried;
    /// A message from the server to the client.
    type Down: Carried;

    /// Returns the size limit of a client's message, bytes.
    fn message_bytes(&self) -> usize;

    /// Serves a stream that a client has opened; what it is to receive comes out of the result.
    ///
    /// # Errors
    ///
    /// Returns the status with which the stream is refused.
    fn serve(&self, client: Request<Streaming<Self::Up>>) -> Result<Outgoing<Self::Down>, Status>;
}

/// [`Serve`] as a service of HTTP requests.
#[derive(Clone)]
pub(crate) struct Method<S>(pub(crate) S);

impl<S: Serve> Service<http::Request<Body>> for Method<S> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let method = self.clone();
        Box::pin(async move {
            if request.uri().path() != S::PATH {
                let reason = format!("expected {}", S::PATH);
                return Ok(Status::unimplemented(reason).into_http());
            }
            let bytes = method.0.message_bytes();
            let mut grpc =
                server::Grpc::new(ProstCodec::default()).max_decoding_message_size(bytes);
            Ok(grpc.streaming(method, request).await)
        })
    }
}

impl<S: Serve> StreamingService<S::Up> for Method<S> {
    type Response = S::Down;
    type ResponseStream = Outgoing<S::Down>;
    type Future = BoxFuture<Response<Outgoing<S::Down>>, Status>;

    fn call(&mut self, client: Request<Streaming<S::Up>>) -> Self::Future {
        let outcome = self.0.serve(client).map(Response::new);
        Box::pin(async move { outcome })
    }
}

/// Opens a stream of the method `path`, whose messages to the server come out of `outgoing`.
/// `message_bytes` limits the size of the server's messages.
///
/// # Errors
///
/// Returns the status with which the server refuses the stream, or that there is no server.
pub async fn open<Up: Carried, Down: Carried>(
    channel: Channel,
    path: &'static str,
    outgoing: mpsc::Receiver<Up>,
    message_bytes: usize,
) -> Result<Streaming<Down>, Status> {
    let mut grpc = client::Grpc::new(channel).max_decoding_message_size(message_bytes);
    grpc.ready()
        .await
        .map_err(|error| Status::unavailable(error.to_string()))?;
    let codec = ProstCodec::<Up, Down>::default();
    let request = Request::new(ReceiverStream::new(outgoing));
    let response = grpc
        .streaming(request, PathAndQuery::from_static(path), codec)
        .await?;
    Ok(response.into_inner())
}

/// Returns a status in a line: what the other side says, or why nothing came from it.
pub fn reason(status: &Status) -> String {
    let cause = status.source().map(error_chain);
    match (status.message(), cause) {
        ("", cause) => cause.unwrap_or_else(|| status.code().description().into()),
        (message, Some(cause)) if !message.contains(&cause) => format!("{message}: {cause}"),
        (message, _) => message.into(),
    }
}

/// Returns whether a client's stream that ended so broke the protocol. Others were cut.
pub fn is_broken_protocol(code: Code) -> bool {
    matches!(
        code,
        Code::DeadlineExceeded
            | Code::FailedPrecondition
            | Code::Internal
            | Code::InvalidArgument
            | Code::OutOfRange
            | Code::Unauthenticated
    )
}

/// Returns whether a server that ends a stream so refuses the client, which time does not mend.
pub fn is_refusal(code: Code) -> bool {
    matches!(
        code,
        Code::FailedPrecondition
            | Code::InvalidArgument
            | Code::OutOfRange
            | Code::Unauthenticated
            | Code::Unimplemented
    )
}
