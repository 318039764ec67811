//! What is sent from: a buffer that is given away, or one that is lent for as long as the future lives.

use std::mem::ManuallyDrop;

use super::Buffer;

/// Lent in place of one that has no bytes.
static EMPTY: Buffer = Buffer::new();

/// The bytes of a send or a put: a [`Buffer`], whatever becomes one, or `&Buffer`.
///
/// A buffer is counted, so that giving a copy away costs no copy of its bytes, but two changes of a count that all threads see. A
/// short message that leaves at once needs neither when it is lent: only an operation that has to wait keeps a copy of its own.
///
/// ```
/// # async fn run() -> wharf::Result<()> {
/// # use wharf::{Buffer, Context, Tag, Worker};
/// # let context = Context::builder().transports("self")?.build()?;
/// # let worker = Worker::new(&context)?;
/// # let endpoint = worker.connect(&worker.address()?).await?;
/// let message = Buffer::from(vec![1; 8]);
/// for _ in 0..100 {
///     endpoint.tag_send(Tag(1), &message).await?;
/// #   worker.tag_recv(Tag(1), vec![0; 8]).await?;
/// }
/// # Ok(())
/// # }
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run()).unwrap();
/// ```
#[derive(Debug)]
pub struct SendBuffer<'a>(Given<'a>);

#[derive(Debug)]
enum Given<'a> {
    Away(Away),
    Lent(&'a Buffer),
}

/// Dropped by a call only where there is one: an operation that is over at once with what it was lent makes none.
#[derive(Debug)]
struct Away(ManuallyDrop<Buffer>);

impl Away {
    fn take(&mut self) -> Buffer {
        std::mem::take(&mut self.0)
    }
}

impl Drop for Away {
    #[inline(always)]
    fn drop(&mut self) {
        drop_away(self);
    }
}

#[inline(never)]
fn drop_away(away: &mut Away) {
    drop(away.take());
}

impl SendBuffer<'_> {
    #[inline]
    pub(crate) fn get(&self) -> &Buffer {
        match &self.0 {
            Given::Away(away) => &away.0,
            Given::Lent(buffer) => buffer,
        }
    }

    /// The buffer, for an operation that keeps it. Nothing is left of one that was given away.
    pub(crate) fn take(&mut self) -> Buffer {
        match &mut self.0 {
            Given::Away(away) => away.take(),
            Given::Lent(buffer) => buffer.clone(),
        }
    }
}

impl<B: Into<Buffer>> From<B> for SendBuffer<'_> {
    #[inline]
    fn from(buffer: B) -> Self {
        Self(match buffer.into().unless_empty() {
            None => Given::Lent(&EMPTY),
            Some(buffer) => Given::Away(Away(ManuallyDrop::new(buffer))),
        })
    }
}

impl<'a> From<&'a Buffer> for SendBuffer<'a> {
    #[inline]
    fn from(buffer: &'a Buffer) -> Self {
        Self(Given::Lent(buffer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lent_stays() {
        let buffer = Buffer::from("bytes");
        let mut lent = SendBuffer::from(&buffer);
        assert_eq!(lent.take().as_slice(), Some(&b"bytes"[..]));
        assert_eq!(lent.get().len(), 5);
        let mut nothing = SendBuffer::from(Buffer::new());
        assert!(nothing.get().is_empty() && nothing.take().is_empty());
        let mut given = SendBuffer::from(buffer);
        assert_eq!(given.take().len(), 5);
        assert!(given.get().is_empty());
    }
}
