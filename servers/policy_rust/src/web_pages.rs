//! Keeps other sites' web pages out: a browser sends their requests to this machine, too, some of them unasked.
use std::net::IpAddr;

use axum::{
    extract::Request,
    http::{HeaderMap, Method, Version, header},
    middleware::Next,
    response::{IntoResponse as _, Response},
};

use crate::fields::ApiError;

pub async fn check(request: Request, next: Next) -> Response {
    match refusal(request.method(), request.version(), request.headers()) {
        Some(error) => error.into_response(),
        None => next.run(request).await,
    }
}

fn refusal(method: &Method, version: Version, headers: &HeaderMap) -> Option<ApiError> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?").to_ascii_lowercase());
    let hosts = headers.get_all(header::HOST).iter().count();
    if hosts != 1 && !(hosts == 0 && version == Version::HTTP_10) {
        let message = format!("The request has {hosts} Host headers; it must have one.");
        return Some(ApiError::plain(400, message, "bad_host"));
    }
    let host = text("host").unwrap_or_default();
    if hosts == 1 && !is_ours(&host) {
        let message = format!("This server is not known by the name {host:?}. Use an address of this machine.");
        return Some(ApiError::plain(421, message, "unknown_host"));
    }
    let foreign = match text("origin") {
        Some(origin) => origin.split_once("://").is_none_or(|(scheme, own)| !scheme.starts_with("http") || own != host),
        None => {
            let site = text("sec-fetch-site").unwrap_or_default();
            let followed = method == Method::GET && text("sec-fetch-mode").as_deref() == Some("navigate");
            matches!(&*site, "cross-site" | "same-site") && !followed
        }
    };
    if foreign {
        let message = "Cross-site request rejected: it comes from another site's page.".into();
        return Some(ApiError::plain(403, message, "cross_site"));
    }
    let kind = text("content-type").unwrap_or_default();
    if method == Method::POST && kind.split(';').next().unwrap_or_default().trim() != "application/json" {
        let message = "Send JSON with `Content-Type: application/json`.".into();
        return Some(ApiError::plain(415, message, "not_json"));
    }
    None
}

/// Whether a Host header can only be meant for this machine: no name can be made to look like an address.
fn is_ours(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name == "localhost" || name.ends_with(".localhost") || name.parse::<IpAddr>().is_ok()
}
