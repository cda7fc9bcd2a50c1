//! Errors as clients see them: the OpenAI shape `{"error":{"message","type","param","code"}}` with the right status.

use hyper::StatusCode;
use serde_json::json;
use tokenspeed_core::client::SubmitError;

use crate::frontend::FrontendError;

/// An error response.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// For a person; names the parameter, what was sent and what would be right.
    pub message: String,
    /// Request field at fault.
    pub param: Option<String>,
    /// Stable word for programs.
    pub code: Option<&'static str>,
    /// `Retry-After`, in seconds.
    pub retry_after_s: Option<u32>,
    /// `Allow`, for 405.
    pub allow: Option<&'static str>,
}

impl ApiError {
    fn new(status: StatusCode, message: impl Into<String>, code: Option<&'static str>) -> Self {
        Self { status, message: message.into(), param: None, code, retry_after_s: None, allow: None }
    }

    /// 400 about one request field.
    pub fn param(param: impl Into<String>, message: impl Into<String>) -> Self {
        let param = Some(param.into());
        Self { param, ..Self::new(StatusCode::BAD_REQUEST, message, Some("invalid_value")) }
    }

    /// 400: the field is known, and this server cannot do what it asks.
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: Some("unsupported_parameter"), ..Self::param(param, message) }
    }

    /// 400 about the request as a whole.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message, Some("invalid_request"))
    }

    /// 400: prompt and answer do not fit.
    pub fn context_length(param: &str, message: String) -> Self {
        Self { code: Some("context_length_exceeded"), ..Self::param(param, message) }
    }

    /// 401.
    pub fn unauthorized() -> Self {
        let message = "Missing or wrong API key. Send it as 'Authorization: Bearer KEY'.";
        Self::new(StatusCode::UNAUTHORIZED, message, Some("invalid_api_key"))
    }

    /// 404 for a path.
    pub fn unknown_path(path: &str) -> Self {
        let path: String = path.chars().take(200).collect();
        Self::new(StatusCode::NOT_FOUND, format!("There is nothing at '{path}'."), Some("unknown_url"))
    }

    /// 404 for a model.
    pub fn unknown_model(name: &str, served: &[String]) -> Self {
        let name: String = name.chars().take(200).collect();
        let message = format!("The model '{name}' does not exist. This server has: {}.", served.join(", "));
        let error = Self::new(StatusCode::NOT_FOUND, message, Some("model_not_found"));
        Self { param: Some("model".into()), ..error }
    }

    /// 405.
    pub fn method(method: &str, allow: &'static str) -> Self {
        let method: String = method.chars().take(20).collect();
        let message = format!("Method {method} is not allowed here; use {allow}.");
        Self { allow: Some(allow), ..Self::new(StatusCode::METHOD_NOT_ALLOWED, message, Some("method_not_allowed")) }
    }

    /// 408.
    pub fn body_timeout() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "The request body did not arrive in time.", Some("request_timeout"))
    }

    /// 409.
    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, message, Some("conflict"))
    }

    /// 413.
    pub fn too_large(limit_bytes: usize) -> Self {
        let message = format!("The request body is larger than the limit of {limit_bytes} bytes (--max-body-bytes).");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, message, Some("request_too_large"))
    }

    /// 415.
    pub fn content_type(sent: &str) -> Self {
        let sent: String = sent.chars().take(100).collect();
        let message = format!("Content-Type must be application/json, not '{sent}'.");
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message, Some("unsupported_media_type"))
    }

    /// 429.
    pub fn overloaded(message: impl Into<String>, retry_after_s: u32) -> Self {
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, message, Some("overloaded"));
        Self { retry_after_s: Some(retry_after_s), ..error }
    }

    /// 500.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message, Some("internal_error"))
    }

    /// 503; with `retry_after_s` where waiting helps.
    pub fn unavailable(message: impl Into<String>, code: &'static str, retry_after_s: Option<u32>) -> Self {
        Self { retry_after_s, ..Self::new(StatusCode::SERVICE_UNAVAILABLE, message, Some(code)) }
    }

    /// The `type` field, a function of the status.
    pub fn kind(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            400..=499 => "invalid_request_error",
            503 => "service_unavailable_error",
            _ => "server_error",
        }
    }

    /// The body.
    pub fn to_json(&self) -> Vec<u8> {
        let error = json!({"message": self.message, "type": self.kind(), "param": self.param, "code": self.code});
        json!({ "error": error }).to_string().into_bytes()
    }
}

impl From<FrontendError> for ApiError {
    fn from(error: FrontendError) -> Self {
        match error {
            FrontendError::Input { param, message } => Self::param(param, message),
            FrontendError::Unsupported { param, message } => Self::unsupported(param, message),
            FrontendError::Internal(message) => Self::internal(message),
        }
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        let message = error.to_string();
        match error {
            SubmitError::Invalid(_) => Self::bad_request(message),
            SubmitError::Overloaded { retry_after_s } => Self::overloaded(message, retry_after_s),
            SubmitError::Draining => Self::unavailable(message, "shutting_down", Some(5)),
            SubmitError::Dead(_) => Self::unavailable(message, "engine_dead", None),
        }
    }
}
