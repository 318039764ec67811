//! Byte streams, as the user holds them.

use std::{
    borrow::Borrow,
    fmt,
    future::Future,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use futures::Stream;
use pin_project::pin_project;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

use crate::{
    error::{Operation, Result},
    memory::Buffer,
    transport::channel::PeerCredentials,
    types::WorkerId,
    worker::{
        core::Core,
        device::{admit, admit_staging},
        engine::Engine,
        ready::Line,
        shared::Shared,
        spin::SpinRecord,
        stream::{broken::Broken, key::StreamKey},
    },
};

use super::{Endpoint, handle::InLine};

/// A reliable, ordered stream of bytes in both directions, one of many on an endpoint.
///
/// It is used like a `TcpStream`: through [`AsyncRead`], [`AsyncWrite`] and [`AsyncBufRead`], in one piece or split. Made by
/// [`Endpoint::stream`] at one end and [`Endpoint::accept_stream`] at the other. It keeps the connection open.
///
/// # Ends
/// `shutdown`, or dropping the writer, ends one direction: the peer reads all that was written and then the end. Dropping the reader before the
/// peer has ended its direction tells the peer, whose writes then fail with `BrokenPipe`. [`ByteStream::reset`] ends both at once: the peer's
/// reads fail with `ConnectionReset`. When the connection ends, what had arrived can still be read; then reads say why it ended.
///
/// # Back-pressure
/// At most 512 KiB of a stream are unread at the receiver, 64 KiB until the stream is accepted there; then writes wait, and not while less are. Up
/// to 64 KiB more may wait at the writer. Streams do not hold
/// each other up, nor other messages.
///
/// # Long buffers
/// A buffer given to [`ByteStream::write_buffer`] over shared memory may stay where it is until the reader copies it, once, straight to where it
/// reads, in pieces of up to 256 KiB. What follows it waits so long, its end and a `flush` as well.
///
/// | memory of the buffer | from |
/// |---|---|
/// | allocated by wharf ([`Context::allocate`](crate::Context::allocate)), from its second use on | 512 KiB, which is what may be unread anyhow |
/// | any, where the kernel copies between the processes (transport `cma`) | only by [`ContextBuilder::rendezvous_threshold`](crate::ContextBuilder::rendezvous_threshold): two copies at once by both ends are faster |
///
/// Slices are always copied, and so is everything that the reader cannot reach.
///
/// # Flushing
/// Short writes (below 8 KiB) may be gathered over links where sending costs a system call; they leave in the worker's next pass, without
/// a flush as well. `flush` hands them to the link now.
///
/// # Cancel safety
/// Reads and writes move bytes only when they are ready, so dropping the future of a single `read` or `write` loses nothing. `read_exact`,
/// `write_all` and the like may have moved some, as always.
#[doc(alias(
    "ucp_stream_recv_nbx",
    "ucp_stream_recv_nb",
    "ucp_stream_recv_request_test",
    "UCP_STREAM_RECV_FLAG_WAITALL",
    "UCP_FEATURE_STREAM",
    "ucp_stream_recv_flags_t"
))]
#[derive(Debug)]
#[pin_project]
pub struct ByteStream {
    #[pin]
    reader: ByteReader,
    #[pin]
    writer: ByteWriter,
}

/// The reading half of a [`ByteStream`].
pub struct ByteReader {
    inner: Arc<Inner>,
    /// Taken from the stream and not yet consumed.
    head: Bytes,
    record: SpinRecord,
}

/// The writing half of a [`ByteStream`].
#[derive(Debug)]
pub struct ByteWriter {
    inner: Arc<Inner>,
    record: SpinRecord,
}

#[derive(Debug)]
struct Inner {
    endpoint: Endpoint,
    key: StreamKey,
}

/// The halves given to [`ByteReader::reunite`] are of two streams.
#[derive(Debug)]
pub struct ReuniteError(pub ByteReader, pub ByteWriter);

impl Inner {
    #[inline]
    fn shared(&self) -> &Shared {
        self.endpoint.shared()
    }

