//! OpenAI's JSON: requests that are read field by field, and answers.
use axum::{
    Json,
    http::{HeaderMap, HeaderValue, StatusCode},
    response::{IntoResponse, Response},
};
use openclaw_rl_client::{
    Code, Error,
    v1::{
        ChatMessage, ContentPart, Feedback, FinishReason, SamplingParams, ToolCall, ToolDefinition, TurnOptions,
        content_part::Part,
    },
};
use serde_json::{Map, Value, json};

use crate::{chat, turns::Call};

/// An error in OpenAI's shape.
pub struct ApiError {
    pub status: u16,
    pub message: String,
    pub param: Option<String>,
    pub code: String,
    pub retry_after: Option<u64>,
}

pub type Read<T> = Result<T, ApiError>;

pub fn bad(param: &str, message: String, code: &str) -> ApiError {
    ApiError {
        status: 400,
        message,
        param: Some(param.into()),
        code: code.into(),
        retry_after: None,
    }
}

impl ApiError {
    pub fn body(&self) -> Value {
        let kind = match self.status {
            401 => "authentication_error",
            403 => "permission_error",
            429 => "rate_limit_error",
            400..500 => "invalid_request_error",
            _ => "server_error",
        };
        json!({"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}})
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        let own = error
            .metadata()
            .get("http_status")
            .and_then(|status| status.parse().ok());
        let status = own.unwrap_or(match error.code() {
            Code::InvalidArgument | Code::OutOfRange => 400,
            Code::NotFound => 404,
            Code::FailedPrecondition | Code::Aborted => 409,
            Code::ResourceExhausted => 429,
            Code::Unavailable => 503,
            Code::DeadlineExceeded => 504,
            _ => 500,
        });
        let code = match error.reason() {
            "INVALID_ARGUMENT" => "invalid_value".into(),
            "RESOURCE_EXHAUSTED" => "rate_limit_exceeded".into(),
            reason => reason.to_lowercase(),
        };
        Self {
            status,
            message: error.message().into(),
            param: error.violations().first().map(|violation| violation.field.clone()),
            code,
            retry_after: error
                .retry_after()
                .map(|after| after.as_secs_f64().ceil().max(1.0) as u64),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(self.body())).into_response();
        if let Some(after) = self.retry_after {
            response.headers_mut().insert("retry-after", HeaderValue::from(after));
        }
        response
    }
}

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

/// One JSON object; null counts as absent.
struct Fields<'a>(&'a Map<String, Value>, String);

impl<'a> Fields<'a> {
    fn name(&self, key: &str) -> String {
        if self.1.is_empty() {
            key.into()
        } else {
            format!("{}.{key}", self.1)
        }
    }

    fn get(&self, key: &str) -> Option<&'a Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    fn typed<T>(&self, key: &str, expected: &str, read: impl Fn(&'a Value) -> Option<T>) -> Read<Option<T>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let wrong = || {
            let shown: String = value.to_string().chars().take(60).collect();
            let text = format!(
                "Invalid type for '{}': expected {expected}, but got {shown} instead.",
                self.name(key)
            );
            bad(&self.name(key), text, "invalid_type")
        };
        read(value).map(Some).ok_or_else(wrong)
    }

    fn text(&self, key: &str) -> Read<String> {
        Ok(self
            .typed(key, "a string", Value::as_str)?
            .unwrap_or_default()
            .to_owned())
    }

    fn flag(&self, key: &str) -> Read<Option<bool>> {
        self.typed(key, "a boolean", Value::as_bool)
    }

    fn number(&self, key: &str) -> Read<Option<f64>> {
        self.typed(key, "a decimal", Value::as_f64)
    }

    fn integer(&self, key: &str) -> Read<Option<i64>> {
        self.typed(key, "an integer", Value::as_i64)
    }

    fn small(&self, key: &str) -> Read<Option<i32>> {
        self.typed(key, "an integer", |value| {
            value.as_i64().and_then(|number| i32::try_from(number).ok())
        })
    }

    fn object(&self, key: &str) -> Read<Option<Fields<'a>>> {
        let found = self.typed(key, "an object", Value::as_object)?;
        Ok(found.map(|object| Fields(object, self.name(key))))
    }

    fn objects(&self, key: &str) -> Read<Vec<Fields<'a>>> {
        let items = self.typed(key, "an array", Value::as_array)?;
        let item = |(i, value): (usize, &'a Value)| {
            let name = format!("{}[{i}]", self.name(key));
            let object = value.as_object();
            object.map(|object| Fields(object, name.clone())).ok_or_else(|| {
                bad(
                    &name,
                    format!("Invalid type for '{name}': expected an object."),
                    "invalid_type",
                )
            })
        };
        items.into_iter().flatten().enumerate().map(item).collect()
    }

    fn needed(&self, key: &str) -> ApiError {
        let name = self.name(key);
        bad(
            &name,
            format!("Missing required parameter: '{name}'."),
            "missing_required_parameter",
        )
    }
}

