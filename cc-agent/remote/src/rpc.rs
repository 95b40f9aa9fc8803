//! The gRPC method, as tonic's generator would write it from a .proto file with
//! `rpc Decide (stream FromAgent) returns (stream FromServer)`.

use std::convert::Infallible;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Request, Response, Status, Streaming,
    body::Body,
    client,
    codegen::{BoxFuture, Context, Poll, Service, http, http::uri::PathAndQuery},
    server::{self, StreamingService},
    transport::Channel,
};
use tonic_prost::ProstCodec;

use crate::wire::{FromAgent, FromServer};

/// The path of the method.
const PATH: &str = "/cc.PolicyServer/Decide";

/// Messages of a stream that are on their way out.
pub(crate) type Outgoing = ReceiverStream<Result<FromServer, Status>>;

/// Serves the streams of agents.
pub(crate) trait Serve: Clone + Send + 'static {
    /// Size limit of an agent's message, bytes.
    fn message_bytes(&self) -> usize;

    /// Serves a stream that an agent has opened; what it is to receive comes out of the result.
    fn serve(&self, agent: Request<Streaming<FromAgent>>) -> Result<Outgoing, Status>;
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
            if request.uri().path() != PATH {
                let reason = format!("expected {PATH}");
                return Ok(Status::unimplemented(reason).into_http());
            }
            let bytes = method.0.message_bytes();
            let mut grpc =
                server::Grpc::new(ProstCodec::default()).max_decoding_message_size(bytes);
            Ok(grpc.streaming(method, request).await)
        })
    }
}

impl<S: Serve> StreamingService<FromAgent> for Method<S> {
    type Response = FromServer;
    type ResponseStream = Outgoing;
    type Future = BoxFuture<Response<Outgoing>, Status>;

    fn call(&mut self, agent: Request<Streaming<FromAgent>>) -> Self::Future {
        let outcome = self.0.serve(agent).map(Response::new);
        Box::pin(async move { outcome })
    }
}

/// Opens an agent's stream, whose messages come out of `outgoing`.
pub(crate) async fn open(
    channel: Channel,
    outgoing: mpsc::Receiver<FromAgent>,
    message_bytes: usize,
) -> Result<Streaming<FromServer>, Status> {
    let mut grpc = client::Grpc::new(channel).max_decoding_message_size(message_bytes);
    grpc.ready()
        .await
        .map_err(|error| Status::unavailable(error.to_string()))?;
    let codec = ProstCodec::<FromAgent, FromServer>::default();
    let request = Request::new(ReceiverStream::new(outgoing));
    let path = PathAndQuery::from_static(PATH);
    let response = grpc.streaming(request, path, codec).await?;
    Ok(response.into_inner())
}
