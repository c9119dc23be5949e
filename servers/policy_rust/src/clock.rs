//! Time and ids.
use std::time::{SystemTime, UNIX_EPOCH};

use prost_types::Timestamp;

/// Now, in seconds since 1970.
pub fn seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

pub fn now() -> Timestamp {
    SystemTime::now().into()
}

pub fn timestamp(seconds: f64) -> Timestamp {
    let nanos = (seconds.fract() * 1e9) as i32;
    Timestamp { seconds: seconds as i64, nanos }
}

/// An id that nobody else makes, such as `turn_...`.
pub fn new_id(kind: &str) -> String {
    format!("{kind}_{}", uuid::Uuid::new_v4().simple())
}
