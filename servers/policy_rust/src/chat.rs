//! What must hold for a conversation from any door, and what the API is asked.
use std::{collections::HashSet, time::Duration};

use openclaw_rl_client::{
    Code, Error, Result,
    v1::{ChatMessage, SamplingParams, ToolCall, ToolDefinition, TurnOptions, content_part::Part},
};
use serde_json::{Map, Value, json};

use crate::{playbook, turns::Call};

const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];
const MOST_MESSAGES: usize = 10_000;
const MOST_TOOLS: usize = 1_000;
const LONGEST_ID: usize = 256;

fn not_allowed(field: impl Into<String>, value: &str, allowed: &str) -> Error {
    let shown: String = value.chars().take(77).collect();
    let more = if shown.len() < value.len() { "..." } else { "" };
    Error::invalid(field, format!("'{shown}{more}' is not allowed: must be {allowed}"))
}

/// An id or label that a client gave.
pub fn check_label(field: &str, value: &str) -> Result<()> {
    if value.chars().count() > LONGEST_ID {
        return Err(not_allowed(field, value, "at most 256 characters"));
    }
    if value.chars().any(char::is_control) {
        return Err(not_allowed(field, value, "printable characters"));
    }
    Ok(())
}

/// Whether the active version may answer.
pub fn check_version(options: &TurnOptions, active: i64) -> Result<()> {
    let wanted = match (options.exact_version, options.min_version) {
        (Some(exact), _) if exact != active => format!("exactly version {exact}"),
        (None, Some(least)) if active < least => format!("version {least} or newer"),
        _ => return Ok(()),
    };
    let text = format!("the request wants {wanted}; version {active} is active");
    Err(Error::new(Code::FailedPrecondition, "VERSION_NOT_ACTIVE", text)
        .with_retry_after(Duration::from_secs(1))
        .with_metadata("active_version", active.to_string()))
}

pub fn check_sampling(sampling: &SamplingParams) -> Result<()> {
    let bad = |field: &str, value: f64, allowed: &str| Err(not_allowed(field, &value.to_string(), allowed));
    match *sampling {
        SamplingParams { temperature: Some(t), .. } if !(0.0..=2.0).contains(&t) => {
            bad("temperature", t, "from 0 to 2")
        }
        SamplingParams { top_p: Some(p), .. } if !(p > 0.0 && p <= 1.0) => bad("top_p", p, "above 0, at most 1"),
        SamplingParams { max_tokens: Some(n), .. } if n < 1 => bad("max_tokens", n.into(), "at least 1"),
        SamplingParams { top_logprobs: Some(n), .. } if !(0..=20).contains(&n) => {
            bad("top_logprobs", n.into(), "from 0 to 20")
        }
        _ if sampling.stop.len() > 16 => {
            Err(Error::invalid("stop", format!("{} texts; at most 16", sampling.stop.len())))
        }
        _ => match sampling.stop.iter().position(String::is_empty) {
            Some(at) => Err(Error::invalid(format!("stop[{at}]"), "is empty; a stop text has at least one character")),
            None => Ok(()),
        },
    }
}

pub fn check_messages(messages: &[ChatMessage]) -> Result<()> {
    if messages.is_empty() {
        return Err(not_allowed("messages", "[]", "at least one message"));
    }
    if messages.len() > MOST_MESSAGES {
        return Err(Error::invalid("messages", format!("{} of them; at most {MOST_MESSAGES}", messages.len())));
    }
    let mut open: Option<HashSet<&str>> = None; // calls that the next tool messages may answer
    for (i, message) in messages.iter().enumerate() {
        let role = &*message.role;
        if !ROLES.contains(&role) {
            return Err(not_allowed(
                format!("messages[{i}].role"),
                role,
                "one of system, developer, user, assistant, tool",
            ));
        }
        if !message.tool_calls.is_empty() && role != "assistant" {
            return Err(not_allowed(format!("messages[{i}].tool_calls"), role, "in assistant messages only"));
        }
        if role != "tool" {
            let calls = message.tool_calls.iter().map(|call| &*call.id).collect::<HashSet<_>>();
            open = Some(calls).filter(|calls| !calls.is_empty());
            continue;
        }
        let behind = "behind an assistant message with 'tool_calls', as the response to one of them";
        let calls = open.as_ref().ok_or_else(|| not_allowed(format!("messages[{i}].role"), "tool", behind))?;
        if !calls.contains(&*message.tool_call_id) {
            let field = format!("messages[{i}].tool_call_id");
            return Err(not_allowed(field, &message.tool_call_id, "the id of a call that came before it"));
        }
    }
    Ok(())
}

