//! rust ADDRESS SECONDS CALLERS STREAMS: see ../../clients.py.
use std::{
    error::Error,
    future::Future,
    time::{Duration, Instant},
};

use openclaw_rl_client::{Chat, ChatEvent, PolicyClient, Result};
use tokio::task::JoinSet;

/// Does work in so many tasks until the time is over; tells how much of it was done and how long it took.
async fn during<F, W>(policy: &PolicyClient, seconds: f64, workers: usize, work: W) -> Result<(u64, f64)>
where
    F: Future<Output = Result<u64>> + Send,
    W: Fn(PolicyClient) -> F + Copy + Send + 'static,
{
    let (began, mut tasks) = (Instant::now(), JoinSet::new());
    for _ in 0..workers {
        let policy = policy.clone();
        tasks.spawn(async move {
            let mut done = 0;
            while began.elapsed() < Duration::from_secs_f64(seconds) {
                done += work(policy.clone()).await?;
            }
            Result::Ok(done)
        });
    }
    let done = tasks.join_all().await.into_iter().sum::<Result<u64>>()?;
    Ok((done, began.elapsed().as_secs_f64()))
}

async fn call(policy: PolicyClient) -> Result<u64> {
    policy.score(vec![0; 16], None).await?;
    Ok(1)
}

async fn chat(policy: PolicyClient) -> Result<u64> {
    let (mut answer, mut deltas) = (policy.chat(Chat::user("hi")).await?, 0);
    while let Some(event) = answer.next().await {
        deltas += u64::from(matches!(event?, ChatEvent::Delta(_)));
    }
    Ok(deltas)
}

#[tokio::main]
async fn main() -> std::result::Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let (seconds, callers, streams) = (arguments[2].parse()?, arguments[3].parse()?, arguments[4].parse()?);
    let policy = PolicyClient::connect(arguments[1].clone()).await?;
    during(&policy, 1.0, callers, call).await?;
    during(&policy, 1.0, streams, chat).await?;
    let (calls, call_seconds) = during(&policy, seconds, callers, call).await?;
    let (deltas, delta_seconds) = during(&policy, seconds, streams, chat).await?;
    println!(
        r#"{{"calls": {calls}, "call_seconds": {call_seconds}, "deltas": {deltas}, "delta_seconds": {delta_seconds}}}"#
    );
    Ok(())
}
