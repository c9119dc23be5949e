use std::{collections::HashMap, fmt, time::Duration};

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

/// `ErrorInfo.domain` of the mesh's own errors.
pub const DOMAIN: &str = "openclaw-rl";

/// A field that has a value which is not allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Name of the field, such as `sampling.top_p` or `messages[2].role`.
    pub field: String,
    /// What is wrong with it, and what is allowed.
    pub description: String,
}

/// Whatever can go wrong with a call.
///
/// Printed, it says what is wrong and what to do. [`reason`](Self::reason) is what a program decides by: a key of the
/// mesh's catalogue of errors, such as `VERSION_NOT_ACTIVE` or `LEASE_LOST`.
///
/// Two things that tonic reports in a way of its own are told here as the contract has them: the client's own deadline
/// is `DeadlineExceeded`, a message beyond the limit `ResourceExhausted`.
#[derive(Clone)]
pub struct Error(Box<Parts>);

#[derive(Clone)]
struct Parts {
    code: Code,
    reason: String,
    message: String,
    violations: Vec<Violation>,
    retry_after: Option<Duration>,
    metadata: HashMap<String, String>,
}

/// What calls of this crate give.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error with a reason of the catalogue.
    pub fn new(code: Code, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self(Box::new(Parts {
            code,
            reason: reason.into(),
            message: message.into(),
            violations: Vec::new(),
            retry_after: None,
            metadata: HashMap::new(),
        }))
    }

    /// INVALID_ARGUMENT for one field; `problem` says what is wrong with it and what is allowed.
    pub fn invalid(field: impl Into<String>, problem: impl Into<String>) -> Self {
        let (field, description) = (field.into(), problem.into());
        let mut error = Self::new(Code::InvalidArgument, "INVALID_ARGUMENT", format!("{field}: {description}"));
        error.0.violations.push(Violation { field, description });
        error
    }

    /// It can't be done just now, and is worth repeating after a while.
    pub fn unavailable(message: impl Into<String>, retry_after: Duration) -> Self {
        Self::new(Code::Unavailable, "UNAVAILABLE", message).with_retry_after(retry_after)
    }

    /// The same error, worth repeating after a while.
    pub fn with_retry_after(mut self, retry_after: Duration) -> Self {
        self.0.retry_after = Some(retry_after);
        self
    }

    /// The same error with more to tell a program.
    pub fn with_metadata(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.metadata.insert(key.into(), value.into());
        self
    }

    /// The same error with other words.
    pub(crate) fn with_message(mut self, message: impl Into<String>) -> Self {
        self.0.message = message.into();
        self
    }

    /// The same error, which says where it came from.
    pub(crate) fn with_message_prefix(mut self, address: &str) -> Self {
        if !self.0.message.contains(address) {
            self.0.message = format!("{address}: {}", self.0.message);
        }
        self
    }

    /// The gRPC status code.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// Key of the mesh's catalogue of errors; the code's name when the server gave none.
    pub fn reason(&self) -> &str {
        &self.0.reason
    }

    /// What is wrong and what to do, a sentence for people.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Each bad field; empty unless the code is `InvalidArgument`.
    pub fn violations(&self) -> &[Violation] {
        &self.0.violations
    }

    /// Time after which the same call makes sense again; `None` when the server does not say.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// More about it, by name, such as `active_version`.
    pub fn metadata(&self) -> &HashMap<String, String> {
        &self.0.metadata
    }

    /// The same call may succeed later.
    pub fn retryable(&self) -> bool {
        self.0.retry_after.is_some() || matches!(self.0.code, Code::Unavailable | Code::Aborted)
    }

    /// The status that a server sends, with `google.rpc` details.
    pub fn to_status(&self) -> Status {
        let mut details = ErrorDetails::new();
        details.set_error_info(&self.0.reason, DOMAIN, self.0.metadata.clone());
        for violation in &self.0.violations {
            details.add_bad_request_violation(&violation.field, &violation.description);
        }
        if let Some(delay) = self.0.retry_after {
            details.set_retry_info(Some(delay));
        }
        Status::with_error_details(self.0.code, &self.0.message, details)
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        error.to_status()
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Self {
        let text = status.message();
        let (code, advice) = match status.code() {
            Code::Cancelled if text == "Timeout expired" => (Code::DeadlineExceeded, ""),
            Code::OutOfRange | Code::ResourceExhausted if text.contains("message length too large") => {
                (Code::ResourceExhausted, "; send less, or raise the client's `message_limit` and the server's limit")
            }
            code => (code, ""),
        };
        let message = match (code, text) {
            (Code::DeadlineExceeded, "Timeout expired") => "the deadline has passed".to_owned(),
            (_, "") => code.description().to_owned(),
            _ => format!("{text}{advice}"),
        };
        let mut error = Self::new(code, code_name(code), message);
        let details = status.get_error_details();
        if let Some(info) = details.error_info() {
            if !info.reason.is_empty() {
                error.0.reason = info.reason.clone();
            }
            error.0.metadata = info.metadata.clone();
        }
        if let Some(bad) = details.bad_request() {
            error.0.violations = bad
                .field_violations
                .iter()
                .map(|v| Violation { field: v.field.clone(), description: v.description.clone() })
                .collect();
        }
        error.0.retry_after = details.retry_info().and_then(|info| info.retry_delay);
        error
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.message)?;
        for v in &self.0.violations {
            if !self.0.message.contains(&v.description) {
                write!(f, "; {}: {}", v.field, v.description)?;
            }
        }
        let name = code_name(self.0.code);
        if self.0.reason == name {
            write!(f, " [{name}")?;
        } else {
            write!(f, " [{name}, {}", self.0.reason)?;
        }
        match self.0.retry_after {
            Some(after) => write!(f, ", try again after {:.1} s]", after.as_secs_f64()),
            None => write!(f, "]"),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({self})")
    }
}

