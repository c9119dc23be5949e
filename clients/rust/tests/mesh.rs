//! The client against a running mesh. Each test wants variables, and says so when they are not set:
//! `OPENCLAW_RL_TEST_POLICY`, `_ENVIRONMENT`, `_JUDGE`, `_TRAINER`: HOST:PORT of a mesh in plain text.
//! `OPENCLAW_RL_TEST_SECURE_JUDGE` (mutual TLS), `OPENCLAW_RL_TEST_SECURE_KEYS` (its keys_port),
//! `OPENCLAW_RL_TEST_CERTS` (folder with ca.crt, operator.* and policy_server.*), `OPENCLAW_RL_TEST_KEY_CHAT`,
//! `OPENCLAW_RL_TEST_KEY_READ`: bearer keys of these scopes.
//! `OPENCLAW_RL_TEST_HTTP1`, `_NEXT_MAJOR`, `_NEVER_ACKS`, `_ACKS_OTHERS`, `_CUTS`: peers that do wrong.
use std::time::Duration;

use openclaw_rl_client::{
    Acquire, Chat, ChatEvent, Code, ComponentClient, EnvironmentClient, GenerateEvent, JudgeClient, PolicyClient, Tls,
    TrainerClient, assistant,
    delivery::{Delivery, Event},
    user, v1,
};

/// The variable's value; without it the test ends here.
macro_rules! needs {
    ($($name:literal),+) => {
        ($(match std::env::var(concat!("OPENCLAW_RL_TEST_", $name)) {
            Ok(value) => value,
            Err(_) => {
                eprintln!(concat!("skipped: OPENCLAW_RL_TEST_", $name, " is not set"));
                return;
            }
        }),+)
    };
}

fn session(name: &str) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    format!("rust-{name}-{}", now.as_nanos())
}

fn turn(id: &str) -> v1::PolicyEvent {
    v1::PolicyEvent {
        event: Some(v1::policy_event::Event::Turn(v1::Turn { turn_id: id.into(), ..Default::default() })),
    }
}

#[tokio::test]
async fn a_chat_with_session_version_tools_and_feedback() {
    let address = needs!("POLICY");
    let policy = PolicyClient::connect(address).await.unwrap();
    policy.component().check().await.unwrap();
    let active = policy.get_policy().await.unwrap().state.unwrap().active_version;
    let session = session("chat");
    let chat = Chat::user("Say hello.").session(&session).max_tokens(8).temperature(0.0);
    let mut answer = policy.chat(chat.min_version(active)).await.unwrap();
    let (mut start, mut text, mut end) = (None, String::new(), None);
    while let Some(event) = answer.next().await {
        match event.unwrap() {
            ChatEvent::Start(event) => start = Some(event),
            ChatEvent::Delta(event) => text += &event.content,
            ChatEvent::End(event) => end = Some(event),
        }
    }
    let (start, end) = (start.unwrap(), end.unwrap());
    assert_eq!(start.session_id, session);
    assert_eq!(text, end.message.unwrap().content);
    let feedback = policy.rate(start.turn_id, 1.0, "good").await.unwrap();
    assert!(!feedback.is_empty());

    let tools = Chat::user("What is the time?").tool("clock", "Tells the time.", "").tool_choice("none");
    policy.chat(tools.max_tokens(4).no_record()).await.unwrap().finish().await.unwrap();
    // An error comes with the call or with its first piece, as the server has it.
    let refused = async |chat: Chat| match policy.chat(chat).await {
        Ok(answer) => answer.finish().await.expect_err("it was answered"),
        Err(error) => error,
    };
    let error = refused(Chat::user("hi").exact_version(999)).await;
    assert_eq!((error.code(), error.reason()), (Code::FailedPrecondition, "VERSION_NOT_ACTIVE"));
    assert!(error.retryable() && error.metadata().contains_key("active_version"));
    let error = refused(Chat::new()).await;
    assert_eq!((error.code(), &*error.violations()[0].field), (Code::InvalidArgument, "messages"));
}

