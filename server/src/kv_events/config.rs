//! Options of the block events, under the names that other serving engines give them.

use clap::Args;
use serde::Deserialize;

use crate::error::CliError;

/// Arguments of `serve`.
#[derive(Clone, Debug, Default, Args)]
pub struct KvEventsArgs {
    /// Publish stored and removed cache blocks over ZMQ; JSON with endpoint, replay_endpoint, topic, buffer_steps,
    /// max_queue_size
    #[arg(long, value_name = "JSON", conflicts_with = "kv_events_endpoint")]
    pub kv_events_config: Option<String>,
    /// The same with one address and defaults, like tcp://*:5557
    #[arg(long, value_name = "ADDRESS")]
    pub kv_events_endpoint: Option<String>,
}

/// Where and how block events are published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvEventsConfig {
    /// Address to bind for subscribers, `tcp://HOST:PORT`; `*` = all interfaces, port 0 = any free one.
    pub endpoint: String,
    /// Address to bind for requests to send past messages again.
    pub replay_endpoint: Option<String>,
    /// First part of each message, which subscribers choose by.
    pub topic: String,
    /// Messages kept for replay.
    pub buffer_steps: usize,
    /// Events kept while the publisher lags behind the engine; older ones make room, and a gap in the sequence says so.
    pub max_queue_size: u32,
}

impl Default for KvEventsConfig {
    fn default() -> Self {
        Self {
            endpoint: "tcp://*:5557".into(),
            replay_endpoint: None,
            topic: String::new(),
            buffer_steps: 10_000,
            max_queue_size: 16_384,
        }
    }
}

/// The JSON object, as users of other engines write it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    enable_kv_cache_events: Option<bool>,
    publisher: Option<String>,
    endpoint: Option<String>,
    replay_endpoint: Option<String>,
    topic: Option<String>,
    buffer_steps: Option<usize>,
    max_queue_size: Option<u32>,
}

/// Most messages or events kept: a limit against typing errors.
const KEPT_MAX: u32 = 10_000_000;

impl KvEventsArgs {
    /// What was asked for; `None` if events are not wanted.
    pub fn config(&self) -> Result<Option<KvEventsConfig>, CliError> {
        let wrong =
            |option: &'static str, what: String| CliError::usage(what, option, "see docs/api.md, \"Block events\"");
        let mut config = KvEventsConfig::default();
        let option = match (&self.kv_events_config, &self.kv_events_endpoint) {
            (None, None) => return Ok(None),
            (None, Some(endpoint)) => {
                config.endpoint.clone_from(endpoint);
                "--kv-events-endpoint"
            }
            (Some(text), _) => {
                const OPTION: &str = "--kv-events-config";
                let written: Written = serde_json::from_str(text).map_err(|e| wrong(OPTION, e.to_string()))?;
                let is_on = match (written.enable_kv_cache_events, written.publisher.as_deref()) {
                    (_, Some("null")) | (Some(false), None | Some("zmq")) => false,
                    (Some(true) | None, None | Some("zmq")) => true,
                    (_, Some(other)) => {
                        return Err(wrong(OPTION, format!("unknown publisher '{other}'; it is zmq or null")));
                    }
                };
                if !is_on {
                    return Ok(None);
                }
                config.endpoint = written.endpoint.unwrap_or(config.endpoint);
                config.replay_endpoint = written.replay_endpoint;
                config.topic = written.topic.unwrap_or_default();
                config.buffer_steps = written.buffer_steps.unwrap_or(config.buffer_steps);
                config.max_queue_size = written.max_queue_size.unwrap_or(config.max_queue_size);
                OPTION
            }
        };
        for endpoint in std::iter::once(&config.endpoint).chain(&config.replay_endpoint) {
            address(endpoint).ok_or_else(|| {
                wrong(option, format!("'{endpoint}' is no address to bind; it must look like tcp://*:5557"))
            })?;
        }
        if config.max_queue_size == 0 || config.max_queue_size > KEPT_MAX || config.buffer_steps > KEPT_MAX as usize {
            let what = format!("max_queue_size must be 1 to {KEPT_MAX}, buffer_steps 0 to {KEPT_MAX}");
            return Err(wrong(option, what));
        }
        Ok(Some(config))
    }
}

/// Host and port, without the wildcard; `None` if it is not an address that can be bound.
pub(super) fn address(endpoint: &str) -> Option<String> {
    let (host, port) = endpoint.strip_prefix("tcp://")?.rsplit_once(':')?;
    port.parse::<u16>().ok()?;
    match host {
        "" => None,
        "*" => Some(format!("0.0.0.0:{port}")),
        host => Some(format!("{host}:{port}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: &str) -> Result<Option<KvEventsConfig>, CliError> {
        KvEventsArgs { kv_events_config: Some(json.to_owned()), kv_events_endpoint: None }.config()
    }

    #[test]
    fn as_other_engines_write_it() {
        let on = of(
            r#"{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:7","topic":"kv","buffer_steps":3}"#,
        );
        let wanted =
            KvEventsConfig { endpoint: "tcp://*:7".into(), topic: "kv".into(), buffer_steps: 3, ..Default::default() };
        assert_eq!(on, Ok(Some(wanted)));
        assert_eq!(of("{}"), Ok(Some(KvEventsConfig::default())));
        for off in [r#"{"enable_kv_cache_events":false}"#, r#"{"publisher":"null"}"#] {
            assert_eq!(of(off), Ok(None), "{off}");
        }
        assert_eq!(KvEventsArgs::default().config(), Ok(None));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for (json, wanted) in [
            (r#"{"hwm":5}"#, "hwm"),
            (r#"{"publisher":"kafka"}"#, "kafka"),
            (r#"{"endpoint":"ipc:///tmp/x"}"#, "ipc:///tmp/x"),
            (r#"{"endpoint":"tcp://*:99999"}"#, "99999"),
            (r#"{"replay_endpoint":"5558"}"#, "5558"),
            (r#"{"max_queue_size":0}"#, "max_queue_size"),
            ("tcp://*:1", "expected"),
        ] {
            let error = of(json).expect_err(json);
            assert!(error.what.contains(wanted) && error.exit_code == 2, "{json}: {error:?}");
        }
    }
}