    /// Waits for what has arrived. `attempt` is told whether it may wait for a moment.
    #[inline]
    fn drive_in<R>(
        &self,
        cx: &mut Context<'_>,
        record: &mut SpinRecord,
        attempt: impl FnMut(&mut Engine, bool) -> Option<Result<R, Broken>>,
    ) -> Poll<Result<R, Broken>> {
        let key = self.key;
        let begun = ready!(self.shared().look(Operation::Stream, cx)).map_err(Broken::Ended)?;
        begun.glance(cx, record, attempt, |engine, waker| {
            engine.core.wait_to_read(key, waker)
        })
    }

    /// Writes what leaves at once, for the thread that owns the worker's lock. Every so many-th goes the other way, where the task's budget is asked for.
    #[inline]
    fn write_at_once(&self, data: &[u8]) -> Option<usize> {
        let shared = self.shared();
        if shared.is_count_due() {
            return None;
        }
        let mut inside = shared.owner_inside()?;
        let written = inside.core.write_stream_now(self.key, data)?;
        inside.over().count_one();
        Some(written)
    }

    /// Waits until something has left.
    fn drive_out<R>(
        &self,
        cx: &mut Context<'_>,
        record: &mut SpinRecord,
        mut attempt: impl FnMut(&mut Engine) -> Option<Result<R, Broken>>,
    ) -> Poll<Result<R, Broken>> {
        let key = self.key;
        let begun = ready!(self.shared().look(Operation::Stream, cx)).map_err(Broken::Ended)?;
        begun.glance(
            cx,
            record,
            |engine, _| {
                if let Some(done) = attempt(engine) {
                    return Some(done);
                }
                engine.progress();
                attempt(engine)
            },
            |engine, waker| engine.core.wait_to_write(key, waker),
        )
    }
}

impl ByteStream {
    fn new(endpoint: &Endpoint, key: StreamKey) -> Self {
        let inner = Arc::new(Inner {
            endpoint: endpoint.clone(),
            key,
        });
        Self {
            reader: ByteReader {
                inner: inner.clone(),
                head: Bytes::new(),
                record: SpinRecord::default(),
            },
            writer: ByteWriter {
                inner,
                record: SpinRecord::default(),
            },
        }
    }

    /// The two directions, to be used by two tasks.
    #[must_use]
    pub fn into_split(self) -> (ByteReader, ByteWriter) {
        (self.reader, self.writer)
    }

    /// The next bytes as they arrived, without a further copy; `None` at the end. A long buffer of the writer's is copied to memory of its own.
    ///
    /// # Errors
    /// `ConnectionReset` when the peer reset the stream; what ended the connection.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub fn read_chunk(&mut self) -> ReadChunk<'_> {
        self.reader.read_chunk()
    }

    /// Writes a buffer that the stream owns from here on, all of it.
    ///
    /// # Errors
    /// As [`ByteWriter::write_buffer`].
    pub fn write_buffer(&mut self, buffer: impl Into<Buffer>) -> WriteBuffer<'_> {
        self.writer.write_buffer(buffer)
    }

    /// Ends both directions at once. Bytes that have not left are thrown away, and those that the peer has not read are void: its reads fail
    /// with `ConnectionReset`, its writes with `BrokenPipe`. A direction whose end was told already (`shutdown`) stays as it is.
    pub fn reset(self) {
        self.writer.reset();
    }

    /// The worker at the other end.
    #[must_use]
    pub fn peer(&self) -> Option<WorkerId> {
        self.endpoint().peer()
    }
}

/// Of each half as of both.
macro_rules! of_endpoint {
    ($($Type:ident: $($inner:ident).+;)+) => {$(
        impl $Type {
            /// The endpoint that it belongs to.
            #[must_use]
            pub fn endpoint(&self) -> &Endpoint {
                &self.$($inner).+.endpoint
            }

            /// As [`Endpoint::peer_addr`].
            #[must_use]
            pub fn peer_addr(&self) -> Option<SocketAddr> {
                self.endpoint().peer_addr()
            }

            /// As [`Endpoint::local_addr`].
            #[must_use]
            pub fn local_addr(&self) -> Option<SocketAddr> {
                self.endpoint().local_addr()
            }

            /// As [`Endpoint::peer_credentials`].
            #[must_use]
            pub fn peer_credentials(&self) -> Option<PeerCredentials> {
                self.endpoint().peer_credentials()
            }
        }
    )+};
}

