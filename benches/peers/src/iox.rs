//! iceoryx2: publish and subscribe between two processes, both spinning, payload copied in and out.

use std::hint::spin_loop;

use iceoryx2::prelude::*;

use crate::Outcome;
use crate::half::{Half, Laps};
use crate::spec::Verb;

const STOP: u64 = u64::MAX;

/// Nanoseconds one way for 8 bytes.
pub(crate) fn run(half: &mut Half) -> Outcome<f64> {
    if half.spec.verb != Verb::Latency || half.spec.size != 8 {
        return Err("iceoryx2 is measured for the latency of 8 bytes alone".into());
    }
    set_log_level(LogLevel::Error);
    let name = if half.is_a() {
        let name = format!("wharf-peers-{}", std::process::id());
        half.link.send(&name)?;
        name
    } else {
        half.link.receive()?
    };
    let node = NodeBuilder::new().create::<ipc::Service>()?;
    let service = |direction: &str| -> Outcome<_> {
        Ok(node
            .service_builder(&format!("{name}-{direction}").as_str().try_into()?)
            .publish_subscribe::<u64>()
            .open_or_create()?)
    };
    let (there, back) = (service("there")?, service("back")?);
    let (out, into) = if half.is_a() {
        (&there, &back)
    } else {
        (&back, &there)
    };
    let publisher = out.publisher_builder().create()?;
    let subscriber = into.subscriber_builder().create()?;
    half.barrier()?;
    // A first message each makes both ends know each other before anything is timed.
    let send = |value: u64| -> Outcome<()> {
        publisher.loan_uninit()?.write_payload(value).send()?;
        Ok(())
    };
    let receive = || -> Outcome<u64> {
        loop {
            if let Some(sample) = subscriber.receive()? {
                return Ok(*sample);
            }
            spin_loop();
        }
    };
    let result = if half.is_a() {
        let mut laps = Laps::start(&half.spec);
        loop {
            for n in 0..laps.batch() {
                send(n as u64)?;
                receive()?;
            }
            if !laps.lap() {
                send(STOP)?;
                break laps.median() / 2.0;
            }
        }
    } else {
        loop {
            let value = receive()?;
            if value == STOP {
                break 0.0;
            }
            send(value)?;
        }
    };
    half.barrier()?;
    Ok(result)
}
