//! From a request head to a response: route, key, phase, place, body, answer, in that order, cheapest refusal first.

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use hyper::{
    HeaderMap, Method, Request, Response, StatusCode,
    body::Incoming,
    header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE},
};
use serde_json::{Map, Value, json};

use super::{
    auth,
    body::{self, ResponseBody},
    chat_request, collect, completion_request, debug_steps,
    error::ApiError,
    generate::Generation,
    json::parse_object,
    limits,
    request::{GenerationRequest, RequestContext, Shape},
    state::{ActiveRequest, ServerState},
    stream::EventBody,
    structure, tokenize,
};
use crate::generation::ids::unique_id;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Bodies up to this size are parsed on the connection's own thread.
const INLINE_BYTES_MAX: usize = 16 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    Generate(Shape),
    Tokenize,
    Detokenize,
    FlushCache,
    DebugSteps,
    Models,
    Model,
    Health,
    Readiness,
    Metrics,
    Version,
}

impl Route {
    fn of(path: &str) -> Option<Self> {
        Some(match path {
            "/v1/chat/completions" => Self::Generate(Shape::Chat),
            "/v1/completions" => Self::Generate(Shape::Completion),
            "/tokenize" => Self::Tokenize,
            "/detokenize" => Self::Detokenize,
            "/flush_cache" => Self::FlushCache,
            "/debug/steps" => Self::DebugSteps,
            "/v1/models" => Self::Models,
            "/health" => Self::Health,
            "/readiness" => Self::Readiness,
            "/metrics" => Self::Metrics,
            "/version" => Self::Version,
            _ if path.strip_prefix("/v1/models/").is_some_and(|name| !name.is_empty()) => Self::Model,
            _ => return None,
        })
    }

    /// As in metrics; paths of clients never become labels.
    fn name(route: Option<Self>) -> &'static str {
        match route {
            Some(Self::Generate(Shape::Chat)) => "/v1/chat/completions",
            Some(Self::Generate(Shape::Completion)) => "/v1/completions",
            Some(Self::Tokenize) => "/tokenize",
            Some(Self::Detokenize) => "/detokenize",
            Some(Self::FlushCache) => "/flush_cache",
            Some(Self::DebugSteps) => "/debug/steps",
            Some(Self::Models) => "/v1/models",
            Some(Self::Model) => "/v1/models/{id}",
            Some(Self::Health) => "/health",
            Some(Self::Readiness) => "/readiness",
            Some(Self::Metrics) => "/metrics",
            Some(Self::Version) => "/version",
            None => "other",
        }
    }

    fn takes_body(self) -> bool {
        matches!(self, Self::Generate(_) | Self::Tokenize | Self::Detokenize | Self::FlushCache)
    }

    /// Probes and scrapers carry no key; nothing they see is a user's.
    fn is_open(self) -> bool {
        matches!(self, Self::Health | Self::Readiness | Self::Metrics | Self::Version)
    }
}

/// Turns a panic of the inner future into `None`.
struct CatchPanic<F>(Pin<Box<F>>);

impl<F: Future> Future for CatchPanic<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(context))) {
            Ok(polled) => polled.map(Some),
            Err(_) => Poll::Ready(None),
        }
    }
}

/// Answer one request. Never fails: every failure is a response.
pub async fn handle(state: Arc<ServerState>, request: Request<Incoming>) -> Response<ResponseBody> {
    let start = Instant::now();
    let route = Route::of(request.uri().path());
    let mut request_id = header_request_id(request.headers());
    let answered = CatchPanic(Box::pin(answer(&state, route, request, start, &mut request_id))).await;
    let failed = || Err(ApiError::internal("The server failed while handling this request."));
    let mut response = answered.unwrap_or_else(failed).unwrap_or_else(|error| error_response(&error));
    let status = response.status().as_u16();
    state.metrics.response(Route::name(route), status);
    let id = request_id.unwrap_or_else(|| unique_id("req-"));
    if status >= 500 && status != 503 {
        let fields = [("route", Route::name(route)), ("status", &status.to_string()), ("request_id", &id)];
        state.config.log.event("request failed", &fields);
    }
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

/// A client's own id is only echoed. It is never a key inside, so two equal ones disturb nobody.
fn header_request_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    Some(id.chars().take(limits::REQUEST_ID_CHARS_MAX).collect::<String>()).filter(|id| !id.is_empty())
}

