//! Reading JSON objects field by field; a wrong type is an error in OpenAI's shape that names the field.
use std::time::Duration;

use axum::{
    Json,
    body::Body,
    extract::{FromRequest, Request},
    http::{HeaderValue, StatusCode},
    response::{IntoResponse, Response},
};
use http_body_util::BodyExt as _;
use openclaw_rl_client::{Code, Error};
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use crate::MAX_MESSAGE;

/// Time that a body has to come.
const LONGEST: Duration = Duration::from_secs(60);

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
    ApiError { param: Some(param.into()), ..ApiError::plain(400, message, code) }
}

impl ApiError {
    /// One that no field is to blame for.
    pub fn plain(status: u16, message: String, code: &str) -> Self {
        Self { status, message, param: None, code: code.into(), retry_after: None }
    }

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
        let own = error.metadata().get("http_status").and_then(|status| status.parse().ok());
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
            retry_after: error.retry_after().map(|after| after.as_secs_f64().ceil().max(1.0) as u64),
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

/// One JSON object; null counts as absent.
pub struct Fields<'a>(pub &'a Map<String, Value>, pub String);

impl<'a> Fields<'a> {
    pub fn name(&self, key: &str) -> String {
        if self.1.is_empty() { key.into() } else { format!("{}.{key}", self.1) }
    }

    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    pub fn typed<T>(&self, key: &str, expected: &str, read: impl Fn(&'a Value) -> Option<T>) -> Read<Option<T>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let wrong = || {
            let shown: String = value.to_string().chars().take(60).collect();
            let text = format!("Invalid type for '{}': expected {expected}, but got {shown} instead.", self.name(key));
            bad(&self.name(key), text, "invalid_type")
        };
        read(value).map(Some).ok_or_else(wrong)
    }

    pub fn text(&self, key: &str) -> Read<String> {
        Ok(self.typed(key, "a string", Value::as_str)?.unwrap_or_default().to_owned())
    }

    pub fn flag(&self, key: &str) -> Read<Option<bool>> {
        self.typed(key, "a boolean", Value::as_bool)
    }

    pub fn number(&self, key: &str) -> Read<Option<f64>> {
        self.typed(key, "a decimal", Value::as_f64)
    }

    pub fn integer(&self, key: &str) -> Read<Option<i64>> {
        self.typed(key, "an integer", Value::as_i64)
    }

    pub fn small(&self, key: &str) -> Read<Option<i32>> {
        self.typed(key, "an integer", |value| value.as_i64().and_then(|number| i32::try_from(number).ok()))
    }

    pub fn object(&self, key: &str) -> Read<Option<Fields<'a>>> {
        let found = self.typed(key, "an object", Value::as_object)?;
        Ok(found.map(|object| Fields(object, self.name(key))))
    }

    pub fn objects(&self, key: &str) -> Read<Vec<Fields<'a>>> {
        let items = self.typed(key, "an array", Value::as_array)?;
        let item = |(i, value): (usize, &'a Value)| {
            let name = format!("{}[{i}]", self.name(key));
            let object = value.as_object();
            object
                .map(|object| Fields(object, name.clone()))
                .ok_or_else(|| bad(&name, format!("Invalid type for '{name}': expected an object."), "invalid_type"))
        };
        items.into_iter().flatten().enumerate().map(item).collect()
    }

    pub fn needed(&self, key: &str) -> ApiError {
        let name = self.name(key);
        bad(&name, format!("Missing required parameter: '{name}'."), "missing_required_parameter")
    }
}

/// A request's body, a JSON object.
pub struct Object(pub Map<String, Value>);

impl<S: Sync> FromRequest<S> for Object {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Read<Self> {
        let late = |_| ApiError::plain(408, "The request's body did not come in a minute.".into(), "request_timeout");
        let bytes = timeout(LONGEST, read(request.into_body())).await.map_err(late)??;
        serde_json::from_slice(&bytes).map(Self).map_err(|error| {
            let text = format!("We could not parse the JSON body of your request: {error}. It must be a JSON object.");
            ApiError::plain(400, text, "invalid_json")
        })
    }
}

/// All of a body. One that is too large is read on for a while: few clients look at an answer before they have sent it.
async fn read(mut body: Body) -> Read<Vec<u8>> {
    let (mut bytes, mut size) = (Vec::new(), 0);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| ApiError::plain(400, format!("Its body broke off: {error}"), "bad_body"))?;
        let data = frame.into_data().unwrap_or_default();
        size += data.len();
        if size <= MAX_MESSAGE {
            bytes.extend_from_slice(&data);
        } else if size > 4 * MAX_MESSAGE {
            break;
        }
    }
    if size > MAX_MESSAGE {
        let text = format!("The request's body is larger than {MAX_MESSAGE} bytes, the most that is taken.");
        return Err(ApiError::plain(413, text, "request_too_large"));
    }
    Ok(bytes)
}
