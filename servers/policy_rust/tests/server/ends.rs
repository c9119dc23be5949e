use std::{process::Command, time::Duration};

use openclaw_rl_client::{Chat, ChatEvent, Code, v1};

use crate::fakes::{Process, World, ask, reason};

#[tokio::test]
async fn draining_ends_streams_and_finishes_answers() {
    let world = World::new().await;
    let server = world.start();
    let policy = server.client().await;
    let mut watch = policy.raw().watch_policy(v1::WatchPolicyRequest {}).await.unwrap().into_inner();
    watch.message().await.unwrap().unwrap();
    let mut answer = policy.chat(Chat::user("slow")).await.unwrap();
    let Some(Ok(ChatEvent::Start(start))) = answer.next().await else { panic!() };
    policy.component().drain(Some(Duration::from_secs(1))).await.unwrap();
    let ended = openclaw_rl_client::Error::from(watch.message().await.unwrap_err());
    assert_eq!(ended.code(), Code::Unavailable);
    assert!(ended.retry_after().is_some(), "{ended}");
    let refused = ask(&policy, Chat::user("late")).await.unwrap_err();
    assert!(refused.retryable(), "{refused}");
    assert_eq!(reason(answer.finish().await).0, Code::Unavailable, "after its grace");
    assert_eq!(server.ended().await, Some(0));
    let again = world.start(); // the turn that was cut short is recorded
    world.environment.turn(&start.turn_id).await;
    again.signal("-INT");
    assert_eq!(again.ended().await, Some(0));
}

#[tokio::test]
async fn a_forgotten_session_is_gone() {
    let world = World::new().await;
    let away = "127.0.0.1:1";
    let server = Process::start(world.data.path(), &world.url, away, &[]);
    let policy = server.client().await;
    let secret = "a heron called Ardea";
    let answer = ask(&policy, Chat::user(secret).session("s-1")).await.unwrap();
    policy.rate(&answer.start.turn_id, -1.0, secret).await.unwrap();
    ask(&policy, Chat::user("another").session("s-2")).await.unwrap();
    let slow = policy.chat(Chat::user("slow").session("s-1")).await.unwrap();
    let request = v1::ForgetRequest { session_id: "s-1".into(), turn_ids: vec!["turn_0".into()], ..Default::default() };
    let gone = policy.component().raw().forget(request).await.unwrap().into_inner();
    assert_eq!(gone.turn_ids, ["turn_0".to_owned(), answer.start.turn_id]);
    assert_eq!((gone.removed["turns"], gone.removed["conversations"]), (1, 1));
    drop(slow); // asked for before: it leaves no turn
    let mut pending = 2;
    for _ in 0..100 {
        let status = policy.component().status().await.unwrap();
        pending = status.outboxes[0].pending;
        if status.gauges["running"] == 0.0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(pending, 1);
    server.signal("-TERM");
    assert_eq!(server.ended().await, Some(0));
    for file in std::fs::read_dir(world.data.path()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        assert!(!bytes.windows(secret.len()).any(|part| part == secret.as_bytes()), "its words are still on disk");
    }
}

#[tokio::test]
async fn a_folder_is_one_servers() {
    let world = World::new().await;
    let server = world.start();
    let second = Command::new(env!("CARGO_BIN_EXE_openclaw-rl-policy"))
        .args(["--listen", "127.0.0.1:0", "--upstream", &world.url, "--model", "m", "--data"])
        .arg(world.data.path())
        .output()
        .unwrap();
    let said = String::from_utf8(second.stderr).unwrap();
    assert_eq!(second.status.code(), Some(1), "{said}");
    assert!(said.contains("another server uses it"), "{said}");
    server.client().await.get_policy().await.unwrap();
}

#[test]
fn bad_options_say_what_is_wrong() {
    let data = tempfile::tempdir().unwrap();
    for (options, words) in [
        (vec!["--listen", "0.0.0.0:0"], "--certs"),
        (vec!["--http", "0.0.0.0:0"], "behind a proxy"),
        (vec!["--upstream", "ftp://a"], "must begin with http"),
        (vec!["--environment", "nowhere"], "HOST:PORT"),
        (vec!["--certs", "/nowhere"], "/nowhere/ca.crt"),
        (vec!["--listen", "here"], "--listen"),
        (vec!["--model", "m"], "OPENAI_API_KEY"),
    ] {
        let mut all = vec!["--listen", "127.0.0.1:0", "--upstream", "http://127.0.0.1:1/v1", "--model", "m"];
        if let Some(at) = all.iter().position(|option| *option == options[0]) {
            all.drain(at..at + 2);
        }
        let done = Command::new(env!("CARGO_BIN_EXE_openclaw-rl-policy"))
            .args(all)
            .arg("--data")
            .arg(data.path())
            .args(&options)
            .env("OPENAI_API_KEY", if words == "OPENAI_API_KEY" { "a\nkey" } else { "" })
            .output()
            .unwrap();
        let said = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(2), "{options:?}: {said}");
        assert!(said.contains(words), "{options:?}: {said}");
    }
    let help = Command::new(env!("CARGO_BIN_EXE_openclaw-rl-policy")).arg("--help").output().unwrap();
    assert!(String::from_utf8(help.stdout).unwrap().contains("Example:"));
}
