use std::{sync::atomic::Ordering, time::Duration};

use openclaw_rl_client::{
    CONTRACT_VERSION, Chat, ChatEvent, Code, ComponentClient, EnvironmentClient, JudgeClient, PolicyClient, Role, user,
    v1,
};

use crate::servers::{Component, Environment, Manners, Policy, until};

#[tokio::test]
async fn a_chat_comes_in_pieces() {
    let policy = PolicyClient::connect(Policy::default().start().await).await.unwrap();
    let mut answer = policy.chat(Chat::user("hello").session("s-1")).await.unwrap();
    let mut text = String::new();
    while let Some(event) = answer.next().await {
        match event.unwrap() {
            ChatEvent::Start(start) => assert_eq!((&*start.session_id, start.policy_version), ("s-1", 7)),
            ChatEvent::Delta(delta) => text += &delta.content,
            ChatEvent::End(end) => assert_eq!(end.message.unwrap().content, "you said hello"),
        }
    }
    assert_eq!(text, "you said hello");
    let whole = policy.chat(Chat::user("again")).await.unwrap().finish().await.unwrap();
    assert_eq!((whole.text(), &*whole.start.turn_id), ("you said again", "turn_1"));
    let half = policy.chat(Chat::user("half")).await.unwrap().finish().await.unwrap_err();
    assert_eq!(half.code(), Code::Internal, "an answer without an end is none");
}

#[tokio::test]
async fn a_servers_error_has_its_details() {
    let policy = PolicyClient::connect(Policy::default().start().await).await.unwrap();
    let error = policy.chat(Chat::user("refuse")).await.err().unwrap();
    assert_eq!((error.code(), error.reason()), (Code::InvalidArgument, "INVALID_ARGUMENT"));
    assert_eq!(error.violations()[0].field, "messages[0].role");
    assert_eq!(error.retry_after(), Some(Duration::from_millis(2500)));
}

#[tokio::test]
async fn dropping_an_answer_cancels_it_at_the_server() {
    let server = Policy::default();
    let policy = PolicyClient::connect(server.start().await).await.unwrap();
    let mut answer = policy.chat(Chat::user("forever")).await.unwrap();
    assert!(matches!(answer.next().await, Some(Ok(ChatEvent::Start(_)))));
    assert!(!server.cancelled.load(Ordering::Relaxed));
    drop(answer);
    until("the server notices", || server.cancelled.load(Ordering::Relaxed)).await;
}

#[tokio::test]
async fn deadlines_hold_for_calls_and_for_streams() {
    let server = Policy::default();
    let address = server.start().await;
    let policy =
        PolicyClient::builder().address(&address).deadline(Duration::from_millis(200)).connect().await.unwrap();
    let error = policy.score(vec![], None).await.unwrap_err();
    assert_eq!((error.code(), error.reason()), (Code::DeadlineExceeded, "DEADLINE_EXCEEDED"));
    assert!(error.message().contains(&address), "{error}");

    let chat = Chat::user("forever").deadline(Duration::from_millis(300));
    let mut answer = policy.chat(chat).await.unwrap();
    assert!(answer.next().await.unwrap().is_ok());
    let error = answer.next().await.unwrap().err().unwrap();
    assert_eq!(error.code(), Code::DeadlineExceeded);
    assert!(answer.next().await.is_none(), "an error is the end");
    until("the server notices", || server.cancelled.load(Ordering::Relaxed)).await;
}

#[tokio::test]
async fn a_message_beyond_the_limit_fails_that_call_only() {
    let policy = PolicyClient::connect(Policy::default().start().await).await.unwrap();
    let error = policy.score(vec![1, 2], None).await.unwrap_err(); // 24 MiB come back
    assert_eq!((error.code(), error.reason()), (Code::ResourceExhausted, "RESOURCE_EXHAUSTED"));
    let error = policy.chat(Chat::user("x".repeat(17 << 20))).await.err().unwrap();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    let large = "x".repeat(7 << 20);
    let answer = policy.chat(Chat::user(&large)).await.unwrap().finish().await.unwrap();
    assert_eq!(answer.text().len(), large.len() + 9);
}

#[tokio::test]
async fn a_watch_begins_anew_until_that_is_of_no_use() {
    let server = Policy::default();
    let address = server.start().await;
    let policy = PolicyClient::connect(&address).await.unwrap();
    let mut watch = policy.watch_policy();
    for version in 0..3 {
        let state = watch.next().await.unwrap().unwrap().state.unwrap();
        assert_eq!(state.active_version, version);
    }
    let error = watch.next().await.unwrap().unwrap_err();
    assert_eq!((error.code(), error.reason()), (Code::PermissionDenied, "WRONG_SCOPE"));
    assert!(watch.next().await.is_none());

    server.watches.store(0, Ordering::Relaxed);
    let policy = PolicyClient::builder().address(&address).reconnect(false).connect().await.unwrap();
    let mut watch = policy.watch_policy();
    assert!(watch.next().await.unwrap().is_ok());
    assert_eq!(watch.next().await.unwrap().unwrap_err().code(), Code::Unavailable);
    assert!(watch.next().await.is_none());
}

#[tokio::test]
async fn a_conversation_does_not_wait_for_headers() {
    let server = Environment::new(Manners::Good);
    let environment = EnvironmentClient::connect(server.start().await).await.unwrap();
    let mut conversation = environment.interact(v1::TurnOptions { session_id: "s-2".into(), ..Default::default() });
    for text in ["one", "two"] {
        conversation.send([user(text)]).await.unwrap();
        let turn = conversation.turn().await.unwrap().unwrap();
        assert_eq!((&*turn.session_id, &*turn.response.unwrap().content), ("s-2", text));
    }
    conversation.finish();
    assert!(conversation.turn().await.unwrap().is_none());
}

#[tokio::test]
async fn the_contracts_version_is_checked() {
    let check = async |name, contract| {
        let address = Component { name, contract }.start().await;
        let judge = JudgeClient::connect(address).await.unwrap();
        judge.component().check().await
    };
    for older in ["1.0", ""] {
        let found = check("prm_judge", older).await.unwrap();
        assert_eq!((&*found.contract_version, found.warnings.len()), ("1.0", 1));
    }
    assert!(check("prm_judge", CONTRACT_VERSION).await.unwrap().warnings.is_empty());
    let error = check("prm_judge", "2.0").await.unwrap_err();
    assert_eq!(error.reason(), "CONTRACT_MISMATCH");
    assert!(error.message().contains("2.0") && error.message().contains(CONTRACT_VERSION), "{error}");
    let error = check("trainer", "1.0").await.unwrap_err();
    assert_eq!((error.reason(), &*error.metadata()["served"]), ("WRONG_COMPONENT", "trainer"));

    let address = Component { name: "trainer", contract: "1.7" }.start().await;
    let any = ComponentClient::connect(address).await.unwrap();
    assert_eq!(any.connection().role(), Role::Any);
    assert_eq!(any.check().await.unwrap().status.name, "trainer");
}
