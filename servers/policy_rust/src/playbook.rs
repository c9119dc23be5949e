//! The weights of an API model: short instructions that become part of its system prompt.
use openclaw_rl_client::v1::{self, ChatMessage, TensorEncoding, TensorSpec};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// Name of the one tensor of a version, and its type.
pub const TENSOR: &str = "playbook";
pub const DTYPE: &str = "U8";
/// Bytes of it at most.
pub const MAX_BYTES: usize = 1 << 20;
/// That of version 0.
pub const EMPTY: &[u8] = b"{}";
const MAX_CHARACTERS: usize = 64_000;

const HEAD: &str = "Follow these instructions, which users of earlier conversations asked for, unless they contradict \
                    what is said above or what the user asks for:";

/// A playbook's texts, in their order.
pub fn parse(data: &[u8]) -> Result<Vec<String>, String> {
    if data.len() > MAX_BYTES {
        return Err(format!("it has {} bytes; at most {MAX_BYTES} are allowed", data.len()));
    }
    let wrong = |why: &dyn std::fmt::Display| format!("it is not JSON of the message Playbook: {why}");
    let content: Value = serde_json::from_slice(data).map_err(|error| wrong(&error))?;
    let content = content.as_object().ok_or_else(|| wrong(&"an object is needed"))?;
    if let Some(name) = content.keys().find(|name| *name != "entries") {
        return Err(wrong(&format!("it has no field {name:?}")));
    }
    let none = Vec::new();
    let entries = match content.get("entries") {
        None | Some(Value::Null) => &none,
        Some(entries) => entries.as_array().ok_or_else(|| wrong(&"entries is no array"))?,
    };
    let (mut ids, mut texts, mut size) = (std::collections::HashSet::new(), Vec::new(), 0);
    for entry in entries {
        let entry = entry.as_object().ok_or_else(|| wrong(&"an entry is no object"))?;
        let known = ["id", "text", "addedIn", "added_in", "turnIds", "turn_ids", "uses", "scoreSum", "score_sum"];
        if let Some(name) = entry.keys().find(|name| !known.contains(&name.as_str())) {
            return Err(wrong(&format!("an entry has no field {name:?}")));
        }
        let text = |name: &str| match entry.get(name) {
            None | Some(Value::Null) => Ok(String::new()),
            Some(value) => value.as_str().map(str::to_owned).ok_or_else(|| wrong(&format!("{name} is no text"))),
        };
        let (id, words) = (text("id")?, text("text")?);
        if id.is_empty() || !ids.insert(id.clone()) {
            return Err("each instruction needs an id of its own".into());
        }
        if words.trim().is_empty() {
            return Err(format!("instruction {id} has no text"));
        }
        let uses = number(entry.get("uses")).ok_or_else(|| wrong(&"uses is no number"))?;
        let sum =
            number(entry.get("scoreSum").or(entry.get("score_sum"))).ok_or_else(|| wrong(&"scoreSum is no number"))?;
        if !sum.is_finite() || sum.abs() > uses {
            return Err(format!("instruction {id}: {uses} uses with scores from -1 to 1 do not add up to {sum}"));
        }
        size += words.chars().count();
        texts.push(words);
    }
    if size > MAX_CHARACTERS {
        return Err(format!("its instructions have {size} characters; at most {MAX_CHARACTERS} are allowed"));
    }
    Ok(texts)
}

/// A number of proto3's JSON form, which writes 64 bits as text.
fn number(value: Option<&Value>) -> Option<f64> {
    match value {
        None | Some(Value::Null) => Some(0.0),
        Some(Value::String(text)) => text.parse().ok(),
        Some(value) => value.as_f64(),
    }
}

/// What stands in the system prompt; empty without instructions.
pub fn render(texts: &[String]) -> String {
    if texts.is_empty() {
        return String::new();
    }
    let lines = texts.iter().map(|text| format!("- {}", text.split_whitespace().collect::<Vec<_>>().join(" ")));
    std::iter::once(HEAD.to_owned()).chain(lines).collect::<Vec<_>>().join("\n")
}

/// The conversation with a rendered playbook behind the client's first system message, else in one of its own.
pub fn with_playbook(messages: &[ChatMessage], text: &str) -> Vec<ChatMessage> {
    let mut messages = messages.to_vec();
    if text.is_empty() {
        return messages;
    }
    match messages.first_mut().filter(|first| matches!(&*first.role, "system" | "developer")) {
        None => messages.insert(0, openclaw_rl_client::system(text)),
        Some(first) if !first.parts.is_empty() => {
            first.parts.push(v1::ContentPart { part: Some(v1::content_part::Part::Text(text.into())) })
        }
        Some(first) if first.content.is_empty() => first.content = text.into(),
        Some(first) => first.content = format!("{}\n\n{text}", first.content),
    }
    messages
}