async fn answer(
    state: &Arc<ServerState>,
    route: Option<Route>,
    request: Request<Incoming>,
    start: Instant,
    request_id: &mut Option<String>,
) -> Result<Response<ResponseBody>, ApiError> {
    let Some(route) = route else { return Err(ApiError::unknown_path(request.uri().path())) };
    let method = request.method();
    let allowed =
        if route.takes_body() { method == Method::POST } else { method == Method::GET || method == Method::HEAD };
    if !allowed {
        return Err(ApiError::method(method.as_str(), if route.takes_body() { "POST" } else { "GET, HEAD" }));
    }
    if !route.is_open() {
        auth::check(request.headers(), &state.config.api_keys)?;
    }
    match route {
        Route::Health | Route::Readiness => Ok(health(state)),
        Route::Version => Ok(json_response(StatusCode::OK, &json!({"version": env!("CARGO_PKG_VERSION")}))),
        Route::Metrics => Ok(metrics(state)),
        Route::Models => {
            let ready = state.serving()?;
            let data: Vec<Value> = ready.model_names.iter().map(|name| model_card(state, name)).collect();
            Ok(json_response(StatusCode::OK, &json!({"object": "list", "data": data})))
        }
        Route::Model => {
            let ready = state.serving()?;
            let encoded = request.uri().path().trim_start_matches("/v1/models/");
            let name = percent_decode(encoded);
            if !ready.model_names.contains(&name) {
                return Err(ApiError::unknown_model(&name, &ready.model_names));
            }
            Ok(json_response(StatusCode::OK, &model_card(state, &name)))
        }
        Route::FlushCache => {
            state.serving()?.loaded.engine.flush_cache().map_err(ApiError::conflict)?;
            Ok(json_response(StatusCode::OK, &json!({"flushed": true})))
        }
        Route::DebugSteps => {
            // Not `serving`: what an engine did before it died is worth asking.
            let Some(ready) = state.loaded() else {
                return Err(ApiError::unavailable("The model is still loading.", "loading", Some(5)));
            };
            let steps = debug_steps::answer(&*ready.loaded.engine, request.uri().query().unwrap_or(""))?;
            Ok(json_response(StatusCode::OK, &steps))
        }
        Route::Tokenize => {
            let (value, _active) = with_body(state, request, tokenize::tokenize).await?;
            Ok(json_response(StatusCode::OK, &value))
        }
        Route::Detokenize => {
            let (value, _active) = with_body(state, request, tokenize::detokenize).await?;
            Ok(json_response(StatusCode::OK, &value))
        }
        Route::Generate(shape) => {
            let read = match shape {
                Shape::Chat => chat_request::read,
                Shape::Completion => completion_request::read,
            };
            let (generation_request, active) = with_body(state, request, read).await?;
            generate(state, generation_request, active, start, request_id).await
        }
    }
}

async fn generate(
    state: &Arc<ServerState>,
    mut request: GenerationRequest,
    active: ActiveRequest,
    start: Instant,
    request_id: &mut Option<String>,
) -> Result<Response<ResponseBody>, ApiError> {
    if request_id.is_none()
        && let Some(id) = &request.request_id
    {
        let id: String = id.chars().take(limits::REQUEST_ID_CHARS_MAX).collect();
        if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(ApiError::param("request_id", "'request_id' must be visible ASCII characters."));
        }
        *request_id = Some(id);
    }
    let ready = state.serving()?;
    structure::enforce(&ready.grammars, &mut request).await?;
    let stream = request.stream;
    let generation = Generation::start(state, ready, request, active, start)?;
    let frontend = ready.loaded.frontend.clone();
    if !stream {
        return Ok(json_response(StatusCode::OK, &collect::collect(generation, &frontend).await?));
    }
    let events = ResponseBody::Events(Some(Box::new(EventBody::new(generation, frontend))));
    let mut response = Response::new(events);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Asks reverse proxies not to collect the stream before passing it on.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

