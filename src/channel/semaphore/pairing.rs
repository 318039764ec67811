//! How two ranks make a semaphore together.
//!
//! ```text
//! rank a, attempt x                       rank b, attempt y
//!   ── offer x ────────────▶  ◀──────────── offer y ──
//!   ── offer x, answers y ─▶  ◀─ offer y, answers x ──
//! ```
//!
//! Every offer of an attempt that was not seen before is answered. An attempt ends when its own offer was answered, with the rank whose answer
//! that is. So what is left of attempts that were given up is passed by: nobody answers for them, and answers to them are no answers to a later one.

use bytes::Bytes;
use tokio::time::Instant;

use crate::{
    error::{Error, ErrorKind, Operation, Result},
    protocol::{
        offer::{Attempt, MAX_ALONG, Offer},
        registered::Registered,
    },
};

use super::{
    super::{Communicator, bootstrap::after},
    end::{End, Mapped},
};

/// What an attempt came to.
#[derive(Debug)]
pub(crate) struct Paired {
    pub(super) end: End,
    /// What the peer gave.
    pub(crate) along: Vec<u8>,
    mine: Attempt,
    theirs: Attempt,
}

/// Begins the last word of an attempt, of which the attempt and the word follow.
const LAST: [u8; 4] = *b"WHSL";

/// The attempt and the word, if it is a last one.
fn last_word(bytes: &[u8]) -> Option<(Attempt, &[u8])> {
    let (attempt, word) = bytes.strip_prefix(&LAST)?.split_first_chunk()?;
    Some((*attempt, word))
}

impl Paired {
    /// Tells the peer a few bytes more, and hears its.
    /// Errors: `InvalidArgument` when the peer has given this attempt up for another.
    pub(crate) async fn last_word(
        &self,
        communicator: &Communicator,
        peer: usize,
        tag: u32,
        word: &[u8],
    ) -> Result<Bytes> {
        let mine = [&LAST[..], &self.mine, word].concat();
        let deadline = after(communicator.bootstrap().deadline());
        communicator.send(peer, tag, mine).await?;
        loop {
            let bytes = next(communicator, peer, tag, deadline).await?;
            match last_word(&bytes) {
                Some((attempt, word)) if attempt == self.theirs => {
                    return Ok(bytes.slice_ref(word));
                }
                // Of one that was given up.
                Some(_) => {}
                None if Offer::from_bytes(&bytes)?.attempt != self.theirs => {
                    return Err(refused(format!("rank {peer} has begun another attempt")));
                }
                None => {}
            }
        }
    }
}

/// Makes the end of a semaphore with a rank, which does the same, and gives it these bytes.
pub(crate) async fn meet(
    communicator: &Communicator,
    peer: usize,
    tag: u32,
    along: Vec<u8>,
) -> Result<Paired> {
    if along.len() > MAX_ALONG {
        return Err(refused(format!("{} bytes of descriptors", along.len())));
    }
    let counter = communicator.worker().counter().await?;
    let endpoint = communicator.endpoint(peer).await?;
    let mut attempt: Attempt = [0; 16];
    getrandom::fill(&mut attempt)
        .map_err(|error| Error::new(ErrorKind::Io, "no random bytes").with_source(error))?;
    let mut mine = Offer {
        attempt,
        answers: None,
        counter: Registered {
            communicator: communicator.id().to_bytes(),
            rank: u32::try_from(communicator.rank()).unwrap_or(u32::MAX),
            expires: None,
            descriptor: counter.descriptor()?,
        },
        along,
    };
    let deadline = after(communicator.bootstrap().deadline());
    communicator.send(peer, tag, mine.to_bytes()).await?;
    let theirs = loop {
        let bytes = next(communicator, peer, tag, deadline).await?;
        if last_word(&bytes).is_some() {
            // Of an attempt that was given up after it.
            continue;
        }
        let theirs = Offer::from_bytes(&bytes)?;
        if theirs.counter.communicator != mine.counter.communicator
            || theirs.counter.rank as usize != peer
        {
            let text = format!("rank {peer} sent what is not its own semaphore");
            return Err(refused(text));
        }
        if mine.answers != Some(theirs.attempt) {
            mine.answers = Some(theirs.attempt);
            communicator.send(peer, tag, mine.to_bytes()).await?;
        }
        if theirs.answers == Some(attempt) {
            break theirs;
        }
    };
    let remote = endpoint.import(&theirs.counter.descriptor)?;
    // What the peer made by the same call is a counter.
    let end = End::new(counter, endpoint, remote, Mapped::default())?;
    Ok(Paired {
        end,
        along: theirs.along,
        mine: attempt,
        theirs: theirs.attempt,
    })
}

/// The next that a rank says, until then: also where it never stops to say something else than what is waited for.
async fn next(
    communicator: &Communicator,
    peer: usize,
    tag: u32,
    deadline: Instant,
) -> Result<Bytes> {
    if Instant::now() >= deadline {
        let text = format!("rank {peer} gave no answer to this attempt in time");
        return Err(Error::new(ErrorKind::DeadlineExceeded, text));
    }
    communicator.receive_until(peer, tag, deadline).await
}