/// The tensor as it travels.
pub fn spec(data: &[u8]) -> TensorSpec {
    TensorSpec {
        name: TENSOR.into(),
        dtype: DTYPE.into(),
        shape: vec![data.len() as i64],
        encoding: TensorEncoding::Dense.into(),
        encoded_bytes: data.len() as i64,
        sha256: Sha256::digest(data).to_vec().into(),
        ..Default::default()
    }
}

/// Digest of a version: SHA-256 over name, type, shape and digest of its tensors in the order of their names.
pub fn manifest_digest(spec: &TensorSpec) -> String {
    let shape = spec.shape.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
    let mut sha = Sha256::new();
    sha.update(format!("{}\0{}\0{shape}\0", spec.name, spec.dtype));
    sha.update(&spec.sha256);
    hex(&sha.finalize())
}

/// Id of the model behind an API: digest of its name and address, as the trainer works it out.
pub fn model_id(model: &str, base_url: &str) -> String {
    let config = format!(
        "{{\"base_url\": {}, \"model\": {}, \"model_type\": \"openclaw_rl_api\"}}",
        ascii_json(base_url.trim_end_matches('/')),
        ascii_json(model)
    );
    hex(&Sha256::digest(config))
}

/// A JSON text of ASCII characters alone.
fn ascii_json(text: &str) -> String {
    let mut units = [0; 2];
    let quoted = Value::from(text).to_string();
    quoted.chars().fold(String::new(), |mut made, c| {
        if c.is_ascii() {
            made.push(c);
        } else {
            for unit in c.encode_utf16(&mut units) {
                made += &format!("\\u{unit:04x}");
            }
        }
        made
    })
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use openclaw_rl_client::{system, user};

    #[test]
    fn digests_are_those_of_the_mesh() {
        // Worked out by openclaw_rl.weights.format.digest and openclaw_rl.models.identity.
        assert_eq!(manifest_digest(&spec(EMPTY)), "c436d943a0a58be3067d721a0fa51c6a65b0910f846c6bbc4922abab8864812b");
        assert_eq!(
            model_id("glm-4-flash", "https://open.bigmodel.cn/api/paas/v4/"),
            "a5d5e928fa9d730a4279e25facc13572a278574b6f62d42aa754a5b0be000b58"
        );
        assert_eq!(
            model_id("modell-ü-😀", "http://127.0.0.1:1/v1"),
            "b25f2ee61402ed6db4a1f814dff56613d45802fa716391f2ef4e219f4f880cef"
        );
    }

    #[test]
    fn instructions_go_behind_the_clients_own() {
        let data = br#"{"entries":[{"id":"a","text":"Be  short.\n","uses":"2","scoreSum":-1.5,"turnIds":["t"]}]}"#;
        let text = render(&parse(data).unwrap());
        assert!(text.ends_with("asks for:\n- Be short."), "{text}");
        let made = with_playbook(&[system("You are kind."), user("hi")], &text);
        assert_eq!((made.len(), &made[0].content), (2, &format!("You are kind.\n\n{text}")));
        let made = with_playbook(&[user("hi")], &text);
        assert_eq!((made.len(), &*made[0].role), (2, "system"));
        assert_eq!(with_playbook(&[user("hi")], &render(&parse(EMPTY).unwrap())).len(), 1);
    }

    #[test]
    fn what_is_no_playbook_is_told() {
        for (data, why) in [
            ("[]", "an object is needed"),
            ("{", "not JSON"),
            (r#"{"more":1}"#, "no field \"more\""),
            (r#"{"entries":[{"text":"a"}]}"#, "an id of its own"),
            (r#"{"entries":[{"id":"a","text":"a"},{"id":"a","text":"b"}]}"#, "an id of its own"),
            (r#"{"entries":[{"id":"a","text":" "}]}"#, "has no text"),
            (r#"{"entries":[{"id":"a","text":"a","uses":"1","scoreSum":2}]}"#, "do not add up"),
        ] {
            let found = parse(data.as_bytes()).unwrap_err();
            assert!(found.contains(why), "{data}: {found}");
        }
        assert!(parse(&vec![b' '; MAX_BYTES + 1]).unwrap_err().contains("at most 1048576"));
        let long = format!(r#"{{"entries":[{{"id":"a","text":"{}"}}]}}"#, "x".repeat(MAX_CHARACTERS + 1));
        assert!(parse(long.as_bytes()).unwrap_err().contains("characters"));
    }
}
