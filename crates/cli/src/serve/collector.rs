//! Pushes metrics to an OpenTelemetry collector: OTLP over HTTP, as protobuf.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use memgauge_console::outcome::usage;
use memgauge_export::{Instrument, InstrumentValue, otlp_metrics};
use memgauge_host::facts;
use memgauge_serve::{Family, MetricKind, MetricValue, Push};
use ureq::Agent;

/// Interval between two pushes.
const PUSH_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum duration of a push.
const PUSH_TIMEOUT: Duration = Duration::from_secs(5);

/// Endpoint of a collector. An address without a path gets the default one.
fn url(endpoint: &str) -> anyhow::Result<String> {
    let (scheme, rest) = endpoint.split_once("://").unwrap_or(("http", endpoint));
    if !scheme.eq_ignore_ascii_case("http") {
        return Err(usage(format!(
            "failed to read --otlp {endpoint}: `{scheme}` is not supported: give an address of HTTP, \
             as in http://127.0.0.1:4318; a collector on this machine can send encrypted"
        )));
    }
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let port = host
        .rsplit_once(':')
        .filter(|(_, port)| !port.ends_with(']'))
        .map(|(_, port)| port);
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    let is_bad = |c: char| c.is_whitespace() || c.is_control();
    let has_name = !host.is_empty() && !host.starts_with(':');
    if !has_name || rest.contains(is_bad) || port.is_some_and(|port| !is_port(port)) {
        let why = format!(
            "failed to read --otlp {endpoint}: expected http://HOST:PORT, a port from 1 to 65535"
        );
        return Err(usage(why));
    }
    let path = match path {
        "" => "v1/metrics",
        path => path,
    };
    Ok(format!("http://{host}/{path}"))
}

/// Converts metrics to OTLP. OpenMetrics names become OpenTelemetry names: `memgauge_io_bytes` is
/// `memgauge.io_bytes`.
fn instrument(family: &Family) -> Instrument {
    let unit = match family.name.rsplit_once('_') {
        Some((_, "bytes")) => "By",
        Some((_, "seconds")) => "s",
        _ => "1",
    };
    let reading = |(labels, value): &(memgauge_serve::Labels, MetricValue)| {
        let labels = labels.iter();
        let labels = labels.map(|(name, value)| ((*name).to_owned(), value.clone()));
        let value = match *value {
            MetricValue::Count(count) => InstrumentValue::Count(count),
            MetricValue::Seconds(seconds) => InstrumentValue::Number(seconds),
        };
        (labels.collect(), value)
    };
    Instrument {
        name: family.name.replacen('_', ".", 1),
        description: family.help.to_owned(),
        unit: unit.to_owned(),
        is_monotonic_sum: family.kind == MetricKind::Counter,
        readings: family.samples.iter().map(reading).collect(),
    }
}

fn unix_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| since.as_nanos() as u64)
}

/// Pushes to an endpoint until the service ends.
pub(super) fn push(endpoint: &str) -> anyhow::Result<Push> {
    let url = url(endpoint)?;
    let agent: Agent = Agent::config_builder()
        .timeout_global(Some(PUSH_TIMEOUT))
        // A redirected request would arrive without its body.
        .max_redirects(0)
        .build()
        .into();
    let started = unix_ns();
    let resource = [
        ("service.name", "memgauge".to_owned()),
        ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
        ("host.name", facts().name),
        ("os.type", "linux".to_owned()),
    ];
    let endpoint = url.clone();
    let send = move |families: &[Family]| {
        let instruments: Vec<Instrument> = families.iter().map(instrument).collect();
        let body = otlp_metrics(&resource, &instruments, [started, unix_ns()]);
        let request = agent.post(&url);
        let request = request.header("Content-Type", "application/x-protobuf");
        let answer = request.send(&body).map_err(|e| e.to_string())?;
        match answer.status() {
            status if status.is_success() => Ok(()),
            status => Err(format!("http status: {}", status.as_u16())),
        }
    };
    let tell = move |sent: &Result<(), String>| match sent {
        Ok(()) => eprintln!("memgauge: metrics reach {endpoint} again"),
        Err(why) => eprintln!(
            "memgauge: failed to send metrics to {endpoint}: {why}: trying again every {} s",
            PUSH_INTERVAL.as_secs()
        ),
    };
    Ok(Push {
        every: PUSH_INTERVAL,
        send: Box::new(send),
        report: Box::new(tell),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_point_is_an_address_of_http() {
        let of = |text| url(text).map_err(|e| e.to_string());
        for text in [
            "127.0.0.1:4318",
            "http://127.0.0.1:4318",
            "http://127.0.0.1:4318/",
        ] {
            assert_eq!(of(text).unwrap(), "http://127.0.0.1:4318/v1/metrics");
        }
        assert_eq!(
            of("http://c:1/otlp/v1/metrics").unwrap(),
            "http://c:1/otlp/v1/metrics"
        );
        assert_eq!(
            of("HTTP://[::1]:4318").unwrap(),
            "http://[::1]:4318/v1/metrics"
        );
        for text in [
            "https://c:4318",
            "unix:///x",
            "http://",
            "",
            "/x",
            "a b",
            ":4318",
            "c:0",
            "c:65536",
            "c:x",
            "c:4318/a b",
        ] {
            assert!(of(text).unwrap_err().contains("--otlp"), "{text}");
        }
    }
}