#[tokio::test]
async fn token_ids_go_in_and_come_out() {
    let address = needs!("POLICY");
    let policy = PolicyClient::connect(address).await.unwrap();
    let request = v1::GenerateRequest {
        prompt_ids: vec![1, 2, 3],
        sampling: Some(v1::SamplingParams { temperature: Some(0.0), max_tokens: Some(4), ..Default::default() }),
        ..Default::default()
    };
    let mut answers = policy.generate(request, Some(Duration::from_secs(120))).await.unwrap();
    let (mut tokens, mut ended) = (Vec::new(), false);
    while let Some(answer) = answers.next().await {
        match answer.unwrap().event.unwrap() {
            GenerateEvent::Token(token) => tokens.push(token),
            GenerateEvent::End(_) => ended = true,
        }
    }
    assert!(ended && !tokens.is_empty());
    let scored = policy.score(vec![1, 2, 3, tokens[0].id], None).await.unwrap();
    assert_eq!(scored.logprobs.len(), 3);
    assert!((scored.logprobs[2] - tokens[0].model_logprob).abs() < 0.05);
    let error = policy.score(vec![1, -7], None).await.unwrap_err();
    assert_eq!(error.violations()[0].field, "token_ids[1]");
}

#[tokio::test]
async fn versions_are_watched_pinned_and_rolled_back() {
    let address = needs!("POLICY");
    let policy = PolicyClient::connect(address).await.unwrap();
    let mut watch = policy.watch_policy();
    let state = watch.next().await.unwrap().unwrap().state.unwrap();
    let pinned = policy.pin(None, "a test").await.unwrap();
    assert!(pinned.pinned && pinned.active_version == state.active_version);
    while !watch.next().await.unwrap().unwrap().state.unwrap().pinned {}
    assert!(!policy.unpin("a test").await.unwrap().pinned);
    let state = policy.activate(state.active_version, "a test").await.unwrap();
    assert!(state.kept_versions.contains(&state.active_version));
    assert_eq!(policy.activate(4711, "").await.unwrap_err().reason(), "VERSION_UNKNOWN");
    let mut stats = policy.component().watch_stats(Some(Duration::from_millis(100)));
    for _ in 0..2 {
        assert_eq!(stats.next().await.unwrap().unwrap().status.unwrap().name, "policy_server");
    }
}

