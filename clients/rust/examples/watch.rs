//! Tells each version that becomes active, until it is interrupted; a policy server that restarts is no end.
//!
//! ```text
//! cargo run --example watch -- [HOST:PORT]
//! ```
use openclaw_rl_client::PolicyClient;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:50051".into());
    let mut states = PolicyClient::connect(address).await?.watch_policy();
    while let Some(state) = states.next().await {
        let state = state?.state.unwrap_or_default();
        let pinned = if state.pinned { ", pinned" } else { "" };
        println!("version {}{pinned}; kept are {:?}", state.active_version, state.kept_versions);
    }
    Ok(())
}
