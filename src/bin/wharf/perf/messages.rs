//! Tagged messages, active messages and byte streams: what both ends do.
//!
//! The asker ends a measurement with a message of another length ([`Side::stop_len`]), on a stream with a first byte of its own ([`STOP`]).

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use wharf::{ActiveMessage, AmInbox, Buffer, BufferMut, ByteStream, Received};

use super::Outcome;
use super::laps::Figures;
use super::memory::{Memory, pattern, verify};
use super::side::{Side, Use, Window};
use super::spec::Verb;

/// The first byte of every write on a stream.
const GO: u8 = 0;
/// The first byte of the last one.
const STOP: u8 = 255;

/// Messages there and back.
pub(super) async fn tag(side: &Side) -> Outcome<Option<Figures>> {
    if side.is_asker() {
        tag_ping(side).await.map(Some)
    } else {
        tag_pong(side).await.map(|()| None)
    }
}

async fn tag_ping(side: &Side) -> Outcome<Figures> {
    let (endpoint, worker, validate) = (&side.endpoint, &side.worker, side.spec.validate);
    let (to, from) = (side.to(Use::Data), side.from(Use::Data));
    let is_sync = side.spec.test.verb == Verb::TagSync;
    let mut message = side.message().await?;
    let mut answer = side.space().await?;
    let mut number = 0;
    let mut laps = side.laps()?;
    while let Some(operations) = laps.next() {
        for _ in 0..operations {
            if validate {
                message = side.fresh(number).await?;
            }
            let send = endpoint.tag_send(to, message.clone());
            let send = if is_sync { send.sync() } else { send };
            send.await?;
            let received = worker.tag_recv(from, answer).await?;
            answer = received.buffer;
            if validate {
                answer = side.inspect(number, answer, received.len).await?;
                number += 1;
            }
        }
    }
    endpoint.tag_send(to, side.stop()).await?;
    Ok(laps.finish())
}

async fn tag_pong(side: &Side) -> Outcome<()> {
    let (endpoint, worker, validate) = (&side.endpoint, &side.worker, side.spec.validate);
    let (to, from) = (side.to(Use::Data), side.from(Use::Data));
    let is_sync = side.spec.test.verb == Verb::TagSync;
    let mut message = side.message().await?;
    let mut buffer = side.space().await?;
    let (mut number, stop) = (0, side.stop_len());
    loop {
        let received = worker.tag_recv(from, buffer).await?;
        if received.len == stop {
            return Ok(());
        }
        buffer = received.buffer;
        if validate {
            buffer = side.inspect(number, buffer, received.len).await?;
            message = side.fresh(number).await?;
            number += 1;
        }
        let send = endpoint.tag_send(to, message.clone());
        let send = if is_sync { send.sync() } else { send };
        send.await?;
    }
}

/// Messages one way.
pub(super) async fn tag_flood(side: &Side) -> Outcome<Option<Figures>> {
    if !side.is_asker() {
        tag_drain(side).await?;
        side.say(Use::Acknowledge).await?;
        return Ok(None);
    }
    let (endpoint, validate) = (&side.endpoint, side.spec.validate);
    let (to, limit) = (side.to(Use::Data), side.spec.window);
    let is_sync = side.spec.test.verb == Verb::TagSyncFlood;
    let mut message = side.message().await?;
    let mut window = Window::new(limit);
    let mut number = 0;
    let mut laps = side.laps()?;
    while let Some(operations) = laps.next() {
        for _ in 0..operations {
            if validate {
                message = side.fresh(number).await?;
                number += 1;
            }
            let send = || {
                let send = endpoint.tag_send(to, message.clone());
                if is_sync { send.sync() } else { send }
            };
            if limit == 1 {
                send().await?;
            } else {
                let start = || {
                    let posted = send().post();
                    posted.map_err(|error| error.into_parts().0)
                };
                window.post(start, endpoint).await?;
            }
        }
    }
    window.finish().await?;
    endpoint.tag_send(to, side.stop()).await?;
    side.hear(Use::Acknowledge).await?;
    Ok(Some(laps.finish_arrived()))
}