#[tokio::test]
async fn a_session_over_interact_is_kept() {
    let address = needs!("ENVIRONMENT");
    let environment = EnvironmentClient::connect(address).await.unwrap();
    let session = session("interact");
    let mut conversation = environment.interact(v1::TurnOptions { session_id: session.clone(), ..Default::default() });
    let request = v1::InteractRequest {
        messages: vec![user("Say hello.")],
        sampling: Some(v1::SamplingParams { max_tokens: Some(8), ..Default::default() }),
        ..Default::default()
    };
    conversation.request(request).await.unwrap();
    let turn = conversation.turn().await.unwrap().unwrap();
    assert_eq!(turn.session_id, session);
    drop(conversation);
    // The turn takes its own way to the environment server.
    for _ in 0..600 {
        if let Ok(found) = environment.session(&session).await
            && !found.turns.is_empty()
        {
            assert_eq!(found.turns[0].turn_id, turn.turn_id);
            environment.end_session(&session).await.unwrap();
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the session is not there");
}

#[tokio::test]
async fn a_lease_from_acquire_to_release() {
    let address = needs!("ENVIRONMENT");
    let environment = EnvironmentClient::connect(address).await.unwrap();
    let kinds = environment.raw().list_environments(v1::ListEnvironmentsRequest {}).await.unwrap();
    let usable = kinds.into_inner().environments.into_iter().find(|kind| kind.problem.is_empty());
    let Some(kind) = usable else {
        eprintln!("skipped: the mesh has no environment that can be used");
        return;
    };
    let wanted = Acquire::new(kind.r#type).wait(Duration::from_secs(60)).holder("rust");
    let mut lease = environment.acquire(wanted.ttl(Duration::from_secs(3))).await.unwrap();
    lease.reset("", None).await.unwrap();
    tokio::time::sleep(Duration::from_secs(4)).await; // longer than its ttl
    assert!(lease.lost().is_none());
    let id = lease.id().to_owned();
    let leases = environment.raw().list_leases(v1::ListLeasesRequest::default()).await.unwrap().into_inner().leases;
    assert!(leases.iter().any(|lease| lease.lease_id == id));
    let error = lease.step("no json").await.err();
    assert!(error.is_none_or(|error| error.code() == Code::InvalidArgument));
    lease.release().await.unwrap();
    let error = environment.acquire(Acquire::new("no-such-environment")).await.err().unwrap();
    assert!(matches!(error.code(), Code::NotFound | Code::InvalidArgument), "{error}");
}

#[tokio::test]
async fn the_judge_judges_and_the_trainer_tells_its_versions() {
    let (judge, trainer) = needs!("JUDGE", "TRAINER");
    let judge = JudgeClient::connect(judge).await.unwrap();
    let asked = vec![user("What is a heron?")];
    let judgement = judge.judge_reply(asked, assistant("A bird."), vec![user("Thank you, perfect!")]).await.unwrap();
    assert!(!judgement.votes.is_empty());
    assert_eq!(judge.judge(Default::default()).await.unwrap_err().code(), Code::InvalidArgument);
    let trainer = TrainerClient::connect(trainer).await.unwrap();
    assert!(!trainer.versions().await.unwrap().is_empty());
    assert_eq!(trainer.version(4711).await.unwrap_err().code(), Code::NotFound);
    // Of another component
    let wrong = TrainerClient::connect(judge.connection().address()).await.unwrap();
    assert_eq!(wrong.component().check().await.unwrap_err().reason(), "WRONG_COMPONENT");
    assert_eq!(wrong.versions().await.unwrap_err().code(), Code::Unimplemented);
}

#[tokio::test]
async fn certificates_and_keys() {
    let (judge, certs) = needs!("SECURE_JUDGE", "CERTS");
    let with = |tls: Tls| JudgeClient::builder().address(&judge).tls(tls).connect_lazy().unwrap();
    let reply = async |judge: &JudgeClient| judge.judge_reply(vec![user("a")], assistant("b"), vec![user("c")]).await;
    reply(&with(Tls::from_folder(&certs, "operator").unwrap())).await.unwrap();
    let error = reply(&with(Tls::from_folder(&certs, "policy_server").unwrap())).await.unwrap_err();
    assert_eq!((error.code(), error.reason()), (Code::PermissionDenied, "WRONG_ROLE"), "{error}");
    let plain = JudgeClient::builder().address(&judge).connect_lazy().unwrap();
    let error = reply(&plain).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");

    let (keys, chat, read) = needs!("SECURE_KEYS", "KEY_CHAT", "KEY_READ");
    let authority = std::fs::read(format!("{certs}/ca.crt")).unwrap();
    let with = |key: &str| {
        let tls = Tls::new(authority.clone()).server_name("prm_judge.openclaw-rl.internal");
        JudgeClient::builder().address(&keys).tls(tls).key(key).connect_lazy().unwrap()
    };
    reply(&with(&chat)).await.unwrap();
    let error = reply(&with(&read)).await.unwrap_err();
    assert_eq!((error.code(), error.reason()), (Code::PermissionDenied, "WRONG_SCOPE"));
    let error = reply(&with("no-key")).await.unwrap_err();
    assert_eq!((error.code(), error.reason()), (Code::Unauthenticated, "UNKNOWN_KEY"));
}

#[tokio::test]
async fn an_address_that_speaks_http1() {
    let address = needs!("HTTP1");
    let policy = PolicyClient::builder().address(&address).connect_lazy().unwrap();
    let error = policy.get_policy().await.unwrap_err();
    assert!(error.message().contains("speaks HTTP/1"), "{error}");
}

#[tokio::test]
async fn a_component_of_the_next_major_contract() {
    let address = needs!("NEXT_MAJOR");
    let error = ComponentClient::connect(address).await.unwrap().check().await.unwrap_err();
    assert_eq!(error.reason(), "CONTRACT_MISMATCH");
    assert!(error.message().contains("2.0"), "{error}");
}

async fn broken_by(address: String) -> openclaw_rl_client::Error {
    let environment = EnvironmentClient::builder().address(address).connect_lazy().unwrap();
    let delivery = Delivery::builder(environment.connection()).ack_timeout(Duration::from_secs(1)).start();
    let mut events = delivery.events();
    delivery.put(&turn("turn_rust")).unwrap();
    loop {
        if let Event::Broken(error) = events.recv().await.unwrap() {
            assert_eq!(delivery.stats().pending, 1);
            return error;
        }
    }
}

#[tokio::test]
async fn one_that_never_acknowledges() {
    let error = broken_by(needs!("NEVER_ACKS")).await;
    assert_eq!(error.reason(), "NOT_ACKNOWLEDGED", "{error}");
}

#[tokio::test]
async fn one_that_acknowledges_what_nobody_sent() {
    let error = broken_by(needs!("ACKS_OTHERS")).await;
    assert_eq!(error.reason(), "PROTOCOL", "{error}");
}

#[tokio::test]
async fn one_that_cuts_the_stream() {
    let address = needs!("CUTS");
    let environment = EnvironmentClient::builder().address(address).connect_lazy().unwrap();
    let delivery = Delivery::builder(environment.connection()).start();
    for i in 0..9 {
        delivery.put(&turn(&format!("turn_rust_{i}"))).unwrap();
    }
    tokio::time::timeout(Duration::from_secs(60), delivery.flushed()).await.unwrap();
    assert_eq!(delivery.stats().delivered, 9);
}
