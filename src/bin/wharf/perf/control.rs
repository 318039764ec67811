//! What the two ends tell each other besides what they measure: one JSON object a message, over a connection of its own.
//!
//! | from | message | then |
//! |---|---|---|
//! | client | `measure`: the point, and the workers that will connect | `ready`, or `refused` with the reason |
//! | server | `done`: with the errors of its ends | the next `measure` |
//!
//! Each carries the version. Unknown fields are skipped; what is missing or out of range is an error that names it. A message has at most [`LONGEST`] bytes.

use std::time::Duration;

use futures::FutureExt;
use serde_json::{Value, json};
use wharf::{Endpoint, Tag, Worker, WorkerId};

use super::Outcome;
use super::spec::{Spec, Test, parse_progress};

/// Of the messages, and of what both ends do after them.
pub(super) const VERSION: u64 = 1;
const TAG: Tag = Tag(0x7770_6572_6600_0000);
const LONGEST: usize = 64 << 10;
/// Workers that one point may have.
pub(super) const MOST_THREADS: usize = 256;
/// Tasks that one connection may have.
pub(super) const MOST_TASKS: usize = 1024;

/// A control connection.
pub(super) struct Control {
    pub(super) worker: Worker,
    pub(super) endpoint: Endpoint,
}

impl Control {
    pub(super) async fn send(&self, word: &str, mut body: Value) -> Outcome<()> {
        body["wharf_perf"] = VERSION.into();
        body["say"] = word.into();
        let text = body.to_string();
        if text.len() > LONGEST {
            return Err("a control message is too long".into());
        }
        Ok(self.endpoint.tag_send(TAG, text.into_bytes()).await?)
    }

    /// Whether the connection has ended.
    pub(super) fn is_gone(&self) -> bool {
        self.endpoint.closed().now_or_never().is_some()
    }

    /// The next message: its word and its body. An error when the other end has another version, says what is no message, or is gone.
    pub(super) async fn receive(&self) -> Outcome<(String, Value)> {
        let receive = async {
            let received = self.worker.tag_recv(TAG, vec![0; LONGEST]);
            let received = received.await.map_err(|error| error.into_parts().0)?;
            let bytes = received.buffer.get(..received.len).unwrap_or_default();
            let body: Value = serde_json::from_slice(bytes)
                .map_err(|_| "the other end does not speak the language of wharf perf")?;
            match body["wharf_perf"].as_u64() {
                Some(VERSION) => {}
                Some(other) => {
                    return Err(format!(
                        "the other end's wharf perf speaks version {other}, this one {VERSION}: take the same wharf at both"
                    )
                    .into());
                }
                None => {
                    return Err("the other end does not speak the language of wharf perf".into());
                }
            }
            let word = body["say"].as_str().unwrap_or_default().to_owned();
            Ok((word, body))
        };
        // A receive does not end when one of many possible senders does.
        tokio::select! {
            biased;
            message = receive => message,
            why = self.endpoint.closed() => Err(format!("the peer is gone: {why}").into()),
        }
    }

    /// The same, within this time.
    pub(super) async fn receive_within(&self, time: Duration) -> Outcome<(String, Value)> {
        tokio::time::timeout(time, self.receive())
            .await
            .map_err(|_| format!("no answer from the other end for {} s", time.as_secs()))?
    }
}

/// What the other end says to be shown here: without anything that a terminal would obey, and not without end.
pub(super) fn quoted(value: &Value) -> Option<String> {
    let text = value.as_str()?.chars().take(1000);
    Some(text.flat_map(char::escape_debug).collect())
}

/// The point as the other end is told.
pub(super) fn write(spec: &Spec, workers: &[WorkerId]) -> Value {
    let workers: Vec<String> = workers.iter().map(hex).collect();
    json!({
        "test": spec.test.name,
        "size": spec.size,
        "iterations": spec.iterations,
        "time_us": u64::try_from(spec.time.as_micros()).unwrap_or(u64::MAX),
        "window": spec.window,
        "tasks": spec.tasks,
        "memory": [spec.memory[0].to_string(), spec.memory[1].to_string()],
        "progress": spec.progress.to_string(),
        "validate": spec.validate,
        "transport": spec.transport,
        "workers": workers,
    })
}

