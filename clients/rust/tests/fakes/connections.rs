use std::time::Duration;

use openclaw_rl_client::{Chat, Code, JudgeClient, PolicyClient, Tls};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::servers::Policy;

const CA: &[u8] = include_bytes!("../data/ca.crt");

/// A port that answers each connection with these bytes.
async fn says(bytes: &'static [u8]) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut heard = [0; 64];
            let _ = stream.read(&mut heard).await;
            let _ = stream.write_all(bytes).await;
        }
    });
    address
}

#[tokio::test]
async fn nothing_listens() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let error = PolicyClient::connect(&address).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(error.message().contains(&address) && error.message().contains("nothing listens there"), "{error}");
    assert!(error.retryable());
    let lazy = PolicyClient::builder().address(&address).connect_lazy().unwrap();
    let error = lazy.get_policy().await.unwrap_err();
    assert!(error.message().contains("nothing listens there"), "{error}");
}

#[tokio::test]
async fn an_address_that_speaks_http1() {
    for answer in [&b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"[..], b"<!DOCTYPE HTML>\n<html></html>"] {
        let address = says(answer).await;
        let policy = PolicyClient::builder().address(&address).connect_lazy().unwrap();
        let error = policy.get_policy().await.unwrap_err();
        assert!(error.message().contains("speaks HTTP/1, not gRPC") && error.message().contains(&address), "{error}");
        assert_eq!(error.code(), Code::Unavailable);
    }
}

#[tokio::test]
async fn plain_text_against_tls_and_the_reverse() {
    let address = says(&[0x15, 3, 3, 0, 2, 2, 70]).await;
    let policy = PolicyClient::builder().address(&address).connect_lazy().unwrap();
    let error = policy.get_policy().await.unwrap_err();
    assert!(error.message().contains("expects TLS"), "{error}");

    let plain = Policy::default().start().await;
    let policy = PolicyClient::builder().address(&plain).tls(Tls::new(CA)).connect_lazy().unwrap();
    let error = policy.get_policy().await.unwrap_err();
    assert!(error.message().contains("speaks plain text"), "{error}");
    assert_eq!(error.code(), Code::Unavailable);
}

#[tokio::test]
async fn a_server_of_another_service() {
    let address = Policy::default().start().await;
    let judge = JudgeClient::connect(&address).await.unwrap();
    let error = judge.judge(Default::default()).await.unwrap_err();
    assert_eq!(error.code(), Code::Unimplemented);
    assert!(error.message().contains(&address) && error.message().contains("prm_judge"), "{error}");
}

#[tokio::test]
async fn a_key_is_shown_and_never_sent_in_plain_text_to_others() {
    let address = Policy::default().start().await;
    let policy = PolicyClient::builder().address(&address).key("k-1").connect().await.unwrap();
    assert_eq!(policy.rate("turn_1", 1.0, "").await.unwrap(), "Bearer k-1");
    let error = PolicyClient::builder().address("mesh.example:50051").key("k-1").connect_lazy().unwrap_err();
    assert_eq!((error.reason(), &*error.violations()[0].field), ("INVALID_ARGUMENT", "key"));
    assert!(!format!("{error:?}").contains("k-1"));
}

#[tokio::test]
async fn options_that_can_not_be_used() {
    for address in ["nowhere", "host:port", "host:70000", "a b:1"] {
        let error = PolicyClient::builder().address(address).connect_lazy().unwrap_err();
        assert_eq!(error.violations()[0].field, "address", "{address}");
        assert!(error.message().contains(address), "{error}");
    }
    let error = PolicyClient::builder().deadline(Duration::ZERO).connect_lazy().unwrap_err();
    assert_eq!(error.violations()[0].field, "deadline");
    let error = Tls::from_folder("/nowhere", "operator").unwrap_err();
    assert!(error.message().contains("/nowhere/ca.crt"), "{error}");
    let error = PolicyClient::builder().tls(Tls::new("no certificate")).connect_lazy().unwrap_err();
    assert_eq!(error.violations()[0].field, "tls", "{error}");
}

#[tokio::test]
async fn a_connection_comes_back() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let policy = PolicyClient::builder().address(&address).connect_lazy().unwrap();
    assert!(policy.chat(Chat::user("early")).await.is_err());
    let listener = tokio::net::TcpListener::bind(&address).await.unwrap();
    let service = openclaw_rl_client::v1::policy_service_server::PolicyServiceServer::new(Policy::default());
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    tokio::spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
    let answer = policy.chat(Chat::user("late")).await.unwrap().finish().await.unwrap();
    assert_eq!(answer.text(), "you said late");
}
