use openclaw_rl_client::{Chat, ChatEvent, Code, assistant, user, v1};

use crate::fakes::{Environment, Process, World, ask, reason, until};

#[tokio::test]
async fn each_answer_becomes_a_turn() {
    let world = World::new().await;
    let server = world.start();
    let policy = server.client().await;
    let chat = Chat::user("What is a heron?").session("s-1").turn_type("main").max_tokens(9);
    let answer = ask(&policy, chat).await.unwrap();
    assert_eq!((answer.text(), &*answer.start.session_id, &*answer.start.model), ("A heron is a bird.", "s-1", "m"));
    let generation = answer.end.generation.unwrap();
    assert_eq!((generation.prompt_tokens, generation.completion_tokens), (5, 6));
    let turn = world.environment.turn(&answer.start.turn_id).await;
    assert_eq!(turn.messages, [user("What is a heron?")]);
    assert_eq!(turn.response.unwrap().content, "A heron is a bird.");
    assert_eq!((&*turn.api, &*turn.declared_type, turn.policy_version), ("grpc.chat", "main", 0));
    assert_eq!(turn.finish_reason, v1::FinishReason::Stop as i32);
    assert!(turn.requested_at.is_some() && turn.first_token_at.is_some() && turn.client.starts_with(':'));
    assert_eq!(world.api.asked.lock().unwrap()[0]["max_tokens"], 9);
}

#[tokio::test]
async fn a_conversation_without_an_id_stays_one_session() {
    let world = World::new().await;
    let server = world.start();
    let policy = server.client().await;
    let first = ask(&policy, Chat::user("What is a heron?")).await.unwrap();
    let next = [user("What is a heron?"), assistant(" A heron is\na bird. "), user("Thanks")];
    let second = ask(&policy, Chat::new().messages(next.clone())).await.unwrap();
    assert!(first.start.session_id.starts_with("ses_"));
    assert_eq!(second.start.session_id, first.start.session_id);
    let turn = world.environment.turn(&second.start.turn_id).await;
    assert_eq!(turn.session_source, v1::SessionSource::Inferred as i32);
    server.kill();
    let server = world.start();
    let third = ask(&server.client().await, Chat::new().messages(next)).await.unwrap();
    assert_eq!(third.start.session_id, first.start.session_id, "also after a restart");
    let other = ask(&server.client().await, Chat::user("What is a heron?")).await.unwrap();
    assert_ne!(other.start.session_id, first.start.session_id);
}

#[tokio::test]
async fn tools_are_called_and_apis_that_do_not_stream_answer() {
    let world = World::new().await;
    let server = world.start();
    let policy = server.client().await;
    let answer = ask(&policy, Chat::user("call").tool("clock", "Tells the time.", "")).await.unwrap();
    let call = &answer.end.message.unwrap().tool_calls[0];
    assert_eq!((&*call.id, &*call.name, &*call.arguments_json), ("call_1", "clock", "{\"zone\":1}"));
    assert_eq!(answer.end.generation.unwrap().finish_reason, v1::FinishReason::ToolCalls as i32);
    let whole = ask(&policy, Chat::user("whole")).await.unwrap();
    assert_eq!(whole.text(), "All at once.");
    assert_eq!(whole.end.generation.unwrap().finish_reason, v1::FinishReason::Length as i32);
}

#[tokio::test]
async fn what_the_api_does_wrong_is_told() {
    let world = World::new().await;
    let server = world.start();
    let policy = server.client().await;
    assert_eq!(ask(&policy, Chat::user("busy at first")).await.unwrap().text(), "A heron is a bird.");
    assert_eq!(reason(ask(&policy, Chat::user("too long")).await).0, Code::InvalidArgument);
    let error = ask(&policy, Chat::user("no key")).await.unwrap_err();
    assert_eq!(error.code(), Code::Internal);
    let status = policy.component().status().await.unwrap();
    assert_eq!(status.alarms[0].name, "api_failing");
    assert!(!format!("{error}{status:?}").contains("sk-of-the-test"), "the key is told to nobody");
    assert_eq!(status.counters["failed"], 2);

    let mut broken = policy.chat(Chat::user("break")).await.unwrap();
    let Some(Ok(ChatEvent::Start(start))) = broken.next().await else { panic!() };
    let error = broken.finish().await.unwrap_err();
    assert!(error.retryable() && error.message().contains("out of memory, ***"), "{error}");
    let turn = world.environment.turn(&start.turn_id).await;
    assert_eq!(turn.finish_reason, v1::FinishReason::Error as i32);
    assert_eq!(policy.component().status().await.unwrap().alarms.len(), 0, "it works again");

    let mut cut = policy.chat(Chat::user("cut")).await.unwrap();
    let Some(Ok(ChatEvent::Start(start))) = cut.next().await else { panic!() };
    let error = cut.finish().await.expect_err("half an answer is none");
    assert!(error.message().contains("broke its answer off"), "{error}");
    assert_eq!(world.environment.turn(&start.turn_id).await.finish_reason, v1::FinishReason::Error as i32);
}