/// As many receives posted as the sender has messages in flight.
async fn tag_drain(side: &Side) -> Outcome<()> {
    let (worker, validate) = (&side.worker, side.spec.validate);
    let (from, stop) = (side.from(Use::Data), side.stop_len());
    let mut number = 0;
    if side.spec.window == 1 {
        let mut buffer = side.space().await?;
        loop {
            let received = worker.tag_recv(from, buffer).await?;
            if received.len == stop {
                return Ok(());
            }
            buffer = received.buffer;
            if validate {
                buffer = side.inspect(number, buffer, received.len).await?;
                number += 1;
            }
        }
    }
    let post = |buffer: BufferMut| worker.tag_recv(from, buffer).post();
    let mut posted = Window::<Received<BufferMut>>::new(side.spec.window);
    while !posted.is_full() {
        posted.add(post(side.space().await?));
    }
    while let Some(oldest) = posted.oldest() {
        let received = oldest.await?;
        if received.len == stop {
            break;
        }
        let mut buffer = received.buffer;
        if validate {
            buffer = side.inspect(number, buffer, received.len).await?;
            number += 1;
        }
        posted.add(post(buffer));
    }
    Ok(())
}

/// Active messages there and back.
pub(super) async fn am(side: &Side, mut inbox: AmInbox) -> Outcome<Option<Figures>> {
    let (endpoint, validate) = (&side.endpoint, side.spec.validate);
    let (to, stop) = (side.am(true), side.stop_len());
    let mut message = side.message().await?;
    let mut space = Some(side.space().await?);
    let mut number = 0;
    if !side.is_asker() {
        loop {
            let received = inbox.recv().await.ok_or(ENDED)?;
            if received.len() == stop {
                return Ok(None);
            }
            take(side, received, &mut space, number).await?;
            if validate {
                message = side.fresh(number).await?;
                number += 1;
            }
            endpoint.am_send(to, Buffer::new(), message.clone()).await?;
        }
    }
    let mut laps = side.laps()?;
    while let Some(operations) = laps.next() {
        for _ in 0..operations {
            if validate {
                message = side.fresh(number).await?;
            }
            endpoint.am_send(to, Buffer::new(), message.clone()).await?;
            let received = inbox.recv().await.ok_or(ENDED)?;
            take(side, received, &mut space, number).await?;
            number += 1;
        }
    }
    endpoint.am_send(to, Buffer::new(), side.stop()).await?;
    Ok(Some(laps.finish()))
}

const ENDED: &str = "the inbox of active messages has ended";

/// Takes a message where it is, or where it has to go: one that was announced is fetched, and device memory is what it says.
async fn take(
    side: &Side,
    message: ActiveMessage,
    space: &mut Option<BufferMut>,
    number: u64,
) -> Outcome<()> {
    let validate = side.spec.validate;
    if !message.is_announced() && side.memory().is_host() {
        if validate {
            side.compare("message", number, message.data().unwrap_or_default())?;
        }
        return Ok(());
    }
    let buffer = space.take().ok_or("no space for a message")?;
    let len = message.len();
    let mut buffer = message
        .receive(buffer)
        .await
        .map_err(|error| error.into_parts().0)?
        .buffer;
    if validate {
        buffer = side.inspect(number, buffer, len).await?;
    }
    *space = Some(buffer);
    Ok(())
}

