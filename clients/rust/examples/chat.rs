//! Chats with the policy server, token by token, and says what it thinks of the answer.
//!
//! ```text
//! cargo run --example chat -- [HOST:PORT] [QUESTION]
//! ```
use std::{
    error::Error,
    io::{Write as _, stdout},
};

use openclaw_rl_client::{Chat, ChatEvent, PolicyClient, user};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:50051".into());
    let question = arguments.next().unwrap_or_else(|| "What is a heron?".into());

    let policy = PolicyClient::connect(address).await?;
    policy.component().check().await?;

    let chat = Chat::user(question.clone()).session("rust-example").max_tokens(64);
    let mut answer = policy.chat(chat).await?;
    let (mut turn, mut said) = (String::new(), None);
    while let Some(event) = answer.next().await {
        match event? {
            ChatEvent::Start(start) => {
                println!("[version {} of {}]", start.policy_version, start.model);
                turn = start.turn_id;
            }
            ChatEvent::Delta(delta) => {
                print!("{}", delta.content);
                stdout().flush()?;
            }
            ChatEvent::End(end) => said = end.message,
        }
    }
    println!();

    // What the mesh learns from: what comes next in the session, and feedback.
    policy.rate(&turn, 1.0, "short and right").await?;
    let thanks = Chat::user(question)
        .messages(said)
        .message(user("Thank you!"))
        .session("rust-example")
        .session_done()
        .max_tokens(32);
    println!("{}", policy.chat(thanks).await?.finish().await?.text());
    Ok(())
}
