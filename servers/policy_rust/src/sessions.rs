//! Which session a request without a session id belongs to: the one whose conversation its messages continue.
use openclaw_rl_client::v1::{ChatMessage, content_part::Part};
use sha2::{Digest as _, Sha256};

/// What a conversation is known by, once `response` has answered `messages`.
pub fn key(client: &str, messages: &[ChatMessage], response: &ChatMessage) -> Vec<u8> {
    let mut sha = begin(client);
    messages.iter().chain([response]).for_each(|message| add(&mut sha, message));
    sha.finalize().to_vec()
}

/// Keys of the conversations that these messages may continue, the longest first.
pub fn candidates(client: &str, messages: &[ChatMessage]) -> Vec<Vec<u8>> {
    let mut sha = begin(client);
    let mut keys = Vec::new();
    for message in messages {
        add(&mut sha, message);
        if message.role == "assistant" {
            keys.push(sha.clone().finalize().to_vec());
        }
    }
    keys.reverse();
    keys
}

/// Conversations of different clients are never joined.
fn begin(client: &str) -> Sha256 {
    Sha256::new().chain_update(client).chain_update([0])
}

/// Clients send an answer back with other white space, as a list of parts, or with other ids of its calls; and they put
/// the time into the system message. None of that makes another conversation.
fn add(sha: &mut Sha256, message: &ChatMessage) {
    if matches!(&*message.role, "system" | "developer") {
        return;
    }
    let role = if message.role.is_empty() { "assistant" } else { &message.role };
    let mut text: String = message.content.split_whitespace().collect();
    for part in &message.parts {
        match &part.part {
            Some(Part::Text(part)) => text.extend(part.split_whitespace()),
            Some(Part::ImageUrl(url)) => text += url,
            None => {}
        }
    }
    sha.update(format!("{role}:{}:{text}", text.len()));
    for call in &message.tool_calls {
        let arguments: String = call.arguments_json.split_whitespace().collect();
        sha.update(format!("{}:{}:{arguments}", call.name, arguments.len()));
    }
}

/// An opaque name of who asks. The part before the colon stands for the key alone, and is empty without one.
pub fn client(key: &str, address: &str, user: &str) -> String {
    let digest = |text: &str, bytes: usize| crate::playbook::hex(&Sha256::digest(text)[..bytes]);
    let owner = if key.is_empty() { String::new() } else { digest(key, 8) };
    format!("{owner}:{}", digest(&[key, address, user].join("\0"), 16))
}

#[cfg(test)]
mod tests {
    use super::*;
    use openclaw_rl_client::{assistant, system, user};

    #[test]
    fn a_conversation_is_recognised_by_its_beginning() {
        let known = key("me", &[system("It is 9:00."), user("What is a heron?")], &assistant("A bird."));
        let next = [system("It is 9:05."), user("What is a heron?"), assistant(" A  bird.\n"), user("Thanks")];
        assert_eq!(candidates("me", &next), std::slice::from_ref(&known));
        assert_ne!(candidates("you", &next), std::slice::from_ref(&known));
        let other = [user("What is a heron?"), assistant("A fish."), user("Thanks")];
        assert_ne!(candidates("me", &other), [known]);
    }
}