of_endpoint! {
    ByteStream: reader.inner;
    ByteReader: inner;
    ByteWriter: inner;
}

impl ByteReader {
    /// As [`ByteStream::read_chunk`].
    ///
    /// # Errors
    /// As [`ByteStream::read_chunk`].
    pub fn read_chunk(&mut self) -> ReadChunk<'_> {
        ReadChunk { reader: self }
    }

    /// Puts the halves of a stream together again.
    ///
    /// # Errors
    /// Gives them back when they are of two streams.
    pub fn reunite(self, writer: ByteWriter) -> Result<ByteStream, ReuniteError> {
        if Arc::ptr_eq(&self.inner, &writer.inner) {
            Ok(ByteStream {
                reader: self,
                writer,
            })
        } else {
            Err(ReuniteError(self, writer))
        }
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Broken>> {
        if !self.head.is_empty() {
            return Poll::Ready(Ok(Some(std::mem::take(&mut self.head))));
        }
        let key = self.inner.key;
        self.inner
            .drive_in(cx, &mut self.record, |engine, patient| {
                engine.read_stream_chunk(key, patient)
            })
    }
}

impl ByteWriter {
    /// Writes a buffer that the stream owns from here on, all of it. Over links that can, it is sent, or read, from where it is; see
    /// [`ByteStream`] on long buffers.
    ///
    /// # Completion
    /// Resolves when the link, or, for a long buffer, the reader, has taken all of it.
    ///
    /// # Cancel safety
    /// Before the first poll nothing is written. After it all of it is, whether or not the future is dropped.
    ///
    /// # Errors
    /// `ConnectionReset` when the peer reads no more; what ended the connection.
    pub fn write_buffer(&mut self, buffer: impl Into<Buffer>) -> WriteBuffer<'_> {
        WriteBuffer {
            writer: self,
            buffer: Some(buffer.into()),
            number: 0,
        }
    }

    /// As [`ByteStream::reset`], for this direction.
    pub fn reset(self) {
        self.inner
            .shared()
            .ask(|engine| engine.core.reset_stream(self.inner.key));
    }
}

impl Drop for ByteReader {
    fn drop(&mut self) {
        let shared = self.inner.shared();
        let left = shared.ask(|engine| engine.core.drop_stream_reader(self.inner.key));
        drop(left);
    }
}

impl Drop for ByteWriter {
    fn drop(&mut self) {
        let shared = self.inner.shared();
        let left = shared.ask(|engine| engine.core.drop_stream_writer(self.inner.key));
        drop(left);
    }
}

impl AsyncRead for ByteReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if !this.head.is_empty() || buf.remaining() == 0 {
            let count = this.head.len().min(buf.remaining());
            buf.put_slice(&this.head.split_to(count));
            return Poll::Ready(Ok(()));
        }
        let key = this.inner.key;
        let read = this
            .inner
            .drive_in(cx, &mut this.record, |engine, patient| {
                engine.read_stream(key, buf, patient)
            });
        read.map(|read| read.map(drop).map_err(io::Error::from))
    }
}

impl AsyncBufRead for ByteReader {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.get_mut();
        if this.head.is_empty() {
            match ready!(this.poll_chunk(cx)) {
                Ok(chunk) => this.head = chunk.unwrap_or_default(),
                Err(broken) => return Poll::Ready(Err(broken.into())),
            }
        }
        Poll::Ready(Ok(&this.head))
    }

    fn consume(mut self: Pin<&mut Self>, amount: usize) {
        self.head.advance(amount);
    }
}

