//! Puts, gets and atomic operations: what both ends do. The answerer shows memory and waits for the end, but for the puts there and back.

use wharf::{BufferMut, Fetched, ReceiveBuffer, Region, RemoteRegion};

use super::Outcome;
use super::laps::{Figures, Laps};
use super::memory::{Memory, look, pattern, verify};
use super::side::{Role, Side, Use, Window};
use super::spec::Verb;

/// Ends the puts there and back.
const END: u64 = u64::MAX;

/// Each end puts into the other's memory and looks at its own until the other's put is there: the last word is written last. With validation
/// that word is a put of its own, behind the rest.
pub(super) async fn put(side: &Side) -> Outcome<Option<Figures>> {
    let (size, validate) = (side.spec.size, side.spec.validate);
    // Ends at a word.
    let skip = size.next_multiple_of(8) - size;
    let len = skip + size;
    let last = len - 8;
    let region = side
        .expose(side.memory().allocate(&side.context, len).await?)
        .await?;
    region.store(last, 0_u64)?;
    side.meet().await?;
    let remote = side.import().await?;
    let mut message = vec![0; size];
    let target = remote.slice(skip..);
    let send = async |message: &mut [u8], number: u64| -> Outcome<()> {
        let at = message.len() - 8;
        if validate {
            let direction = u8::from(!side.is_asker());
            message[..at].copy_from_slice(&pattern(direction, number, at));
            if at > 0 {
                let rest = remote.slice(skip..last);
                side.endpoint.put(message[..at].to_vec(), rest).await?;
            }
            let word = number.to_le_bytes().to_vec();
            side.endpoint.put(word, remote.slice(last..)).await?;
            return Ok(());
        }
        message[at..].copy_from_slice(&number.to_le_bytes());
        let put = side.endpoint.put(message.to_vec(), target.clone());
        put.local().await?;
        Ok(())
    };
    let mut number = 0;
    if side.role == Role::Answerer {
        loop {
            number += 1;
            if seen(side, &region, last, number).await? == END {
                break;
            }
            if validate {
                look_at(side, &region, skip, last - skip, number)?;
            }
            send(&mut message, number).await?;
        }
        side.meet().await?;
        return Ok(None);
    }
    let mut laps = side.laps()?;
    while let Some(operations) = laps.next() {
        for _ in 0..operations {
            number += 1;
            send(&mut message, number).await?;
            seen(side, &region, last, number).await?;
            if validate {
                look_at(side, &region, skip, last - skip, number)?;
            }
        }
    }
    let end = END.to_le_bytes().to_vec();
    side.endpoint.put(end, remote.slice(last..)).await?;
    side.meet().await?;
    Ok(Some(laps.finish()))
}

/// Looks until the number is there. Where the target has to take part in a put, it does so now and then.
async fn seen(side: &Side, region: &Region, at: usize, number: u64) -> Outcome<u64> {
    let turns = if side.spec.is_self() { 1 } else { 256 };
    for look in 1_u64.. {
        let found = region.load::<u64>(at)?;
        if found == number || found == END {
            return Ok(found);
        }
        if look.is_multiple_of(turns) {
            tokio::task::yield_now().await;
        }
    }
    Ok(END)
}

fn look_at(side: &Side, region: &Region, begin: usize, len: usize, number: u64) -> Outcome<()> {
    let mut found = vec![0; len];
    region.read_at(begin, &mut found)?;
    let wanted = pattern(u8::from(side.is_asker()), number, len);
    verify("put", number, &found, &wanted)
}

/// The answerer's part in all that follows: shows memory, waits for the end, and gives it back.
async fn lend(side: &Side, buffer: BufferMut) -> Outcome<BufferMut> {
    let region = side.expose(buffer).await?;
    side.hear(Use::Data).await?;
    Ok(region.unexpose().await)
}

/// Puts one way.
pub(super) async fn put_flood(side: &Side) -> Outcome<Option<Figures>> {
    let (endpoint, size) = (&side.endpoint, side.spec.size);
    if !side.is_asker() {
        let buffer = lend(side, side.memory().allocate(&side.context, size).await?).await?;
        if side.spec.validate {
            let (_, found) = look(&side.worker, buffer, size).await?;
            verify("put", 0, &found, &pattern(0, 0, size))?;
        }
        side.say(Use::Acknowledge).await?;
        return Ok(None);
    }
    let remote = side.import().await?;
    let message = side.message().await?;
    let limit = side.spec.window;
    let mut window = Window::new(limit);
    let mut laps = side.laps()?;
    while let Some(operations) = laps.next() {
        for _ in 0..operations {
            if limit == 1 {
                endpoint.put(message.clone(), remote.clone()).await?;
            } else {
                let start = || {
                    let posted = endpoint.put(message.clone(), remote.clone()).post();
                    posted.map_err(|error| error.into_parts().0)
                };
                window.post(start, endpoint).await?;
            }
        }
    }
    window.finish().await?;
    endpoint.flush().await?;
    let figures = laps.finish_arrived();
    side.say(Use::Data).await?;
    side.hear(Use::Acknowledge).await?;
    Ok(Some(figures))
}

