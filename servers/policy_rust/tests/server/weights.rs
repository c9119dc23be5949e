use openclaw_rl_client::{
    Chat, Code, Connection, PolicyClient,
    v1::{
        self, WeightRejectReason as Reason, policy_service_client::PolicyServiceClient,
        sync_weights_request::Message as Request, sync_weights_response::Message as Answer,
    },
};
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;
use tonic::Streaming;

use crate::fakes::{OURS, World, ask, reason};

/// A trainer at its end of the weight stream.
struct Trainer {
    requests: mpsc::Sender<v1::SyncWeightsRequest>,
    answers: Streaming<v1::SyncWeightsResponse>,
}

impl Trainer {
    async fn connect(connection: &Connection, id: &str) -> Result<(Self, v1::PolicyState), tonic::Status> {
        let (requests, outgoing) = mpsc::channel(8);
        let mut call = tonic::Request::new(tokio_stream::wrappers::ReceiverStream::new(outgoing));
        call.metadata_mut().insert("openclaw-trainer", id.parse().unwrap());
        call.metadata_mut().insert("openclaw-mesh", OURS.parse().unwrap());
        let mut stub = PolicyServiceClient::new(connection.transport());
        let answers = stub.sync_weights(call).await?.into_inner();
        let mut this = Self { requests, answers };
        let Answer::State(state) = this.next().await else { panic!("the state comes first") };
        Ok((this, state))
    }

    async fn send(&self, message: Request) {
        self.requests.send(v1::SyncWeightsRequest { message: Some(message), trace: None }).await.unwrap();
    }

    async fn next(&mut self) -> Answer {
        self.answers.message().await.unwrap().unwrap().message.unwrap()
    }

    /// Sends the bytes from `at` on, all but the last `but`.
    async fn chunk(&self, version: &Version, at: usize, but: usize) {
        let data = version.data[at..version.data.len() - but].to_vec();
        let (crc32c, offset) = (crc32c::crc32c(&data), at as i64);
        self.send(Request::Chunk(v1::WeightChunk { version: version.number, offset, data: data.into(), crc32c })).await;
    }

    /// Brings a version to its activation.
    async fn publish(&mut self, version: &Version) {
        self.send(version.offer()).await;
        let Answer::Need(need) = self.next().await else { panic!() };
        assert_eq!((&*need.tensors, need.from_byte), (&["playbook".to_owned()][..], 0));
        self.chunk(version, 0, 0).await;
        let Answer::Progress(progress) = self.next().await else { panic!() };
        assert_eq!(progress.received_bytes, version.data.len() as i64);
        assert!(matches!(self.next().await, Answer::Staged(_)));
        self.send(Request::Commit(v1::WeightCommit { version: version.number })).await;
        assert!(matches!(self.next().await, Answer::Activated(done) if done.version == version.number));
    }

    async fn refused(&mut self, version: &Version) -> Reason {
        self.send(version.offer()).await;
        match self.next().await {
            Answer::Rejected(rejected) => rejected.reason(),
            other => panic!("{other:?}"),
        }
    }
}

struct Version {
    number: i64,
    parent: i64,
    model_id: String,
    data: Vec<u8>,
}