impl AsyncWrite for ByteWriter {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(data)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let key = this.inner.key;
        if slices.iter().all(|slice| slice.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        if let [slice] = slices
            && let Some(written) = this.inner.write_at_once(slice)
        {
            return Poll::Ready(Ok(written));
        }
        let written = this.inner.drive_out(cx, &mut this.record, |engine| {
            let mut written = 0;
            for slice in slices.iter().filter(|slice| !slice.is_empty()) {
                match engine.core.write_stream(key, slice) {
                    Ok(count) => {
                        written += count;
                        if count < slice.len() {
                            break;
                        }
                    }
                    // Told by the next write.
                    Err(_) if written > 0 => break,
                    Err(broken) => return Some(Err(broken)),
                }
            }
            (written > 0).then_some(Ok(written))
        });
        written.map(|written| written.map_err(io::Error::from))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let key = this.inner.key;
        this.inner
            .drive_out(cx, &mut this.record, |engine| engine.core.flush_stream(key))
            .map(|flushed| flushed.map_err(io::Error::from))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let key = this.inner.key;
        this.inner
            .drive_out(cx, &mut this.record, |engine| {
                engine.core.finish_stream(key);
                engine.core.has_finished(key)
            })
            .map(|finished| finished.map_err(io::Error::from))
    }
}

impl AsyncRead for ByteStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.project().reader.poll_read(cx, buf)
    }
}

impl AsyncBufRead for ByteStream {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        self.project().reader.poll_fill_buf(cx)
    }
    fn consume(self: Pin<&mut Self>, amount: usize) {
        self.project().reader.consume(amount);
    }
}

impl AsyncWrite for ByteStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.project().writer.poll_write(cx, data)
    }
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.project().writer.poll_write_vectored(cx, slices)
    }
    fn is_write_vectored(&self) -> bool {
        true
    }
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project().writer.poll_flush(cx)
    }
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project().writer.poll_shutdown(cx)
    }
}

/// Opens a stream; made by [`Endpoint::stream`].
///
/// # Completion
/// Resolves when the peer has been told; it does not wait until the peer accepts. Waits while 4096 streams of this side are open, or 128
/// that the peer has not accepted.
///
/// # Cancel safety
/// Cancel safe.
#[must_use = "a stream is opened when this is awaited"]
#[derive(Debug)]
pub struct OpenStream<'a>(InLine<&'a Endpoint>);

/// Accepts a stream; made by [`Endpoint::accept_stream`].
///
/// # Completion
/// Resolves when the peer has opened one. Streams are accepted in the order in which they were opened.
///
/// # Cancel safety
/// Cancel safe.
#[must_use = "a stream is accepted when this is awaited"]
#[derive(Debug)]
pub struct AcceptStream<'a>(InLine<&'a Endpoint>);

/// Reads a chunk; made by [`ByteStream::read_chunk`].
///
/// # Cancel safety
/// Cancel safe.
#[must_use = "futures do nothing unless awaited"]
#[derive(Debug)]
#[doc(alias("ucp_stream_recv_data_nb", "ucp_stream_data_release"))]
pub struct ReadChunk<'a> {
    reader: &'a mut ByteReader,
}

/// Writes an owned buffer; made by [`ByteWriter::write_buffer`].
///
/// # Completion
/// Resolves when the link, or, for a long buffer, the reader, has taken all of it.
///
/// # Cancel safety
/// Before the first poll nothing is written. After it all of it is, whether or not this is dropped.
#[must_use = "futures do nothing unless awaited"]
#[derive(Debug)]
pub struct WriteBuffer<'a> {
    writer: &'a mut ByteWriter,
    buffer: Option<Buffer>,
    /// What it is called once it has been taken.
    number: u64,
}

