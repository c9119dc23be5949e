use std::{sync::atomic::Ordering, time::Duration};

use openclaw_rl_client::{
    Code, EnvironmentClient, Role,
    delivery::{Delivery, Event},
    v1,
};

use crate::servers::{Environment, Manners, until};

fn turn(id: &str) -> v1::PolicyEvent {
    v1::PolicyEvent {
        event: Some(v1::policy_event::Event::Turn(v1::Turn { turn_id: id.into(), ..Default::default() })),
    }
}

async fn deliver(server: &Environment, timeout: Duration) -> Delivery<v1::PolicyEvent> {
    let environment = EnvironmentClient::builder().address(server.start().await).connect_lazy().unwrap();
    Delivery::builder(environment.connection()).window(8).batch(4).ack_timeout(timeout).start()
}

const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn messages_arrive_once_and_in_order() {
    let server = Environment::new(Manners::Good);
    let delivery = deliver(&server, LONG).await;
    let ids: Vec<String> = (0..100).map(|i| format!("turn-{i}")).collect();
    for id in &ids {
        delivery.put(&turn(id)).unwrap();
    }
    delivery.flushed().await;
    assert_eq!(*server.stored.lock().unwrap(), ids);
    let stats = delivery.stats();
    assert_eq!((stats.pending, stats.delivered, stats.connected), (0, 100, true));
    delivery.put(&turn("")).unwrap_err();
}

#[tokio::test]
async fn what_a_cut_left_open_is_sent_again() {
    let server = Environment::new(Manners::Cuts);
    let delivery = deliver(&server, LONG).await;
    let ids: Vec<String> = (0..8).map(|i| format!("turn-{i}")).collect();
    for id in &ids {
        delivery.put(&turn(id)).unwrap();
    }
    delivery.flushed().await;
    assert_eq!(*server.stored.lock().unwrap(), ids, "in order, each once");
    assert!(server.streams.load(Ordering::Relaxed) > 3);
    assert_eq!(delivery.stats().delivered, 8);
}

#[tokio::test]
async fn a_peer_that_never_acknowledges_is_told_and_connected_again() {
    let server = Environment::new(Manners::NeverAcks);
    let delivery = deliver(&server, Duration::from_millis(200)).await;
    let mut events = delivery.events();
    delivery.put(&turn("turn-1")).unwrap();
    let Event::Broken(error) = events.recv().await.unwrap() else { panic!() };
    assert_eq!(error.reason(), "NOT_ACKNOWLEDGED");
    assert!(error.message().contains("no answer to turn-1 for 0.2 s"), "{error}");
    until("it connects again", || server.streams.load(Ordering::Relaxed) > 1).await;
    let stats = delivery.stats();
    assert!(stats.last_error.contains("no answer to turn-1") && stats.pending == 1);
}

#[tokio::test]
async fn an_answer_to_what_was_never_sent_settles_nothing() {
    let server = Environment::new(Manners::AcksOthers);
    let delivery = deliver(&server, LONG).await;
    let mut events = delivery.events();
    delivery.put(&turn("turn-1")).unwrap();
    let Event::Broken(error) = events.recv().await.unwrap() else { panic!() };
    assert_eq!(error.reason(), "PROTOCOL");
    assert!(error.message().contains("\"not-turn-1\", which was never sent"), "{error}");
    assert_eq!(delivery.stats().pending, 1);
}

#[tokio::test]
async fn rejected_and_too_large_ones_are_told_and_hold_nobody_up() {
    let server = Environment::new(Manners::Rejects);
    let environment =
        EnvironmentClient::builder().address(server.start().await).message_limit(100_000).connect_lazy().unwrap();
    let delivery = Delivery::builder(environment.connection()).start();
    let mut events = delivery.events();
    for id in ["good-1", "bad-1", &"x".repeat(200_000), "good-2"] {
        delivery.put(&turn(id)).unwrap();
    }
    delivery.flushed().await;
    assert_eq!(*server.stored.lock().unwrap(), ["good-1", "good-2"]);
    let mut told = Vec::new();
    while let Ok(event) = events.try_recv() {
        if let Event::Rejected { id, reason } = event {
            told.push((id.len(), reason));
        }
    }
    told.sort();
    assert_eq!(told[0], (5, "it is bad".to_owned()));
    assert!(told[1].0 == 200_000 && told[1].1.contains("more than 98976"), "{told:?}");
    assert_eq!(delivery.stats().rejected, 2);
}

#[tokio::test]
async fn a_neighbour_that_is_away_holds_messages_up_and_loses_none() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let environment = EnvironmentClient::builder().address(&address).connect_lazy().unwrap();
    let delivery = Delivery::builder(environment.connection()).start();
    delivery.put(&turn("turn-1")).unwrap();
    until("it is told", || delivery.stats().last_error.contains("nothing listens")).await;
    let server = Environment::new(Manners::Good);
    let listener = tokio::net::TcpListener::bind(&address).await.unwrap();
    let service = v1::environment_service_server::EnvironmentServiceServer::new(server.clone());
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    tokio::spawn(tonic::transport::Server::builder().add_service(service).serve_with_incoming(incoming));
    delivery.flushed().await;
    assert_eq!(*server.stored.lock().unwrap(), ["turn-1"]);
    assert_eq!(delivery.stats().last_error, "");
}

#[tokio::test]
async fn nothing_is_sent_to_another_mesh() {
    let server = Environment::new(Manners::Good);
    *server.mesh.lock().unwrap() = "mesh-b".into();
    let builder = EnvironmentClient::builder().address(server.start().await).mesh("mesh-a");
    let environment = builder.component(Role::Policy).connect_lazy().unwrap();
    let delivery = Delivery::builder(environment.connection()).start();
    let mut events = delivery.events();
    delivery.put(&turn("turn-1")).unwrap();
    let Event::Broken(error) = events.recv().await.unwrap() else { panic!() };
    assert_eq!((error.code(), error.reason()), (Code::FailedPrecondition, "WRONG_MESH"));
    assert!(error.message().contains("of the mesh mesh-b, and mesh-a is expected"), "{error}");
    assert!(server.stored.lock().unwrap().is_empty());
    assert!(!delivery.stats().connected && delivery.stats().pending == 1);
    *server.mesh.lock().unwrap() = "mesh-a".into(); // the right one is back
    delivery.flushed().await;
    assert_eq!(*server.stored.lock().unwrap(), ["turn-1"]);
    server.mesh.lock().unwrap().clear(); // of contract 1.0
    delivery.put(&turn("turn-2")).unwrap();
    delivery.flushed().await;
}