/// Active messages one way.
pub(super) async fn am_flood(side: &Side, mut inbox: AmInbox) -> Outcome<Option<Figures>> {
    let (endpoint, validate) = (&side.endpoint, side.spec.validate);
    let (to, limit) = (side.am(true), side.spec.window);
    let mut number = 0;
    if !side.is_asker() {
        let mut space = Some(side.space().await?);
        loop {
            let received = inbox.recv().await.ok_or(ENDED)?;
            if received.len() == side.stop_len() {
                break;
            }
            take(side, received, &mut space, number).await?;
            number += 1;
        }
        side.say(Use::Acknowledge).await?;
        return Ok(None);
    }
    let mut message = side.message().await?;
    let mut window = Window::new(limit);
    let mut laps = side.laps()?;
    while let Some(operations) = laps.next() {
        for _ in 0..operations {
            if validate {
                message = side.fresh(number).await?;
                number += 1;
            }
            if limit == 1 {
                endpoint.am_send(to, Buffer::new(), message.clone()).await?;
            } else {
                let start = || {
                    let posted = endpoint.am_send(to, Buffer::new(), message.clone()).post();
                    posted.map_err(|error| error.into_parts().0)
                };
                window.post(start, endpoint).await?;
            }
        }
    }
    window.finish().await?;
    endpoint.am_send(to, Buffer::new(), side.stop()).await?;
    side.hear(Use::Acknowledge).await?;
    Ok(Some(laps.finish_arrived()))
}

async fn open(side: &Side) -> Outcome<ByteStream> {
    Ok(if side.is_asker() {
        side.endpoint.stream().await?
    } else {
        side.endpoint.accept_stream().await?
    })
}

/// What is written as number `number`.
fn written(side: &Side, number: u64, first: u8) -> Vec<u8> {
    let direction = u8::from(!side.is_asker());
    let mut bytes = pattern(direction, number, side.spec.size);
    bytes[0] = first;
    bytes
}

/// Whether this is what the other end wrote.
fn check(side: &Side, number: u64, found: &[u8]) -> Outcome<()> {
    let mut wanted = pattern(u8::from(side.is_asker()), number, side.spec.size);
    wanted[0] = GO;
    verify("write", number, found, &wanted)
}

/// Bytes there and back on a stream.
pub(super) async fn stream(side: &Side) -> Outcome<Option<Figures>> {
    let validate = side.spec.validate;
    let mut stream = open(side).await?;
    let mut message = written(side, 0, GO);
    let mut answer = vec![0; side.spec.size];
    let mut number = 0;
    if !side.is_asker() {
        loop {
            stream.read_exact(&mut answer).await?;
            if answer[0] == STOP {
                return Ok(None);
            }
            if validate {
                check(side, number, &answer)?;
                message = written(side, number, GO);
                number += 1;
            }
            stream.write_all(&message).await?;
        }
    }
    let mut laps = side.laps()?;
    while let Some(operations) = laps.next() {
        for _ in 0..operations {
            if validate {
                message = written(side, number, GO);
            }
            stream.write_all(&message).await?;
            stream.read_exact(&mut answer).await?;
            if validate {
                check(side, number, &answer)?;
                number += 1;
            }
        }
    }
    stream.write_all(&written(side, 0, STOP)).await?;
    stream.flush().await?;
    Ok(Some(laps.finish()))
}

/// Bytes one way on a stream; from memory that the library allocated without a copy into the stream.
pub(super) async fn stream_flood(side: &Side) -> Outcome<Option<Figures>> {
    let validate = side.spec.validate;
    let mut stream = open(side).await?;
    let mut number = 0;
    if !side.is_asker() {
        let mut bytes = vec![0; side.spec.size];
        loop {
            stream.read_exact(&mut bytes).await?;
            if bytes[0] == STOP {
                break;
            }
            if validate {
                check(side, number, &bytes)?;
                number += 1;
            }
        }
        stream.write_all(&[GO]).await?;
        stream.flush().await?;
        return Ok(None);
    }
    let mut message = written(side, 0, GO);
    let owned = match side.memory() {
        Memory::Host => None,
        memory => Some(
            memory
                .filled(&side.context, &side.worker, &message)
                .await?
                .freeze(),
        ),
    };
    let mut laps = side.laps()?;
    while let Some(operations) = laps.next() {
        for _ in 0..operations {
            if validate {
                message = written(side, number, GO);
                number += 1;
                stream.write_all(&message).await?;
            } else if let Some(owned) = &owned {
                stream.write_buffer(owned.clone()).await?;
            } else {
                stream.write_all(&message).await?;
            }
        }
    }
    stream.write_all(&written(side, 0, STOP)).await?;
    stream.flush().await?;
    stream.read_u8().await?;
    Ok(Some(laps.finish_arrived()))
}