impl Version {
    fn new(number: i64, parent: i64, state: &v1::PolicyState, text: &str) -> Self {
        let data = format!(r#"{{"entries":[{{"addedIn":"{number}","id":"e","text":"{text}"}}]}}"#).into_bytes();
        Self { number, parent, model_id: state.model_id.clone(), data }
    }

    fn offer(&self) -> Request {
        let sha256 = Sha256::digest(&self.data);
        let size = self.data.len() as i64;
        let mut whole = Sha256::new();
        whole.update(format!("playbook\0U8\0{size}\0"));
        whole.update(sha256);
        let digest = whole.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Request::Offer(v1::WeightOffer {
            manifest: Some(v1::VersionManifest {
                version: self.number,
                parent: Some(self.parent),
                digest,
                model_id: self.model_id.clone(),
                algorithm: "playbook".into(),
                ..Default::default()
            }),
            base_version: None,
            tensors: vec![v1::TensorSpec {
                name: "playbook".into(),
                dtype: "U8".into(),
                shape: vec![size],
                encoding: v1::TensorEncoding::Dense.into(),
                encoded_bytes: size,
                sha256: sha256.to_vec().into(),
                ..Default::default()
            }],
        })
    }
}

async fn said(world: &World, policy: &PolicyClient) -> String {
    ask(policy, Chat::user("What is a heron?").no_record()).await.unwrap();
    let messages = world.api.last();
    if messages.len() > 1 { messages[0]["content"].as_str().unwrap().to_owned() } else { String::new() }
}

#[tokio::test]
async fn a_playbook_becomes_part_of_the_prompt_and_goes_again() {
    let world = World::new().await;
    let server = world.start();
    let policy = server.client().await;
    let mut watch = policy.watch_policy();
    assert_eq!(watch.next().await.unwrap().unwrap().state.unwrap().active_version, 0);
    let (mut trainer, state) = Trainer::connect(policy.connection(), "trainer_a").await.unwrap();
    assert_eq!((state.active_version, state.accepts_weights, &*state.engine), (0, true, "openai"));
    assert_eq!(said(&world, &policy).await, "");
    trainer.publish(&Version::new(1, 0, &state, "Answer in one sentence.")).await;
    assert_eq!(watch.next().await.unwrap().unwrap().state.unwrap().active_version, 1);
    assert!(said(&world, &policy).await.ends_with("asks for:\n- Answer in one sentence."));
    let answer = ask(&policy, Chat::user("What is a heron?").exact_version(1)).await.unwrap();
    assert_eq!(answer.start.policy_version, 1);
    assert_eq!(world.environment.turn(&answer.start.turn_id).await.policy_version, 1);
    assert_eq!(reason(ask(&policy, Chat::user("a").min_version(2)).await).1, "VERSION_NOT_ACTIVE");

    trainer.publish(&Version::new(2, 1, &state, "Be kind.")).await;
    let rolled = policy.activate(0, "a test").await.unwrap();
    assert_eq!((rolled.active_version, rolled.withdrawn_versions), (0, vec![1, 2]));
    assert!(matches!(trainer.next().await, Answer::State(told) if told.active_version == 0));
    assert_eq!(said(&world, &policy).await, "");
    assert_eq!(trainer.refused(&Version::new(2, 1, &state, "Be kind.")).await, Reason::TooOld);
    assert_eq!(trainer.refused(&Version::new(3, 2, &state, "Be kind.")).await, Reason::WrongBase);
    policy.pin(None, "a test").await.unwrap();
    assert!(matches!(trainer.next().await, Answer::State(told) if told.pinned));
    assert_eq!(trainer.refused(&Version::new(3, 0, &state, "Be kind.")).await, Reason::Pinned);
    assert_eq!(reason(policy.activate(1, "").await).1, "PINNED");
    server.kill();

    let server = world.start();
    let policy = server.client().await;
    let found = policy.get_policy().await.unwrap();
    let state = found.state.unwrap();
    assert_eq!((state.active_version, state.pinned, state.highest_version), (0, true, 2));
    assert_eq!(found.manifests.iter().map(|manifest| manifest.version).collect::<Vec<_>>(), [0, 1, 2]);
    policy.unpin("").await.unwrap();
    policy.activate(2, "forward again").await.unwrap();
    assert!(said(&world, &policy).await.ends_with("- Be kind."));
    assert_eq!(reason(policy.activate(7, "").await).1, "VERSION_UNKNOWN");
}

#[tokio::test]
async fn a_transfer_goes_on_after_a_cut_and_after_a_kill() {
    let world = World::new().await;
    let server = world.start();
    let policy = server.client().await;
    let (mut trainer, state) = Trainer::connect(policy.connection(), "trainer_a").await.unwrap();
    let version = Version::new(1, 0, &state, &"Be kind. ".repeat(100));
    trainer.send(version.offer()).await;
    assert!(matches!(trainer.next().await, Answer::Need(need) if need.from_byte == 0));
    trainer.chunk(&version, 0, version.data.len() - 100).await;
    trainer.chunk(&version, 100, version.data.len() - 300).await;
    // The next one is in the wrong place: what came before it is on disk for certain when it is answered.
    trainer.chunk(&version, 700, 0).await;
    assert!(matches!(trainer.next().await, Answer::Rejected(no) if no.reason() == Reason::BadChunk && no.retryable));
    drop(trainer);
    server.kill();

    let server = world.start();
    let policy = server.client().await;
    let (mut trainer, _) = Trainer::connect(policy.connection(), "trainer_a").await.unwrap();
    trainer.send(version.offer()).await;
    assert!(matches!(trainer.next().await, Answer::Need(need) if need.from_byte == 300));
    trainer.chunk(&version, 300, 0).await;
    assert!(matches!(trainer.next().await, Answer::Progress(_)));
    assert!(matches!(trainer.next().await, Answer::Staged(_)));
    server.kill();

    let server = world.start();
    let policy = server.client().await;
    let (mut trainer, state) = Trainer::connect(policy.connection(), "trainer_a").await.unwrap();
    assert_eq!(state.active_version, 0);
    trainer.send(version.offer()).await;
    assert!(matches!(trainer.next().await, Answer::Need(need) if need.tensors.is_empty()));
    assert!(matches!(trainer.next().await, Answer::Staged(_)));
    trainer.send(Request::Commit(v1::WeightCommit { version: 1 })).await;
    assert!(matches!(trainer.next().await, Answer::Activated(_)));
    server.kill();
    let policy_again = world.start();
    assert_eq!(policy_again.client().await.get_policy().await.unwrap().state.unwrap().active_version, 1);
}

#[tokio::test]
async fn one_trainer_at_a_time() {
    let world = World::new().await;
    let server = world.start();
    let policy = server.client().await;
    let (mut first, _) = Trainer::connect(policy.connection(), "trainer_a").await.unwrap();
    let refused = Trainer::connect(policy.connection(), "trainer_b").await.err().unwrap();
    let refused = openclaw_rl_client::Error::from(refused);
    assert_eq!((refused.code(), refused.reason()), (Code::FailedPrecondition, "ANOTHER_TRAINER"));
    assert!(refused.retryable());
    Trainer::connect(policy.connection(), "trainer_a").await.unwrap(); // a restarted one
    let over = openclaw_rl_client::Error::from(first.answers.message().await.unwrap_err());
    assert_eq!(over.code(), Code::Aborted);
}