pub fn check_tools(tools: &[ToolDefinition]) -> Result<()> {
    if tools.len() > MOST_TOOLS {
        return Err(Error::invalid("tools", format!("{} of them; at most {MOST_TOOLS}", tools.len())));
    }
    let mut seen = HashSet::new();
    for (i, tool) in tools.iter().enumerate() {
        let fine = |c: char| c.is_alphanumeric() || "_-.:/".contains(c);
        if tool.name.is_empty() || tool.name.len() > 128 || !tool.name.chars().all(fine) {
            let allowed = "1 to 128 letters, digits, and characters of _-.:/";
            return Err(not_allowed(format!("tools[{i}].function.name"), &tool.name, allowed));
        }
        if !seen.insert(&*tool.name) {
            return Err(not_allowed(format!("tools[{i}].function.name"), &tool.name, "unique"));
        }
        let schema = &tool.parameters_json;
        if !schema.is_empty() && serde_json::from_str::<Map<String, Value>>(schema).is_err() {
            return Err(not_allowed(format!("tools[{i}].function.parameters"), schema, "a JSON object"));
        }
    }
    Ok(())
}

/// The choice, `auto` when it is empty.
pub fn check_tool_choice(choice: &str, tools: &[ToolDefinition]) -> Result<String> {
    match choice {
        "" => Ok("auto".into()),
        "auto" | "none" => Ok(choice.into()),
        _ if tools.is_empty() => Err(not_allowed("tool_choice", choice, "auto or none when there are no tools")),
        "required" => Ok(choice.into()),
        _ if tools.iter().any(|tool| tool.name == choice) => Ok(choice.into()),
        _ => Err(not_allowed("tool_choice", choice, "auto, none, required or one of the tools")),
    }
}

/// What the API is asked.
pub fn request(model: &str, call: &Call, instructions: &str) -> Value {
    let messages: Vec<Value> = playbook::with_playbook(&call.messages, instructions).iter().map(message_json).collect();
    let mut body = call.extra.clone();
    let mut set = |name: &str, value: Value| drop(body.insert(name.into(), value));
    set("model", model.into());
    set("messages", messages.into());
    set("stream", true.into());
    set("stream_options", json!({"include_usage": true}));
    let sampling = &call.sampling;
    for (name, value) in [
        ("temperature", sampling.temperature.map(Value::from)),
        ("top_p", sampling.top_p.map(Value::from)),
        ("max_tokens", sampling.max_tokens.map(Value::from)),
        ("seed", sampling.seed.map(Value::from)),
        ("stop", Some(sampling.stop.clone()).filter(|stop| !stop.is_empty()).map(Value::from)),
        ("logprobs", call.logprobs.then_some(Value::Bool(true))),
        ("top_logprobs", sampling.top_logprobs.filter(|_| call.logprobs).map(Value::from)),
    ] {
        if let Some(value) = value {
            set(name, value);
        }
    }
    if !call.tools.is_empty() {
        set("tools", call.tools.iter().map(tool_json).collect::<Vec<_>>().into());
        set(
            "tool_choice",
            match &*call.tool_choice {
                choice @ ("auto" | "none" | "required") => choice.into(),
                name => json!({"type": "function", "function": {"name": name}}),
            },
        );
        if !call.parallel_tool_calls {
            set("parallel_tool_calls", false.into());
        }
    }
    body.into()
}