/// A body as a JSON object.
pub fn object(body: &[u8]) -> Read<Map<String, Value>> {
    serde_json::from_slice(body).map_err(|error| ApiError {
        status: 400,
        message: format!("We could not parse the JSON body of your request: {error}. The API expects a JSON object."),
        param: None,
        code: "invalid_json".into(),
        retry_after: None,
    })
}

pub fn chat_request(body: &Map<String, Value>, headers: &HeaderMap) -> Read<ChatRequest> {
    let fields = Fields(body, String::new());
    let stop = match fields.get("stop") {
        Some(Value::String(stop)) => vec![stop.clone()],
        _ => fields
            .typed("stop", "a string or an array of strings", |value| {
                value
                    .as_array()?
                    .iter()
                    .map(|one| one.as_str().map(str::to_owned))
                    .collect::<Option<Vec<_>>>()
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
    let messages = fields
        .objects("messages")?
        .iter()
        .map(message)
        .collect::<Read<Vec<_>>>()?;
    chat::check_messages(&messages)?;
    let tools = fields.objects("tools")?.iter().map(tool).collect::<Read<Vec<_>>>()?;
    chat::check_tools(&tools)?;
    let choice = match fields.get("tool_choice") {
        Some(Value::Object(named)) => named["function"]["name"].as_str().unwrap_or_default().to_owned(),
        _ => fields.text("tool_choice")?,
    };
    let n = fields.small("n")?.unwrap_or(1);
    if !(1..=8).contains(&n) {
        return Err(bad(
            "n",
            format!("Invalid value for 'n': {n}; it must be from 1 to 8."),
            "invalid_value",
        ));
    }
    let streaming = fields.object("stream_options")?;
    let metadata = fields.object("metadata")?;
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let metadata = metadata
        .iter()
        .flat_map(|m| m.0)
        .map(|(key, value)| (key.clone(), plain(value)))
        .collect();
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
    let mut message = ChatMessage {
        name: fields.text("name")?,
        tool_call_id: fields.text("tool_call_id")?,
        ..Default::default()
    };
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
            _ => fields
                .object("image_url")?
                .ok_or_else(|| fields.needed("image_url"))?
                .text("url")?,
        }),
        other => {
            let text = format!(
                "Invalid value for '{}': '{other}'; it must be text or image_url.",
                fields.name("type")
            );
            return Err(bad(&fields.name("type"), text, "invalid_value"));
        }
    };
    Ok(ContentPart { part: Some(part) })
}

fn tool(fields: &Fields<'_>) -> Read<ToolDefinition> {
    let function = fields.object("function")?.ok_or_else(|| fields.needed("function"))?;
    let parameters = function
        .object("parameters")?
        .filter(|parameters| !parameters.0.is_empty());
    Ok(ToolDefinition {
        name: function.text("name")?,
        description: function.text("description")?,
        parameters_json: parameters.map_or_else(String::new, |p| Value::from(p.0.clone()).to_string()),
    })
}

/// A body of /v1/feedback: turn_id or session_id, and rating, score or comment.
pub fn feedback(body: &Map<String, Value>) -> Read<Feedback> {
    let fields = Fields(body, String::new());
    let mut score = fields.number("score")?;
    if let Some(rating) = fields.get("rating") {
        let word = rating
            .as_str()
            .map_or_else(|| rating.to_string(), str::to_owned)
            .trim()
            .to_lowercase();
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
            return Err(ApiError {
                status: 422,
                ..bad("score", message, "contradiction")
            });
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