impl Endpoint {
    /// Opens a byte stream.
    ///
    /// ```
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// use tokio::io::{AsyncReadExt, AsyncWriteExt};
    /// use wharf::{Context, Worker};
    ///
    /// let worker = Worker::new(&Context::builder().transports("self")?.build()?)?;
    /// let endpoint = worker.connect(&worker.address()?).await?;
    /// let mut here = endpoint.stream().await?;
    /// let mut there = endpoint.accept_stream().await?;
    /// here.write_all(b"hello").await?;
    /// here.shutdown().await?;
    /// let mut text = String::new();
    /// there.read_to_string(&mut text).await?;
    /// assert_eq!(text, "hello");
    /// # Ok(())
    /// # }
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run()).unwrap();
    /// ```
    ///
    /// # Errors
    /// `Closed` on a closed endpoint; what ended the connection.
    #[doc(alias = "ucp_stream_send_nbx")]
    #[doc(alias = "ucp_stream_send_nb")]
    pub fn stream(&self) -> OpenStream<'_> {
        OpenStream(InLine::new(self, Line::Openers))
    }

    /// Accepts the next byte stream that the peer opens. Several tasks may wait at once.
    ///
    /// # Errors
    /// What ended the connection, after all streams that were opened before.
    #[doc(alias = "ucp_stream_worker_poll")]
    #[doc(alias = "ucp_stream_poll_ep_t")]
    pub fn accept_stream(&self) -> AcceptStream<'_> {
        AcceptStream(InLine::new(self, Line::Accepters))
    }
}

/// The streams that one peer opens; the end is that of the connection.
pub(crate) struct AcceptedStreams(InLine<Endpoint>);

impl AcceptedStreams {
    pub(crate) fn new(endpoint: Endpoint) -> Self {
        Self(InLine::new(endpoint, Line::Accepters))
    }
}

impl Stream for AcceptedStreams {
    type Item = ByteStream;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ByteStream>> {
        poll_stream(&mut self.0, cx).map(Result::ok)
    }
}

/// Waits for a stream that is opened or accepted.
fn poll_stream<E: Borrow<Endpoint>>(
    waits: &mut InLine<E>,
    cx: &mut Context<'_>,
) -> Poll<Result<ByteStream>> {
    let attempt = match waits.line {
        Line::Openers => Core::open_stream,
        _ => Core::accept_stream,
    };
    let endpoint = waits.endpoint.borrow();
    let (link, id) = endpoint.place();
    let begun = ready!(endpoint.shared().look(Operation::Stream, cx))?;
    let found = begun.drive(
        cx,
        |engine| {
            attempt(&mut engine.core, link, id).or_else(|| {
                engine.progress();
                attempt(&mut engine.core, link, id)
            })
        },
        |engine, waker| {
            if let Some(waiters) = engine.ctx().line((link, id), waits.line) {
                let before = waiters.leave(&mut waits.ticket, waker);
                engine.ctx().drop_later(before);
            }
        },
    );
    found.map(|found| match found {
        Ok(key) => Ok(ByteStream::new(endpoint, key)),
        Err(error) => Err(error.during(Operation::Stream)),
    })
}

impl Future for OpenStream<'_> {
    type Output = Result<ByteStream>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<ByteStream>> {
        poll_stream(&mut self.0, cx)
    }
}

impl Future for AcceptStream<'_> {
    type Output = Result<ByteStream>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<ByteStream>> {
        poll_stream(&mut self.0, cx)
    }
}

impl Future for ReadChunk<'_> {
    type Output = Result<Option<Bytes>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.reader
            .poll_chunk(cx)
            .map(|read| read.map_err(Into::into))
    }
}

impl Future for WriteBuffer<'_> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        let ByteWriter { inner, record } = &mut *this.writer;
        let key = inner.key;
        if let Some(buffer) = this.buffer.take() {
            if buffer.is_on_device() {
                let context = &inner.shared().context;
                admit(context, &buffer.device_types(), Operation::Stream)?;
                admit_staging(context, false, Operation::Stream)?;
            }
            let (taken, _) = inner.shared().begin(Operation::Stream, |engine| {
                engine.core.write_stream_buffer(key, buffer)
            })?;
            match taken {
                Ok(number) => this.number = number,
                Err(broken) => return Poll::Ready(Err(broken.into())),
            }
        }
        let number = this.number;
        inner
            .drive_out(cx, record, |engine| engine.core.has_left(key, number))
            .map(|left| left.map_err(Into::into))
    }
}

impl fmt::Debug for ByteReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByteReader")
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for ReuniteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the halves are of two streams")
    }
}

impl std::error::Error for ReuniteError {}
