use http_body_util::{BodyExt as _, Full};
use hyper::{HeaderMap, Request, StatusCode, body::Bytes};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use openclaw_rl_client::v1::{self, policy_event::Event};
use serde_json::{Value, json};

use crate::fakes::{Process, World, until};

struct Door(Client<HttpConnector, Full<Bytes>>, String);

impl Door {
    fn new(server: &Process) -> Self {
        Self(Client::builder(TokioExecutor::new()).build_http(), server.http.clone())
    }

    async fn text(&self, path: &str, headers: &[(&str, &str)], body: &str) -> (StatusCode, HeaderMap, String) {
        let method = if body.is_empty() { "GET" } else { "POST" };
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.1));
        if method == "POST" && !headers.iter().any(|(name, _)| *name == "content-type") {
            request = request.header("content-type", "application/json");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let answer = self.0.request(request.body(Full::from(body.to_owned())).unwrap()).await.unwrap();
        let (head, body) = answer.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (head.status, head.headers, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn json(&self, path: &str, headers: &[(&str, &str)], body: Value) -> (StatusCode, HeaderMap, Value) {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (status, headers, text) = self.text(path, headers, &body).await;
        (status, headers, serde_json::from_str(&text).unwrap())
    }
}

fn messages() -> Value {
    json!([{"role": "user", "content": [{"type": "text", "text": "What is a heron?"}]}])
}

#[tokio::test]
async fn sdks_and_agents_are_answered() {
    let world = World::new().await;
    let server = world.start();
    let door = Door::new(&server);
    let asked = [("x-session-id", "s-1"), ("x-turn-type", "side"), ("x-session-done", "true")];
    let body = json!({"model": "m", "messages": messages(), "metadata": {"a": 1}, "user": "me", "top_k": 3, "n": 2});
    let (status, headers, answer) = door.json("/v1/chat/completions", &asked, body).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["choices"][1]["message"]["content"], "A heron is a bird.");
    assert_eq!((&answer["usage"]["total_tokens"], &answer["session_id"]), (&json!(17), &json!("s-1")));
    assert_eq!(headers["x-openclaw-policy-version"], "0");
    let turn_id = headers["x-openclaw-turn-id"].to_str().unwrap();
    assert_eq!(answer["id"], format!("chatcmpl-{turn_id}"));
    assert_eq!(world.api.asked.lock().unwrap()[0]["top_k"], 3, "what is not known here goes on");
    let turn = world.environment.turn(turn_id).await;
    let other = world.environment.turn(&format!("{turn_id}-1")).await;
    assert_eq!((&*turn.api, &*turn.declared_type, &*turn.metadata["a"]), ("chat.completions", "side", "1"));
    assert_ne!(turn.session_done, other.session_done, "the last choice ends the session");

    let body = json!({"messages": messages(), "stream": true, "stream_options": {"include_usage": true}});
    let (status, headers, text) = door.text("/v1/chat/completions", &[], &body.to_string()).await;
    assert_eq!(
        (status, &headers["content-type"]),
        (StatusCode::OK, &"text/event-stream; charset=utf-8".parse().unwrap())
    );
    let events: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(events.last(), Some(&"[DONE]"));
    let chunks: Vec<Value> = events.iter().filter_map(|event| serde_json::from_str(event).ok()).collect();
    let said: String = chunks.iter().filter_map(|c| c["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(said, "A heron is a bird.");
    assert_eq!(chunks.last().unwrap()["usage"]["total_tokens"], 11);

    let body = json!({"turn_id": format!("chatcmpl-{turn_id}"), "rating": "down", "comment": "no"});
    let (status, _, answer) = door.json("/v1/feedback", &[], body).await;
    assert_eq!(status, 200);
    let told = until("the feedback arrives", || {
        let events = world.environment.events.lock().unwrap();
        events.iter().find_map(|event| match event {
            Event::Feedback(feedback) => Some(feedback.clone()),
            _ => None,
        })
    });
    let told: v1::Feedback = told.await;
    assert_eq!(
        (told.feedback_id, &*told.turn_id, told.score),
        (answer["feedback_id"].as_str().unwrap().into(), turn_id, Some(-1.0))
    );
    let (_, _, models) = door.json("/v1/models", &[], Value::Null).await;
    assert_eq!(models["data"][0]["id"], "m");
    assert_eq!(door.json("/healthz", &[], Value::Null).await.2, json!({"ok": true}));
}

#[tokio::test]
async fn what_can_not_be_done_is_told_in_openais_shape() {
    let world = World::new().await;
    let server = world.start();
    let door = Door::new(&server);
    let chat = "/v1/chat/completions";
    for (headers, body, status, code, param) in [
        (vec![], json!({"messages": []}), 400, "invalid_value", json!("messages")),
        (vec![], json!({"a": 1}), 400, "missing_required_parameter", json!("messages")),
        (vec![], json!({"messages": "hi"}), 400, "invalid_type", json!("messages")),
        (vec![], json!({"messages": messages(), "temperature": 3}), 400, "invalid_value", json!("temperature")),
        (vec![], json!({"messages": messages(), "stop": [1]}), 400, "invalid_type", json!("stop")),
        (
            vec![],
            json!({"messages": [{"role": "user"}]}),
            400,
            "missing_required_parameter",
            json!("messages[0].content"),
        ),
        (vec![], json!({"messages": messages(), "model": "n"}), 404, "model_not_found", json!("model")),
        (
            vec![("x-openclaw-min-version", "4")],
            json!({"messages": messages()}),
            409,
            "version_not_active",
            Value::Null,
        ),
        (
            vec![("x-openclaw-exact-version", "no")],
            json!({"messages": messages()}),
            400,
            "invalid_value",
            json!("X-OpenClaw-Exact-Version"),
        ),
        (vec![], json!({"messages": [{"role": "user", "content": "too long"}]}), 400, "invalid_value", Value::Null),
        (vec![], json!({"messages": [{"role": "user", "content": "no key"}]}), 502, "internal", Value::Null),
    ] {
        let (found, _, answer) = door.json(chat, &headers, body.clone()).await;
        let error = &answer["error"];
        assert_eq!(
            (found.as_u16(), &error["code"], &error["param"]),
            (status, &json!(code), &param),
            "{body}: {answer}"
        );
        assert!(!error["message"].as_str().unwrap().is_empty());
    }
    let (status, _, answer) = door.text(chat, &[], "{").await;
    assert_eq!(status, 400, "{answer}");
    let (status, _, answer) =
        door.json("/v1/feedback", &[], json!({"turn_id": "t", "rating": "up", "score": -1})).await;
    assert_eq!((status.as_u16(), &answer["error"]["code"]), (422, &json!("contradiction")));
    assert_eq!(door.json("/v2", &[], Value::Null).await.0, 404);
    let (status, _, answer) = door.json(chat, &[], Value::Null).await;
    assert_eq!((status.as_u16(), &answer["error"]["code"]), (405, &json!("method_not_allowed")));
    let (status, _, answer) = door.json(chat, &[], json!({"messages": "x".repeat(17 << 20)})).await;
    assert_eq!((status.as_u16(), &answer["error"]["code"]), (413, &json!("request_too_large")));
}

#[tokio::test]
async fn web_pages_are_kept_out() {
    let world = World::new().await;
    let server = world.start();
    let door = Door::new(&server);
    let body = json!({"messages": messages()});
    for (headers, status, code) in [
        (vec![("origin", "https://evil.example")], 403, "cross_site"),
        (vec![("origin", "null")], 403, "cross_site"),
        (vec![("origin", "http://127.0.0.1:1")], 403, "cross_site"),
        (vec![("sec-fetch-site", "cross-site")], 403, "cross_site"),
        (vec![("content-type", "text/plain")], 415, "not_json"),
        (vec![("host", "evil.example")], 421, "unknown_host"),
        (vec![("host", "localhost"), ("host", "localhost")], 400, "bad_host"),
    ] {
        for path in ["/v1/chat/completions", "/v1/feedback"] {
            let (found, _, answer) = door.json(path, &headers, body.clone()).await;
            assert_eq!((found.as_u16(), &answer["error"]["code"]), (status, &json!(code)), "{headers:?}: {answer}");
        }
    }
    assert!(world.api.asked.lock().unwrap().is_empty());
    // Programs: none has an Origin; Node.js says that it fetches.
    let fetched = [("sec-fetch-mode", "cors"), ("host", "localhost:30000")];
    assert_eq!(door.json("/v1/chat/completions", &fetched, body).await.0, 200);
}
