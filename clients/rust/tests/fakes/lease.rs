use std::{sync::atomic::Ordering, time::Duration};

use openclaw_rl_client::{Acquire, EnvironmentClient};

use crate::servers::{Environment, Manners, until};

#[tokio::test]
async fn a_lease_renews_itself_and_is_given_back() {
    let server = Environment::new(Manners::Good);
    let environment = EnvironmentClient::connect(server.start().await).await.unwrap();
    // By its own time: the server's clock may be another one.
    let mut lease = environment.acquire(Acquire::new("tool_call").ttl(Duration::from_millis(150))).await.unwrap();
    assert!(lease.id().starts_with("lease_"));
    until("it was renewed", || server.renewed.load(Ordering::Relaxed) > 2).await;
    lease.step("{}").await.unwrap();
    lease.step("").await.unwrap_err(); // refused, so its number is free again
    lease.step("{}").await.unwrap();
    lease.repeat_step("{}").await.unwrap();
    assert_eq!(*server.steps.lock().unwrap(), [1, 2, 2]);
    lease.release().await.unwrap();
    assert_eq!(server.released.load(Ordering::Relaxed), 1);
    let renewed = server.renewed.load(Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(250)).await;
    assert_eq!(server.renewed.load(Ordering::Relaxed), renewed, "not renewed after its end");
}

#[tokio::test]
async fn a_dropped_lease_is_given_back_too() {
    let server = Environment::new(Manners::Good);
    let environment = EnvironmentClient::connect(server.start().await).await.unwrap();
    drop(environment.acquire(Acquire::new("tool_call")).await.unwrap());
    until("it is released", || server.released.load(Ordering::Relaxed) == 1).await;
    let waiting = environment.acquire(Acquire::new("slow").wait(Duration::from_secs(60)));
    tokio::time::timeout(Duration::from_millis(100), waiting).await.err().unwrap();
    until("one that may come later is, too", || server.released.load(Ordering::Relaxed) == 2).await;
}

#[tokio::test]
async fn a_lost_lease_is_told() {
    let server = Environment::new(Manners::Good);
    server.lost.store(true, Ordering::Relaxed);
    let environment = EnvironmentClient::connect(server.start().await).await.unwrap();
    let lease = environment.acquire(Acquire::new("tool_call").ttl(Duration::from_millis(150))).await.unwrap();
    until("it is told", || lease.lost().is_some()).await;
    assert_eq!(lease.lost().unwrap().reason(), "LEASE_LOST");
}