fn tool_json(tool: &ToolDefinition) -> Value {
    let parameters: Value = serde_json::from_str(&tool.parameters_json).unwrap_or_else(|_| json!({"type": "object"}));
    let mut function = json!({"name": tool.name, "parameters": parameters});
    if !tool.description.is_empty() {
        function["description"] = (*tool.description).into();
    }
    json!({"type": "function", "function": function})
}

/// A tool call in OpenAI's shape.
pub fn call_json(call: &ToolCall) -> Value {
    json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_json}})
}

fn message_json(message: &ChatMessage) -> Value {
    let part = |part: &Option<Part>| match part {
        Some(Part::ImageUrl(url)) => json!({"type": "image_url", "image_url": {"url": url}}),
        Some(Part::Text(text)) => json!({"type": "text", "text": text}),
        None => json!({"type": "text", "text": ""}),
    };
    let mut content: Value = (*message.content).into();
    if !message.parts.is_empty() {
        content = message.parts.iter().map(|one| part(&one.part)).collect::<Vec<_>>().into();
    }
    let mut made = json!({"role": message.role, "content": content});
    if !message.tool_calls.is_empty() {
        made["tool_calls"] = message.tool_calls.iter().map(call_json).collect::<Vec<_>>().into();
        if message.content.is_empty() && message.parts.is_empty() {
            made["content"] = Value::Null;
        }
    }
    for (name, value) in [("tool_call_id", &message.tool_call_id), ("name", &message.name)] {
        if !value.is_empty() {
            made[name] = (**value).into();
        }
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;
    use openclaw_rl_client::{assistant, tool_result, user};

    #[test]
    fn a_conversation_must_hang_together() {
        let calling = ChatMessage {
            tool_calls: vec![ToolCall { id: "c1".into(), name: "f".into(), arguments_json: "{}".into() }],
            ..assistant("")
        };
        check_messages(&[user("a"), calling.clone(), tool_result("c1", "r")]).unwrap();
        let field = |messages: &[ChatMessage]| check_messages(messages).unwrap_err().violations()[0].field.clone();
        assert_eq!(field(&[]), "messages");
        assert_eq!(field(&[user("a"), tool_result("c1", "r")]), "messages[1].role");
        assert_eq!(field(&[calling, tool_result("c2", "r")]), "messages[1].tool_call_id");
        assert_eq!(field(&[ChatMessage { role: "robot".into(), ..user("a") }]), "messages[0].role");
    }

    #[test]
    fn sampling_and_labels_have_bounds() {
        let field = |sampling: SamplingParams| check_sampling(&sampling).unwrap_err().violations()[0].field.clone();
        assert_eq!(field(SamplingParams { temperature: Some(-1.0), ..Default::default() }), "temperature");
        assert_eq!(field(SamplingParams { top_p: Some(f64::NAN), ..Default::default() }), "top_p");
        assert_eq!(field(SamplingParams { stop: vec!["a".into(), String::new()], ..Default::default() }), "stop[1]");
        check_sampling(&SamplingParams::default()).unwrap();
        assert!(check_label("session_id", "a\nb").is_err() && check_label("session_id", &"x".repeat(257)).is_err());
        check_label("session_id", &"ü".repeat(256)).unwrap();
    }

    #[test]
    fn the_api_is_asked_in_its_own_shape() {
        let call = Call {
            messages: vec![user("hi")],
            tools: vec![ToolDefinition { name: "f".into(), ..Default::default() }],
            tool_choice: "f".into(),
            sampling: SamplingParams { max_tokens: Some(3), ..Default::default() },
            extra: json!({"response_format": {"type": "json_object"}}).as_object().unwrap().clone(),
            ..Default::default()
        };
        let made = request("m", &call, "Be short.");
        assert_eq!(
            made["messages"],
            json!([{"role": "system", "content": "Be short."}, {"role": "user", "content": "hi"}])
        );
        assert_eq!(made["tool_choice"]["function"]["name"], "f");
        assert_eq!((&made["max_tokens"], &made["parallel_tool_calls"]), (&json!(3), &json!(false)));
        assert_eq!(made["response_format"]["type"], "json_object");
        assert!(made.get("temperature").is_none());
    }
}
