//! What `ucx_perftest` does not measure: signals, sleepers, idleness and registration.

use std::time::{Duration, Instant};

use wharf::Access;
use wharf::memory::{AddressRange, MlockRegistrar};

use super::Outcome;
use super::laps::{Figures, Laps};
use super::memory::{pattern, verify};
use super::side::{MOST_VALUES, Side, Use};
use super::spec::{Spec, Verb};

/// How long the receiver has slept before each message.
const GAP: Duration = Duration::from_micros(1500);
/// The stamp that ends a measurement.
const LAST: u64 = u64::MAX;
/// A counter at or beyond this ends a measurement.
const STOP: u64 = 1 << 48;
/// Before wake-ups are counted.
const SETTLE: Duration = Duration::from_millis(100);

/// A put with a signal, to the task that waits for it, which does the same.
pub(super) async fn signal(side: &Side) -> Outcome<Option<Figures>> {
    let (endpoint, size, validate) = (&side.endpoint, side.spec.size, side.spec.validate);
    let region = side
        .expose(side.memory().allocate(&side.context, size).await?)
        .await?;
    let counter = side.worker.counter().await?;
    side.send_descriptor(&counter.descriptor()?).await?;
    let (remote, theirs) = (side.import().await?, side.import().await?);
    let mut message = side.message().await?;
    let mut signals = 0;
    let look = |number: u64| -> Outcome<()> {
        let mut found = vec![0; size];
        region.read_at(0, &mut found)?;
        let wanted = pattern(u8::from(side.is_asker()), number, size);
        verify("put", number, &found, &wanted)
    };
    if !side.is_asker() {
        loop {
            signals += 1;
            if counter.wait(signals).await? >= STOP {
                break;
            }
            if validate {
                look(signals)?;
                message = side.fresh(signals).await?;
            }
            let put = endpoint.put(message.clone(), remote.clone());
            put.signal(&theirs).await?;
        }
        side.meet().await?;
        return Ok(None);
    }
    let mut laps = side.laps()?;
    while let Some(operations) = laps.next() {
        for _ in 0..operations {
            signals += 1;
            if validate {
                message = side.fresh(signals).await?;
            }
            let put = endpoint.put(message.clone(), remote.clone());
            put.signal(&theirs).await?;
            counter.wait(signals).await?;
            if validate {
                look(signals)?;
            }
        }
    }
    endpoint.signal(&theirs, STOP).await?;
    side.meet().await?;
    Ok(Some(laps.finish()))
}

/// Stamps to a task that sleeps; the asker is awake all the time. Both ends read one clock.
pub(super) async fn parked(side: &Side) -> Outcome<Option<Figures>> {
    if !side.is_asker() {
        let mut delays = Vec::new();
        let mut buffer = vec![0; 8];
        loop {
            let received = side.worker.tag_recv(side.from(Use::Data), buffer).await?;
            buffer = received.buffer;
            let sent =
                u64::from_le_bytes(*buffer.first_chunk().ok_or("a message without a stamp")?);
            if sent == LAST {
                break;
            }
            // No more are handed over.
            if delays.len() < MOST_VALUES {
                delays.push(stamp().saturating_sub(sent) as f64);
            }
        }
        side.give(&delays).await?;
        return Ok(None);
    }
    let send = |stamp: u64| {
        let bytes = stamp.to_le_bytes().to_vec();
        side.endpoint.tag_send(side.to(Use::Data), bytes)
    };
    let begin = Instant::now();
    let mut sent = 0;
    loop {
        spin_for(GAP);
        side.beat.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        send(stamp()).await?;
        sent += 1;
        let over = match side.spec.iterations {
            Some(iterations) => sent >= iterations,
            None => begin.elapsed() >= side.spec.time,
        };
        if over {
            break;
        }
    }
    spin_for(GAP);
    send(LAST).await?;
    let delays = side.take().await?;
    // The first ones warm up, where there are enough.
    let delays = delays.get(delays.len() / 10..).unwrap_or_default();
    Figures::of(delays).map(Some)
}

/// The answerer waits for a message, and counts how often its process wakes up meanwhile. The figures are wake-ups a second, in place of nanoseconds.
pub(super) async fn idle(side: &Side) -> Outcome<Option<Figures>> {
    let time = side.spec.time;
    if side.is_asker() {
        tokio::time::sleep(SETTLE + time + SETTLE / 2).await;
        side.say(Use::Data).await?;
        let rates = side.take().await?;
        return Figures::of(&rates).map(Some);
    }
    let count = std::thread::spawn(move || -> Outcome<f64> {
        std::thread::sleep(SETTLE);
        let (before, begin) = (wake_ups()?, Instant::now());
        std::thread::sleep(time);
        let wake_ups = wake_ups()?.saturating_sub(before);
        Ok(wake_ups as f64 / begin.elapsed().as_secs_f64())
    });
    side.hear(Use::Data).await?;
    let rate = count.join().map_err(|_| "counting wake-ups failed")??;
    side.give(&[rate]).await?;
    Ok(None)
}

/// Voluntary context switches of all other threads of this process.
fn wake_ups() -> Outcome<u64> {
    let own = nix::unistd::gettid().to_string();
    let mut sum = 0;
    for task in std::fs::read_dir("/proc/self/task")? {
        let task = task?;
        if task.file_name() == own.as_str() {
            continue;
        }
        // A thread that has ended meanwhile slept no more.
        let Ok(status) = std::fs::read_to_string(task.path().join("status")) else {
            continue;
        };
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        sum += line
            .and_then(|text| text.trim().parse::<u64>().ok())
            .unwrap_or(0);
    }
    Ok(sum)
}

/// Pins memory through a registration cache: what it does not know, or what it does.
pub(super) async fn register(spec: &Spec, mut laps: Laps) -> Outcome<Figures> {
    let context = Side::context(spec)?;
    let cache = context.registration_cache(MlockRegistrar::new())?;
    let bytes = vec![1_u8; spec.size];
    let range = AddressRange::of(&bytes);
    let access = Access::READ | Access::WRITE;
    if spec.test.verb == Verb::RegisterCached {
        let held = cache.get(range, access).await?;
        while let Some(operations) = laps.next() {
            for _ in 0..operations {
                drop(cache.get(range, access).await?);
            }
        }
        drop(held);
        return Ok(laps.finish());
    }
    let end = Instant::now() + spec.time;
    let mut times = Vec::new();
    loop {
        let begin = Instant::now();
        let registration = cache.get(range, access).await?;
        times.push(begin.elapsed().as_nanos() as f64);
        laps.beat();
        drop(registration);
        cache.invalidate(range);
        cache.flush().await;
        let over = match spec.iterations {
            Some(iterations) => times.len() as u64 >= iterations,
            None => Instant::now() >= end,
        };
        if over {
            return Figures::of(&times);
        }
    }
}

/// Nanoseconds of a clock that all processes of a host share.
fn stamp() -> u64 {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).map_or(0, |time| {
        time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
    })
}

fn spin_for(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}
