//! OpenAI's JSON: requests that are read field by field, and answers.
use axum::http::{HeaderMap, HeaderValue};
use openclaw_rl_client::v1::{
    ChatMessage, ContentPart, Feedback, FinishReason, SamplingParams, ToolCall, ToolDefinition, TurnOptions,
    content_part::Part,
};
use serde_json::{Map, Value};

use crate::{
    chat,
    fields::{ApiError, Fields, Read, bad},
    turns::Call,
};

/// A request of /v1/chat/completions.
pub struct ChatRequest {
    pub call: Call,
    pub options: TurnOptions,
    pub metadata: std::collections::HashMap<String, String>,
    pub model: Option<String>,
    pub user: String,
    pub n: usize,
    pub stream: bool,
    pub include_usage: bool,
}

/// What is read here; everything else goes to the API as it is.
const KNOWN: [&str; 21] = [
    "model",
    "messages",
    "stream",
    "stream_options",
    "n",
    "tools",
    "tool_choice",
    "temperature",
    "top_p",
    "max_tokens",
    "max_completion_tokens",
    "seed",
    "stop",
    "logprobs",
    "top_logprobs",
    "parallel_tool_calls",
    "user",
    "metadata",
    "session_id",
    "turn_type",
    "session_done",
];

pub fn chat_request(body: &Map<String, Value>, headers: &HeaderMap) -> Read<ChatRequest> {
    let fields = Fields(body, String::new());
    let stop = match fields.get("stop") {
        Some(Value::String(stop)) => vec![stop.clone()],
        _ => fields
            .typed("stop", "a string or an array of strings", |value| {
                value.as_array()?.iter().map(|one| one.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
            })?
            .unwrap_or_default(),
    };
    let sampling = SamplingParams {
        temperature: fields.number("temperature")?,
        top_p: fields.number("top_p")?,
        max_tokens: fields.small("max_completion_tokens")?.or(fields.small("max_tokens")?),
        seed: fields.integer("seed")?,
        top_logprobs: fields.small("top_logprobs")?,
        stop,
        ..Default::default()
    };
    chat::check_sampling(&sampling)?;
    if fields.get("messages").is_none() {
        return Err(fields.needed("messages"));
    }
    let messages = fields.objects("messages")?.iter().map(message).collect::<Read<Vec<_>>>()?;
    chat::check_messages(&messages)?;
    let tools = fields.objects("tools")?.iter().map(tool).collect::<Read<Vec<_>>>()?;
    chat::check_tools(&tools)?;
    let choice = match fields.get("tool_choice") {
        Some(Value::Object(named)) => named["function"]["name"].as_str().unwrap_or_default().to_owned(),
        _ => fields.text("tool_choice")?,
    };
    let n = fields.small("n")?.unwrap_or(1);
    if !(1..=8).contains(&n) {
        return Err(bad("n", format!("Invalid value for 'n': {n}; it must be from 1 to 8."), "invalid_value"));
    }
    let streaming = fields.object("stream_options")?;
    let metadata = fields.object("metadata")?;
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let metadata = metadata.iter().flat_map(|m| m.0).map(|(key, value)| (key.clone(), plain(value))).collect();
    let extra = body.iter().filter(|(key, _)| !KNOWN.contains(&key.as_str()));
    Ok(ChatRequest {
        call: Call {
            tool_choice: chat::check_tool_choice(&choice, &tools)?,
            messages,
            tools,
            parallel_tool_calls: fields.flag("parallel_tool_calls")?.unwrap_or(true),
            sampling,
            logprobs: fields.flag("logprobs")?.unwrap_or(false),
            deadline: None,
            extra: extra.map(|(key, value)| (key.clone(), value.clone())).collect(),
        },
        options: options(&fields, headers)?,
        metadata,
        model: fields.typed("model", "a string", Value::as_str)?.map(str::to_owned),
        user: fields.text("user")?,
        n: n as usize,
        stream: fields.flag("stream")?.unwrap_or(false),
        include_usage: match streaming {
            Some(options) => options.flag("include_usage")?.unwrap_or(false),
            None => false,
        },
    })
}

/// What an agent says of the turn, in headers or in the body.
fn options(fields: &Fields<'_>, headers: &HeaderMap) -> Read<TurnOptions> {
    let header = |name: &str| {
        let bytes = headers.get(name).map(HeaderValue::as_bytes).unwrap_or_default();
        String::from_utf8_lossy(bytes).trim().to_owned()
    };
    let either = |name: &str, field: &str| -> Read<String> {
        match header(name) {
            text if text.is_empty() => Ok(fields.text(field)?.trim().to_owned()),
            text => Ok(text),
        }
    };
    let yes = |text: &str| matches!(&*text.trim().to_lowercase(), "1" | "true" | "yes" | "on");
    let done = match fields.get("session_done") {
        None => false,
        Some(Value::Bool(done)) => *done,
        Some(Value::String(text)) => yes(text),
        Some(value) => value.as_i64() == Some(1),
    };
    let version = |name: &str| match header(name) {
        text if text.is_empty() => Ok(None),
        text => match text.parse::<i64>() {
            Ok(version) if version >= 0 => Ok(Some(version)),
            _ => {
                let problem = format!("Invalid value for '{name}': '{text}'; it must be an integer from 0 on.");
                Err(bad(name, problem, "invalid_value"))
            }
        },
    };
    Ok(TurnOptions {
        session_id: either("x-session-id", "session_id")?,
        turn_type: either("x-turn-type", "turn_type")?,
        session_done: done || yes(&header("x-session-done")),
        min_version: version("X-OpenClaw-Min-Version")?,
        exact_version: version("X-OpenClaw-Exact-Version")?,
        ..Default::default()
    })
}

fn message(fields: &Fields<'_>) -> Read<ChatMessage> {
    let role = fields.text("role")?;
    if role.is_empty() {
        return Err(fields.needed("role"));
    }
    let mut message =
        ChatMessage { name: fields.text("name")?, tool_call_id: fields.text("tool_call_id")?, ..Default::default() };
    match fields.get("content") {
        Some(Value::String(text)) => message.content = text.clone(),
        Some(Value::Array(_)) => message.parts = fields.objects("content")?.iter().map(part).collect::<Read<_>>()?,
        Some(_) => drop(fields.typed("content", "a string or an array of parts", |_| None::<()>)?),
        None if role != "assistant" => return Err(fields.needed("content")),
        None => {}
    }
    for call in fields.objects("tool_calls")? {
        let function = call.object("function")?.ok_or_else(|| call.needed("function"))?;
        message.tool_calls.push(ToolCall {
            id: call.text("id")?,
            name: function.text("name")?,
            arguments_json: function.text("arguments")?,
        });
    }
    message.role = role;
    Ok(message)
}

fn part(fields: &Fields<'_>) -> Read<ContentPart> {
    let part = match &*fields.text("type")? {
        "text" | "input_text" | "output_text" => Part::Text(fields.text("text")?),
        "refusal" => Part::Text(fields.text("refusal")?),
        "image_url" => Part::ImageUrl(match fields.get("image_url") {
            Some(Value::String(url)) => url.clone(),
            _ => fields.object("image_url")?.ok_or_else(|| fields.needed("image_url"))?.text("url")?,
        }),
        other => {
            let text = format!("Invalid value for '{}': '{other}'; it must be text or image_url.", fields.name("type"));
            return Err(bad(&fields.name("type"), text, "invalid_value"));
        }
    };
    Ok(ContentPart { part: Some(part) })
}

fn tool(fields: &Fields<'_>) -> Read<ToolDefinition> {
    let function = fields.object("function")?.ok_or_else(|| fields.needed("function"))?;
    let parameters = function.object("parameters")?.filter(|parameters| !parameters.0.is_empty());
    Ok(ToolDefinition {
        name: function.text("name")?,
        description: function.text("description")?,
        parameters_json: parameters.map_or_else(String::new, |p| Value::from(p.0.clone()).to_string()),
        strict: function.flag("strict")?.unwrap_or_default(),
    })
}

/// A body of /v1/feedback: turn_id or session_id, and rating, score or comment.
pub fn feedback(body: &Map<String, Value>) -> Read<Feedback> {
    let fields = Fields(body, String::new());
    let mut score = fields.number("score")?;
    if let Some(rating) = fields.get("rating") {
        let word = rating.as_str().map_or_else(|| rating.to_string(), str::to_owned).trim().to_lowercase();
        let thumbs = match &*word {
            "up" | "thumbs_up" | "thumbs-up" | "like" | "good" | "positive" | "+1" | "1" | "👍" => 1.0,
            "down" | "thumbs_down" | "thumbs-down" | "dislike" | "bad" | "negative" | "-1" | "👎" => -1.0,
            _ => {
                let text = format!("Invalid value for 'rating': {rating}; it must be up or down.");
                return Err(bad("rating", text, "invalid_value"));
            }
        };
        if score.is_some_and(|score| score * thumbs < 0.0) {
            let message = format!("rating {rating} and score contradict each other");
            return Err(ApiError { status: 422, ..bad("score", message, "contradiction") });
        }
        score = score.or(Some(thumbs));
    }
    let turn_id = fields.text("turn_id")?;
    Ok(Feedback {
        turn_id: turn_id.trim().trim_start_matches("chatcmpl-").into(),
        session_id: fields.text("session_id")?.trim().into(),
        comment: fields.text("comment")?.trim().into(),
        score,
        ..Default::default()
    })
}

/// A finish reason as OpenAI has it.
pub fn reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Length => "length",
        FinishReason::ToolCalls => "tool_calls",
        _ => "stop",
    }
}