/// Reads what [`write`] wrote.
pub(super) fn read(body: &Value) -> Outcome<(Spec, Vec<WorkerId>)> {
    let text = |name: &str| {
        body[name]
            .as_str()
            .ok_or_else(|| format!("the request has no {name}"))
    };
    let number = |name: &str, most: u64| {
        body[name]
            .as_u64()
            .filter(|number| *number <= most)
            .ok_or_else(|| format!("the request has no {name} of at most {most}"))
    };
    let memory = |end: usize| -> Outcome<_> {
        let name = body["memory"][end]
            .as_str()
            .ok_or("the request has no memory")?;
        Ok(name.parse()?)
    };
    let spec = Spec {
        test: Test::find(text("test")?)?,
        size: usize::try_from(number("size", 1 << 40)?)?,
        iterations: body["iterations"].as_u64(),
        time: Duration::from_micros(number("time_us", 86_400_000_000)?),
        warm_up: None,
        window: usize::try_from(number("window", 1 << 20)?)?.max(1),
        tasks: usize::try_from(number("tasks", MOST_TASKS as u64)?)?.max(1),
        memory: [memory(0)?, memory(1)?],
        progress: parse_progress(text("progress")?)?,
        validate: body["validate"].as_bool().unwrap_or(false),
        transport: body["transport"].as_str().map(str::to_owned),
    };
    let workers = body["workers"]
        .as_array()
        .ok_or("the request has no workers")?;
    if workers.is_empty() || workers.len() > MOST_THREADS {
        return Err(format!(
            "the request has {} workers, not 1 to {MOST_THREADS}",
            workers.len()
        )
        .into());
    }
    spec.check(workers.len())?;
    let workers = workers
        .iter()
        .map(|id| id.as_str().and_then(unhex).ok_or("no id of a worker"))
        .collect::<Result<_, _>>()?;
    Ok((spec, workers))
}

fn hex(id: &WorkerId) -> String {
    id.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<WorkerId> {
    let value = u128::from_str_radix(text, 16).ok()?;
    (text.len() == 32).then_some(WorkerId(value.to_be_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wharf::Progress;

    fn spec() -> Spec {
        Spec {
            test: Test::find("tag_bw").unwrap(),
            size: 4096,
            iterations: Some(7),
            time: Duration::from_millis(3),
            warm_up: None,
            window: 4,
            tasks: 2,
            memory: ["host".parse().unwrap(), "cuda:1".parse().unwrap()],
            progress: Progress::Busy,
            validate: true,
            transport: Some("shm".to_owned()),
        }
    }

    #[test]
    fn a_point_survives() {
        let ids = [WorkerId([7; 16]), WorkerId([0xab; 16])];
        let (read, workers) = read(&write(&spec(), &ids)).unwrap();
        assert_eq!(format!("{read:?}"), format!("{:?}", spec()));
        assert_eq!(workers, ids);
    }

    #[test]
    fn a_terminal_is_told_nothing() {
        let said = json!("a\u{1b}[2Jb\nc");
        assert_eq!(quoted(&said).as_deref(), Some("a\\u{1b}[2Jb\\nc"));
        assert_eq!(
            quoted(&json!("x".repeat(5000))).map(|text| text.len()),
            Some(1000)
        );
        assert_eq!(quoted(&json!(7)), None);
    }

    #[test]
    fn what_is_no_point_is_refused() {
        let good = write(&spec(), &[WorkerId([7; 16])]);
        for (field, bad) in [
            ("test", json!("fly")),
            ("size", json!(-1)),
            ("size", json!(1_u64 << 50)),
            ("window", json!(null)),
            ("memory", json!(["host"])),
            ("progress", json!("fast")),
            ("workers", json!([])),
            ("workers", json!(["7"])),
            ("tasks", json!(1_u64 << 40)),
        ] {
            let mut body = good.clone();
            body[field] = bad;
            assert!(read(&body).is_err(), "{field}");
        }
        // Messages of no bytes are still operations.
        let mut body = write(&spec(), &[WorkerId([7; 16]); MOST_THREADS]);
        for (field, much) in [("size", 0), ("window", 1 << 20), ("tasks", MOST_TASKS)] {
            body[field] = json!(much);
        }
        assert!(read(&body).is_err());
        assert!(read(&json!({})).is_err());
        assert!(read(&json!(5)).is_err());
    }
}