impl std::error::Error for Error {}

/// A code's name as gRPC writes it.
pub(crate) fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_survives_the_wire() {
        let error = Error::invalid("sampling.top_p", "3 is not allowed: must be above 0, at most 1")
            .with_retry_after(Duration::from_millis(1500))
            .with_metadata("id", "x");
        let read = Error::from(error.to_status());
        assert_eq!(read.code(), Code::InvalidArgument);
        assert_eq!(read.reason(), "INVALID_ARGUMENT");
        assert_eq!(read.violations(), error.violations());
        assert_eq!(read.retry_after(), Some(Duration::from_millis(1500)));
        assert_eq!(read.metadata()["id"], "x");
        assert!(read.retryable());
        let text = read.to_string();
        assert!(text.contains("sampling.top_p: 3 is not allowed") && text.contains("try again after 1.5 s"), "{text}");
    }

    #[test]
    fn tonics_own_statuses_become_the_contracts() {
        let late = Error::from(Status::cancelled("Timeout expired"));
        assert_eq!((late.code(), late.reason()), (Code::DeadlineExceeded, "DEADLINE_EXCEEDED"));
        assert!(late.message().contains("deadline"));
        let large = Error::from(Status::out_of_range(
            "Error, decoded message length too large: found 5 bytes, the limit is: 4 bytes",
        ));
        assert_eq!(large.code(), Code::ResourceExhausted);
        assert!(large.message().contains("message_limit"));
        assert_eq!(Error::from(Status::cancelled("by the server")).code(), Code::Cancelled);
        assert_eq!(Error::from(Status::out_of_range("page_token")).code(), Code::OutOfRange);
    }

    #[test]
    fn a_server_without_details_gives_its_codes_name() {
        let error = Error::from(Status::failed_precondition("no"));
        assert_eq!(error.reason(), "FAILED_PRECONDITION");
        assert_eq!(error.to_string(), "no [FAILED_PRECONDITION]");
        assert!(!error.retryable());
    }
}
