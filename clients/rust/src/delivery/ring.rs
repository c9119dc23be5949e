use std::future::Future;

use tokio_stream::wrappers::ReceiverStream;
use tonic::{Response, Status, Streaming};

use crate::{Connection, v1};

/// A message of a ring stream, and the call that takes it.
pub trait RingMessage: prost::Message + Default + Send + Sync + 'static {
    /// Request of the call.
    type Request: prost::Message + 'static;
    /// Its answer.
    type Answer: Send + 'static;

    /// What it is acknowledged by; empty when it has none.
    fn id(&self) -> &str;

    /// A request with these messages.
    fn request(messages: Vec<Self>) -> Self::Request;

    /// What an answer says.
    fn acks(answer: Self::Answer) -> Vec<v1::Ack>;

    /// Opens the call.
    fn open(
        connection: &Connection,
        requests: ReceiverStream<Self::Request>,
    ) -> impl Future<Output = Result<Response<Streaming<Self::Answer>>, Status>> + Send + 'static;
}

/// To the environment server.
impl RingMessage for v1::PolicyEvent {
    type Request = v1::RecordTurnsRequest;
    type Answer = v1::RecordTurnsResponse;

    fn id(&self) -> &str {
        use v1::policy_event::Event;
        match &self.event {
            Some(Event::Turn(turn)) => &turn.turn_id,
            Some(Event::Feedback(feedback)) => &feedback.feedback_id,
            Some(Event::SessionEnd(end)) => &end.event_id,
            Some(Event::SessionActive(active)) => &active.event_id,
            None => "",
        }
    }

    fn request(events: Vec<Self>) -> Self::Request {
        v1::RecordTurnsRequest { events }
    }

    fn acks(answer: Self::Answer) -> Vec<v1::Ack> {
        answer.acks
    }

    fn open(
        connection: &Connection,
        requests: ReceiverStream<Self::Request>,
    ) -> impl Future<Output = Result<Response<Streaming<Self::Answer>>, Status>> + Send + 'static {
        use v1::environment_service_client::EnvironmentServiceClient;
        let mut stub = crate::stub!(EnvironmentServiceClient, connection);
        async move { stub.record_turns(requests).await }
    }
}

/// To the judge.
impl RingMessage for v1::Transition {
    type Request = v1::JudgeTransitionsRequest;
    type Answer = v1::JudgeTransitionsResponse;

    fn id(&self) -> &str {
        self.turn.as_ref().map_or("", |turn| &turn.turn_id)
    }

    fn request(transitions: Vec<Self>) -> Self::Request {
        v1::JudgeTransitionsRequest { transitions }
    }

    fn acks(answer: Self::Answer) -> Vec<v1::Ack> {
        answer.acks
    }

    fn open(
        connection: &Connection,
        requests: ReceiverStream<Self::Request>,
    ) -> impl Future<Output = Result<Response<Streaming<Self::Answer>>, Status>> + Send + 'static {
        use v1::judge_service_client::JudgeServiceClient;
        let mut stub = crate::stub!(JudgeServiceClient, connection);
        async move { stub.judge_transitions(requests).await }
    }
}

/// To the trainer.
impl RingMessage for v1::Sample {
    type Request = v1::SubmitSamplesRequest;
    type Answer = v1::SubmitSamplesResponse;

    fn id(&self) -> &str {
        self.transition.as_ref().map_or("", RingMessage::id)
    }

    fn request(samples: Vec<Self>) -> Self::Request {
        v1::SubmitSamplesRequest { samples }
    }

    fn acks(answer: Self::Answer) -> Vec<v1::Ack> {
        answer.acks
    }

    fn open(
        connection: &Connection,
        requests: ReceiverStream<Self::Request>,
    ) -> impl Future<Output = Result<Response<Streaming<Self::Answer>>, Status>> + Send + 'static {
        use v1::trainer_service_client::TrainerServiceClient;
        let mut stub = crate::stub!(TrainerServiceClient, connection);
        async move { stub.submit_samples(requests).await }
    }
}