/// Check the phase, take a place, read the body, and turn it into something, off this thread if it is large.
async fn with_body<T: Send + 'static>(
    state: &Arc<ServerState>,
    request: Request<Incoming>,
    read: impl FnOnce(Map<String, Value>, RequestContext<'_>) -> Result<T, ApiError> + Send + 'static,
) -> Result<(T, ActiveRequest), ApiError> {
    state.serving()?;
    check_content_type(request.headers())?;
    let mut active = state.enter()?;
    let config = &state.config;
    let bytes = body::read(request.into_body(), config.max_body_bytes, config.read_timeout, &mut active).await?;
    let shared = state.clone();
    let size = bytes.len();
    let work = move || {
        let ready = shared.serving()?;
        read(parse_object(&bytes)?, ready.context(shared.config.seed))
    };
    let value = if size <= INLINE_BYTES_MAX {
        work()?
    } else {
        let failed = |_| ApiError::internal("The server failed while reading this request.");
        tokio::task::spawn_blocking(work).await.map_err(failed)??
    };
    active.release_buffer();
    Ok((value, active))
}

fn check_content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(value) = headers.get(CONTENT_TYPE) else { return Err(ApiError::content_type("(none)")) };
    let text = value.to_str().unwrap_or("(not ASCII)");
    let essence = text.split(';').next().unwrap_or("").trim();
    if essence.eq_ignore_ascii_case("application/json") { Ok(()) } else { Err(ApiError::content_type(text)) }
}

fn health(state: &ServerState) -> Response<ResponseBody> {
    match state.serving() {
        Ok(_) => json_response(StatusCode::OK, &json!({"status": "ok"})),
        Err(error) => {
            let status = match error.code {
                Some("shutting_down") => "draining",
                Some("engine_dead") => "dead",
                _ => "loading",
            };
            json_response(error.status, &json!({"status": status, "message": error.message}))
        }
    }
}

fn metrics(state: &ServerState) -> Response<ResponseBody> {
    let engine = state.loaded().map(|ready| ready.loaded.engine.metrics());
    let mut response = Response::new(ResponseBody::whole(state.metrics.render(engine.as_ref(), state.active())));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

fn model_card(state: &ServerState, name: &str) -> Value {
    let max_model_len = state.loaded().map(|ready| ready.limits.max_model_len);
    json!({
        "id": name,
        "object": "model",
        "created": state.started_s,
        "owned_by": "tokenspeed",
        "max_model_len": max_model_len,
    })
}

fn json_response(status: StatusCode, value: &Value) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::whole(value.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn error_response(error: &ApiError) -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::whole(error.to_json()));
    *response.status_mut() = error.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(seconds) = error.retry_after_s {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    if let Some(methods) = error.allow {
        headers.insert(ALLOW, HeaderValue::from_static(methods));
    }
    if error.status == StatusCode::UNAUTHORIZED {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

/// `%2F` and the like in a model name.
fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let hex = (*first == b'%').then(|| tail.get(..2)).flatten();
        let code = hex.and_then(|hex| std::str::from_utf8(hex).ok()).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_name_with_colon_and_slash() {
        assert_eq!(Route::of("/v1/models/a:b/c.d"), Some(Route::Model));
        assert_eq!(percent_decode("a%3Ab%2Fc.d"), "a:b/c.d");
        assert_eq!(percent_decode("100%"), "100%");
        assert_eq!(percent_decode("%zz"), "%zz");
        assert_eq!(Route::of("/v1/models/"), None);
    }
}