fn refused(text: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidArgument, text).during(Operation::Signal)
}

#[cfg(test)]
pub(super) mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;
    use crate::{
        Context, Worker,
        channel::bootstrap::{Bootstrap, MemoryBootstrap},
        types::Access,
    };

    pub(in crate::channel::semaphore) async fn ranks() -> [Communicator; 2] {
        ranks_that_wait(Duration::from_secs(20)).await
    }

    async fn ranks_that_wait(deadline: Duration) -> [Communicator; 2] {
        let group = MemoryBootstrap::group_with_deadline(2, deadline).expect("a group");
        let ranks = group.into_iter().map(|bootstrap| async {
            let context = Context::builder().transports("self,shm");
            let context = context.expect("transports").build().expect("a context");
            let worker = Worker::new(&context).expect("a worker");
            let bootstrap: Arc<dyn Bootstrap> = Arc::new(bootstrap);
            Communicator::new(bootstrap, &worker).await
        });
        let ranks = futures::future::try_join_all(ranks).await;
        ranks.expect("communicators").try_into().expect("two")
    }

    /// A rank that gives its attempt up before its last word, and begins anew: the other is told, and its next attempt meets the new one.
    #[tokio::test]
    async fn a_last_word_of_another_attempt_is_none() {
        let [zero, one] = ranks().await;
        let (first, given_up) =
            tokio::join!(meet(&zero, 1, 5, Vec::new()), meet(&one, 0, 5, Vec::new()),);
        let first = first.expect("paired");
        drop(given_up.expect("paired"));
        let (again, refused) = tokio::join!(meet(&one, 0, 5, Vec::new()), async {
            let refused = first.last_word(&zero, 1, 5, &[1]).await;
            let error = refused.expect_err("another attempt");
            let second = meet(&zero, 1, 5, Vec::new()).await;
            (error, second.expect("paired"))
        });
        let (error, second) = refused;
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        let again = again.expect("paired");
        let words = tokio::join!(
            again.last_word(&one, 0, 5, &[7]),
            second.last_word(&zero, 1, 5, &[8, 9])
        );
        assert_eq!(words.0.expect("said"), [8, 9].as_slice());
        assert_eq!(words.1.expect("said"), [7].as_slice());
        assert_eq!(last_word(&LAST), None);
        assert_eq!(last_word(b"WHSL short"), None);
    }

    /// Offers of another communicator and of another rank, and memory that is no counter.
    #[tokio::test]
    async fn what_is_not_the_peers_counter_is_refused() {
        let [zero, one] = ranks().await;
        let memory = one.register(vec![0; 64], Access::WRITE).await;
        let memory = memory.expect("registered").serialize().expect("bytes");
        let counter = Registered::from_bytes(&memory).expect("whole");
        type Alter = fn(&mut Offer);
        let cases: [Alter; 3] = [
            |offer| offer.counter.communicator[3] ^= 1,
            |offer| offer.counter.rank = 0,
            |_| {},
        ];
        for (tag, alter) in (0..).zip(cases) {
            let lying = async {
                let offer = one.receive(0, tag).await.expect("an offer");
                let offer = Offer::from_bytes(&offer).expect("whole");
                let mut lie = Offer {
                    attempt: [1; 16],
                    answers: Some(offer.attempt),
                    counter: counter.clone(),
                    along: Vec::new(),
                };
                alter(&mut lie);
                one.send(0, tag, lie.to_bytes()).await.expect("sent");
            };
            let (refused, ()) = tokio::join!(meet(&zero, 1, tag, Vec::new()), lying);
            let error = refused.expect_err("not its counter");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
    }

    /// A rank that makes ever new offers and answers none does not keep the other for longer than its deadline.
    #[tokio::test(flavor = "multi_thread", worker_threads = 3)]
    async fn a_flood_of_offers_ends_at_the_deadline() {
        let [zero, one] = ranks_that_wait(Duration::from_secs(1)).await;
        let one = Arc::new(one);
        let meeting = tokio::spawn(async move { meet(&zero, 1, 5, Vec::new()).await });
        let first = one.receive(0, 5).await.expect("an offer");
        let mut offer = Offer::from_bytes(&first).expect("whole");
        offer.counter.rank = 1;
        offer.answers = Some([0; 16]);
        let answered = one.clone();
        let hears = tokio::spawn(async move { while answered.receive(0, 5).await.is_ok() {} });
        let floods = tokio::spawn(async move {
            for number in 0_u128.. {
                offer.attempt = number.to_le_bytes();
                if one.send(0, 5, offer.to_bytes()).await.is_err() {
                    break;
                }
            }
        });
        let limit = Duration::from_secs(60);
        let met = tokio::time::timeout(limit, meeting).await.expect("it ends");
        let error = met.expect("no panic").expect_err("nobody answers");
        assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
        floods.abort();
        hears.abort();
    }
}