#[tokio::test]
async fn a_full_disk_stops_no_answer_and_loses_no_turn() {
    let world = World::new().await;
    let server = Process::start_logging_to_nowhere(world.data.path(), &world.url, &world.neighbour);
    let policy = server.client().await;
    server.fill("1");
    let first = ask(&policy, Chat::user("What is a heron?")).await.unwrap();
    assert_eq!(first.text(), "A heron is a bird.");
    let status = policy.component().status().await.unwrap();
    assert_eq!(status.alarms[0].name, "turns_not_written");
    assert_eq!(reason(policy.rate(&first.start.turn_id, 1.0, "good").await).0, Code::Unavailable);
    let request = v1::ForgetRequest { session_id: "s-1".into(), ..Default::default() };
    let refused = policy.component().raw().forget(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert_eq!(reason(ask(&policy, Chat::user("no key")).await).0, Code::Internal, "nor does a log that is full");

    server.fill("unlimited");
    world.environment.turn(&first.start.turn_id).await;
    let next = [user("What is a heron?"), assistant("A heron is a bird."), user("Thanks")];
    let second = ask(&policy, Chat::new().messages(next)).await.unwrap();
    assert_eq!(second.start.session_id, first.start.session_id, "its conversation is known");
}

#[tokio::test]
async fn a_cancelled_answer_is_recorded_as_far_as_it_came() {
    let world = World::new().await;
    let server = world.start();
    let policy = server.client().await;
    let mut answer = policy.chat(Chat::user("slow")).await.unwrap();
    let Some(Ok(ChatEvent::Start(start))) = answer.next().await else { panic!() };
    answer.next().await.unwrap().unwrap();
    answer.next().await.unwrap().unwrap();
    drop(answer);
    let turn = world.environment.turn(&start.turn_id).await;
    assert_eq!(turn.finish_reason, v1::FinishReason::Cancelled as i32);
    assert_eq!(turn.response.unwrap().content, "A heron is a bird.");

    let silent = Chat::user("slow").no_record().deadline(std::time::Duration::from_millis(300));
    assert_eq!(reason(ask(&policy, silent).await).0, Code::DeadlineExceeded);
}

#[tokio::test]
async fn turns_outlive_a_killed_server_while_the_environment_is_away() {
    let world = World::new().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let away = listener.local_addr().unwrap().to_string();
    drop(listener);
    let server = Process::start(world.data.path(), &world.url, &away, &[]);
    let policy = server.client().await;
    let answer = ask(&policy, Chat::user("What is a heron?").session("s-1")).await.unwrap();
    let feedback = policy.rate(&answer.start.turn_id, -1.0, "too short").await.unwrap();
    server.kill();
    let environment = Environment::default();
    environment.start_at(&away).await;
    let server = Process::start(world.data.path(), &world.url, &away, &[]);
    environment.turn(&answer.start.turn_id).await;
    until("the feedback arrives", || (environment.events.lock().unwrap().len() == 2).then_some(())).await;
    let v1::policy_event::Event::Feedback(told) = environment.events.lock().unwrap()[1].clone() else { panic!() };
    assert_eq!((told.feedback_id, told.score), (feedback, Some(-1.0)));
    let policy = server.client().await;
    for _ in 0..500 {
        let status = policy.component().status().await.unwrap();
        if status.outboxes[0].pending == 0 {
            assert_eq!(status.counters["turns_recorded"], 1);
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the outbox is not empty");
}
