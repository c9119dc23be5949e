//! Leases a sandbox, does one action in it, and gives it back.
//!
//! ```text
//! cargo run --example lease -- [HOST:PORT] [ENVIRONMENT] [ACTION]
//! ```
use openclaw_rl_client::{Acquire, EnvironmentClient};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:50052".into());
    let kind = arguments.next().unwrap_or_else(|| "tool_call".into());

    let environment = EnvironmentClient::connect(address).await?;
    let mut lease = environment.acquire(Acquire::new(kind).holder("rust-example")).await?;
    println!("{}: {}", lease.id(), lease.acquired().sandbox);
    println!("actions: {}", lease.acquired().action_schema_json);
    println!("{}", lease.reset("", None).await?.instructions);
    if let Some(action) = arguments.next() {
        let seen = lease.step(action).await?;
        println!("{} {}", seen.observation.unwrap_or_default().json, seen.error);
    }
    lease.release().await?;
    Ok(())
}