/// One-sided reads.
pub(super) async fn get(side: &Side) -> Outcome<Option<Figures>> {
    let (endpoint, size, validate) = (&side.endpoint, side.spec.size, side.spec.validate);
    if !side.is_asker() {
        let bytes = pattern(1, 0, size);
        let buffer = side
            .memory()
            .filled(&side.context, &side.worker, &bytes)
            .await?;
        lend(side, buffer).await?;
        return Ok(None);
    }
    let remote = side.import().await?;
    let wanted = pattern(1, 0, size);
    let check = async |buffer: BufferMut| -> Outcome<BufferMut> {
        let (buffer, found) = look(&side.worker, buffer, size).await?;
        verify("get", 0, &found, &wanted)?;
        super::memory::fill(&side.worker, buffer, &vec![0; size]).await
    };
    let allocate = || side.memory().allocate(&side.context, size);
    let mut laps = side.laps()?;
    if side.spec.window == 1 && validate {
        let mut buffer = allocate().await?;
        while let Some(operations) = laps.next() {
            for _ in 0..operations {
                buffer = check(endpoint.get(remote.clone(), buffer).await?).await?;
            }
        }
    } else if side.spec.window == 1 {
        // As a program that knows its memory does it: by that memory's own type.
        match side.memory() {
            Memory::Allocated => {
                let buffer = side.context.allocate(size).await?;
                gets(side, &remote, buffer, &mut laps).await?;
            }
            _ => gets(side, &remote, allocate().await?, &mut laps).await?,
        }
    } else {
        let mut window = Window::<Fetched<BufferMut>>::new(side.spec.window);
        while let Some(operations) = laps.next() {
            for _ in 0..operations {
                let buffer = match window.is_full().then(|| window.oldest()).flatten() {
                    Some(oldest) => {
                        let got = oldest.await?;
                        if validate { check(got).await? } else { got }
                    }
                    None => allocate().await?,
                };
                let posted = endpoint.get(remote.clone(), buffer).post();
                window.add(posted.map_err(|error| error.into_parts().0)?);
            }
        }
        while let Some(oldest) = window.oldest() {
            let got = oldest.await?;
            if validate {
                check(got).await?;
            }
        }
    }
    let figures = laps.finish_arrived();
    side.say(Use::Data).await?;
    Ok(Some(figures))
}

/// Reads into one buffer, one at a time.
async fn gets<B: ReceiveBuffer + Unpin>(
    side: &Side,
    remote: &RemoteRegion,
    mut buffer: B,
    laps: &mut Laps,
) -> Outcome<()> {
    while let Some(operations) = laps.next() {
        for _ in 0..operations {
            let got = side.endpoint.get(remote.clone(), buffer).await;
            buffer = got.map_err(|error| error.into_parts().0)?;
        }
    }
    Ok(())
}

/// Atomic operations on a word.
pub(super) async fn atomic(side: &Side) -> Outcome<Option<Figures>> {
    if !side.is_asker() {
        let buffer = side.memory().allocate(&side.context, 8).await?;
        let buffer = super::memory::fill(&side.worker, buffer, &[0; 8]).await?;
        lend(side, buffer).await?;
        return Ok(None);
    }
    match side.spec.size {
        4 => narrow(side).await,
        _ => wide(side).await,
    }
    .map(Some)
}

macro_rules! words {
    ($name:ident, $word:ty) => {
        async fn $name(side: &Side) -> Outcome<Figures> {
            let remote = side.import().await?;
            let (verb, validate, limit) =
                (side.spec.test.verb, side.spec.validate, side.spec.window);
            // What the word holds, as far as is known here.
            let mut held: $word = 0;
            let check = |found: $word, held: $word| -> Outcome<()> {
                if validate && found != held {
                    return Err(format!("the word held {found} instead of {held}").into());
                }
                Ok(())
            };
            let mut adds = Window::<()>::new(limit);
            let mut fetches = Window::<$word>::new(limit);
            let mut laps = side.laps()?;
            while let Some(operations) = laps.next() {
                // A loop for each, that awaits its own future: one that is moved first is copied for each operation.
                match verb {
                    Verb::Add if limit == 1 => {
                        for _ in 0..operations {
                            remote.add(0, 1 as $word).await?;
                            held = held.wrapping_add(1);
                        }
                    }
                    Verb::FetchAdd if limit == 1 => {
                        for _ in 0..operations {
                            check(remote.fetch_add(0, 1 as $word).await?, held)?;
                            held = held.wrapping_add(1);
                        }
                    }
                    Verb::Swap if limit == 1 => {
                        for _ in 0..operations {
                            let next = held.wrapping_add(1);
                            check(remote.swap(0, next).await?, held)?;
                            held = next;
                        }
                    }
                    _ if limit == 1 => {
                        for _ in 0..operations {
                            let next = held.wrapping_add(1);
                            check(remote.compare_swap(0, held, next).await?, held)?;
                            held = next;
                        }
                    }
                    Verb::Add => {
                        for _ in 0..operations {
                            let start = || remote.add(0, 1 as $word).post();
                            adds.post(start, &side.endpoint).await?;
                            held = held.wrapping_add(1);
                        }
                    }
                    _ => {
                        for _ in 0..operations {
                            if fetches.is_full()
                                && let Some(oldest) = fetches.oldest()
                            {
                                oldest.await?;
                            }
                            let next = held.wrapping_add(1);
                            fetches.add(match verb {
                                Verb::FetchAdd => remote.fetch_add(0, 1 as $word).post()?,
                                Verb::Swap => remote.swap(0, next).post()?,
                                _ => remote.compare_swap(0, held, next).post()?,
                            });
                            held = next;
                        }
                    }
                }
            }
            adds.finish().await?;
            while let Some(oldest) = fetches.oldest() {
                oldest.await?;
            }
            side.endpoint.flush().await?;
            let figures = laps.finish_arrived();
            if validate && matches!(verb, Verb::Add | Verb::FetchAdd) {
                let found = remote.fetch_add(0, 0 as $word).await?;
                if found != held {
                    return Err(format!("after {held} additions the word holds {found}").into());
                }
            }
            side.say(Use::Data).await?;
            Ok(figures)
        }
    };
}

words!(narrow, u32);
words!(wide, u64);
